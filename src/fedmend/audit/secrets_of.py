"""A party's columns as targets of a guess: numbers as they are, categories as indicators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmend.data.encode import Encoder
from fedmend.data.table import Table

__all__ = ["Secret", "secrets_of"]

MOST_PIXELS = 1024


@dataclass(frozen=True)
class Secret:
    """One column. **Shape** values [n, t], present [n]; metric: "R²" or "accuracy"."""

    name: str
    values: np.ndarray
    present: np.ndarray
    metric: str


def secrets_of(table: Table, learnt: np.ndarray) -> list[Secret]:
    """Every feature column that varies over the rows an attacker learns from.

    Empty cells are filled with the mean for learning, and are no part of any score. Of a block
    (an image) so many of its numbers count, and R² is over all of them together.
    """
    encoder = Encoder(binary="codes", dtype="float64").fit(table)
    encoded = encoder.transform(table)
    found = []
    for at, name in enumerate(encoder.numeric_names):
        values = encoded.numeric[:, [at]]
        found.append(Secret(name, values, ~encoded.missing[:, at].astype(bool), "R²"))
    for at, (name, cardinality) in enumerate(
        zip(encoder.code_names, encoder.cardinalities, strict=True)
    ):
        codes = encoded.codes[:, at]
        found.append(Secret(name, np.eye(cardinality)[codes], codes > 0, "accuracy"))
    for name, block in encoded.blocks.items():
        flat = block.reshape(len(block), -1)
        some = np.linspace(0, flat.shape[1] - 1, min(MOST_PIXELS, flat.shape[1])).astype(int)
        found.append(Secret(name, flat[:, some], np.ones(len(flat), dtype=bool), "R²"))
    return [each for each in found if each.values[learnt].std(0).any()]
