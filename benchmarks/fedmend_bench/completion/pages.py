"""FedPSG-PUM beside the published choice: tables made of a file of results."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.completion.runs import OURS, PAPER, TRAINED
from fedmend_bench.markdown import Tables

COMPLETED = "fedpsg-pum.jsonl"
_PUBLISHED = {
    "rmse": ("RMSE", "", 3),
    "accuracy": ("accuracy of classes", "", 3),
    "macro_f1": ("macro-F1", "", 3),
    "auc": ("AUC of the joint model", TRAINED, 4),
}


def _as_published(where: str, file: Path) -> str:
    """FedPSG-PUM and `paper()`, and the difference: mean ± standard error over seeds."""
    found: dict[tuple[str, float], dict[str, dict[int, dict[str, float]]]] = {}
    for line in Kept.at(file).all():
        for row in line["found"] if line["cell"]["where"] == where else ():
            values = found.setdefault((row["data"], row["missing"]), {})
            values.setdefault(row["method"], {})[row["seed"]] = row
    trained = any(name.startswith(TRAINED) for values in found.values() for name in values)
    told = {key: how for key, how in _PUBLISHED.items() if trained or how[1] != TRAINED}
    lines = []
    for (data, missing), values in sorted(found.items()):
        seeds = sorted(set.intersection(*(set(each) for each in values.values())))
        cells = [data.capitalize(), md.short(missing, 1), str(len(seeds))]
        for key, (_, before, digits) in told.items():
            pair = [[values[before + name][s][key] for s in seeds] for name in (OURS, PAPER)]
            ours, paper = (md.short(statistics.mean(each), digits) for each in pair)
            apart = [mine - its for mine, its in zip(*pair, strict=True)]
            error = md.short(md.spread(apart), digits)
            cells.append(f"{ours} / {paper}")
            cells.append(f"{md.signed(statistics.mean(apart), digits)} ± {error}")
        lines.append(cells)
    names = [name for title, _, _ in told.values() for name in (title, "difference")]
    return md.table(["", "missing", "seeds", *names], lines)


TABLES: Tables = {
    "fedpsg-pum-paper": (COMPLETED, partial(_as_published, "random")),
    "fedpsg-pum-paper-last": (COMPLETED, partial(_as_published, "last")),
}
