"""Sums under BFV: parties encrypt, the coordinator adds and blinds, the key holder decrypts.

Only additions happen, so values sit in the coefficients of a polynomial, several to a coefficient:
as digits to a base that the sum of all parties cannot reach, so that nothing carries over. N = 4096
with q of 93 bits and t = 2^50 holds 21 digits of K = 4 one-hot votes (batching with t = 1032193
holds 6 in a ciphertext of four fifths the size). Values too wide for one coefficient are cut into
limbs.

A ciphertext's noise has a trace of its plaintext: encryption rounds q m / t, by up to a half. What
each party encrypts is therefore already blinded, by a uniform mask whose seed it gives to the
coordinator and not to the key holder (who, with one partner, knows their pairwise masks):
plaintext, rounding and noise say nothing at all about the values, in however many sums. Before
anything is decrypted the coordinator adds a *fresh* encryption of a mask of its own, and floods the
noise with 2^40, so that a seed that the key holder got hold of would not be enough: then (K + 1)/2
of rounding are buried under it, to 2^-37 for each coefficient.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedmend.errors import CryptoError
from fedmend.secure.keys import KEY_BYTES, add_streams, mask_stream
from fedmend.secure.seal import BFVParameters, SealContext

PLAIN_BITS = 50
FLOOD_BITS = 40
_MODULUS_MASK = np.uint64((1 << PLAIN_BITS) - 1)
PARAMETERS = BFVParameters(4096, (47, 46, 16), 1 << PLAIN_BITS)


@lru_cache(maxsize=1)
def context() -> SealContext:
    """The parameters of all sums, set up once per process."""
    return SealContext(PARAMETERS)


@dataclass(frozen=True)
class Packing:
    """How shifted values in [0, span] are laid into coefficients so that sums do not carry.

    digits: values in one coefficient (1 if a value needs several).
    limbs: coefficients for one value (1 if it shares one); each carries `limb_bits` of it.

    >>> Packing.of(1, 4).digits, Packing.of(2**62, 2).limbs
    (21, 2)
    """

    base: int
    digits: int
    limbs: int
    limb_bits: int

    @classmethod
    def of(cls, span: int, parties: int) -> Packing:
        base, modulus = parties * span + 1, 1 << PLAIN_BITS
        if base <= modulus:
            digits = 1
            while base > 1 and base ** (digits + 1) <= modulus:
                digits += 1
            return cls(base, digits, 1, PLAIN_BITS)
        limb_bits = ((modulus - 1) // parties + 1).bit_length() - 1
        return cls(modulus, 1, -(-span.bit_length() // limb_bits), limb_bits)

    def ciphertexts(self, size: int) -> int:
        return -(-self._coefficients(size) // PARAMETERS.degree)

    def pack(self, shifted: np.ndarray) -> np.ndarray:
        """Rows of N coefficients (uint64), the last one filled up with zeros."""
        size, count = shifted.size, self._coefficients(shifted.size)
        room = np.zeros(self.ciphertexts(size) * PARAMETERS.degree, np.uint64)
        if self.limbs > 1:
            mask = np.uint64((1 << self.limb_bits) - 1)
            for limb in range(self.limbs):
                part = room[limb * size : (limb + 1) * size]
                np.right_shift(shifted, np.uint64(limb * self.limb_bits), out=part)
                np.bitwise_and(part, mask, out=part)
        else:
            # Digit d of coefficient c is value d · count + c: every step is one long row.
            packed, base = room[:count], np.uint64(self.base)
            for digit in reversed(range(self.digits)):
                row = shifted[digit * count : (digit + 1) * count]
                np.multiply(packed, base, out=packed)
                packed[: row.size] += row
        return room.reshape(-1, PARAMETERS.degree)

    def unpack(self, coefficients: np.ndarray, size: int) -> np.ndarray:
        """The sums of shifted values (uint64), modulo 2^64."""
        flat, count = coefficients.reshape(-1), self._coefficients(size)
        total = np.zeros(size, np.uint64)
        if self.limbs > 1:
            for limb in range(self.limbs):
                part = flat[limb * size : (limb + 1) * size]
                total += part << np.uint64(limb * self.limb_bits)
            return total
        rest, base = flat[:count].copy(), np.uint64(self.base)
        for digit in range(self.digits):
            row = total[digit * count : (digit + 1) * count]
            row[:] = (rest % base)[: row.size]
            rest //= base
        if rest.any():
            raise CryptoError("the decrypted sums are out of range: a ciphertext was altered")
        return total

    def _coefficients(self, size: int) -> int:
        return size * self.limbs if self.limbs > 1 else -(-size // self.digits)


# ---------------------------------------------------------------------------------- the roles


def encrypt_all(
    public: Any,
    packing: Packing,
    shifted: np.ndarray,
    masks: tuple[Any, ...] = ((), ()),
) -> list[bytes]:
    """At a party: its packed values, blinded, under the public key; last, the blinds' seed.

    masks: what `add_streams` adds and takes away, modulo t; those of all parties cancel.
    """
    scheme, rows = context(), packing.pack(shifted)
    seed = os.urandom(KEY_BYTES)
    rows += _blinds(seed, len(rows))
    flat = rows.reshape(-1)
    add_streams(flat, *masks)
    flat &= _MODULUS_MASK
    return [*(scheme.ciphertext_bytes(scheme.encrypt(public, row)) for row in rows), seed]


def add_blinded(
    public: Any, received: dict[str, Sequence[bytes]], count: int
) -> tuple[list[bytes], np.ndarray]:
    """At the coordinator: the sums as fresh-looking ciphertexts, and all that blinds them."""
    for party, ciphertexts in received.items():
        if not isinstance(ciphertexts, list) or len(ciphertexts) != count + 1:
            listed = isinstance(ciphertexts, list)
            seen = len(ciphertexts) if listed else f"a {type(ciphertexts).__name__}"
            raise CryptoError(
                f"party {party!r} sent {seen} where {count} ciphertexts and a seed were due. "
                "Mend: start the sum anew"
            )
        if not isinstance(ciphertexts[-1], bytes) or len(ciphertexts[-1]) != KEY_BYTES:
            raise CryptoError(f"party {party!r}: the seed of its blinds is not {KEY_BYTES} bytes")
    scheme = context()
    masks = _blinds(os.urandom(KEY_BYTES), count)
    blinded = []
    for number, mask in enumerate(masks):
        total = scheme.encrypt(public, mask)
        for party, ciphertexts in received.items():
            scheme.evaluator.add_inplace(total, _loaded(party, ciphertexts[number]))
        scheme.flood(total, FLOOD_BITS)
        blinded.append(scheme.ciphertext_bytes(total))
    for ciphertexts in received.values():
        masks += _blinds(ciphertexts[-1], count)
    return blinded, masks & _MODULUS_MASK


def _blinds(seed: bytes, count: int) -> np.ndarray:
    """Uniform residues modulo t for so many polynomials."""
    return mask_stream(seed, (count, PARAMETERS.degree)) >> np.uint64(64 - PLAIN_BITS)


def decrypt_all(secret: Any, ciphertexts: Iterable[bytes]) -> np.ndarray:
    """At the key holder: residues modulo t, uniform because they are blinded."""
    scheme = context()
    rows = [scheme.decrypt(secret, _loaded("coordinator", data)) for data in ciphertexts]
    return np.stack(rows) if rows else np.zeros((0, PARAMETERS.degree), np.uint64)


def unblind(residues: Any, masks: np.ndarray, holder: str) -> np.ndarray:
    """At the coordinator: the packed sums, the masks taken away."""
    modulus = 1 << PLAIN_BITS
    well_formed = (
        isinstance(residues, np.ndarray)
        and residues.dtype == np.uint64
        and residues.shape == masks.shape
        and (not residues.size or int(residues.max()) < modulus)
    )
    if not well_formed:
        raise CryptoError(
            f"party {holder!r}, which holds the key, did not return {len(masks)} rows of residues "
            "below the plaintext modulus. Mend: start the sum anew"
        )
    return (residues - masks) & _MODULUS_MASK


def _loaded(party: str, data: bytes) -> Any:
    try:
        return context().load_ciphertext(data)
    except CryptoError as error:
        raise CryptoError(f"from {party!r}: {error}") from error
