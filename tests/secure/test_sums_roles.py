"""What each role of a secure sum gets to see, and what it refuses to do."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.errors import CryptoError, Refused
from fedmend.federation import KINDS, Federation, Ledger, Party, Policy, Sealed, Site, wire
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure import sums_he
from fedmend.secure.keys import keyring
from fedmend.secure.sums import SumSession, SumWorker, offer_summand

from .parties import assert_uniform, leaves, unread

FORM = {"low": 0, "high": 1, "fraction_bits": None}
# Far beyond what the sessions of one test run reach.
LATE = 1_000_000_000


class WatchedEngine(LocalEngine):
    """Keeps every value that crosses, and lets a test lay hands on it on the way."""

    def __init__(self, sites):
        super().__init__(sites, strict=True, ledger=Ledger())
        self.crossed = []
        self.on_reply = lambda call, value: value
        self.on_request = lambda call: call

    def call(self, call):
        call = self.on_request(call)
        self.crossed.append((call.party, call.method, "request", call.kwargs))
        value = self.on_reply(call, super().call(call))
        self.crossed.append((call.party, call.method, "reply", value))
        return value

    def replies(self, method, party=None):
        return [
            value
            for who, name, way, value in self.crossed
            if (name, way) == (method, "reply") and party in (None, who)
        ]

    def requests(self, method):
        return [asked for _, name, way, asked in self.crossed if (name, way) == (method, "request")]


def tampered(arrays, method, tamper, party=None):
    """Parties of whose answers to `method` one's, or everybody's, are changed on the way."""
    fed = watched(arrays)
    fed.engine.on_reply = lambda call, value: (
        tamper(value) if call.method == method and party in (None, call.party) else value
    )
    return fed


def watched(arrays, name="x"):
    sites = [
        Site(f"p{number}", {"train": Table([0], {"v": [0.0]})}, policy=Policy())
        for number in range(len(arrays))
    ]
    for site, array in zip(sites, arrays, strict=True):
        offer_summand(site, name, array, kind="label", opens="votes")
    return Federation(engine=WatchedEngine(sites))


# ---------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("between", [(0, 1), (0, 10_000), (0, 1 << 28), None])
@pytest.mark.parametrize("on_absent", ["stop", "continue"])
def test_the_coordinator_receives_uniform_numbers(between, on_absent):
    ones = [np.ones((1500, 10), int)] * 3
    fed = watched(ones)
    result = SumSession(fed.workers(SumWorker), on_absent=on_absent).sum("x", between=between)
    assert (result.values == 3).all()
    messages = fed.engine.replies("masked")
    for message in messages:
        assert_uniform(message)
    # any two of three messages together say nothing either
    for left in range(3):
        assert_uniform(messages[left] + messages[(left + 1) % 3])
    if on_absent == "continue":
        # all three together say nothing before the own masks are opened
        assert_uniform(sum(messages[1:], messages[0]))


def test_rounds_sessions_and_sums_of_one_size_never_share_a_mask():
    fed = watched([np.ones(30_000, int)] * 3)
    for site in fed.engine.sites.values():
        offer_summand(site, "y", np.ones(30_000, int), opens="statistic")
    first, second = SumSession(fed.workers(SumWorker)), SumSession(fed.workers(SumWorker))
    for session, name in ((first, "x"), (first, "x"), (first, "y"), (second, "x")):
        session.sum(name, between=(0, 1))
    messages = fed.engine.replies("masked", "p0")
    assert len(messages) == 4
    for one, other in itertools.combinations(messages, 2):
        assert_uniform(one - other)


def test_a_round_is_not_played_twice():
    fed = watched([np.ones(4, int)] * 2)
    session = SumSession(fed.workers(SumWorker))
    session.sum("x", between=(0, 1))
    played = fed.engine.requests("prepare_round")[0]["number"]
    worker = session.workers["p0"]
    for number in (played, played - 1, -1, "7"):
        with pytest.raises(CryptoError, match="it was replayed"):
            worker.prepare_round(number, "x", FORM, ["p0", "p1"])
    with pytest.raises(CryptoError, match="not open"):
        worker.masked(played, False)
    worker.prepare_round(LATE, "x", FORM, ["p0", "p1"])
    with pytest.raises(CryptoError, match="not open"):
        worker.masked(LATE - 1, False)
    worker.masked(LATE, False)
    with pytest.raises(CryptoError, match="let out already"):
        worker.masked(LATE, False)
    with pytest.raises(CryptoError, match="let out already"):
        worker.masked(LATE, True)


def test_the_same_again_is_one_step_and_tells_no_more():
    fed = watched([np.ones(30_000, int)] * 3)
    session = SumSession(fed.workers(SumWorker))
    for value in (1, 0, 1):
        for site in fed.engine.sites.values():
            offer_summand(site, "x", np.full(30_000, value), kind="label", opens="votes")
        assert (session.sum("x", between=(0, 1)).values == 3 * value).all()
    assert len(fed.engine.requests("prepare_round")) == 3, "the first time only"
    messages = fed.engine.replies("masked", "p0")
    assert len(messages) == 3
    for message in messages:
        assert_uniform(message)
    for one, other in itertools.combinations(messages, 2):
        assert_uniform(one - other)
    opened = {e.readable for e in fed.ledger.entries() if e.call == "SumWorker.masked"}
    assert opened == {"control", "votes"}


@pytest.mark.parametrize("mode", ["masks", "he", "none"])
@pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
def test_in_every_mode_a_further_round_asks_each_party_once(mode):
    fed = watched([np.ones(4, int)] * 3)
    for site in fed.engine.sites.values():
        site.policy = Policy(allow=frozenset(KINDS))
    session = SumSession(fed.workers(SumWorker), mode=mode)
    method = {"masks": "masked", "he": "encrypted", "none": "labels_in_clear"}[mode]
    for rounds in (1, 2, 3):
        assert session.sum("x", between=(0, 1)).values.tolist() == [3] * 4
        assert len(fed.engine.requests(method)) == 3 * rounds
        assert len(fed.engine.requests("prepare_round")) == 3


@pytest.mark.parametrize(
    "changed", [(6, "label", "votes"), (4, "label", "statistic"), (4, "row", "votes")]
)
def test_what_changes_its_shape_or_kind_is_prepared_anew(changed):
    fed = watched([np.ones(4, int)] * 2)
    session = SumSession(fed.workers(SumWorker))
    for size, kind, opens in ((4, "label", "votes"), changed, changed):
        for site in fed.engine.sites.values():
            offer_summand(site, "x", np.ones(size, int), kind=kind, opens=opens)
        assert session.sum("x", between=(0, 1)).values.tolist() == [2] * size
    assert len(fed.engine.requests("prepare_round")) == 3 * 2, "and it is not tried again"
    assert session.sum("x", between=(0, 2)).values.tolist() == [2] * size, "another range"
    assert len(fed.engine.requests("prepare_round")) == 4 * 2


def test_sessions_over_the_same_workers_do_not_go_on_with_each_others_rounds():
    fed = watched([np.ones(4, int)] * 3)
    workers = fed.workers(SumWorker)
    groups = [["p0", "p1"], ["p1", "p2"], ["p0", "p1"]]
    sessions = [SumSession(workers, parties=group) for group in groups]
    for session in (*sessions, *sessions, *sessions[:1] * 2):
        assert session.sum("x", between=(0, 1)).values.tolist() == [2] * 4


def test_nothing_leaves_before_all_neighbours_were_met_however_often_it_is_asked():
    fed = watched([np.ones(4, int)] * 3)
    workers, everyone = fed.workers(SumWorker), ["p0", "p1", "p2"]
    keys = workers.public_key()
    workers["p0"].meet({"p1": keys["p1"]})
    for number in (LATE, LATE + 1):
        workers["p0"].prepare_round(number, "x", FORM, everyone)
        with pytest.raises(CryptoError, match="'p2'"):
            workers["p0"].masked(number, False)


def test_a_refusal_in_a_further_round_uses_its_number_up():
    fed = watched([np.ones(4, int)] * 2)
    session = SumSession(fed.workers(SumWorker))
    session.sum("x", between=(0, 1))
    offer_summand(fed.engine.site("p0"), "x", np.full(4, 2), kind="label", opens="votes")
    with pytest.raises(Exception, match="leaves the agreed range"):
        session.sum("x", between=(0, 1))
    asked = fed.engine.requests("masked")[-1]
    tried, after = asked["number"], asked["after"]
    for number in (tried, tried + 1):
        assert session.workers["p0"].masked(number, False, after) is None
    with pytest.raises(CryptoError, match="replayed"):
        session.workers["p1"].masked(tried, False, tried)
    offer_summand(fed.engine.site("p0"), "x", np.ones(4, int), kind="label", opens="votes")
    assert session.sum("x", between=(0, 1)).values.tolist() == [2] * 4


def test_a_failed_round_uses_its_number_up():
    fed = watched([np.array([5]), np.array([0])])
    session = SumSession(fed.workers(SumWorker))
    with pytest.raises(Exception, match="leaves the agreed range"):
        session.workers["p0"].prepare_round(LATE, "x", FORM, ["p0", "p1"])
    with pytest.raises(CryptoError, match="replayed"):
        session.workers["p0"].prepare_round(LATE, "x", {**FORM, "high": 9}, ["p0", "p1"])


@pytest.mark.parametrize("parties", [["p0"], ["p1", "p2"], ["p0", "p0"], []])
def test_a_party_takes_no_part_where_its_own_array_would_be_the_sum(parties):
    fed = watched([np.ones(4, int)] * 3)
    workers = fed.workers(SumWorker)
    with pytest.raises(CryptoError, match="'p0' takes no part"):
        workers["p0"].prepare_round(LATE, "x", FORM, parties)


def test_a_mask_is_opened_once_and_for_the_agreed_parties_only():
    fed = watched([np.ones(4, int)] * 3)
    session = SumSession(fed.workers(SumWorker), on_absent="continue")
    session.sum("x", between=(0, 1))
    worker, everyone = session.workers["p0"], ["p0", "p1", "p2"]
    worker.prepare_round(LATE, "x", FORM, everyone)
    with pytest.raises(CryptoError, match="does not open its mask"):
        worker.open_own_mask(LATE, everyone)
    worker.masked(LATE, True)
    with pytest.raises(CryptoError, match="does not open its mask"):
        worker.open_own_mask(LATE, ["p0", "p1"])
    assert len(worker.open_own_mask(LATE, everyone)) == 32
    with pytest.raises(CryptoError, match="does not open its mask"):
        worker.open_own_mask(LATE, everyone)
    worker.prepare_round(LATE + 1, "x", FORM, everyone)
    worker.masked(LATE + 1, True)
    worker.prepare_round(LATE + 2, "x", FORM, everyone)
    with pytest.raises(CryptoError, match="the round is over"):
        worker.open_own_mask(LATE + 1, everyone)


@pytest.mark.parametrize(
    "other",
    [
        {"name": "y"},
        {"parties": ["p2", "p1", "p0"]},
        {"form": {"low": 0, "high": 2, "fraction_bits": None}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_parties_that_were_told_different_things_do_not_give_a_sum(other):
    fed = watched([np.ones(500, int)] * 3)

    def tell_p2_something_else(call):
        if call.party == "p2" and call.method == "prepare_round":
            return replace(call, kwargs={**call.kwargs, **other})
        return call

    for site in fed.engine.sites.values():
        offer_summand(site, "y", np.ones(500, int), kind="label", opens="votes")
    fed.engine.on_request = tell_p2_something_else
    with pytest.raises(CryptoError, match="the masks do not cancel"):
        SumSession(fed.workers(SumWorker)).sum("x", between=(0, 1))


@pytest.mark.parametrize(
    ("method", "tamper", "problem"),
    [
        ("masked", lambda array: array[:-1], r"'p1' sent uint8 \(499,\) where uint8 \(500,\)"),
        ("masked", lambda array: array.astype(np.uint16), "party 'p1' sent uint16"),
        ("masked", lambda array: array.tobytes(), "party 'p1' sent bytes"),
        ("masked", lambda array: array ^ np.uint8(170), "the masks do not cancel"),
        ("open_own_mask", lambda seed: seed[:-1], "the seed of its mask is not 32 bytes"),
        ("decrypt_blinded", lambda rows: rows[:0], "'p1', which holds the key, did not return"),
        ("decrypt_blinded", lambda rows: rows + np.uint64(1 << 50), "'p1', which holds the key"),
        ("decrypt_blinded", lambda rows: "rows", "'p1', which holds the key, did not return"),
    ],
)  # fmt: skip
def test_altered_messages_are_refused(method, tamper, problem):
    fed = tampered([np.ones(500, int)] * 3, method, tamper, "p1")
    how = {"decrypt_blinded": {"mode": "he", "key_holder": "p1"}}.get(method, {})
    how |= {"on_absent": "continue"} if method == "open_own_mask" else {}
    with pytest.raises(CryptoError, match=problem):
        SumSession(fed.workers(SumWorker), **how).sum("x", between=(0, 1))


# ---------------------------------------------------------------------------------- encryption


@pytest.mark.parametrize("between", [(0, 1), None])
def test_the_key_holder_decrypts_uniform_numbers(between):
    fed = watched([np.ones((3000, 10), int)] * 3)
    session = SumSession(fed.workers(SumWorker), mode="he", key_holder="p1")
    assert (session.sum("x", between=between).values == 3).all()
    assert (session.sum("x", between=between).values == 3).all()
    first, second = fed.engine.replies("decrypt_blinded", "p1")
    for decrypted in (first, second, (first - second) & np.uint64((1 << 50) - 1)):
        assert decrypted.shape == (len(decrypted), 4096)
        assert_uniform(decrypted, bits=50)


def test_what_a_party_encrypts_is_uniform_already(monkeypatch):
    """Its rounding and noise are those of a uniform number: the same for all values.

    Also without the pairwise masks, which the key holder knows where it is the only partner.
    """
    monkeypatch.setattr(SumWorker, "_pair_masks", lambda worker, current, mode: ([], []))
    fed = watched([np.ones(21 * 4096, int)] * 3)
    session = SumSession(fed.workers(SumWorker), mode="he")
    for _ in range(2):
        session.sum("x", between=(0, 1))
    scheme = sums_he.context()
    keys = fed.engine.site("p0")._workers["SumWorker#1"]._sum_keys
    (first, seed), (second, other) = fed.engine.replies("encrypted", "p1")
    plain = [scheme.decrypt(keys.secret, scheme.load_ciphertext(data)) for data in (first, second)]
    for values in (*plain, (plain[0] - plain[1]) & np.uint64((1 << 50) - 1)):
        assert_uniform(values, bits=50)
    assert seed != other
    sent = [request for *_, way, request in fed.engine.crossed if way == "request"]
    assert not any(part == seed for part in leaves(sent) if isinstance(part, bytes))


def test_what_the_key_holder_receives_is_flooded():
    fed = watched([np.ones(100, int)] * 3)
    session = SumSession(fed.workers(SumWorker), mode="he")
    session.sum("x", between=(0, 1))
    blinded = fed.engine.requests("decrypt_blinded")[0]["ciphertexts"]
    keys = fed.engine.site("p0")._workers["SumWorker#1"]._sum_keys
    scheme = sums_he.context()
    left = scheme.noise_budget(keys.secret, scheme.load_ciphertext(blinded[0]))
    fresh = scheme.noise_budget(keys.secret, scheme.encrypt(keys.public, np.arange(4)))
    assert 1 <= left <= 3 and fresh - left > 30


@pytest.mark.parametrize("mode", ["masks", "he"])
def test_no_private_key_is_on_the_way(mode):
    fed = watched([np.ones(50, int)] * 3)
    session = SumSession(fed.workers(SumWorker), mode=mode, key_holder="p2")
    session.sum("x", between=(0, 1))
    secrets, holders = [], []
    for site in fed.engine.sites.values():
        worker = site._workers["SumWorker#1"]
        holders += [site.name] if worker._sum_keys is not None else []
        for identity in (keyring(site).identity, worker._session):
            secrets.append(identity._private.private_bytes_raw())
        secrets += [line._seeds for line in worker._lines.values()]
    assert holders == (["p2"] if mode == "he" else [])
    sent = b"".join(wire.encode(value) for _, _, _, value in fed.engine.crossed)
    written = "".join(map(repr, fed.ledger.entries()))
    for secret in secrets:
        assert secret not in sent and secret.hex() not in written


def test_the_key_travels_sealed_and_a_changed_one_is_refused():
    fed = watched([np.ones(5, int)] * 3)
    session = SumSession(fed.workers(SumWorker), mode="he")
    session.sum("x", between=(0, 1))
    messages = [told for told in fed.engine.replies("sum_key") if isinstance(told, Sealed)]
    assert {(sealed.sender, sealed.recipient) for sealed in messages} == {
        ("p0", "p1"),
        ("p0", "p2"),
    }

    def other_key(call, value):
        if call.method != "sum_key" or call.kwargs.get("to") != "p2":
            return value
        return Sealed(value.sender, value.recipient, value.kind, value.ciphertext[:-1] + b"\0")

    fed.engine.on_reply = other_key
    with unread("altered", "p2", "p0"):
        SumSession(fed.workers(SumWorker), mode="he").sum("x", between=(0, 1))


def test_the_key_holder_decrypts_once_for_a_round():
    fed = watched([np.ones(5, int)] * 2)
    session = SumSession(fed.workers(SumWorker), mode="he")
    session.sum("x", between=(0, 1))
    request = fed.engine.requests("decrypt_blinded")[0]
    with pytest.raises(CryptoError, match="does not for round .* again"):
        session.workers["p0"].decrypt_blinded(request["number"], request["ciphertexts"])
    with pytest.raises(CryptoError, match="'p1' holds no key"):
        session.workers["p1"].decrypt_blinded(LATE, request["ciphertexts"])


def _flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (lambda messages: [messages[0][:-1], *messages[1:]], "from 'p1': .*damaged or cut off"),
        (lambda messages: [messages[0][:20], *messages[1:]], "from 'p1': not a ciphertext"),
        (lambda messages: [_flip(messages[0], 5000), *messages[1:]], "from 'p1': .*damaged"),
        (lambda messages: [_flip(messages[0], 1), *messages[1:]], "from 'p1': not a ciphertext"),
        (lambda messages: messages[:-1], "'p1' sent 2 where 2 ciphertexts and a seed were due"),
        (lambda messages: [*messages, messages[0]], "party 'p1' sent 4 where 2"),
        (lambda messages: [*messages[:-1], b"short"], "'p1': the seed of its blinds is not 32"),
        (lambda messages: [*messages[:-1], 7], "'p1': the seed of its blinds is not 32 bytes"),
        (lambda messages: b"", "party 'p1' sent a bytes where 2 ciphertexts"),
        (lambda messages: [7, *messages[1:]], "from 'p1': not a ciphertext: int"),
    ],
)
def test_altered_ciphertexts_are_refused(tamper, problem):
    fed = tampered([np.ones(31 * 4096 + 1, int)] * 2, "encrypted", tamper, "p1")
    with pytest.raises(CryptoError, match=problem):
        SumSession(fed.workers(SumWorker), mode="he").sum("x", between=(0, 1))


def test_ciphertexts_under_another_key_are_refused():
    scheme = sums_he.context()
    stranger = scheme.generate_keys()
    foreign = scheme.ciphertext_bytes(scheme.encrypt(stranger.public, np.arange(3)))
    fed = tampered([np.ones(5, int)] * 2, "encrypted", lambda _: [foreign, bytes(32)], "p1")
    with pytest.raises(CryptoError, match="could not read|out of range|do not cancel"):
        SumSession(fed.workers(SumWorker), mode="he").sum("x", between=(0, 1))


# ---------------------------------------------------------------------------------- the ledger


def test_the_ledger_says_what_crossed():
    fed = watched([np.ones((7, 3), int)] * 3)
    SumSession(fed.workers(SumWorker)).sum("x", between=(0, 1))
    assert fed.ledger.kinds(receiver="coordinator") == {"control", "count", "masked"}
    masked = [entry for entry in fed.ledger if entry.kind == "masked"]
    assert {(entry.shape, entry.dtype) for entry in masked} == {("21", "uint8")}
    fed = watched([np.ones((7, 3), int)] * 3)
    SumSession(fed.workers(SumWorker), mode="he").sum("x", between=(0, 1))
    assert fed.ledger.kinds(receiver="coordinator") == {"control", "count", "ciphertext", "masked"}
    assert {entry.sender for entry in fed.ledger if entry.kind == "masked"} == {"p0"}
    assert {entry.sealed_for for entry in fed.ledger if "sum_key" in entry.call} == {"", "p1", "p2"}


@pytest.mark.parametrize(
    ("kind", "method"), [("label", "rows_in_clear"), ("row", "labels_in_clear")]
)
def test_a_label_cannot_be_asked_for_as_a_row(kind, method):
    """A policy that lets rows out, and no labels, would else let labels out under another name."""
    table = Table([0], {"v": [0.0]})
    lets_out = Policy(allow=frozenset(KINDS))
    fed = Federation(*(Party(name, table, policy=lets_out) for name in ("p0", "p1")), strict=True)
    for site in fed.engine.sites.values():
        offer_summand(site, "x", np.arange(2), kind=kind)
    with fed.workers(SumWorker) as workers:
        workers.prepare_round(LATE, "x", FORM, ["p0", "p1"])
        with pytest.raises(Refused, match=f"is of kind '{kind}' and was asked for as"):
            getattr(workers["p0"], method)(LATE)
