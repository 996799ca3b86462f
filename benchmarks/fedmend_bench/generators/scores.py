"""How good synthetic rows and filled gaps are: the measures behind ``fedmend bench generators``.

Column shapes and pair trends follow sdmetrics' definitions (KS complement, total-variation
complement, correlation similarity, contingency similarity). They flatter: independently shuffled
columns reach about .88 and are useless to train on, so they never stand alone here.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmend.data.schema import Schema

__all__ = [
    "closest_distances",
    "column_shapes",
    "copying",
    "imputation_error",
    "pair_trends",
    "train_synthetic_test_real",
]

_BINS = 10


# --- fidelity ------------------------------------------------------------------------------


def column_shapes(real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema) -> float:
    """Mean over columns of 1 − KS distance (numbers) or 1 − total variation (categories)."""
    return float(np.mean([_shape(real[n], synthetic[n], schema[n].is_numeric) for n in schema]))


def _shape(real: pd.Series, synthetic: pd.Series, numeric: bool) -> float:
    if not numeric:
        ours, theirs = (
            column.astype(object).value_counts(normalize=True) for column in (real, synthetic)
        )
        return 1 - 0.5 * float(ours.sub(theirs, fill_value=0).abs().sum())
    from scipy.stats import ks_2samp

    return 1 - float(
        ks_2samp(real.astype(float), synthetic.astype(float), method="asymp").statistic
    )


def pair_trends(real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema) -> float:
    """Mean over column pairs of correlation or contingency similarity.

    A number beside a category is cut into 10 equal bins of the real range first.
    """
    numbers = {n: real[n].to_numpy(float) for n in schema if schema[n].is_numeric}
    others = {n: synthetic[n].to_numpy(float) for n in numbers}
    edges = {n: np.histogram_bin_edges(values, _BINS) for n, values in numbers.items()}
    codes = {n: _codes(real[n], synthetic[n], edges.get(n)) for n in schema}
    scores = []
    for first, second in combinations(schema, 2):
        if first in numbers and second in numbers:
            ours = _correlation(numbers[first], numbers[second])
            theirs = _correlation(others[first], others[second])
            if not np.isnan(ours):
                scores.append(1 - abs(ours - (0.0 if np.isnan(theirs) else theirs)) / 2)
        else:
            scores.append(_contingency(codes[first], codes[second]))
    return float(np.mean(scores)) if scores else float("nan")


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


class _Codes(NamedTuple):
    """A column of both tables as codes 0..size-1."""

    real: np.ndarray
    synthetic: np.ndarray
    size: int


def _codes(real: pd.Series, synthetic: pd.Series, edges: np.ndarray | None) -> _Codes:
    if edges is not None:
        inner = edges[1:-1]
        return _Codes(np.digitize(real, inner), np.digitize(synthetic, inner), len(edges) - 1)
    both, known = pd.factorize(pd.concat([real.astype(object), synthetic.astype(object)]))
    return _Codes(both[: len(real)], both[len(real) :], len(known))


def _contingency(first: _Codes, second: _Codes) -> float:
    cells = first.size * second.size
    ours = np.bincount(first.real * second.size + second.real, minlength=cells)
    theirs = np.bincount(first.synthetic * second.size + second.synthetic, minlength=cells)
    return 1 - 0.5 * float(np.abs(ours / ours.sum() - theirs / theirs.sum()).sum())


# --- use -----------------------------------------------------------------------------------


def train_synthetic_test_real(
    train: pd.DataFrame, test: pd.DataFrame, label: str, schema: Schema, seed: int = 0
) -> float:
    """AUC on real rows of gradient boosting trained on ``train`` (nan if it holds one class)."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    if train[label].nunique() < 2:
        return float("nan")
    features = [name for name in schema if name != label]
    categories = {
        name: pd.Index(sorted(test[name].astype(object).unique(), key=str))
        for name in [*features, label]
        if schema[name].is_categorical
    }

    def matrix(frame: pd.DataFrame) -> np.ndarray:
        columns = [
            categories[name].get_indexer(frame[name].astype(object)).astype(float)
            if name in categories
            else frame[name].to_numpy(float)
            for name in features
        ]
        array = np.column_stack(columns)
        array[array < 0] = np.where(np.isin(features, list(categories)), np.nan, array)[array < 0]
        return array

    model = HistGradientBoostingClassifier(
        categorical_features=[
            name in categories and len(categories[name]) <= 200 for name in features
        ],
        random_state=seed,
    )
    positive = categories[label][-1]
    model.fit(matrix(train), (train[label].astype(object) == positive).to_numpy())
    scores = model.predict_proba(matrix(test))[:, 1]
    return float(roc_auc_score((test[label].astype(object) == positive).to_numpy(), scores))


