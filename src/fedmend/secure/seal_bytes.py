"""SEAL's objects as bytes: its own form, and the frame in which they travel.

The binding saves and loads by path only, so objects pass through anonymous memory (``memfd``) that
has no name in any file system and ends with the call. What is written here by hand has SEAL's own
uncompressed form (version 4.3, that of the pinned TenSEAL 0.3.18; golden tests hold it in place).

A frame says sort, parameters and digest. The digest finds damage; against a deliberate forger the
frame must travel in a sealed box.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import Any

import numpy as np

from fedmend.errors import CryptoError

__all__ = ["array_bytes", "frame", "loaded", "saved", "unframe", "with_header"]

SEAL_MAGIC = 0xA15E
SEAL_VERSION = (4, 3)
FRAME_MAGIC = b"FMHE"
FRAME_VERSION = 1

# magic, header size, major, minor, compression, reserved, size of header and all that follows
_SEAL_HEADER = struct.Struct("<HBBBBHQ")
# magic, version, sort, fingerprint of the parameters, digest of all this and the payload
_FRAME = struct.Struct("<4sBB16s16s")
_SORTS = {"ciphertext": 1, "public key": 2, "plaintext": 3}
_COMPRESSIONS = (0, 2)  # none, zstandard
_SLACK = 4096  # what headers and incompressible data may add to an object's raw size


# ---------------------------------------------------------------------------------- frames


def frame(sort: str, fingerprint: bytes, payload: bytes) -> bytes:
    """A saved object with what it is in front; `fingerprint` is that of the parameters."""
    digest = _digest(_SORTS[sort], fingerprint, payload)
    return _FRAME.pack(FRAME_MAGIC, FRAME_VERSION, _SORTS[sort], fingerprint, digest) + payload


def unframe(sort: str, fingerprint: bytes, data: bytes, raw_size: int) -> bytes:
    """The saved object in a frame of this sort, of about `raw_size` bytes; else `CryptoError`."""
    limit = _FRAME.size + raw_size + _SLACK
    if not isinstance(data, bytes) or not _FRAME.size < len(data) <= limit:
        size = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise CryptoError(f"not a {sort}: {size}, where at most {limit} bytes were expected")
    magic, version, code, theirs, digest = _FRAME.unpack_from(data)
    if (magic, version) != (FRAME_MAGIC, FRAME_VERSION):
        raise CryptoError(f"not a {sort}: wrong first bytes")
    if code != _SORTS[sort]:
        raise CryptoError(f"not a {sort}, but an object of another sort")
    if theirs != fingerprint:
        raise CryptoError(
            f"the {sort} was made with other parameters. Mend: both parties must use the same "
            "fedmend version and settings"
        )
    payload = data[_FRAME.size :]
    if not hmac.compare_digest(digest, _digest(code, fingerprint, payload)):
        raise CryptoError(f"the {sort} is damaged or cut off. Mend: send it again")
    _check_seal_header(sort, payload)
    return payload


def _digest(code: int, fingerprint: bytes, payload: bytes) -> bytes:
    state = hashlib.blake2b(bytes((code,)), digest_size=16, person=b"fedmend frame")
    state.update(fingerprint)
    state.update(payload)
    return state.digest()


# ---------------------------------------------------------------------------------- SEAL's bytes


def saved(thing: Any) -> bytes:
    """What SEAL writes of an object."""
    descriptor = os.memfd_create("fedmend", os.MFD_CLOEXEC)
    try:
        thing.save(f"/proc/self/fd/{descriptor}")
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def loaded(context: Any, target: Any, payload: bytes) -> Any:
    """`target`, filled with what SEAL reads; raises as SEAL does."""
    descriptor = os.memfd_create("fedmend", os.MFD_CLOEXEC)
    try:
        _write_all(descriptor, payload)
        target.load(context, f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return target


def _write_all(descriptor: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[os.write(descriptor, view) :]


def with_header(body: bytes) -> bytes:
    """An object's content as SEAL would save it, uncompressed."""
    size = _SEAL_HEADER.size + len(body)
    return _SEAL_HEADER.pack(SEAL_MAGIC, _SEAL_HEADER.size, *SEAL_VERSION, 0, 0, size) + body


def array_bytes(values: np.ndarray) -> bytes:
    """A row of uint64 as SEAL saves its arrays."""
    words = np.ascontiguousarray(values, dtype="<u8")
    return with_header(struct.pack("<Q", len(words)) + words.tobytes())


def _check_seal_header(sort: str, payload: bytes) -> None:
    if len(payload) < _SEAL_HEADER.size:
        raise CryptoError(f"the {sort} is cut off. Mend: send it again")
    magic, head, major, minor, compression, reserved, size = _SEAL_HEADER.unpack_from(payload)
    if magic != SEAL_MAGIC or head != _SEAL_HEADER.size or reserved != 0:
        raise CryptoError(f"the {sort} does not have the form of a SEAL object")
    if (major, minor) != SEAL_VERSION:
        raise CryptoError(
            f"the {sort} was written by SEAL {major}.{minor}, here runs "
            f"{SEAL_VERSION[0]}.{SEAL_VERSION[1]}. Mend: install the same fedmend version"
        )
    if compression not in _COMPRESSIONS:
        raise CryptoError(f"the {sort} is compressed in a way that is not admitted")
    if size != len(payload):
        raise CryptoError(f"the {sort} says {size} bytes and has {len(payload)}")
