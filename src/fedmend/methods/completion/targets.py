"""Models of many of party B's columns at once, for rows of which only party A has columns.

    with LinearModels(fed, "bank", "telco", targets=["minutes", "plan"]) as models:
        report = models.fit()          # on the training rows of B's board
        models.predict()               # B holds the outputs, by row number: board_of(site, model)

The families (`linear.py`, `trees.py`) share this interface and B's board (`board.py`), so that
self-training can go round after round: between two calls of `fit`, a worker at B lets rows with
pseudo-labels join the training sets. Which rows those are stays at B: products always run over all
numbered rows (or over the aligned ones, as long as no other row is used), with zeros elsewhere.

Products are taken over rows that are not the alignment's. They run in a *scope* of the model's
own, in which every party lists the rows as numbered here; see `TargetModels.scoped`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedmend.errors import AlignmentError, ConfigError
from fedmend.federation.rows import Asked
from fedmend.federation.site import Alignment
from fedmend.federation.worker import exposed
from fedmend.methods.completion.beyond import columns_changed, columns_within, lead_right
from fedmend.methods.completion.board import Board, board_of, make_board, state_key
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.columns import hold_columns
from fedmend.secure.inner_product import Mode
from fedmend.split.features import ALIGNED, Segments, check_names, own_rows

if TYPE_CHECKING:
    from fedmend.data.table import Table
    from fedmend.federation.federation import Federation
    from fedmend.federation.site import Site

__all__ = ["FitReport", "TargetModels", "TargetWorker"]

Progress = Callable[[str, int, int], None]
MODES = ("dealer", "bfv", "plain")


@dataclass(frozen=True)
class FitReport:
    """Which targets have a model now, and why the others have none."""

    fitted: list[str]
    failed: dict[str, str] = field(default_factory=dict)


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
        least = site.policy.min_intersection
        if len(self.alignment.aligned) < least:
            raise AlignmentError(
                f"party {site.name!r} takes part from {least} aligned rows on, here are "
                f"{len(self.alignment.aligned)}. Mend: more common rows, or a smaller "
                "min_intersection in its policy"
            )
        self.model = model
        self.rows = own_rows(site.name, segments, self.alignment, len(self.table))
        self.aligned = len(self.alignment.aligned)

    def features(self) -> Table:
        """A: its numbered rows, without columns that lie beyond the aligned rows' values."""
        table = self.table.take(self.rows)
        return table if self.beyond else table.select(columns_within(table, self.aligned))

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
        """Drop the scopes and intermediate arrays; B's board stays."""
        for scope in [scope for scope in self.site.alignments if self.model in scope]:
            del self.site.alignments[scope]
        keep = state_key(self.model, "board")
        for key in [key for key in self.site.state if key.startswith(f"{self.model}:")]:
            if key != keep:
                del self.site.state[key]

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self.alignment.aligned]

    def keep(self, name: str, values: Any) -> None:
        self.site.state[state_key(self.model, name)] = values

    def keep_columns(
        self, name: str, values: np.ndarray, bound: int, square_sum: int | None = None
    ) -> None:
        """Keep integers for products, with bounds that follow from public facts."""
        hold_columns(self.site, state_key(self.model, name), values, bound, square_sum)

    def kept(self, name: str) -> Any:
        return self.site.state[state_key(self.model, name)]


class BoardWorker(TargetWorker):
    """B's side: owns the board. Subclasses learn from it."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        model: str,
        segments: Segments,
        targets: Sequence[str] | None = None,
        own: Sequence[str] = (),
        ordinal: str = "classes",
    ) -> None:
        super().__init__(site, scope, model=model, segments=segments)
        key = state_key(model, "board")
        if key not in site.state:
            site.state[key] = make_board(
                site.name, self.table, self.alignment, len(self.rows), targets, own, ordinal
            )

    @property
    def board(self) -> Board:
        return board_of(self.site, self.model)

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        """The targets by name and task, and those that cannot be learnt."""
        board = self.board
        return {
            "targets": {name: board[name].task for name in board.learnt},
            "failed": dict(board.failed),
        }

    @exposed(kind="count")
    def reach(self) -> int:
        """How many numbered rows training needs: the aligned ones, or all."""
        beyond = any(self.board[name].labelled[self.aligned :].any() for name in self.board.learnt)
        return len(self.rows) if beyond else self.aligned


class TargetModels:
    """The coordinator's half of every family.

    a, b: the party whose columns predict, and the party whose columns are predicted.
    targets: B's columns to learn (None: all its features with one value a row).
    own: B's columns that are features as well; each target leaves itself out.
    ordinal: learn ordinal targets as "classes" or as "ranks".
    mode: of the products (see docs/inner-products.md).
    beyond: use A's columns also where its other rows lie beyond the values of the aligned ones;
    otherwise columns that do so on the whole are left out (`beyond.py`).
    model: a name for what is kept at the parties; made up if None. Giving the name of a board that
    exists goes on with that board, so that several families can share it.
    """

    family = ""
    workers: tuple[type[TargetWorker], type[BoardWorker]]

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        targets: Sequence[str] | None = None,
        own: Sequence[str] = (),
        ordinal: str = "classes",
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
        self._crew_a = fed.workers(at_a, parties=[a], **common, **for_a)
        try:
            self._crew_b = fed.workers(
                at_b,
                parties=[b],
                **common,
                targets=None if targets is None else list(targets),
                own=list(own),
                ordinal=ordinal,
                **(params or {}).get("b", {}),
            )
        except BaseException:
            self._crew_a.stop()
            raise
        introduce(self._crew_a, self._crew_b)
        self.targets: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._report()

    @property
    def at_a(self) -> Any:
        return self._crew_a[self.a]

    @property
    def at_b(self) -> Any:
        return self._crew_b[self.b]

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
        """Stop the workers; B keeps the board."""
        for crew, proxy in ((self._crew_a, self.at_a), (self._crew_b, self.at_b)):
            proxy.close_scopes()
            crew.stop()

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
