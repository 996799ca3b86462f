"""Who has what, and what is torn: the first thing to look at in a federation.

The coordinator sees no table. Every figure here is a count or a statistic that a party gave
through :class:`OverviewWorker`, within its policy and noted in the ledger; what a party refuses
is shown as withheld.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedmend._html import html_table
from fedmend.data.encode import LabelEncoder, as_written
from fedmend.data.schema import BLOCKS
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, DataError, FedmendWarning, Refused
from fedmend.federation import Federation, Worker, exposed, require_federation
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.rows import Asked, frequent
from fedmend.report.amounts import UNTOLD, counted, listed, percent, text_table

# Of a label with more classes than this the most frequent ones are counted.
MOST_CLASSES_COUNTED = 50
# Labels are scarce below this share of the rows, and a class of two below that of the labels.
SCARCE_LABELS = 0.5
RARE_CLASS = 0.1
# Of a class with fewer labels than this hardly one falls among validation and test rows.
FEW_LABELS = 10
MANY_ANNOTATORS = 12
"""Of more, a sentence says what is so for most; the table has a line for each."""


class OverviewWorker(Worker):
    """The party's side: sizes as counts, and the label's distribution as a statistic."""

    @exposed(kind="count")
    def sizes(self) -> dict[str, Any]:
        """Rows, columns by kind, missing cells; no names and no values."""
        table = self.table
        features = [each for each in table.describe() if each["name"] != table.label]
        rows = len(table)
        return {
            "rows": rows,
            "columns": dict(Counter(str(each["kind"]) for each in features)),
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
        commonest = sorted(enough, key=lambda code: -counts[code])[:MOST_CLASSES_COUNTED]
        by_value = sorted(commonest, key=lambda code: distinct[code])
        told = {str(as_written(distinct[at])): int(counts[at]) for at in by_value}
        return found | {"counts": told, "others": len(values) - sum(told.values())}


def is_number(table: Table) -> bool:
    """Whether methods would take the label for a number to be predicted, not for classes."""
    assert table.label is not None
    column = table.schema[table.label]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedmendWarning)  # who trains is told
            return LabelEncoder().fit(table.y, column).task == "regression"
    except DataError:  # one value, or none: `check` says so
        return column.kind == "continuous" and bool(table.y.notna().any())


@dataclass(frozen=True)
class PartyOverview:
    """What one party reported of its table."""

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

    @property
    def kinds(self) -> str:
        """``15 continuous``, or ``6 continuous, 3 nominal``."""
        return ", ".join(f"{count} {kind}" for kind, count in self.columns.items())


@dataclass(frozen=True)
class Overview:
    """The federation at a glance; ``print`` it, or take :meth:`to_dict` for a report.

    label: of the only party that has one, or pooled over parties with the same columns. labels: of
    each of several annotators. labellers_share: rows known to all of these, where they have found
    out. columns_share: rows known to all parties with columns, where others label only, likewise.
    agreement: how far they agree. skew: how unevenly parties with the same columns share the
    classes. curve: what overlap is worth, if it was asked for. advice: which methods mend the
    tears, at what cost. takes: what a run of the file takes. The last five in JSON form. training:
    the share of these rows that a run will train on. same_order: aligned without a search.
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
    columns_share: int | None = None
    training: float = 1.0
    same_order: bool = False
    takes: dict[str, Any] | None = None

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
        return [
            party.name,
            f"{party.rows:,}",
            UNTOLD if self.aligned is None else f"{self.aligned:,}",
            party.kinds or "none",
            percent(party.missing_share) if party.missing else "none",
            f"{party.labelled_rows:,} rows" if party.labelled else UNTOLD,
        ]

    def label_in_words(self) -> str:
        """``diagnosis: benign 212, malignant 357``; of several annotators, each on a line."""
        if self.label is not None:
            return _label_words(self.label)
        told = [f"{name}, {_label_words(each)}" for name, each in self.labels.items()]
        rest = len(told) - MANY_ANNOTATORS
        if rest > 0:
            told[MANY_ANNOTATORS:] = [f"of {rest:,} more parties: see how many rows, above"]
        return "\n".join(told)

    def __str__(self) -> str:
        table = self.rows()
        lines = text_table(table)
        widths = (max(map(len, column)) for column in zip(*table, strict=True))
        lines.insert(1, "  ".join("─" * width for width in widths))
        if self.label_in_words():
            lines += ["", *(f"Label {line}" for line in self.label_in_words().splitlines())]
        for title, sentences in self.sections():
            lines += ["", f"{title}:", *(f"  • {line}" for line in sentences)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks."""
        head, *rows = self.rows()
        below = [f"Label {line}" for line in self.label_in_words().splitlines()]
        for title, sentences in self.sections():
            below += [f"{title}:", *(f"• {line}" for line in sentences)]
        return html_table(head, rows, below=below)

    def sections(self) -> list[tuple[str, list[str]]]:
        """What there is to say, below titles."""
        parts = [
            ("What is torn", self.torn),
            ("How far the annotators agree", (self.agreement or {}).get("words", [])),
            ("How the classes are shared", (self.skew or {}).get("words", [])),
            ("What overlap is worth", (self.curve or {}).get("words", [])),
            ("What would mend it", (self.advice or {}).get("words", [])),
            ("What this file takes", (self.takes or {}).get("words", [])),
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
    from fedmend.report.advice import AGREED, advise

    require_federation(fed)
    aligned = fed.alignment.aligned if fed.is_aligned else None
    parties = [_ask(fed, name) for name in fed.names]
    holders = [party.name for party in parties if party.labelled]
    if shape == "horizontal":
        skew, label = _shared_classes(fed, holders)
        torn = torn_across(parties, skew)
        found = Overview(parties, aligned, label, torn, shape, skew=skew)
    else:
        labels = {name: counts for name in holders if (counts := _ask_label(fed, name))}
        label = labels.pop(holders[0], None) if len(holders) == 1 else None
        among = _among_annotators(fed, holders)
        kappa = (among.get("agreement") or {}).get("lowest")
        disagree = None if kappa is None or kappa >= AGREED else kappa
        joined = _among_columns(fed, parties)
        found = Overview(
            parties,
            aligned,
            label,
            what_is_torn(parties, aligned, label, disagree, joined),
            labels=labels,
            columns_share=joined,
            **among,
            curve=_curve(fed, curve, progress) if curve and aligned else None,
        )
    same_order = fed.is_aligned and fed.alignment.same_order
    found = replace(found, training=training, same_order=same_order)
    return replace(found, advice=advise(found).to_dict())


def _ask(fed: Federation, name: str) -> PartyOverview:
    unaligned = fed.alignment.unaligned.get(name) if fed.is_aligned else None
    try:
        with fed.workers(OverviewWorker, parties=[name]) as workers:
            return PartyOverview(name, unaligned=unaligned, **workers[name].sizes())
    except Refused as refusal:
        return PartyOverview(name, unaligned=unaligned, withheld=str(refusal))


def _ask_label(fed: Federation, name: str) -> dict[str, Any] | None:
    try:
        with fed.workers(OverviewWorker, parties=[name]) as workers:
            return dict(workers[name].label_counts())
    except Refused:
        return None


def _shared_classes(
    fed: Federation, holders: list[str]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """How unevenly the classes are shared, and the label over all parties that tell."""
    from fedmend.preflight.skew import label_skew

    while holders:
        try:
            found = label_skew(fed, holders)
        except (DataError, Refused) as refusal:
            if not isinstance(refusal, Refused) or refusal.party not in holders:
                break
            holders = [name for name in holders if name != refusal.party]
        else:
            told = {each: count for each, count in found.pooled.items() if count}
            others = sum(each.rows for each in found.parties.values()) - sum(told.values())
            return found.to_dict(), {"name": found.label, "counts": told, "others": others}
    return None, None


def _among_annotators(fed: Federation, holders: list[str]) -> dict[str, Any]:
    """How far several annotators agree; on the rows they share, where these have been found.

    No agreement where one of them does not let it be known.
    """
    if len(holders) < 2:
        return {}
    from fedmend.preflight.agreement import label_agreement

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
        words = f"{listed(holders, 6)}, who label, share {shared:,} rows with each other."
        agreement["words"].insert(0, words)
    return {"agreement": agreement, "labellers_share": shared}


def _among_columns(fed: Federation, parties: Sequence[PartyOverview]) -> int | None:
    """Rows known to all parties with columns, where others have labels only."""
    holders = [party.name for party in parties if party.n_columns]
    if not 1 < len(holders) < len(fed.names):
        return None
    view = fed.only(*holders)
    return view.alignment.aligned if view.is_aligned else None


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


# ---------------------------------------------------------------- what is torn, in words


def what_is_torn(
    parties: Sequence[PartyOverview],
    aligned: int | None,
    label: Mapping[str, Any] | None,
    disagree: float | None = None,
    joined: int | None = None,
) -> list[str]:
    """One sentence for each tear, the widest first; never empty.

    disagree: the kappa of the two annotators who agree least, where that is too little. joined:
    rows known to all parties with columns, where others label only.
    """
    reporting = [party for party in parties if not party.withheld]
    sentences = [
        *_rows_torn(parties, aligned, joined),
        *_labels_torn(reporting, aligned, label, joined, whole=len(reporting) == len(parties)),
        *_cells_torn(parties),
    ]
    if disagree is not None:
        sentences.append(f"Annotators disagree: two of them have a kappa of {disagree:.2f} only.")
    return sentences or ["Nothing: every row is known to all, complete and labelled."]


def torn_across(parties: Sequence[PartyOverview], skew: Mapping[str, Any] | None) -> list[str]:
    """What is torn where the parties have the same columns: labels, classes, cells."""
    reporting = [party for party in parties if not party.withheld]
    rows = sum(party.rows for party in reporting)
    labelled = sum(party.labelled_rows for party in reporting)
    sentences = []
    if labelled < rows:
        few = labelled < SCARCE_LABELS * rows
        scarce, what = ("Labels are scarce: ", "one") if few else ("", "a label")
        share = percent(labelled / rows)
        sentences.append(f"{scarce}{labelled:,} of {rows:,} rows have {what} ({share}).")
    sentences += [
        f"{party.name} has no labelled row: it learns from the others' labels only."
        for party in reporting
        if not party.labelled_rows
    ]
    if skew:
        classes = len(skew["pooled"])
        sentences += [
            f"{name} has labels of {each['classes']} of the {classes} classes only."
            for name, each in skew["parties"].items()
            if 0 < each["classes"] < classes
        ]
    return [*sentences, *_cells_torn(parties)] or ["Nothing: every row is complete and labelled."]


def _rows_torn(
    parties: Sequence[PartyOverview], aligned: int | None, joined: int | None
) -> Iterator[str]:
    reporting = [party for party in parties if not party.withheld]
    if len(reporting) < 2:
        return
    if aligned is None:
        yield "Not aligned yet: which rows the parties share is unknown."
        return
    # A row that is not known to all may lack nothing but an annotator who has no columns.
    unsure = len(reporting) < len(parties) or (
        joined is None and not all(party.n_columns for party in parties)
    )
    for party in reporting:
        others = [other for other in reporting if other is not party and other.n_columns]
        among = joined if joined is not None and party.n_columns else None
        rest = party.rows - (aligned if among is None else among)
        if rest <= 0 or not others:
            continue
        pair = len(parties) == 2 or (among is not None and len(others) == 1 and not unsure)
        linked = "not known to all" + " with columns" * (among is not None)
        linked = f"not linked to {others[0].name}" if pair else linked
        lacking = " or ".join(f"{other.name}'s {_columns(other)}" for other in others)
        # A party with labels only: its other rows are labels for which there are no columns.
        lack = f": they lack {lacking}" if party.n_columns and (pair or not unsure) else ""
        share = percent(rest / party.rows)
        yield f"{rest:,} of {party.name}'s {party.rows:,} rows ({share}) are {linked}{lack}."


def _labels_torn(
    parties: Sequence[PartyOverview],
    aligned: int | None,
    label: Mapping[str, Any] | None,
    joined: int | None,
    *,
    whole: bool,
) -> Iterator[str]:
    """whole: these are all parties; others, which withhold their sizes, may have labels."""
    if not any(party.labelled for party in parties):
        if whole:
            yield "No party has a label: nothing can be predicted yet."
        return
    some = [party for party in parties if party.labelled and party.labelled_rows < party.rows]
    if len(some) > MANY_ANNOTATORS:
        rows = sorted(party.labelled_rows for party in some)
        yield (
            f"{len(some):,} annotators have labels for some of their rows only: {rows[0]:,} to "
            f"{rows[-1]:,}, half of them for at most {rows[(len(rows) - 1) // 2]:,}."
        )
        some = []
    for party in some:
        few = party.labelled_rows < SCARCE_LABELS * party.rows
        shared = ""
        if aligned and aligned < party.rows and party.labelled_aligned is not None:
            known = f"{party.labelled_aligned:,}" if party.labelled_aligned else "none"
            shared = f", and for {known} of the {aligned:,} known to all"
        yield (
            f"{'Labels are scarce: ' * few}{party.name} has a label for {party.labelled_rows:,} "
            f"of its {party.rows:,} rows{shared}."
        )
    yield from _unlabelled(parties, aligned, joined)
    counts = (label or {}).get("counts") or {}
    if len(counts) == 1 and not (label or {}).get("others"):
        yield f"The label has one value only, {next(iter(counts))!r}."
    elif len(counts) > 1:
        rarest = min(counts, key=counts.__getitem__)
        share = counts[rarest] / sum(counts.values())
        if share < RARE_CLASS / (len(counts) - 1):
            mend = (
                f", {counts[rarest]:,} in all. So few can neither be learnt nor scored: leave "
                "them empty, or join them with another class"
            )
            rare = f"The class {rarest!r} is rare: {percent(share)} of the labels"
            yield f"{rare}{mend if counts[rarest] < FEW_LABELS else ''}."


def _unlabelled(
    parties: Sequence[PartyOverview], aligned: int | None, joined: int | None
) -> Iterator[str]:
    """Rows that no annotator knows. Of three parties and more, some know others' rows, too."""
    owners = [party.name for party in parties if party.labelled]
    able = any(party.labelled and party.n_columns for party in parties)
    shared = joined if joined is not None and able else aligned
    for party in parties:
        if party.labelled or shared is None or party.rows <= shared:
            continue
        rest = f"{party.rows - shared:,}"
        if len(parties) == 2:
            yield f"{party.name} has no label for its {rest} unlinked rows."
            continue
        known = f"none of {listed(owners, 6)} knows" if owners[1:] else f"{owners[0]} does not know"
        yield f"{party.name} has no label for rows that {known}: {rest} of {party.rows:,} at most."


def _cells_torn(parties: Sequence[PartyOverview]) -> Iterator[str]:
    for party in parties:
        if party.empty_columns:
            yield f"{party.name} has {counted(party.empty_columns, 'column')} without any value."
        if party.missing:
            share = percent(party.missing_share)
            yield f"{party.name} misses {counted(party.missing, 'cell')} ({share})."
    for party in parties:
        if party.withheld:
            yield f"{party.name} withholds its sizes by its policy."


def _columns(party: PartyOverview) -> str:
    """``15 continuous columns``, or ``9 columns (6 continuous, 3 nominal)``."""
    if len(party.columns) == 1:
        return f"{party.kinds} column{'s' * (party.n_columns != 1)}"
    return f"{counted(party.n_columns, 'column')} ({party.kinds})"


def _label_words(label: Mapping[str, Any]) -> str:
    if "counts" in label:
        counts = [f"{key} {count:,}" for key, count in label["counts"].items()]
        if label.get("others"):
            counts.append(f"others {label['others']:,} (small classes are untold)")
        return f"{label['name']}: {', '.join(counts)}"
    return f"{label['name']}: mean {label['mean']:.4g}, standard deviation {label['sd']:.4g}"


declare(EVERY_RUN, OverviewWorker)
