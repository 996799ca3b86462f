"""The wire: one typed, versioned, length-checked binary form for whatever crosses a boundary.

No pickle, no code, no classes: a value is None, bool, int, float, str, bytes, a list, tuple or
dict with text keys of these, a numpy array or scalar, a torch tensor, or :class:`Sealed`.
Everything else is refused on the way out; everything malformed is refused on the way in.

    FMW | version | payload length (u64) | node
    node = tag byte, then what the tag calls for; arrays are dtype, shape, little-endian buffer

What a message becomes in memory is bounded by its bytes (four times, and 4 MiB), and so is the
number of its items, so that nobody can make a receiver work or swell out of proportion to what
was sent. Every value has one form: what `encode` would have written otherwise is refused.

`measure` walks a value as `encode` does without writing it, so that the local engine can pass
values by reference and still write the true number of bytes into the ledger.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from fedmend.errors import WireError

MAGIC = b"FMW"
VERSION = 1
MAX_BYTES = 1 << 31
MAX_DEPTH = 32
MAX_DIMS = 16
MAX_INT_BYTES = 4096

# What a message may become in memory: its sender pays a byte for a None, its receiver eight, and
# for a small dict two hundred. Each value is charged before it is made.
MEMORY_TIMES, MEMORY_FLOOR = 4, 4 << 20
MAX_ITEMS = 1 << 20
# Bytes of an object in CPython with numpy and torch, beside what it holds.
SLOT = 8
NUMBER_COST, TEXT_COST, LIST_COST, DICT_COST, ENTRY_COST = 32, 56, 64, 200, 96
ARRAY_COST, SIDE_COST, TENSOR_COST, SEALED_COST = 352, 32, 512, 64
SHORT_TEXT = 64
"""Names of parties, classes and arguments, which come again with every message."""

HEADER = struct.Struct("<3sBQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")

# The position in this list is the code on the wire: append only.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
ITEM_BYTES = {name: 2 if name == "bfloat16" else np.dtype(name).itemsize for name in DTYPES}


@dataclass(frozen=True, slots=True)
class Sealed:
    """A value only `recipient` can open; whoever relays it sees its size and nothing else."""

    sender: str
    recipient: str
    kind: str
    ciphertext: bytes


class Record:
    """A dataclass of numbers, words, tensors and tuples: its fields as a wire value, and back."""

    def to_wire(self) -> dict[str, Any]:
        return {name: _on_cpu(each) for name, each in vars(self).items()}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Self:
        # Earlier versions wrote tuples as lists.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()})


def _on_cpu(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_on_cpu(each) for each in value)
    return value.cpu() if is_tensor(value) else value


class Measure(NamedTuple):
    """What the ledger notes of a value: its shape and dtype in words, and its bytes on the wire."""

    shape: str
    dtype: str
    nbytes: int
    sealed_for: str


def is_tensor(value: Any) -> bool:
    # torch is heavy: a value can only be a tensor if somebody has imported torch already (and a
    # thread that is just doing so has none yet).
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


class _Room:
    """What is left of the memory and the items that a message of so many bytes may take."""

    __slots__ = ("items", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = MEMORY_FLOOR + MEMORY_TIMES * nbytes
        self.items = MAX_ITEMS

    def charge(self, memory: int, items: int = 0) -> None:
        """Take what a value is about to cost; `WireError` once there is no room for it."""
        self.memory -= memory
        self.items -= items
        if self.memory < 0 or self.items < 0:
            raise WireError(
                f"a message of {self.nbytes:,} bytes with more than {MAX_ITEMS:,} items, or with "
                f"values that take more than {MEMORY_TIMES} times its bytes in memory. Mend: send "
                "numbers as arrays, and many small values in chunks"
            )


# ---------------------------------------------------------------------------------- on the way out


def encode(value: Any, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of `value`, header included; `WireError` for a type that has no place here."""
    return _encoded(value, max_bytes)[0]


def encode_measured(value: Any) -> tuple[bytes, Measure]:
    """Both in one go."""
    encoded, walk = _encoded(value, MAX_BYTES)
    return encoded, walk.measure()


def measure(value: Any) -> Measure:
    """Shape, dtype and encoded size of `value`; refuses what `encode` would refuse."""
    return _Walk(value, None).measure()


