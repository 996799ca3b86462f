"""Process III of FedPSG-PUM at B: generators for the columns that A's columns say little about.

The generator learns from all rows that B has. Conditioned, it fills each of A's rows so that the
generated columns go with those already predicted; unconditioned (as published) it draws whole rows
and keeps the columns that are wanted. Nothing crosses but the names of columns and settings; only
VF-GAIN, whose generator sees A's embedding of each row, is trained by both parties.

A generator is tried out first: on aligned rows that were held out, it fills the columns from what
was *predicted* of the others, as it will for A's rows. Numbers are then moved towards their mean as
far as the trial says they should be; what says nothing about a row becomes the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.encode import from_numbers
from fedmend.data.schema import numbers
from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.federation.site import Site
from fedmend.federation.worker import Worker, exposed
from fedmend.generate import make
from fedmend.generate.base import Generator
from fedmend.generate.vfgain import give_rows, made_rows
from fedmend.methods.completion.merging import (
    GENERATED,
    OBSERVED,
    ORIGINS,
    Completion,
    completion_key,
    completion_of,
)
from fedmend.methods.completion.stacking import CAREFUL_ERRORS, shrinkage

TRIAL = 1000  # most rows of a trial
DRAWS = 10  # values a cell whose mean or majority is generated


class GenerateWorker(Worker):
    """B: keeps its columns for A's rows, counts them, and generates those nobody predicted."""

    def __init__(self, site: Site, scope: str = "train", *, run: str, a: str) -> None:
        super().__init__(site, scope)
        self.run, self.a = run, a
        key = completion_key(run, a)
        if key not in site.state:
            numbers = site.state[f"{run}:handles:{a}"]
            site.state[key] = Completion(_handles(numbers, self.table.ids))

    @property
    def completion(self) -> Completion:
        return completion_of(self.site, self.run, self.a)

    @exposed(kind="control")
    def columns(self) -> dict[str, str]:
        """The columns to be completed, with their kinds."""
        return {
            name: column.kind
            for name, column in self.table.features.schema.items()
            if not column.is_block
        }

    @exposed(kind="statistic")
    def summary(self) -> dict[str, dict[str, float]]:
        """Per column how many cells came from where, the mean confidence, and the skill."""
        made = self.completion
        return {
            name: {
                **{
                    origin: int((made.origins[name] == number).sum())
                    for number, origin in enumerate(ORIGINS)
                    if number != OBSERVED
                },
                "confidence": float(made.confidence[name].mean()) if len(made) else float("nan"),
                "skill": float("nan") if name in made.untold else made.skill[name],
            }
            for name in made.values
        }

    @exposed(kind="control")
    def generate(
        self,
        names: list[str],
        generator: str,
        params: dict[str, Any],
        condition: bool,
        careful: bool = False,
    ) -> None:
        """Fill these columns; `DRAWS` values a cell are averaged where there is a condition.

        careful: of those, numbers follow only what the trial shows beyond doubt.
        """
        own = self.table.features.select(self.columns())
        model = make(generator, **params)
        model.set_params(seed=self.site.own_seed(model.seed, "generator")).fit(own)
        given = self._given(names) if condition else {}
        if not given:
            self._take(names, model.sample(len(self.completion)))
            return
        made = model.impute(self._gaps(given), draws=DRAWS)
        self._take(names, made, self._slopes(names, model, careful))

    def _slopes(self, names: list[str], model: Generator, careful: bool) -> dict[str, float]:
        """Per numeric column how far its truth goes with what is generated, from 0 to 1."""
        trial, rows = self.completion.trial, self.completion.trial_rows[:TRIAL]
        given = {name: trial[name].iloc[:TRIAL] for name in trial if name not in names}
        schema = self.table.schema
        numeric = [name for name in names if schema[name].is_numeric and self._has_values(name)]
        if not given or not numeric:
            return {}
        made = model.impute(self._open(self.table.ids[rows], given), draws=DRAWS)
        slopes = {}
        for name in numeric:
            truth, mean = numbers(self.table.frame[name]), self._mean(name)
            told, known = numbers(made.frame[name]) - mean, truth[rows] - mean
            seen = ~np.isnan(known)
            errors = CAREFUL_ERRORS if careful else 0.0
            slopes[name] = shrinkage(known[seen], told[seen], errors) if told[seen].any() else 0.0
        return slopes

    def _has_values(self, name: str) -> bool:
        return bool(self.table.frame[name].notna().any())

    def _mean(self, name: str) -> float:
        return float(np.nanmean(numbers(self.table.frame[name])))

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
        return self._open(self.completion.handles, given)

    def _open(self, ids: np.ndarray, given: dict[str, pd.Series]) -> Table:
        """Rows of which the given columns are known and the others are to be filled."""
        schema = self.table.features.select(self.columns()).schema
        columns = {
            name: given[name] if name in given else pd.Series([None] * len(ids), dtype=object)
            for name in schema
        }
        return Table._trusted(ids, schema, None, pd.DataFrame(columns), {})

    def _take(
        self, names: list[str], filled: Table, slopes: Mapping[str, float] | None = None
    ) -> None:
        """Keep these columns, numbers as near to their mean as `slopes` has them."""
        made = self.completion
        for name in names:
            values = filled.frame[name]
            # Of a column of which B has no value either nobody can say anything: it stays empty.
            if bool(values.isna().any()) and self._has_values(name):
                raise DataError(
                    "the generator left cells empty",
                    party=self.site.name,
                    column=name,
                    mend="choose another generator",
                )
            if slopes is not None and name in slopes:
                mean = self._mean(name)
                moved = mean + slopes[name] * (numbers(values) - mean)
                values = from_numbers(self.table.schema[name], moved)
            made.put(name, values, np.full(len(made), GENERATED), np.zeros(len(made)))


def _handles(numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Ids of the party's own type that none of its rows has."""
    if ids.dtype.kind in "iu":
        # 62 random bits below zero: a meeting with a real id is as good as impossible, and
        # the table refuses ids that are not unique.
        return -1 - (numbers >> np.uint64(2)).astype(np.int64)
    return np.array([f"mended-{number:016x}" for number in numbers], dtype=object)
