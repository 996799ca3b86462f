"""``fedmend demo``: the whole flow on scikit-learn's breast-cancer table, as files one can change.

Hospital A knows how tumours look, hospital B their size and shape; one patient in five is known
to both. Three parties read the diagnoses of A's patients and all of them err: hospital A itself,
a laboratory that reads seven in ten, and a registry. The table is real; the tear and the wrong
readings are made on purpose. Test diagnoses are the true ones.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.markup import escape

from fedmend.cli.terminal import TerminalListener, comparison_table, show_ledger, show_overview
from fedmend.data import datasets, scenario
from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.federation import read_ledger
from fedmend.flow import CONFIG_FILE, execute, plan_of
from fedmend.flow.checks import check_data, look
from fedmend.flow.config import load_config
from fedmend.report.page import LEDGER_FILE, REPORT_FILE, run_banner
from fedmend.report.record import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

    from fedmend.flow.config import Config

HOSPITAL_A, HOSPITAL_B, LABORATORY, REGISTRY = "hospital-a", "hospital-b", "laboratory", "registry"
LOOKS = ("texture", "smoothness", "symmetry", "fractal dimension")
OVERLAP = 0.2
TEST_SHARE = 0.25
NEW_PATIENTS = 20
WRONG = {HOSPITAL_A: 0.35, LABORATORY: 0.1, REGISTRY: 0.2}
UNREAD = 0.3
TITLE = "Two hospitals, few shared patients, three readers who disagree"
DATA, NEW, PREDICTIONS = "data", "new", "predictions"

CONFIG = (files("fedmend.cli") / "demo.toml").read_text(encoding="utf-8")
"""What is run; {out} is the run's folder."""


