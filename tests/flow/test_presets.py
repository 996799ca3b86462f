"""Published settings from a file, as a user would try them: `preset = "paper"`, made shorter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.flow.config.starter import write_starter

pytestmark = [
    pytest.mark.usefixtures("bare_report"),
    pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning"),
]
Tables = Iterator[tuple[str, pd.DataFrame]]


def annotators() -> Tables:
    """Three parties with ten columns each, who label the same people and err."""
    frame, rng = load_breast_cancer(as_frame=True).frame, np.random.default_rng(0)
    for at in range(3):
        wrong = rng.random(len(frame)) < 0.1 * (at + 1)
        part = frame.iloc[:, 10 * at : 10 * at + 10]
        yield f"h{at}", part.assign(y=np.where(wrong, 1 - frame["target"], frame["target"]))


def torn() -> Tables:
    frame = load_breast_cancer(as_frame=True).frame
    yield "bank", frame.iloc[:, :15].assign(y=frame["target"])
    yield "telco", frame.iloc[:300, 15:30]


def clients() -> Tables:
    """Digits: pixels at the edge have two values at some clients, one of them in few rows."""
    frame = load_digits(as_frame=True).frame
    for at in range(4):
        part = frame.iloc[at::4]
        yield f"c{at}", part.iloc[:, :-1].assign(y=part["target"].where(part.index % 3 == 0))


def written(folder, tables: Tables, method: str):
    files = []
    for name, frame in tables:
        files.append(folder / f"{name}.csv")
        frame.to_csv(files[-1], index_label="id")
    config = write_starter(folder / "federation.toml", files, id="id", label="y")
    text = config.read_text()
    start, end = text.index("[[method]]"), text.index("[evaluate]")
    config.write_text(text[:start] + method + text[end:])
    return load_config(config)


@pytest.mark.parametrize(
    ("tables", "method"),
    [
        (annotators, 'name = "inc"\npreset = "paper"\nepochs = 3\n'),
        (torn, 'name = "risa"\npreset = "paper"\nepochs = 3\n'),
        (clients, 'name = "sage"\npreset = "paper"\nrounds = 2\n'),
    ],
)
def test_a_published_method_made_shorter(tmp_path, tables, method):
    config = written(tmp_path, tables(), f"[[method]]\n{method}\n")
    assert check_data(config).problems == []
    record = execute(plan_of(config), tmp_path / "run")
    assert record.methods[0].scores["accuracy"] > 0.7


def test_check_says_that_the_published_correlation_would_be_refused(tmp_path):
    published = '[[method]]\nname = "vfl"\n[complete]\npreset = "paper"\n'
    (problem,) = check_data(written(tmp_path, torn(), f"{published}\n")).problems
    assert "which no party's policy allows. Mend: correlation_mode = " in problem
    (tmp_path / "federation.toml").unlink()
    mended = f'{published}correlation_mode = "bfv"\n'
    assert check_data(written(tmp_path, torn(), f"{mended}\n")).problems == []
