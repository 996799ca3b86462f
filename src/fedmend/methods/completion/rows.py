"""Rows that only A has, completed at B: their secret order, B's columns for them, the merged table.

B knows A's rows by handles alone: random numbers drawn from a key that only A and B share, in an
order that A draws for the run. For every cell B keeps where it came from and how far it deserves
trust. Nothing of this leaves B; what a coordinator sees are counts and means. (`merging.py` joins
them to B's own rows.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedmend.errors import DataError, NotFitted
from fedmend.federation.federation import AlignmentCounts, Federation
from fedmend.federation.site import Alignment, Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Worker, exposed
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.keys import mask_stream, secret_permutation

__all__ = ["ORIGINS", "Completion", "CompletionWorker", "completion_of", "open_rows"]

ORIGINS = ("observed", "predicted", "filled", "generated")
OBSERVED, PREDICTED, FILLED, GENERATED = range(len(ORIGINS))


@dataclass
class Completion:
    """B's columns for the rows that only one other party has, in that party's order of the run.

    handles: what B calls the rows. values, origins (positions in `ORIGINS`) and confidence (0 to
    1): per column one entry a row. skill: per column the share of the error of always saying the
    mean, or the shares of the classes, that the predictions spared on rows held out; 0 for
    generated columns. trial: what was predicted, without their help, for some rows of B's own, at
    `trial_rows` of its table.
    """

    handles: np.ndarray
    values: dict[str, pd.Series] = field(default_factory=dict)
    origins: dict[str, np.ndarray] = field(default_factory=dict)
    confidence: dict[str, np.ndarray] = field(default_factory=dict)
    skill: dict[str, float] = field(default_factory=dict)
    trial: dict[str, pd.Series] = field(default_factory=dict)
    trial_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.handles)

    def put(
        self,
        name: str,
        values: pd.Series,
        origins: np.ndarray,
        confidence: np.ndarray,
        skill: float = 0.0,
    ) -> None:
        if not len(values) == len(origins) == len(confidence) == len(self):
            raise DataError(
                f"{len(values)} cells for {len(self)} rows", column=name, mend="one for each row"
            )
        self.values[name] = values.reset_index(drop=True)
        self.origins[name] = np.asarray(origins, dtype=np.int8)
        self.confidence[name] = np.asarray(confidence, dtype=np.float64)
        self.skill[name] = float(skill)


def completion_key(run: str, a: str) -> str:
    return f"{run}:completion:{a}"


def completion_of(site: Site, run: str, a: str) -> Completion:
    """What this site has completed for the rows of party `a` in a run."""
    found = site.state.get(completion_key(run, a))
    if not isinstance(found, Completion):
        raise NotFitted(
            f"party {site.name!r} holds no completed rows of {a!r}. Mend: fit FedPSGPUM first"
        )
    return found


# ---------------------------------------------------------------------------------- rows and names


class RowsWorker(SealingWorker):
    """Both sides: which of A's rows are completed, in which order, and under which handles."""

    conversation = "completion"

    def __init__(self, site: Site, scope: str = "train", *, run: str, seeded: bool = False) -> None:
        super().__init__(site, scope)
        self.run = run
        self.seeded = seeded

    @exposed(kind="count")
    def shuffle(self, scope: str) -> int:
        """A: its rows that nobody else knows, in an order of this run; tells how many."""
        rows = np.setdiff1d(self.alignment.unaligned, self._claimed())
        if self.seeded:
            order = self.site.rng("order of completed rows").permutation(len(rows))
        else:
            order = secret_permutation(len(rows))
        self.site.alignments[scope] = Alignment(self.alignment.aligned, rows[order])
        return len(rows)

    @exposed(kind="control")
    def follow(self, scope: str, like: str) -> None:
        """B: its own rows are in the new scope as they are in another."""
        self.site.alignments[scope] = self.site.alignments[like]

    @exposed(kind="control")
    def name_rows(self, other: str, count: int) -> None:
        """Both: the handles of `count` rows, from the key that the two share."""
        seed = self.shared_seed(other, f"handles of {self.run}")
        self.site.state[f"{self.run}:handles:{other}"] = mask_stream(seed, 0, (count,))

    # ------------------------------------------------------------------ two of many parties

    @exposed(kind="hashed-id")
    def share_known(self, to: str, rows_scope: str, pair_like: str, pair_scope: str) -> Sealed:
        """A: which of its rows B knows by an alignment of the two, and open the scope of the rest.

        In a box for B: per row of the run's order the position among the pair's aligned rows, or
        -1. B learns the order of rows that both know to be common, and nothing of the others.
        """
        pair = self.site.alignments[pair_like]
        rows = self.site.alignments[rows_scope].unaligned
        place = np.full(len(self.table), -1, dtype=np.int64)
        place[pair.aligned] = np.arange(len(pair.aligned))
        known = place[rows]
        self.site.alignments[pair_scope] = Alignment(pair.aligned, rows[known < 0])
        return self.seal(known, to=to, kind="hashed-id")

    @exposed(kind="count", takes={"box": "hashed-id"})
    def take_known(self, box: Sealed, sender: str, pair_like: str, pair_scope: str) -> int:
        """B: its own rows among A's are no longer to be completed; tells how many A's rest is."""
        known = self.open(box, sender=sender, kind="hashed-id")
        pair = self.site.alignments[pair_like]
        rows = np.where(known >= 0, pair.aligned[known], -1)
        self.site.state[f"{self.run}:known:{sender}"] = rows
        claimed = np.concatenate([self._claimed(), rows[rows >= 0]])
        self.site.state[f"{self.run}:claimed"] = claimed
        self.site.alignments[pair_scope] = pair
        return int((rows < 0).sum())

    def _claimed(self) -> np.ndarray:
        """Own rows that were joined to another party's: nobody is to be in the table twice."""
        claimed: np.ndarray = self.site.state.get(f"{self.run}:claimed", np.zeros(0, np.int64))
        return claimed


