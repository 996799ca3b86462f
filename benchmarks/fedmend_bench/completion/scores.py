"""Torn tables whose truth is known, non-private references on A's columns, and scores.

Numbers are scored in units of the column's standard deviation: RMSE is the root of the mean over
columns of the mean squared error. Categories by macro-F1 and accuracy, averaged over columns.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.metrics import f1_score

from fedmend.data.encode import Encoder, positions
from fedmend.data.scenario import split_columns
from fedmend.data.table import Table
from fedmend.federation import Alignment, Federation, Party
from fedmend_bench.simulation import know, together

__all__ = ["REFERENCES", "Scenario", "reference", "scores", "tear_table"]

NEIGHBOURS = 15
REFERENCES = ("mean/mode", "knn", "iterative", "boosted trees")


@dataclass(frozen=True)
class Scenario:
    """A's and B's side of the same rows; `missing` are the positions that B lost.

    test: two-sided rows that nobody trains on.
    """

    a: Table
    b: Table
    missing: np.ndarray
    test_a: Table
    test_b: Table

    @property
    def known(self) -> np.ndarray:
        """The rows that B has."""
        return np.setdiff1d(np.arange(len(self.a)), self.missing)

    @property
    def columns(self) -> list[str]:
        return list(self.b.feature_names)

    def federation(self, b: Table | None = None, seed: int = 0) -> Federation:
        """A and B, aligned; `b` in the place of B's rows (all of them: nothing is missing)."""
        table = b if b is not None else self.b.take(self.known)
        fed = Federation(
            Party("a", self.a, test=self.test_a), Party("b", table, test=self.test_b), seed=seed
        )
        own = together(len(self.a)) if b is not None else Alignment(self.known, self.missing)
        know(fed, {"a": own, "b": together(len(table))})
        know(fed.on("test"), together(len(self.test_a)))
        return fed


