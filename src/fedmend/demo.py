"""``fedmend demo``: two hospitals that share few patients, on scikit-learn's breast-cancer table.

Hospital A has the diagnoses and how the tumours look; hospital B has their size and shape.
One patient in five is known to both under the same number. The tear is made on purpose, so the
table is real but the two hospitals are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.data import datasets, scenario
from fedmend.data.table import Table
from fedmend.federation import Party, read_ledger
from fedmend.flow import CONFIG_FILE, Method, Plan, execute
from fedmend.report.page import LEDGER_FILE, REPORT_FILE
from fedmend.report.record import RunRecord
from fedmend.terminal import TerminalListener, comparison_table, show_ledger

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["demo_tables", "run_demo"]

HOSPITAL_A, HOSPITAL_B = "hospital-a", "hospital-b"
LOOKS = ("texture", "smoothness", "symmetry", "fractal dimension")
OVERLAP = 0.2
TEST_SHARE = 0.25
SEEDS = (0, 1, 2, 3, 4)
TITLE = "Two hospitals, few shared patients"
METHODS = (Method("local", "Local"), Method("vfl", "VFL"), Method("local-vfl", "LocalVFL"))

CONFIG = f"""\
# What 'fedmend demo' runs. Change it, and run it again:  fedmend run {{out}}/{CONFIG_FILE}

[run]
seeds = {list(SEEDS)}

[[party]]
name = "{HOSPITAL_A}"
data = "data/{HOSPITAL_A}.csv"
test = "data/{HOSPITAL_A}-test.csv"
id = "patient"
label = "diagnosis"

[[party]]
name = "{HOSPITAL_B}"
data = "data/{HOSPITAL_B}.csv"
test = "data/{HOSPITAL_B}-test.csv"
id = "patient"

[[method]]
name = "local"

[[method]]
name = "vfl"

[[method]]
name = "local-vfl"

[report]
title = "{TITLE}"
"""


def demo_tables() -> tuple[dict[str, Table], dict[str, Table]]:
    """Training tables, torn, and test tables of other patients, known to both hospitals."""
    table = datasets.load("breast-cancer")
    looks = [name for name in table.feature_names if name.removesuffix(" error").endswith(LOOKS)]
    shape = [name for name in table.feature_names if name not in looks]
    whole = scenario.split_columns(
        table, {HOSPITAL_A: looks, HOSPITAL_B: shape}, label_party=HOSPITAL_A
    )
    train, test = scenario.split_rows(whole, TEST_SHARE, stratify=HOSPITAL_A)
    return scenario.tear(train, overlap=OVERLAP, label_party=HOSPITAL_A), test


def run_demo(out: Path, console: Console) -> RunRecord:
    """Tell the story on the terminal, and write the run folder."""
    train, test = demo_tables()
    console.print(_opening(train), highlight=False)
    config = CONFIG.format(out=out)

    def keep_tables(folder: Path) -> None:
        (folder / "data").mkdir(exist_ok=True)
        for name in train:
            train[name].to_csv(folder / "data" / f"{name}.csv", id="patient")
            test[name].to_csv(folder / "data" / f"{name}-test.csv", id="patient")

    plan = Plan(
        title=TITLE,
        parties=lambda: [Party(name, train[name], test=test[name]) for name in train],
        methods=METHODS,
        seeds=SEEDS,
        metrics=("auc", "accuracy"),
        settings={
            "data": "scikit-learn's breast-cancer table (Wisconsin diagnostic)",
            "overlap": OVERLAP,
            "test_share": TEST_SHARE,
            "seeds": list(SEEDS),
            "align": {"mode": "ecdh"},
            "method": [{"name": method.name} for method in METHODS],
        },
        config_text=config,
        extras=keep_tables,
    )
    with TerminalListener(console) as listener:
        record = execute(plan, out, force=True, listener=listener)
    console.print(comparison_table(record))
    console.print(_closing(record), highlight=False)
    console.print("[bold]Who saw what[/]")
    show_ledger(console, read_ledger(out / LEDGER_FILE), list(train))
    console.print(f"\nThe report: [bold]{out / REPORT_FILE}[/]", highlight=False)
    console.print(f"The same run as a file to change: {out / CONFIG_FILE}", highlight=False)
    return record


def _opening(train: dict[str, Table]) -> str:
    a, b = train[HOSPITAL_A], train[HOSPITAL_B]
    return (
        f"[bold]{TITLE}[/]\n"
        f"Hospital A knows how {len(a)} tumours look ({len(a.feature_names)} columns), and which "
        "were malignant.\n"
        f"Hospital B knows the size and shape of {len(b)} ({len(b.feature_names)} columns), but no "
        "diagnosis.\n"
        "Neither shows the other a row. One patient in five has the same number at both.\n"
    )


def _closing(record: RunRecord) -> str:
    """What the table says, in a sentence: as measured, whatever it is."""
    means = {each.title: each.mean[record.metric] for each in record.summaries()}
    alone, together = means["Local"], max(means["VFL"], means["LocalVFL"])
    if together <= alone:
        return "Together the hospitals do no better than hospital A alone.\n"
    return (
        "Of two tumours, one malignant and one benign, hospital A alone puts the wrong one first "
        f"in {100 * (1 - alone):.1f} % of cases; together the hospitals do in "
        f"{100 * (1 - together):.1f} %.\n"
    )
