"""InC's tables, made of files of results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.inc import crowds
from fedmend_bench.inc.batched import CLEAN, TABLE_METHODS
from fedmend_bench.inc.data import HUMAN, TABLE_KINDS
from fedmend_bench.inc.runs import Finding
from fedmend_bench.inc.table import human_rows, noise_rows
from fedmend_bench.markdown import Tables

NOISY = "inc.jsonl"
VARIANTS = ["EM soft", "InC bayes", "InC product", "InC product hard", "InC crossfit"]
STAGES = [
    "InC initialise only",
    "InC row",
    "InC row correct only",
    "InC product",
    "InC product correct only",
]
"""Of InC: the methods of two tables."""
_BOTH = ("accuracy", "corrected")
_MAIN: dict[str, Any] = {
    "methods": [list(TABLE_METHODS)],
    "kind": TABLE_KINDS,
    "labelled": [1.0],
}


def _noisy(file: Path, told: Sequence[str], beside: bool = True, **asked: Sequence[Any]) -> str:
    """Accuracy, labels that are right, or both, by method and setting; in brackets the paper's.

    asked: what the batches may have in these fields. What they all have is no column.
    """
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    settings: list[str] = []
    for line in Kept.at(file).all():
        cell = line["cell"]
        if any(cell[key] not in allowed for key, allowed in asked.items()):
            continue
        of = cell["data"], cell["model"], cell["kind"]
        settings = cell["settings"]
        for row in noise_rows(*of, Finding.of(line["found"]), beside=beside):
            if row["of"] in told:
                method = row["method"]
                if len(told) > 1 and method.startswith(CLEAN):
                    method = f"{CLEAN} (/ ceiling)"
                found.setdefault((*of, method), {})[row["of"]] = row
    head = [("data", "model", "noise", "method")[at] for at in _differing(found)]
    lines = []
    for key, rows in found.items():
        cells = [key[at] for at in _differing(found)]
        for setting in settings:
            values = [md.short(rows[what][setting], 3) for what in told]
            paper = rows[told[0]].get(f"{setting}, paper")
            cells.append(" / ".join(values) + (f" ({md.short(paper, 3)})" if paper else ""))
        lines.append(cells)
    return md.table([*head, *settings], lines)


def _differing(keys: Iterable[tuple[str, ...]]) -> list[int]:
    """The places at which not all keys have the same."""
    return [at for at, values in enumerate(zip(*keys, strict=True)) if len(set(values)) > 1]


def _human(file: Path, data: str) -> str:
    """Accuracy / labels that are right, by model and method."""
    lines: dict[str, dict[str, str]] = {}
    for line in Kept.at(file).all():
        cell = line["cell"]
        if cell["kind"] == HUMAN and cell["data"] == data:
            for row in human_rows(cell["data"], cell["model"], Finding.of(line["found"])):
                shown = f"{md.short(row['accuracy'], 3)} / {md.short(row['corrected'], 3)}"
                lines.setdefault(cell["model"], {})[row["method"]] = shown
    head = ["model", *next(iter(lines.values()))]
    head[head.index(CLEAN)] = f"{CLEAN} (/ ceiling)"
    return md.table(head, [[model, *cells.values()] for model, cells in lines.items()])


def _crowds(file: Path) -> str:
    """Of every crowd and method, means over seeds, and how far InC is ahead of the others."""
    found: dict[tuple[str, int], list[dict[str, dict[str, float]]]] = {}
    for line in Kept.at(file).all():
        crowd = line["cell"]["data"], line["cell"]["annotators"]
        found.setdefault(crowd, []).append(line["found"])
    rows = []
    for (name, count), draws in found.items():
        for method in crowds.METHODS:
            own = {
                what: statistics.mean(each[method][what] for each in draws)
                for what in crowds.MEASURES
            }
            cells = [f"{name.capitalize()}, {count}" if method == "InC" else "", method]
            for what, digits in (("auc", 4), ("log_loss", 3), ("labels right", 3)):
                cells.append(md.short(own[what], digits))
            for what in ("auc", "log_loss"):
                gains = [each["InC"][what] - each[method][what] for each in draws]
                cells.append("" if method == "InC" else md.gained(gains))
            rows.append([*cells, f"{own['cpu seconds']:.1f}"])
    head = ["data, annotators", "method", "AUC", "log loss", "labels right"]
    return md.table([*head, "InC's AUC less this", "its log loss less this", "CPU s"], rows)


TABLES: Tables = {
    "inc-crowds": ("inc-crowds.jsonl", _crowds),
    **{
        f"inc-{data}{beside}": (NOISY, partial(_noisy, told=[told], data=[data], **_MAIN))
        for data in ("letter", "covertype", "sensorless")
        for beside, told in (("", "accuracy"), ("-labels", "corrected"))
    },
    "inc-variants": (NOISY, partial(_noisy, told=_BOTH, beside=False, methods=[VARIANTS])),
    "inc-stages": (NOISY, partial(_noisy, told=_BOTH, beside=False, methods=[STAGES])),
    "inc-rows": (NOISY, partial(_noisy, told=_BOTH, beside=False, kind=["instance"])),
    "inc-part": (NOISY, partial(_noisy, told=_BOTH, beside=False, labelled=[0.5])),
    "inc-human": (NOISY, partial(_human, data="labelme")),
    "inc-human-images": (NOISY, partial(_human, data="cifar10n")),
}
