"""The wire: round trips of everything it admits, clean refusals of everything else."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedmend.errors import WireError
from fedmend.federation import Sealed, wire
from tests.conftest import texts

DTYPES = [np.dtype(name) for name in wire.DTYPES if name != "bfloat16"]
TORCH_DTYPES = [torch.bool, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float64]

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0))
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats()
    | texts()
    | st.binary()
)
sealed = st.builds(Sealed, texts(), texts(), texts(), st.binary())
values = st.recursive(
    scalars | arrays | sealed,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts(), inner, max_size=4)
    ),
    max_leaves=10,
)


def same(a: object, b: object) -> bool:
    """Equal in type, dtype, shape and bits (NaN included)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@settings(max_examples=80)
@given(values)
def test_round_trip_and_measure(value: object) -> None:
    data = wire.encode(value)
    assert same(wire.decode(data), value)
    assert wire.measure(value).nbytes == len(data)
    assert wire.encode_measured(value) == (data, wire.measure(value))


@pytest.mark.parametrize(
    "texts",
    [["a"], ["bank", "telco"] * 100, ["", "x" * 64], ["x" * 65], ["bank", "é"], ["bank", 1]],
    ids=["one", "many", "short", "long", "beyond ascii", "a number"],
)
@pytest.mark.parametrize("form", [list, tuple])
def test_texts_counted_at_once_have_the_bytes_and_memory_they_would_have(texts, form) -> None:
    told, written = wire._Walk(form(texts), None), wire._Walk(form(texts), [b""])
    assert told.nbytes == written.nbytes == len(wire.encode(form(texts))) - wire.HEADER.size
    assert (told.memory, told.items) == (written.memory, written.items)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_tensors_come_back_as_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 3).to(dtype)
    back = wire.decode(wire.encode(tensor))
    assert same(back, tensor)
    assert wire.measure(tensor).nbytes == len(wire.encode(tensor))


def test_transposed_strided_and_big_endian_arrays() -> None:
    for array in (np.arange(12).reshape(3, 4).T, np.arange(10)[::3], np.arange(5, dtype=">i4")):
        back = wire.decode(wire.encode(array))
        np.testing.assert_array_equal(back, array)
        assert back.flags.writeable
        assert wire.measure(array).nbytes == len(wire.encode(array))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        {1: "a"},
        np.array(["a"], dtype=object),
        np.array(["a"]),
        np.array([1j]),
        np.array("2020-01-01", dtype="M8[D]"),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.complex64),
        lambda: None,
        1 << 40_000,
        "\ud800",
        [[object()]],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_place_is_refused_on_both_paths(value: object) -> None:
    with pytest.raises(WireError):
        wire.encode(value)
    with pytest.raises(WireError):
        wire.measure(value)


def test_views_of_other_items_than_bytes_are_bytes() -> None:
    numbers = np.arange(3.0)
    for view in (memoryview(numbers), memoryview(numbers.reshape(3, 1)), memoryview(b"")):
        message = wire.encode(view)
        assert wire.decode(message) == bytes(view) and wire.measure(view).nbytes == len(message)


def test_dimensions_have_a_limit_whether_or_not_it_is_encoded() -> None:
    for value in (np.zeros((1,) * 17), torch.zeros((1,) * 17)):
        for walk in (wire.encode, wire.measure):
            with pytest.raises(WireError, match="16 dimensions at most"):
                walk(value)
    assert wire.decode(wire.encode(np.zeros((1,) * 16))).ndim == 16


def test_nesting_has_a_limit() -> None:
    deep: list[object] = []
    for _ in range(wire.MAX_DEPTH + 1):
        deep = [deep]
    for refuse in (wire.encode, wire.measure):
        with pytest.raises(WireError, match="deep"):
            refuse(deep)


def test_size_limits_hold_in_both_directions() -> None:
    big = np.zeros(1000)
    with pytest.raises(WireError, match="over the limit"):
        wire.encode(big, max_bytes=500)
    with pytest.raises(WireError, match="over the limit"):
        wire.decode(wire.encode(big), max_bytes=500)


def test_other_versions_and_foreign_bytes_are_named() -> None:
    data = bytearray(wire.encode([1, 2]))
    data[3] = 9
    with pytest.raises(WireError, match="version 9"):
        wire.decode(data)
    with pytest.raises(WireError, match="not a fedmend message"):
        wire.decode(b"PK\x03\x04" + bytes(20))
    with pytest.raises(WireError, match="too few"):
        wire.decode(b"FMW")


def frame(payload: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, wire.VERSION, len(payload)) + payload


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"?", "unknown tag"),
        (b"l" + struct.pack("<I", 1 << 31), "too short"),
        (b"a" + bytes((99, 0)), "dtype code"),
        (b"a" + bytes((4, 17)), "dimensions"),
        (b"a" + bytes((4, 2)) + struct.pack("<QQ", 1 << 40, 1 << 40), "truncated"),
        (b"a" + bytes((4, 2)) + struct.pack("<QQ", 0, 1 << 63), "impossible"),
        (b"a" + bytes((0, 1)) + struct.pack("<Q", 1) + b"\x07", "bool array"),
        (b"a" + bytes((12, 0)) + b"\0\0", "bfloat16"),
        (b"g" + bytes((4, 1)) + struct.pack("<Q", 0), "scalar with dimensions"),
        (b"s" + struct.pack("<I", 2) + b"\xff\xfe", "UTF-8"),
        (b"I" + struct.pack("<I", 1 << 30), "integer"),
        (b"I" + struct.pack("<I", 1) + b"\x05", "written otherwise"),
        (b"I" + struct.pack("<I", 12) + (1 << 70).to_bytes(12, "little"), "written otherwise"),
        (b"d" + struct.pack("<I", 2) + (struct.pack("<I", 1) + b"kN") * 2, "twice"),
        (b"NN", "left over"),
    ],
)
def test_crafted_payloads(payload: bytes, word: str) -> None:
    with pytest.raises(WireError, match=word):
        wire.decode(frame(payload))


@settings(max_examples=120)
@given(values, st.data())
def test_damage_is_a_clean_error_or_another_value(value: object, data: st.DataObject) -> None:
    raw = bytearray(wire.encode(value))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(WireError):
        wire.decode(raw[:cut])
    with pytest.raises(WireError):
        wire.decode(bytes(raw) + b"\0")
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WireError):
        wire.decode(raw)


@settings(max_examples=120)
@given(st.binary(max_size=200))
def test_noise_is_a_clean_error_or_a_value(noise: bytes) -> None:
    with contextlib.suppress(WireError):
        wire.decode(frame(noise))
