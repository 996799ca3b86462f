"""What party B keeps while models learn its columns: targets, training rows, guesses, outputs.

Rows are numbered as in `features.py`: first the aligned rows in their common order, then the rows
that only A has, in A's order. The board lives in B's site state and never crosses; whoever works
at B (a method's worker, say) reads and changes it between rounds:

    board = board_of(site, model)
    rows = board.waiting("income")                      # not in the training set of this target yet
    board["income"].outputs[rows]                       # predictions: [n], or probabilities [n, C]
    board.adopt("income", rows[best], values)           # they become training rows
    board["income"].guess[...] = ...                    # what the other targets see as x^B

Values are kept as models want them: standardised float64 (NaN: none) for regression, int64 class
numbers (-1: none) for classes; `decode` turns them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.data.restore import positions, restore, restore_numbers
from fedmend.data.schema import Column
from fedmend.errors import ConfigError, DataError, NotFitted

if TYPE_CHECKING:
    from fedmend.data.table import Table
    from fedmend.federation.site import Alignment, Site

__all__ = ["Board", "TargetColumn", "board_of"]

ORDINAL = ("classes", "ranks")
LARGEST = 1e100


@dataclass
class TargetColumn:
    """One of B's columns over all numbered rows.

    task: "regression", "binary" or "multiclass". classes: positions among the column's categories
    that were seen. truth: what B observed. labels: what models train on (truth, and later
    pseudo-labels). guess: what other targets' models see (truth, else the current guess).
    outputs: the last predictions, [n] or class probabilities [n, C], NaN where none were made.
    spread: regression only, how uncertain each output is, in units of the standardised target.
    aside: what columns that lie elsewhere say of the aligned rows (`aside.py`): of numbers a part
    of the truth that models are not to learn; of classes probabilities [n, C].
    """

    column: Column
    task: str
    classes: np.ndarray
    mean: float
    scale: float
    truth: np.ndarray
    labels: np.ndarray
    guess: np.ndarray
    outputs: np.ndarray | None = None
    spread: np.ndarray | None = None
    aside: np.ndarray | None = None

    @property
    def goal(self) -> np.ndarray:
        """The truth, of numbers less what was set aside."""
        return self.truth if self.aside is None or self.is_class else self.truth - self.aside

    @property
    def is_class(self) -> bool:
        return self.task != "regression"

    @property
    def labelled(self) -> np.ndarray:
        """Which rows are training rows of this target."""
        return known(self.labels)

    def decode(self, values: np.ndarray) -> pd.Series:
        """Standardised values or class numbers as the column's own values and type."""
        if self.is_class:
            numbers = np.append(self.classes, -1)
            return restore(self.column, numbers[np.asarray(values, dtype=np.int64)])
        real = np.asarray(values, dtype=np.float64) * self.scale + self.mean
        if self.column.is_numeric:
            return restore_numbers(self.column, real, np.isnan(real))
        top = len(self.column.categories or ()) - 1
        absent = np.isnan(real)
        at = np.clip(np.rint(np.where(absent, 0.0, real)), 0, top).astype(np.int64)
        return restore(self.column, np.where(absent, -1, at))

    def made(self) -> np.ndarray:
        if self.outputs is None:
            raise NotFitted(f"nothing is predicted for {self.column.name!r} yet. Mend: predict")
        return self.outputs


