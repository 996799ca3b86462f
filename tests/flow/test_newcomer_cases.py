"""What `fedmend init` writes gives a model at least as good as plain boosting at one party.

Four tables as a newcomer brings them; boosting is scikit-learn's, of the label party's own columns
and labels, on the same test rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score, root_mean_squared_error

from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.config.starter import write_starter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare_report")]

TEST = 1000
CHANCE = 0.015
"""About the standard error of the difference of two such scores on so many rows."""


def people(rows: int, seed: int, **how: Any) -> pd.DataFrame:
    made = {"n_features": 14, "n_informative": 9, "n_redundant": 2, "flip_y": 0.05} | how
    x, y = make_classification(rows + TEST, shuffle=False, random_state=seed, **made)
    order = np.random.default_rng(seed).permutation(len(y))
    mixed = np.random.default_rng(seed + 1).permutation(x.shape[1])
    frame = pd.DataFrame(x[order][:, mixed], columns=[f"x{at}" for at in range(x.shape[1])])
    return frame.round(3).assign(id=np.arange(len(y)) + 1000, y=y[order])


def written(folder: Path, frame: pd.DataFrame, shared: int, also: dict[str, np.ndarray]) -> Path:
    """A bank with half of the columns and the label, a telco with the rest for `shared` of its
    rows (and for as many others), and whoever else labels; a starter file, with test tables."""
    columns = [name for name in frame if name.startswith("x")]
    half, rows = len(columns) // 2, len(frame) - TEST
    sides = {"bank": ["id", *columns[:half], "y"], "telco": ["id", *columns[half:]]}
    train, test = frame.iloc[:rows], frame.iloc[rows:]
    known = train.iloc[:shared]
    strangers = train.iloc[shared : 2 * shared].assign(id=lambda each: each["id"] + 100_000)
    tables = {"bank": train, "telco": pd.concat([known, strangers])}
    for name, side in sides.items():
        tables[name][side].to_csv(folder / f"{name}.csv", index=False)
        test[side].to_csv(folder / f"{name}-test.csv", index=False)
    for name, said in also.items():
        train[["id"]].assign(y=said).to_csv(folder / f"{name}.csv", index=False)
        test[["id", "y"]].to_csv(folder / f"{name}-test.csv", index=False)
    names = [*sides, *also]
    files = [folder / f"{name}.csv" for name in names]
    config = write_starter(folder / "federation.toml", files, id="id", label="y")
    text = config.read_text()
    for name in names:
        data = f'data = "{name}.csv"\n'
        assert data in text
        text = text.replace(data, f'{data}test = "{name}-test.csv"\n')
    config.write_text(text)
    return config


# ---------------------------------------------------------------------------------- four tables
# Each writes the tables of a draw and what `fedmend init` makes of them.


def credit(folder: Path, seed: int) -> Path:
    return written(folder, people(1200, seed, weights=[0.8], class_sep=0.7), 360, {})


def four_classes(folder: Path, seed: int) -> Path:
    return written(folder, people(846, seed, n_classes=4, class_sep=1.2), 240, {})


def counts(folder: Path, seed: int) -> Path:
    frame = people(900, seed)
    columns = [name for name in frame if name.startswith("x")]
    size = frame[columns].to_numpy() @ np.random.default_rng(seed).normal(size=len(columns))
    mean = np.exp(0.7 * (size - size.mean()) / size.std())
    frame["y"] = np.random.default_rng(seed + 1).poisson(mean).clip(0, 8)
    return written(folder, frame, 300, {})


def annotators(folder: Path, seed: int) -> Path:
    """93, 85 and 71 % of three parties' labels are right; the bank errs most."""
    frame = people(900, seed)
    truth, rng = frame["y"].to_numpy()[: len(frame) - TEST], np.random.default_rng(seed + 1)
    said = [
        np.where(rng.random(len(truth)) < wrong, 1 - truth, truth) for wrong in (0.07, 0.15, 0.29)
    ]
    frame.loc[: len(truth) - 1, "y"] = said[2]
    return written(folder, frame, 500, {"registry": said[0], "agency": said[1]})


# ---------------------------------------------------------------------------------- held to


def by_default(config: Path) -> dict[str, float]:
    record = execute(plan_of(load_config(config)), config.parent / "run")
    (run,) = record.methods
    assert run.name == "auto" or run.title.endswith("(auto)")
    return run.scores


def alone(folder: Path, model: Any) -> tuple[Any, pd.DataFrame]:
    """Boosting of the bank's own columns and labels, and its test rows."""
    train, test = (pd.read_csv(folder / f"bank{which}.csv") for which in ("", "-test"))
    return model.fit(train.drop(columns=["id", "y"]), train["y"]), test


def boosted_auc(folder: Path) -> float:
    model, test = alone(folder, HistGradientBoostingClassifier(random_state=0))
    p = model.predict_proba(test.drop(columns=["id", "y"]))
    return float(roc_auc_score(test["y"], p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr"))


def test_credit(tmp_path: Path) -> None:
    config = credit(tmp_path, 11)
    assert by_default(config)["auc"] >= boosted_auc(tmp_path) - CHANCE


def test_four_small_classes(tmp_path: Path) -> None:
    config = four_classes(tmp_path, 12)
    assert 'task = "multiclass"' in config.read_text()
    assert by_default(config)["auc"] >= boosted_auc(tmp_path) - CHANCE


def test_counts(tmp_path: Path) -> None:
    config = counts(tmp_path, 13)
    assert 'task = "count"' in config.read_text()
    model, test = alone(tmp_path, HistGradientBoostingRegressor(loss="poisson", random_state=0))
    error = root_mean_squared_error(test["y"], model.predict(test.drop(columns=["id", "y"])))
    assert by_default(config)["rmse"] <= error * (1 + CHANCE)


def test_three_annotators(tmp_path: Path) -> None:
    config = annotators(tmp_path, 15)
    assert by_default(config)["auc"] >= boosted_auc(tmp_path) - CHANCE
