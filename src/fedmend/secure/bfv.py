"""Products by homomorphic encryption: A's columns encrypted once, B multiplies, A gets shares.

BFV with coefficient packing. N = 8192; A's column c of a group has row i at X^(cL+i), L = N // g
for g columns a group; B's row i is at X^(L-1-i); the product has the inner product of the block at
X^(cL+L-1). Blocks of L rows add up under encryption. No relinearisation, no rotation keys.

A holds the key. What A gets back must tell it nothing but a uniform share, so B always

1. adds a *fresh public-key encryption* of a mask that is uniform on all N coefficients (without it
   the second polynomial of the ciphertext is A's own times B's values, for A to divide out);
2. adds *flooding noise*, as much as the primes hold, to bury the product's own noise, which is B's
   values times A's known errors. B adds up what its answers may have told over the whole run, and
   refuses the one that would bring the sum above 2^-40;
3. switches one prime down, so that the ciphertext is short.

All three are one function, `_hidden`, with no way around it. A decrypts its share, B's share is
the mask, the coordinator (or one of the parties) adds them. The ciphertexts travel in sealed
messages: BFV does not need it against a coordinator without the key, but it makes tampering show.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedmend.errors import CryptoError, DataError
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.columns import Products, ProductWorker, Wanted
from fedmend.secure.seal import BFVParameters, Keys, SealContext, uniform_below_power

DEGREE = 8192
PART = 64  # ciphertexts in one message
_ERROR_NORM = 31.0  # |sum e_i b_i| <= 31 |b| but for 2^-64, errors of deviation 3.2
_FRESH_NOISE = 1 << 12  # of the public-key encryption of the mask

# Uniform noise of ±2^f over noise below 2^n differs from uniform noise alone by 2^(n-f-1) in
# statistical distance: that much at most, for each of N coefficients of each answer, is what the
# key holder may gain over a guess. Distances add up, over sessions and keys as well.
RUN_BITS = 40
PLANNED_ANSWERS = 1 << 20
ANSWER_BITS = RUN_BITS + 20  # of one ciphertext, with room for 2^20 of them
_ACCOUNT = "distance of flooded products"


@dataclass(frozen=True)
class Profile:
    """The primes, and the flooding that fits under them beside a plaintext modulus."""

    name: str
    prime_bits: tuple[int, ...]

    def flood_bits(self, plain_bits: int) -> int:
        """All that decryption can bear: q / 2t, with four bits to spare."""
        return sum(self.prime_bits[:-1]) - 1 - plain_bits - 4

    def answer_bits(self, plain_bits: int, changing: dict[str, Any]) -> float:
        """-log2 of what one answer may tell the key holder: all its coefficients together."""
        return self.flood_bits(plain_bits) + 1 - noise_bits(changing) - math.log2(DEGREE)

    def suits(self, plain_bits: int, changing: dict[str, Any], answers: int) -> bool:
        """Whether a run has room for 2^20 answers; the widest primes: for those at hand."""
        wanted = ANSWER_BITS if self is not _WIDEST else RUN_BITS + math.log2(max(1, answers))
        return self.answer_bits(plain_bits, changing) >= min(wanted, ANSWER_BITS)


_WIDEST = Profile("widest", (58, 58, 58, 44))
# At most 218 bits in all: 128-bit security at N = 8192.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("narrow", (45, 45, 45, 45)),
        Profile("wide", (54, 54, 54, 54)),
        _WIDEST,
    )
}
LEAST_PLAIN_BITS = 16
MOST_PLAIN_BITS = 59


def choose_profile(
    largest: int, changing: dict[str, Any], answers: int = PLANNED_ANSWERS
) -> tuple[Profile, int]:
    """The profile and bits of the plaintext modulus for products up to `largest`.

    answers: how many ciphertexts are to be answered under it, at least.
    """
    bits = max(LEAST_PLAIN_BITS, largest.bit_length() + 1)
    for profile in PROFILES.values():
        if bits <= MOST_PLAIN_BITS and profile.suits(bits, changing, answers):
            return profile, bits
    raise DataError(
        f"products up to 2^{largest.bit_length()} (noise 2^{noise_bits(changing):.0f}) in "
        f"{answers:,} ciphertexts are too large for mode 'bfv', which goes to "
        f"2^{MOST_PLAIN_BITS - 1} and hides a run's noise by {RUN_BITS} bits",
        mend="use mode='dealer' (to 2^63), fewer rows, or fewer bits per value",
    )


def noise_bits(changing: dict[str, Any]) -> float:
    """log2 of the product's own noise: encryption errors and rounding, times the other factor."""
    euclidean = math.sqrt(changing["square_sum"])
    absolute = min(changing["abs_sum"], euclidean * math.sqrt(changing["rows"]))
    return math.log2(_ERROR_NORM * euclidean + absolute / 2 + _FRESH_NOISE)