# --- copying ---------------------------------------------------------------------------------


def closest_distances(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Euclidean distance of every row to its closest among ``others`` (already scaled)."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(others)
    return search.kneighbors(rows)[0][:, 0]


def copying(
    train: pd.DataFrame, hold_out: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema
) -> dict[str, float]:
    """Are synthetic rows closer to training rows than fresh real rows are?

    ``dcr``: median distance of synthetic rows to the closest training row over that of real
    hold-out rows (1: as far as fresh people; near 0: copies). ``dcr share``: share of synthetic
    rows closer to training than to an equally large hold-out (.5: no copying). ``copies``: share of
    synthetic rows that equal a training row in every cell.
    """
    encode = _scaler(train, schema)
    base, fresh, made = encode(train), encode(hold_out), encode(synthetic)
    equal = min(len(base), len(fresh))
    to_all = closest_distances(made, base)
    to_train = to_all if equal == len(base) else closest_distances(made, base[:equal])
    to_fresh = closest_distances(made, fresh[:equal])
    strangers = max(float(np.median(closest_distances(fresh, base))), 1e-9)
    return {
        "dcr": float(np.median(to_all)) / strangers,
        "dcr share": float(np.mean(to_train < to_fresh) + 0.5 * np.mean(to_train == to_fresh)),
        "copies": float(np.mean(to_all < 1e-6)),
    }


def _scaler(train: pd.DataFrame, schema: Schema) -> Any:
    """Numbers by their deviation, categories as indicators (half a unit for each of two)."""
    parts: list[tuple[str, Any]] = []
    for name, column in schema.items():
        if column.is_numeric:
            values = train[name].to_numpy(float)
            parts.append((name, (values.mean(), values.std() or 1.0)))
        else:
            parts.append((name, pd.Index(train[name].astype(object).unique())))

    def encode(frame: pd.DataFrame) -> np.ndarray:
        pieces = []
        for name, fitted in parts:
            if isinstance(fitted, tuple):
                pieces.append(((frame[name].to_numpy(float) - fitted[0]) / fitted[1])[:, None])
            else:
                codes = fitted.get_indexer(frame[name].astype(object))
                pieces.append((codes[:, None] == np.arange(len(fitted))) / np.sqrt(2))
        return np.concatenate(pieces, axis=1).astype(np.float32)

    return encode


# --- gaps --------------------------------------------------------------------------------------


def imputation_error(
    truth: pd.DataFrame, filled: pd.DataFrame, gaps: np.ndarray, schema: Schema
) -> dict[str, float]:
    """RMSE over the gaps of numeric columns, in standard deviations; accuracy of the others.

    **Shape**: ``gaps`` bool (rows, columns), columns in the schema's order. Every column counts the
    same, whatever its number of gaps.
    """
    errors, hits = [], []
    for position, (name, column) in enumerate(schema.items()):
        holes = gaps[:, position]
        if not holes.any():
            continue
        if column.is_numeric:
            actual = truth[name].to_numpy(float)
            wrong = filled[name].to_numpy(float)[holes] - actual[holes]
            errors.append(float(np.mean(wrong**2)) / max(float(actual.var()), 1e-12))
        else:
            same = truth[name].astype(object) == filled[name].astype(object)
            hits.append(float(same.to_numpy()[holes].mean()))
    return {
        "rmse": float(np.sqrt(np.mean(errors))) if errors else float("nan"),
        "accuracy": float(np.mean(hits)) if hits else float("nan"),
    }
