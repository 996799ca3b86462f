"""Secure sums: the coordinator learns the sum of K parties' arrays and none of the arrays.

    workers = fed.workers(SumWorker, parties=["a", "b", "c"])
    with SumSession(workers, mode="masks") as session:
        votes = session.sum("votes", between=(0, 1))                       # one-hot, int64
        rows = session.sum("loglik", between=(-30, 0), fraction_bits=16)   # fixed point, float64

    secure_sum(fed, ["age", "income"], per="total", mode="he").values

A method that wants sums of its own arrays either offers them by name at the site, for a `SumWorker`
beside its own worker (``offer_summand(self.site, "votes", one_hot, kind="label")``), or makes its
worker a `SumWorker` and overrides :meth:`SumWorker.summand`.

Modes, all three with the same numbers bit for bit; the roles follow the protocol and look at what
they see:

``masks``
    Party i sends x_i + Σ_{j>i} m_ij − Σ_{j<i} m_ij modulo 2^w, where the stream m_ij comes of a
    secret that only i and j share (Bonawitz et al. 2017, section 4.1). Any K − 1 of the messages
    are uniform and independent; all K add up to Σ x_i. Among many parties each shares masks with
    its 16 neighbours in the list only (Bell et al. 2020): as many would have to be in league with
    the coordinator before it could tell the sum of some of the others from that of the rest. The
    ring is the narrowest of 8, 16, 32 and 64 bits that holds every sum the agreed range allows.
    When a party may drop out, each adds a mask of its own whose seed it opens only after
    everybody's message has arrived. Without it, a message that comes late would complete the sum
    of all beside the sum of the rest, and the difference is one party's array.
``he``
    BFV (`sums_he`): a party holds the key, the coordinator blinds what it lets decrypt. The InC
    paper's setting with the key in the right place.
``none``
    Simulation: everything in the clear, refused by default policies.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from fedmend.errors import (
    ConfigError,
    CryptoError,
    DataError,
    FedmendWarning,
    PartyAbsent,
    PartyFailed,
    PrivacyWarning,
    Refused,
)
from fedmend.federation.bound import declare
from fedmend.federation.federation import Each
from fedmend.federation.kinds import REFUSED_BY_DEFAULT
from fedmend.federation.ledger import COORDINATOR
from fedmend.federation.rows import Asked
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Exposure, exposed
from fedmend.secure.bounds import admit_bound
from fedmend.secure.channel import SealingWorker
from fedmend.secure.keys import KEY_BYTES, Keystream, add_streams
from fedmend.secure.sums_he import (
    Packing,
    add_blinded,
    context,
    decrypt_all,
    encrypt_all,
    unblind,
)

if TYPE_CHECKING:
    from fedmend.federation import Federation, WorkerGroup
    from fedmend.federation.site import Site

Mode = Literal["masks", "he", "none"]
MODES: tuple[str, ...] = get_args(Mode)
LEAST_PARTIES = 2
LARGEST_SUM = (1 << 63) - 1
NEIGHBOURS = 16
"""With how many others a party shares masks, at most: work grows with K and not with K²."""
AT_ONCE = 32
"""How many parties are asked at the same time: more threads take more time than they save."""
LITTLE = 1 << 16
"""So many values are summed in less time than threads of one process wait for each other."""
MAX_FRACTION_BITS = 52
_CHUNK = 1 << 16  # values that stay in the cache from the first look to the last
_SHELF = "secure.sums"
# Rounds are numbered once per process, so that two sessions over one group do not collide.
_ROUNDS = itertools.count(1)
# What comes of a party that is gone (connections and time-outs are OSErrors); everything else is
# the party's own answer.
_ABSENCE = (PartyAbsent, PartyFailed, OSError)


# ---------------------------------------------------------------------------------- numbers


@dataclass(frozen=True)
class SumForm:
    """The form of a summand: integers in [low, high], each standing for itself / 2^fraction_bits.

    Every value v becomes round(v · 2^f) − low, an integer in [0, span]. With f = 0 that is exact;
    with f fraction bits the sum of K parties is off by at most K · 2^-(f+1). The range is declared,
    never measured: a bound taken from the data would tell the coordinator the largest value, and a
    sum that leaves the ring would be wrong without a sign.

    >>> form = SumForm.of((-1.5, 1.5), fraction_bits=2, parties=3)
    >>> form.low, form.high, form.error_bound(3)
    (-6, 6, 0.375)
    >>> form.encode(np.array([0.25, -1.5]), party="bank", name="x", dtype=np.uint8)
    array([7, 0], dtype=uint8)
    """

    low: int
    high: int
    fraction_bits: int | None = None

    @classmethod
    def of(
        cls, between: tuple[float, float] | None, *, fraction_bits: int | None, parties: int
    ) -> SumForm:
        """The form for values in `between` (in their own unit); None is the widest that fits."""
        if fraction_bits is not None and not 1 <= fraction_bits <= MAX_FRACTION_BITS:
            raise ConfigError(
                f"fraction_bits must lie in 1 … {MAX_FRACTION_BITS}, got {fraction_bits}. "
                "Mend: 16 gives five decimal digits; None is for integers"
            )
        if between is None:
            bound = LARGEST_SUM // parties
            return cls(-bound, bound, fraction_bits)
        low, high = between
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(
                f"between must be (lowest, highest) with finite numbers, got {between}"
            )
        # Fractions do not overflow; whether the range fits is for `check` to say.
        lowest, highest = (Fraction(bound) * (1 << (fraction_bits or 0)) for bound in between)
        form = cls(math.floor(lowest), math.ceil(highest), fraction_bits)
        form.check(parties)
        return form

    @classmethod
    def from_wire(cls, settings: Mapping[str, Any]) -> SumForm:
        """The other way round of `asdict`."""
        low, high, bits = (settings.get(key) for key in ("low", "high", "fraction_bits"))
        whole = isinstance(low, int) and isinstance(high, int) and low <= high
        if not whole or not (bits is None or isinstance(bits, int)):
            raise CryptoError(f"not the form of a sum: {dict(settings)!r}")
        return cls(int(low), int(high), bits)  # type: ignore[arg-type]

    @property
    def span(self) -> int:
        return self.high - self.low

    @property
    def unit(self) -> float:
        return 1.0 if self.fraction_bits is None else 2.0**-self.fraction_bits

    @property
    def bound(self) -> str:
        """The range in words, exactly."""
        unit = "" if self.fraction_bits is None else f" / 2^{self.fraction_bits}"
        return f"[{self.low}, {self.high}]{unit}"

    def error_bound(self, parties: int) -> float:
        """How far the sum of so many parties may be from the exact one, per entry.

        Beyond 2^53 units (2^-fraction_bits each) float64's own rounding of the sum comes on top.
        """
        return 0.0 if self.fraction_bits is None else parties * self.unit / 2

    def check(self, parties: int) -> None:
        """Refuse a range whose sums do not fit into 64 bits."""
        largest = max(abs(self.low), abs(self.high))
        if largest * parties > LARGEST_SUM:
            worst = largest / (1 << (self.fraction_bits or 0))
            raise ConfigError(
                f"{parties} parties with values up to {worst:.6g}"
                + (f" and {self.fraction_bits} fraction bits" if self.fraction_bits else "")
                + f" could sum up to more than 2^63. Mend: keep |value| within "
                f"{LARGEST_SUM // parties * self.unit:.6g}, or use fewer fraction bits"
            )

    # ------------------------------------------------------------------ at a party

    def encode(self, values: np.ndarray, *, party: str, name: str, dtype: Any) -> np.ndarray:
        """round(value · 2^f) − low as a flat unsigned array; `DataError` for what is outside."""
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"the summand {name!r} is of type {values.dtype}, not numeric",
                party=party,
                mend="give an array of integers or floats",
            )
        flat = values.reshape(-1)
        encoded = np.empty(flat.size, dtype)
        for at in range(0, flat.size, _CHUNK):
            whole = self._whole(flat[at : at + _CHUNK], party, name)
            # As Python numbers: numpy would round the bounds to the array's own type.
            if not (whole.min().item() >= self.low and whole.max().item() <= self.high):
                raise self._outside(flat, party, name)
            encoded[at : at + _CHUNK] = self._shifted(whole)
        return encoded

    def _whole(self, part: np.ndarray, party: str, name: str) -> np.ndarray:
        """Integers, as integers or as floats that hold them exactly; NaN and inf stay."""
        if self.fraction_bits is not None:
            with np.errstate(over="ignore"):
                scaled = part.astype(np.float64, copy=False) * float(1 << self.fraction_bits)
            return np.rint(scaled, out=scaled)
        if part.dtype.kind != "f":
            return part
        whole = np.rint(part)
        uneven = (whole != part) & np.isfinite(part)
        if uneven.any():
            raise DataError(
                f"the summand {name!r} is not whole",
                party=party,
                column=name,
                value=float(part[uneven][0]),
                mend="give fraction_bits=16 (say) to sum real numbers in fixed point",
            )
        return whole

    def _shifted(self, whole: np.ndarray) -> np.ndarray:
        if self.low == 0:
            return whole
        if whole.dtype == np.float64 and max(self.high, -self.low, self.span) < 1 << 53:
            return np.subtract(whole, float(self.low), out=whole)
        # Modulo 2^64: right whatever the sign, since the true difference lies in [0, span].
        return whole.astype(np.int64).view(np.uint64) - np.uint64(self.low % (1 << 64))

    def _outside(self, flat: np.ndarray, party: str, name: str) -> DataError:
        low, high = self.low * self.unit, self.high * self.unit
        problem = f"the summand {name!r} leaves the agreed range [{low:.12g}, {high:.12g}]"
        mend = "give between=(lowest, highest) that holds for all parties, or clip"
        lowest, highest = flat.min().item(), flat.max().item()
        value = lowest if low - lowest > highest - high else highest
        if flat.dtype.kind == "f" and not np.isfinite(flat).all():
            problem = f"the summand {name!r} has values that are missing or infinite"
            value, mend = float(flat[~np.isfinite(flat)][0]), "fill or clip them before summing"
        return DataError(problem, party=party, column=name, value=value, mend=mend)

    # ------------------------------------------------------------------ at the coordinator

    def decode(self, totals: np.ndarray, shape: tuple[int, ...], parties: int) -> np.ndarray:
        """Sums of shifted values (unsigned) as int64, or float64 in fixed point."""
        dtype = np.int64 if self.fraction_bits is None else np.float64
        values: np.ndarray = np.empty(totals.size, dtype)
        offset = np.uint64(parties * self.low % (1 << 64))
        for at in range(0, totals.size, _CHUNK):
            whole = totals[at : at + _CHUNK].astype(np.uint64)
            if self.low:
                whole += offset
            values[at : at + _CHUNK] = whole.view(np.int64)
            if self.fraction_bits is not None:
                values[at : at + _CHUNK] *= self.unit
        return values.reshape(shape)


def ring_of(form: SumForm, parties: int) -> np.dtype:
    """The narrowest unsigned type in which so many summands of this form add up without loss."""
    form.check(parties)
    return np.min_scalar_type(parties * form.span)


def neighbours(party: str, parties: Sequence[str]) -> list[str]:
    """Whom a party shares masks with: all, or among many half of `NEIGHBOURS` on each side.

    The ring of parties falls apart only if as many as `NEIGHBOURS` are taken out (Harary 1962).

    >>> neighbours("a", ["a", "b", "c"])
    ['b', 'c']
    """
    at, count = list(parties).index(party), len(parties)
    if count <= NEIGHBOURS + 1:
        return [each for each in parties if each != party]
    steps = range(1, NEIGHBOURS // 2 + 1)
    return [parties[(at + step) % count] for sign in (-1, 1) for step in (sign * s for s in steps)]


def total_of(
    messages: Mapping[str, np.ndarray], dtype: np.dtype, size: int, seeds: Mapping[str, bytes]
) -> np.ndarray:
    """The sum of shifted values: all messages added up, the opened masks taken away."""
    total = np.zeros(size, dtype)
    for party, array in messages.items():
        array_like = isinstance(array, np.ndarray)
        if not array_like or (array.dtype, array.shape) != (dtype, total.shape):
            seen = f"{array.dtype} {array.shape}" if array_like else type(array).__name__
            raise CryptoError(
                f"party {party!r} sent {seen} where {dtype} {total.shape} was due: it was cut off "
                "or altered. Mend: start the sum anew"
            )
        np.add(total, array, out=total)
    for party, seed in seeds.items():
        if not isinstance(seed, bytes) or len(seed) != KEY_BYTES:
            raise CryptoError(f"party {party!r}: the seed of its mask is not {KEY_BYTES} bytes")
    add_streams(total, (), [Keystream(seed) for seed in seeds.values()])
    return total


# ---------------------------------------------------------------------------------- the party


class Summand(NamedTuple):
    """An array to be summed, what it is in the clear, and what the sum over the parties is."""

    values: np.ndarray
    kind: str
    opens: str


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


@dataclass(repr=False)
class _Round:
    """One sum under way at this party: agreed settings, and the array until it has left."""

    number: int
    name: str
    form: SumForm
    parties: tuple[str, ...]
    shape: tuple[int, ...]
    # round(value · 2^f) − low, flat, in the ring of the sum
    shifted: np.ndarray | None
    kind: str
    opens: str
    own_seed: bytes | None = None


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
        self._masks_about: tuple[Any, ...] = ()
        self._masks: tuple[list[Keystream], list[Keystream]] = ([], [])
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

    def take(self, given: Any) -> None:
        """What the array of a round is to be computed from, if anything is given. A hook."""

    # ------------------------------------------------------------------ every mode

    @exposed(kind="count", takes={"given": "prediction"})
    def prepare_round(
        self, number: int, name: str, form: dict[str, Any], parties: list[str], given: Any = None
    ) -> dict[str, Any]:
        """Begin a round: agree to its settings, check the array. Tells its shape and kind."""
        me = self.site.name
        if len(set(parties)) != len(parties) or me not in parties or len(parties) < LEAST_PARTIES:
            raise CryptoError(
                f"party {me!r} takes no part in a sum over {parties}: it needs itself and at "
                f"least {LEAST_PARTIES} parties, or the sum is somebody's own array. "
                "Mend: name more parties"
            )
        begun = self._begin(number, name, SumForm.from_wire(form), tuple(parties), given)
        return {"shape": list(begun.shape), "kind": begun.kind}

    def _begin(
        self, number: int, name: str, form: SumForm, parties: tuple[str, ...], given: Any
    ) -> _Round:
        me = self.site.name
        if not isinstance(number, int) or number <= self._last_round:
            raise CryptoError(
                f"party {me!r}: round {number} is not after round {self._last_round}: it was "
                "replayed, and its masks must not be used twice. Mend: take the next number"
            )
        # Before anything can fail: a number that was tried is used up.
        self._last_round = number
        self._round = None
        admit_bound(self.site, self.own_columns(), form.bound)
        if given is not None:
            self.take(given)
        values, kind, opens = self.summand(name)
        self.site.policy.admit_kind(me, f"the sum of {name!r}", opens)
        values, dtype = np.asarray(values), ring_of(form, len(parties))
        shifted = form.encode(values, party=me, name=name, dtype=dtype)
        self._round = _Round(number, name, form, parties, values.shape, shifted, kind, opens)
        return self._round

    def _is_open(self, number: int, after: int | None, given: Any) -> bool:
        """Begin a further round of what was summed in round `after`, if one is named, in one step.

        False where that was not the last round here, or the array has another shape or kind by now:
        then it must be prepared.
        """
        last = self._round
        if after is None:
            return True
        if last is None or last.number != after:
            return False
        now = self._begin(number, last.name, last.form, last.parties, given)
        return (now.shape, now.kind, now.opens) == (last.shape, last.kind, last.opens)

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

    @exposed(kind="masked", over_rows=True, takes={"given": "prediction"})
    def masked(
        self, number: int, own_mask: bool, after: int | None = None, given: Any = None
    ) -> np.ndarray | None:
        """The array under the masks shared with its neighbours (and one of its own)."""
        if not self._is_open(number, after, given):
            return None
        current, ring = self._take_round(number)
        add_streams(ring, *self._pair_masks(current, "masks"))
        if own_mask:
            current.own_seed = os.urandom(KEY_BYTES)
            add_streams(ring, [Keystream(current.own_seed)], ())
        return ring

    def _pair_masks(
        self, current: _Round, mode: str
    ) -> tuple[list[Keystream], list[Keystream], int]:
        """The streams shared with its neighbours, to add and to take away, and which part of them.

        As long as the same is summed among the same parties they are the same, in further parts.
        """
        # All that the parties must have been told alike, beside the number.
        about, me = (mode, current.name, current.form, current.parties), self.site.name
        if about != self._masks_about:
            masks: tuple[list[Keystream], list[Keystream]] = ([], [])
            named = "|".join(map(str, (*asdict(current.form).values(), *current.parties)))
            digest = hashlib.sha256(f"{named}|{current.name}".encode()).hexdigest()
            for party in neighbours(me, current.parties):
                first = min(me, party)
                # One key for all rounds, as number 0: none of them has it.
                key = self.mask_key(party, "sums", 0, mode, digest, owner=first, again=True)
                masks[me != first].append(Keystream(key))
            self._masks_about, self._masks = about, masks  # all of them, or none
        return *self._masks, current.number

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
    def sum_key(self, to: str | None = None) -> bytes | Sealed:
        """At the key holder: the public key of this worker's sums. The secret one stays here.

        to: for this party, encrypted end to end, so that nobody can change it on the way.
        """
        if self._sum_keys is None:
            self._sum_keys = context().generate_keys()
        data = context().public_key_bytes(self._sum_keys.public)
        return data if to is None else self.seal(data, to=to, kind="control")

    @exposed(kind="control")
    def take_sum_key(self, holder: str, sealed: Sealed | None) -> None:
        """Take the public key from the key holder itself."""
        data: Any
        if holder == self.site.name:
            data = self.sum_key()
        else:
            data = self.open(sealed, sender=holder, kind="control")  # type: ignore[arg-type]
        self._sum_key = context().load_public_key(data)

    @exposed(kind="ciphertext", over_rows=True, takes={"given": "prediction"})
    def encrypted(
        self, number: int, after: int | None = None, given: Any = None
    ) -> list[bytes] | None:
        """The array under the key holder's public key, and masked besides.

        The masks cancel in the sum of all. Without them, a coordinator that has this party's
        ciphertexts decrypted alone, in place of the sum, would read the array.
        """
        if self._sum_key is None:
            raise CryptoError(
                f"party {self.site.name!r} has no key for the sum. Mend: SumSession passes it on"
            )
        if not self._is_open(number, after, given):
            return None
        current, shifted = self._take_round(number)
        packing = Packing.of(current.form.span, len(current.parties))
        return encrypt_all(self._sum_key, packing, shifted, self._pair_masks(current, "he"))

    @exposed(kind="masked", takes={"ciphertexts": "ciphertext"})
    def decrypt_blinded(self, number: int, ciphertexts: list[bytes]) -> np.ndarray:
        """At the key holder: what the coordinator blinded, decrypted; once for every round."""
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

    @exposed(kind="row", over_rows=True, takes={"given": "prediction"})
    def rows_in_clear(
        self, number: int, after: int | None = None, given: Any = None
    ) -> np.ndarray | None:
        """The array itself, for simulations. Refused by every default policy."""
        return self._in_clear(number, "row") if self._is_open(number, after, given) else None

    @exposed(kind="label", over_rows=True, takes={"given": "prediction"})
    def labels_in_clear(
        self, number: int, after: int | None = None, given: Any = None
    ) -> np.ndarray | None:
        """Labels themselves, for simulations. Refused by every default policy."""
        return self._in_clear(number, "label") if self._is_open(number, after, given) else None

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


# ---------------------------------------------------------------------------------- coordinator


@dataclass(frozen=True)
class Sum:
    """A sum over parties.

    values: int64, or float64 in fixed point. parties: whose arrays are in it. absent: who dropped
    out. error_bound: how far an entry may be from the exact sum (0 for integers).
    """

    values: np.ndarray
    parties: tuple[str, ...]
    absent: tuple[str, ...]
    error_bound: float


class SumSession:
    """Sums over the same parties, as often as needed; keys change hands once, masks never repeat.

    Used in a `with` statement it stops the group at its end.

    workers: workers that are `SumWorker`s. parties: those whose arrays are summed; by default all.
    key_holder: for ``mode="he"``, who holds the key; by default the first party. It may be one of
    the group that is not summed.
    on_absent: when a party drops out, "stop" with an error that names it, or "continue" with the
    rest as long as two are left.
    """

    def __init__(
        self,
        workers: WorkerGroup,
        *,
        mode: Mode = "masks",
        parties: Sequence[str] | None = None,
        key_holder: str | None = None,
        on_absent: Literal["stop", "continue"] = "stop",
    ) -> None:
        self.workers = workers
        self.mode = mode
        self.parties = tuple(workers if parties is None else parties)
        self.key_holder = key_holder or (self.parties[0] if self.parties else "")
        self.on_absent = on_absent
        self.absent: tuple[str, ...] = ()
        self._gone: dict[str, Exception] = {}
        self._ready = mode == "none"
        self._keys: dict[str, bytes] = {}
        self._met: tuple[str, ...] = ()
        self._last: tuple[Any, ...] = ()  # name, form, parties, number, shape and method
        self._size = 0  # of the array a party sums, as far as it is known
        self._alone = True  # nobody else sums over these workers, as far as was seen
        self._public_key: Any = None
        self._pool: ThreadPoolExecutor | None = None  # its threads end with the session
        self._check_arguments()
        if mode == "none":
            warnings.warn(
                "mode='none' sends every party's array to the coordinator in the clear: "
                "for simulation only",
                PrivacyWarning,
                stacklevel=2,
            )

    def _check_arguments(self) -> None:
        problems = []
        if self.mode not in MODES:
            problems.append(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.on_absent not in ("stop", "continue"):
            problems.append(f"on_absent must be 'stop' or 'continue', got {self.on_absent!r}")
        if len(set(self.parties)) < max(LEAST_PARTIES, len(self.parties)):
            problems.append(
                f"a sum needs at least {LEAST_PARTIES} different parties, got "
                f"{list(self.parties)}; the sum of one is its own array"
            )
        for party in (*self.parties, self.key_holder):
            if party and party not in self.workers:
                problems.append(
                    f"no worker runs at {party!r}; they run at {', '.join(self.workers)}"
                )
        if problems:
            raise ConfigError(problems)

    def sum(
        self,
        name: str,
        *,
        between: tuple[float, float] | None = None,
        fraction_bits: int | None = None,
        given: np.ndarray | None = None,
    ) -> Sum:
        """The sum of the arrays offered as `name`.

        between: the range no party's value leaves, in the values' own unit; the narrower, the
        fewer bytes. By default all that fits into 64 bits. A value outside is refused at its
        party. fraction_bits: None for integers; otherwise values are rounded to 2^-fraction_bits.
        given: what the parties are told of each row to compute their arrays from (`take`).
        """
        form = SumForm.of(between, fraction_bits=fraction_bits, parties=len(self.parties))
        self._set_up(name)
        if self.mode == "he":
            number, shape, sent = self._collect(name, form, given, "encrypted")
            total = self._decrypted(name, form, number, math.prod(shape), sent)
        else:
            # Own masks keep a late message from completing the sum of a round that was given up.
            own = self.mode == "masks" and self.on_absent == "continue"
            how = ("masked", own) if self.mode == "masks" else ("{kind}s_in_clear",)
            number, shape, sent = self._collect(name, form, given, *how)
            seeds = self._open_masks(name, number, list(sent)) if own else {}
            total = total_of(sent, ring_of(form, len(sent)), math.prod(shape), seeds)
        parties = tuple(sent)
        # Masks that do not cancel leave uniform numbers, most of them no possible sum.
        if total.size and int(total.max()) > len(parties) * form.span:
            raise CryptoError(
                "the masks do not cancel: a message was altered, or the parties were not told the "
                "same round, name, range and list of parties. Mend: start the sum anew"
            )
        values = form.decode(total, shape, len(parties))
        return Sum(values, parties, self.absent, form.error_bound(len(parties)))

    def __enter__(self) -> SumSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.workers.stop()

    # ------------------------------------------------------------------ steps

    def _set_up(self, name: str) -> None:
        """Once: public keys change hands; with encryption, the key holder's goes to everyone."""
        if self._ready:
            return
        everyone = tuple(dict.fromkeys((*self.parties, *self._holders)))
        self._keys = self._ask(everyone, "public_key")
        self._go_on_without_absent(name)
        self._introduce(name)
        if self.mode == "he":
            holder = self.workers[self.key_holder]
            holder.meet(self._keys)
            self._public_key = context().load_public_key(holder.sum_key())
            messages = {
                party: None if party == self.key_holder else holder.sum_key(party)
                for party in self.parties
            }
            self._ask(self.parties, "take_sum_key", self.key_holder, Each(messages))
            self._go_on_without_absent(name)
        self._ready = True

    def _introduce(self, name: str) -> None:
        """Who shares masks gets each other's keys; anew where the parties are others by now."""
        while self._keys and self._met != self.parties:
            self._met = self.parties
            known = {
                party: {
                    each: self._keys[each]
                    for each in (party, *neighbours(party, self.parties), *self._holders)
                }
                for party in self.parties
            }
            self._ask(self.parties, "meet", Each(known))
            self._go_on_without_absent(name)

    @property
    def _holders(self) -> tuple[str, ...]:
        return (self.key_holder,) if self.mode == "he" else ()

    def _collect(
        self, name: str, form: SumForm, given: np.ndarray | None, method: str, *args: Any
    ) -> tuple[int, tuple[int, ...], dict[str, Any]]:
        """A round with all who are there: its number, the arrays' shape, what each party sent.

        Every array is checked before one leaves; where the same is summed again, while it leaves.
        If a party drops out, the rest begin anew.
        """
        more = () if given is None else (given,)
        while True:
            self._introduce(name)
            number, parties = next(_ROUNDS), self.parties
            last, self._last = self._last, ()
            agreed = (name, form, parties)
            if self._alone and last[:3] == agreed:
                after, shape, how = last[3:]
                sent = self._ask(parties, how, number, *args, after, *more)
                if not self._gone:
                    self._alone = all(each is not None for each in sent.values())
                    if self._alone:
                        self._last = (*agreed, number, shape, how)
                        return number, shape, sent
            else:
                settings = (number, name, asdict(form), list(parties))
                told = self._ask(parties, "prepare_round", *settings, *more)
                if not self._gone:
                    shape, kind = self._one_shape(name, told)
                    self._size = math.prod(shape)
                    how = method.format(kind=kind)
                    sent = self._ask(parties, how, number, *args)
                    if not self._gone:
                        self._last = (*agreed, number, shape, how)
                        return number, shape, sent
            self._go_on_without_absent(name)

    @staticmethod
    def _one_shape(name: str, told: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
        """The shape of all arrays, and what they are in the clear."""
        shapes = {party: tuple(answer["shape"]) for party, answer in told.items()}
        if len(set(shapes.values())) > 1:
            raise DataError(
                f"the summands {name!r} differ in shape: "
                + ", ".join(f"{party} {shape}" for party, shape in shapes.items()),
                mend="offer arrays of one shape at all parties (align the rows first)",
            )
        labels = any(answer["kind"] == "label" for answer in told.values())
        return next(iter(shapes.values())), "label" if labels else "row"

    def _open_masks(self, name: str, number: int, parties: list[str]) -> dict[str, bytes]:
        seeds = self._ask(parties, "open_own_mask", number, parties)
        if self._gone:
            # The others have opened their masks: a sum without the absent party could be compared
            # with the sum of all, should its seed arrive late.
            raise self._lost(
                name, "It left after the masks were opened. Mend: bring it back, then sum anew"
            )
        return seeds

    def _decrypted(
        self, name: str, form: SumForm, number: int, size: int, sent: dict[str, Any]
    ) -> np.ndarray:
        packing = Packing.of(form.span, len(sent))
        blinded, masks = add_blinded(self._public_key, sent, packing.ciphertexts(size))
        answer = self._ask((self.key_holder,), "decrypt_blinded", number, blinded)
        if self._gone:
            raise self._lost(name, _NO_KEY)
        residues = unblind(answer[self.key_holder], masks, self.key_holder)
        return packing.unpack(residues, size)

    def _ask(self, parties: Sequence[str], method: str, *args: Any) -> dict[str, Any]:
        """Call all parties. Who is gone is noted and left out; other errors are raised."""
        answers: dict[str, Any] = dict.fromkeys(parties)

        def ask(some: Sequence[str]) -> None:
            for party in some:
                call = getattr(self.workers[party], method)
                try:
                    answers[party] = call(*(Each.own(arg, party) for arg in args))
                except Exception as error:  # raised below, when all have answered
                    answers[party] = error

        if self._in_turn:
            ask(parties)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(min(len(self.workers), AT_ONCE), "fedmend-sum")
            # One task a thread: a task takes as long to hand over as many an answer.
            for task in [self._pool.submit(ask, parties[at::AT_ONCE]) for at in range(AT_ONCE)]:
                task.result()
        failed = {party: each for party, each in answers.items() if isinstance(each, Exception)}
        self._gone = {party: each for party, each in failed.items() if isinstance(each, _ABSENCE)}
        for party, error in failed.items():
            if party not in self._gone:
                raise error
        return {party: each for party, each in answers.items() if party not in self._gone}

    @property
    def _in_turn(self) -> bool:
        """Whether parties in one process with little to do are asked one after another."""
        little = self.mode != "he" and self._size <= LITTLE
        return little and not self.workers.apart

    def _go_on_without_absent(self, name: str) -> None:
        """After a drop-out: stop, or leave the absent parties out from now on."""
        if not self._gone:
            return
        if self.on_absent == "stop":
            raise self._lost(
                name, "Mend: bring it back, or allow on_absent='continue' to sum the rest"
            )
        for holder in self._holders:
            if holder in self._gone:
                self._gone = {holder: self._gone[holder]}
                raise self._lost(name, _NO_KEY)
        rest = tuple(party for party in self.parties if party not in self._gone)
        lost, cause = ", ".join(map(repr, self._gone)), next(iter(self._gone.values()))
        if len(rest) < LEAST_PARTIES:
            raise CryptoError(
                f"the sum {name!r} cannot go on without {lost}: {', '.join(rest) or 'nobody'} is "
                "left, and the sum of one party is its own array. Mend: bring the parties back"
            ) from cause
        warnings.warn(
            f"the sum {name!r} goes on without {lost}: {cause}", FedmendWarning, stacklevel=4
        )
        self.parties = rest
        self.absent += tuple(self._gone)

    def _lost(self, name: str, what: str) -> PartyFailed | PartyAbsent:
        party, cause = next(iter(self._gone.items()))
        error: PartyFailed | PartyAbsent
        if isinstance(cause, PartyAbsent):  # by which a run knows that it may wait and resume
            error = cause
            error.add_note(f"in the secure sum of {name!r}. {what}")
        else:
            error = PartyFailed(party, f"the secure sum of {name!r}", cause)
            error.args = (f"{error}. {what}",)
            error.__cause__ = cause
        for other in list(self._gone)[1:]:
            error.add_note(f"also absent: {other}")
        return error


_NO_KEY = "It holds the key. Mend: bring it back, or name another holder"


def secure_sum(
    fed: Federation,
    columns: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    *,
    parties: Sequence[str] | None = None,
    per: Literal["row", "total"] = "total",
    mode: Mode = "masks",
    between: tuple[float, float] | None = None,
    fraction_bits: int | None = None,
    key_holder: str | None = None,
    on_absent: Literal["stop", "continue"] = "stop",
) -> Sum:
    """The sum over parties of named numeric columns.

    columns: one name, several, or the names at each party; first is added to first, and so on.
    per: "row" adds row by row over the aligned rows, giving [rows, columns] (align first);
    "total" adds each party's totals over all its rows, giving [columns].

    >>> secure_sum(fed, "balance", per="total", fraction_bits=8).values  # doctest: +SKIP
    array([90210.25])
    """
    if per not in ("row", "total"):
        raise ConfigError(f"per must be 'row' or 'total', got {per!r}")
    if isinstance(columns, Mapping):
        members = list(columns if parties is None else parties)
        named = {party: _names(columns.get(party, ())) for party in members}
    else:
        members = list(fed.names if parties is None else parties)
        named = {party: _names(columns) for party in members}
    if len({len(names) for names in named.values()}) > 1 or not all(named.values()):
        raise ConfigError(
            "every party needs as many columns as the others, got "
            + ", ".join(f"{party} {names}" for party, names in named.items())
        )
    everyone = list(dict.fromkeys([*members, *([key_holder] if key_holder else [])]))
    own = Each({party: named.get(party, []) for party in everyone})
    workers = fed.workers(ColumnSumWorker, parties=everyone, columns=own, per=per)
    with SumSession(
        workers, mode=mode, parties=members, key_holder=key_holder, on_absent=on_absent
    ) as session:
        title = " + ".join(dict.fromkeys(itertools.chain(*named.values())))
        return session.sum(title, between=between, fraction_bits=fraction_bits)


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


declare("sums", ColumnSumWorker, named_only=True)
