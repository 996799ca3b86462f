"""`fedmend bench pages`: every table that has a file of results, made anew from it.

A page keeps such a table between ``<!-- made: NAME -->`` and ``<!-- made: end -->``; what people
wrote around it stays. Nothing is measured. A page without a mark says that its measurements were
not kept. How a benchmark's tables are made is in its own folder (`pages.py` there).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend.errors import ConfigError
from fedmend_bench import markdown as md
from fedmend_bench.completion import pages as completion
from fedmend_bench.flow import pages as flow
from fedmend_bench.foundations import pages as foundations
from fedmend_bench.generators import pages as generators
from fedmend_bench.harness import BenchResult, shown
from fedmend_bench.inc import pages as inc
from fedmend_bench.markdown import Tables
from fedmend_bench.risa import pages as risa
from fedmend_bench.sage import pages as sage
from fedmend_bench.sage.curves import add_curves, add_searched
from fedmend_bench.tabular import pages as tabular
from fedmend_bench.tabular import table as trees

NAME = "pages"
HELP = "the tables of results pages, made anew from the files of results; measures nothing"

RESULTS = Path(__file__).parents[1] / "results"
MADE = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- made: end -->)", re.DOTALL)
PRINTED = (
    *("sums", "split", "split-sealed", "psi", "correlation", "engine", "leaks", "leaks-others"),
    *("sage-speed", "serve", "serve-three", "inc-cost"),
)
"""Results of a command as it wrote them."""


def run(
    quick: bool = False, *, results: str | None = None, curves: str | None = None
) -> BenchResult:
    """Write the tables of all pages; a row each, and whether it is as it was.

    results: the folder of pages and files. curves: a folder of `fedmend bench sage`, whose curves
    are taken into the files of CIFAR-10's rounds and of runs on digits first.
    """
    folder = RESULTS if results is None else Path(results)
    if curves is not None:
        add_curves(folder / sage.CIFAR, Path(curves))
        add_searched(folder / sage.SEARCHED, Path(curves))
    rows = []
    summary = folder.parents[1] / "docs" / "benchmarks.md"
    for page in [*sorted(folder.glob("*.md")), *([summary] if summary.is_file() else [])]:
        before = page.read_text(encoding="utf-8")
        text = MADE.sub(
            lambda found: f"{found[1]}\n{_make(found[2], folder)}\n\n{found[3]}", before
        )
        if text != before:
            write_whole(page, text)
        tables = [found[2] for found in MADE.finditer(text)]
        if page.name == "tabular.md":
            file = str(folder / "tabular.jsonl")
            trees.run(part="page", folder=file, page=str(page))
            text, tables = page.read_text(encoding="utf-8"), [*tables, "all"]
        if tables:
            same = "as it was" if text == before else "changed"
            rows.append({"page": page.name, "tables": ", ".join(tables), "": same})
    return BenchResult(NAME, rows)


def _make(name: str, folder: Path) -> str:
    if name not in TABLES:
        raise ConfigError(f"there is no table {name!r}. Mend: one of {', '.join(TABLES)}")
    file, make = TABLES[name]
    return make(folder / file)


def _printed(file: Path) -> str:
    """What a command wrote with `--json`: its table, its bars, and the command itself."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    bars = [
        {
            "bar": bar["name"],
            "measured": bar["value"],
            "target": bar["target"],
            "holds": bar["holds"],
        }
        for bar in kept["bars"]
    ]

    def table(rows: Sequence[dict[str, Any]]) -> str:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = [columns, *([shown(row.get(key)) for key in columns] for row in rows)]
        head, *lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        return md.table(head, lines)

    tables = [table(rows) for rows in (kept["rows"], bars) if rows]
    return "\n\n".join([*tables, f"`{kept['command']}`, {kept['device']}."])


TABLES: Tables = {
    **risa.TABLES,
    **inc.TABLES,
    **tabular.TABLES,
    **generators.TABLES,
    **completion.TABLES,
    **flow.TABLES,
    **sage.TABLES,
    **foundations.TABLES,
    **{name: (f"{name}.json", _printed) for name in PRINTED},
}
