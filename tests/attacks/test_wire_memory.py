"""A party that sends few bytes to make the other side hold many, or work long.

Measured: the peak of tracemalloc during `decode` (Python's and numpy's allocations), against four
times the message's bytes and 4 MiB; and that what is refused is refused before it is read.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import WireError
from fedmend.federation import Sealed, wire
from fedmend.federation.engines.flare import messages
from tests.conftest import texts


def frame(payload: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, wire.VERSION, len(payload)) + payload


def many(item: bytes, total: int, tag: bytes = b"l") -> bytes:
    """A list (tuple) of one item, over and over, of about `total` bytes."""
    count = total // len(item)
    return frame(tag + struct.pack("<I", count) + item * count)


def text(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


SMALL = {
    "None": b"N",
    "bool": b"T",
    "empty list": b"l" + struct.pack("<I", 0),
    "list of one": b"l" + struct.pack("<I", 1) + b"N",
    "empty tuple": b"t" + struct.pack("<I", 0),
    "empty dict": b"d" + struct.pack("<I", 0),
    "dict of one": b"d" + struct.pack("<I", 1) + text(b"k") + b"N",
    "short text": b"s" + text(b"ab"),
    "wide text": b"s" + text("aaaaaaaaaaaaaaaa\U0001f600".encode()),
    "no bytes": b"b" + struct.pack("<Q", 0),
    "whole number": b"i" + struct.pack("<q", 1 << 40),
    "number": b"f" + struct.pack("<d", 0.1),
    "large number": b"I" + struct.pack("<I", 9) + bytes(8) + b"\x01",
    "empty array": b"a" + bytes((5, 1)) + struct.pack("<Q", 0),
    "numpy scalar": b"g" + bytes((5, 0)) + b"\x01",
    "tensor": b"x" + bytes((5, 0)) + b"\x01",
    "sealed": b"S" + text(b"ab") * 3 + struct.pack("<Q", 2) + b"ab",
}


def peak_of(message: bytes) -> tuple[int, bool]:
    """The most memory that decoding took, and whether the message was accepted."""
    tracemalloc.start()
    accepted = True
    try:
        wire.decode(message)
    except WireError:
        accepted = False
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, accepted


def bound(message: bytes) -> int:
    return wire.MEMORY_FLOOR + wire.MEMORY_TIMES * len(message)


@pytest.mark.parametrize("name", SMALL)
def test_memory_stays_within_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.zeros(1)  # what a library sets up once is not the message's
    monkeypatch.setattr(wire, "MEMORY_FLOOR", 1 << 17)  # so that short messages come near it
    for tag in (b"l", b"t"):
        for total in (3_000, 20_000):
            message = many(SMALL[name], total, tag)
            peak, _ = peak_of(message)
            # What numpy and torch keep besides is little of the true floor, not of this one.
            assert peak <= 1.1 * bound(message), (tag, total, peak, bound(message))


def test_memory_stays_within_the_bound_of_long_messages() -> None:
    for name in ("empty list", "empty array"):
        message = many(SMALL[name], 100_000)
        peak, _ = peak_of(message)
        assert peak <= bound(message), (name, peak, bound(message))


@pytest.mark.parametrize("nested", ["dicts", "lists"])
def test_memory_of_nested_values_stays_within_the_bound(
    nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MEMORY_FLOOR", 1 << 20)
    inner = b"d" + struct.pack("<I", 6) + b"".join(text(bytes((97 + i,))) + b"N" for i in range(6))
    deep = b"N"
    for _ in range(20):
        deep = b"l" + struct.pack("<I", 1) + deep
    message = many(inner if nested == "dicts" else deep, 150_000)
    peak, accepted = peak_of(message)
    assert not accepted and peak <= bound(message)


def test_a_large_dict_and_wide_text_stay_within_the_bound() -> None:
    entries = b"".join(text(b"%06x" % i) + b"N" for i in range(100_000))
    for message in (
        frame(b"d" + struct.pack("<I", 100_000) + entries),
        frame(b"s" + text(b"a" * 3_000_000 + "\U0001f600".encode())),
    ):
        peak, _ = peak_of(message)
        assert peak <= bound(message)


def test_megabytes_of_nothing_are_refused_unread() -> None:
    message = many(b"N", 20_000_000)
    began = time.process_time()
    peak, accepted = peak_of(message)
    assert not accepted and peak < 100_000
    assert time.process_time() - began < 1.0  # it took 30 s when each was read


def test_items_are_counted_over_the_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_ITEMS", 100)
    inner = b"l" + struct.pack("<I", 9) + b"N" * 9
    assert len(wire.decode(many(inner, 10 * len(inner)))) == 10
    with pytest.raises(WireError, match="items"):
        wire.decode(many(inner, 11 * len(inner)))


def test_honest_messages_pass() -> None:
    messages = [Sealed("bank", "telco", "ciphertext", bytes(4096)) for _ in range(200)]
    weights = {f"layer{i}.weight": np.ones((30, 30), np.float32) for i in range(300)}
    facts = [{"epoch": i, "loss": 0.5, "auc": 0.7} for i in range(300)]
    for value in (messages, weights, facts, list(range(9_000)), [0.5] * 9_000, [b"k" * 32] * 99):
        message = wire.encode(value)
        assert wire.measure(value).nbytes == len(message)
        assert len(wire.decode(message)) == len(value)
        assert peak_of(message)[0] <= bound(message)


def test_the_sender_is_told_what_the_receiver_would_refuse() -> None:
    for value in ([None] * 1_100_000, [{} for _ in range(30_000)], tuple([[]] * 100_000)):
        for refuse in (wire.encode, wire.measure):
            with pytest.raises(WireError, match="send numbers as arrays"):
                refuse(value)


pieces = st.recursive(
    st.none() | st.integers(-(1 << 70), 1 << 70) | texts(max_size=4) | st.binary(max_size=4)
    | st.just(np.zeros(2)) | st.just(torch.zeros(2)) | st.just(Sealed("a", "b", "c", b"")),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(texts(max_size=3), inner, max_size=5)
    ),
    max_leaves=30,
)  # fmt: skip


@pytest.fixture(scope="module")
def tight() -> Iterator[None]:
    """Room for little, so that small messages stand on either side of the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MEMORY_FLOOR", 1200)
        patch.setattr(wire, "MAX_ITEMS", 20)
        yield


