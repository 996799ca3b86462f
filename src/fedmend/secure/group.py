"""The group ristretto255 in bulk, on all cores, through libsodium (package `rbcl`).

Points and tags travel as one run of bytes, 32 or 16 for each. libsodium is called through ctypes,
which lets go of the interpreter meanwhile, so plain threads use all cores and no process pool is
needed. Unlike bare X25519, ristretto255 has prime order: there is no cofactor to leak a bit per id.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from fedmend.errors import CryptoError

POINT_BYTES = 32
TAG_BYTES = 16
# Handing a slice to a thread costs about as much as two multiplications.
_SLICE = 128

Item = TypeVar("Item")


class Scalar:
    """A secret exponent; drawn fresh, never shown."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes | None = None) -> None:
        self._raw = (
            raw if raw is not None else _libsodium().crypto_core_ristretto255_scalar_random()
        )

    def inverse(self) -> Scalar:
        return Scalar(_libsodium().crypto_core_ristretto255_scalar_invert(self._raw))

    def times(self, points: bytes, *, sender: str) -> bytes:
        """Every point multiplied by this scalar; `CryptoError` for what is no proper point.

        libsodium decodes strictly: an encoding that is not canonical, not on the curve, or the
        identity is refused.
        """
        multiply, raw = _libsodium().crypto_scalarmult_ristretto255, self._raw
        try:
            return b"".join(_spread(lambda point: multiply(raw, point), split(points, sender)))
        except RuntimeError as error:
            raise CryptoError(
                f"{sender!r} sent a value that is no point of ristretto255 (or its identity). "
                "Mend: the same fedmend version at all parties; otherwise the values were altered"
            ) from error

    def __repr__(self) -> str:
        return "Scalar(hidden)"

    def __reduce__(self) -> Any:
        raise TypeError("a secret scalar does not leave its process: it cannot be pickled")


@cache
def _libsodium() -> Any:
    import rbcl

    # It writes the library to a temporary file in every process and leaves it there. Once loaded,
    # the file is not needed.
    left = getattr(sys.modules.get("rbcl._sodium"), "lib_path", None)
    if left is not None:
        with suppress(OSError):  # where a loaded file cannot be removed
            os.unlink(left)
    return rbcl


def hash_to_points(items: Sequence[bytes]) -> bytes:
    """Each item as a point nobody knows a logarithm of: SHA-512, then Elligator twice."""
    to_point = _libsodium().crypto_core_ristretto255_from_hash
    start = hashlib.sha512(b"fedmend psi ristretto255 v1\0")

    def one(item: bytes) -> bytes:
        digest = start.copy()
        digest.update(item)
        return bytes(to_point(digest.digest()))

    return b"".join(_spread(one, items))


def tags_of(points: bytes, sender: str) -> bytes:
    """A 16-byte tag for each point: equal for equal points, and the point cannot be had back."""
    return b"".join(
        hashlib.blake2b(point, digest_size=TAG_BYTES, person=b"fedmend tag").digest()
        for point in split(points, sender)
    )


def split(run: bytes, sender: str, width: int = POINT_BYTES) -> list[bytes]:
    """The values in a run of bytes; a run that does not come out even is refused."""
    if not isinstance(run, bytes) or len(run) % width:
        raise CryptoError(
            f"{sender!r} sent a run of values that does not divide into {width} bytes each"
        )
    return [run[at : at + width] for at in range(0, len(run), width)]


def _spread(work: Callable[[Item], bytes], items: Sequence[Item]) -> list[bytes]:
    """`work` for every item, in order, over the cores."""
    if len(items) <= _SLICE:
        return [work(item) for item in items]
    slices = [items[at : at + _SLICE] for at in range(0, len(items), _SLICE)]
    done = _threads().map(lambda part: [work(item) for item in part], slices)
    return [value for part in done for value in part]


@cache
def _threads() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores, "fedmend-group")
