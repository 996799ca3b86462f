"""Data sets that come with scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table

__all__ = ["breast_cancer", "diabetes", "digits", "iris", "wine"]


def breast_cancer() -> Table:
    """569 tumours, 30 measurements; label ``diagnosis`` (benign, malignant)."""
    from sklearn.datasets import load_breast_cancer

    return _classes(load_breast_cancer(as_frame=True), "diagnosis")


def wine() -> Table:
    """178 wines, 13 measurements; label ``cultivar``."""
    from sklearn.datasets import load_wine

    return _classes(load_wine(as_frame=True), "cultivar")


def iris() -> Table:
    """150 flowers, 4 measurements; label ``species``."""
    from sklearn.datasets import load_iris

    return _classes(load_iris(as_frame=True), "species")


def digits() -> Table:
    """1,797 pictures as 64 whole numbers 0..16; label ``digit``."""
    from sklearn.datasets import load_digits

    found = load_digits(as_frame=True)
    frame = found.data.astype(np.uint8)
    kinds = dict.fromkeys(frame.columns, "integer")
    frame["digit"] = found.target.astype(np.uint8)
    return Table(np.arange(len(frame)), frame, kinds={**kinds, "digit": "nominal"}, label="digit")


def diabetes() -> Table:
    """442 patients, 10 measurements in their own units; label ``progression``."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(as_frame=True, scaled=False)
    frame = found.data.assign(sex=found.data["sex"].astype(np.uint8), progression=found.target)
    return Table(np.arange(len(frame)), frame, label="progression")


def _classes(found: Any, label: str) -> Table:
    frame: pd.DataFrame = found.data.copy()
    frame[label] = np.asarray(found.target_names, dtype=object)[found.target.to_numpy()]
    return Table(np.arange(len(frame)), frame, label=label)
