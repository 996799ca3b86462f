"""Who has what, and what is torn: the first thing to look at in a federation.

The coordinator sees no table. Every figure here is a count or a statistic that a party gave
through :class:`OverviewWorker`, within its policy and noted in the ledger; what a party refuses
is shown as withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedmend.errors import AlignmentError, DataError, Refused
from fedmend.federation import Federation, Worker, exposed

__all__ = ["Overview", "OverviewWorker", "PartyOverview", "overview"]

# A label with more values than this is described by its mean, not by counts of its values.
MAX_CLASSES = 50
SCARCE_LABELS = 0.5
RARE_CLASS = 0.1


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

    @exposed(kind="statistic")
    def label_counts(self) -> dict[str, Any]:
        """How often each class occurs; for a numeric target its mean and deviation."""
        table = self.table
        assert table.label is not None
        values = table.y.dropna()
        found = {"name": table.label, "kind": table.schema[table.label].kind}
        if found["kind"] == "continuous" or values.nunique() > MAX_CLASSES:
            return found | {"mean": float(values.mean()), "sd": float(values.std(ddof=0))}
        counts = values.value_counts().sort_index()
        return found | {"counts": {str(key): int(count) for key, count in counts.items()}}


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
    def missing_share(self) -> float:
        cells = self.rows * self.n_columns
        return self.missing / cells if cells else 0.0


@dataclass(frozen=True)
class Overview:
    """The federation at a glance; ``print`` it, or take :meth:`to_dict` for a report.

    agreement: how far several labellers agree. skew: how unevenly parties with the same columns
    share the classes. curve: what overlap is worth, if it was asked for. advice: which methods
    mend the tears, at what cost. All four in JSON form.
    """

    parties: list[PartyOverview]
    aligned: int | None
    label: dict[str, Any] | None
    torn: list[str]
    shape: str = "vertical"
    agreement: dict[str, Any] | None = None
    skew: dict[str, Any] | None = None
    curve: dict[str, Any] | None = None
    advice: dict[str, Any] | None = None

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
        """``diagnosis: benign 212, malignant 357``, or nothing when no label was told."""
        if self.label is None:
            return ""
        if "counts" in self.label:
            counts = ", ".join(f"{key} {count:,}" for key, count in self.label["counts"].items())
            return f"{self.label['name']}: {counts}"
        mean, sd = self.label["mean"], self.label["sd"]
        return f"{self.label['name']}: mean {mean:.4g}, standard deviation {sd:.4g}"

    def __str__(self) -> str:
        table = self.rows()
        widths = [max(len(row[number]) for row in table) for number in range(len(table[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        lines.insert(1, "  ".join("─" * width for width in widths))
        if self.label is not None:
            lines += ["", f"Label {self.label_in_words()}"]
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
    progress: Callable[[str, int, int], None] | None = None,
) -> Overview:
    """Ask every party for its sizes, the label party for its label, and say what is torn.

    shape: "horizontal" where the parties have the same columns of different people. curve: train
    on growing parts of the aligned rows to see what more of them would be worth (a minute or
    less); settings of `fedmend.preflight.learning_curve` may be given instead of True.
    """
    from fedmend.report.advice import advise

    aligned = fed.alignment.aligned if fed.is_aligned else None
    parties = [_ask(fed, name) for name in fed.names]
    holders = [party.name for party in parties if party.labelled]
    if shape == "horizontal":
        skew, label = _shared_classes(fed, holders)
        torn = torn_across(parties, skew)
        found = Overview(parties, aligned, label, torn, shape, skew=skew)
    else:
        label = _ask_label(fed, holders[0]) if len(holders) == 1 else None
        found = Overview(
            parties,
            aligned,
            label,
            what_is_torn(parties, aligned, label),
            agreement=_agreement(fed, holders) if len(holders) > 1 and aligned else None,
            curve=_curve(fed, curve, progress) if curve and aligned else None,
        )
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


def _agreement(fed: Federation, holders: list[str]) -> dict[str, Any] | None:
    """How far the labellers agree; None where one of them does not let it be known."""
    from fedmend.preflight.agreement import label_agreement

    try:
        return label_agreement(fed, holders).to_dict()
    except (AlignmentError, DataError, Refused):
        return None


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


# ---------------------------------------------------------------- in words


def torn_across(parties: list[PartyOverview], skew: Mapping[str, Any] | None) -> list[str]:
    """What is torn where the parties have the same columns: labels, classes, cells."""
    told = [party for party in parties if not party.withheld]
    rows = sum(party.rows for party in told)
    labelled = sum(party.labelled_rows for party in told)
    sentences = []
    if rows and labelled < rows:
        scarce = "Labels are scarce: " if labelled < SCARCE_LABELS * rows else ""
        sentences.append(
            f"{scarce}{labelled:,} of {rows:,} rows have one ({percent(labelled / rows)})."
        )
    sentences += [
        f"{party.name} has no labelled row: it learns from the others' labels only."
        for party in told
        if not party.labelled_rows
    ]
    shared = skew or {"parties": {}, "pooled": {}}
    sentences += [
        f"{name} has labels of {each['classes']} of the {len(shared['pooled'])} classes only."
        for name, each in shared["parties"].items()
        if 0 < each["classes"] < len(shared["pooled"])
    ]
    sentences += _cells_torn(told)
    sentences += [
        f"{party.name} withholds its sizes by its policy." for party in parties if party.withheld
    ]
    return sentences or ["Nothing: every row is complete and labelled."]


def what_is_torn(
    parties: list[PartyOverview], aligned: int | None, label: dict[str, Any] | None
) -> list[str]:
    """One sentence for each tear, the widest first; never empty."""
    told = [party for party in parties if not party.withheld]
    sentences = [
        *_rows_torn(told, aligned),
        *_labels_torn(told, aligned, label),
        *_cells_torn(told),
        *(
            f"{party.name} withholds its sizes by its policy."
            for party in parties
            if party.withheld
        ),
    ]
    return sentences or ["Nothing: every row is known to all, complete and labelled."]


def _rows_torn(parties: list[PartyOverview], aligned: int | None) -> list[str]:
    if len(parties) < 2:
        return []
    if aligned is None:
        return ["Not aligned yet: which rows the parties share is unknown."]
    sentences = []
    for party in parties:
        rest = party.rows - aligned
        others = [other for other in parties if other is not party and other.n_columns]
        if rest <= 0 or not others:
            continue
        linked = f"not linked to {others[0].name}" if len(parties) == 2 else "not known to all"
        rows = f"{rest:,} of {party.name}'s {party.rows:,} rows ({percent(rest / party.rows)})"
        if party.n_columns:
            lacking = " and ".join(f"{other.name}'s {columns_in_words(other)}" for other in others)
            sentences.append(f"{rows} are {linked}: they lack {lacking}.")
        else:
            # A party with labels only: its other rows are labels for which there are no columns.
            sentences.append(f"{rows} are {linked}.")
    return sentences


def _labels_torn(
    parties: list[PartyOverview], aligned: int | None, label: dict[str, Any] | None
) -> list[str]:
    holders = [party for party in parties if party.labelled]
    if not holders:
        return ["No party has a label: nothing can be predicted yet."]
    sentences = []
    for holder in holders:
        without = holder.rows - holder.labelled_rows
        if without:
            scarce = (
                "Labels are scarce: " if holder.labelled_rows < SCARCE_LABELS * holder.rows else ""
            )
            sentences.append(
                f"{scarce}{holder.name} has a label for {holder.labelled_rows:,} "
                f"of its {holder.rows:,} rows."
            )
    for party in parties:
        if not party.labelled and aligned is not None and party.rows > aligned:
            sentences.append(
                f"{party.name} has no label for its {party.rows - aligned:,} unlinked rows."
            )
    counts = (label or {}).get("counts")
    if counts and len(counts) > 1:
        rarest = min(counts, key=counts.__getitem__)
        share = counts[rarest] / sum(counts.values())
        if share < RARE_CLASS / (len(counts) - 1):
            sentences.append(f"The class {rarest!r} is rare: {percent(share)} of the labels.")
    if counts and len(counts) == 1:
        sentences.append(f"The label has one value only, {next(iter(counts))!r}.")
    return sentences


def _cells_torn(parties: list[PartyOverview]) -> list[str]:
    sentences = []
    for party in parties:
        if party.empty_columns:
            noun = "column" if party.empty_columns == 1 else "columns"
            sentences.append(f"{party.name} has {party.empty_columns} {noun} without any value.")
        if party.missing:
            noun = "cell" if party.missing == 1 else "cells"
            share = percent(party.missing_share)
            sentences.append(f"{party.name} misses {party.missing:,} {noun} ({share}).")
    return sentences


def columns_in_words(party: PartyOverview) -> str:
    """``15 continuous columns``, or ``9 columns (6 continuous, 3 nominal)``."""
    if not party.columns:
        return "no columns"
    noun = "column" if party.n_columns == 1 else "columns"
    if len(party.columns) == 1:
        return f"{party.n_columns} {next(iter(party.columns))} {noun}"
    parts = ", ".join(f"{count} {kind}" for kind, count in party.columns.items())
    return f"{party.n_columns} {noun} ({parts})"


def percent(share: float) -> str:
    """A share as people read it: ``80 %``, ``0.4 %``, ``under 0.1 %``."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
