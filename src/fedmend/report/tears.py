"""What is torn, in words: sentences made of what the parties told of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedmend.report.amounts import percent

if TYPE_CHECKING:
    from fedmend.report.overview import PartyOverview

__all__ = ["columns_in_words", "torn_across", "what_is_torn"]

SCARCE_LABELS = 0.5
RARE_CLASS = 0.1
# Of a class with fewer labels than this hardly one falls among validation and test rows.
FEW_LABELS = 10


def torn_across(parties: list[PartyOverview], skew: Mapping[str, Any] | None) -> list[str]:
    """What is torn where the parties have the same columns: labels, classes, cells."""
    told = [party for party in parties if not party.withheld]
    rows = sum(party.rows for party in told)
    labelled = sum(party.labelled_rows for party in told)
    sentences = []
    if rows and labelled < rows:
        few = labelled < SCARCE_LABELS * rows
        scarce, what = ("Labels are scarce: ", "one") if few else ("", "a label")
        sentences.append(
            f"{scarce}{labelled:,} of {rows:,} rows have {what} ({percent(labelled / rows)})."
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
            shared = ""
            if aligned and aligned < holder.rows and holder.labelled_aligned is not None:
                known = f"{holder.labelled_aligned:,}" if holder.labelled_aligned else "none"
                shared = f", and for {known} of the {aligned:,} known to all"
            sentences.append(
                f"{scarce}{holder.name} has a label for {holder.labelled_rows:,} "
                f"of its {holder.rows:,} rows{shared}."
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
            sentences.append(
                f"The class {rarest!r} is rare: {percent(share)} of the labels"
                + (
                    f", {counts[rarest]:,} in all. So few can neither be learnt nor scored: leave "
                    "them empty, or join them with another class."
                    if counts[rarest] < FEW_LABELS
                    else "."
                )
            )
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
