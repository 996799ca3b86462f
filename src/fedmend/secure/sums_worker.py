"""The party's half of a secure sum: it takes an array held at the site and lets it out hidden.

A method that wants sums of its own arrays either offers them by name at the site, for a
`SumWorker` beside its own worker:

    offer_summand(self.site, "votes", one_hot, kind="label")

or makes its worker a `SumWorker` and overrides :meth:`SumWorker.summand`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedmend.errors import ConfigError, CryptoError, DataError, Refused
from fedmend.federation.kinds import REFUSED_BY_DEFAULT
from fedmend.federation.ledger import COORDINATOR
from fedmend.federation.rows import Asked
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Exposure, exposed
from fedmend.secure.bounds import admit_bound
from fedmend.secure.channel import SealingWorker
from fedmend.secure.keys import KEY_BYTES
from fedmend.secure.sums_masks import add_streams, ring_of
from fedmend.secure.sums_numbers import SumForm

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["LEAST_PARTIES", "ColumnSumWorker", "SumWorker", "Summand", "offer_summand"]

LEAST_PARTIES = 2
_SHELF = "secure.sums"


def offer_summand(
    site: Site, name: str, values: np.ndarray, *, kind: str = "row", opens: str = ""
) -> None:
    """Hold an array at the site for a sum by this name; a later one takes its place.

    kind: what it would be in the clear, `row` or `label`; asked for by ``mode="none"`` alone.
    opens: the kind of what becomes readable, the sum over the parties: a `statistic` or `weights`
    over many rows, `votes` over a row; by default, and as the policy sees it, the kind itself.
    """
    if kind not in REFUSED_BY_DEFAULT:
        raise ConfigError(f"offer_summand({name!r}): kind must be 'row' or 'label', got {kind!r}")
    site.state.setdefault(_SHELF, {})[name] = Summand(values, kind, opens or kind)


class Summand(NamedTuple):
    """An array to be summed, what it is in the clear, and what the sum over the parties is."""

    values: np.ndarray
    kind: str
    opens: str


@dataclass(repr=False)
class _Round:
    """One sum under way at this party: agreed settings, and the array until it has left."""

    number: int
    name: str
    form: SumForm
    parties: tuple[str, ...]
    # round(value · 2^f) − low, flat, in the ring of the sum
    shifted: np.ndarray | None
    kind: str
    opens: str
    own_seed: bytes | None = None

    @property
    def about(self) -> str:
        """All that the parties must have been told alike: part of what a mask is derived from."""
        settings = self.form.to_wire().values()
        return "|".join(map(str, (self.number, *settings, *self.parties, self.name)))


class SumWorker(SealingWorker):
    """Hides an array by masks or encryption so that only the sum over parties comes to light.

    A round has a number that only grows: nothing is masked twice under one number, and an array
    that was let out is not let out again.
    """

    conversation = "secure sums"

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._last_round = 0
        self._last_decrypted = 0
        self._round: _Round | None = None
        self._sum_key: Any = None
        self._sum_keys: Any = None

    def opens(self, exposure: Exposure) -> str:
        """A hidden array becomes readable as part of its sum."""
        if exposure.kind in ("masked", "ciphertext") and self._round is not None:
            return self._round.opens
        return super().opens(exposure)

    def summand(self, name: str) -> Summand:
        """The array to be summed. The hook."""
        shelf = self.site.state.get(_SHELF, {})
        if name not in shelf:
            held = ", ".join(map(repr, sorted(shelf))) or "none"
            raise DataError(
                f"nothing is offered for the sum {name!r}; there is {held}",
                party=self.site.name,
                mend="call offer_summand(site, name, array) at the party first",
            )
        return shelf[name]

    def own_columns(self) -> list[str]:
        """The columns of the table that are summed as they are; none by default. A hook."""
        return []

    # ------------------------------------------------------------------ every mode

    @exposed(kind="count")
    def prepare_round(
        self, number: int, name: str, form: dict[str, Any], parties: list[str]
    ) -> dict[str, Any]:
        """Begin a round: agree to its settings, check the array. Tells its shape and kind."""
        me = self.site.name
        if not isinstance(number, int) or number <= self._last_round:
            raise CryptoError(
                f"party {me!r}: round {number} is not after round {self._last_round}: it was "
                "replayed, and its masks must not be used twice. Mend: take the next number"
            )
        if len(set(parties)) != len(parties) or me not in parties or len(parties) < LEAST_PARTIES:
            raise CryptoError(
                f"party {me!r} takes no part in a sum over {parties}: it needs itself and at "
                f"least {LEAST_PARTIES} parties, or the sum is somebody's own array. "
                "Mend: name more parties"
            )
        # Before anything can fail: a number that was tried is used up.
        self._last_round = number
        self._round = None
        agreed = SumForm.from_wire(form)
        admit_bound(self.site, self.own_columns(), agreed.bound)
        values, kind, opens = self.summand(name)
        self.site.policy.admit_kind(me, f"the sum of {name!r}", opens)
        values, dtype = np.asarray(values), ring_of(agreed, len(parties))
        shifted = agreed.encode(values, party=me, name=name, dtype=dtype)
        self._round = _Round(number, name, agreed, tuple(parties), shifted, kind, opens)
        return {"shape": list(values.shape), "kind": kind}

    def _take_round(self, number: int) -> tuple[_Round, np.ndarray]:
        """The round and its array, which can be taken only once."""
        current = self._round
        if current is None or current.number != number or current.shifted is None:
            raise CryptoError(
                f"party {self.site.name!r}: round {number} is not open; its array was let out "
                "already, or another round has begun. Mend: prepare a new round"
            )
        shifted, current.shifted = current.shifted, None
        return current, shifted

    # ------------------------------------------------------------------ masks

    @exposed(kind="masked")
    def masked(self, number: int, own_mask: bool) -> np.ndarray:
        """The array under the masks shared with each other party (and one of its own)."""
        current, ring = self._take_round(number)
        added, taken = self._pair_masks(current, "masks")
        if own_mask:
            current.own_seed = os.urandom(KEY_BYTES)
            added.append(current.own_seed)
        add_streams(ring, added, taken)
        return ring

    def _pair_masks(self, current: _Round, mode: str) -> tuple[list[bytes], list[bytes]]:
        """The keys of the masks with each other party: those to add, and those to take away."""
        me = self.site.name
        keys: dict[str, list[bytes]] = {"added": [], "taken": []}
        for party in current.parties:
            if party != me:
                first = min(me, party)
                key = self.mask_key(party, "sums", current.number, mode, current.about, owner=first)
                keys["added" if me == first else "taken"].append(key)
        return keys["added"], keys["taken"]

    @exposed(kind="masked")
    def open_own_mask(self, number: int, parties: list[str]) -> bytes:
        """The seed of this party's own mask, once the messages of all parties have arrived."""
        current = self._round
        seed = current.own_seed if current is not None and current.number == number else None
        if current is None or seed is None or tuple(parties) != current.parties:
            raise CryptoError(
                f"party {self.site.name!r} does not open its mask of round {number} for {parties}: "
                "the round is over, or was agreed among others. Mend: prepare a new round"
            )
        current.own_seed = None
        return seed

    # ------------------------------------------------------------------ encryption

    @exposed(kind="control")
    def sum_key(self) -> bytes:
        """At the key holder: the public key of this worker's sums. The secret one stays here."""
        from fedmend.secure.sums_he import context

        if self._sum_keys is None:
            self._sum_keys = context().generate_keys()
        return context().public_key_bytes(self._sum_keys.public)

    @exposed(kind="control")
    def sum_key_for(self, party: str) -> Sealed:
        """At the key holder: the public key for one party, so that nobody can change it."""
        return self.seal(self.sum_key(), to=party, kind="control")

    @exposed(kind="control")
    def take_sum_key(self, holder: str, box: Sealed | None) -> None:
        """Take the public key from the key holder itself."""
        from fedmend.secure.sums_he import context

        if holder == self.site.name:
            data = self.sum_key()
        else:
            data = self.open(box, sender=holder, kind="control")  # type: ignore[arg-type]
        self._sum_key = context().load_public_key(data)

    @exposed(kind="ciphertext")
    def encrypted(self, number: int) -> list[bytes]:
        """The array under the key holder's public key, and masked besides.

        The masks cancel in the sum of all. Without them, a coordinator that has this party's
        ciphertexts decrypted alone, in place of the sum, would read the array.
        """
        from fedmend.secure.sums_he import encrypt_all

        if self._sum_key is None:
            raise CryptoError(
                f"party {self.site.name!r} has no key for the sum. Mend: SumSession passes it on"
            )
        current, shifted = self._take_round(number)
        masks = self._pair_masks(current, "he")
        return encrypt_all(self._sum_key, current.form, shifted, len(current.parties), masks)

    @exposed(kind="masked", takes={"ciphertexts": "ciphertext"})
    def decrypt_blinded(self, number: int, ciphertexts: list[bytes]) -> np.ndarray:
        """At the key holder: what the coordinator blinded, decrypted; once for every round."""
        from fedmend.secure.sums_he import decrypt_all

        me = self.site.name
        if self._sum_keys is None:
            raise CryptoError(f"party {me!r} holds no key for sums. Mend: ask the key holder")
        if not isinstance(number, int) or number <= self._last_decrypted:
            raise CryptoError(
                f"party {me!r} has decrypted for round {self._last_decrypted} and does not for "
                f"round {number} again. Mend: begin a new round"
            )
        self._last_decrypted = number
        keys, self._sum_keys = self._sum_keys, None  # a key that failed is not tried again
        with self.unreadable(COORDINATOR):
            residues = decrypt_all(keys.secret, ciphertexts)
        self._sum_keys = keys
        return residues

    # ------------------------------------------------------------------ simulation only

    @exposed(kind="row")
    def rows_in_clear(self, number: int) -> np.ndarray:
        """The array itself, for simulations. Refused by every default policy."""
        return self._in_clear(number, "row")

    @exposed(kind="label")
    def labels_in_clear(self, number: int) -> np.ndarray:
        """Labels themselves, for simulations. Refused by every default policy."""
        return self._in_clear(number, "label")

    def _in_clear(self, number: int, kind: str) -> np.ndarray:
        current, shifted = self._take_round(number)
        if current.kind != kind:
            raise Refused(
                self.site.name,
                f"the summand {current.name!r} is of kind {current.kind!r} and was asked for as "
                f"{kind!r}",
                "ask for it as what it is",
            )
        return shifted


