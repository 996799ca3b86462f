"""Horizontal federations from a file: checks, starter, a whole run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import alike_problems, check_data
from fedmend.flow.config import load_config
from fedmend.flow.config.sniffing import mostly_alike
from fedmend.flow.config.starter import starter_text
from fedmend.flow.doubts import alike_doubts, class_doubts
from fedmend.methods.horizontal.encoding import (
    common_encoder,
    common_schema,
    describe,
    moments,
)
from fedmend.report.record import RunRecord


def frame_of(n: int, seed: int, labelled: float = 0.4) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    frame = pd.DataFrame(
        {
            "patient": 1000 * seed + np.arange(n),
            "age": 50 + 15 * y + rng.normal(0, 5, n),
            "job": np.array(["clerk", "nurse"])[np.where(rng.random(n) < 0.9, y, 1 - y)],
        }
    )
    said = np.array(["ill", "well"], dtype=object)[y]
    said[rng.random(n) > labelled] = None
    frame["state"] = said
    return frame


class Ward:
    """Three clinics on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "federation.toml"
        self.frames = {
            name: frame_of(80, n + 1) for n, name in enumerate(("north", "south", "west"))
        }

    def write(self, rest: str, run: str = "") -> Path:
        text = f"[run]\nseed = 0\n{run}\n"
        for name, frame in self.frames.items():
            frame.to_csv(self.folder / f"{name}.csv", index=False)
            text += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "patient"\n'
            text += 'label = "state"\n\n' if "state" in frame else "\n"
        self.config.write_text(text + rest, encoding="utf-8")
        return self.config


QUICK = "rounds = 3\nepochs = 2\nhidden = [8]\n"
METHODS = f'[[method]]\nname = "sage"\n{QUICK}\n[[method]]\nname = "fedavg"\n{QUICK}'


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


@pytest.mark.usefixtures("pages")
def test_a_run_from_file_to_report(ward: Ward, fedmend: Any) -> None:
    ward.write(METHODS)
    assert fedmend("check", ward.config)[0] == 0
    code, out, _ = fedmend("run", ward.config)
    assert code == 0 and "SAGE" in out and "FedAvg" in out
    folder = ward.folder / "runs" / "federation"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Round by round" in page
    assert "the same columns of different people" in page
    assert re.search(r"the \d+ labelled test rows of 3 parties", page)
    record = RunRecord.load(folder)
    assert record.metric == "auc"
    sage = record.methods[0]
    assert [entry["round"] for entry in sage.history] == [1, 2, 3]
    assert sage.history[-1]["accuracy"] == pytest.approx(sage.scores["accuracy"])
    assert (folder / "model" / "sage" / "model.json").is_file()
    kinds = {
        json.loads(line)["kind"] for line in (folder / "ledger.jsonl").read_text().splitlines()
    }
    assert not kinds & {"row", "label", "prediction", "hashed-id"}


def test_an_interrupted_run_goes_on(ward: Ward) -> None:
    ward.write(f'[[method]]\nname = "sage"\n{QUICK.replace("rounds = 3", "rounds = 5")}')
    whole = execute(plan_of(load_config(ward.config)), ward.folder / "whole")

    class Stop(Exception):
        pass

    from fedmend.flow import Listener

    class Impatient(Listener):
        def progress(self, title, done, total, facts=None):  # type: ignore[no-untyped-def]
            assert title == "rounds"
            if done == 3:
                raise Stop

    plan = plan_of(load_config(ward.config))
    with pytest.raises(Stop):
        execute(plan, ward.folder / "part", keep_failed=True, listener=Impatient())
    resumed = execute(plan, ward.folder / "part", resume=True)
    assert resumed.methods[0].scores == whole.methods[0].scores
    assert resumed.methods[0].history == whole.methods[0].history


def test_the_method_says_the_shape(ward: Ward) -> None:
    assert load_config(ward.write(METHODS)).horizontal
    without = load_config(ward.write("", run='shape = "horizontal"'))
    assert without.horizontal
    assert [each.name for each in without.method] == ["auto"]