def _encoded(value: Any, max_bytes: int) -> tuple[bytes, _Walk]:
    parts: list[Any] = [b""]
    walk = _Walk(value, parts)
    length = walk.nbytes
    if length + HEADER.size > max_bytes:
        raise WireError(
            f"a value of {length:,} bytes is over the limit of {max_bytes:,}. "
            "Mend: send it in chunks"
        )
    parts[0] = HEADER.pack(MAGIC, VERSION, length)
    return b"".join(parts), walk


class _Walk:
    """Goes through a value once: counts its bytes and what its receiver will need to hold it.

    parts: where the bytes are written, if anywhere. seen: shape and dtype of all arrays and bytes.
    sealed: who can open what is sealed.
    """

    def __init__(self, value: Any, parts: list[Any] | None) -> None:
        self.parts = parts
        self.nbytes = self.memory = self.items = 0
        self.seen: list[tuple[str, str]] = []
        self.sealed: list[str] = []
        self.add(value, 0)
        # At its sender is refused what its receiver would not make room for.
        _Room(self.nbytes).charge(self.memory, self.items)

    def measure(self) -> Measure:
        if not self.seen:
            return Measure("", "", HEADER.size + self.nbytes, "")
        shapes = [shape for shape, _ in self.seen]
        shape = ", ".join(shapes[:4]) + (" …" if len(shapes) > 4 else "")
        dtype = ", ".join(dict.fromkeys(dtype for _, dtype in self.seen))
        sealed = ", ".join(dict.fromkeys(self.sealed))
        return Measure(shape, dtype, HEADER.size + self.nbytes, sealed)

    def put(self, part: bytes, memory: int = 0) -> None:
        self.nbytes += len(part)
        self.memory += memory
        if self.parts is not None:
            self.parts.append(part)

    def add(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(
                f"values may be nested {MAX_DEPTH} deep at most. Mend: flatten the value"
            )
        if value is None:
            self.put(b"N")
        elif value is True or value is False:
            self.put(b"T" if value else b"F")
        elif isinstance(value, str):
            self.put(b"s")
            self.text(value)
        elif isinstance(value, dict):
            self.put(b"d" + _U32.pack(len(value)), DICT_COST + ENTRY_COST * len(value))
            self.items += len(value)
            for key, item in value.items():
                if not isinstance(key, str):
                    raise WireError(
                        f"dict keys on the wire must be text, got {type(key).__name__}: {key!r}"
                    )
                self.text(key)
                self.add(item, depth + 1)
        elif isinstance(value, int):
            self.put(*_whole_number(value))
        elif is_tensor(value):
            self.tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self.array(value)
        elif isinstance(value, float):
            self.put(b"f" + _F64.pack(value), NUMBER_COST)
        elif isinstance(value, bytes | bytearray | memoryview):
            raw = bytes(value) if isinstance(value, memoryview) else value
            self.seen.append((str(len(raw)), "bytes"))
            self.put(b"b")
            self.blob(raw)
        elif isinstance(value, list | tuple):
            # A tuple is read as a list first: for a moment it is there twice.
            tag, slots = (b"l", 1) if isinstance(value, list) else (b"t", 2)
            self.put(tag + _U32.pack(len(value)), LIST_COST + slots * SLOT * len(value))
            self.items += len(value)
            if self.parts is None and self._count_texts(value):
                return
            for item in value:
                self.add(item, depth + 1)
        elif isinstance(value, Sealed):
            self.sealed.append(value.recipient)
            self.seen.append((str(len(value.ciphertext)), "sealed bytes"))
            self.put(b"S", SEALED_COST)
            for text in (value.sender, value.recipient, value.kind):
                self.text(text)
            self.blob(value.ciphertext)
        else:
            raise _no_place(value)

    def text(self, text: str) -> None:
        self.put(*(_short_text(text) if len(text) <= SHORT_TEXT else _text(text)))

    def _count_texts(self, values: list[Any] | tuple[Any, ...]) -> bool:
        """Count short plain texts at once: among many parties their names are most of a message."""
        if not values or not isinstance(values[0], str):
            return False
        try:
            joined = "".join(values)
        except TypeError:  # not all are texts
            return False
        if not joined.isascii() or len(max(values, key=len)) > SHORT_TEXT:
            return False
        self.nbytes += (1 + _U32.size) * len(values) + len(joined)
        self.memory += TEXT_COST * len(values) + len(joined)
        return True

    def blob(self, raw: bytes | bytearray) -> None:
        self.put(_U64.pack(len(raw)), TEXT_COST + len(raw))
        self.nbytes += len(raw)
        if self.parts is not None:
            self.parts.append(raw)

    def array(self, value: Any) -> None:
        name = _numpy_name(value.dtype)
        if name not in ITEM_BYTES or name == "bfloat16":
            raise _no_place(value)
        tag = b"a" if isinstance(value, np.ndarray) else b"g"
        self._head(tag, name, value.shape, ARRAY_COST + SIDE_COST * value.ndim)
        if self.parts is not None:
            array = np.asarray(value)
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            self.parts.append(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)

    def tensor(self, value: Any) -> None:
        if value.requires_grad:
            raise WireError(
                "a tensor that requires grad would carry its graph across the boundary. "
                "Mend: return tensor.detach()"
            )
        name = _torch_name(value.dtype)
        if name not in ITEM_BYTES:
            raise _no_place(value)
        self._head(b"x", name, value.shape, TENSOR_COST)
        if self.parts is not None:
            import torch

            plain = value.cpu().contiguous()
            array = (plain.view(torch.int16) if name == "bfloat16" else plain).numpy()
            self.parts.append(array.reshape(-1).view(np.uint8).data)

    def _head(self, tag: bytes, name: str, shape: tuple[int, ...], cost: int) -> None:
        head, words, body = _array_head(tag, name, shape)
        self.seen.append((words, name))
        self.put(head, cost + body)
        self.nbytes += body


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype) -> str:
    return str(dtype.newbyteorder("="))


