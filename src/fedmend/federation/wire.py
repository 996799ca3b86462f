"""The wire: one typed, versioned, length-checked binary form for whatever crosses a boundary.

No pickle, no code, no classes: a value is None, bool, int, float, str, bytes, a list, tuple or
dict with text keys of these, a numpy array or scalar, a torch tensor, or a :class:`Sealed` box.
Everything else is refused on the way out; everything malformed is refused on the way in.

    FMW | version | payload length (u64) | node
    node = tag byte, then what the tag calls for; arrays are dtype, shape, little-endian buffer

What a message becomes in memory is bounded by its bytes (four times, and 4 MiB), and so is the
number of its items, so that nobody can make a receiver work or swell out of proportion to what
was sent. Every value has one form: what `encode` would have written otherwise is refused.

`measure` walks a value without encoding it, so that the local engine can pass values by reference
and still write the true number of bytes into the ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmend.errors import WireError
from fedmend.federation.measure import measure, size
from fedmend.federation.wire_types import (
    ARRAY_COST,
    CODE_OF,
    DICT_COST,
    DTYPES,
    ENTRY_COST,
    HEADER,
    ITEM_BYTES,
    LIST_COST,
    MAGIC,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIMS,
    MAX_INT_BYTES,
    NUMBER_COST,
    SEALED_COST,
    SIDE_COST,
    SLOT,
    TENSOR_COST,
    TEXT_COST,
    VERSION,
    Measure,
    Room,
    Sealed,
    check_dims,
    check_room,
    fits_i64,
    int_bytes,
    is_tensor,
    key_bytes,
    no_place,
    tensor_dtype,
    text_cost,
    utf8,
)

__all__ = ["MAX_BYTES", "Measure", "Sealed", "decode", "encode", "measure", "size"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")

# ---------------------------------------------------------------------------------- encoding


def encode(value: Any, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of `value`, header included; `WireError` for a type that has no place here."""
    parts: list[Any] = [b""]
    _put(value, parts, 0)
    length = sum(len(part) for part in parts)
    if length + HEADER.size > max_bytes:
        raise WireError(
            f"a value of {length:,} bytes is over the limit of {max_bytes:,}. "
            "Mend: send it in chunks"
        )
    check_room(value, length, len(parts))
    parts[0] = HEADER.pack(MAGIC, VERSION, length)
    return b"".join(parts)


def _put(value: Any, parts: list[Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"values may be nested {MAX_DEPTH} deep at most. Mend: flatten the value")
    if value is None:
        parts.append(b"N")
    elif value is True:
        parts.append(b"T")
    elif value is False:
        parts.append(b"F")
    elif isinstance(value, np.ndarray):
        _put_array(b"a", value, str(value.dtype.newbyteorder("=")), value.shape, parts)
    elif isinstance(value, np.generic):
        _put_array(b"g", np.asarray(value), str(value.dtype), (), parts)
    elif is_tensor(value):
        _put_tensor(value, parts)
    elif isinstance(value, int):
        _put_int(value, parts)
    elif isinstance(value, float):
        parts.append(b"f" + _F64.pack(value))
    elif isinstance(value, str):
        raw = utf8(value)
        parts.append(b"s" + _U32.pack(len(raw)) + raw)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        parts += (b"b" + _U64.pack(len(raw)), raw)
    elif isinstance(value, (list, tuple)):
        parts.append((b"l" if isinstance(value, list) else b"t") + _U32.pack(len(value)))
        for item in value:
            _put(item, parts, depth + 1)
    elif isinstance(value, dict):
        parts.append(b"d" + _U32.pack(len(value)))
        for key, item in value.items():
            raw = key_bytes(key)
            parts.append(_U32.pack(len(raw)) + raw)
            _put(item, parts, depth + 1)
    elif isinstance(value, Sealed):
        parts.append(b"S")
        for text in (value.sender, value.recipient, value.kind):
            raw = utf8(text)
            parts.append(_U32.pack(len(raw)) + raw)
        parts += (_U64.pack(len(value.box)), value.box)
    else:
        raise no_place(value)


def _put_int(value: int, parts: list[Any]) -> None:
    if fits_i64(value):
        parts.append(b"i" + _I64.pack(value))
        return
    width = int_bytes(value)
    parts.append(b"I" + _U32.pack(width) + value.to_bytes(width, "little", signed=True))


def _put_array(
    tag: bytes, array: np.ndarray, dtype: str, shape: tuple[int, ...], parts: list[Any]
) -> None:
    code = CODE_OF.get(dtype)
    if code is None or dtype == "bfloat16":
        raise WireError(
            f"an array of dtype {dtype} has no place on the wire. Mend: use one of "
            + ", ".join(DTYPES[:-1])
        )
    parts.append(_array_head(tag, code, shape))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    parts.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)


