"""New rows by who knows them, and what the model says of each group.

Rows that several parties know are found by private set intersection, the largest groups first.
Every group is predicted by those who know it: no row is an error, whoever is absent. Each party
keeps the answers beside its own ids, which leave it at no time; the coordinator learns how many
rows are in each group.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._files import beside
from fedmend.data.writers import write_frame
from fedmend.errors import AlignmentError, DataError, FedmendWarning, TooFewCommon
from fedmend.federation import Alignment, AlignmentCounts, Federation, WorkerGroup
from fedmend.federation.bound import but, declare
from fedmend.federation.worker import Worker, exposed
from fedmend.learn.metrics import expected_error
from fedmend.methods.contract import frame_of
from fedmend.methods.horizontal.worker import kept_predictions
from fedmend.methods.network import NetworkEstimator
from fedmend.secure.align import align
from fedmend.split.features import ALIGNED, among

PREDICTIONS_FILE = "predictions.csv"
# Beyond it, the sets of parties are too many to intersect one by one.
MAX_INTERSECTED_PARTIES = 4


# ---------------------------------------------------------------- at the party


class PredictionWorker(Worker):
    """Groups of rows by who knows them, and what was predicted of each."""

    def __init__(self, site: Any, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._taken = np.zeros(len(self.table), bool)
        self._groups: dict[str, np.ndarray] = {}
        self._parts: list[Any] = []
        self._foreign: list[tuple[np.ndarray, np.ndarray]] = []

    @exposed(kind="count", over_rows=False)
    def rows(self) -> int:
        return len(self.table)

    @exposed(kind="count", over_rows=False)
    def claim(self, group: str, scope: str | None = None) -> int:
        """A group of rows: those aligned in `scope` that no larger group has, or all that are left.

        Whoever knows a row of a group knows it in every larger group it is in, so that all
        parties of a group leave out the same rows.
        """
        rows = np.arange(len(self.table)) if scope is None else self.site.alignments[scope].aligned
        self._groups[group] = rows[~self._taken[rows]]
        self._taken[self._groups[group]] = True
        return len(self._groups[group])

    @exposed(kind="control")
    def close_groups(self) -> None:
        """Forget all groups: every row is this party's own."""
        self._groups.clear()
        self._taken[:] = False

    @exposed(kind="control")
    def choose(self, group: str, alone: bool) -> None:
        """From now on this scope's rows are the group's; a party that is not in it has none."""
        rows = self._groups.get(group, np.zeros(0, np.int64))
        self.site.alignments[self.scope] = (
            Alignment(rows[:0], rows) if alone else Alignment(rows, rows[:0])
        )

    @exposed(kind="control", takes={"answers": "prediction"})
    def take(
        self,
        group: str,
        known_to: str,
        used: str,
        answers: dict[str, Any],
        classes: list[Any] | None = None,
    ) -> None:
        """Predictions of a group's rows, in its order; columns by name.

        classes: what the predictions are the numbers of, where they are no numbers themselves.
        """
        rows = self._groups[group]
        count = len(answers["prediction"])
        if count != len(rows):
            raise DataError(
                f"{count:,} predictions came for {len(rows):,} rows",
                party=self.site.name,
                mend="the same tables from alignment to prediction",
            )
        if classes:
            answers = answers | {"prediction": pd.Series(classes)[answers["prediction"]].to_numpy()}
        self._keep(rows, pd.DataFrame(answers), known_to, used)

    @exposed(kind="control")
    def take_kept(self, group: str) -> None:
        """Predictions of all rows that this party made itself, with a model that was sent in."""
        classes, found = kept_predictions(self.site, self.scope.partition("@")[0])
        rows = self._groups[group]
        answers = frame_of(classes, found[rows], expected_error(found[rows]), {})
        self._keep(rows, answers, self.site.name, self.site.name)
        self._foreign.append((rows, found[rows]))

    def _keep(self, rows: np.ndarray, answers: pd.DataFrame, known_to: str, used: str) -> None:
        head = {"id": self.table.ids[rows], "known_to": known_to, "used": used}
        self._parts.append((rows, pd.concat([pd.DataFrame(head), answers], axis=1)))

    @exposed(kind="control")
    def write(self, path: str) -> None:
        """One file with all of them, in the order of this party's table; whole or not at all."""
        file = self.site.folder(path) / PREDICTIONS_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside(file) as part:
            write_frame(self._frame(), part, float_format="%.7g")

    @exposed(kind="prediction")
    def answers(self) -> dict[str, Any]:
        """The same to whoever gave the rows: their numbers in this party's table, and no ids."""
        site = self.site
        for place, found in self._foreign:
            ids = self.table.ids[place]
            site.predicted.admit(site.name, site.policy, ids, found, foreign=True)
        frame = self._frame().drop(columns="id")
        rows = np.sort(np.concatenate([place for place, _ in self._parts]))
        return {"row": rows.tolist(), **{str(name): frame[name].tolist() for name in frame}}

    def _frame(self) -> pd.DataFrame:
        places = np.concatenate([place for place, _ in self._parts])
        whole = pd.concat([part for _, part in self._parts], ignore_index=True)
        return whole.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


# The answers of rows that a party calls its own are written there, and go nowhere else.
declare("predict", but(PredictionWorker, "answers"))


