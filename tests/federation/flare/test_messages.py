from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend import errors
from fedmend.errors import (
    AlignmentError,
    CryptoError,
    DataError,
    PartyFailed,
    ReadError,
    Refused,
    WireError,
)
from fedmend.federation import Ledger, Policy, wire
from fedmend.federation.engines.flare.messages import (
    Conversation,
    error_reply,
    part,
    read_reply,
    read_request,
    reply,
    request,
    told,
)

OPEN = Policy(allow=frozenset({"control", "row"}))


def sent(error: BaseException, policy: Policy = OPEN) -> errors.FedmendError:
    """The error as it comes out at the other side."""
    with pytest.raises(errors.FedmendError) as caught:
        read_reply(error_reply(error, policy=policy), "bank", "Rank.sums")
    return caught.value


def test_a_value_comes_back():
    assert read_reply(reply({"a": [1, None]}), "bank", "x") == {"a": [1, None]}


@pytest.mark.parametrize("kind", [AlignmentError, CryptoError, WireError])
def test_errors_keep_type_and_text(kind):
    error = sent(kind("too few rows. Mend: more"))
    assert type(error) is kind
    assert str(error) == "too few rows. Mend: more"


def test_a_refusal_keeps_party_and_exit_code():
    error = sent(Refused("bank", "no", "ask"))
    assert isinstance(error, Refused)
    assert (error.party, error.exit_code) == ("bank", 5)
    assert str(error) == "party 'bank' refused: no. Mend: ask"


def test_the_parts_of_a_data_error_arrive():
    error = sent(ReadError("is odd", column="age", value=-3, mend="check"))
    assert type(error) is ReadError
    assert (error.party, error.column, error.value, error.mend) == ("bank", "age", "-3", "check")


def test_a_value_seen_stays_at_the_party():
    error = sent(DataError("is odd", column="name", value="Ada Lovelace"), Policy())
    assert "Ada" not in str(error)
    assert "withheld" in str(error)


CLOSED = Policy()


def raised(error: BaseException, policy: Policy = CLOSED) -> str:
    try:
        raise error
    except BaseException as caught:
        failed = PartyFailed("bank", "Rank.sums", caught)
        failed.__cause__ = caught
        return str(sent(failed, policy))


def test_the_words_of_foreign_exceptions_stay_at_the_party():
    words = raised(ValueError("could not convert 'Ada Lovelace'"))
    assert "Ada" not in words
    assert words.startswith("party 'bank' failed in Rank.sums: ValueError")
    assert "Ada" in raised(ValueError("could not convert 'Ada Lovelace'"), OPEN)


def test_a_full_disk_is_named_without_its_path():
    words = raised(OSError(28, "No space left on device", "/secret/place"))
    assert "No space left on device" in words
    assert "secret" not in words


def test_out_of_memory_is_named():
    assert told(MemoryError()) == "MemoryError: out of memory"


def test_the_place_in_fedmend_is_named():
    with pytest.raises(WireError) as ours:
        wire.decode(b"")
    assert "too few" in told(ours.value)
    with pytest.raises(TypeError) as python_s:
        wire.decode(3)  # type: ignore[arg-type]
    assert "in fedmend.federation.wire, line" in told(python_s.value)


def test_an_unknown_type_becomes_party_failed():
    raw = wire.encode({"error": {"type": "SystemExit", "text": "boo"}})
    with pytest.raises(PartyFailed, match="'bank' failed in x: boo"):
        read_reply(raw, "bank", "x")


@pytest.mark.parametrize("raw", [{}, [], {"error": 3}, None])
def test_something_that_is_no_reply(raw):
    with pytest.raises(WireError, match="no reply"):
        read_reply(wire.encode(raw), "bank", "x")


@pytest.mark.parametrize("content", [{"op": "format"}, {}, 7, {"op": None}])
def test_something_that_is_no_request(content):
    with pytest.raises(WireError, match="no request"):
        read_request(wire.encode(content))


def test_fields_are_of_their_type():
    content = read_request(request("call", number=1, handle="x"))
    assert part(content, "number", int) == 1
    for name, kind in (("number", str), ("handle", int), ("absent", str)):
        with pytest.raises(WireError, match=name):
            part(content, name, kind)
    with pytest.raises(WireError, match="number"):
        part(read_request(request("call", number=True)), "number", int)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_wire_error_or_a_request(raw):
    with contextlib.suppress(WireError):
        assert read_request(raw)["op"]


def test_what_a_conversation_notes():
    """What was asked and what came, by number; of a stop only that it was refused."""
    ledger = Ledger()
    talk = Conversation("telco", ledger)
    with pytest.raises(WireError, match="'telco' answered hello with a list"):
        talk.open([])
    talk.open({"session": b"0" * 16})
    assert talk.settle(talk.start("Rank", "train", {}), reply("Rank#1")) == "Rank#1"
    ledger.flush()
    routes = [(each.sender, each.call, each.message) for each in ledger]
    assert routes == [("coordinator", "Rank.start", 1), ("telco", "Rank.start", 1)]
    talk.settle(talk.stop("Rank#1"), reply(None))
    assert len(ledger) == 2, "as at the party, whose ledger must have the same"
    answer = error_reply(Refused("telco", "no session is open", "say hello"), policy=OPEN)
    with pytest.raises(Refused, match="no session") as refused:
        talk.settle(talk.stop("Rank#1"), answer)
    assert refused.value.party == "telco"
    assert [(each.call, each.note) for each in ledger][2:] == [("stop", "refused")]
