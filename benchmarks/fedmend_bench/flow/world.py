"""The torn world of `fedmend bench flow`: few common rows, and three labellers, one of them bad.

A bank has the numbers of a table, a telco the categories; a tenth of the bank's rows is known to
the telco. The bank labels its rows, and so do a registry and an agency that have nothing but
labels; one of the three errs often, and every one leaves rows out. Test rows have true labels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.crowds import annotators
from fedmend.data.scenario import tear_rows
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend_bench.harness import Bar
from fedmend_bench.options import listed
from fedmend_bench.risa import data as risa_data

BANK, TELCO = "bank", "telco"
LABELLERS = (BANK, "registry", "agency")
GOOD, BAD = (0.1, 0.15), 0.3
LABEL = "said"


@dataclass(frozen=True)
class Shape:
    """What a world is made of. noisy: the labeller that errs most. missing: votes not given."""

    data: str
    seed: int
    rows: int = 8000
    test: int = 4000
    overlap: float = 0.1
    noisy: str = BANK
    missing: float = 0.3

    @property
    def rates(self) -> list[float]:
        """Each labeller's error rate."""
        if self.noisy not in LABELLERS:
            raise ConfigError(
                f"noisy={self.noisy!r} is no labeller. Mend: one of {', '.join(LABELLERS)}"
            )
        good = iter(GOOD)
        return [BAD if name == self.noisy else next(good) for name in LABELLERS]


@dataclass(frozen=True)
class World:
    """Tables of all four parties, test tables of those with columns. truth: of the bank's rows."""

    train: dict[str, Table]
    test: dict[str, Table]
    truth: np.ndarray


def shapes_of(
    data: Any, seeds: int, first_seed: int, rows: int, test: int, *more: Any
) -> list[Shape]:
    """A world for every seed and data set."""
    return [
        Shape(each, first_seed + seed, rows, test, *more)
        for seed in range(seeds)
        for each in listed(data)
    ]


def make_world(shape: Shape, *, mended: bool = False) -> World:
    """The world of a shape; `mended` is the one without tears: all rows common, labels true."""
    sides = risa_data.load_sides(shape.data, shape.seed, shape.rows, shape.test)
    own, other = sides.train[risa_data.LABELS], sides.train[risa_data.PARTNER]
    rows = len(own)
    truth = own.y.to_numpy(dtype=object)
    votes = _votes(truth, shape)
    common, _ = tear_rows(rows, (BANK, TELCO), overlap=shape.overlap, seed=shape.seed)
    if mended:
        votes = np.repeat(truth[:, None], len(LABELLERS), 1)
        common = np.arange(rows)
    ids = np.arange(rows)
    unknown = np.setdiff1d(ids, common)
    rng = np.random.default_rng([shape.seed, 29])
    # The telco's other rows are other people: ids that nobody shares.
    telco_ids = np.concatenate([common, rows + rng.permutation(len(unknown))])
    telco = _renamed(other.take(np.concatenate([common, rng.permutation(unknown)])), telco_ids)
    features = own.select(own.feature_names)
    tested = sides.test[risa_data.LABELS], sides.test[risa_data.PARTNER]
    bank_test = _labelled(tested[0].select(features.names), tested[0].y.to_numpy(dtype=object))
    telco_test = _renamed(tested[1], bank_test.ids)
    train = {BANK: _labelled(features, votes[:, 0]), TELCO: telco}
    train |= {name: votes_only(ids, votes[:, k]) for k, name in enumerate(LABELLERS) if k}
    return World(train, {BANK: bank_test, TELCO: telco_test}, truth)


def _votes(truth: np.ndarray, shape: Shape) -> np.ndarray:
    """What each labeller says, None where it says nothing. **Shape** [rows, labellers]."""
    codes, classes = pd.factorize(truth, sort=True)
    said = annotators(
        codes, rates=shape.rates, missing=shape.missing, n_classes=len(classes), seed=shape.seed
    )
    pool = np.array([*classes.tolist(), None], object)
    return pool[said]


def _labelled(features: Table, labels: np.ndarray) -> Table:
    kinds = {name: features.schema[name].kind for name in features.names} | {LABEL: "nominal"}
    frame = features.frame.assign(**{LABEL: pd.Series(labels, index=features.frame.index)})
    return Table(np.arange(len(frame)), frame, kinds=kinds, label=LABEL)


def votes_only(ids: np.ndarray, labels: np.ndarray) -> Table:
    """The table of a party that has nothing but labels."""
    frame = pd.DataFrame({LABEL: pd.Series(labels, dtype=object)})
    return Table(ids, frame, kinds={LABEL: "nominal"}, label=LABEL)


def _renamed(table: Table, ids: Sequence[int] | np.ndarray) -> Table:
    return Table(np.asarray(ids), table.frame, schema=table.schema)


# ---------------------------------------------------------------------------------- showing

BOTH, BANK_ALONE = "auc", "auc, bank alone"


def summary(found: Sequence[dict[str, Any]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Means over seeds, line by line, with the standard error of the AUC."""
    rows = []
    for data, line in dict.fromkeys((each["data"], each["line"]) for each in found):
        own = [each for each in found if (each["data"], each["line"]) == (data, line)]
        done = [each for each in own if "failed" not in each]
        row: dict[str, Any] = {"data": data, "line": line}
        for measure in measures:
            values = [each[measure] for each in done if measure in each]
            row[measure] = float(np.mean(values)) if values else None
        aucs = [each[BOTH] for each in done]
        row["se"] = float(np.std(aucs, ddof=1) / np.sqrt(len(aucs))) if len(aucs) > 1 else None
        rows.append(row | {"seeds": len(done)})
    return rows


def bars(
    found: Sequence[dict[str, Any]],
    single: Collection[str],
    recipes: Collection[str],
    chance: float = 0.0,
) -> list[Bar]:
    """The best recipe against the best single method, on both kinds of test rows.

    chance: by how many points it may be behind.
    """
    promises = []
    rows = summary(found, (BOTH, BANK_ALONE))
    for data in dict.fromkeys(each["data"] for each in found):
        for measure, known in ((BOTH, "both"), (BANK_ALONE, "the bank alone")):
            means = {
                row["line"]: row[measure]
                for row in rows
                if row["data"] == data and row[measure] is not None
            }
            able = [[name for name in group if name in means] for group in (single, recipes)]
            if not all(able):
                continue
            alone, together_ = (max(group, key=lambda name: means[name]) for group in able)
            promises.append(
                Bar.at_least(
                    f"{data}, rows known to {known}: {together_} (best single: {alone})",
                    round(means[together_], 2),
                    round(means[alone] - chance, 2),
                )
            )
    return promises
