"""Process III of FedPSG-PUM at B: generators for the columns that A's columns say little about.

The generator learns from all rows that B has. Conditioned, it fills each of A's rows so that the
generated columns go with those already predicted; unconditioned (as published) it draws whole rows
and keeps the columns that are wanted. Nothing crosses but the names of columns and settings; only
VF-GAIN, whose generator sees A's embedding of each row, is trained by both parties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.federation.worker import exposed
from fedmend.generate import make
from fedmend.generate.vfgain_workers import give_rows, made_rows
from fedmend.methods.completion import GENERATED, CompletionWorker

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
        given = self._given(names) if condition else {}
        if not given:
            made = model.sample(len(self.completion))
        elif draws == 1:
            made = model.sample(given=pd.DataFrame(given))
        else:
            made = model.impute(self._gaps(given), draws=draws)
        self._take(names, made)

    @exposed(kind="control")
    def offer(self, names: list[str], key: str) -> None:
        """Leave A's rows under a name, these columns open, for a generator of both parties."""
        give_rows(self.site, key, self._gaps(self._given(names)))

    @exposed(kind="control")
    def adopt(self, names: list[str], key: str) -> None:
        """Take these columns from rows that a generator of both parties has left."""
        self._take(names, made_rows(self.site, key))

    def _given(self, names: list[str]) -> dict[str, pd.Series]:
        """What is known of A's rows by now, but for the columns to be made."""
        made = self.completion.values
        return {name: made[name] for name in self.columns() if name in made and name not in names}

    def _gaps(self, given: dict[str, pd.Series]) -> Table:
        made, schema = self.completion, self.table.features.select(self.columns()).schema
        columns = {
            name: given[name] if name in given else pd.Series([None] * len(made), dtype=object)
            for name in schema
        }
        return Table._trusted(made.handles, schema, None, pd.DataFrame(columns), {})

    def _take(self, names: list[str], filled: Table) -> None:
        made = self.completion
        for name in names:
            values = filled.frame[name]
            if bool(values.isna().any()):
                raise DataError(
                    "the generator left cells empty",
                    column=name,
                    mend="drop the column if it has no value, or choose another generator",
                )
            made.put(name, values, np.full(len(made), GENERATED), np.zeros(len(made)))
