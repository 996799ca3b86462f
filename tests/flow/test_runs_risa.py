"""`method = "risa"` from a file to a report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config


def test_a_run_with_risa(workshop, pages) -> None:
    workshop.write(method='name = "risa"\nepochs = 2\nself_training = true\nthreshold = 0.5')
    execute(plan_of(load_config(workshop.config)), workshop.run)
    stored = json.loads((workshop.run / "metrics.json").read_text(encoding="utf-8"))
    (method,) = stored["methods"]
    assert method["title"] == "RISA"
    assert set(method["uncertainty"]["carried"]) == {"bank", "telco"}
    assert abs(sum(method["uncertainty"]["carried"].values()) - 1) < 1e-3
    page = (workshop.run / "report.html").read_text(encoding="utf-8")
    assert "How sure, and do unsure rows err more" in page


def test_a_run_on_halves_of_images(workshop) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    parties = ""
    for name, rows in (("left", slice(0, 170)), ("right", slice(30, 200))):
        pixels = (rng.integers(0, 120, (170, 3, 4, 4)) + 130 * y[rows, None, None, None]) % 256
        columns = {"y": y[rows]} if name == "left" else {}
        Table(
            np.arange(200)[rows],
            columns,
            label="y" if columns else None,
            kinds={"y": "nominal"} if columns else None,
            blocks={"image": pixels.astype(np.uint8)},
        ).to_parquet(workshop.folder / f"{name}.parquet")
        parties += f'[[party]]\nname = "{name}"\ndata = "{name}.parquet"\n'
        parties += 'label = "y"\n' if columns else ""
    settings = 'conv = "cnn"\nembedding = 4\ntop = [4]\nbatch_size = 64'
    method = f'[[method]]\nname = "risa-images"\nepochs = 2\n{settings}\n'
    workshop.config.write_text(parties + method, encoding="utf-8")
    execute(plan_of(load_config(workshop.config)), workshop.run)
    stored = json.loads((workshop.run / "metrics.json").read_text(encoding="utf-8"))
    (method,) = stored["methods"]
    assert method["title"] == "ImageRISA"
    assert set(method["uncertainty"]["carried"]) == {"left", "right"}


def test_wrong_parameters_are_found_before_anything_starts(workshop) -> None:
    workshop.write(method='name = "risa"\nfusion = "vote"\nthreshold = 2.0\nself_training = "x"')
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    assert all(word in str(caught.value) for word in ("fusion", "threshold", "self_training"))
