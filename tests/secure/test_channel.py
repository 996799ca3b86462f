import contextlib
import itertools
import os
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import CryptoError, Refused
from fedmend.federation import Federation, Party, Policy, Sealed, exposed
from fedmend.federation.site import Site
from fedmend.secure.bfv import BfvWorker
from fedmend.secure.channel import SealingWorker, _Line, introduce
from fedmend.secure.keys import Identity, derive_key, fingerprint, keyring, pack
from tests.conftest import texts

from .parties import unread


class GossipWorker(SealingWorker):
    @exposed(kind="masked")
    def tell(self, to: str, value: object) -> Sealed:
        return self.seal(value, to=to, kind="masked")

    @exposed(kind="control", takes={"sealed": "masked"})
    def hear(self, sealed: Sealed, sender: str) -> object:
        return self.open(sealed, sender=sender, kind="masked")

    @exposed(kind="control")
    def seed(self, party: str, purpose: str) -> bytes:
        return self.shared_seed(party, purpose)


class ListenWorker(GossipWorker):
    conversation = "talk"


class SpeakWorker(GossipWorker):
    conversation = "talk"


def party(name: str, **options) -> Party:
    return Party(name, Table([1, 2], {"x": [0.5, 1.5]}), **options)


def federation(*names: str) -> Federation:
    return Federation(*(party(name) for name in names or ("bank", "telco")), strict=True)


@pytest.fixture
def workers():
    with federation().workers(GossipWorker) as workers:
        introduce(workers)
        yield workers


def pair(scopes: tuple[str, str] = ("train", "train")) -> tuple[GossipWorker, GossipWorker]:
    """Two workers without an engine between them, so that a test can play the coordinator."""
    bank, telco = (
        GossipWorker(Site(name, {}), scope)
        for name, scope in zip(("bank", "telco"), scopes, strict=True)
    )
    keys = {"bank": bank.public_key(), "telco": telco.public_key()}
    bank.meet(keys)
    telco.meet(keys)
    return bank, telco


def altered(sealed: Sealed, **parts) -> Sealed:
    fields = {name: getattr(sealed, name) for name in ("sender", "recipient", "kind", "ciphertext")}
    return Sealed(**fields | parts)


# ---------------------------------------------------------------------------- it works


talking = cache(pair)
"""Two that go on talking from one example to the next."""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts() | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_every_wire_value_survives_the_message(value):
    bank, telco = talking()
    for _ in range(2):
        assert telco.open(bank.seal(value, to="telco", kind="masked"), sender="bank") == value
        assert bank.open(telco.seal(value, to="bank", kind="masked"), sender="telco") == value


def test_the_ledger_marks_messages_and_the_relay_sees_only_noise():
    fed = federation()
    secret = os.urandom(64)
    with fed.workers(GossipWorker) as workers:
        introduce(workers)
        sealed = workers["bank"].tell("telco", secret)
        assert secret not in sealed.ciphertext and secret[:8] not in sealed.ciphertext
        workers["telco"].hear(sealed, "bank")
        assert (
            pair()[0].seal(secret, to="telco", kind="masked").ciphertext[9:]
            != sealed.ciphertext[9:]
        )
    sealed = [entry for entry in fed.ledger if entry.sealed_for]
    assert {(entry.sender, entry.receiver, entry.sealed_for) for entry in sealed} == {
        ("bank", "coordinator", "telco"),
        ("coordinator", "telco", "telco"),
    }
    assert {entry.kind for entry in sealed} == {"masked"}


def test_seeds_are_shared_by_two_parties_and_differ_by_pair_purpose_and_session():
    fed = federation("a", "b", "c")
    seen = set()
    for _ in range(2):
        with fed.workers(GossipWorker) as workers:
            introduce(workers)
            for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
                for purpose in ("mask", "order"):
                    seed = workers[one].seed(other, purpose)
                    assert seed == workers[other].seed(one, purpose) and len(seed) == 32
                    seen.add(seed)
    assert len(seen) == 12


def test_two_classes_of_one_conversation_talk_and_others_do_not():
    fed = federation()
    speak = fed.workers(SpeakWorker, parties=["bank"])
    listen = fed.workers(ListenWorker, parties=["telco"])
    prints = introduce(speak, listen)
    assert set(prints) == {"bank", "telco"}
    assert listen["telco"].hear(speak["bank"].tell("telco", 5), "bank") == 5
    stranger = fed.workers(GossipWorker, parties=["telco"])
    speak = fed.workers(SpeakWorker, parties=["bank"])
    introduce(speak, stranger)
    with unread("another key"):
        stranger["telco"].hear(speak["bank"].tell("telco", 5), "bank")


