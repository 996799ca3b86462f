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
