"""Files of a run that hold something else: every command says which one, and what to do.

Random bytes, nothing, and JSON of another shape are put into each file that a command reads. None
of them may end as "a fault in fedmend".
"""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pandas as pd
import pytest

from fedmend.deploy.consent import open_question
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.live import LIVE_FILE, read_live
from fedmend.report.page import write_report
from fedmend.serve.watching import WatchServer

RANDOM = random.Random(0).randbytes(400)
WRONG = {
    "random bytes": RANDOM,
    "random lines": RANDOM.replace(b"\x00", b"\n") + b"\n",
    "nothing": b"",
    "a list": b"[1, [2]]",
    "an empty table": b"{}",
    "another table": json.dumps(
        {"format": 1, "title": [], "engine": 2, "recipe": 3, "stages": [{"stage": []}],
         "methods": [7], "metric": {}, "parties": 3, "method": ["vfl"], "number": 1, "hash": 2}
    ).encode(),
    "a deep list": b"[" * 100_000,
}  # fmt: skip
FEW = ("random bytes", "nothing", "another table", "a deep list")
NEW = ["--with", "bank=bank.csv", "--with", "telco=telco.csv", "--out", "out"]
READ_BY = {
    "ledger.jsonl": [
        ["ledger", "run"],
        ["ledger", "run", "--json"],
        ["ledger", "run/ledger.jsonl"],
        ["ledger", "run", "--verify"],
        ["ledger", "run", "--reconcile"],
        ["audit", "--ledger", "run"],
        ["run", "federation.toml", "--folder", "run", "--resume"],
    ],
    "ledgers/bank.jsonl": [
        ["ledger", "run", "--reconcile"],
        ["ledger", "run", "--verify"],
        ["ledger", "run", "--verify", "--with", "bank=run/ledgers/bank.jsonl"],
    ],
    "export.json": [["ledger", "run/export.json", "--verify"]],
    "manifest.json": [
        ["run", "federation.toml", "--folder", "run", "--resume"],
        ["run", "federation.toml", "--folder", "run", "--from", "train"],
        ["ledger", "run", "--verify"],
    ],
    "metrics.json": [["predict", "run", *NEW], ["serve", "run"], ["audit", "--ledger", "run"]],
    "model/vfl/model.json": [
        ["predict", "run", "--method", "vfl", *NEW],
        ["serve", "run", "--method", "vfl"],
    ],
    "model/vfl/bank/part.fmw": [["predict", "run", "--method", "vfl", *NEW]],
    "federation.toml": [["predict", "run", *NEW], ["serve", "run"]],
    "run.name": [["predict", "run", *NEW]],
}
HARMLESS = {
    # A run's name is any text, and a ledger or file of settings without a line is one.
    ("run.name", content) for content in WRONG if not content.startswith("random")
} | {("ledger.jsonl", "nothing"), ("ledgers/bank.jsonl", "nothing")}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 4)), columns=list("abcd"))
    frame["y"] = np.where(frame["a"] + frame["c"] > 0, "yes", "no")
    frame.insert(0, "id", range(80))
    frame[["id", "a", "b", "y"]].to_csv(folder / "bank.csv", index=False)
    frame[["id", "c", "d"]].to_csv(folder / "telco.csv", index=False)
    text = "".join(
        f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}\n'
        for name, label in (("bank", 'label = "y"\n'), ("telco", ""))
    )
    (folder / "federation.toml").write_text(text + '[[method]]\nname = "vfl"\nepochs = 1\n')
    execute(plan_of(load_config(folder / "federation.toml")), folder / "run")
    shutil.copytree(folder / "run" / "model", folder / "model")
    (folder / "run" / "ledgers").mkdir()
    shutil.copy(folder / "run" / "ledger.jsonl", folder / "run" / "ledgers" / "bank.jsonl")
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work" / "run"


@pytest.mark.parametrize("content", WRONG)
@pytest.mark.parametrize("file", READ_BY)
def test_a_file_that_is_something_else_is_named_with_a_mend(run, fedmend, file, content):
    for arguments in READ_BY[file]:
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_bytes(WRONG[content])
        if (file, content) in HARMLESS and arguments[0] in ("run", "predict"):
            continue
        code, _, said = fedmend(*arguments)
        assert "fault in fedmend" not in said, (arguments, said)
        if (file, content) in HARMLESS:
            continue
        assert code != 0, arguments
        assert "Mend:" in said, (arguments, said)


@pytest.mark.parametrize("content", FEW)
def test_a_report_of_damaged_files_is_refused_or_drawn_without_them(run, content):
    from fedmend.errors import FedmendError

    (run / "manifest.json").write_bytes(WRONG[content])
    assert write_report(run).is_file()
    (run / "metrics.json").write_bytes(WRONG[content])
    with pytest.raises(FedmendError, match="Mend"):
        write_report(run)


@pytest.mark.parametrize("content", FEW)
def test_watching_goes_on_whatever_the_files_hold(run, content):
    with WatchServer(run, 0) as server:
        assert "<body" in server.page()
    (run / "report.html").write_bytes(WRONG[content] + b"<body>")
    with WatchServer(run, 0) as server:
        assert "finished" in server.page()
    (run / LIVE_FILE).write_bytes(WRONG[content])
    assert read_live(run) is None


@pytest.mark.parametrize("content", WRONG)
def test_a_kit_s_question_that_is_none_is_none(tmp_path, content):
    from fedmend.deploy import consent

    (tmp_path / consent._QUESTION).write_bytes(WRONG[content])
    assert open_question(tmp_path) is None