# ---------------------------------------------------------------------------- it refuses


@given(st.data())
def test_any_altered_cut_or_padded_message_is_refused_and_does_not_use_up_the_number(data):
    bank, telco = pair()
    sealed = bank.seal([1, 2, 3], to="telco", kind="masked")
    at = data.draw(st.integers(0, len(sealed.ciphertext) - 1))
    flipped = bytearray(sealed.ciphertext)
    flipped[at] ^= data.draw(st.integers(1, 255))
    for other in (bytes(flipped), sealed.ciphertext[:at], sealed.ciphertext + b"\0"):
        with unread("altered|version|cut off", "telco", "bank"):
            telco.open(altered(sealed, ciphertext=other), sender="bank")
    assert telco.open(sealed, sender="bank") == [1, 2, 3]


def test_messages_out_of_turn_and_again_are_refused_and_the_right_one_still_opens(workers):
    first, second = workers["bank"].tell("telco", 1), workers["bank"].tell("telco", 2)
    with unread("out of turn"):
        workers["telco"].hear(second, "bank")
    assert workers["telco"].hear(first, "bank") == 1
    with unread("sent again"):
        workers["telco"].hear(first, "bank")
    assert workers["telco"].hear(second, "bank") == 2


def test_a_message_is_bound_to_direction_session_scope_and_kind():
    bank, telco = pair()
    sealed = bank.seal(1, to="telco", kind="masked")
    with unread("altered or made under another key"):
        bank.open(altered(sealed, sender="telco", recipient="bank"), sender="telco")
    with unread("altered"):
        telco.open(altered(sealed, kind="count"), sender="bank")
    with pytest.raises(CryptoError, match="expected a message of kind 'count'"):
        telco.open(sealed, sender="bank", kind="count")
    with unread("another key"):
        pair()[1].open(sealed, sender="bank")
    bank, telco = pair(scopes=("train", "test"))
    with unread("another key"):
        telco.open(bank.seal(1, to="telco", kind="masked"), sender="bank")


def test_a_message_for_a_third_party_is_refused():
    fed = federation("a", "b", "c")
    with fed.workers(GossipWorker) as workers:
        introduce(workers)
        sealed = workers["a"].tell("b", 1)
        for at, sender, changed in (("c", "a", {"recipient": "c"}), ("b", "c", {"sender": "c"})):
            with pytest.raises(CryptoError, match="goes from 'a' to 'b'"):
                workers[at].hear(sealed, sender)
            with unread("another key"):
                workers[at].hear(altered(sealed, **changed), sender)


def test_what_is_no_message_no_key_or_no_introduction_is_refused(workers):
    with pytest.raises(
        CryptoError, match="expected an encrypted message from 'bank' and got a int"
    ):
        workers["telco"].hear(5, "bank")
    fed = federation()
    with pytest.raises(CryptoError, match="introduce"):
        fed.workers(GossipWorker)["bank"].tell("telco", 1)
    with pytest.raises(CryptoError, match="'bank' has two"):
        introduce(fed.workers(SpeakWorker), fed.workers(ListenWorker))
    for key in (b"", bytes(32), "text", None):
        with pytest.raises(CryptoError, match="key of 'telco' is not 64 bytes"):
            GossipWorker(Site("bank", {})).meet({"telco": key})


def test_a_kind_that_may_not_leave_is_not_sealed_either():
    class LeakWorker(SealingWorker):
        @exposed(kind="masked")
        def leak(self, to: str) -> Sealed:
            return self.seal([1], to=to, kind="row")

    with federation().workers(LeakWorker) as workers:
        introduce(workers)
        with pytest.raises(Refused, match="kind 'row'"):
            workers["bank"].leak("telco")
    fed = Federation(party("bank", policy=Policy(refuse={"masked"})), party("telco"), strict=True)
    with fed.workers(GossipWorker) as workers:
        introduce(workers)
        with pytest.raises(Refused, match="party 'bank'"):
            workers["bank"].tell("telco", 1)


# ---------------------------------------------------------------------------- who is who


