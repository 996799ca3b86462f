"""BFV through ``tenseal.sealapi``: contexts, keys, polynomials as numpy, objects as checked bytes.

A thin wrapper. It adds what the binding lacks and a protocol needs:

- numpy coefficients in and out, and objects as bytes without files: the binding saves and loads by
  path only, so they pass through anonymous memory (``memfd``) that has no name in any file system
  and ends with the call. What is written here by hand has SEAL's own uncompressed form (version
  4.3, that of the pinned TenSEAL 0.3.18; golden tests hold it in place);
- a frame around every object that travels: its sort, parameters and digest. Bytes that are
  truncated, damaged, of another sort or made with other parameters give a `CryptoError` before SEAL
  sees them, and what SEAL then loads is checked once more (`is_valid_for`, level, form). The digest
  finds damage; against a deliberate forger the frame must travel in an encrypted message;
- noise flooding, for which SEAL has no call of its own.

Secret keys have no form in bytes here: they live in the memory of the party that made them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedmend.errors import CryptoError
from fedmend.secure.keys import uniform

SEAL_MAGIC = 0xA15E
SEAL_VERSION = (4, 3)
FRAME_MAGIC = b"FMHE"
FRAME_VERSION = 1

# magic, header size, major, minor, compression, reserved, size of header and all that follows
_SEAL_HEADER = struct.Struct("<HBBBBHQ")
# magic, version, sort, fingerprint of the parameters, digest of all this and the payload
_FRAME = struct.Struct("<4sBB16s16s")
_SORTS = {"ciphertext": 1, "public key": 2}
_COMPRESSIONS = (0, 2)  # none, zstandard
_SLACK = 4096  # what headers and incompressible data may add to an object's raw size


@dataclass(frozen=True)
class BFVParameters:
    """Degree N, bits of the primes (the last one is for keys only) and the plaintext modulus."""

    degree: int
    prime_bits: tuple[int, ...]
    plain_modulus: int

    @property
    def fingerprint(self) -> bytes:
        text = f"BFV {self.degree} {','.join(map(str, self.prime_bits))} {self.plain_modulus}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, repr=False)
class Keys:
    """A fresh key pair. Has no repr of its contents, so that a log cannot hold a key."""

    secret: Any
    public: Any


class SealContext:
    """One set of BFV parameters at 128-bit security, and whatever is done under it.

    >>> context = SealContext(BFVParameters(4096, (36, 36, 37), 1 << 16))
    >>> keys = context.generate_keys()
    >>> data = context.encrypt(keys.public, np.arange(-3, 3))
    >>> context.decrypt(keys.secret, data)[:6]
    array([65533, 65534, 65535,     0,     1,     2], dtype=uint64)
    """

    def __init__(self, parameters: BFVParameters) -> None:
        import tenseal.sealapi as api

        self.parameters = parameters
        self.degree, self.plain_modulus = parameters.degree, parameters.plain_modulus
        self._api = api
        try:
            primes = api.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits))
            settings = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
            settings.set_poly_modulus_degree(parameters.degree)
            settings.set_coeff_modulus(primes)
            settings.set_plain_modulus(parameters.plain_modulus)
            self.raw = api.SEALContext(settings, True, api.SEC_LEVEL_TYPE.TC128)
        except (ValueError, RuntimeError, TypeError) as error:
            raise CryptoError(f"{parameters} is not a set of BFV parameters: {error}") from error
        if not self.raw.parameters_set():
            raise CryptoError(
                f"{parameters} is not usable at 128-bit security: "
                f"{self.raw.parameters_error_message()}"
            )
        self.evaluator = api.Evaluator(self.raw)

    # ------------------------------------------------------------------ facts

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """The primes of a fresh ciphertext (the key prime is not among them)."""
        first = self.raw.first_context_data().parms().coeff_modulus()
        return tuple(int(prime.value()) for prime in first)

    @cached_property
    def _level_ids(self) -> tuple[list[int], ...]:
        ids, data = [], self.raw.first_context_data()
        while data is not None:
            ids.append(data.parms_id())
            data = data.next_context_data()
        return tuple(ids)

    # ------------------------------------------------------------------ keys, encryption

    def generate_keys(self) -> Keys:
        maker = self._api.KeyGenerator(self.raw)
        public = self._api.PublicKey()
        maker.create_public_key(public)
        return Keys(maker.secret_key(), public)

    def encrypt(self, public: Any, coefficients: np.ndarray) -> Any:
        """A fresh public-key encryption of a polynomial."""
        ciphertext = self._api.Ciphertext(self.raw)
        self._encryptor(public).encrypt(self.plaintext(coefficients), ciphertext)
        return ciphertext

    def encrypt_to_bytes(self, secret: Any, coefficients: np.ndarray) -> bytes:
        """A fresh encryption by the key holder, framed; half as long as a public-key one."""
        seeded = self._encryptor(secret).encrypt_symmetric(self.plaintext(coefficients))
        return self._frame("ciphertext", saved(seeded))

    def decrypt(
        self, secret: Any, ciphertext: Any, positions: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Coefficients as residues in [0, t) (uint64)."""
        decryptor = self._api.Decryptor(self.raw, secret)
        if decryptor.invariant_noise_budget(ciphertext) <= 0:
            raise CryptoError(
                "the ciphertext does not decrypt: its noise is used up, or it was made with "
                "another key. Mend: run the protocol again from its start"
            )
        plaintext = self._api.Plaintext()
        decryptor.decrypt(ciphertext, plaintext)
        return self.coefficients(plaintext, positions)

    def noise_budget(self, secret: Any, ciphertext: Any) -> int:
        """Bits left before decryption fails."""
        return int(self._api.Decryptor(self.raw, secret).invariant_noise_budget(ciphertext))

    def _encryptor(self, key: Any) -> Any:
        return self._api.Encryptor(self.raw, key)

    # ------------------------------------------------------------------ polynomials

    def plaintext(self, coefficients: np.ndarray) -> Any:
        """A plaintext polynomial from int64 (signed) or uint64 (residues below t) coefficients."""
        values = np.asarray(coefficients)
        if values.ndim != 1 or len(values) > self.degree:
            raise CryptoError(
                f"a polynomial has at most {self.degree} coefficients in one row, "
                f"got shape {values.shape}"
            )
        body = (
            bytes(32) + struct.pack("<Qd", len(values), 1.0) + array_bytes(self._residues(values))
        )
        return self._load(self._api.Plaintext(), with_header(body))

    def coefficients(
        self, plaintext: Any, positions: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Residues in [0, t) (uint64) at all N positions, or at those asked for."""
        wanted = range(self.degree) if positions is None else [int(at) for at in positions]
        known = plaintext.coeff_count()
        # Coefficient by coefficient: the saved form is compressed, and zstandard is no dependency.
        read = plaintext.data
        return np.array([read(at) if at < known else 0 for at in wanted], dtype=np.uint64)

    def to_ntt(self, plaintext: Any) -> Any:
        """The same plaintext, in place, in the form in which products are pointwise."""
        self.evaluator.transform_to_ntt_inplace(plaintext, self._level_ids[0])
        return plaintext

    def _residues(self, values: np.ndarray) -> np.ndarray:
        modulus = self.plain_modulus
        if values.dtype == np.uint64:
            if values.size and int(values.max()) >= modulus:
                raise CryptoError(f"a residue is not below the plaintext modulus {modulus}")
            return values
        if values.dtype.kind not in "iu":
            raise CryptoError(f"coefficients must be integers, got {values.dtype}")
        signed = values.astype(np.int64, copy=False)
        if signed.size and (2 * int(signed.max()) >= modulus or 2 * -int(signed.min()) > modulus):
            raise CryptoError(
                f"a coefficient lies outside ±{modulus // 2}, half the plaintext modulus"
            )
        return np.where(signed < 0, signed + modulus, signed).astype(np.uint64)

    # ------------------------------------------------------------------ operations

    def new_ciphertext(self) -> Any:
        return self._api.Ciphertext(self.raw)

    def flood(self, ciphertext: Any, bits: int) -> None:
        """Add uniform noise from [-2^bits, 2^bits) to every coefficient of c0, in place.

        Hides what the noise of a computed ciphertext tells the key holder about the other
        factor. The ciphertext must be fresh in level and not in NTT form.
        """
        noise = np.zeros((2, len(self.primes), self.degree), dtype=np.uint64)
        noise[0] = _uniform_signed(bits, self.degree, self.primes)
        self.evaluator.add_inplace(ciphertext, self._raw_ciphertext(noise))

    def switch_down(self, ciphertext: Any) -> None:
        """Drop one prime, in place: shorter, and free of the low-order bits."""
        self.evaluator.mod_switch_to_next_inplace(ciphertext)

    def _raw_ciphertext(self, values: np.ndarray) -> Any:
        """A first-level ciphertext with these residues [polynomials, primes, N]."""
        size, primes, degree = values.shape
        head = struct.pack("<4QBQQQdQ", *self._level_ids[0], 0, size, degree, primes, 1.0, 1)
        return self._load(
            self.new_ciphertext(), with_header(head + array_bytes(values.reshape(-1)))
        )

    # ------------------------------------------------------------------ bytes

    def ciphertext_bytes(self, ciphertext: Any) -> bytes:
        return self._frame("ciphertext", saved(ciphertext))

    def public_key_bytes(self, public: Any) -> bytes:
        return self._frame("public key", saved(public))

    def load_ciphertext(self, data: bytes, *, level: int = 0) -> Any:
        """A ciphertext of two polynomials, `level` primes below a fresh one; else CryptoError."""
        payload = self._unframe("ciphertext", data, 2 * len(self.primes))
        ciphertext = self._checked(self.new_ciphertext(), payload, "ciphertext")
        if level >= len(self._level_ids) or ciphertext.parms_id() != self._level_ids[level]:
            raise CryptoError(f"the ciphertext is not at level {level} of its modulus chain")
        if ciphertext.size() != 2 or ciphertext.is_ntt_form() or ciphertext.is_transparent():
            raise CryptoError("the ciphertext is not an encryption of two polynomials")
        return ciphertext

    def load_public_key(self, data: bytes) -> Any:
        payload = self._unframe("public key", data, 2 * (len(self.primes) + 1))
        key = self._checked(self._api.PublicKey(), payload, "public key")
        if key.parms_id() != self.raw.key_parms_id():
            raise CryptoError("the public key is not at the level of keys")
        return key

    def _frame(self, sort: str, payload: bytes) -> bytes:
        """A saved object with what it is in front."""
        mark, code = self.parameters.fingerprint, _SORTS[sort]
        digest = _digest(code, mark, payload)
        return _FRAME.pack(FRAME_MAGIC, FRAME_VERSION, code, mark, digest) + payload

    def _unframe(self, sort: str, data: bytes, polynomials: int) -> bytes:
        return _unframed(sort, self.parameters.fingerprint, data, 8 * self.degree * polynomials)

    def _checked(self, target: Any, payload: bytes, sort: str) -> Any:
        self._load(target, payload, sort)
        if not self._api.is_valid_for(target, self.raw):
            raise CryptoError(f"the {sort} is not valid under these parameters")
        return target

    def _load(self, target: Any, payload: bytes, sort: str = "object") -> Any:
        try:
            return loaded(self.raw, target, payload)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise CryptoError(f"SEAL does not accept the {sort}: {error}") from error


# ---------------------------------------------------------------------------------- bytes


def _unframed(sort: str, fingerprint: bytes, data: bytes, raw_size: int) -> bytes:
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


def saved(thing: Any) -> bytes:
    """What SEAL writes of an object."""
    with open(os.memfd_create("fedmend", os.MFD_CLOEXEC), "rb") as room:
        thing.save(f"/proc/self/fd/{room.fileno()}")
        return room.read()


def loaded(context: Any, target: Any, payload: bytes) -> Any:
    """`target`, filled with what SEAL reads; raises as SEAL does."""
    with open(os.memfd_create("fedmend", os.MFD_CLOEXEC), "wb", buffering=0) as room:
        view = memoryview(payload)
        while view:
            view = view[room.write(view) :]
        target.load(context, f"/proc/self/fd/{room.fileno()}")
    return target


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


# ---------------------------------------------------------------------------------- numbers


def uniform_below_power(bits: int, count: int) -> np.ndarray:
    """`count` independent uniform integers in [0, 2^bits), from a CSPRNG (uint64)."""
    if bits == 0:
        return np.zeros(count, dtype=np.uint64)
    return uniform(count) >> np.uint64(64 - bits)


def _uniform_signed(bits: int, count: int, primes: Sequence[int]) -> np.ndarray:
    """The same `count` uniform integers of [-2^bits, 2^bits) modulo each prime: [primes, count]."""
    low = uniform_below_power(min(64, bits + 1), count)
    # Bits beyond 64 come in digits so short that digit times residue stays in a word. A power of
    # two just above the primes has a short residue, so that the first of them is long.
    digits, at = [], 64
    while at <= bits:
        longest = 63 - max(pow(2, at, prime) for prime in primes).bit_length()
        digits.append((at, uniform_below_power(min(longest, bits + 1 - at), count)))
        at += longest
    result = np.empty((len(primes), count), dtype=np.uint64)
    for row, prime in zip(result, primes, strict=True):
        modulus = np.uint64(prime)
        np.remainder(low, modulus, out=row)
        row += np.uint64(prime - pow(2, bits, prime))
        for at, values in digits:
            row += values * np.uint64(pow(2, at, prime))
            row %= modulus
        if not digits:
            row %= modulus
    return result
