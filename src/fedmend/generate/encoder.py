"""The one encoder all generators share: a table as a float matrix, and exactly back.

Two steps each way. `raw` turns cells into float64 numbers (categories into codes, missing cells
into NaN) and `restore` turns them back into the original dtype; `encode` turns raw numbers into
coordinates and `decode` back. What the generators see is `Encoded`: coordinates, and which cells
are observed. A missing cell has neutral coordinates.

Columns with nothing to learn have no coordinates: a column with one value is given back as that
value, a column without any value stays missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fedmend.data.encode import as_numbers, from_numbers
from fedmend.data.schema import Column, Schema
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.generate.codecs import CODECS, Codec, Levels, MinMax, Modes, Quantile, Spiked

Raw = dict[str, np.ndarray]
"""Per column float64 numbers or codes; NaN where missing."""

NUMERIC = ("mode", "quantile", "spiked", "rank", "minmax")
_MAX_DECIMALS = 6
_ROWS_PER_LEVEL = 5


class Span(NamedTuple):
    """Coordinates ``start:stop`` of the matrix: one piece of one column."""

    column: str
    start: int
    stop: int
    activation: str  # "softmax", "tanh", "sigmoid" or "linear"


@dataclass(frozen=True)
class Encoded:
    """Rows as coordinates.

    **Shape**: ``values`` float32 (n, width); ``observed`` bool (n, coded columns)
    """

    values: np.ndarray
    observed: np.ndarray

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def is_complete(self) -> bool:
        """Whether no cell is missing."""
        return bool(self.observed.all())

    def take(self, rows: np.ndarray | slice) -> Encoded:
        """These rows."""
        return Encoded(self.values[rows], self.observed[rows])


@dataclass(frozen=True)
class _Coded:
    """A column with coordinates, and how its decoded numbers are finished."""

    codec: Codec
    low: float
    high: float
    decimals: int | None  # None: full precision

    def finish(self, numbers: np.ndarray) -> np.ndarray:
        if self.decimals is not None:
            numbers = np.round(numbers, self.decimals)
        return np.clip(numbers, self.low, self.high)


@dataclass
class Encoder:
    """Fitted on a table; see the module's docstring.

    ``numeric``: ``"mode"`` (mode-specific normalisation), ``"quantile"`` (normal scores),
    ``"spiked"`` (normal scores beside indicators of frequent values), ``"rank"`` (ranks in 0..1)
    or ``"minmax"`` (onto ``span``). ``levels``: a number with at most so many distinct values, and
    five rows for each of them on average, is coded like a category. ``spikes``: the share of rows
    from which a value counts as frequent, for ``"mode"`` and ``"spiked"``. ``max_modes`` and
    ``long_tails`` belong to ``"mode"``.
    """

    numeric: str = "mode"
    max_modes: int = 10
    spikes: float = 0.05
    long_tails: bool = False
    levels: int = 0
    span: tuple[float, float] = (0.0, 1.0)
    schema: Schema = field(default_factory=Schema, init=False)
    spans: list[Span] = field(default_factory=list, init=False)
    """The pieces of the matrix, in order."""
    owner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), init=False)
    """For every coordinate, the position of its column in `columns`."""

    def __post_init__(self) -> None:
        if self.numeric not in NUMERIC:
            raise ConfigError(
                f"numeric must be one of {', '.join(NUMERIC)}, got numeric={self.numeric!r}"
            )
        self._coded: dict[str, _Coded] = {}
        self._constant: dict[str, float] = {}
        self._seen: dict[str, np.ndarray] = {}  # positions among the schema's categories

    # --- fitting -----------------------------------------------------------------

    def fit(self, table: Table) -> Encoder:
        """Learn every column's codec from its observed cells."""
        if table.blocks:
            name = next(iter(table.blocks))
            raise DataError(
                f"a generator makes cells, not blocks of kind {table.schema[name].kind!r}",
                column=name,
                mend="drop the block: table.drop([...])",
            )
        self.schema = table.schema
        self._seen, self._coded, self._constant = {}, {}, {}
        for name, numbers in self.raw(table.frame).items():
            observed = numbers[~np.isnan(numbers)]
            if self.schema[name].is_categorical:
                self._seen[name] = np.unique(observed)
            if len(observed) and observed.min() == observed.max():
                self._constant[name] = float(observed[0])
            elif len(observed):
                self._coded[name] = self._fit_column(self.schema[name], observed)
        self._lay_out()
        return self

    def _fit_column(self, column: Column, values: np.ndarray) -> _Coded:
        low, high = float(values.min()), float(values.max())
        codec: Codec
        if column.is_categorical:
            return _Coded(Levels.fit(values), low, high, 0)
        if len(np.unique(values)) <= min(self.levels, len(values) // _ROWS_PER_LEVEL):
            codec = Levels.fit(values)
        elif self.numeric == "mode":
            codec = Modes.fit(values, self.max_modes, self.spikes, self.long_tails)
        elif self.numeric == "spiked":
            codec = Spiked.fit(values, self.spikes)
        elif self.numeric == "minmax":
            codec = MinMax.fit(values, self.span)
        else:
            codec = Quantile.fit(values, normal=self.numeric == "quantile")
        return _Coded(codec, low, high, 0 if column.kind == "integer" else _decimals(values))

    def _lay_out(self) -> None:
        self.spans, owners, at = [], [], 0
        for position, (name, coded) in enumerate(self._coded.items()):
            for piece in coded.codec.pieces:
                self.spans.append(Span(name, at, at + piece.width, piece.activation))
                owners += [position] * piece.width
                at += piece.width
        self.owner = np.array(owners, dtype=np.int64)

    # --- what was learnt -----------------------------------------------------------

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return len(self.owner)

    @property
    def columns(self) -> list[str]:
        """The columns that have coordinates, in order."""
        return list(self._coded)

    @property
    def neutral(self) -> np.ndarray:
        """**Shape**: (width,) — the coordinates of a row of missing cells."""
        parts = [coded.codec.neutral for coded in self._coded.values()]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def spread(self, observed: np.ndarray) -> np.ndarray:
        """**Shape**: (n, coded columns) -> (n, width): each column's flag at its coordinates."""
        return observed[:, self.owner]

    def of(self, column: str) -> list[Span]:
        """The spans of one column (none if it has no coordinates)."""
        return [span for span in self.spans if span.column == column]

    def categories(self, column: str) -> list[Any]:
        """The values of a categorical column that occurred, in the order of their codes."""
        declared = self.schema[column].categories or ()
        return [declared[int(code)] for code in self._seen[column]]

    # --- cells <-> raw ---------------------------------------------------------------

    def raw(self, frame: pd.DataFrame, *, strict: bool = False) -> Raw:
        """Cells as float64 numbers or codes, for those columns of the schema that are there.

        A code is the category's position in the schema.
        A category never seen in `fit` counts as missing, or raises if ``strict``.
        """
        result: Raw = {}
        for name in (name for name in self.schema if name in frame.columns):
            numbers = _numbers(self.schema[name], frame[name])
            if name in self._seen:
                numbers[~np.isin(numbers, self._seen[name])] = np.nan
                if strict:
                    self._reject_unseen(name, frame[name], np.isnan(numbers))
            result[name] = numbers
        return result

    def _reject_unseen(self, name: str, series: pd.Series, unknown: np.ndarray) -> None:
        unseen = unknown & series.notna().to_numpy()
        if unseen.any():
            seen = ", ".join(map(repr, self.categories(name)[:8]))
            raise DataError(
                "a category that the generator never saw",
                column=name,
                value=series.astype(object).iloc[int(unseen.argmax())],
                mend=f"use one of {seen}, or fit again on rows that hold it",
            )

    def restore(self, raw: Mapping[str, np.ndarray]) -> pd.DataFrame:
        """Raw numbers as cells of the original dtypes and category values."""
        return pd.DataFrame(
            {name: from_numbers(self.schema[name], numbers) for name, numbers in raw.items()}
        )

    # --- raw <-> coordinates -----------------------------------------------------------

    def encode(
        self, raw: Mapping[str, np.ndarray], rng: np.random.Generator | None = None
    ) -> Encoded:
        """Coordinates of rows; a column that is not there counts as missing.

        With ``rng`` modes and ranks are drawn where several would do (for training), without it
        the likeliest is taken (for conditioning).
        """
        rows = len(next(iter(raw.values()))) if raw else 0
        values = np.tile(self.neutral, (rows, 1))
        observed = np.zeros((rows, len(self._coded)), dtype=bool)
        for position, (name, coded) in enumerate(self._coded.items()):
            if name not in raw:
                continue
            present = ~np.isnan(raw[name])
            observed[:, position] = present
            if present.any():
                at = np.flatnonzero(self.owner == position)
                values[np.ix_(present, at)] = coded.codec.encode(raw[name][present], rng)
        return Encoded(values, observed)

    def decode(self, values: np.ndarray, rng: np.random.Generator | None = None) -> Raw:
        """Coordinates as raw numbers of *all* columns of the schema.

        Softmax spans hold scores: the largest wins or, with ``rng``, one is drawn by the scores.
        """
        result: Raw = {}
        positions = {name: position for position, name in enumerate(self._coded)}
        for name in self.schema:
            if name in self._coded:
                part = values[:, self.owner == positions[name]]
                coded = self._coded[name]
                result[name] = coded.finish(coded.codec.decode(part, rng))
            else:
                result[name] = np.full(len(values), self._constant.get(name, np.nan))
        return result

    def average(self, raw: Mapping[str, np.ndarray]) -> Raw:
        """One number per row out of several: the mean, rounded as the column is, or the majority.

        **Shape**: (draws, n) -> (n,) for every column
        """
        return {
            name: _majority(numbers)
            if name in self._seen
            else (self._coded[name].finish(numbers.mean(0)) if name in self._coded else numbers[0])
            for name, numbers in raw.items()
        }

    # --- the wire ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire; `from_dict` gives the same encoder back."""
        return {
            "options": {each.name: getattr(self, each.name) for each in fields(self) if each.init},
            "schema": self.schema.to_dict(),
            "seen": self._seen,
            "constant": self._constant,
            "coded": [
                {
                    "column": name,
                    "codec": coded.codec.name,
                    "fitted": coded.codec.to_dict(),
                    "low": coded.low,
                    "high": coded.high,
                    "decimals": coded.decimals,
                }
                for name, coded in self._coded.items()
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoder:
        """The encoder that `to_dict` described."""
        encoder = cls(**values["options"])
        encoder.schema = Schema.from_dict(values["schema"])
        encoder._seen = dict(values["seen"])
        encoder._constant = dict(values["constant"])
        for entry in values["coded"]:
            codec = CODECS[entry["codec"]](**entry["fitted"])
            encoder._coded[entry["column"]] = _Coded(
                codec, entry["low"], entry["high"], entry["decimals"]
            )
        encoder._lay_out()
        return encoder


def _majority(codes: np.ndarray) -> np.ndarray:
    """The most frequent code of every column of (draws, n); of equals, the lowest."""
    if len(codes) == 1 or np.isnan(codes).any():
        return codes[0]
    draws = np.sort(codes, axis=0)
    # The code whose run in the sorted draws is longest.
    run, best = np.ones(draws.shape[1]), np.ones(draws.shape[1])
    winner = draws[0].copy()
    for previous, present in pairwise(draws):
        run = np.where(present == previous, run + 1, 1)
        winner = np.where(run > best, present, winner)
        best = np.maximum(best, run)
    return winner


def _numbers(column: Column, series: pd.Series) -> np.ndarray:
    try:
        return as_numbers(column, series)
    except (TypeError, ValueError) as error:
        present = series.dropna()
        raise DataError(
            "numbers were expected here",
            column=column.name,
            value=present.iloc[0] if len(present) else None,
            mend="read the column with the same type as in the rows the generator was fitted on",
        ) from error


def _decimals(values: np.ndarray) -> int | None:
    """How many decimals all values have, if they have few."""
    for decimals in range(_MAX_DECIMALS + 1):
        if np.array_equal(np.round(values, decimals), values):
            return decimals
    return None


# --- activations ----------------------------------------------------------------------


class Heads:
    """The output activations of a whole row at once, as an encoder's spans ask for them.

    A table has dozens of spans; a Python loop over them would dominate a training step. All softmax
    spans are normalised together with one scatter and one matrix product.

    Boolean masks over the coordinates, **shape** (width,): ``softmax``, ``tanh``, ``sigmoid``;
    ``scalar`` is all but softmax. ``span`` and ``sizes`` give each coordinate's span and that
    span's width, ``member`` (width, spans) has a one at each coordinate's span, ``groups`` are
    where softmax spans start and stop.
    """

    def __init__(self, encoder: Encoder, device: torch.device) -> None:
        kinds = [span.activation for span in encoder.spans for _ in range(span.start, span.stop)]
        numbers = [n for n, span in enumerate(encoder.spans) for _ in range(span.start, span.stop)]
        self.softmax, self.tanh, self.sigmoid = (
            torch.tensor([kind == wanted for kind in kinds], device=device)
            for wanted in ("softmax", "tanh", "sigmoid")
        )
        self.scalar = ~self.softmax
        self._kinds = set(kinds)  # asked of a tensor, CUDA would stop for the answer
        self.span = torch.tensor(numbers, dtype=torch.int64, device=device)
        self.n_spans = len(encoder.spans)
        self.groups = [(s.start, s.stop) for s in encoder.spans if s.activation == "softmax"]
        widths = [span.stop - span.start for span in encoder.spans]
        self.sizes = torch.tensor(widths, dtype=torch.float32, device=device)[self.span]
        self._start, self._stop = (
            torch.tensor(edges, dtype=torch.int64, device=device)
            for edges in zip(*((span.start, span.stop) for span in encoder.spans), strict=True)
        )
        self._drawn = self.softmax[self._start].float()
        self._before = self._drawn.cumsum(0, dtype=torch.float64) - self._drawn
        self.member = torch.zeros(len(numbers), self.n_spans, device=device)
        self.member[torch.arange(len(numbers), device=device), self.span] = 1.0

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities within every softmax span; 0 at scalar coordinates.

        **Shape**: (n, width) -> (n, width)
        """
        with torch.no_grad():
            floor = torch.full((len(logits), self.n_spans), -torch.inf, device=logits.device)
            index = self.span.expand(len(logits), -1)
            peak = floor.to(logits.dtype).scatter_reduce(1, index, logits.detach(), "amax")
        shifted = logits - peak[:, self.span]
        total = shifted.exp() @ self.member.to(logits.dtype)
        # As a product: the gradient of an index is slow, and on CUDA not the same every time.
        return (shifted - total.log() @ self.member.to(logits.dtype).T) * self.softmax

    def draw(self, weights: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """One category for every softmax span, as indicators; 0 at scalar coordinates.

        **Shape**: (n, width) of weights, not negative, of any sum -> (n, width)
        """
        member = self.member.to(weights.dtype)
        weights = torch.where(self.softmax, weights.clamp(min=1e-30), 0.0)
        totals = (weights @ member).clamp(min=1e-30)
        # Every softmax span adds one to the sums, so that one search finds all categories.
        sums = (weights * (totals.reciprocal() @ member.T)).cumsum(1, dtype=torch.float64)
        lots = torch.rand(len(sums), self.n_spans, generator=generator, device=sums.device)
        at = torch.searchsorted(sums, self._before + lots, right=True)
        at = at.maximum(self._start).minimum(self._stop - 1)
        ones = self._drawn.to(weights.dtype).expand(len(at), -1)
        return torch.zeros_like(weights).scatter_(1, at, ones)

    @staticmethod
    def _gumbel(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        return -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))

    def activate(
        self,
        logits: torch.Tensor,
        gumbel: float | None = None,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """The row itself: softmax, tanh, sigmoid or nothing, as each span asks.

        With ``gumbel`` (a temperature) softmax spans become relaxed draws instead of probabilities.
        """
        scores = logits
        if gumbel is not None:
            scores = (logits + self._gumbel(logits, generator)) / gumbel
        result = torch.where(self.softmax, self.log_softmax(scores).exp(), logits)
        if "tanh" in self._kinds:
            result = torch.where(self.tanh, logits.tanh(), result)
        if "sigmoid" in self._kinds:
            result = torch.where(self.sigmoid, logits.sigmoid(), result)
        return result

    def cross_entropy(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Summed over the softmax spans, per row; a span of zeros in ``target`` (missing) adds 0.

        **Shape**: (n, width), (n, width) -> (n,)
        """
        return -(self.log_softmax(logits) * target).sum(1)
