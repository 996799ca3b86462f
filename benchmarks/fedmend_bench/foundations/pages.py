"""Tables of what curious roles infer, made of what `fedmend bench leaks` wrote with `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.markdown import Tables

SCORES = {"AUC": "auc", "accuracy": "accuracy", "log loss": "log_loss"}
ROLES = ("coordinator", "label party")


def _told(file: Path) -> str:
    """Scores of models that hear labels told at random: `label_dp`, and taken for true ones."""
    kept = _read(file)
    head: list[str] = []
    lines = []
    for name, rows in _by_data(kept):
        rows = sorted(rows, key=lambda row: (-(row["epsilon"] or float("inf")), row["loss"]))
        head = [
            "labels as they are"
            if row["epsilon"] is None
            else ("plain" if row["loss"] == "plain" else f"ε = {row['epsilon']:g}")
            for row in rows
        ]
        for title, key in SCORES.items():
            lines.append([name, title, *(md.short(row[key], 3) for row in rows)])
    return _table(["data", "figure", *head], lines, kept)


def _wide(file: Path) -> str:
    """By width of the embedding: the model's AUC, what two roles infer of the partner's columns."""
    kept = _read(file)
    head: list[str] = []
    lines = []
    for name, rows in _by_data(kept):
        head = [str(row["width"]) for row in rows]
        lines.append([name, "AUC", *(md.short(row["model AUC"], 3) for row in rows), ""])
        for role in ROLES:
            found = [md.short(row[f"mean, {role}"], 3) for row in rows]
            lines.append([name, role, *found, md.short(rows[0][f"without, {role}"], 3)])
    return _table(["data", "figure", *head, "without"], lines, kept)


def _read(file: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def _by_data(kept: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, rows in groupby(kept["rows"], key=lambda row: str(row["data"])):
        yield name, list(rows)


def _table(head: list[str], lines: list[list[str]], kept: dict[str, Any]) -> str:
    return f"{md.table(head, lines)}\n\n`{kept['command']}`, {kept['device']}."


TABLES: Tables = {
    "leaks-labels": ("leaks-labels.json", _told),
    "leaks-width": ("leaks-width.json", _wide),
    "leaks-width-risa": ("leaks-width-risa.json", _wide),
}
