"""What a completion leaves to look at: correlations, groups of columns, counts by origin, files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pandas as pd

from fedmend.errors import ConfigError, NotFitted
from fedmend.federation.federation import Federation
from fedmend.methods.completion.merging import FORMATS, MergeWorker
from fedmend.methods.completion.vfpum import Outcome
from fedmend.methods.contract import Estimator
from fedmend.secure.correlation import RankCorrelation

__all__ = ["Completed", "Mended"]


@dataclass
class Completed:
    """What the coordinator knows of one party's columns for another party's rows."""

    a: str
    b: str
    correlation: RankCorrelation
    tau: float
    strong: list[str]
    weak: list[str]
    kinds: dict[str, str]
    outcome: Outcome = field(default_factory=Outcome)
    cells: dict[str, dict[str, float]] = field(default_factory=dict)


class Mended(Estimator):
    """An estimator whose `fit` completed rows.

    federation: the same parties on their mended tables, in which the completed rows are aligned.
    pairs_: per (A, B) what was done with B's columns for A's rows.
    """

    predicts = False
    federation: Federation
    fed_: Federation
    run_: str
    pairs_: dict[tuple[str, str], Completed]

    @property
    def correlation_(self) -> dict[tuple[str, str], RankCorrelation]:
        """Per pair (A, B) the correlations of Process I."""
        return {pair: done.correlation for pair, done in self._pairs().items()}

    @property
    def strong_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair B's columns that were to be predicted, strongest first."""
        return {pair: done.strong for pair, done in self._pairs().items()}

    @property
    def weak_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair B's columns that were generated because they are weak."""
        return {pair: done.weak for pair, done in self._pairs().items()}

    @property
    def failed_(self) -> dict[tuple[str, str], dict[str, str]]:
        """Per pair the strong columns that no model could learn, and why."""
        return {pair: done.outcome.failed for pair, done in self._pairs().items()}

    @property
    def left_out_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair A's columns that models did not see: its other rows lie beyond the aligned."""
        return {pair: done.outcome.left_out for pair, done in self._pairs().items()}

    @property
    def changed_(self) -> dict[tuple[str, str], list[str]]:
        """Per pair, where columns are left out, A's others that are distributed otherwise too."""
        return {pair: done.outcome.changed for pair, done in self._pairs().items()}

    def summary(self) -> pd.DataFrame:
        """One line per completed column: strength, how it was made, cells by origin, confidence."""
        rows = []
        for (a, b), done in self._pairs().items():
            for name in done.correlation.order:
                fate = "strong" if name in done.strong else "weak"
                rows.append(
                    {
                        "rows of": a,
                        "column of": b,
                        "column": name,
                        "kind": done.kinds[name],
                        "strength": float(done.correlation.strengths[name]),
                        "group": "failed" if name in done.outcome.failed else fate,
                        "rounds": len(done.outcome.joined.get(name, [])),
                        **done.cells[name],
                    }
                )
        return pd.DataFrame(rows)

    def export(self, path: str | os.PathLike[str], format: str = "parquet") -> dict[str, int]:
        """Every completing party writes its table, origins beside, into its own folder `path`."""
        if format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
        pairs = self._pairs()
        written = {}
        for b in dict.fromkeys(b for _, b in pairs):
            of = [a for a, other in pairs if other == b]
            with self.fed_.workers(MergeWorker, parties=[b], run=self.run_) as crew:
                written[b] = int(crew[b].export(os.fspath(path), format, of))
        return written

    def _pairs(self) -> dict[tuple[str, str], Completed]:
        if not hasattr(self, "federation"):
            raise NotFitted("FedPSGPUM is not fitted. Mend: call fit(fed) first")
        return self.pairs_
