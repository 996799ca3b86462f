"""Published settings from a file, as a user would try them: `preset = "paper"`, made shorter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedmend.data.table import Table
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.flow.config.starter import write_starter
from fedmend.serve import predict_run

pytestmark = [
    pytest.mark.usefixtures("bare_report"),
    pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning"),
]
weekly = partial(pytest.param, marks=pytest.mark.slow)
Tables = Iterator[tuple[str, pd.DataFrame]]


def annotators() -> Tables:
    """Three parties with ten columns each, who label the same people and err."""
    frame, rng = load_breast_cancer(as_frame=True).frame, np.random.default_rng(0)
    for at in range(3):
        wrong = rng.random(len(frame)) < 0.1 * (at + 1)
        part = frame.iloc[:, 10 * at : 10 * at + 10]
        yield f"h{at}", part.assign(y=np.where(wrong, 1 - frame["target"], frame["target"]))


def torn() -> Tables:
    frame = load_breast_cancer(as_frame=True).frame[:400]
    yield "bank", frame.iloc[:, :15].assign(y=frame["target"])
    yield "telco", frame.iloc[:250, 15:30]


def clients() -> Tables:
    """Digits: pixels at the edge have two values at some clients, one of them in few rows."""
    frame = load_digits(as_frame=True).frame
    for at in range(4):
        part = frame.iloc[at:1000:4]
        yield f"c{at}", part.iloc[:, :-1].assign(y=part["target"].where(part.index % 3 == 0))


def columns() -> Tables:
    """Few rows of few columns: the published products take a while for each."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:120]
    yield "bank", frame.iloc[:, :2].assign(y=frame["target"])
    yield "telco", frame.iloc[:70, 20:22]


def halves() -> Tables:
    """Images, of which a table has a block: each party one half."""
    digits = load_digits()
    images = (digits.images[:120, None] * 15).astype(np.uint8).repeat(2, 2).repeat(2, 3)
    yield "left", pd.DataFrame({"y": digits.target[:120] > 4, "scan": list(images[..., :8])})
    yield "right", pd.DataFrame({"scan": list(images[:80, ..., 8:])})


def write(path, frame: pd.DataFrame) -> None:
    if "scan" not in frame:
        frame.to_csv(path, index_label="id")
        return
    label, blocks = "y" if "y" in frame else None, {"scan": np.stack(frame["scan"].tolist())}
    Table(frame.index, frame.drop(columns="scan"), label=label, blocks=blocks).to_parquet(path)


def written(folder, tables: Tables, method: str):
    """The file, with the tables beside it; every tenth row is for later (`NAME-later`)."""
    files = []
    for name, frame in tables:
        files.append(folder / f"{name}.{'parquet' if 'scan' in frame else 'csv'}")
        later = np.arange(len(frame)) % 10 == 9
        write(files[-1], frame[~later])
        write(later_file(files[-1]), frame[later].drop(columns="y", errors="ignore"))
    config = write_starter(folder / "federation.toml", files, id="id", label="y")
    text = config.read_text().replace('\nrecipe = "correct-auto"', "\n#")  # of annotators
    start = min(text.index(each) for each in ("\n[[method]]", "\n# [[method]]") if each in text) + 1
    end = text.index("[evaluate]")
    config.write_text(text[:start] + method + text[end:])
    return load_config(config)


def later_file(path):
    return path.with_stem(f"{path.stem}-later")


@pytest.mark.parametrize(
    ("tables", "method"),
    [
        weekly(torn, 'name = "fedcvt"\npreset = "paper"\nepochs = 2\n'),
        (
            columns,
            'name = "vfl"\nepochs = 5\n[complete]\npreset = "paper"\n'
            'correlation_mode = "bfv"\ngenerator_params = { epochs = 1 }\n',
        ),
        weekly(
            halves, 'name = "risa"\npreset = "images"\nembedding = 16\ntop = [16]\nepochs = 2\n'
        ),
        weekly(annotators, 'name = "inc"\npreset = "paper"\nepochs = 3\n'),
        (torn, 'name = "risa"\npreset = "paper"\nepochs = 6\n'),
        weekly(clients, 'name = "sage"\npreset = "paper"\nrounds = 2\n'),
    ],
)
def test_a_published_method_made_shorter_predicts_new_rows(tmp_path, tables, method):
    config = written(tmp_path, tables(), f"[[method]]\n{method}\n")
    assert check_data(config).problems == []
    record = execute(plan_of(config), tmp_path / "run")
    assert record.methods[0].scores["accuracy"] > (0.5 if tables is halves else 0.7)
    first, *others = [each.name for each in config.party]
    files = {each.name: later_file(tmp_path / each.data) for each in config.party}
    for given in ([first, *others], [first]):  # a partner may stay away
        out = tmp_path / f"by-{len(given)}"
        predict_run(tmp_path / "run", {name: files[name] for name in given}, out)
        told = pd.read_csv(out / first / "predictions.csv")
        truth = dict(tables())[first].iloc[9::10]["y"].to_numpy()
        assert len(told) == len(truth) and told["uncertainty"].notna().all()
        if tables is torn:
            assert (told["prediction"] == truth).mean() > 0.7


def test_check_says_that_the_published_correlation_would_be_refused(tmp_path):
    published = '[[method]]\nname = "vfl"\n[complete]\npreset = "paper"\n'
    (problem,) = check_data(written(tmp_path, torn(), f"{published}\n")).problems
    assert "which no party's policy allows. Mend: correlation_mode = " in problem
    (tmp_path / "federation.toml").unlink()
    mended = f'{published}correlation_mode = "bfv"\n'
    assert check_data(written(tmp_path, torn(), f"{mended}\n")).problems == []
