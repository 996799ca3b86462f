"""Models of many of party B's columns at once, for rows of which only party A has columns.

    with LinearModels(fed, "bank", "telco", targets=["minutes", "plan"]) as models:
        report = models.fit()          # on the training rows of B's target store
        models.predict()               # B holds the outputs, by row number: store_of(site, model)

The families (`linear.py`, `trees.py`, `neural.py`) share this interface and B's target store, so
that self-training can go round after round: between two calls of `fit`, a worker at B lets rows
with pseudo-labels join the training sets. Which rows those are stays at B: products always run over
all numbered rows (or over the aligned ones, as long as no other row is used), with zeros elsewhere.

Rows are numbered as in `split/features.py`: first the aligned rows in their common order, then the
rows that only A has, in A's order. Products over these are not over the alignment's rows. They run
in a *scope* of the model's own, in which every party lists the rows as numbered here; see
`TargetModels.scoped`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from fedmend.data.encode import as_numbers, from_numbers
from fedmend.data.schema import Column
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.federation.federation import Federation
from fedmend.federation.rows import Asked
from fedmend.federation.site import Alignment, Site
from fedmend.federation.worker import exposed
from fedmend.methods.completion.screening import columns_changed, columns_within, lead_right
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.columns import hold_columns, keep_products
from fedmend.secure.inner_product import Mode
from fedmend.split.features import ALIGNED, Segments, check_names, own_rows

Progress = Callable[[str, int, int], None]
MODES = ("dealer", "bfv", "plain")
LARGEST_NUMBER = 1e100  # beyond it squares overflow


# ---------------------------------------------------------------------------------- what B keeps


@dataclass
class TargetColumn:
    """One of B's columns over all numbered rows, as models want it.

    Standardised float64 (NaN: none) for numbers, int64 class numbers (-1: none) for classes.
    task: "regression", "binary" or "multiclass". classes: positions among the column's categories
    that were seen. truth: what B observed. labels: what models train on (truth, and later
    pseudo-labels). outputs: the last predictions, [n] or class probabilities [n, C], NaN where none
    were made. spread: regression only, how uncertain each output is, in units of the standardised
    target. aside: what columns that lie elsewhere say of the aligned rows (`linear.AsideModels`):
    of numbers a part of the truth that models are not to learn; of classes probabilities [n, C].
    """

    column: Column
    task: str
    classes: np.ndarray
    mean: float
    scale: float
    truth: np.ndarray
    labels: np.ndarray
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

    def write(self, outputs: np.ndarray, rows: slice | np.ndarray) -> None:
        """Outputs of some rows; those of the others stay, or are none yet."""
        if self.outputs is None:
            self.outputs = np.full((len(self.labels), *outputs.shape[1:]), np.nan)
        self.outputs[rows] = outputs

    def decode(self, values: np.ndarray) -> pd.Series:
        """Standardised values or class numbers as the column's own values and type."""
        if self.is_class:
            numbers = np.append(self.classes.astype(np.float64), np.nan)
            return from_numbers(self.column, numbers[np.asarray(values, dtype=np.int64)])
        real = np.asarray(values, dtype=np.float64) * self.scale + self.mean
        return from_numbers(self.column, real)


class TargetStore(dict[str, TargetColumn]):
    """What B keeps while models learn its columns, by name; it lives in B's site and never crosses.

    Whoever works at B reads and changes it between rounds:

        rows = store.waiting("income")                  # not in the training set of this target yet
        store["income"].outputs[rows]                   # predictions: [n], or probabilities [n, C]
        store.adopt("income", rows[best], values)       # they become training rows

    targets: the names that are learnt. failed: targets that cannot be learnt, and why (without a
    value in it: the reasons cross).
    """

    def __init__(self, aligned: int, rows: int) -> None:
        super().__init__()
        self.aligned = aligned
        self.rows = rows
        self.targets: list[str] = []
        self.failed: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        party: str,
        table: Table,
        alignment: Alignment,
        rows: int,
        targets: Sequence[str] | None,
    ) -> TargetStore:
        """The store over `rows` numbered rows, of which the first are the aligned ones."""
        scalars = [name for name in table.feature_names if name not in table.blocks]
        store = cls(len(alignment.aligned), rows)
        store.targets = list(scalars if targets is None else targets)
        for name in dict.fromkeys(store.targets):
            if name not in table.names or name in table.blocks:
                raise DataError(
                    "there is no such column with one value a row",
                    party=party,
                    column=name,
                    mend=f"name some of {', '.join(scalars)}",
                )
            made = _target_column(table, name, alignment.aligned, rows)
            if isinstance(made, TargetColumn):
                store[name] = made
            else:
                store.failed[name] = made
        return store

    @property
    def learnt(self) -> list[str]:
        """The targets that have not failed."""
        return [name for name in self.targets if name not in self.failed]

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


