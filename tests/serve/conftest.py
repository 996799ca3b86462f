"""Runs that all tests of predictions share, and none changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config


def people(n: int, seed: int, classes: tuple[str, ...] = ("no", "yes")) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    x[:, 3] += x[:, 0]
    city = rng.choice(["Ulm", "Bonn", "Kiel"], n)
    signal = x[:, 0] + x[:, 1] + x[:, 3] + (city == "Ulm")
    places = np.digitize(signal, np.quantile(signal, np.linspace(0, 1, len(classes) + 1)[1:-1]))
    frame = pd.DataFrame(x, columns=list("abcde")).assign(city=city, y=np.array(classes)[places])
    frame.insert(0, "id", np.arange(n) + 1000 * seed)
    return frame


def write_party(folder: Path, name: str, frame: pd.DataFrame, label: str | None) -> str:
    frame.to_csv(folder / f"{name}.csv", index=False)
    line = f'label = "{label}"\n' if label else ""
    return f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{line}\n'


def finish(folder: Path, text: str) -> Path:
    config = folder / "federation.toml"
    config.write_text(text)
    execute(plan_of(load_config(config)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every vertical method of one label party, on two parties that share 120 of 200 people."""
    folder = tmp_path_factory.mktemp("vertical")
    frame = people(200, 1)
    text = write_party(folder, "bank", frame[["id", "a", "b", "city", "y"]].iloc[:160], "y")
    text += write_party(folder, "telco", frame[["id", "c", "d", "e"]].iloc[40:], None)
    text += '[predict]\nalone = ["telco"]\n\n'
    for name, more in VERTICAL.items():
        text += f'[[method]]\nname = "{name}"\n{more}\n\n'
    return finish(folder, text)


VERTICAL = {
    "local": "epochs = 2",
    "local-trees": "trees = 4",
    "boosting": "trees = 4",
    "vfl": "epochs = 2",
    "local-vfl": "epochs = 2",
    "random-match": "epochs = 2",
    "ssl-vfl": "epochs = 2\npretrain_epochs = 1",
    "sfhtl": "epochs = 2\npretrain_epochs = 1",
    "fedcvt": "epochs = 2",
    "few-shot-vfl": "epochs = 2\nrounds = 1\nlocal_updates = 2",
    "risa": "epochs = 2",
    "absent-partner": "epochs = 2",
    "clean": "epochs = 2",
}
CROWD = ("inc", "majority", "dawid-skene", "random-labeller")


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labellers, one of them without columns, and every method for them."""
    folder = tmp_path_factory.mktemp("crowded")
    frame = people(160, 2)
    rng = np.random.default_rng(0)

    def voted(share: float) -> np.ndarray:
        wrong = rng.random(len(frame)) < share
        return np.where(wrong, np.where(frame["y"] == "no", "yes", "no"), frame["y"])

    text = ""
    for name, columns, share in (
        ("ward", ["a", "b"], 0.1),
        ("clinic", ["c", "d"], 0.2),
        ("archive", [], 0.3),
    ):
        text += write_party(folder, name, frame[["id", *columns]].assign(y=voted(share)), "y")
    text += '[predict]\nalone = ["ward", "clinic"]\n\n'
    for name in CROWD:
        text += f'[[method]]\nname = "{name}"\nepochs = 2\nsecure = "masks"\n\n'
    return finish(folder, text)


@pytest.fixture(scope="session")
def horizontal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parties with the same columns, and methods of rounds."""
    folder = tmp_path_factory.mktemp("horizontal")
    text = '[run]\nshape = "horizontal"\n\n'
    for number, name in enumerate(("north", "south")):
        text += write_party(folder, name, people(120, 3 + number), "y")
    text += '[predict]\nalone = ["south"]\n\n'
    for name in ("sage", "fedavg"):
        text += f'[[method]]\nname = "{name}"\nrounds = 2\nepochs = 1\n\n'
    return finish(folder, text)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties with columns of their own."""
    folder = tmp_path_factory.mktemp("three")
    frame = people(150, 5)
    text = write_party(folder, "bank", frame[["id", "a", "b", "y"]], "y")
    text += write_party(folder, "telco", frame[["id", "c", "d"]], None)
    text += write_party(folder, "shop", frame[["id", "e", "city"]], None)
    for name in ("vfl", "absent-partner", "risa"):
        text += f'[[method]]\nname = "{name}"\nepochs = 2\n\n'
    return finish(folder, text)


@pytest.fixture(scope="session")
def new_people() -> Callable[..., pd.DataFrame]:
    return people