class ColumnSumWorker(SumWorker):
    """Sums named numeric columns: row by row over the aligned rows, or their totals.

    columns: names of this party's columns. per: "row" or "total".
    """

    def __init__(
        self, site: Site, scope: str = "train", *, columns: list[str], per: str = "row"
    ) -> None:
        super().__init__(site, scope)
        self._columns = columns
        self._per = per

    def own_columns(self) -> list[str]:
        return [f"{self._per} of {each}" if self._per != "row" else each for each in self._columns]

    def summand(self, name: str) -> Summand:
        labelled = self.table.label in self._columns
        if labelled:
            self.site.policy.admit_label_sums(self.site.name)
        kind = "label" if labelled else "row"
        return Summand(self._array, kind, "statistic" if self._per == "total" else kind)

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [None] if self._per == "total" else [self.alignment.aligned]

    @cached_property
    def _array(self) -> np.ndarray:
        parts = [self._numbers(column) for column in self._columns]
        if self._per == "total":
            return np.array([_total(part) for part in parts])
        return np.stack([part[self.alignment.aligned] for part in parts], axis=1)

    def _numbers(self, name: str) -> np.ndarray:
        column = self.column(name)
        missing = int(column.isna().sum())
        if missing:
            raise DataError(
                "cells are missing, and a sum cannot leave any out unseen",
                party=self.site.name,
                column=name,
                value=missing,
                mend="fill in what is missing, or name another column",
            )
        values = column.to_numpy()
        if values.dtype.kind not in "biuf":
            try:
                return column.to_numpy(dtype=np.float64)
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"the column is of kind {self.table.schema[name].kind}, not numeric",
                    party=self.site.name,
                    column=name,
                    mend="name numeric columns",
                ) from error
        return values


def _total(values: np.ndarray) -> int | float:
    """The exact total of integers, the correctly rounded total of floats."""
    return math.fsum(values) if values.dtype.kind == "f" else sum(map(int, values))
