"""`fedmend bench flow`: the whole flow by the command that users type, against each method alone.

    fedmend bench flow -o data=credit -o seeds=5
    fedmend bench flow -o keep=out -o processes=2 -o lines=recipes,single

Two parties with columns, a tenth of whose rows is common, and three labellers, one of them bad, as
CSV files with a federation.toml (`files.py`). Every line is one `fedmend run` in a process and
a folder of its own, then one `fedmend predict` of the test rows as the bank alone knows them. All
figures are read from what these leave: scores from metrics.json, seconds from the clock, bytes and
messages from the ledger. AUC in percent; cpu: processor seconds, which other work on the machine
does not change.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmend._json import write_json
from fedmend.errors import ConfigError, DataError, DatasetAbsent, FedmendError
from fedmend.federation.ledger import read_ledger
from fedmend.learn import metrics
from fedmend.report.page import LEDGER_FILE
from fedmend.report.record import RunRecord
from fedmend.report.stages import read_stages
from fedmend_bench.flow.files import (
    NEW_FILE,
    TRUTH_FILE,
    Line,
    all_lines,
    single_lines,
    write_config,
    write_world,
)
from fedmend_bench.flow.world import BANK, Shape
from fedmend_bench.harness import Bar, BenchResult, device_name

logger = logging.getLogger(__name__)

NAME = "flow"
HELP = "fedmend run itself on Credit and Bank: recipes, auto and advice against each method alone"
BOTH, ALONE = "auc", "auc, bank alone"
MEASURES = (BOTH, ALONE, "seconds", "cpu", "mb", "messages")


class Took(NamedTuple):
    """Seconds of a command: by the clock, and of the processor."""

    wall: float
    processor: float


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
    keep: str | None = None,
) -> BenchResult:
    """All lines of all worlds; `quick` is one small world.

    lines: all, recipes, single, or names. noisy: which labeller errs most. missing: the share of
    votes not given. keep: a folder for finished lines, from which a stopped benchmark goes on.
    """
    if quick:
        data, seeds, rows, test = data.split(",")[0], 1, min(rows, 800), min(test, 400)
    names = chosen(lines)
    shapes = [
        Shape(each, first_seed + seed, rows, test, overlap, noisy, missing)
        for seed in range(seeds)
        for each in data.split(",")
    ]
    with tempfile.TemporaryDirectory(prefix="fedmend-flow-") as place:
        folder = Path(keep) if keep else Path(place) / "kept"
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [(shape, line) for shape in shapes for line in names]
        with ThreadPoolExecutor(processes) as pool:
            waiting = [pool.submit(_kept, *job, folder, Path(place)) for job in jobs]
            found = [each.result() for each in waiting]
    for each in found:
        if "failed" in each:
            logger.warning("%s, %s: %s", each["data"], each["line"], each["failed"])
    return BenchResult(NAME, list(summary(found)), list(bars(found)), device=device_name("cpu"))


def chosen(lines: str) -> list[Line]:
    """The lines asked for."""
    known = {line.name: line for line in all_lines()}
    single = [line.name for line in single_lines()]
    groups = {
        "all": list(known),
        "single": single,
        "recipes": [name for name, line in known.items() if line.recipe and name not in single],
    }
    found = []
    for name in lines.split(","):
        if name not in groups and name not in known:
            raise ConfigError(f"there is no line {name!r}. Mend: {', '.join([*groups, *known])}")
        found += groups.get(name, [name])
    return [known[name] for name in dict.fromkeys(found)]


# ---------------------------------------------------------------- one line


def _kept(shape: Shape, line: Line, folder: Path, place: Path) -> dict[str, Any]:
    """A line's result, from its file where it has been run before in the same world."""
    stored = folder / f"{shape.data}-{shape.seed}-{shape.noisy}-{line.slug}.json"
    told: dict[str, Any] = asdict(shape) | {"line": line.name}
    if stored.is_file():
        found: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8"))
        if all(found.get(key) == value for key, value in told.items()):
            return found
    work = place / stored.stem
    try:
        told |= measured(shape, line, work)
    except subprocess.CalledProcessError as error:
        told["failed"] = (error.stderr or "").strip()[-2000:]
    except DatasetAbsent:
        raise  # no line can be measured, which is no result of this one
    except FedmendError as error:
        told["failed"] = str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write_json(stored, told)
    return told


def measured(shape: Shape, line: Line, work: Path) -> dict[str, Any]:
    """Write the files, run, predict, and read what was left."""
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
    return told | {ALONE: 100 * _auc_of_predictions(work)}


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
    if sorted(told["id"]) != sorted(truth):
        raise DataError(
            f"{len(told):,} rows were predicted, not the {len(truth):,} that were given",
            party=BANK,
            mend="this is a fault of fedmend predict: report it",
        )
    classes = [name[2:-1] for name in told.columns if name.startswith("p(")]
    if not set(truth.values()) <= set(classes):
        raise DataError(
            f"the predictions are of other classes than {', '.join(sorted(set(truth.values())))}",
            party=BANK,
            value=classes,
            mend="this is a fault of fedmend predict: report it",
        )
    codes = np.array([classes.index(truth[each]) for each in told["id"]])
    outputs = told[[f"p({each})" for each in classes]].to_numpy()
    return float(metrics.classification(codes, outputs)["auc"])


# ---------------------------------------------------------------- showing


def summary(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Means over seeds, line by line, with the standard error of the AUC."""
    for data, line in dict.fromkeys((each["data"], each["line"]) for each in found):
        done = [
            each
            for each in found
            if (each["data"], each["line"]) == (data, line) and "failed" not in each
        ]
        row: dict[str, Any] = {"data": data, "line": line}
        for measure in MEASURES:
            values = [each[measure] for each in done]
            row[measure] = float(np.mean(values)) if values else None
        aucs = [each[BOTH] for each in done]
        row["se"] = float(np.std(aucs, ddof=1) / np.sqrt(len(aucs))) if len(aucs) > 1 else None
        yield row | {"seeds": len(done)}


def bars(found: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    """The best recipe against the best single method, over the seeds that both have."""
    single = {line.name for line in single_lines()}
    recipes = {line.name for line in all_lines() if line.recipe} - single
    for data in dict.fromkeys(each["data"] for each in found):
        rows = list(summary([each for each in found if each["data"] == data]))
        for measure, known in ((BOTH, "both"), (ALONE, "the bank alone")):
            means = {row["line"]: row[measure] for row in rows if row[measure] is not None}
            able = [
                {name: means[name] for name in group if name in means}
                for group in (single, recipes)
            ]
            if not all(able):
                continue
            alone, together = (max(group, key=lambda name: means[name]) for group in able)
            yield Bar.at_least(
                f"{data}, rows known to {known}: {together} (best single: {alone})",
                round(means[together], 2),
                round(means[alone], 2),
            )
