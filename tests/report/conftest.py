from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.federation import AlignmentCounts, Entry, Federation, Party, Policy, Worker, exposed
from fedmend.federation.site import Alignment
from fedmend.learn.calibration import describe
from fedmend.report.annotators import AnnotatorSkills
from fedmend.report.mending import MendedColumn, MendedPair, Mending
from fedmend.report.overview import overview
from fedmend.report.page import render
from fedmend.report.record import MethodRun, RunRecord, stages_of
from fedmend.report.uncertainty import Uncertainty


@pytest.fixture(scope="module", autouse=True)
def _toys(toy_tables: None) -> None:
    """What a report says is checked on tables of a handful of rows."""


class FirstRowsWorker(Worker):
    """Takes the first rows as the aligned ones: alignment itself is tested elsewhere."""

    @exposed(kind="count", over_rows=False)
    def take(self, rows: int) -> int:
        everything = np.arange(len(self.table))
        self.site.alignments[self.scope] = Alignment(everything[:rows], everything[rows:])
        return len(self.table) - rows


def first_rows_aligned(fed: Federation, rows: int) -> None:
    rest = fed.workers(FirstRowsWorker).take(rows)
    fed.note_alignment(AlignmentCounts(rows, rest))


@pytest.fixture
def torn():
    """A bank with 10 rows and a label, a telco with 7 rows, 4 of them known to both."""

    def build(**policies: Policy) -> Federation:
        rng = np.random.default_rng(0)
        bank = pd.DataFrame(
            {"id": range(10), "age": rng.normal(size=10), "job": list("abcabcabca")}
        )
        bank["default"] = ["no"] * 7 + ["yes"] * 2 + [None]
        telco = pd.DataFrame({"id": range(7), "calls": rng.normal(size=7)})
        telco.loc[2, "calls"] = np.nan
        fed = Federation(
            Party(
                "bank",
                Table.from_frame(bank, id="id", label="default"),
                policy=policies.get("bank"),
            ),
            Party("telco", Table.from_frame(telco, id="id"), policy=policies.get("telco")),
            strict=True,
        )
        first_rows_aligned(fed, 4)
        return fed

    return build


def crossing(sender: str, receiver: str, kind: str, count: int = 1, size: int = 100, **more: str):
    return Entry(0.0, 1.0, sender, receiver, "Some.call", kind, "", "", size, count, **more)


@pytest.fixture
def entries():
    return [
        crossing("coordinator", "bank", "control", 40),
        crossing("bank", "coordinator", "embedding", 420, 12_000),
        crossing("coordinator", "bank", "gradient", 420, 12_000),
        crossing("bank", "coordinator", "hashed-id", 1, 20_000, sealed_for="telco"),
        crossing("coordinator", "telco", "hashed-id", 1, 20_000, sealed_for="telco"),
        crossing("telco", "coordinator", "label", 1, 0, note="refused"),
    ]


@pytest.fixture
def record(torn):
    """Two methods over two seeds, as yet without what only some runs have."""
    runs = [
        MethodRun(
            name=title.lower(),
            title=title,
            seed=seed,
            params={"epochs": 5},
            history=[
                {"epoch": epoch, "loss": math.exp(-epoch), "val_auc": base - 0.1 * math.exp(-epoch)}
                for epoch in range(1, 6)
            ],
            scores={"auc": base + 0.01 * seed, "accuracy": base - 0.05},
            seconds=1.5,
            crossings=10,
            bytes=4_000,
            about=f"about {title}",
        )
        for title, base in [("Local", 0.8), ("VFL", 0.9)]
        for seed in (0, 1)
    ]
    return RunRecord(
        "Bank & telco <test>",
        runs,
        "auc",
        overview(torn()).to_dict(),
        seeds=[0, 1],
        settings={"run": {"seed": 0}, "method": [{"name": "vfl", "epochs": 5}]},
    )


@pytest.fixture
def mending():
    """Telco's four columns for 60 rows of the bank: two strong, one weak, one failed."""
    columns = [
        MendedColumn("calls", "continuous", "strong", 0.8, 15, 45, 0, 0.7),
        MendedColumn("plan <x>", "nominal", "strong", 0.6, 60, 0, 0, 0.9),
        MendedColumn("tower", "nominal", "failed", 0.4, 0, 0, 60, 0.0, "one class only"),
        MendedColumn("noise", "continuous", "weak", 0.05, 0, 0, 60, 0.0),
    ]
    pair = MendedPair(
        rows_of="bank",
        columns_of="telco",
        rows=60,
        observed=40,
        threshold=0.3,
        rule="as set",
        of_a=["age", "income"],
        of_b=[column.name for column in columns],
        rho=[[0.8, -0.2, 0.4, 0.05], [0.1, -0.6, None, 0.01]],
        columns=columns,
    )
    return Mending("fedpsg-pum", [pair], 30, 90, seconds=4.2, crossings=12, bytes=3400)