@lru_cache(maxsize=4096)
def _array_head(tag: bytes, name: str, shape: tuple[int, ...]) -> tuple[bytes, str, int]:
    """What stands before an array, its shape in words, and the bytes of its numbers."""
    if len(shape) > MAX_DIMS:
        raise WireError(f"arrays may have {MAX_DIMS} dimensions at most. Mend: reshape")
    head = tag + bytes((DTYPES.index(name), len(shape)))
    head += b"".join(_U64.pack(side) for side in shape)
    return head, "x".join(map(str, shape)) or "scalar", math.prod(shape) * ITEM_BYTES[name]


def _text(text: str) -> tuple[bytes, int]:
    """How a text is written, and its cost."""
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WireError(
            f"text that is not valid unicode has no place on the wire: {text!r}"
        ) from error
    return _U32.pack(len(raw)) + raw, _text_cost(raw)


_short_text = lru_cache(maxsize=4096)(_text)


@lru_cache(maxsize=64)
def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _whole_number(value: int) -> tuple[bytes, int]:
    """How a whole number is written, and its cost: in 8 bytes, or in as few more as it takes."""
    if -(1 << 63) <= value < 1 << 63:
        return b"i" + _I64.pack(value), NUMBER_COST
    width = (value.bit_length() + 8) // 8
    if width > MAX_INT_BYTES:
        raise WireError(
            f"an integer of {width:,} bytes; {MAX_INT_BYTES:,} are the most. Mend: send bytes"
        )
    raw = value.to_bytes(width, "little", signed=True)
    return b"I" + _U32.pack(width) + raw, NUMBER_COST + width


def _text_cost(raw: bytes | memoryview) -> int:
    """One sign beyond ASCII makes CPython store all of a text in up to four bytes each."""
    short = len(raw) <= 1024 and bytes(raw).isascii()
    return TEXT_COST + (len(raw) if short else 4 * len(raw))


def _no_place(value: Any) -> WireError:
    dtype = getattr(value, "dtype", "")
    return WireError(
        f"a value of type {type(value).__name__}{f' ({dtype})' if dtype else ''} has no place on "
        "the wire. Mend: send numbers, text, bytes, lists, dicts, numpy arrays or torch tensors"
    )


# ---------------------------------------------------------------------------------- on the way in


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
    if reader.at != reader.end:
        raise WireError(f"{reader.end - reader.at} bytes are left over after the value")
    return value


_TRUNCATED = "the message ends in the middle of a value: truncated"


