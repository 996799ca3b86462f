"""Mean rows, and rows that only one party has."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.learn.nets import Bottom, BottomSpec, initialise
from fedmend.methods.risa.imputation import MeanRow, OwnRows, embed, mean_row

CPU = torch.device("cpu")


@pytest.fixture
def encoder_and_rows() -> tuple[Encoder, object]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=40), "n": rng.normal(size=40), "job": rng.choice(["a", "b", "c"], 40)}
    )
    images = rng.integers(0, 255, (40, 3, 6, 4)).astype(np.uint8)
    table = Table(np.arange(40), frame, blocks={"photo": images}, kinds={"photo": "image"})
    encoder = Encoder().fit(table)
    return encoder, encoder.transform(table)


def bottom_of(encoder: Encoder) -> Bottom:
    spec = BottomSpec(
        numeric=len(encoder.numeric_names),
        cardinalities=tuple(encoder.cardinalities),
        block_shapes=tuple(encoder.block_shapes.values()),
        hidden=(8,),
        out=5,
    )
    made = initialise(Bottom(spec), torch.Generator().manual_seed(0))
    assert isinstance(made, Bottom)
    return made.eval()


def test_the_mean_of_overlapping_rows(encoder_and_rows) -> None:
    _, encoded = encoder_and_rows
    rows = np.arange(5, 25)
    found = mean_row(encoded, rows)
    np.testing.assert_allclose(found.numeric, encoded.numeric[rows].mean(0), atol=1e-6)
    np.testing.assert_allclose(found.blocks[0], encoded.blocks["photo"][rows].mean(0), atol=1e-6)
    shares = np.bincount(encoded.codes[rows, 0], minlength=5) / 20
    np.testing.assert_allclose(found.codes[0], shares)


@pytest.mark.parametrize("overlap", [0, 1, 9])
def test_a_mean_never_shows_a_few_rows(encoder_and_rows, overlap: int) -> None:
    _, encoded = encoder_and_rows
    found = mean_row(encoded, np.arange(overlap))
    np.testing.assert_allclose(found.numeric, encoded.numeric.mean(0), atol=1e-6)
    few = encoded.take(np.arange(4))
    with pytest.raises(DataError, match="4 rows are too few"):
        mean_row(few, np.arange(4), party="telco")


def test_the_mean_row_is_embedded_beside_real_ones(encoder_and_rows) -> None:
    encoder, encoded = encoder_and_rows
    bottom = bottom_of(encoder)
    rows = OwnRows(encoded, np.arange(40), CPU, torch.float32)
    batch = rows.batch(torch.arange(40))
    one_hot = MeanRow(  # the "mean" of row 3 alone, so that the answer is known
        batch.numeric[3],
        (torch.nn.functional.one_hot(batch.codes[3, 0], 5).float(),),
        (batch.blocks[0][3],),
    )
    found = embed(bottom, batch, one_hot)
    torch.testing.assert_close(found[:-1], bottom(batch))
    torch.testing.assert_close(found[-1], found[3])
    again = MeanRow.from_wire(one_hot.to_wire())
    torch.testing.assert_close(embed(bottom, batch, again), found)


def test_the_mean_one_hot_is_the_mean_embedding(encoder_and_rows) -> None:
    encoder, encoded = encoder_and_rows
    bottom = bottom_of(encoder)
    mean = mean_row(encoded, np.arange(40)).to(CPU, torch.float32)
    table = bottom.tables[0].weight
    every = table[torch.from_numpy(encoded.codes[:, 0])].mean(0)
    torch.testing.assert_close(mean.codes[0] @ table, every, atol=1e-6, rtol=1e-5)


def test_own_rows_are_found_by_number(encoder_and_rows) -> None:
    _, encoded = encoder_and_rows
    placed = np.array([-1, 7, -1, 2, 30])
    rows = OwnRows(encoded, placed, CPU, torch.float32)
    found = rows.batch(torch.tensor([4, 1]))
    np.testing.assert_allclose(found.numeric, encoded.numeric[[30, 7]], rtol=1e-6)
    np.testing.assert_array_equal(found.codes, encoded.codes[[30, 7]])
    assert rows.slot.tolist() == [-1, 0, -1, 1, 2]
