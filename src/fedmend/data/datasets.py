"""Named data sets to try things on: those that come with scikit-learn.

A data set is one function; what is known about it stands above. Ids are row numbers. Further
ones, whose files must be fetched first, are read by ``fedmend_bench.datasets``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import one_of_these
from fedmend.data.table import Table
from fedmend.errors import DataError

CATALOGUE: dict[str, DatasetInfo] = {}

Loader = Callable[..., Table]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set before it is loaded; ``columns`` counts the features."""

    name: str
    title: str
    rows: int
    columns: int
    task: str
    licence: str
    loader: Loader


def names() -> list[str]:
    """All names :func:`load` knows, sorted."""
    return sorted(CATALOGUE)


def info(name: str) -> DatasetInfo:
    """Size, task and licence."""
    if name not in CATALOGUE:
        mend = one_of_these(name, names(), "data sets")
        raise DataError(f"there is no data set {name!r}", mend=mend)
    return CATALOGUE[name]


def load(name: str) -> Table:
    """The data set as a table with a label.

    >>> table = load("breast-cancer")
    >>> table.n_rows, len(table.feature_names), table.label
    (569, 30, 'diagnosis')
    """
    return info(name).loader()


def _about(
    name: str,
    title: str,
    rows: int,
    columns: int,
    task: str,
    licence: str = "BSD-3 (scikit-learn)",
) -> Callable[[Loader], Loader]:
    def noted(loader: Loader) -> Loader:
        CATALOGUE[name] = DatasetInfo(name, title, rows, columns, task, licence, loader)
        return loader

    return noted


@_about("breast-cancer", "Breast cancer Wisconsin (diagnostic)", 569, 30, "binary")
def _breast_cancer() -> Table:
    """Tumours by 30 measurements; label ``diagnosis`` (benign, malignant)."""
    from sklearn.datasets import load_breast_cancer

    return _classes(load_breast_cancer(as_frame=True), "diagnosis")


@_about("digits", "Handwritten digits, 8 x 8", 1797, 64, "multiclass")
def _digits() -> Table:
    """Pictures as 64 whole numbers 0..16; label ``digit``."""
    from sklearn.datasets import load_digits

    found = load_digits(as_frame=True)
    frame = found.data.astype(np.uint8)
    kinds = dict.fromkeys(frame.columns, "integer")
    frame["digit"] = found.target.astype(np.uint8)
    return Table(np.arange(len(frame)), frame, kinds={**kinds, "digit": "nominal"}, label="digit")


@_about("wine", "Wine cultivars", 178, 13, "multiclass")
def _wine() -> Table:
    """Wines by 13 measurements; label ``cultivar``."""
    from sklearn.datasets import load_wine

    return _classes(load_wine(as_frame=True), "cultivar")


@_about("iris", "Iris", 150, 4, "multiclass")
def _iris() -> Table:
    """Flowers by 4 measurements; label ``species``."""
    from sklearn.datasets import load_iris

    return _classes(load_iris(as_frame=True), "species")


@_about("diabetes", "Diabetes progression", 442, 10, "regression")
def _diabetes() -> Table:
    """Patients by 10 measurements in their own units; label ``progression``."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(as_frame=True, scaled=False)
    frame = found.data.assign(sex=found.data["sex"].astype(np.uint8), progression=found.target)
    return Table(np.arange(len(frame)), frame, label="progression")


def _classes(found: Any, label: str) -> Table:
    frame: pd.DataFrame = found.data.copy()
    frame[label] = np.asarray(found.target_names, dtype=object)[found.target.to_numpy()]
    return Table(np.arange(len(frame)), frame, label=label)
