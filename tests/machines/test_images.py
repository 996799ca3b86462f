"""RISA on halves of images over real processes: weights of the bottoms cross."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.data.table import Table

from . import conftest

pytestmark = pytest.mark.slow

TOML = """
[[party]]
name = "left"
data = "left.parquet"
label = "y"

[[party]]
name = "right"
data = "right.parquet"

[align]
order = "seeded"

[[method]]
name = "risa-images"
conv = "cnn"
embedding = 8
top = [8]
batch_size = 32
lr = 0.05
augment = "none"
epochs = 6

[flare]
port = {port}
wait_seconds = 60
"""


def write_halves(folder: Path) -> None:
    """Stripes across, down or none; 140 of 170 pictures are known to both."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 200)
    for name, rows in (("left", slice(0, 170)), ("right", slice(30, 200))):
        bright = np.zeros((170, 3, 8, 4))
        bright[y[rows] == 1, :, ::2] = 120
        bright[y[rows] == 2, :, :, ::2] = 120
        pixels = (bright + rng.normal(60, 25, bright.shape)).clip(0, 255).astype(np.uint8)
        columns = {"y": y[rows]} if name == "left" else {}
        kinds = {"y": "nominal"} if columns else None
        label = "y" if columns else None
        numbers = np.arange(200)[rows]
        table = Table(numbers, columns, label=label, kinds=kinds, blocks={"image": pixels})
        table.to_parquet(folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    made = conftest.World(
        tmp_path_factory.mktemp("pictures"),
        ("left", "right"),
        tables=write_halves,
        toml=TOML,
        probe=False,
    )
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_halves_of_images_give_the_numbers_of_one_process(pictures):
    over, here = pictures.run("over"), pictures.run_here("here")
    (ours,), (theirs,) = over.methods, here.methods
    assert ours.title == "ImageRISA"
    assert ours.scores == pytest.approx(theirs.scores, abs=1e-5)
    assert ours.scores["accuracy"] > 0.5
