"""`fedmend bench flow`: the whole flow by the command that users type, against each method alone.

    fedmend bench flow -o data=credit -o seeds=5
    fedmend bench flow -o folder=out -o processes=2 -o lines=recipes,single

Two parties with columns, a tenth of whose rows is common, and three labellers, one of them bad, as
CSV files with a federation.toml (`files.py`). Trees stand among the single methods; beside all
stand scikit-learn's in the clear, by the bank's labels and by true ones. Every other line is one
`fedmend run` in a process and a folder of its own, then one `fedmend predict` of the test rows as
the bank alone knows them. All figures are read from what these leave: scores from metrics.json,
seconds from the clock, bytes and messages from the ledger. AUC in percent; cpu: processor seconds,
which other work on the machine does not change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmend.errors import DataError
from fedmend.federation import Federation, Party
from fedmend.federation.ledger import read_ledger
from fedmend.learn import metrics
from fedmend.report.page import LEDGER_FILE
from fedmend.report.record import RunRecord, read_stages
from fedmend.secure.align import align
from fedmend_bench.cells import run_cells
from fedmend_bench.clear import Clear
from fedmend_bench.flow.files import (
    NEW_FILE,
    TRUTH_FILE,
    Line,
    all_lines,
    single_lines,
    write_config,
    write_world,
)
from fedmend_bench.flow.world import (
    BANK,
    BANK_ALONE,
    BOTH,
    TELCO,
    Shape,
    bars,
    make_world,
    shapes_of,
    summary,
)
from fedmend_bench.harness import BenchResult, device_name
from fedmend_bench.options import chosen
from fedmend_bench.simulation import apart, know, together

NAME = "flow"
HELP = "fedmend run itself on Credit and Bank: recipes, auto and advice against each method alone"
MEASURES = (BOTH, BANK_ALONE, "seconds", "cpu", "mb", "messages")
QUICK = "Dawid–Skene → auto,InC → LocalVFL,Local,VFL,majority among labellers"
CHANCE = 4.0
"""AUC points: twice the standard error of a difference on the 400 test rows of one seed."""


class Took(NamedTuple):
    """Seconds of a command: by the clock, and of the processor."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Cell:
    """A line in a world."""

    shape: Shape
    line: str


def run(
    quick: bool = False,
    data: str = "credit,bank",
    lines: str = "all",
    seeds: int = 5,
    first_seed: int = 0,
    rows: int = 4000,
    test: int = 4000,
    overlap: float = 0.1,
    noisy: str = BANK,
    missing: float = 0.3,
    processes: int = 1,
    folder: str | None = None,
) -> BenchResult:
    """All lines of all worlds; `quick` is one small world, and a few lines of it.

    lines: all, recipes, single, or names. noisy: which labeller errs most. missing: the share of
    votes not given. folder: finished lines are kept here, and a stopped benchmark goes on.
    """
    if quick:
        data, seeds, rows, test = data.split(",")[0], 1, min(rows, 800), min(test, 400)
        lines = QUICK if lines == "all" else lines
    shapes = shapes_of(data, seeds, first_seed, rows, test, overlap, noisy, missing)
    cells = [Cell(shape, line.name) for shape in shapes for line in chosen_lines(lines)]
    found = [
        asdict(cell.shape) | {"line": cell.line} | result
        for cell, result in zip(cells, run_cells(_measured, cells, folder, processes), strict=True)
    ]
    single = {line.name for line in single_lines()}
    recipes = {line.name for line in all_lines() if line.recipe} - single
    table = summary(found, MEASURES)
    promises = bars(found, single, recipes, chance=CHANCE if quick else 0.0)
    return BenchResult(NAME, table, promises, device=device_name("cpu"))


def chosen_lines(lines: str) -> list[Line]:
    """The lines asked for, by name or by group."""
    known = {line.name: line for line in all_lines()}
    single = [line.name for line in single_lines()]
    groups = {
        "all": list(known),
        "single": single,
        "recipes": [name for name, line in known.items() if line.recipe and name not in single],
    }
    asked = chosen("lines", lines.split(","), [*groups, *known])
    names = dict.fromkeys(name for each in asked for name in groups.get(each, [each]))
    return [known[name] for name in names]


# ---------------------------------------------------------------- one line


def _measured(cell: Cell) -> dict[str, Any]:
    line = next(each for each in all_lines() if each.name == cell.line)
    with tempfile.TemporaryDirectory(prefix="fedmend-flow-") as work:
        return measured(cell.shape, line, Path(work))