def tear_table(
    table: Table, share: float, *, rows: int, test: int, seed: int, where: str = "random"
) -> Scenario:
    """Columns half and half within kinds; B loses a share of the rows, at random or the last.

    The last rows are those that come last in the table's own order.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))[: rows + test]
    rows = min(rows, len(order) - test)
    if where == "last":
        order = np.concatenate([np.sort(order[:rows]), order[rows:]])
    sides = split_columns(table.take(order), ["a", "b"], seed=seed)
    count = round(share * rows)
    missing = rng.permutation(rows)[:count] if where == "random" else np.arange(rows - count, rows)
    train, held = np.arange(rows), np.arange(rows, len(order))
    a, b = sides["a"], sides["b"]
    return Scenario(a.take(train), b.take(train), np.sort(missing), a.take(held), b.take(held))


# ---------------------------------------------------------------------------------- references


def reference(name: str, case: Scenario, seed: int = 0) -> pd.DataFrame:
    """B's columns for the missing rows, from A's columns in the clear (nothing is private here).

    A completed table keeps its types, so integer columns are rounded for references too.
    """
    filled = _iterative(case, seed) if name == "iterative" else _by_column(name, case, seed)
    for column in case.columns:
        if case.b.schema[column].kind == "integer":
            filled[column] = filled[column].astype(float).round()
    return filled


def _by_column(name: str, case: Scenario, seed: int) -> pd.DataFrame:
    features = _in_the_clear(case.a)
    known, missing = case.known, case.missing
    filled = {}
    for column in case.columns:
        series, kind = case.b.frame[column], case.b.schema[column]
        seen = known[series.iloc[known].notna().to_numpy()]
        values = series.iloc[seen]
        if name == "mean/mode":
            best = values.mean() if kind.is_numeric else values.mode().iloc[0]
            filled[column] = pd.Series([best] * len(missing))
            continue
        target = values.to_numpy(float) if kind.is_numeric else values.astype(str).to_numpy()
        model = _model(name, kind.is_numeric, seed)
        if hasattr(model, "early_stopping") and values.value_counts().min() < 2:
            model.early_stopping = kind.is_numeric and "auto"  # it cannot stratify a single row
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            guess = model.fit(features[seen], target).predict(features[missing])  # type: ignore[attr-defined]
        if not kind.is_numeric:
            back = {str(each): each for each in kind.categories or ()}
            guess = np.array([back[each] for each in guess], dtype=object)
        filled[column] = pd.Series(guess)
    return pd.DataFrame(filled)


def _in_the_clear(table: Table) -> np.ndarray:
    return Encoder(missing_indicator=True).fit(table).transform(table).onehot().astype(float)


def _model(name: str, numeric: bool, seed: int) -> object:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    if name == "knn":
        return (KNeighborsRegressor if numeric else KNeighborsClassifier)(NEIGHBOURS)
    boosted = HistGradientBoostingRegressor if numeric else HistGradientBoostingClassifier
    return boosted(random_state=seed)


def _iterative(case: Scenario, seed: int) -> pd.DataFrame:
    """Numbers all together; each nominal column by itself, against its commonest category.

    (With full indicators each follows from the others, and the imputer never leaves its start.)
    """
    features = _in_the_clear(case.a)
    filled: dict[str, object] = {}
    numeric = [name for name in case.columns if case.b.schema[name].is_numeric]
    if numeric:
        own = case.b.frame[numeric].to_numpy(float, copy=True)
        made = _imputed(features, own, case, seed)
        filled |= {name: made[:, at] for at, name in enumerate(numeric)}
    for name in [name for name in case.columns if name not in numeric]:
        categories = case.b.schema[name].categories or ()
        at = positions(case.b.frame[name], categories)
        commonest = int(np.bincount(at[case.known][at[case.known] >= 0]).argmax())
        others = [code for code in range(len(categories)) if code != commonest]
        own = np.where(at[:, None] < 0, np.nan, at[:, None] == np.array(others)).astype(float)
        made = _imputed(features, own, case, seed)
        whole = np.concatenate([made, 1 - made.sum(axis=1, keepdims=True)], axis=1)
        pool = np.array([categories[code] for code in [*others, commonest]], dtype=object)
        filled[name] = pool[whole.argmax(axis=1)]
    return pd.DataFrame(filled)


def _imputed(features: np.ndarray, own: np.ndarray, case: Scenario, seed: int) -> np.ndarray:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    own[case.missing] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer = IterativeImputer(max_iter=5, random_state=seed, keep_empty_features=True)
        made = imputer.fit_transform(np.concatenate([features, own], axis=1))
    return np.asarray(made[case.missing, -own.shape[1] :])


# ---------------------------------------------------------------------------------- scores


def scores(case: Scenario, filled: pd.DataFrame) -> dict[str, float]:
    """Completion against the truth, over the cells whose truth is known."""
    squares, absolutes, shares, f1, right = [], [], [], [], []
    for column in case.columns:
        kind, series = case.b.schema[column], case.b.frame[column]
        seen = series.iloc[case.missing].notna().to_numpy()
        truth, guess = series.iloc[case.missing][seen], filled[column][seen]
        if kind.is_numeric:
            scale = float(series.std(ddof=0)) or 1.0
            error = (guess.to_numpy(float) - truth.to_numpy(float)) / scale
            squares.append(float((error**2).mean()))
            absolutes.append(float(np.abs(error).mean()))
            spread = float(np.var(truth.to_numpy(float) / scale))
            shares.append(1 - squares[-1] / spread if spread > 0 else 0.0)
        else:
            at = positions(truth, kind.categories or ())
            said = positions(guess, kind.categories or ())
            f1.append(f1_score(at, said, average="macro"))
            right.append(float((at == said).mean()))
    nan = float("nan")
    return {
        "rmse": float(np.sqrt(np.mean(squares))) if squares else nan,
        "mae": float(np.mean(absolutes)) if absolutes else nan,
        "r2": float(np.mean(shares)) if shares else nan,
        "macro_f1": float(np.mean(f1)) if f1 else nan,
        "accuracy": float(np.mean(right)) if right else nan,
    }
