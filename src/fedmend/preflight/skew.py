"""How far the parties' labels are distributed differently: class skew across horizontal clients.

With three labelling parties and more, the pooled counts come from a secure sum, and every party
works out its own distance to them: no party's counts leave it. With two, the pooled counts would
tell each the other's, so that the coordinator is told the counts instead, as a statistic.

The distance is the total variation: the largest difference between the two shares of any set of
classes, half the sum of |share here - share pooled|. A party with few labels is some way off by
chance alone; what chance would bring is worked out beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.encode import as_written
from fedmend.errors import DataError
from fedmend.federation import Federation, Site, exposed
from fedmend.federation.bound import declare
from fedmend.federation.rows import frequent
from fedmend.secure.sums import Summand, SumSession, SumWorker

# A party is called skewed from this distance on, if chance alone would not bring it half as far.
NOTABLE_DISTANCE = 0.1
CLASSES_AT_MOST = 1000
_HISTOGRAM = "labels of each class"


class ClassWorker(SumWorker):
    """A party's labels as counts of classes, which go into a sum or leave as a statistic."""

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._counts = np.zeros(0, np.int64)

    @exposed(kind="control", over_rows=True)
    def classes(self) -> dict[str, Any]:
        """The label column's name, and as text the labels that enough rows here have."""
        return {"label": self.table.label, "classes": sorted(self._told())}

    @exposed(kind="count")
    def attach(self, classes: list[str]) -> int:
        """Count these classes; tells how many rows have a label."""
        told = self._told()  # whichever classes are named: the others would be what is left
        self._counts = np.array([told.get(value, 0) for value in classes], np.int64)
        return len(self._values())

    def _told(self) -> dict[str, int]:
        """How often each class of enough rows occurs here."""
        codes, distinct = pd.factorize(np.array(self._values(), object))
        enough = frequent(codes, len(distinct), self.site.rows.least)
        return {str(distinct[code]): int((codes == code).sum()) for code in enough}

    def summand(self, name: str) -> Summand:
        if name == _HISTOGRAM:
            return Summand(self._counts, "label", "statistic")
        return super().summand(name)

    def about_rows(self, method: str) -> str:
        return "labels"

    @exposed(kind="statistic")
    def counts(self) -> np.ndarray:
        """How often each class occurs here; a class of too few rows counts as none."""
        return self._counts

    @exposed(kind="statistic", takes={"pooled": "statistic"})
    def distance(self, pooled: np.ndarray) -> float | None:
        """How far this party's shares of the classes are from the pooled ones."""
        return distance(self._counts, pooled)

    def _values(self) -> list[str]:
        table = self.table
        if table.label is None:
            return []
        if table.y.nunique() > CLASSES_AT_MOST:
            raise DataError(
                f"{table.y.nunique()} different labels are no classes",
                party=self.site.name,
                column=table.label,
                mend="name the column of class labels, or bin the numbers first",
            )
        return [str(as_written(value)) for value in table.y.dropna().tolist()]


@dataclass(frozen=True)
class PartySkew:
    """One party: its distance to all, and the distance that chance would bring.

    rows: its labelled rows. classes: how many of all classes it has labels of.
    """

    distance: float | None
    by_chance: float | None
    rows: int
    classes: int

    @property
    def notable(self) -> bool:
        if self.distance is None or self.by_chance is None:
            return False
        return self.distance >= NOTABLE_DISTANCE and self.distance > 2 * self.by_chance


@dataclass(frozen=True)
class Skew:
    """The pooled counts by class of the column `label`, and how far each party is from them.

    A class of too few rows at a party is not told by it, and so not among the pooled counts.
    """

    label: str
    pooled: dict[str, int]
    parties: dict[str, PartySkew]

    @property
    def mean(self) -> float | None:
        """The distance of a party, on average over the labelled rows."""
        known = [each for each in self.parties.values() if each.distance is not None]
        rows = sum(each.rows for each in known)
        if not rows:
            return None
        return sum(float(each.distance or 0) * each.rows for each in known) / rows

    @property
    def notable(self) -> list[str]:
        return [name for name, each in self.parties.items() if each.notable]

    @property
    def words(self) -> list[str]:
        """A sentence for the whole, and one for each party that is far off."""
        if self.mean is None:
            return []
        if not self.notable:
            return ["The classes are shared alike among the parties."]
        many, told = len(self.notable), sum(each.rows > 0 for each in self.parties.values())
        some = f"{many} of the {told}" if many < told else f"all {told}"
        names = " and ".join(self.notable) if many < 3 else f"{some} parties with labels"
        worst = max(self.notable, key=lambda name: self.parties[name].distance or 0.0)
        farthest = self.parties[worst]
        return [
            f"The classes are shared unevenly: {names} {'has' if many == 1 else 'have'} clearly "
            f"other shares of them than all together. {worst} is farthest off: "
            f"{100 * float(farthest.distance or 0):.0f} % of its labels would have to change "
            f"(chance alone: {100 * float(farthest.by_chance or 0):.0f} %)."
        ]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "label": self.label,
            "pooled": self.pooled,
            "parties": {name: asdict(each) for name, each in self.parties.items()},
            "mean": self.mean,
            "notable": self.notable,
            "words": self.words,
        }


def label_skew(fed: Federation, parties: Sequence[str] | None = None) -> Skew:
    """How differently the classes are shared among parties with the same columns.

    parties: by default all that have a label column.
    """
    labelled = list(fed.label_parties if parties is None else parties)
    if not labelled:
        raise DataError("no party has a label column", mend="name parties that have one")
    with fed.workers(ClassWorker, parties=labelled) as group:
        used = group.classes()
        classes = sorted({value for each in used.values() for value in each["classes"]})
        rows = {name: int(count) for name, count in group.attach(classes).items()}
        if len(labelled) > 2:
            # The session ends with the group.
            pooled = SumSession(group).sum(_HISTOGRAM, between=(0, max(1, *rows.values()))).values
            found = group.distance(pooled)
        else:
            counts = group.counts()
            pooled = np.sum(list(counts.values()), axis=0)
            found = {name: distance(own, pooled) for name, own in counts.items()}
    return Skew(
        str(used[labelled[0]]["label"]),
        {value: int(count) for value, count in zip(classes, pooled, strict=True)},
        {
            name: PartySkew(
                found[name],
                by_chance(np.asarray(pooled), rows[name]),
                rows[name],
                len(used[name]["classes"]),
            )
            for name in labelled
        },
    )


def distance(counts: np.ndarray, pooled: np.ndarray) -> float | None:
    """The total variation between the shares of two sets of counts; None where one is empty.

    >>> distance(np.array([10, 0]), np.array([30, 30]))
    0.5
    """
    if not counts.sum() or not pooled.sum():
        return None
    return float(np.abs(counts / counts.sum() - pooled / pooled.sum()).sum() / 2)


def by_chance(pooled: np.ndarray, rows: int) -> float | None:
    """The distance to expect of `rows` labels drawn at random from the pooled ones.

    By the normal approximation of each share: the mean of |N(0, p (1 - p) / rows)|, added up.
    """
    total = int(pooled.sum())
    if not rows or not total:
        return None
    shares = pooled / total
    # The party's own rows are among the pooled ones, which holds its shares nearer to them.
    rest = max(0.0, 1 - rows / total)
    return float(np.sqrt(2 / math.pi * shares * (1 - shares) / rows * rest).sum() / 2)


declare("label-skew", ClassWorker)