@pytest.mark.parametrize(
    ("rest", "run", "words"),
    [
        (METHODS + '\n[[method]]\nname = "vfl"\n', "", r"method\[vfl\] needs parties that know"),
        (METHODS, 'shape = "vertical"', r"method\[sage\] needs parties with the same columns"),
        (METHODS + '\n[align]\nmode = "ecdh"\n', "", "nothing to align"),
        (METHODS + "\n[complete]\n", "", "nothing to complete"),
        (METHODS + '\n[evaluate]\nreference = "north"\n', "", "on its own test rows"),
        ('[[method]]\nname = "sage"\ntau = 1.5\n', "", "tau must be in"),
        ('[[method]]\nname = "fixmatch"\nlabels = "both"\n', "", "one of local, global"),
        ('[[method]]\nname = "sage"\nround = 5\n', "", "did you mean 'rounds'"),
        (METHODS, 'shape = "diagonal"', "shape must be one of"),
    ],
)
def test_what_does_not_go_together_is_told(ward: Ward, rest: str, run: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(ward.write(rest, run))


def test_check_names_tables_that_differ(ward: Ward) -> None:
    ward.frames["south"] = ward.frames["south"].rename(columns={"job": "work"})
    ward.frames["west"]["age"] = "old"
    found = check_data(load_config(ward.write(METHODS)))
    text = "\n".join(found.problems)
    assert "'south'" in text and "'job'" in text and "'work'" in text
    assert "'west'" in text and "is nominal here and continuous at party 'north'" in text


def test_a_vertical_file_of_like_tables_is_told_of_the_other_shape(ward: Ward) -> None:
    for name in ("south", "west"):
        ward.frames[name] = ward.frames[name].drop(columns="state")
    found = check_data(load_config(ward.write('[[method]]\nname = "vfl"\n')))
    assert any('run.shape = "horizontal"' in problem for problem in found.problems)


def test_labels_must_be_alike() -> None:
    def table(values: list[object], label: str = "y", kind: str = "nominal") -> Table:
        frame = pd.DataFrame({"a": np.arange(len(values)) + 0.5, label: values})
        return Table(np.arange(len(values)), frame, label=label, kinds={label: kind})

    good = table(["x", "z", None, "x"])
    assert list(alike_problems({"p": good, "q": table(["z", "z", None])})) == []
    (problem,) = alike_problems({"p": good, "q": table([1, 2, 2])})
    assert "text at 'p'" in problem
    (problem,) = alike_problems({"p": good, "q": table(["x", "z", "z"], label="w")})
    assert "several names" in problem
    (problem,) = alike_problems({"p": table(["x", "x"]), "q": table(["x", "x"])})
    assert "one class only" in problem
    (problem,) = alike_problems({"p": table([0.5, 1.5, 2.5], kind="continuous")})
    assert "need classes" in problem


def test_the_starter_sees_like_tables(ward: Ward) -> None:
    ward.write("")
    files = [ward.folder / f"{name}.csv" for name in ward.frames]
    text = starter_text(ward.config, files, id="patient", label="state")
    assert 'shape = "horizontal"' in text and 'name = "auto"' in text
    assert "warmup = 3" in text and "recipe" not in text
    ward.config.write_text(text, encoding="utf-8")
    config = load_config(ward.config)
    assert config.horizontal
    assert check_data(config).problems == []


# ---------------------------------------------------------------- tables as clinics have them


def clinic(**columns):
    frame = pd.DataFrame({"age": [30.5, 41.0, 52.5], "dose": [1.5, 2.5, 3.5], "sex": list("fmf")})
    frame["y"] = ["ill", "well", "ill"]
    frame = frame.rename(columns={key: new for key, new in columns.items() if isinstance(new, str)})
    frame = frame.assign(**{key: new for key, new in columns.items() if not isinstance(new, str)})
    return Table(np.arange(3), frame, label="y")


def test_a_renamed_and_a_further_column_are_told_apart():
    tables = {"north": clinic(), "south": clinic(age="Age", ward=["a", "b", "a"])}
    first, second = alike_problems(tables)
    assert "party 'south', column 'age'" in first and "rename 'Age'" in first
    assert "column 'ward'" in second and "drop = ['ward'] at 'south'" in second


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_a_party_without_any_label_is_no_problem():
    tables = {"north": clinic(), "west": clinic(y=[np.nan] * 3)}
    assert list(alike_problems(tables)) == []
    numbers = {"north": clinic(), "west": clinic(y=[0.5, 1.5, 2.5])}
    assert "is a number" in " ".join(alike_problems(numbers))


def test_values_written_differently_at_two_parties():
    tables = {"north": clinic(), "south": clinic(sex=["F", "M", "F"])}
    (note,) = alike_doubts(tables)
    assert "column 'sex': 'f' at 'north' and 'F' at 'south'" in note and "Mend: " in note
    assert list(alike_doubts({"north": clinic(), "south": clinic()})) == []


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
@pytest.mark.parametrize(
    ("north", "south", "words"),
    [
        ([1, 2, 3], [True, False, True], "is binary here and integer at party 'north'"),
        (["true", "no", "no"], [True, False, True], "holds bool values here and str values at"),
        (["A1", "12", "13"], [12, 13, 12], None),
        (["x", "y", "x"], [None] * 3, None),
        ([None] * 3, ["x", "y", "z"], None),
        ([None] * 3, [None] * 3, None),
    ],
)
def test_what_check_lets_pass_has_one_encoding(north, south, words):
    """A run had another opinion than `check` of what goes together."""
    tables = {"north": clinic(dose=north), "south": clinic(dose=south)}
    problems = list(alike_problems(tables))
    described = {name: describe(table) for name, table in tables.items()}
    if words is not None:
        (problem,) = problems
        assert "party 'south', column 'dose'" in problem and words in problem
        with pytest.raises(DataError, match=words):
            common_schema(described)
        return
    assert problems == []
    schema = common_schema(described)
    found = {name: moments(table, schema) for name, table in tables.items()}
    encoder = Encoder.from_dict(common_encoder(schema, found, "float32"))
    for table, given in zip(tables.values(), (north, south), strict=True):
        codes = dict(zip(encoder.code_names, encoder.transform(table).codes.T, strict=True))
        known = schema["dose"].categories or ()
        if "dose" in codes:
            assert [0 if each is None else known.index(str(each)) + 1 for each in given] == list(
                codes["dose"]
            )


def test_a_label_that_is_a_column_elsewhere():
    table = clinic()
    (problem,) = alike_problems({"north": clinic(), "south": Table(table.ids, table.frame)})
    assert "party 'south', column 'y': party 'north' has no such column" in problem


@pytest.mark.parametrize(
    ("headers", "alike"),
    [
        ([list("abcd"), list("abcd")], True),
        ([list("abcd"), list("abcx")], True),
        ([list("abcd"), list("axyz")], False),
        ([["id", "y", "x"], ["id", "z"]], False),
    ],
)
def test_mostly_the_same_columns(headers, alike):
    assert mostly_alike(headers) == alike


def test_classes_that_nobody_else_has() -> None:
    def table(labels: list[object]) -> Table:
        return Table(np.arange(len(labels)), {"ill": labels}, label="ill")

    wards = {"north": table(["no", "yes"]), "west": table(["ja", None, "nein"])}
    (note,) = [each for each in class_doubts(wards) if "'west'" in each[:20]]
    assert note.startswith("party 'west', column 'ill': no other party has one of these classes")
    assert "'north' has no, yes (seen: ['ja', 'nein']). Mend: write the classes alike" in note
    assert not [*class_doubts({"north": wards["north"]})]
    assert not [*class_doubts(wards | {"west": table(["ja", "yes"])})]
    (note,) = class_doubts(wards | {"west": table(["no", "Yes "])})
    assert note.startswith("column 'ill': 'yes' at 'north' and 'Yes ' at 'west' are taken for diff")
