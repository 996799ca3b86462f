import hashlib
import sys

import numpy as np
import pytest
from scipy import stats

from fedmend.errors import CryptoError
from fedmend.federation import COORDINATOR, Sealed, wire
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure import psi
from fedmend.secure.align import align
from fedmend.secure.channel import introduce
from fedmend.secure.group import hash_to_points, split
from fedmend.secure.identifiers import normalised

from .parties import leaves, overheard, people, unread
from .parties import with_ids as federation

# ---------------------------------------------------------------------------- who sees what


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("mode", ["ecdh", "same-order"])
def test_the_coordinator_sees_sealed_messages_and_no_trace_of_an_id(parties, mode):
    ids = people(0, 150)
    lists = [ids] * parties if mode == "same-order" else [ids, ids[20:], ids[:140]][:parties]
    fed = federation(*lists)
    crossings = overheard(fed)
    align(fed, mode=mode)
    keys = normalised(np.array(ids, object), "exact", "bank")
    traces = [each.encode() for each in ids] + [hashlib.sha512(key).digest()[:16] for key in keys]
    traces += [hashlib.sha256(each.encode()).digest()[:16] for each in ids]
    traces += split(hash_to_points(keys), "test")
    for _, _, call, kind, value in crossings:
        raw = wire.encode(value)
        assert not any(trace in raw for trace in traces)
        if kind == "hashed-id" and not call.endswith(".digest"):
            parts = list(leaves(value))
            assert any(isinstance(part, Sealed) for part in parts)
            assert not any(isinstance(part, bytes | np.ndarray) for part in parts)
    marked = {entry.kind for entry in fed.ledger if entry.sealed_for}
    assert marked == {"hashed-id"}
    assert fed.ledger.kinds() <= {"control", "count", "hashed-id"}


def test_what_the_coordinator_sees_does_not_depend_on_which_ids_match():
    """Same sizes, same number of common ids, other ids: the same calls with the same sizes."""
    views = []
    for lists in (
        [people(0, 60), people(30, 90), people(20, 70)],
        [people(500, 560), people(530, 590), people(520, 570)],
    ):
        fed = federation(*lists)
        crossings = overheard(fed)
        align(fed)
        views.append([(*about, wire.measure(value)) for *about, value in crossings])
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


def test_the_digest_of_the_same_table_is_new_in_every_run():
    digests = set()
    for _ in range(2):
        fed = federation(people(0, 30), people(0, 30))
        crossings = overheard(fed)
        align(fed, mode="same-order")
        digests |= {
            value
            for sender, _, call, _, value in crossings
            if call.endswith(".digest") and sender != COORDINATOR
        }
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
    sealed = bytearray(value.ciphertext)
    sealed[len(sealed) // 2] ^= 1
    return Sealed(value.sender, value.recipient, value.kind, bytes(sealed))


@pytest.mark.parametrize(
    ("parties", "call"),
    [(2, "blinded"), (2, "tagged"), (3, "blinded"), (3, "evaluated"), (3, "shares"), (3, "invite")],
)
def test_an_altered_message_stops_the_alignment(parties, call, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    tamper(monkeypatch, call, flipped)
    with unread("altered"):
        align(fed)
    assert not any(fed.engine.site(name).alignments for name in fed.names)


def test_a_replayed_message_stops_the_alignment(monkeypatch):
    monkeypatch.setattr(sys.modules["fedmend.secure.align"], "IDS_AT_ONCE", 16)
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


@pytest.mark.parametrize("worker", [psi.PairWorker, psi.StarWorker])
def test_blinded_ids_do_not_come_in_the_order_of_the_table(worker):
    """The other party could tell from it where in the table the common people stand."""
    fed = federation(people(0, 60), people(0, 60))
    with fed.workers(worker) as workers:
        introduce(workers)
        bank, telco = (next(iter(site._workers.values())) for site in fed.engine.sites.values())
        sealed = bank.blinded(0, 60, "telco" if worker is psi.PairWorker else ["telco"])
        points = telco._unpack(sealed if isinstance(sealed, Sealed) else sealed["telco"], "bank")
        in_order = bank._scalar.times(hash_to_points(bank.keys), sender="bank")
    sent, table = split(points, "bank"), split(in_order, "bank")
    assert sorted(sent) == sorted(table)
    assert sum(one == other for one, other in zip(sent, table, strict=True)) < 10


def points(data):
    return isinstance(data, bytes) and len(data) == 32 * 30


def tags(data):
    return isinstance(data, bytes) and len(data) == 16 * 30


def invites(data):
    return isinstance(data, dict) and data.keys() == {"key", "tags"}


SPOILT = [
    (2, "bank", points, lambda run: bytes(32) + run[32:], "'bank' sent a value that is no p"),
    (3, "bank", points, lambda run: bytes(32) + run[32:], "'bank' sent a value that is no p"),
    (2, "bank", points, lambda run: run[:32] + run[:32] + run[64:], "'bank' sent an id more"),
    (2, "telco", tags, lambda run: run[:-16], "'telco' gave back 29 tags"),
    (3, "telco", points, lambda run: run[:-32], "'telco' evaluated 29 of 30"),
    (3, "bank", invites, lambda told: told | {"tags": told["tags"] * 2}, "more than once"),
    (3, "bank", invites, lambda told: told | {"tags": bytes(16)}, "1 common ids that .* does no"),
    (3, "bank", invites, lambda told: told["tags"], "something else than the common ids"),
]


@pytest.mark.parametrize(("parties", "who", "which", "spoil", "said"), SPOILT)
def test_a_party_that_sends_nonsense_is_named(parties, who, which, spoil, said, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    original = psi.MatchWorker._pack

    def spoilt(self, data, to):
        return original(self, spoil(data) if self.site.name == who and which(data) else data, to)

    monkeypatch.setattr(psi.MatchWorker, "_pack", spoilt)
    with pytest.raises(CryptoError, match=said):
        align(fed)
    assert not fed.is_aligned