class Board(Mapping[str, TargetColumn]):
    """All of B's columns that take part, by name.

    targets: the names that are learnt; the others are features only. failed: targets that cannot
    be learnt, and why (without a value in it: the reasons cross).
    """

    def __init__(self, aligned: int, rows: int) -> None:
        self.aligned = aligned
        self.rows = rows
        self.targets: list[str] = []
        self.own: list[str] = []
        self.failed: dict[str, str] = {}
        self._columns: dict[str, TargetColumn] = {}

    def __getitem__(self, name: str) -> TargetColumn:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def add(self, name: str, column: TargetColumn) -> None:
        self._columns[name] = column

    @property
    def learnt(self) -> list[str]:
        """The targets that have not failed."""
        return [name for name in self.targets if name not in self.failed]

    def features_of(self, target: str) -> list[str]:
        """B's columns that help to predict a target: all that were named but itself."""
        return [name for name in self.own if name != target]

    def waiting(self, name: str) -> np.ndarray:
        """Numbers of the rows only A has that are not training rows of this target."""
        free = ~self[name].labelled
        free[: self.aligned] = False
        return np.flatnonzero(free)

    def adopt(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Let rows that only A has join the target's training set with these pseudo-labels."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < self.aligned or rows.max() >= self.rows):
            raise ConfigError(
                f"pseudo-labels are for rows {self.aligned} … {self.rows - 1}, got "
                f"{int(rows.min())} … {int(rows.max())}"
            )
        target = self[name]
        if len(np.unique(rows)) != len(rows) or target.labelled[rows].any():
            raise ConfigError(f"a row has a label for {name!r} already. Mend: adopt a row once")
        target.labels[rows] = values

    def release(self, name: str) -> None:
        """Forget the target's pseudo-labels; its training rows are the observed ones again."""
        self[name].labels = self[name].goal.copy()


def known(values: np.ndarray) -> np.ndarray:
    """Which entries hold a value."""
    return values >= 0 if values.dtype.kind == "i" else ~np.isnan(values)


def board_of(site: Site, model: str) -> Board:
    """The board of a model at B's site."""
    board = site.state.get(f"{model}:board")
    if not isinstance(board, Board):
        raise NotFitted(f"party {site.name!r} has no board of {model!r}. Mend: set the models up")
    return board


def make_board(
    party: str,
    table: Table,
    alignment: Alignment,
    rows: int,
    targets: Sequence[str] | None,
    own: Sequence[str],
    ordinal: str,
) -> Board:
    """The board over `rows` numbered rows, of which the first are the aligned ones."""
    if ordinal not in ORDINAL:
        raise ConfigError(f"ordinal must be one of {ORDINAL}, got {ordinal!r}")
    scalars = [name for name in table.feature_names if name not in table.blocks]
    board = Board(len(alignment.aligned), rows)
    board.targets = list(scalars if targets is None else targets)
    for name in dict.fromkeys([*board.targets, *own]):
        if name not in table.names or name in table.blocks:
            raise DataError(
                "there is no such column with one value a row",
                party=party,
                column=name,
                mend=f"name some of {', '.join(scalars)}",
            )
        made = _target_column(table, name, alignment.aligned, rows, ordinal)
        if isinstance(made, TargetColumn):
            board.add(name, made)
        elif name in board.targets:
            board.failed[name] = made
    board.own = [name for name in own if name in board]
    return board


def _target_column(
    table: Table, name: str, aligned: np.ndarray, rows: int, ordinal: str
) -> TargetColumn | str:
    """The column, or why it cannot be learnt."""
    column = table.schema[name]
    series = table.frame[name].iloc[aligned]
    is_class = column.kind in ("binary", "nominal") or (
        column.kind == "ordinal" and ordinal == "classes"
    )
    if column.is_categorical:
        at = positions(series, column.categories or ())
        real = np.where(at < 0, np.nan, at.astype(np.float64))
    else:
        real = series.to_numpy(dtype=np.float64, na_value=np.nan)
    distinct = np.unique(real[~np.isnan(real)])
    if len(distinct) == 0:
        return "has no value among the aligned rows"
    if len(distinct) == 1:
        return "has one value only among the aligned rows"
    if max(-distinct[0], distinct[-1]) > LARGEST:
        return "holds numbers whose squares are none"
    return _encoded(column, real, distinct, is_class, rows)


def _encoded(
    column: Column, real: np.ndarray, distinct: np.ndarray, is_class: bool, rows: int
) -> TargetColumn:
    if is_class:
        truth: np.ndarray = np.full(rows, -1, dtype=np.int64)
        seen = ~np.isnan(real)
        truth[: len(real)][seen] = np.searchsorted(distinct, real[seen])
        task = "binary" if len(distinct) == 2 else "multiclass"
        classes, mean, scale = distinct.astype(np.int64), 0.0, 1.0
    else:
        mean, scale = float(np.nanmean(real)), float(np.nanstd(real))
        truth = np.full(rows, np.nan)
        truth[: len(real)] = (real - mean) / scale
        task, classes = "regression", np.zeros(0, np.int64)
    return TargetColumn(column, task, classes, mean, scale, truth, truth.copy(), truth.copy())


def indicators(values: np.ndarray, classes: int) -> np.ndarray:
    """float64 [n, classes], all zero where there is no value.

    >>> indicators(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    out = np.zeros((len(values), classes))
    rows = np.flatnonzero(values >= 0)
    out[rows, values[rows]] = 1.0
    return out


def state_key(model: str, *parts: Any) -> str:
    return ":".join([model, *map(str, parts)])