class _Reader:
    """A cursor over the payload; every read is checked against what is left, and paid for."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.end = len(view)
        self.at = 0
        self.room = _Room(len(view))

    def take(self, count: int) -> memoryview:
        end = self.at + count
        if end > self.end:
            raise WireError(_TRUNCATED)
        piece = self.view[self.at : end]
        self.at = end
        return piece

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def number(self, form: struct.Struct) -> Any:
        self.room.charge(NUMBER_COST)
        return form.unpack(self.take(8))[0]

    def text(self) -> str:
        raw = self.take(self.u32())
        self.room.charge(_text_cost(raw))
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
            raise WireError(_TRUNCATED)
        self.at = at + 1
        tag = self.view[at]
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        read = _READERS.get(tag)
        if read is None:
            raise WireError(f"unknown tag {bytes((tag,))!r} in the message")
        return read(self, depth)

    def items(self, slots: int, depth: int) -> list[Any]:
        result: list[Any] = [None] * self.count(LIST_COST, slots * SLOT)
        for at in range(len(result)):
            result[at] = self.node(depth + 1)
        return result

    def mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(self.count(DICT_COST, ENTRY_COST)):
            key = self.text()
            if key in result:
                raise WireError(f"the key {key!r} stands twice in a dict")
            result[key] = self.node(depth + 1)
        return result

    def large_number(self) -> int:
        width = self.u32()
        if width > MAX_INT_BYTES:
            raise WireError(f"an integer of {width:,} bytes; {MAX_INT_BYTES:,} are the most")
        self.room.charge(NUMBER_COST + width)
        raw = self.take(width)
        value = int.from_bytes(raw, "little", signed=True)
        if _whole_number(value)[0] != b"I" + _U32.pack(width) + raw:
            raise WireError(f"an integer in {width:,} bytes that would be written otherwise")
        return value

    def sealed(self) -> Sealed:
        self.room.charge(SEALED_COST)
        return Sealed(self.text(), self.text(), self.text(), self.blob())

    def array(self, cost: int, side_cost: int = 0) -> tuple[str, tuple[int, ...], np.ndarray]:
        code, dims = self.take(2)
        if code >= len(DTYPES):
            raise WireError(f"unknown dtype code {code} in the message")
        if dims > MAX_DIMS:
            raise WireError(f"an array of {dims} dimensions; {MAX_DIMS} are the most")
        shape = tuple(self.u64() for _ in range(dims))
        name = DTYPES[code]
        raw = self.take(math.prod(shape) * ITEM_BYTES[name])
        self.room.charge(cost + side_cost * dims + raw.nbytes)
        if name == "bool" and raw.nbytes and np.frombuffer(raw, np.uint8).max() > 1:
            raise WireError("a bool array holds bytes other than 0 and 1")
        plain = np.dtype("int16" if name == "bfloat16" else name).newbyteorder("<")
        flat = np.frombuffer(raw, plain).astype(plain.newbyteorder("="), copy=True)
        try:
            return name, shape, flat.reshape(shape)
        except ValueError as error:  # an empty array with a side beyond what numpy can hold
            raise WireError(f"impossible array shape {shape}") from error

    def numpy_array(self, *, scalar: bool) -> Any:
        name, _, array = self.array(ARRAY_COST, SIDE_COST)
        if name == "bfloat16":
            raise WireError("bfloat16 travels as a torch tensor only")
        if scalar and array.ndim:
            raise WireError("a numpy scalar with dimensions")
        return array[()] if scalar else array

    def tensor(self) -> Any:
        import torch

        name, shape, array = self.array(TENSOR_COST)
        tensor = torch.from_numpy(array.reshape(-1)).reshape(shape)
        return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


_CONSTANTS = {ord("N"): None, ord("T"): True, ord("F"): False}
_READERS: dict[int, Callable[[_Reader, int], Any]] = {
    ord("i"): lambda reader, depth: reader.number(_I64),
    ord("I"): lambda reader, depth: reader.large_number(),
    ord("f"): lambda reader, depth: reader.number(_F64),
    ord("s"): lambda reader, depth: reader.text(),
    ord("b"): lambda reader, depth: reader.blob(),
    ord("l"): lambda reader, depth: reader.items(1, depth),
    ord("t"): lambda reader, depth: tuple(reader.items(2, depth)),
    ord("d"): lambda reader, depth: reader.mapping(depth),
    ord("a"): lambda reader, depth: reader.numpy_array(scalar=False),
    ord("g"): lambda reader, depth: reader.numpy_array(scalar=True),
    ord("x"): lambda reader, depth: reader.tensor(),
    ord("S"): lambda reader, depth: reader.sealed(),
}
