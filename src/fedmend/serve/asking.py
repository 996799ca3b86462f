"""Who knows which rows, and what the model says of each group; the coordinator's side.

Rows that several parties know are found by private set intersection, the largest groups first.
Every group is predicted by those who know it: no row is an error, whoever is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.errors import AlignmentError, DataError, TooFewCommon
from fedmend.federation import AlignmentCounts, Crew, Federation
from fedmend.split.features import ALIGNED, among

if TYPE_CHECKING:
    import pandas as pd

    from fedmend.methods.network import NetworkEstimator

__all__ = ["Group", "Predicted", "ask_horizontal", "ask_split", "groups_of"]

# Beyond it, the sets of parties are too many to intersect one by one.
MOST_PARTIES = 4


@dataclass(frozen=True)
class Predicted:
    """What was written at one party: rows that others knew too, and that it alone knew.

    path: its file; None where the party keeps it on its own machine, and `kept` says where.
    skipped: rows of which the model uses no column.
    """

    party: str
    method: str
    shared: int
    alone: int
    path: Path | None
    skipped: int = 0
    kept: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that exactly these parties know."""

    parties: tuple[str, ...]
    rows: int

    @property
    def name(self) -> str:
        return "+".join(self.parties)


def groups_of(
    fed: Federation, crew: Crew, present: Sequence[str], align_with: Mapping[str, Any]
) -> list[Group]:
    """The rows of the present parties, by who knows them."""
    from fedmend.secure.align import align

    found: list[Group] = []
    for some in _sets(present):
        view = fed.only(*some)
        try:
            align(view, **align_with)
        except AlignmentError:
            continue  # nobody is known to all of these
        except TooFewCommon:
            # A party keeps out of so small an intersection: whoever is in it counts as its own.
            found.clear()
            crew.close_groups()
            break
        name = "+".join(some)
        counts = {crew[party].claim(name, view.scope) for party in some}
        if len(counts) != 1:
            raise AlignmentError(
                f"{', '.join(some)} disagree on the rows they share: {sorted(counts)}. "
                "Mend: the same tables while predicting"
            )
        if rows := counts.pop():
            found.append(Group(tuple(some), rows))
    for party in present:
        if rows := crew[party].claim(party):
            found.append(Group((party,), rows))
    return found


def _sets(present: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Sets of two parties and more, the largest first."""
    if len(present) > MOST_PARTIES:
        yield tuple(present)
        return
    for size in range(len(present), 1, -1):
        yield from combinations(present, size)


# ---------------------------------------------------------------- what the model says


def ask_split(
    model: NetworkEstimator, fed: Federation, crew: Crew, groups: Sequence[Group], title: str
) -> list[Predicted]:
    """Every group's predictions, to the label party where it knows the rows, or to the first."""
    network = model.network_
    counts: dict[str, list[int]] = {}
    for group in groups:
        users = [name for name in group.parties if name in network.parties]
        holder = network.label_party if network.label_party in group.parties else None
        told = counts.setdefault(str(holder or (users or group.parties)[0]), [0, 0, 0])
        if not users:
            told[2] += group.rows
            continue
        told[len(group.parties) == 1] += group.rows
        answers = _answers(model, fed, crew, group)
        party = holder or users[0]
        crew[party].take(group.name, " ".join(group.parties), " ".join(users), *answers)
    if not any(shared or alone for shared, alone, _ in counts.values()):
        names = dict.fromkeys(name for group in groups for name in group.parties)
        raise DataError(
            f"{type(model).__name__} uses no column of {', '.join(names)}",
            mend=f"--with {network.parties[0]}=rows.csv, or another --method",
        )
    return [
        Predicted(party, title, shared, alone, None, skipped)
        for party, (shared, alone, skipped) in counts.items()
    ]


_Answers = tuple[dict[str, Any], list[Any] | None]


def _answers(model: NetworkEstimator, fed: Federation, crew: Crew, group: Group) -> _Answers:
    alone = len(group.parties) == 1
    crew.choose(group.name, alone)
    unaligned = dict.fromkeys(fed.names, 0)
    if alone:
        unaligned[group.parties[0]] = group.rows
    fed.note_alignment(AlignmentCounts(0 if alone else group.rows, unaligned))
    needed = {*model.network_.parties, model.network_.label_party} - {None}
    everybody = needed <= set(group.parties)
    segment = group.parties[0] if alone else ALIGNED if everybody else among(group.parties)
    return _columns(model.predict_table(fed, rows=segment))


def ask_horizontal(model: Any, fed: Federation, crew: Crew, title: str) -> list[Predicted]:
    """Every party's rows by the common model; what it says of them stays there."""
    found = []
    for party, rows in model.predict_here(fed).items():
        crew[party].claim(party)
        crew[party].take_kept(party)
        found.append(Predicted(party, title, 0, rows, None))
    return found


def _columns(table: pd.DataFrame) -> _Answers:
    """As wire values: arrays by name, and the classes that predictions are the numbers of."""
    columns = {str(name): values.to_numpy() for name, values in table.items()}
    if columns["prediction"].dtype.kind in "biuf":
        return columns, None
    numbers, classes = table["prediction"].factorize(use_na_sentinel=False)
    return columns | {"prediction": numbers}, classes.tolist()