@dataclass(frozen=True)
class Packing:
    """How columns and rows share polynomials: `group` columns of `length` rows in each."""

    rows: int
    columns: int
    group: int

    @property
    def length(self) -> int:
        return DEGREE // self.group

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.length)

    @property
    def groups(self) -> int:
        return -(-self.columns // self.group)

    @property
    def count(self) -> int:
        return self.groups * self.blocks

    @property
    def answers(self) -> np.ndarray:
        """Positions of the inner products in a product polynomial."""
        return np.arange(self.group) * self.length + self.length - 1

    @classmethod
    def best(cls, rows: int, columns: int, other_columns: int) -> Packing:
        """The cheapest grouping: few plaintexts to transform against few answers to return."""

        def cost(group: int) -> float:
            packing = cls(rows, columns, group)
            transforms, answers = 1.7 * packing.blocks, 10.0 * packing.groups
            return (transforms + answers + 0.35 * packing.count) * other_columns + 6 * packing.count

        return cls(rows, columns, min(range(1, min(columns, DEGREE) + 1), key=cost))

    def fixed_polynomial(self, values: np.ndarray, index: int) -> np.ndarray:
        """Polynomial `index` (group by group, block by block) of the fixed columns [p, n]."""
        group, block = divmod(index, self.blocks)
        part = values[
            group * self.group : (group + 1) * self.group,
            block * self.length : (block + 1) * self.length,
        ]
        room = np.zeros((self.group, self.length), dtype=np.int64)
        room[: part.shape[0], : part.shape[1]] = part
        return room.reshape(-1)

    def changing_polynomial(self, column: np.ndarray, block: int) -> np.ndarray:
        """The block of a changing column, reversed."""
        part = column[block * self.length : (block + 1) * self.length]
        room = np.zeros(self.length, dtype=np.int64)
        room[self.length - len(part) :] = part[::-1]
        return room


# ---------------------------------------------------------------------------------- the parties


class BfvWorker(ProductWorker):
    """Either side of the protocol."""

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._context: SealContext | None = None
        self._profile, self._plain_bits = PROFILES["narrow"], LEAST_PLAIN_BITS
        self._packing: Packing | None = None
        self._keys: Keys | None = None  # fixed side
        self._public: Any = None  # changing side
        self._fixed: list[Any] = []  # changing side: the other's ciphertexts, in NTT form
        self._pieces: list[np.ndarray] = []

    @exposed(kind="control")
    def agree(self, profile: str, plain_bits: int, packing: dict[str, int]) -> None:
        """Both sides: the same parameters and packing; whatever was kept before is dropped."""
        if profile not in PROFILES:
            raise CryptoError(f"there is no profile {profile!r}. Mend: the same fedmend version")
        self._profile = PROFILES[profile]
        if not LEAST_PLAIN_BITS <= plain_bits <= MOST_PLAIN_BITS:
            raise CryptoError(f"there is no plaintext modulus 2^{plain_bits} in mode 'bfv'")
        self._plain_bits = plain_bits
        self._packing = Packing(**packing)
        self._context = SealContext(
            BFVParameters(DEGREE, self._profile.prime_bits, 1 << plain_bits)
        )
        self._keys, self._public, self._fixed, self._pieces = None, None, [], []

    # ------------------------------------------------------------------ fixed side

    @exposed(kind="control")
    def public_parameters(self, to: str) -> Sealed:
        """Fixed side: a fresh key pair; the public half, in an encrypted message."""
        self._keys = self._at_work()[0].generate_keys()
        data = self._context.public_key_bytes(self._keys.public)  # type: ignore[union-attr]
        return self.seal(data, to=to, kind="control")

    @exposed(kind="ciphertext")
    def encrypt_part(self, to: str, start: int, stop: int) -> Sealed:
        """Fixed side: polynomials start..stop of its columns, encrypted, in a message."""
        context, packing = self._at_work()
        secret = self._secret_key()
        values = self.columns.values
        part = [
            context.encrypt_to_bytes(secret, packing.fixed_polynomial(values, index))
            for index in range(start, stop)
        ]
        return self.seal(part, to=to, kind="ciphertext")

    @exposed(kind="control", takes={"sealed": "ciphertext"})
    def decrypt_part(self, sealed: Sealed, sender: str) -> None:
        """Fixed side: its share of the products with some of the other's columns."""
        context, packing = self._at_work()
        groups: list[bytes] = self.open(sealed, sender=sender, kind="ciphertext")
        secret, keys = self._secret_key(), self._keys
        self._keys = None  # a key that failed is not tried again
        with self.unreadable(sender):
            if not isinstance(groups, list) or len(groups) % packing.groups:
                raise CryptoError("it holds no whole number of products")
            shares = [
                context.decrypt(secret, context.load_ciphertext(data, level=1), packing.answers)
                for data in groups
            ]
        self._keys = keys
        self._gather(shares)

    # ------------------------------------------------------------------ changing side

    @exposed(kind="control")
    def take_key(self, sealed: Sealed, sender: str) -> None:
        self._public = self._at_work()[0].load_public_key(
            self.open(sealed, sender=sender, kind="control")
        )

    @exposed(kind="control", takes={"sealed": "ciphertext"})
    def take_part(self, sealed: Sealed, sender: str) -> None:
        """Changing side: some of the fixed side's ciphertexts, kept for every product to come."""
        context, _ = self._at_work()
        for data in self.open(sealed, sender=sender, kind="ciphertext"):
            ciphertext = context.load_ciphertext(data)
            context.evaluator.transform_to_ntt_inplace(ciphertext)
            self._fixed.append(ciphertext)

    @exposed(kind="ciphertext")
    def multiply_part(self, to: str, start: int, stop: int) -> Sealed:
        """Changing side: products with columns start..stop, hidden, for the key holder."""
        _, packing = self._at_work()
        if self._public is None or len(self._fixed) != packing.count:
            raise CryptoError(
                f"party {self.site.name!r} has {len(self._fixed)} of {packing.count} ciphertexts. "
                "Mend: ask for the product from its start"
            )
        columns = self.columns.values[start:stop]
        self._spend(len(columns) * packing.groups)
        answers, masks = [], []
        for column in columns:
            for product in self._products(column):
                data, mask = self._hidden(product)
                answers.append(data)
                masks.append(mask)
        modulus = np.uint64((1 << self._plain_bits) - 1)
        self._gather([(np.uint64(0) - mask) & modulus for mask in masks])
        return self.seal(answers, to=to, kind="ciphertext")

    def _spend(self, answers: int) -> None:
        """Book what the answers may tell the key holder; refuse what the run has no room for."""
        bits = self._profile.answer_bits(self._plain_bits, self.columns.facts())
        spent = self.site.vault.get(_ACCOUNT, 0.0) + answers * 2.0**-bits
        if spent > 2.0**-RUN_BITS:
            raise CryptoError(
                f"party {self.site.name!r}: {answers:,} more answers of 2^-{bits:.0f} each would "
                f"tell the key holder more than 2^-{RUN_BITS} in this run: the flooding does not "
                "hide so many products of this size. Mend: fewer products, smaller bounds or "
                "mode='dealer'; a new run has an account of its own"
            )
        self.site.vault[_ACCOUNT] = spent

    def _products(self, column: np.ndarray) -> list[Any]:
        """Per group the encrypted products with one column; None where the column is all zero."""
        context, packing = self._at_work()
        sums: list[Any] = [None] * packing.groups
        room = context.new_ciphertext()
        for block in range(packing.blocks):
            polynomial = packing.changing_polynomial(column, block)
            if not polynomial.any():  # SEAL refuses to multiply by zero
                continue
            plaintext = context.to_ntt(context.plaintext(polynomial))
            for group in range(packing.groups):
                fixed = self._fixed[group * packing.blocks + block]
                if sums[group] is None:
                    sums[group] = context.new_ciphertext()
                    context.evaluator.multiply_plain(fixed, plaintext, sums[group])
                else:
                    context.evaluator.multiply_plain(fixed, plaintext, room)
                    context.evaluator.add_inplace(sums[group], room)
        return sums

    def _hidden(self, product: Any) -> tuple[bytes, np.ndarray]:
        """The only way out for a product: masked afresh, flooded, one prime shorter."""
        context, packing = self._at_work()
        mask = uniform_below_power(self._plain_bits, DEGREE)
        hidden = context.encrypt(self._public, mask)
        if product is not None:
            context.evaluator.transform_from_ntt_inplace(product)
            context.evaluator.add_inplace(hidden, product)
        context.flood(hidden, self._profile.flood_bits(self._plain_bits))
        context.switch_down(hidden)
        return context.ciphertext_bytes(hidden), mask[packing.answers]

    # ------------------------------------------------------------------ both

    def _gather(self, groups: list[np.ndarray]) -> None:
        """Collect shares, a column of answers at a time; whole once all columns are there."""
        _, packing = self._at_work()
        for at in range(0, len(groups), packing.groups):
            column = np.concatenate(groups[at : at + packing.groups])
            self._pieces.append(column[: packing.columns])

    @exposed(kind="control")
    def finish(self, columns: int) -> None:
        """All columns are through: the pieces become this party's share."""
        pieces, self._pieces = self._pieces, []
        if len(pieces) != columns:
            raise CryptoError(
                f"party {self.site.name!r} has shares of {len(pieces)} columns, not {columns}"
            )
        self.keep_share(np.stack(pieces, axis=1))

    def _at_work(self) -> tuple[SealContext, Packing]:
        if self._context is None or self._packing is None:
            raise CryptoError(
                f"party {self.site.name!r} has agreed on no parameters. Mend: call agree first"
            )
        return self._context, self._packing

    def _secret_key(self) -> Any:
        if self._keys is None:
            raise CryptoError(
                f"party {self.site.name!r} holds no key. Mend: call public_parameters first"
            )
        return self._keys.secret


# ---------------------------------------------------------------------------------- coordinator


class BfvProducts(Products):
    """The coordinator's half: passes messages on, and adds shares if it is the one to learn."""

    worker = BfvWorker
    limit_bits = MOST_PLAIN_BITS - 1

    packing: Packing | None = None
    _profile: Profile | None = None
    _bits = 0

    def products(self, wanted: Wanted) -> np.ndarray | None:
        a, b = self.a, self.b
        packing = self._prepare(wanted.fixed, wanted.changing, wanted.largest)
        count = len(wanted.changing["names"])
        step = max(1, PART // packing.groups)
        for start in range(0, count, step):
            stop = min(count, start + step)
            a.decrypt_part(b.multiply_part(self.fixed, start, stop), self.changing)
            self.progress("multiplying under encryption", stop, count)
        self.workers.finish(count)
        return self.opened(wanted, self._bits)

    def _prepare(self, fixed: dict[str, Any], changing: dict[str, Any], largest: int) -> Packing:
        """Keys and the encrypted fixed side: once, or again when the numbers have outgrown them."""
        rows, names = fixed["rows"], changing["names"]
        held = self.packing
        packing = held or Packing.best(rows, len(fixed["names"]), len(names))
        answers = packing.groups * len(names)
        profile, bits = choose_profile(largest, changing, answers)
        kept = self._profile
        if held and kept and bits <= self._bits and kept.suits(self._bits, changing, answers):
            return held
        packing = Packing.best(rows, len(fixed["names"]), len(names))
        self.packing, self._profile, self._bits = packing, profile, bits
        a, b = self.a, self.b
        self.workers.agree(profile.name, bits, asdict(packing))
        b.take_key(a.public_parameters(self.changing), self.fixed)
        for start in range(0, packing.count, PART):
            stop = min(packing.count, start + PART)
            b.take_part(a.encrypt_part(self.changing, start, stop), self.fixed)
            self.progress("encrypting", stop, packing.count)
        return packing