def store_of(site: Site, model: str) -> TargetStore:
    """The target store of a model at B's site."""
    store = site.state.get(f"{model}:targets")
    if not isinstance(store, TargetStore):
        raise NotFitted(
            f"party {site.name!r} has no target store of {model!r}. Mend: set the models up"
        )
    return store


def _target_column(table: Table, name: str, aligned: np.ndarray, rows: int) -> TargetColumn | str:
    """The column, or why it cannot be learnt."""
    column = table.schema[name]
    real = as_numbers(column, table.frame[name].iloc[aligned])
    seen = ~np.isnan(real)
    distinct = np.unique(real[seen])
    if len(distinct) == 0:
        return "has no value among the aligned rows"
    if len(distinct) == 1:
        return "has one value only among the aligned rows"
    if max(-distinct[0], distinct[-1]) > LARGEST_NUMBER:
        return "holds numbers whose squares are none"
    if column.is_categorical:
        truth: np.ndarray = np.full(rows, -1, dtype=np.int64)
        truth[: len(real)][seen] = np.searchsorted(distinct, real[seen])
        task = "binary" if len(distinct) == 2 else "multiclass"
        classes = distinct.astype(np.int64)
        return TargetColumn(column, task, classes, 0.0, 1.0, truth, truth.copy())
    mean, scale = float(np.nanmean(real)), float(np.nanstd(real))
    truth = np.full(rows, np.nan)
    truth[: len(real)] = (real - mean) / scale
    none = np.zeros(0, np.int64)
    return TargetColumn(column, "regression", none, mean, scale, truth, truth.copy())


# ---------------------------------------------------------------------------------- the parties


class TargetWorker(SealingWorker):
    """What the workers of both sides and all families share: row numbers and scopes."""

    conversation = "target models"

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        model: str,
        segments: Segments,
        beyond: bool = True,
    ) -> None:
        super().__init__(site, scope)
        self.beyond = beyond
        self.aligned = len(self.alignment.aligned)
        site.policy.admit_aligned(site.name, self.aligned)
        self.model = model
        self.rows = own_rows(site.name, segments, self.alignment, len(self.table))

    def features(self) -> Table:
        """A: its numbered rows, without columns that lie beyond the aligned rows' values."""
        table = self.table.take(self.rows)
        return table if self.beyond else table.select(columns_within(table, self.aligned))

    def nothing_varies(self) -> DataError:
        return DataError(
            "no column varies, so nothing can be predicted from them",
            party=self.site.name,
            mend="give the party columns with one value a row that vary",
        )

    @exposed(kind="statistic")
    def left_out(self) -> list[str]:
        """A: the names of the columns that models do not see for that reason."""
        stay = self.features().feature_names
        return [name for name in self.table.feature_names if name not in stay]

    @exposed(kind="statistic")
    def changed(self) -> list[str]:
        """A: the names of those that models see and that are distributed in another way there.

        None, if they tell A itself the right thing of its columns that are left out.
        """
        table, stay = self.table.take(self.rows), self.features()
        names = columns_changed(stay, self.aligned)
        gone = [name for name in table.feature_names if name not in stay.feature_names]
        return [] if names and lead_right(table, self.aligned, names, gone) else names

    @exposed(kind="control")
    def open_scope(self, scope: str, length: int) -> None:
        """Let products run over `length` numbered positions under this name."""
        if self.model not in scope:
            raise ConfigError(f"the scope {scope!r} is not one of {self.model!r}")
        # Whoever looked for rows of the table under this name must find none: as many of the
        # last one (-1) would pass for enough to compute a mean of.
        nowhere = np.full(length, np.iinfo(np.int64).max)
        self.site.alignments[scope] = Alignment(nowhere, np.zeros(0, np.int64))

    @exposed(kind="control")
    def close_scopes(self) -> None:
        """Drop the scopes and intermediate arrays; B's target store stays."""
        for scope in [scope for scope in self.site.alignments if self.model in scope]:
            del self.site.alignments[scope]
        for key in [key for key in self.site.state if key.startswith(f"{self.model}:")]:
            if key != f"{self.model}:targets":
                del self.site.state[key]

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self.alignment.aligned]

    def keep(self, name: str, values: Any) -> None:
        self.site.state[f"{self.model}:{name}"] = values

    def keep_columns(
        self, name: str, values: np.ndarray, bound: int, square_sum: int | None = None
    ) -> None:
        """Keep integers for products, with bounds that follow from public facts."""
        hold_columns(self.site, f"{self.model}:{name}", values, bound, square_sum)
        keep_products(self.site, f"{self.model}:{name}", own=False)

    def kept(self, name: str) -> Any:
        return self.site.state[f"{self.model}:{name}"]