def test_a_changed_identity_is_refused_in_a_later_session():
    fed = federation()
    with fed.workers(GossipWorker) as workers:
        prints = introduce(workers)
    site = fed.engine.site("telco")
    assert prints["telco"] == keyring(site).identity.fingerprint
    site.vault.clear()
    with (
        fed.workers(GossipWorker) as workers,
        pytest.raises(CryptoError, match="party 'bank': the key of 'telco' has changed"),
    ):
        introduce(workers)


def test_keys_given_in_advance_stop_a_coordinator_in_the_middle():
    bank_keys, telco_keys = Identity(), Identity()
    bank, telco = Site("bank", {}), Site("telco", {})
    keyring(bank, identity=bank_keys, pinned={"telco": telco_keys.public})
    keyring(telco, identity=telco_keys, pinned={"bank": bank_keys.public})
    at_bank, in_the_middle = GossipWorker(bank), GossipWorker(Site("telco", {}))
    with pytest.raises(CryptoError, match="the key of 'telco' has changed"):
        at_bank.meet({"telco": in_the_middle.public_key()})
    # A stolen public key does not help: the private half is needed to agree.
    forged = telco_keys.public + in_the_middle.public_key()[32:]
    at_bank.meet({"telco": forged})
    in_the_middle.meet({"bank": at_bank.public_key()})
    with unread("another key"):
        in_the_middle.open(at_bank.seal(1, to="telco", kind="masked"), sender="bank")


def opens(sealed: Sealed, keys: Iterable[bytes], between: tuple[bytes, bytes]) -> bool:
    """Whether some of these secrets, in the protocol's order, make the key of bank's message."""
    ends = pack("GossipWorker", "train", *_ends("bank", between[0]), *_ends("telco", between[1]))
    secrets = list(keys)
    for count in range(1, len(secrets) + 1):
        for some in itertools.combinations(secrets, count):
            root = derive_key(b"".join(some), "line", ends)
            line = _Line("telco", "bank", between[0], root, pack("GossipWorker", "train"))
            with contextlib.suppress(CryptoError):
                line.open(sealed.ciphertext, sealed.kind)
                return True
    return False


def _ends(name: str, public: bytes) -> tuple[str, bytes, bytes]:
    return name, public[:32], public[32:]


def test_messages_stay_closed_when_both_identities_are_stolen_later():
    bank_keys, telco_keys = Identity(), Identity()
    bank, telco = Site("bank", {}), Site("telco", {})
    keyring(bank, identity=bank_keys)
    keyring(telco, identity=telco_keys)
    at_bank, at_telco = GossipWorker(bank), GossipWorker(telco)
    public = at_bank.public_key(), at_telco.public_key()
    at_bank.meet({"telco": public[1]})
    sealed = at_bank.seal("secret", to="telco", kind="masked")
    stolen = [
        telco_keys.agree(public[0][32:]),
        bank_keys.agree(public[1][32:]),
        bank_keys.agree(telco_keys.public),
    ]
    assert not opens(sealed, stolen, public)
    at_telco.meet({"bank": public[0]})
    assert at_telco.open(sealed, sender="bank") == "secret"


def test_the_same_keys_share_other_seeds_in_another_conversation_or_scope():
    mine, theirs = (Identity(), Identity()), (Identity(), Identity())

    def seed(*about: str) -> bytes:
        line = _Line.agree(("a", *mine), ("b", *(each.public for each in theirs)), about)
        other = _Line.agree(("b", *theirs), ("a", *(each.public for each in mine)), about)
        assert line.seed("x") == other.seed("x")
        return line.seed("x")

    found = {seed("sums", "train"), seed("sums", "test"), seed("products", "train")}
    assert len(found) == 3


@pytest.mark.parametrize("rubbish", [None, 0, {}, np.zeros((1, 1))])
def test_a_coordinator_cannot_make_a_party_forget_its_pinned_keys(rubbish):
    """Results go where the coordinator says; the key ring must not be such a place."""
    fed = federation()
    pinned = Identity().public
    ring = keyring(fed.engine.site("bank"), pinned={"telco": pinned})
    with (
        fed.workers(BfvWorker, parties=["bank"]) as workers,
        pytest.raises(CryptoError, match="as products"),
    ):
        workers["bank"].learn(rubbish, "secure.keyring")
    with fed.workers(BfvWorker, parties=["bank"]) as workers:
        workers["bank"].learn(np.zeros((1, 1), np.int64), "secure.keyring")
    assert keyring(fed.engine.site("bank")) is ring
    with (
        fed.workers(GossipWorker) as workers,
        pytest.raises(CryptoError, match="the key of 'telco' has changed"),
    ):
        introduce(workers)