# ---------------------------------------------------------------- at the coordinator


@dataclass(frozen=True)
class Predicted:
    """What was predicted at one party: rows that others knew too, and that it alone knew.

    path: its file; None where the party keeps it on its own machine, and `kept` says where.
    skipped: rows of which the model uses no column.
    """

    party: str
    method: str
    shared: int
    alone: int
    path: Path | None = None
    skipped: int = 0
    kept: str = ""

    @property
    def rows(self) -> int:
        return self.shared + self.alone


@dataclass(frozen=True)
class Group:
    """Rows that exactly these parties know."""

    parties: tuple[str, ...]
    rows: int

    @property
    def name(self) -> str:
        return "+".join(self.parties)


def groups_of(
    fed: Federation, workers: WorkerGroup, present: Sequence[str], align_with: Mapping[str, Any]
) -> list[Group]:
    """The rows of the present parties, by who knows them."""
    found: list[Group] = []
    for some in _sets(present):
        view = fed.only(*some)
        try:
            align(view, **align_with)
        except AlignmentError:
            continue  # nobody is known to all of these
        except TooFewCommon as error:
            # A party keeps out of so small an intersection: whoever is in it counts as its own.
            _note_refused(some, error.party)
            found.clear()
            workers.close_groups()
            break
        counts = {workers[party].claim("+".join(some), view.scope) for party in some}
        if len(counts) != 1:
            raise AlignmentError(
                f"{', '.join(some)} disagree on the rows they share: {sorted(counts)}. "
                "Mend: the same tables while predicting"
            )
        found.append(Group(some, counts.pop()))
    found += [Group((party,), workers[party].claim(party)) for party in present]
    return [group for group in found if group.rows]


def _note_refused(parties: Sequence[str], refusing: str) -> None:
    """Say why nobody is joined; who the people are, and how many, stays untold."""
    warnings.warn(
        f"fewer people are known to all of {', '.join(parties)} than party {refusing!r} takes part "
        "with (min_intersection in its policy): every row is predicted as one party's own. Mend: "
        "min_intersection = 1 in [party.policy] of each party in the run's federation.toml (over "
        "machines in [policy] of its party.toml), or ask about more people at once",
        FedmendWarning,
        stacklevel=3,
    )


def _sets(present: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Sets of two parties and more, the largest first."""
    if len(present) > MAX_INTERSECTED_PARTIES:
        yield tuple(present)
        return
    for size in range(len(present), 1, -1):
        yield from combinations(present, size)


def ask_split(
    model: NetworkEstimator,
    fed: Federation,
    workers: WorkerGroup,
    groups: Sequence[Group],
    title: str,
) -> list[Predicted]:
    """Every group's predictions, to the label party where it knows the rows, or to the first."""
    network = model.network_
    counts: dict[str, list[int]] = {}
    for group in groups:
        users = [name for name in group.parties if name in network.parties]
        able = users or group.parties
        holder = network.label_party if network.label_party in group.parties else able[0]
        # shared, local-only, skipped
        kind = 2 if not users else int(len(group.parties) == 1)
        counts.setdefault(str(holder), [0, 0, 0])[kind] += group.rows
        if users:
            answers, classes = _answers(model, fed, workers, group)
            known_to, used = " ".join(group.parties), " ".join(users)
            workers[holder].take(group.name, known_to, used, answers, classes)
    found = [
        Predicted(party, title, shared, alone, skipped=skipped)
        for party, (shared, alone, skipped) in counts.items()
    ]
    if not any(each.rows for each in found):
        names = dict.fromkeys(name for group in groups for name in group.parties)
        raise DataError(
            f"{type(model).__name__} uses no column of {', '.join(names)}",
            mend=f"--with {network.parties[0]}=rows.csv, or another --method",
        )
    return found


def _answers(
    model: NetworkEstimator, fed: Federation, workers: WorkerGroup, group: Group
) -> tuple[dict[str, Any], list[Any] | None]:
    """As wire values: arrays by name, and the classes that predictions are the numbers of."""
    alone = len(group.parties) == 1
    workers.choose(group.name, alone)
    unaligned = dict.fromkeys(fed.names, 0)
    if alone:
        unaligned[group.parties[0]] = group.rows
    fed.note_alignment(AlignmentCounts(0 if alone else group.rows, unaligned))
    needed = {*model.network_.parties, model.network_.label_party} - {None}
    everybody = needed <= set(group.parties)
    segment = group.parties[0] if alone else ALIGNED if everybody else among(group.parties)
    table = model.predict_table(fed, rows=segment)
    columns = {str(name): values.to_numpy() for name, values in table.items()}
    if columns["prediction"].dtype.kind in "biuf":
        return columns, None
    numbers, classes = table["prediction"].factorize(use_na_sentinel=False)
    return columns | {"prediction": numbers}, classes.tolist()


def ask_horizontal(
    model: Any, fed: Federation, workers: WorkerGroup, title: str
) -> list[Predicted]:
    """Every party's rows by the common model; what it says of them stays there."""
    found = []
    for party, rows in model.predict_here(fed).items():
        workers[party].claim(party)
        workers[party].take_kept(party)
        found.append(Predicted(party, title, 0, rows))
    return found
