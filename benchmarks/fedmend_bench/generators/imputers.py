"""The plain ways to fill gaps that every generator must beat: column means, KNN, chained ridges.

Every one is fitted on the training rows and fills other rows; observed cells stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder

__all__ = ["BASELINES"]


def mean(train: Table, torn: Table, seed: int) -> pd.DataFrame:
    """The training mean of a number, the most frequent category."""
    encoder = Encoder("minmax").fit(train)
    known, given = encoder.raw(train.frame), encoder.raw(torn.frame)
    for name, numbers in given.items():
        seen = known[name][~np.isnan(known[name])]
        if train.schema[name].is_categorical:
            values, counts = np.unique(seen, return_counts=True)
            guess = values[counts.argmax()]
        else:
            guess = seen.mean()
        given[name] = np.where(np.isnan(numbers), guess, numbers)
    return encoder.restore(given)


def knn(train: Table, torn: Table, seed: int) -> pd.DataFrame:
    """scikit-learn's KNNImputer with 5 neighbours, on indicators of the categories."""
    from sklearn.impute import KNNImputer

    encoder = Encoder("minmax").fit(train)
    parts = []
    for table in (train, torn):
        encoded = encoder.encode(encoder.raw(table.frame))
        parts.append(np.where(encoder.spread(encoded.observed), encoded.values, np.nan))
    filled = encoder.decode(_filled(KNNImputer(n_neighbors=5), *parts))
    return _pasted(encoder, filled, torn)


def iterative(train: Table, torn: Table, seed: int) -> pd.DataFrame:
    """scikit-learn's IterativeImputer as it comes, on codes of the categories.

    On indicators it diverges: each is the complement of its siblings, which are missing with it.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    encoder = Encoder("minmax").fit(train)
    parts = [np.column_stack(list(encoder.raw(t.frame).values())) for t in (train, torn)]
    # All columns are learnt although the training rows have no gaps, for ten rounds (tol=0).
    imputer = IterativeImputer(skip_complete=False, tol=0.0, random_state=seed)
    matrix = _filled(imputer, *parts)
    low, high = np.nanmin(parts[0], axis=0), np.nanmax(parts[0], axis=0)
    raw = dict(zip(train.names, np.clip(matrix, low, high).T, strict=True))
    for name in train.names:
        if not train.schema[name].dtype.startswith("float"):
            raw[name] = np.rint(raw[name])
    return _pasted(encoder, raw, torn)


BASELINES: dict[str, Callable[[Table, Table, int], pd.DataFrame]] = {
    "mean": mean,
    "KNN": knn,
    "iterative": iterative,
}


def _filled(imputer: Any, known: np.ndarray, gappy: np.ndarray) -> np.ndarray:
    """The gappy matrix without gaps; the imputer sees standardised columns."""
    centre, spread = np.nanmean(known, axis=0), np.nanstd(known, axis=0) + 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ten rounds have not converged is known
        imputer.fit((known - centre) / spread)
        filled: np.ndarray = imputer.transform((gappy - centre) / spread) * spread + centre
    return filled


def _pasted(encoder: Encoder, filled: dict[str, np.ndarray], torn: Table) -> pd.DataFrame:
    given = encoder.raw(torn.frame)
    return encoder.restore({n: np.where(np.isnan(given[n]), filled[n], given[n]) for n in given})
