"""What was mended, as counts and statistics: the coordinator's side of a completion.

Which person got which value stays at the party that completed it. What is told here are
correlations between columns, cells by origin, and mean confidences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fedmend._json import plain

if TYPE_CHECKING:
    from fedmend.methods.completion.fedpsg_pum import Completed, FedPSGPUM

__all__ = ["ORIGIN_WORDS", "MendedColumn", "MendedPair", "Mending"]

ORIGIN_WORDS = {
    "observed": "seen at the party itself",
    "predicted": "predicted, and sure enough for the models to learn from",
    "filled": "predicted by the last model, for the rows that were left",
    "generated": "drawn by a generator, so that the column looks as it should",
}


@dataclass(frozen=True)
class MendedColumn:
    """One column of B for A's rows.

    skill: the share of the error that predictions spare on rows held out; None if not measured.
    """

    name: str
    kind: str
    group: str
    strength: float | None
    predicted: int
    filled: int
    generated: int
    confidence: float | None
    why: str = ""
    skill: float | None = None

    @property
    def cells(self) -> int:
        return self.predicted + self.filled + self.generated

    def share(self, origin: str) -> float:
        return float(getattr(self, origin)) / self.cells if self.cells else 0.0


@dataclass(frozen=True)
class MendedPair:
    """B's columns for rows of A that B lacks.

    min_skill: columns with less are not trained on; None: all are. left_out: A's columns that the
    models did not see, because they are elsewhere on the rows that B lacks. changed: others that
    are distributed otherwise there.
    """

    rows_of: str
    columns_of: str
    rows: int
    observed: int
    threshold: float
    rule: str
    of_a: list[str]
    of_b: list[str]
    rho: list[list[float | None]]
    columns: list[MendedColumn]
    min_skill: float | None = None
    left_out: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, done: Completed, rule: str, observed: int, min_skill: float | None = None
    ) -> MendedPair:
        order = done.correlation.order
        columns = [_column(done, name) for name in order]
        return cls(
            rows_of=done.a,
            columns_of=done.b,
            rows=max((column.cells for column in columns), default=0),
            observed=observed,
            threshold=float(done.tau),
            rule=rule,
            of_a=[str(name) for name in done.correlation.matrix.index],
            of_b=list(order),
            rho=plain(done.correlation.matrix[order].to_numpy()),
            columns=columns,
            min_skill=min_skill,
            left_out=list(done.outcome.left_out),
            changed=list(done.outcome.changed),
        )

    def trained_on(self, column: MendedColumn) -> bool:
        """Whether models learn from this column's completed cells."""
        return self.min_skill is None or (column.skill or 0.0) >= self.min_skill

    def group(self, name: str) -> list[MendedColumn]:
        return [column for column in self.columns if column.group == name]

    def sentences(self) -> list[str]:
        """What happened to the columns, group by group."""
        a, b = self.rows_of, self.columns_of
        strong, weak, failed = (self.group(name) for name in ("strong", "weak", "failed"))
        lines = [
            f"{self.rows:,} of {a}'s rows that {b} lacks were given {b}'s "
            f"{_counted(len(self.columns), 'column')}."
        ]
        if strong:
            it, are = ("it", "it is") if len(strong) == 1 else ("them", "they are")
            lines.append(
                f"{_listed(strong)} {_are(strong)} strong: {a}'s columns speak of {it} above the "
                f"threshold of {self.threshold:.2f} ({self.rule}), so {are} predicted."
            )
        else:
            lines.append(
                f"No column of {b} is above the threshold of {self.threshold:.2f} ({self.rule})."
            )
        if self.left_out:
            lines.append(
                f"These rows are unlike those that both know: {', '.join(self.left_out)} of {a} "
                f"{'lies' if len(self.left_out) == 1 else 'lie'} beyond what was seen there. "
                "Nothing was learnt from "
                f"{'it' if len(self.left_out) == 1 else 'them'}, and of the predictions only what "
                "is clear was kept. Trust them less."
            )
        if self.changed:
            lines.append(
                f"{', '.join(self.changed)} of {a} changed there too, so what "
                f"{', '.join(self.left_out)} explained before was not learnt in "
                f"{'its' if len(self.changed) == 1 else 'their'} place."
            )
        if weak:
            lines.append(
                f"{_listed(weak)} {_are(weak)} weak: {a} knows next to nothing about "
                f"{'it' if len(weak) == 1 else 'them'}. The values are drawn by a generator: "
                "plausible, and no knowledge about a person."
            )
        lines += [
            f"{column.name} failed ({column.why}) and was generated instead." for column in failed
        ]
        unused = [column for column in self.columns if not self.trained_on(column)]
        if unused:
            lines.append(
                f"The completed cells of {_listed(unused)} are not trained on: they say too little "
                f"about a person (skill below {self.min_skill:.2f})."
            )
        return lines


@dataclass(frozen=True)
class Mending:
    """A completion as the report shows it."""

    method: str
    pairs: list[MendedPair]
    aligned_before: int
    aligned_after: int
    seconds: float = 0.0
    crossings: int = 0
    bytes: int = 0
    exported: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, model: FedPSGPUM, *, rows: Mapping[str, int], **costs: Any) -> Mending:
        """From a fitted completion; ``rows``: how many rows each party has of its own."""
        params = model.get_params()
        rule, least = _rule(params), params.get("min_skill")
        pairs = [MendedPair.of(done, rule, rows[b], least) for (_, b), done in model.pairs_.items()]
        before = model.fed_.alignment.aligned
        return cls(method, pairs, before, model.federation.alignment.aligned, **costs)

    @property
    def words(self) -> str:
        return (
            f"The rows known to all grew from {self.aligned_before:,} to {self.aligned_after:,}. "
            f"It took {self.seconds:.0f} seconds."
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        stored = plain(asdict(self))
        assert isinstance(stored, dict)
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Mending:
        """The mending of a JSON form."""
        pairs = [
            MendedPair(**{**pair, "columns": [MendedColumn(**each) for each in pair["columns"]]})
            for pair in stored["pairs"]
        ]
        return cls(**{**stored, "pairs": pairs})


def _column(done: Completed, name: str) -> MendedColumn:
    cells = done.cells[name]
    failed = name in done.outcome.failed
    group = "failed" if failed else "strong" if name in done.strong else "weak"
    strength, confidence = float(done.correlation.strengths[name]), float(cells["confidence"])
    return MendedColumn(
        name=name,
        kind=done.kinds[name],
        group=group,
        strength=strength if math.isfinite(strength) else None,
        predicted=int(cells["predicted"]),
        filled=int(cells["filled"]),
        generated=int(cells["generated"]),
        confidence=confidence if math.isfinite(confidence) else None,
        why=done.outcome.failed.get(name, ""),
        skill=float(cells["skill"]) if group == "strong" else None,
    )


def _rule(params: Mapping[str, Any]) -> str:
    """How the threshold was chosen, in words."""
    tau = params.get("tau")
    if tau == "significance":
        return "what chance alone would reach in 5 % of cases"
    if tau == "cv":
        return "found by cross-validation"
    return "as set"


def _listed(columns: Iterable[MendedColumn], most: int = 12) -> str:
    names = [column.name for column in columns]
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _are(columns: list[MendedColumn]) -> str:
    return "is" if len(columns) == 1 else "are"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