class StoreWorker(TargetWorker):
    """B's side: owns the target store. Subclasses learn from it."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        targets: Sequence[str] | None = None,
        **params: Any,
    ) -> None:
        super().__init__(site, scope, **params)
        if f"{self.model}:targets" not in site.state:
            store = TargetStore.of(site.name, self.table, self.alignment, len(self.rows), targets)
            self.keep("targets", store)

    @property
    def store(self) -> TargetStore:
        return store_of(self.site, self.model)

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        """The targets by name and task, and those that cannot be learnt."""
        store = self.store
        return {
            "targets": {name: store[name].task for name in store.learnt},
            "failed": dict(store.failed),
        }

    @exposed(kind="count")
    def reach(self) -> int:
        """How many numbered rows training needs: the aligned ones, or all."""
        beyond = any(self.store[name].labelled[self.aligned :].any() for name in self.store.learnt)
        return len(self.rows) if beyond else self.aligned


# ---------------------------------------------------------------------------------- coordinator


@dataclass(frozen=True)
class FitReport:
    """Which targets have a model now, and why the others have none."""

    fitted: list[str]
    failed: dict[str, str] = field(default_factory=dict)


class TargetModels:
    """What the coordinator does of every family.

    a, b: the party whose columns predict, and the party whose columns are predicted.
    targets: B's columns to learn (None: all its features with one value a row).
    mode: of the products (see docs/inner-products.md).
    beyond: use A's columns also where its other rows lie beyond the values of the aligned ones;
    otherwise columns that do so on the whole are left out (`screening.py`).
    model: a name for what is kept at the parties; made up if None. Giving the name of a target
    store that exists goes on with that store, so that several families can share it.
    """

    family = ""
    workers: tuple[type[TargetWorker], type[StoreWorker]]

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        targets: Sequence[str] | None = None,
        mode: Mode = "dealer",
        beyond: bool = True,
        model: str | None = None,
        params: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        if a == b or not {a, b} <= set(fed.names):
            raise ConfigError(
                f"a={a!r} and b={b!r} must be two parties. Mend: two of {', '.join(fed.names)}"
            )
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        check_names((a, b))
        self.fed, self.a, self.b = fed, a, b
        self.mode: Mode = mode
        self.model = model or f"targets-{secrets.token_hex(6)}"
        counts = fed.alignment
        self.n_aligned, self.n_rows = counts.aligned, counts.aligned + counts.unaligned[a]
        segments = [[ALIGNED, counts.aligned], [a, counts.unaligned[a]]]
        common = {"model": self.model, "segments": segments}
        at_a, at_b = self.workers
        for_a = {"beyond": bool(beyond), **(params or {}).get("a", {})}
        for_b = {
            "targets": None if targets is None else list(targets),
            **(params or {}).get("b", {}),
        }
        self._workers_a = fed.workers(at_a, parties=[a], **common, **for_a)
        try:
            self._workers_b = fed.workers(at_b, parties=[b], **common, **for_b)
        except BaseException:
            self._workers_a.stop()
            raise
        introduce(self._workers_a, self._workers_b)
        self.targets: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._report()

    @property
    def at_a(self) -> Any:
        return self._workers_a[self.a]

    @property
    def at_b(self) -> Any:
        return self._workers_b[self.b]

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        """Learn every target on its training rows."""
        raise NotImplementedError

    def predict(self, *, rows: str = "unaligned", progress: Progress | None = None) -> None:
        """Let B have the outputs for the rows only A has, or for "all" numbered rows."""
        raise NotImplementedError

    def scoped(self, name: str, length: int) -> Federation:
        """A view of the federation whose products run over `length` positions."""
        view = self.fed.on(f"{self.fed.dataset}@{self.model}-{name}-{length}")
        self.at_a.open_scope(view.scope, length)
        self.at_b.open_scope(view.scope, length)
        return view

    def close(self) -> None:
        """Stop the workers; B keeps the target store."""
        for group, proxy in ((self._workers_a, self.at_a), (self._workers_b, self.at_b)):
            proxy.close_scopes()
            group.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _report(self) -> FitReport:
        """Ask B how its targets do."""
        about = self.at_b.about()
        self.targets, self.failed = about["targets"], about["failed"]
        return FitReport(list(self.targets), dict(self.failed))

    def _first_row(self, rows: str) -> int:
        if rows not in ("unaligned", "all"):
            raise ConfigError(f"rows must be 'unaligned' or 'all', got {rows!r}")
        return self.n_aligned if rows == "unaligned" else 0
