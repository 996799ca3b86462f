"""Process III of FedPSG-PUM at B: generators for the columns that A's columns say little about.

The generator learns from all rows that B has. Conditioned, it fills each of A's rows so that the
generated columns go with those already predicted; unconditioned (as published) it draws whole rows
and keeps the columns that are wanted. Nothing crosses but the names of columns and settings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.federation.worker import exposed
from fedmend.generate import make
from fedmend.methods.completion import GENERATED, Completion, CompletionWorker

__all__ = ["GenerateWorker"]


class GenerateWorker(CompletionWorker):
    """B: fits a generator on its own rows and completes columns for A's."""

    @exposed(kind="control")
    def generate(
        self, names: list[str], generator: str, params: dict[str, Any], condition: bool, draws: int
    ) -> None:
        """Fill these columns; `draws` values a cell are averaged where there is a condition."""
        own = self.table.features.select(self.columns())
        model = make(generator, **params).fit(own)
        made = self.completion
        given = {
            name: made.values[name]
            for name in own.names
            if name in made.values and name not in names
        }
        if condition and given:
            filled = _conditioned(model, own, made, given, draws)
        else:
            filled = model.sample(len(made))
        nothing = np.zeros(len(made))
        for name in names:
            values = filled.frame[name]
            if bool(values.isna().any()):
                raise DataError(
                    "the generator left cells empty",
                    column=name,
                    mend="drop the column if it has no value, or choose another generator",
                )
            made.put(name, values, np.full(len(made), GENERATED), nothing)


def _conditioned(
    model: Any, own: Table, made: Completion, given: dict[str, pd.Series], draws: int
) -> Table:
    """Rows that agree with the given columns: single draws, or the mean of several."""
    if draws == 1:
        sampled: Table = model.sample(given=pd.DataFrame(given))
        return sampled
    columns = {
        name: given[name] if name in given else pd.Series([None] * len(made), dtype=object)
        for name in own.names
    }
    gaps = Table._trusted(made.handles, own.schema, None, pd.DataFrame(columns), {})
    filled: Table = model.impute(gaps, draws=draws)
    return filled