def demo_tables() -> tuple[dict[str, Table], dict[str, Table], dict[str, Table]]:
    """Training tables, torn; test tables of other patients, known to all; and new patients."""
    table = datasets.load("breast-cancer")
    looks = [name for name in table.feature_names if name.removesuffix(" error").endswith(LOOKS)]
    shape = [name for name in table.feature_names if name not in looks]
    whole = scenario.split_columns(
        table, {HOSPITAL_A: looks, HOSPITAL_B: shape}, label_party=HOSPITAL_A
    )
    rest, test = scenario.split_rows(whole, TEST_SHARE, stratify=HOSPITAL_A)
    new, test = _first(test, NEW_PATIENTS)
    train = scenario.tear(rest, overlap=OVERLAP, label_party=HOSPITAL_A)
    readings, later = _readings(train[HOSPITAL_A], 0), _readings(test[HOSPITAL_A], 1)
    train[HOSPITAL_A] = train[HOSPITAL_A].with_columns({"diagnosis": readings[HOSPITAL_A]})
    for name, column in ((LABORATORY, "reading"), (REGISTRY, "reported")):
        train[name] = _labels_only(train[HOSPITAL_A], readings[name], column)
        test[name] = _labels_only(test[HOSPITAL_A], later[name], column)
    # Half of the new patients are known to hospital A alone.
    new[HOSPITAL_B] = new[HOSPITAL_B].take(np.arange(NEW_PATIENTS // 2))
    new[HOSPITAL_A] = new[HOSPITAL_A].features
    return train, test, new


def _first(tables: dict[str, Table], rows: int) -> tuple[dict[str, Table], dict[str, Table]]:
    ids = next(iter(tables.values())).ids[:rows]
    inside = {name: np.isin(table.ids, ids) for name, table in tables.items()}
    return (
        {name: table.take(inside[name]) for name, table in tables.items()},
        {name: table.take(~inside[name]) for name, table in tables.items()},
    )


def _readings(table: Table, seed: int) -> dict[str, pd.Series]:
    """What every reader says of the rows of a table: often the truth."""
    classes = sorted(table.y.unique())
    truth = np.searchsorted(classes, table.y.to_numpy(dtype=str))
    votes = annotators(truth, rates=tuple(WRONG.values()), n_classes=len(classes), seed=seed)
    unread = np.random.default_rng([seed, 7]).random(len(truth)) < UNREAD
    said = {}
    for number, name in enumerate(WRONG):
        words = np.array(classes, dtype=object)[votes[:, number]]
        said[name] = pd.Series(np.where(unread & (name == LABORATORY), None, words))
    return said


def _labels_only(table: Table, said: pd.Series, column: str) -> Table:
    return Table(table.ids, {column: said}, label=column)


# ---------------------------------------------------------------- the story


def run_demo(out: Path, console: Console) -> RunRecord:
    """Tell the story on the terminal: check, run, predict; and leave it as a folder."""
    train, test, new = demo_tables()
    console.print(_opening(train))
    with tempfile.TemporaryDirectory(prefix="fedmend-demo-") as place:
        source = Path(place)
        write_project(source, out, train, test, new)
        config = load_config(source / CONFIG_FILE)
        console.print("[bold]Looking before anything is trained[/] (fedmend check)")
        _check(config, console)
        plan = plan_of(config)
        plan.extras = lambda folder: _keep(source, folder)
        console.print("\n[bold]The run[/] (fedmend run)")
        with TerminalListener(console, show_the_overview=False) as listener:
            record = execute(plan, out, force=True, listener=listener)
    console.print(comparison_table(record, console.width))
    console.print(_closing(record))
    _predict(out, console)
    console.print("[bold]Who saw what[/] (fedmend ledger)")
    entries, banner = read_ledger(out / LEDGER_FILE), run_banner(out)
    show_ledger(console, entries, list(train), banner=banner)
    report, config_file = (escape(str(out / name)) for name in (REPORT_FILE, CONFIG_FILE))
    console.print(f"\nThe report: [bold]{report}[/]")
    console.print(f"The same run as a file to change: {config_file}")
    return record


def write_project(
    folder: Path,
    out: Path,
    train: dict[str, Table],
    test: dict[str, Table],
    new: dict[str, Table],
) -> None:
    """The tables and the federation.toml, as a user would have them."""
    for name in (DATA, NEW):
        (folder / name).mkdir()
    for name in train:
        train[name].to_csv(folder / DATA / f"{name}.csv", id="patient")
        test[name].to_csv(folder / DATA / f"{name}-test.csv", id="patient")
    for name, table in new.items():
        table.to_csv(folder / NEW / f"{name}.csv", id="patient")
    (folder / CONFIG_FILE).write_text(CONFIG.replace("{out}", str(out)), encoding="utf-8")


def _keep(source: Path, folder: Path) -> None:
    for name in (DATA, NEW):
        shutil.copytree(source / name, folder / name, dirs_exist_ok=True)


def _check(config: Config, console: Console) -> None:
    found = check_data(config)
    with TerminalListener(console) as listener:
        seen = look(config, found, progress=listener.progress)
    if seen is not None:
        show_overview(console, seen)


def _predict(out: Path, console: Console) -> None:
    from fedmend.serve import predict_run

    tables = {name: out / NEW / f"{name}.csv" for name in (HOSPITAL_A, HOSPITAL_B)}
    console.print("[bold]Predicting new patients[/] (fedmend predict)")
    for done in predict_run(out, tables, out / PREDICTIONS):
        console.print(
            f"  {escape(str(done.path))}: {done.shared + done.alone} patients by {done.method}, "
            f"{done.shared} of them known to the other hospital too"
        )
    console.print()


def _opening(train: dict[str, Table]) -> str:
    a, b = train[HOSPITAL_A], train[HOSPITAL_B]
    return (
        f"[bold]{TITLE}[/]\n"
        f"Hospital A knows how {len(a)} tumours look ({len(a.feature_names)} columns).\n"
        f"Hospital B knows the size and shape of {len(b)} ({len(b.feature_names)} columns).\n"
        "One patient in five has the same number at both; neither shows the other a row.\n"
        "Whether A's tumours are malignant was read three times, with errors: by hospital A, a "
        "laboratory and a registry.\n"
    )


def _closing(record: RunRecord) -> str:
    """What the table says, in a sentence: as measured, whatever it is."""
    best = record.best()
    means = {each.title: each.mean[record.metric] for each in record.summaries()}
    alone = means["Local"]
    assert best is not None
    if best.mean[record.metric] <= alone:
        return "Together the parties do no better than hospital A alone.\n"
    return (
        "Of two tumours, one malignant and one benign, hospital A alone, with its own readings, "
        f"puts the wrong one first in {100 * (1 - alone):.1f} % of cases; {best.title} does in "
        f"{100 * (1 - best.mean[record.metric]):.1f} %.\n"
    )
