"""What the wire admits: value types, array dtypes, and limits; shared by encoding and measuring."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

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
# So few values stay below the floor whatever they are, beside four times their bytes.
FEW_ITEMS = MEMORY_FLOOR // 1024

HEADER = struct.Struct("<3sBQ")

# The position in this list is the code on the wire: append only.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
CODE_OF = {name: code for code, name in enumerate(DTYPES)}
ITEM_BYTES = {name: 2 if name == "bfloat16" else np.dtype(name).itemsize for name in DTYPES}


@dataclass(frozen=True, slots=True)
class Sealed:
    """A value only `recipient` can open; whoever relays it sees its size and nothing else."""

    sender: str
    recipient: str
    kind: str
    box: bytes


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


def tensor_dtype(value: Any) -> str:
    if value.requires_grad:
        raise WireError(
            "a tensor that requires grad would carry its graph across the boundary. "
            "Mend: return tensor.detach()"
        )
    return _dtype_name(value.dtype)


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in CODE_OF:
        raise WireError(f"a tensor of dtype {name} has no place on the wire. Mend: convert it")
    return name


class Room:
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


def check_room(value: Any, nbytes: int, items: int) -> None:
    """Refuse at its sender what the receiver of `nbytes` would refuse to make room for."""
    if items > FEW_ITEMS:
        _charge_value(value, Room(nbytes))


def _charge_value(value: Any, room: Room) -> None:
    if value is None or value is True or value is False:
        return
    if is_tensor(value):
        room.charge(TENSOR_COST + value.numel() * ITEM_BYTES[tensor_dtype(value)])
    elif isinstance(value, (np.ndarray, np.generic)):
        room.charge(ARRAY_COST + SIDE_COST * value.ndim + value.nbytes)
    elif isinstance(value, int):
        room.charge(NUMBER_COST + (0 if fits_i64(value) else int_bytes(value)))
    elif isinstance(value, float):
        room.charge(NUMBER_COST)
    elif isinstance(value, str):
        room.charge(text_cost(utf8(value)))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        room.charge(TEXT_COST + memoryview(value).nbytes)
    elif isinstance(value, (list, tuple)):
        slots = 1 if isinstance(value, list) else 2
        room.charge(LIST_COST + slots * SLOT * len(value), len(value))
        for item in value:
            _charge_value(item, room)
    elif isinstance(value, dict):
        room.charge(DICT_COST + ENTRY_COST * len(value), len(value))
        for key, item in value.items():
            room.charge(text_cost(key_bytes(key)))
            _charge_value(item, room)
    else:
        texts = (value.sender, value.recipient, value.kind)
        room.charge(
            SEALED_COST + TEXT_COST + len(value.box) + sum(text_cost(utf8(text)) for text in texts)
        )


def text_cost(raw: bytes | memoryview) -> int:
    """One sign beyond ASCII makes CPython store all of a text in up to four bytes each."""
    short = len(raw) <= 1024 and bytes(raw).isascii()
    return TEXT_COST + (len(raw) if short else 4 * len(raw))


def fits_i64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def check_dims(count: int) -> None:
    if count > MAX_DIMS:
        raise WireError(f"arrays may have {MAX_DIMS} dimensions at most. Mend: reshape")


def int_bytes(value: int) -> int:
    width = (value.bit_length() + 8) // 8
    if width > MAX_INT_BYTES:
        raise WireError(
            f"an integer of {width:,} bytes; {MAX_INT_BYTES:,} are the most. Mend: send bytes"
        )
    return width


def key_bytes(key: Any) -> bytes:
    if not isinstance(key, str):
        raise WireError(f"dict keys on the wire are text, this is {type(key).__name__}: {key!r}")
    return utf8(key)


def utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WireError(
            f"text that is not valid unicode has no place on the wire: {text!r}"
        ) from error


def no_place(value: Any) -> WireError:
    dtype = getattr(value, "dtype", "")
    return WireError(
        f"a value of type {type(value).__name__}{f' ({dtype})' if dtype else ''} has no place on "
        "the wire. Mend: send numbers, text, bytes, lists, dicts, numpy arrays or torch tensors"
    )
