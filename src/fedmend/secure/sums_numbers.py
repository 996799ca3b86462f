"""Numbers that are summed: a range all parties keep to, and fixed point for real values.

Every value v becomes round(v · 2^f) − low, an integer in [0, span]. With f = 0 that is exact; with
f fraction bits each party's rounding is off by at most 2^-(f+1), so the sum of K parties is off by
at most K · 2^-(f+1). The range is declared, never measured: a bound taken from the data would tell
the coordinator the largest value, and a sum that leaves the ring would be wrong without a sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, CryptoError, DataError

__all__ = ["MOST", "SumForm", "narrowest"]

MOST = (1 << 63) - 1
MOST_FRACTION_BITS = 52
_CHUNK = 1 << 16
_UNSIGNED = tuple(np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64"))


@dataclass(frozen=True)
class SumForm:
    """The form of a summand: integers in [low, high], each standing for itself / 2^fraction_bits.

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
        cls,
        between: tuple[float, float] | None,
        *,
        fraction_bits: int | None,
        parties: int,
    ) -> SumForm:
        """The form for values in `between` (in their own unit); None is the widest that fits."""
        if fraction_bits is not None and not 1 <= fraction_bits <= MOST_FRACTION_BITS:
            raise ConfigError(
                f"fraction_bits must lie in 1 … {MOST_FRACTION_BITS}, got {fraction_bits}. "
                "Mend: 16 gives five decimal digits; None is for integers"
            )
        if between is None:
            bound = MOST // parties
            return cls(-bound, bound, fraction_bits)
        low, high = between
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(
                f"between must be (lowest, highest) with finite numbers, got {between}"
            )
        if fraction_bits is None:
            form = cls(math.floor(low), math.ceil(high))
        else:
            # Fractions do not overflow; whether the range fits is for `check` to say.
            lowest, highest = (Fraction(bound) * (1 << fraction_bits) for bound in between)
            form = cls(math.floor(lowest), math.ceil(highest), fraction_bits)
        form.check(parties)
        return form

    @classmethod
    def from_wire(cls, settings: Mapping[str, Any]) -> SumForm:
        low, high, bits = (settings.get(key) for key in ("low", "high", "fraction_bits"))
        whole = isinstance(low, int) and isinstance(high, int) and low <= high
        if not whole or not (bits is None or isinstance(bits, int)):
            raise CryptoError(f"not the form of a sum: {dict(settings)!r}")
        return cls(int(low), int(high), bits)  # type: ignore[arg-type]

    def to_wire(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "fraction_bits": self.fraction_bits}

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
        if max(abs(self.low), abs(self.high)) * parties > MOST:
            worst = max(abs(self.low), abs(self.high)) / (1 << (self.fraction_bits or 0))
            raise ConfigError(
                f"{parties} parties with values up to {worst:.6g}"
                + (f" and {self.fraction_bits} fraction bits" if self.fraction_bits else "")
                + f" could sum up to more than 2^63. Mend: keep |value| within "
                f"{MOST // parties * self.unit:.6g}, or use fewer fraction bits"
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
        # In pieces that stay in the cache from the first look to the last.
        for at in range(0, flat.size, _CHUNK):
            part = flat[at : at + _CHUNK]
            whole = self._whole(part, party, name)
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
        if flat.dtype.kind == "f" and not np.isfinite(flat).all():
            bad = flat[~np.isfinite(flat)]
            return DataError(
                f"the summand {name!r} has values that are missing or infinite",
                party=party,
                column=name,
                value=float(bad[0]),
                mend="fill or clip them before summing",
            )
        lowest, highest = flat.min().item(), flat.max().item()
        low, high = self.low * self.unit, self.high * self.unit
        return DataError(
            f"the summand {name!r} leaves the agreed range [{low:.12g}, {high:.12g}]",
            party=party,
            column=name,
            value=lowest if low - lowest > highest - high else highest,
            mend="give between=(lowest, highest) that holds for all parties, or clip",
        )

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


def narrowest(most: int) -> np.dtype:
    """The narrowest unsigned type that holds 0 … most.

    >>> narrowest(255), narrowest(256)
    (dtype('uint8'), dtype('uint16'))
    """
    for dtype in _UNSIGNED:
        if most <= np.iinfo(dtype).max:
            return dtype
    raise ConfigError(f"{most} is beyond 64 bits. Mend: narrow the range of the summands")
