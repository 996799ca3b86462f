"""The page of `fedmend bench tabular`: its tables, made anew from the lines that were measured.

What stands before and after the two marks of the file stays as it is.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend.errors import ConfigError
from fedmend_bench.harness import Bar

__all__ = ["shown", "write_page"]

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
CLEAR = "GBDT", "logistic"


def shown(values: Sequence[float]) -> str:
    """Mean ± standard error.

    >>> shown([0.9, 0.92]), shown([0.5])
    ('.9100 ± .0100', '.5000')
    """
    mean = f"{statistics.mean(values):.4f}".removeprefix("0")
    if len(values) < 2:
        return mean
    error = f"{statistics.stdev(values) / len(values) ** 0.5:.4f}".removeprefix("0")
    return f"{mean} ± {error}"


def write_page(
    file: Path,
    found: Mapping[tuple[int, str, float, str], Mapping[str, Any]],
    bars: Sequence[Bar],
    methods: Sequence[str],
) -> None:
    """Write the tables of `table.spread` and the bars between the marks of a file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{file} has no place for tables. Mend: the lines {BEGIN} and {END}")
    parts = [_sets(found, methods), _means(found, methods), _promises(bars)]
    tables = "\n\n".join(part for part in parts if part)
    write_whole(file, f"{before}{begin}\n\n{tables}\n\n{end}{after}")


def _sets(found: Mapping[Any, Mapping[str, Any]], methods: Sequence[str]) -> str:
    """AUC, a table for each set."""
    parts = []
    for rows, data in dict.fromkeys((rows, data) for rows, data, _, _ in found):
        places = [place for place in found if place[:2] == (rows, data)]
        places.sort(key=lambda place: (place[3], place[2]))
        seeds = {len(found[place][method]) for place in places for method in found[place]}
        head = [f"{share:g} % {known}" for _, _, share, known in places]
        lines = [f"### {data}, at most {rows:,} rows ({_several(seeds)})", ""]
        lines += [f"| AUC | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
        best = [_best(found[place]) for place in places]
        for method in methods:
            if not any(method in found[place] for place in places):
                continue
            cells = []
            for place, top in zip(places, best, strict=True):
                aucs = [each["auc"] for each in found[place].get(method, {}).values()]
                mark = "**" if method == top else ""
                cells.append(f"{mark}{shown(aucs)}{mark}" if aucs else "")
            lines.append(f"| {method} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _several(seeds: set[int]) -> str:
    few, many = min(seeds), max(seeds)
    return f"{many} seeds" if few == many else f"{few} to {many} seeds"


def _best(values: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str | None:
    """The best that needs no table in the clear."""
    means = {
        method: statistics.mean(each["auc"] for each in scores.values())
        for method, scores in values.items()
        if not method.startswith(CLEAR)
    }
    return max(means, key=means.__getitem__) if means else None


def _means(found: Mapping[Any, Mapping[str, Any]], methods: Sequence[str]) -> str:
    """All metrics, the mean over sets and overlaps that a method was measured on."""
    metrics = ("auc", "accuracy", "log_loss")
    head = [
        f"{metric.replace('_', ' ')}, {known}" for known in ("both", "one") for metric in metrics
    ]
    places = {known: [each for each in found if each[3] == known] for known in ("both", "one")}
    lines = ["### Means over all sets and overlaps, where a method has every one of them", ""]
    lines += [f"| | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for method in methods:
        cells = []
        for known in ("both", "one"):
            whole = places[known] and all(method in found[place] for place in places[known])
            for metric in metrics:
                means = [
                    statistics.mean(each[metric] for each in found[place][method].values())
                    for place in places[known]
                    if whole
                ]
                cells.append(f"{statistics.mean(means):.4f}".removeprefix("0") if means else "")
        if any(cells):
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _promises(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    holding = sum(bar.holds for bar in bars)
    lines = [f"### Promises: {holding} of {len(bars)} hold", ""]
    lines += ["| promise | measured | target | |", "|---|---|---|---|"]
    lines += [
        f"| {bar.name} | {bar.value} | {bar.target} | {'holds' if bar.holds else '**does not**'} |"
        for bar in bars
    ]
    return "\n".join(lines)
