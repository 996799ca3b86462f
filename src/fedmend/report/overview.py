"""Who has what, and what is torn: the first thing to look at in a federation.

The coordinator sees no table. Every figure here is a count or a statistic that a party gave
through :class:`OverviewWorker`, within its policy and noted in the ledger; what a party refuses
is shown as withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.encode import LabelEncoder, as_written
from fedmend.data.schema import BLOCKS
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, DataError, Refused
from fedmend.federation import Federation, Worker, exposed, require_federation
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.rows import Asked, frequent
from fedmend.report.amounts import percent
from fedmend.report.tears import torn_across, what_is_torn

__all__ = [
    "Overview",
    "OverviewWorker",
    "PartyOverview",
    "overview",
]

# Of a label with more classes than this the most frequent ones are counted.
MOST_COUNTED = 50


class OverviewWorker(Worker):
    """The party's side: sizes as counts, and the label's distribution as a statistic."""

    @exposed(kind="count")
    def sizes(self) -> dict[str, Any]:
        """Rows, columns by kind, missing cells; no names and no values."""
        table = self.table
        features = [each for each in table.describe() if each["name"] != table.label]
        kinds: dict[str, int] = {}
        for each in features:
            kinds[str(each["kind"])] = kinds.get(str(each["kind"]), 0) + 1
        rows = len(table)
        return {
            "rows": rows,
            "columns": kinds,
            "missing": sum(int(each["missing"]) for each in features),
            "empty_columns": sum(int(each["missing"]) == rows for each in features) if rows else 0,
            "labelled": table.label is not None,
            **self._labelled_rows(),
        }

    def _labelled_rows(self) -> dict[str, int]:
        if self.table.label is None:
            return {}
        known = self.table.y.notna().to_numpy()
        counts = {"labelled_rows": int(known.sum())}
        alignment = self.site.alignments.get(self.scope)
        if alignment is not None:
            counts["labelled_aligned"] = int(known[alignment.aligned].sum())
        return counts

    def about_rows(self, method: str) -> str:
        return "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self.table.y.notna().to_numpy()] if method == "label_counts" else [None]

    @exposed(kind="statistic")
    def label_counts(self) -> dict[str, Any]:
        """How often each class of enough rows occurs; of a numeric target mean and deviation."""
        table = self.table
        assert table.label is not None
        values = table.y.dropna()
        found = {"name": table.label, "kind": table.schema[table.label].kind}
        if is_number(table):
            return found | {"mean": float(values.mean()), "sd": float(values.std(ddof=0))}
        codes, distinct = pd.factorize(values)
        counts = np.bincount(codes, minlength=len(distinct))
        enough = frequent(codes, len(distinct), self.site.rows.least)
        commonest = sorted(enough, key=lambda code: -counts[code])[:MOST_COUNTED]
        told = {
            str(as_written(distinct[code])): int(counts[code])
            for code in sorted(commonest, key=lambda code: distinct[code])
        }
        return found | {"counts": told}


def is_number(table: Table) -> bool:
    """Whether methods would take the label for a number to be predicted, not for classes."""
    assert table.label is not None
    column = table.schema[table.label]
    try:
        return LabelEncoder().fit(table.y, column).task == "regression"
    except DataError:  # one value, or none: `check` says so
        return column.kind == "continuous" and bool(table.y.notna().any())


@dataclass(frozen=True)
class PartyOverview:
    """What one party told of its table."""

    name: str
    rows: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    empty_columns: int = 0
    labelled: bool = False
    labelled_rows: int = 0
    labelled_aligned: int | None = None
    unaligned: int | None = None
    withheld: str | None = None

    @property
    def n_columns(self) -> int:
        return sum(self.columns.values())

    @property
    def n_cells(self) -> int:
        """Columns with one value a row: all but images and tensors."""
        return sum(count for kind, count in self.columns.items() if kind not in BLOCKS)

    @property
    def missing_share(self) -> float:
        cells = self.rows * self.n_columns
        return self.missing / cells if cells else 0.0


@dataclass(frozen=True)
class Overview:
    """The federation at a glance; ``print`` it, or take :meth:`to_dict` for a report.

    label: of the only party that has one, or pooled over parties with the same columns. labels: of
    each of several labellers. labellers_share: rows known to all of these, where they have found
    out. agreement: how far they agree. skew: how unevenly parties with the same columns share the
    classes. curve: what overlap is worth, if it was asked for. advice: which methods mend the
    tears, at what cost. The last four in JSON form. training: the share of these rows that a run
    will train on.
    """

    parties: list[PartyOverview]
    aligned: int | None
    label: dict[str, Any] | None
    torn: list[str]
    shape: str = "vertical"
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    agreement: dict[str, Any] | None = None
    skew: dict[str, Any] | None = None
    curve: dict[str, Any] | None = None
    advice: dict[str, Any] | None = None
    labellers_share: int | None = None
    training: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Overview:
        """The overview of a JSON form."""
        content = dict(stored)
        content["parties"] = [PartyOverview(**party) for party in content["parties"]]
        return cls(**content)

    def rows(self) -> list[list[str]]:
        """The table in text: a head, then a line for each party."""
        head = ["party", "rows", "known to all", "columns", "missing cells", "label"]
        table = [head, *(self._row(party) for party in self.parties)]
        # Nobody is known to two parties of a horizontal federation.
        return [row[:2] + row[3:] for row in table] if self.shape == "horizontal" else table

    def _row(self, party: PartyOverview) -> list[str]:
        if party.withheld:
            return [party.name, "withheld", *([""] * 4)]
        aligned = "–" if self.aligned is None else f"{self.aligned:,}"
        label = f"{party.labelled_rows:,} rows" if party.labelled else "–"
        return [
            party.name,
            f"{party.rows:,}",
            aligned,
            ", ".join(f"{count} {kind}" for kind, count in party.columns.items()) or "none",
            percent(party.missing_share) if party.missing else "none",
            label,
        ]

    def label_in_words(self) -> str:
        """``diagnosis: benign 212, malignant 357``; of several labellers, each on a line.

        Nothing where no label was told.
        """
        if self.label is not None:
            return _label_words(self.label)
        return "\n".join(f"{name}, {_label_words(each)}" for name, each in self.labels.items())

    def __str__(self) -> str:
        table = self.rows()
        widths = [max(len(row[number]) for row in table) for number in range(len(table[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        lines.insert(1, "  ".join("─" * width for width in widths))
        if self.label_in_words():
            lines += ["", *(f"Label {line}" for line in self.label_in_words().splitlines())]
        for title, sentences in self.sections():
            lines += ["", f"{title}:", *(f"  • {line}" for line in sentences)]
        return "\n".join(lines)

    def sections(self) -> list[tuple[str, list[str]]]:
        """What there is to say, below titles."""
        parts = [
            ("What is torn", self.torn),
            ("How far the labellers agree", (self.agreement or {}).get("words", [])),
            ("How the classes are shared", (self.skew or {}).get("words", [])),
            ("What overlap is worth", (self.curve or {}).get("words", [])),
            ("What would mend it", (self.advice or {}).get("words", [])),
        ]
        return [(title, sentences) for title, sentences in parts if sentences]


def overview(
    fed: Federation,
    *,
    shape: str = "vertical",
    curve: bool | Mapping[str, Any] = False,
    training: float = 1.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Overview:
    """Ask every party for its sizes, the label party for its label, and say what is torn.

    shape: "horizontal" where the parties have the same columns of different people. curve: train
    on growing parts of the aligned rows to see what more of them would be worth (a minute or
    less); settings of `fedmend.preflight.learning_curve` may be given instead of True.
    training: the share of the rows that will be trained on, where the others are set aside for
    tests: the advice goes by these.
    """
    from fedmend.report.advice import advise

    require_federation(fed)
    aligned = fed.alignment.aligned if fed.is_aligned else None
    parties = [_ask(fed, name) for name in fed.names]
    holders = [party.name for party in parties if party.labelled]
    if shape == "horizontal":
        skew, label = _shared_classes(fed, holders)
        torn = torn_across(parties, skew)
        found = Overview(parties, aligned, label, torn, shape, skew=skew)
    else:
        told = {name: _ask_label(fed, name) for name in holders}
        label = told[holders[0]] if len(holders) == 1 else None
        found = Overview(
            parties,
            aligned,
            label,
            what_is_torn(parties, aligned, label),
            labels={name: each for name, each in told.items() if each} if not label else {},
            **_among_labellers(fed, holders),
            curve=_curve(fed, curve, progress) if curve and aligned else None,
        )
    found = replace(found, training=training)
    return replace(found, advice=advise(found).to_dict())


def _shared_classes(
    fed: Federation, holders: list[str]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """How unevenly the classes are shared, and the label over all parties that tell."""
    from fedmend.preflight.skew import label_skew

    told = list(holders)
    while told:
        try:
            found = label_skew(fed, told)
        except Refused as refusal:
            if refusal.party not in told:
                return None, None
            told.remove(refusal.party)
        except DataError:
            return None, None
        else:
            return found.to_dict(), {"name": found.label, "counts": found.pooled}
    return None, None


def _among_labellers(fed: Federation, holders: list[str]) -> dict[str, Any]:
    """How far several labellers agree; on the rows they share, where these have been found.

    No agreement where one of them does not let it be known.
    """
    from fedmend.preflight.agreement import label_agreement

    if len(holders) < 2:
        return {}
    view = fed.only(*holders)
    among = view if view.is_aligned else fed
    if not among.is_aligned or not among.alignment.aligned:
        return {}
    try:
        agreement = label_agreement(among, holders).to_dict()
    except (AlignmentError, DataError, Refused):
        agreement = None
    if among is fed or view.names == fed.names:
        return {"agreement": agreement}
    shared = view.alignment.aligned
    if agreement is not None:
        names = f"{', '.join(holders[:-1])} and {holders[-1]}"
        agreement["words"].insert(0, f"{names}, who label, share {shared:,} rows with each other.")
    return {"agreement": agreement, "labellers_share": shared}


def _curve(
    fed: Federation,
    asked: bool | Mapping[str, Any],
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    from fedmend.preflight.curve import learning_curve

    settings = dict(asked) if isinstance(asked, Mapping) else {}
    try:
        return learning_curve(fed, progress=progress, **settings).to_dict()
    except (DataError, Refused) as error:
        return {"words": [f"No learning curve: {error}"]}


def _ask(fed: Federation, name: str) -> PartyOverview:
    unaligned = fed.alignment.unaligned.get(name) if fed.is_aligned else None
    try:
        with fed.workers(OverviewWorker, parties=[name]) as crew:
            return PartyOverview(name, unaligned=unaligned, **crew[name].sizes())
    except Refused as refusal:
        return PartyOverview(name, unaligned=unaligned, withheld=str(refusal))


def _ask_label(fed: Federation, name: str) -> dict[str, Any] | None:
    try:
        with fed.workers(OverviewWorker, parties=[name]) as crew:
            told: dict[str, Any] = crew[name].label_counts()
            return told
    except Refused:
        return None


def _label_words(label: Mapping[str, Any]) -> str:
    if "counts" in label:
        counts = ", ".join(f"{key} {count:,}" for key, count in label["counts"].items())
        return f"{label['name']}: {counts}"
    mean, sd = label["mean"], label["sd"]
    return f"{label['name']}: mean {mean:.4g}, standard deviation {sd:.4g}"


declare(EVERY_RUN, OverviewWorker)