def _put_tensor(value: Any, parts: list[Any]) -> None:
    import torch

    name = tensor_dtype(value)
    plain = value.cpu().contiguous()
    array = (plain.view(torch.int16) if name == "bfloat16" else plain).numpy()
    parts.append(_array_head(b"x", CODE_OF[name], tuple(value.shape)))
    parts.append(array.reshape(-1).view(np.uint8).data)


def _array_head(tag: bytes, code: int, shape: tuple[int, ...]) -> bytes:
    check_dims(len(shape))
    return tag + bytes((code, len(shape))) + b"".join(_U64.pack(side) for side in shape)


# ---------------------------------------------------------------------------------- decoding


def decode(data: bytes | bytearray | memoryview, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value in `data`; `WireError` for anything that `encode` did not write."""
    view = memoryview(data).cast("B")
    if len(view) < HEADER.size:
        raise WireError(f"{len(view)} bytes are too few for a message. Mend: send it again")
    magic, version, length = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError("this is not a fedmend message (wrong first bytes)")
    if version != VERSION:
        raise WireError(
            f"the message is in wire version {version}, this side speaks {VERSION}. "
            "Mend: install the same fedmend version at all parties"
        )
    if length + HEADER.size > max_bytes:
        raise WireError(f"a message of {length:,} bytes is over the limit of {max_bytes:,}")
    if length != len(view) - HEADER.size:
        raise WireError(
            f"the message says {length:,} bytes and has {len(view) - HEADER.size:,}: "
            "truncated or padded"
        )
    reader = _Reader(view[HEADER.size :])
    value = reader.node(0)
    if reader.at != len(reader.view):
        raise WireError(f"{len(reader.view) - reader.at} bytes are left over after the value")
    return value


TRUNCATED = "the message ends in the middle of a value: truncated"


class _Reader:
    """A cursor over the payload; every read is checked against what is left, and paid for."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.end = len(view)
        self.at = 0
        self.room = Room(len(view))

    def take(self, count: int) -> memoryview:
        end = self.at + count
        if end > self.end:
            raise WireError(TRUNCATED)
        piece = self.view[self.at : end]
        self.at = end
        return piece

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def number(self, form: struct.Struct) -> Any:
        at = self.at
        self.at = at + 8
        room = self.room
        room.memory -= NUMBER_COST
        if room.memory < 0 or self.at > self.end:
            room.charge(0)
            raise WireError(TRUNCATED)
        return form.unpack_from(self.view, at)[0]

    def text(self) -> str:
        raw = self.take(self.u32())
        self.room.charge(text_cost(raw))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise WireError("text in the message is not UTF-8") from error

    def blob(self) -> bytes:
        piece = self.take(self.u64())
        self.room.charge(TEXT_COST + len(piece))
        return bytes(piece)

    def count(self, cost: int, each: int) -> int:
        # Every item takes a byte at least, so a larger count is a lie: refuse before allocating.
        count = self.u32()
        if count > self.end - self.at:
            raise WireError(f"the message announces {count:,} items and is too short for them")
        self.room.charge(cost + each * count, count)
        return count

    def node(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise WireError(f"the message is nested more than {MAX_DEPTH} deep")
        at = self.at
        if at >= self.end:
            raise WireError(TRUNCATED)
        self.at = at + 1
        tag = self.view[at]
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        read = _READERS.get(tag)
        if read is None:
            raise WireError(f"unknown tag {bytes((tag,))!r} in the message")
        return read(self, depth)

    def array(self, cost: int) -> tuple[str, tuple[int, ...], np.ndarray]:
        code, dims = self.take(2)
        if code >= len(DTYPES):
            raise WireError(f"unknown dtype code {code} in the message")
        if dims > MAX_DIMS:
            raise WireError(f"an array of {dims} dimensions; {MAX_DIMS} are the most")
        shape = tuple(self.u64() for _ in range(dims))
        name = DTYPES[code]
        items = 1
        for side in shape:
            items *= side
        raw = self.take(items * ITEM_BYTES[name])
        self.room.charge(cost + raw.nbytes)
        if name == "bool" and raw.nbytes and np.frombuffer(raw, np.uint8).max() > 1:
            raise WireError("a bool array holds bytes other than 0 and 1")
        plain = np.dtype("int16" if name == "bfloat16" else name).newbyteorder("<")
        flat = np.frombuffer(raw, plain).astype(plain.newbyteorder("="), copy=True)
        try:
            return name, shape, flat.reshape(shape)
        except ValueError as error:  # an empty array with a side beyond what numpy can hold
            raise WireError(f"impossible array shape {shape}") from error


def _read_array(reader: _Reader, depth: int) -> np.ndarray:
    name, shape, array = reader.array(ARRAY_COST)
    reader.room.charge(SIDE_COST * len(shape))
    if name == "bfloat16":
        raise WireError("bfloat16 travels as a torch tensor only")
    return array


def _read_scalar(reader: _Reader, depth: int) -> Any:
    array = _read_array(reader, depth)
    if array.ndim:
        raise WireError("a numpy scalar with dimensions")
    return array[()]


def _read_tensor(reader: _Reader, depth: int) -> Any:
    import torch

    name, shape, array = reader.array(TENSOR_COST)
    tensor = torch.from_numpy(array.reshape(-1)).reshape(shape)
    return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


def _read_list(reader: _Reader, depth: int) -> list[Any]:
    result: list[Any] = [None] * reader.count(LIST_COST, SLOT)
    for at in range(len(result)):
        result[at] = reader.node(depth + 1)
    return result


def _read_tuple(reader: _Reader, depth: int) -> tuple[Any, ...]:
    items = [None] * reader.count(LIST_COST, 2 * SLOT)  # as a list first: for a moment twice
    for at in range(len(items)):
        items[at] = reader.node(depth + 1)
    return tuple(items)


def _read_dict(reader: _Reader, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for _ in range(reader.count(DICT_COST, ENTRY_COST)):
        key = reader.text()
        if key in result:
            raise WireError(f"the key {key!r} stands twice in a dict")
        result[key] = reader.node(depth + 1)
    return result


def _read_big_int(reader: _Reader, depth: int) -> int:
    width = reader.u32()
    if width > MAX_INT_BYTES:
        raise WireError(f"an integer of {width:,} bytes; {MAX_INT_BYTES:,} are the most")
    reader.room.charge(NUMBER_COST + width)
    value = int.from_bytes(reader.take(width), "little", signed=True)
    if fits_i64(value) or int_bytes(value) != width:
        raise WireError(f"an integer in {width:,} bytes that would be written otherwise")
    return value


def _read_sealed(reader: _Reader, depth: int) -> Sealed:
    reader.room.charge(SEALED_COST)
    return Sealed(reader.text(), reader.text(), reader.text(), reader.blob())


_CONSTANTS = {ord("N"): None, ord("T"): True, ord("F"): False}
_READERS: dict[int, Callable[[_Reader, int], Any]] = {
    ord("i"): lambda reader, depth: reader.number(_I64),
    ord("I"): _read_big_int,
    ord("f"): lambda reader, depth: reader.number(_F64),
    ord("s"): lambda reader, depth: reader.text(),
    ord("b"): lambda reader, depth: reader.blob(),
    ord("l"): _read_list,
    ord("t"): _read_tuple,
    ord("d"): _read_dict,
    ord("a"): _read_array,
    ord("g"): _read_scalar,
    ord("x"): _read_tensor,
    ord("S"): _read_sealed,
}
