from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.federation import COORDINATOR, Federation, Party, Sealed, wire
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure import psi
from fedmend.secure.align import align
from fedmend.secure.channel import introduce
from fedmend.secure.group import hash_to_points, split
from fedmend.secure.identifiers import normalised
from fedmend.secure.keys import keyring

from .unread import unread

NAMES = ("bank", "telco", "shop")


def federation(*lists: list[str]) -> Federation:
    parties = zip(NAMES, lists, strict=False)
    return Federation(
        *(Party(name, Table(ids, {"x": range(len(ids))})) for name, ids in parties), strict=True
    )


def people(start: int, stop: int) -> list[str]:
    return [f"person {number:05d}" for number in range(start, stop)]


# ---------------------------------------------------------------------------- who sees what


class Crossing:
    def __init__(self, sender, receiver, call, kind, value):
        self.sender, self.receiver, self.call = sender, receiver, call
        self.kind, self.value = kind, value


@pytest.fixture
def crossings(monkeypatch):
    """Everything that passes the coordinator, as it sees it."""
    seen = []
    original = LocalEngine._cross

    def record(self, sender, receiver, call, kind, value, *opens):
        seen.append(Crossing(sender, receiver, call, kind, value))
        return original(self, sender, receiver, call, kind, value, *opens)

    monkeypatch.setattr(LocalEngine, "_cross", record)
    return seen


def boxes_in(value) -> list[Sealed]:
    if isinstance(value, Sealed):
        return [value]
    if isinstance(value, dict):
        return [box for item in value.values() for box in boxes_in(item)]
    return []


