"""The shape, dtype and exact encoded size of a value, without encoding it.

The local engine passes values by reference; the ledger still writes their true bytes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fedmend.errors import WireError
from fedmend.federation.wire_types import (
    CODE_OF,
    HEADER,
    ITEM_BYTES,
    MAX_DEPTH,
    Measure,
    Sealed,
    check_dims,
    check_room,
    fits_i64,
    int_bytes,
    is_tensor,
    key_bytes,
    no_place,
    tensor_dtype,
    utf8,
)


def size(value: Any) -> int:
    """Exactly ``len(encode(value))``, without encoding."""
    return measure(value).nbytes


def measure(value: Any) -> Measure:
    """Shape, dtype and encoded size of `value`; refuses what `encode` would refuse."""
    seen: list[tuple[str, str]] = []
    sealed: list[str] = []
    lengths: list[int] = []
    length = _measure(value, seen, sealed, lengths, 0)
    check_room(value, length, sum(lengths))
    if len(seen) == 1:
        shape, dtype = seen[0]
    else:
        shape = ", ".join(shape for shape, _ in seen[:4]) + (" …" if len(seen) > 4 else "")
        dtype = ", ".join(dict.fromkeys(dtype for _, dtype in seen))
    return Measure(shape, dtype, HEADER.size + length, ", ".join(dict.fromkeys(sealed)))


def _measure(
    value: Any, seen: list[tuple[str, str]], sealed: list[str], lengths: list[int], depth: int
) -> int:
    if depth > MAX_DEPTH:
        raise WireError(f"values may be nested {MAX_DEPTH} deep at most. Mend: flatten the value")
    if value is None or value is True or value is False:
        return 1
    if isinstance(value, dict):
        lengths.append(len(value))
        return 5 + sum(
            4 + len(key_bytes(key)) + _measure(item, seen, sealed, lengths, depth + 1)
            for key, item in value.items()
        )
    if is_tensor(value):
        return _note_array(tensor_dtype(value), value.shape, seen)
    if isinstance(value, (np.ndarray, np.generic)):
        name = str(value.dtype) if value.dtype.isnative else str(value.dtype.newbyteorder("="))
        if name not in CODE_OF:
            raise no_place(value)
        return _note_array(name, value.shape, seen)
    if isinstance(value, int):
        return 9 if fits_i64(value) else 5 + int_bytes(value)
    if isinstance(value, float):
        return 9
    if isinstance(value, str):
        return 5 + len(utf8(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        count = memoryview(value).nbytes
        seen.append((str(count), "bytes"))
        return 9 + count
    if isinstance(value, (list, tuple)):
        lengths.append(len(value))
        return 5 + sum(_measure(item, seen, sealed, lengths, depth + 1) for item in value)
    if isinstance(value, Sealed):
        sealed.append(value.recipient)
        seen.append((str(len(value.box)), "sealed bytes"))
        texts = (value.sender, value.recipient, value.kind)
        return 1 + sum(4 + len(utf8(text)) for text in texts) + 8 + len(value.box)
    raise no_place(value)


def _note_array(name: str, shape: tuple[int, ...], seen: list[tuple[str, str]]) -> int:
    note, nbytes = _array_note(name, shape)
    seen.append(note)
    return nbytes


@lru_cache(maxsize=4096)
def _array_note(name: str, shape: tuple[int, ...]) -> tuple[tuple[str, str], int]:
    check_dims(len(shape))
    words = "x".join(map(str, shape)) or "scalar"
    return (words, name), 3 + 8 * len(shape) + math.prod(shape) * ITEM_BYTES[name]