def measured(shape: Shape, line: Line, work: Path) -> dict[str, Any]:
    """Write the files, run, predict, and read what was left."""
    if line.clear:
        return in_the_clear(shape, mended=line.mended)
    write_world(shape, work, mended=line.mended)
    config = write_config(line, shape, work)
    told: dict[str, Any] = {}
    if line.advised:
        advised = config.with_name("advised.toml")
        checked = _fedmend(work, "check", config.name, "--write", advised.name)
        told |= {"check seconds": checked.wall, "check cpu": checked.processor}
        config = advised
    asked = ["--recipe", line.recipe] if line.recipe else []
    ran = _fedmend(work, "run", config.name, "--folder", "run", *asked)
    told |= {"seconds": ran.wall, "cpu": ran.processor} | _left(work / "run")
    predicted = _fedmend(
        work, "predict", "run", "--method", told["method"], "--with", f"{BANK}={NEW_FILE}"
    )
    told |= {"predict seconds": predicted.wall, "predict cpu": predicted.processor}
    return told | {BANK_ALONE: 100 * _auc_of_predictions(work)}


def in_the_clear(shape: Shape, *, mended: bool) -> dict[str, Any]:
    """Boosting of what the bank says of its rows, with the telco's columns where it knows them."""
    world = make_world(shape, mended=mended)
    fed = Federation(
        *(
            Party(name, world.train[name], test=world.test[name], alone=world.test[name])
            for name in (BANK, TELCO)
        ),
        seed=shape.seed,
    )
    align(fed)
    know(fed.on("test"), together(len(world.test[BANK])))
    know(fed.on("alone"), apart(len(world.test[BANK])))
    began = time.process_time()
    model = Clear("GBDT left join", shape.seed).fit(fed)
    return {
        BOTH: 100 * model.evaluate(fed.on("test"))["auc"],
        BANK_ALONE: 100 * model.evaluate(fed.on("alone"))["auc"],
        "cpu": time.process_time() - began,
    }


def _fedmend(work: Path, *words: str) -> Took:
    """Run a command as a user would; what it took, from its start to its end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedmend", *words]
    began = time.perf_counter()
    with (work / "told.txt").open("w", encoding="utf-8") as told:
        child = subprocess.Popen(command, cwd=work, env=environment, stdout=told, stderr=told)
        # Not child.wait(): only this tells the processor time of this one child.
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        said = (work / "told.txt").read_text(encoding="utf-8")
        raise subprocess.CalledProcessError(child.returncode, command, stderr=said)
    return Took(time.perf_counter() - began, used.ru_utime + used.ru_stime)


def _left(folder: Path) -> dict[str, Any]:
    """What a run folder tells: the score of what was asked for, costs of all and by stage."""
    record = RunRecord.load(folder)
    entries = read_ledger(folder / LEDGER_FILE)
    # Without and with each mend the first method is trained; the last is the one with all of them.
    first = record.methods[0].name
    method = [each for each in record.methods if each.name == first][-1]
    return {
        BOTH: 100 * method.scores["auc"],
        "method": method.title,
        "recipe": record.recipe,
        "mb": sum(entry.total_bytes for entry in entries) / 1e6,
        "messages": sum(entry.count for entry in entries),
        "stages": {
            each.name: {"seconds": each.seconds, "mb": each.bytes / 1e6}
            for each in read_stages(folder)
        },
    }


def _auc_of_predictions(work: Path) -> float:
    """Of the file that `fedmend predict` wrote, against what the rows truly are."""
    truth = json.loads((work / TRUTH_FILE).read_text(encoding="utf-8"))
    told = pd.read_csv(work / "predictions" / BANK / "predictions.csv", dtype={"id": str})
    classes = [name[2:-1] for name in told.columns if name.startswith("p(")]
    if sorted(told["id"]) != sorted(truth) or not set(truth.values()) <= set(classes):
        raise DataError(
            f"{len(told):,} rows of the classes {', '.join(classes)} were predicted, not the "
            f"{len(truth):,} that were given, of {', '.join(sorted(set(truth.values())))}",
            party=BANK,
            mend="this is a fault of fedmend predict: report it",
        )
    codes = np.array([classes.index(truth[each]) for each in told["id"]])
    outputs = told[[f"p({each})" for each in classes]].to_numpy()
    return float(metrics.classification(codes, outputs)["auc"])