@pytest.fixture
def labelling():
    """Three annotators: a good one, one that turns classes round, one that does not tell."""
    return AnnotatorSkills(
        rows=100,
        classes=["ill", "well"],
        votes={"clinic": 100, "archive": 80, "ward": 50},
        suspicious={"clinic": 8, "archive": 64, "ward": None},
        expertise={"clinic": [[0.9, 0.1], [0.06, 0.94]], "archive": [[0.2, 0.8], [0.85, 0.15]]},
        standing={
            "clinic": {"believed": 0.92, "by_chance": 0.5},
            "archive": {"believed": 0.18, "by_chance": 0.5},
        },
        agreement=0.62,
        chance=0.5,
        beats_chance=True,
    )


@pytest.fixture
def correction(labelling):
    return {
        "method": "InC", "parties": ["clinic", "archive", "ward"], "to": "clinic", "rows": 100,
        "rows_of": "aligned", "changed": 8, "filled": 3, "dropped": 2, "seconds": 70.0,
        "bytes": 5_000, "labelling": labelling.to_dict(),
    }  # fmt: skip


CHOICE = {
    "metric": "auc", "chosen": "VFL <1>", "why": ["VFL <1> was chosen: it did best."],
    "candidates": [
        {"title": title, "seconds": 1.0, "skipped": skipped, "weights": {"shared": weight},
         "scores": {"shared": {"score": score, "interval": [score - 0.02, score + 0.02]}}
         if score else {}}
        for title, score, weight, skipped in (
            ("Local", 0.7, 0.0, ""), ("VFL <1>", 0.8, 1.0, ""), ("RISA", None, 0.0, "no time left")
        )
    ],
}  # fmt: skip
ADVICE = {
    "tears": [
        {"title": "Few people <in> common", "words": "30 of 90.", "mend": "risa trains on all",
         "methods": ["risa"], "seconds": 4.0, "bytes": 2_000_000},
    ],
    "words": ["Few people <in> common: …", "To begin with: risa."],
}  # fmt: skip
CURVE = {
    "metric": "auc",
    "points": [
        {"rows": 50, "score": 0.7, "low": 0.66, "high": 0.74},
        {"rows": 100, "score": 0.75, "low": 0.73, "high": 0.77},
    ],
    "twice": {"rows": 200, "score": 0.78, "low": 0.75, "high": 0.81},
    "alone": {"rows": 300, "score": 0.69, "low": 0.68, "high": 0.7},
    "words": ["Twice as many would bring about 0.78."],
}
STAGES = [
    {"stage": "align", "unit": "", "seconds": 1.5, "crossings": 4, "bytes": 900, "says": "30 rows"},
    {"stage": "diagnose", "unit": "", "seconds": 0.1, "says": "much is torn"},
    {"stage": "train", "unit": "vfl-0", "seconds": 60.0, "crossings": 10, "bytes": 4_000},
    {"stage": "train", "unit": "vfl-1", "seconds": 65.0, "crossings": 10, "bytes": 4_000,
     "reused": True},
    {"stage": "dream", "unit": "", "seconds": 1.0, "says": "of a later version"},
]  # fmt: skip


def round_of(number: int, accuracy: float | None, clients: list[str], **more: object) -> dict:
    part = {"loss": 1.0 / number, "utilisation": 0.2 * number, "confidence_gap": 0.1}
    return {
        "round": number,
        "clients": clients,
        "accuracy": accuracy,
        "pseudo_accuracy": None,
        **part,
        "per_client": [{"client": name, **part, **more} for name in clients],
    }


HISTORY = [
    round_of(1, 0.5, ["a", "b"]),
    round_of(2, 0.8, ["b", "c"]),
    round_of(3, 0.75, ["a", "c"], pseudo_accuracy=0.9),
]


@pytest.fixture
def unsure():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5, 0.5], 400)
    y = (rng.random(400) < p[:, 1]).astype(int)
    return Uncertainty(
        worth=describe(p, 2 * (1 - p.max(1)), y),
        carried={"bank": 0.7, "telco": 0.3},
        trust={"aligned": {"bank": 0.9, "telco": 0.0, "joint": 0.95}},
        made_up={"telco": {"rows": 1000, "chosen": 300, "kept": 250}},
    )


@pytest.fixture
def whole(record, mending, labelling, correction, unsure):
    """A run in which everything happened: something in every section but the audit's."""
    record.mending = replace(mending, pairs=2 * mending.pairs).to_dict()
    record.measured_against = "the labels of clinic"
    record.correction, record.choice = correction, CHOICE
    for run in record.methods[::2]:
        run.labelling = labelling.to_dict()
        run.uncertainty = unsure.to_dict()
    record.methods[0].importance = [{"party": "bank", "column": "age <y>", "gain": 1.0}]
    record.overview |= {
        "advice": ADVICE,
        "curve": CURVE,
        "agreement": {"words": ["Two agree."], "pairs": []},
    }
    record.methods.append(MethodRun("sage", "SAGE", 0, {}, HISTORY, {"accuracy": 0.75}, 1.0))
    return record


_drawn: dict[str, str] = {}


@pytest.fixture
def whole_page(whole, entries):
    """Its page, drawn once for all tests that only look."""
    if "whole" not in _drawn:
        _drawn["whole"] = render(whole, entries, stages_of(STAGES))
    return _drawn["whole"]


@pytest.fixture
def plain_page(record, entries):
    if "plain" not in _drawn:
        _drawn["plain"] = render(record, entries)
    return _drawn["plain"]