def test_a_party_notices_when_its_own_key_is_changed_on_the_way():
    bank, telco = (GossipWorker(Site(name, {})) for name in ("bank", "telco"))
    stranger = GossipWorker(Site("bank", {}))
    with pytest.raises(CryptoError, match="passed on as mine is not mine"):
        bank.meet({"bank": stranger.public_key(), "telco": telco.public_key()})


class SideWorker(GossipWorker):
    """One side of a protocol that has two."""

    def __init__(self, site: Site, scope: str = "train", *, role: str, counterpart: str) -> None:
        super().__init__(site, scope)
        self.role, self.counterpart = role, counterpart


def sides(one: tuple[str, str], other: tuple[str, str], told: bool = True):
    """Two workers that met; if not told, each hears of the role it expects of the other."""
    bank, telco = (
        SideWorker(Site(name, {}), role=role, counterpart=counterpart)
        for name, (role, counterpart) in (("bank", one), ("telco", other))
    )
    for me, name, peer in ((bank, "telco", telco), (telco, "bank", bank)):
        said = peer.public_key() if told else peer.public_key()[:64] + me.counterpart.encode()
        me.meet({name: said})
    return bank, telco


def test_roles_are_part_of_what_two_workers_agree_on():
    left, right = ("left", "right"), ("right", "left")
    bank, telco = sides(left, right)
    assert bank.shared_seed("telco", "x") == telco.shared_seed("bank", "x")
    assert telco.open(bank.seal(1, to="telco", kind="masked"), sender="bank") == 1
    for one, other in ((left, left), (left, ("", "")), (("", ""), left)):
        with pytest.raises(CryptoError, match="comes in the role"):
            sides(one, other)
        bank, telco = sides(one, other, told=False)
        assert bank.shared_seed("telco", "x") != telco.shared_seed("bank", "x")
        with unread("another key"):
            telco.open(bank.seal(1, to="telco", kind="masked"), sender="bank")


def test_a_mask_is_its_owners_and_of_all_that_was_said_of_it():
    bank, telco = sides(("left", "right"), ("right", "left"))
    keys = {
        bank.mask_key("telco", stream, number, *about, owner=owner, again=True)
        for stream in ("columns", "blind")
        for number in (1, 2)
        for about in ((), (3, 4), (4, 3), ("3, 4",))
        for owner in ("bank", "telco")
    }
    assert len(keys) == 2 * 2 * 4 * 2
    mine = bank.mask_key("telco", "columns", 7, 3, 4, owner="bank")
    assert telco.mask_key("bank", "columns", 7, 3, 4, owner="bank", again=True) == mine
    for number in (7, 6, "8"):
        with pytest.raises(CryptoError, match=r"'bank': number .* of 'columns' is not after 7"):
            bank.mask_key("telco", "columns", number, 5, 6, owner="bank")
    assert bank.mask_key("telco", "columns", 7, 3, 4, owner="telco") != mine
    with pytest.raises(CryptoError, match="cannot be 'shop''s"):
        bank.mask_key("telco", "columns", 8, owner="shop")


def test_meeting_twice_keeps_the_counters_and_another_key_is_refused():
    bank, telco = pair()
    first = bank.seal(1, to="telco", kind="masked")
    bank.meet({"telco": telco.public_key()})
    second = bank.seal(1, to="telco", kind="masked")
    assert first.ciphertext[:9] != second.ciphertext[:9]
    other = GossipWorker(telco.site)
    with pytest.raises(CryptoError, match="has met 'telco' already"):
        bank.meet({"telco": other.public_key()})


def test_the_ledger_holds_no_private_key(tmp_path):
    fed = Federation(party("bank"), party("telco"), strict=True, ledger=tmp_path / "ledger.jsonl")
    with fed.workers(GossipWorker) as workers:
        introduce(workers)
        workers["telco"].hear(workers["bank"].tell("telco", 1), "bank")
    fed.close()
    text = (tmp_path / "ledger.jsonl").read_text()
    for name in ("bank", "telco"):
        ring = keyring(fed.engine.site(name))
        private = ring.identity._private.private_bytes_raw()
        assert private.hex() not in text and repr(private)[2:-1] not in text
        assert private.hex() not in repr(ring) + repr(vars(ring))
        assert fingerprint(ring.identity.public) == ring.identity.fingerprint