def without_boxes(value):
    if isinstance(value, Sealed):
        return None
    if isinstance(value, dict):
        return {key: without_boxes(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("mode", ["ecdh", "same-order"])
def test_the_coordinator_sees_sealed_boxes_and_no_trace_of_an_id(parties, mode, crossings):
    ids = people(0, 150)
    lists = [ids] * parties if mode == "same-order" else [ids, ids[20:], ids[:140]][:parties]
    fed = federation(*lists)
    align(fed, mode=mode)
    keys = normalised(np.array(ids, object), "exact", "bank")
    traces = [each.encode() for each in ids] + [hashlib.sha512(key).digest()[:16] for key in keys]
    traces += [hashlib.sha256(each.encode()).digest()[:16] for each in ids]
    traces += split(hash_to_points(keys), "test")
    for crossing in crossings:
        raw = wire.encode(crossing.value)
        assert not any(trace in raw for trace in traces)
        if crossing.kind == "hashed-id" and not crossing.call.endswith(".digest"):
            assert boxes_in(crossing.value)
            rest = without_boxes(crossing.value)
            assert not any(isinstance(part, bytes | np.ndarray) for part in _leaves(rest))
    marked = {entry.kind for entry in fed.ledger if entry.sealed_for}
    assert marked == {"hashed-id"}
    assert fed.ledger.kinds() <= {"control", "count", "hashed-id"}


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def test_what_the_coordinator_sees_does_not_depend_on_which_ids_match(crossings):
    """Same sizes, same number of common ids, other ids: the same calls with the same sizes."""
    views = []
    for lists in (
        [people(0, 60), people(30, 90), people(20, 70)],
        [people(500, 560), people(530, 590), people(520, 570)],
    ):
        crossings.clear()
        align(federation(*lists))
        views.append(
            [(c.sender, c.receiver, c.call, c.kind, wire.measure(c.value)) for c in crossings]
        )
    assert sorted(views[0]) == sorted(views[1])


def test_a_hub_cannot_tell_an_id_known_to_one_other_from_an_id_known_to_none(monkeypatch):
    """The shares of ids that not all have are noise, whoever has them."""
    totals = {}
    original = psi.StarWorker._settle

    def spy(self, rows, tags, secret, partners):
        totals[self.site.name] = self
        return original(self, rows, tags, secret, partners)

    decoded = {}
    real_decode = psi.okvs.decode

    def record(keys, seed, store, sender):
        decoded[sender] = (list(keys), real_decode(keys, seed, store, sender))
        return decoded[sender][1]

    monkeypatch.setattr(psi.StarWorker, "_settle", spy)
    monkeypatch.setattr(psi.okvs, "decode", record)
    everyone, with_telco, alone = people(0, 30), people(100, 500), people(2000, 2400)
    fed = federation(
        everyone + with_telco + alone,
        everyone + with_telco + people(4000, 4500),
        everyone + people(7000, 8000),
    )
    align(fed)
    hub = totals["bank"]
    keys, values = decoded["telco"]
    outputs = psi._words(hub._theirs["telco"])
    shares = dict(zip(keys, values ^ outputs, strict=True))
    # What the hub can take off itself: the key it shares with telco.
    seed = hub.shared_seed("telco", "zero shares")
    groups = {}
    for name, group in (("telco", with_telco), ("none", alone)):
        rows = [b"s" + each.encode() for each in group]
        bare = np.array([shares[key] for key in rows]) ^ psi._words(
            [psi._prf(seed, key) for key in rows]
        )
        assert bare.all()
        groups[name] = np.bincount(np.frombuffer(bare.tobytes(), np.uint8), minlength=256)
        assert stats.chisquare(groups[name]).pvalue > 1e-6
    assert stats.chi2_contingency(np.stack(list(groups.values()))).pvalue > 1e-6


def test_the_digest_of_the_same_table_is_new_in_every_run(crossings):
    ids = people(0, 30)
    for _ in range(2):
        align(federation(ids, ids), mode="same-order")
    digests = {c.value for c in crossings if c.call.endswith(".digest") and c.sender != COORDINATOR}
    assert len(digests) == 2


# ---------------------------------------------------------------------------- tampering


def tamper(monkeypatch, call: str, change) -> None:
    """A coordinator that changes the first value it carries back from `call`."""
    original, done = LocalEngine.call, []

    def meddle(self, request):
        value = original(self, request)
        if request.method == call and not done:
            done.append(True)
            value = change(value)
        return value

    monkeypatch.setattr(LocalEngine, "call", meddle)


def flipped(value):
    if isinstance(value, dict):
        first = sorted(value)[0]
        return value | {first: flipped(value[first])}
    box = bytearray(value.box)
    box[len(box) // 2] ^= 1
    return Sealed(value.sender, value.recipient, value.kind, bytes(box))


@pytest.mark.parametrize(
    ("parties", "call"),
    [
        (2, "blinded"),
        (2, "tagged"),
        (3, "blinded"),
        (3, "evaluated"),
        (3, "shares"),
        (3, "invite"),
    ],
)
def test_an_altered_box_stops_the_alignment(parties, call, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    tamper(monkeypatch, call, flipped)
    with unread("altered"):
        align(fed)
    assert not any(fed.engine.site(name).alignments for name in fed.names)


def test_a_replayed_box_stops_the_alignment(monkeypatch):
    monkeypatch.setitem(psi.match_pair.__kwdefaults__, "chunk", 16)
    fed = federation(people(0, 32), people(0, 32))
    original, first = LocalEngine.call, {}

    def replay(self, request):
        value = original(self, request)
        if request.method == "blinded":
            value = first.setdefault(request.party, value)
        return value

    monkeypatch.setattr(LocalEngine, "call", replay)
    with unread("sent again"):
        align(fed)


def test_a_party_with_a_new_identity_is_refused_at_the_next_alignment():
    fed = federation(people(0, 30), people(0, 30))
    align(fed)
    fed.engine.site("telco").vault.clear()
    with pytest.raises(CryptoError, match="the key of 'telco' has changed"):
        align(fed)
    assert keyring(fed.engine.site("bank")).fingerprints().keys() == {"bank", "telco"}


@pytest.mark.parametrize("parties", [2, 3])
def test_a_party_that_sends_no_points_is_named(parties, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    original = psi.MatchWorker._pack

    def nonsense(self, data, to):
        if isinstance(data, bytes) and len(data) == 32 * 30 and self.site.name == "bank":
            data = bytes(32) + data[32:]
        return original(self, data, to)

    monkeypatch.setattr(psi.MatchWorker, "_pack", nonsense)
    with pytest.raises(CryptoError, match="'bank' sent a value that is no point"):
        align(fed)


@pytest.mark.parametrize("worker", [psi.PairWorker, psi.StarWorker])
def test_blinded_ids_do_not_come_in_the_order_of_the_table(worker):
    """The other party could tell from it where in the table the common people stand."""
    fed = federation(people(0, 60), people(0, 60))
    with fed.workers(worker) as crew:
        introduce(crew)
        bank, telco = (next(iter(site._workers.values())) for site in fed.engine.sites.values())
        box = bank.blinded(0, 60, "telco" if worker is psi.PairWorker else ["telco"])
        points = telco._unpack(box if isinstance(box, Sealed) else box["telco"], "bank")
        in_order = bank._scalar.times(hash_to_points(bank.keys), sender="bank")
    sent, table = split(points, "bank"), split(in_order, "bank")
    assert sorted(sent) == sorted(table)
    assert sum(one == other for one, other in zip(sent, table, strict=True)) < 10


def test_a_party_that_sends_an_id_twice_is_named(monkeypatch):
    fed = federation(people(0, 30), people(0, 30))
    original = psi.MatchWorker._pack

    def twice(self, data, to):
        if isinstance(data, bytes) and len(data) == 32 * 30 and self.site.name == "bank":
            data = data[:32] + data[:32] + data[64:]
        return original(self, data, to)

    monkeypatch.setattr(psi.MatchWorker, "_pack", twice)
    with pytest.raises(CryptoError, match="'bank' sent an id more than once"):
        align(fed)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda told: told | {"tags": told["tags"] + told["tags"][:16]}, "more than once"),
        (lambda told: told | {"tags": bytes(16)}, "1 common ids that .* does not have"),
        (lambda told: told["tags"], "something else than the common ids"),
    ],
)
def test_an_invitation_that_is_not_one_is_refused(spoil, said, monkeypatch):
    fed = federation(*([people(0, 30)] * 3))
    original = psi.MatchWorker._pack

    def spoilt(self, data, to):
        invites = isinstance(data, dict) and data.keys() == {"key", "tags"}
        return original(self, spoil(data) if invites else data, to)

    monkeypatch.setattr(psi.MatchWorker, "_pack", spoilt)
    with pytest.raises(CryptoError, match=said):
        align(fed)
    assert not fed.is_aligned


@pytest.mark.parametrize(("parties", "said"), [(2, "gave back 29 tags"), (3, "evaluated 29 of 30")])
def test_a_party_that_gives_back_too_little_is_named(parties, said, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    original = psi.MatchWorker._pack

    def short(self, data, to):
        replying = isinstance(data, bytes) and self.site.name == "telco"
        if replying and len(data) == 30 * (16 if parties == 2 else 32):
            data = data[: len(data) // 30 * 29]
        return original(self, data, to)

    monkeypatch.setattr(psi.MatchWorker, "_pack", short)
    with pytest.raises(CryptoError, match=f"'telco' {said}"):
        align(fed)
