"""Recipes, one-sided rows and what `check` foretells: tables made of files of results."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from fedmend_bench import markdown as md
from fedmend_bench.cells import Kept
from fedmend_bench.flow import one_sided, world
from fedmend_bench.flow.files import all_lines
from fedmend_bench.markdown import Tables

FLOW, FORETOLD = "flow.jsonl", "preflight.jsonl"
_KNOWN = dict(zip(one_sided.KINDS, ("both", "the label party", "its partner"), strict=True))
_ABSENT = {"–": "", "fill": ", absent side at its mean", "guess": ", absent side guessed"}


def _flow(overlap: float, file: Path) -> str:
    """Every line of both sets: AUC in percent, and what the whole command took."""
    kept = [line["cell"]["shape"] | line["cell"] | line["found"] for line in Kept.at(file).all()]
    told = [row for row in kept if row["overlap"] == overlap]
    costs = ("cpu", "mb", "messages")
    found = {
        (row["data"], row["line"]): row
        for row in world.summary(told, (world.BOTH, world.BANK_ALONE, *costs))
    }
    sets = sorted({data for data, _ in found}, reverse=True)
    named = [line for line in all_lines() if (sets[0], line.name) in found]
    best = {
        (data, key): max(found[data, line.name][key] for line in named if not line.mended)
        for data in sets
        for key in (world.BOTH, world.BANK_ALONE)
    }
    lines = []
    for line in named:
        own = {data: found[data, line.name] for data in sets}
        cells = [f"{line.name} (`{line.recipe}`)" if line.recipe else line.name]
        for data, row in own.items():
            for key, error in ((world.BOTH, f" ± {row['se']:.1f}"), (world.BANK_ALONE, "")):
                mark = "**" if row[key] == best[data, key] else ""
                cells.append(f"{mark}{row[key]:.1f}{mark}{error}")
        for cost in costs:
            values = [row[cost] for row in own.values()]
            cells.append("" if None in values else " / ".join(f"{value:,.0f}" for value in values))
        lines.append(cells)
    kinds = [f"{name.capitalize()}, {known}" for name in sets for known in ("both", "bank alone")]
    return md.table(["", *kinds, "processor seconds", "MB", "messages"], lines)


def _one_sided(file: Path) -> str:
    """AUC / log loss, means over seeds."""
    rows = one_sided.means([line["cell"] | line["found"] for line in Kept.at(file).all()])
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        key = _KNOWN[row["known to"]], row["method"] + _ABSENT[row["absent side"]]
        shown = f"{md.short(row['auc'], 3)} / {md.short(row['log loss'], 3)}"
        lines.setdefault(key, {})[row["set"]] = shown
    told = [[*key, *(cells[name] for name in sets)] for key, cells in lines.items()]
    return md.table(["known to", "", *(name.capitalize() for name in sets)], told)


def _curves(file: Path, numeric: bool) -> str:
    """What twice the overlap is worth, foretold and really; errors of numbers as they are."""
    rows, inside = [], {"score": 0, "gain": 0}
    lines = [line["found"] for line in Kept.at(file).all() if line["found"]["part"] == "curve"]
    lines = [line for line in lines if (line["metric"] == "rmse") == numeric]
    lines.sort(key=lambda line: (line["dataset"], line["seed"]))

    def shown(value: float) -> str:
        return f"{value:,.{0 if value > 1000 else 2}f}" if numeric else md.short(value, 3)

    def gained(value: float) -> str:
        return f"{100 * value:.1f} %".replace("-", "−") if numeric else md.signed(value)

    for line in lines:
        inside["score"] += line["inside"]
        inside["gain"] += line["gain inside"]
        rows.append(
            [
                line["dataset"],
                str(line["seed"]),
                *(shown(line[key]) for key in ("now", "really now", "twice")),
                f"{shown(line['from'])} to {shown(line['to'])}",
                shown(line["really twice"]),
                gained(line["gain"]),
                f"{gained(line['gain from'])} to {gained(line['gain to'])}",
                gained(line["real gain"]),
            ]
        )
    off = statistics.mean(abs(line["gain"] - line["real gain"]) for line in lines)
    what, held = "RMSE" if numeric else "AUC", "80 % interval"
    head = ["set", "seed", f"{what} now, foretold", "really", "with twice the rows, foretold"]
    table = md.table([*head, held, "really", "gain, foretold", held, "really"], rows)
    told = f"{off:.1%}".replace("%", " %") if numeric else md.short(off, 4)
    of = f"of {len(lines)}"
    return (
        f"{table}\n\nThe foretold gain is off by {told} on average; the real gain is within its "
        f"interval in {inside['gain']} {of}, the real score in {inside['score']} {of}."
    )


TABLES: Tables = {
    "flow": (FLOW, partial(_flow, 0.1)),
    "flow-half": (FLOW, partial(_flow, 0.5)),
    "one-sided": ("one-sided.jsonl", _one_sided),
    "preflight-curves": (FORETOLD, partial(_curves, numeric=False)),
    "preflight-numbers": (FORETOLD, partial(_curves, numeric=True)),
}