def open_rows(fed: Federation, a: str, run: str, *, seeded: bool) -> dict[str, Federation]:
    """Per other party a view of the federation in which A's rows have the run's order and names.

    Where A and B have aligned their tables as two (``align(fed.only(a, b))``), rows that B knows
    are not completed but joined.
    """
    others = [name for name in fed.names if name != a]
    rows = fed.on(f"{fed.dataset}@{run}-{a}")
    views = {}
    with fed.workers(RowsWorker, run=run, seeded=seeded) as crew:
        introduce(crew)
        count = crew[a].shuffle(rows.scope)
        counts = {name: fed.alignment.unaligned[name] for name in others}
        rows.note_alignment(AlignmentCounts(fed.alignment.aligned, {a: count, **counts}))
        for b in others:
            pair = fed.only(a, b)
            if pair.scope == fed.scope or not pair.is_aligned:
                crew[b].follow(rows.scope, fed.scope)
                views[b] = rows
            else:
                view = fed.only(a, b).on(f"{fed.dataset}@{run}-{a}-{b}")
                box = crew[a].share_known(b, rows.scope, pair.scope, view.scope)
                left = crew[b].take_known(box, a, pair.scope, view.scope)
                unaligned = {a: left, b: pair.alignment.unaligned[b]}
                view.note_alignment(AlignmentCounts(pair.alignment.aligned, unaligned))
                views[b] = view
            left = views[b].alignment.unaligned[a]
            crew[a].name_rows(b, left)
            crew[b].name_rows(a, left)
    return views


# ---------------------------------------------------------------------------------- at B


class CompletionWorker(Worker):
    """B: collects its columns for A's rows, and counts them."""

    def __init__(self, site: Site, scope: str = "train", *, run: str, a: str) -> None:
        super().__init__(site, scope)
        self.run, self.a = run, a
        key = completion_key(run, a)
        if key not in site.state:
            numbers = site.state[f"{run}:handles:{a}"]
            site.state[key] = Completion(_handles(numbers, self.table.ids))

    @property
    def completion(self) -> Completion:
        return completion_of(self.site, self.run, self.a)

    @exposed(kind="control")
    def columns(self) -> dict[str, str]:
        """The columns to be completed, with their kinds."""
        return {
            name: column.kind
            for name, column in self.table.features.schema.items()
            if not column.is_block
        }

    @exposed(kind="statistic")
    def summary(self) -> dict[str, dict[str, float]]:
        """Per column how many cells came from where, the mean confidence, and the skill."""
        made = self.completion
        return {
            name: {
                **{
                    origin: int((made.origins[name] == number).sum())
                    for number, origin in enumerate(ORIGINS)
                    if number != OBSERVED
                },
                "confidence": float(made.confidence[name].mean()) if len(made) else float("nan"),
                "skill": made.skill[name],
            }
            for name in made.values
        }


def _handles(numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Ids of the party's own type that none of its rows has."""
    if ids.dtype.kind in "iu":
        # 62 random bits below zero: a meeting with a real id is as good as impossible, and
        # the table refuses ids that are not unique.
        return -1 - (numbers >> np.uint64(2)).astype(np.int64)
    return np.array([f"mended-{number:016x}" for number in numbers], dtype=object)
