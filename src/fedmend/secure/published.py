"""The published protocol of FedPSG-PUM (process I), kept as the reference at small n.

    C   makes a Paillier key pair
    A   encrypts every value of its columns, one ciphertext a cell
    B   subtracts its own values under encryption: one ciphertext per row and pair of columns
    C   decrypts every difference and sums their squares

Its slips, which the default protocol does not have: C sees every single difference (for ranks,
nearly the ranks themselves), and 1 - 6 sum(d^2) / (n (n^2 - 1)) is biased under ties. The inner
products returned here come from (sum a^2 + sum b^2 - sum d^2) / 2 and are exact.

Arithmetic by `lightphe` (extra ``paillier``); it draws keys and blinding from Python's `random`,
which is no CSPRNG, so both are drawn here, from `cryptography` and `secrets`.
"""

from __future__ import annotations

import math
import secrets
import time
import warnings
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, CryptoError, FedmendWarning, MissingExtra
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.columns import Products, ProductWorker, Wanted

LEAST_KEY_BITS = 1024
LONG_SECONDS = 60.0


class Paillier:
    """lightphe's Paillier with keys and blinding from a CSPRNG, on signed integers and bytes."""

    def __init__(self, modulus: int, phi: int | None = None) -> None:
        try:
            from lightphe.cryptosystems.Paillier import Paillier as Arithmetic
        except ImportError as error:
            raise MissingExtra("lightphe", "paillier", "mode='published'") from error
        if modulus.bit_length() < LEAST_KEY_BITS:
            raise CryptoError(
                f"a Paillier key has at least {LEAST_KEY_BITS} bits, this has "
                f"{modulus.bit_length()}"
            )
        private = {"phi": phi} if phi is not None else {}
        self.modulus = modulus
        self.width = (2 * modulus.bit_length() + 7) // 8
        self._has_private = phi is not None
        self._arithmetic = Arithmetic(
            keys={"public_key": {"n": modulus, "g": modulus + 1}, "private_key": private}
        )

    @classmethod
    def generate(cls, bits: int = 2048) -> Paillier:
        from cryptography.hazmat.primitives.asymmetric import rsa

        if bits < LEAST_KEY_BITS or bits % 256:
            raise ConfigError(
                f"key_bits must be a multiple of 256 from {LEAST_KEY_BITS} on, got {bits}"
            )
        primes = rsa.generate_private_key(65537, bits).private_numbers()
        return cls(primes.p * primes.q, (primes.p - 1) * (primes.q - 1))

    def encrypt(self, value: int) -> int:
        blind = 0
        while math.gcd(blind, self.modulus) != 1:
            blind = secrets.randbelow(self.modulus)
        return int(self._arithmetic.encrypt(value % self.modulus, blind))

    def add(self, one: int, other: int) -> int:
        return int(self._arithmetic.add(one, other))

    def decrypt(self, ciphertext: int) -> int:
        if not self._has_private:
            raise CryptoError("only the key holder can decrypt")
        value = int(self._arithmetic.decrypt(ciphertext))
        return value - self.modulus if value > self.modulus // 2 else value

    def to_bytes(self, ciphertexts: list[int]) -> bytes:
        return b"".join(value.to_bytes(self.width, "little") for value in ciphertexts)

    def from_bytes(self, data: Any, count: int) -> list[int]:
        """`count` ciphertexts; CryptoError if the bytes are not that."""
        if not isinstance(data, bytes) or len(data) != count * self.width:
            raise CryptoError(f"not {count} Paillier ciphertexts under this key: wrong length")
        square = self.modulus * self.modulus
        values = [
            int.from_bytes(data[at : at + self.width], "little")
            for at in range(0, len(data), self.width)
        ]
        if any(not 0 < value < square or math.gcd(value, self.modulus) != 1 for value in values):
            raise CryptoError("a Paillier ciphertext is out of range for this key")
        return values


class PublishedWorker(ProductWorker):
    """Either side of the published protocol."""

    @exposed(kind="ciphertext")
    def encrypt_column(self, modulus: int, to: str, at: int) -> Sealed:
        """A: one ciphertext for every row. In an encrypted message: the coordinator has the key."""
        key = Paillier(modulus)
        cells = [key.encrypt(int(value)) for value in self.columns.values[at]]
        return self.seal(key.to_bytes(cells), to=to, kind="ciphertext")

    @exposed(kind="ciphertext", opens="row", takes={"sealed": "ciphertext"})
    def differences(self, modulus: int, sealed: Sealed, sender: str) -> list[bytes]:
        """B: the encrypted differences of A's column with each of its own, row by row."""
        key = Paillier(modulus)
        data = self.open(sealed, sender=sender, kind="ciphertext")
        cells = key.from_bytes(data, self.columns.rows)
        return [
            key.to_bytes(
                [
                    key.add(cell, key.encrypt(-int(value)))
                    for cell, value in zip(cells, column, strict=True)
                ]
            )
            for column in self.columns.values
        ]

    @exposed(kind="statistic")
    def square_sums(self) -> list[int]:
        return [sum(int(value) ** 2 for value in column) for column in self.columns.values]


class PublishedProducts(Products):
    """The coordinator as key holder."""

    worker = PublishedWorker
    warning = (
        "mode='published' shows the coordinator the difference of every row: for reference only, "
        "and for parties whose policy allows the kind 'row'. Mend: mode='bfv' (FedPSG-PUM: "
        'correlation_mode = "bfv"), which gives the same value'
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.key = Paillier.generate(self.key_bits)

    def products(self, wanted: Wanted) -> np.ndarray:
        own, others = self.a.square_sums(), self.b.square_sums()
        rows = wanted.fixed["rows"]
        self._tell_cost(rows, len(own), len(others))
        values = np.empty((len(own), len(others)), dtype=np.int64)
        for i in range(len(own)):
            sealed = self.a.encrypt_column(self.key.modulus, self.changing, i)
            columns = self.b.differences(self.key.modulus, sealed, self.fixed)
            for j, data in enumerate(columns):
                cells = self.key.from_bytes(data, rows)
                squared_differences = sum(self.key.decrypt(cell) ** 2 for cell in cells)
                values[i, j] = (own[i] + others[j] - squared_differences) // 2
                self.progress("differences under Paillier", i * len(others) + j + 1, values.size)
        return values

    def _tell_cost(self, rows: int, own: int, others: int) -> None:
        """What is about to begin may take days, and better says so before."""
        began = time.perf_counter()
        cell = self.key.encrypt(1)
        encrypting = time.perf_counter() - began
        self.key.decrypt(cell)
        decrypting = time.perf_counter() - began - encrypting
        pairs = rows * own * others
        seconds = (rows * own + pairs) * encrypting + pairs * decrypting
        if seconds > LONG_SECONDS:
            warnings.warn(
                f"the published protocol encrypts {rows:,} rows for each of {own} × {others} pairs "
                f"of columns, one ciphertext of {self.key_bits} bits a cell: about "
                f"{seconds / 60:,.0f} minutes here. Mend: correlation_mode='bfv' gives the same "
                f"value in seconds; key_bits={LEAST_KEY_BITS} is quicker",
                FedmendWarning,
                stacklevel=2,
            )