@given(pieces)
def test_sender_and_receiver_draw_one_line(tight: None, value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MEMORY_FLOOR", 1 << 30)
        patch.setattr(wire, "MAX_ITEMS", 1 << 20)
        message = wire.encode(value)
    try:
        wire.decode(message)
    except WireError:
        with pytest.raises(WireError):
            wire.encode(value)
        with pytest.raises(WireError):
            wire.measure(value)
    else:
        assert wire.encode(value) == message and wire.measure(value).nbytes == len(message)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x05",
        bytes(8),
        (1 << 62).to_bytes(16, "little"),
        (1 << 80).to_bytes(20, "little"),
        (-1).to_bytes(12, "little", signed=True),
    ],
)
def test_a_whole_number_has_one_form(raw: bytes) -> None:
    with pytest.raises(WireError, match="written otherwise"):
        wire.decode(frame(b"I" + struct.pack("<I", len(raw)) + raw))
    for value in (1 << 63, -(1 << 63) - 1, 1 << 80, -(1 << 71)):
        assert wire.decode(wire.encode(value)) == value


def test_requests_and_replies_are_bounded() -> None:
    count = 2_000_000
    swollen = b"l" + struct.pack("<I", count) + b"N" * count
    body = b"d" + struct.pack("<I", 2) + text(b"op") + b"s" + text(b"call")
    request = frame(body + text(b"kwargs") + swollen)
    with pytest.raises(WireError, match="items"):
        messages.read_request(request)
    with pytest.raises(WireError, match="items"):
        messages.read_reply(frame(b"d" + struct.pack("<I", 1) + text(b"value") + swollen), "b", "c")
