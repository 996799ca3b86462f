"""What a table is worth in the clear: scikit-learn on rows that no federation could join.

Boosting (``HistGradientBoostingClassifier``, of numbers ``HistGradientBoostingRegressor``) and
logistic regression with the settings they have by default, of a simulated federation whose tables
are read at its sites:

- ``own``: the label party's columns alone;
- ``aligned``: the rows known to both;
- ``left join``: all rows of the label party, the partner's cells missing where it is not known;
- ``joined``: all rows with all columns, as if everybody were known to both. An oracle.

Columns of more categories than scikit-learn takes count as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedmend.data.encode import as_numbers
from fedmend.data.schema import NUMERIC, Schema
from fedmend.data.table import Table
from fedmend.federation import Federation
from fedmend.federation.engines.local import LocalEngine
from fedmend.learn import metrics

__all__ = ["CLEAR", "Clear"]

MOST_CATEGORIES = 254
CLEAR = {
    "GBDT own columns": ("boosting", "own"),
    "GBDT aligned rows": ("boosting", "aligned"),
    "GBDT left join": ("boosting", "left join"),
    "GBDT joined (oracle)": ("boosting", "joined"),
    "logistic own columns": ("logistic", "own"),
    "logistic left join": ("logistic", "left join"),
}


@dataclass
class Clear:
    """One of these, asked as estimators of a federation are. settings: of the boosting."""

    name: str
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    classes_: np.ndarray = field(init=False)
    history_: list[Any] = field(default_factory=list, init=False)
    schemas_: list[Schema] = field(default_factory=list, init=False)

    @property
    def rows(self) -> str:
        return CLEAR[self.name][1]

    def fit(self, fed: Federation, same: np.ndarray | None = None) -> Self:
        """same: where the partner has the person of each of the label party's rows, if joined."""
        owner, partner = _tables(fed)
        known = same if same is not None and self.rows == "joined" else _known(fed)
        labelled = owner.y.notna().to_numpy()
        rows = np.flatnonzero(labelled & (known >= 0) if self.rows == "aligned" else labelled)
        self.schemas_ = [owner.features.schema, partner.schema]
        self._of_numbers = owner.schema[str(owner.label)].kind in NUMERIC
        y = self._labels(owner)
        self.classes_ = np.unique(y[labelled][: 0 if self._of_numbers else None])
        self._model = self._made(len(np.unique(y[rows])))
        self._model.fit(self._cells(owner, partner, known)[rows], y[rows])
        return self

    def _made(self, classes: int) -> Any:
        from sklearn.dummy import DummyClassifier
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )

        if classes < 2:  # among few aligned rows: there is nothing to learn
            return DummyClassifier()

        kinds = self._kinds()
        if CLEAR[self.name][0] == "boosting":
            kind = (
                HistGradientBoostingRegressor
                if self._of_numbers
                else HistGradientBoostingClassifier
            )
            return kind(
                categorical_features=kinds == "nominal", random_state=self.seed, **self.settings
            )
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        numbers = make_pipeline(
            SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()
        )
        codes = OneHotEncoder(handle_unknown="ignore", min_frequency=10)
        columns = make_column_transformer(
            (numbers, np.flatnonzero(kinds != "nominal")),
            (codes, np.flatnonzero(kinds == "nominal")),
        )
        return make_pipeline(columns, LogisticRegression(max_iter=2000))

    def _kinds(self) -> np.ndarray:
        """Of each column of the joined table."""
        used = self.schemas_[:1] if self.rows == "own" else self.schemas_
        return np.array(
            [
                "nominal"
                if column.kind == "nominal" and len(column.categories or ()) <= MOST_CATEGORIES
                else "number"
                for schema in used
                for column in schema.values()
            ]
        )

    def _cells(self, owner: Table, partner: Table, known: np.ndarray) -> np.ndarray:
        """The joined table, a number for each cell; the partner's row is `known`, -1 is none."""
        columns = [as_numbers(each, owner.frame[each.name]) for each in self.schemas_[0].values()]
        if self.rows != "own":
            for each in self.schemas_[1].values():
                values = np.append(as_numbers(each, partner.frame[each.name]), np.nan)
                columns.append(values[known])
        return np.stack(columns, axis=1)

    # ------------------------------------------------------------------ asking

    def predict_proba(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """Of all rows of the label party; a side is missing where the alignment does not have it.

        rows: as estimators have it, and looked at by none: here all are of one kind.
        """
        owner = _tables(fed)[0]
        found = self._model.predict_proba(self._asked(fed))
        out = np.zeros((len(owner), len(self.classes_)))
        out[:, np.searchsorted(self.classes_, self._model.classes_)] = found
        return out

    def evaluate(self, fed: Federation, *, rows: str | None = None) -> dict[str, float]:
        """All metrics of the label party's rows."""
        truth = self._labels(_tables(fed)[0])
        if self._of_numbers:
            return metrics.regression(truth, self._model.predict(self._asked(fed)))
        return metrics.classification(
            np.searchsorted(self.classes_, truth), self.predict_proba(fed)
        )

    def _labels(self, table: Table) -> np.ndarray:
        """Classes as text: among votes that are not given scikit-learn knows no whole number."""
        return table.y.to_numpy() if self._of_numbers else table.y.astype(str).to_numpy(str)

    def _asked(self, fed: Federation) -> np.ndarray:
        return self._cells(*_tables(fed), _known(fed))


def _names(fed: Federation) -> tuple[str, str]:
    (partner,) = (name for name in fed.names if name != fed.label_party)
    return fed.label_party, partner


def _site(fed: Federation, name: str) -> Any:
    assert isinstance(fed.engine, LocalEngine)
    return fed.engine.site(name)


def _known(fed: Federation) -> np.ndarray:
    """Where the partner has each of the label party's rows, -1 if it does not know them."""
    here, there = (_site(fed, name).alignments[fed.scope].aligned for name in _names(fed))
    known = np.full(len(_tables(fed)[0]), -1)
    known[here] = there
    return known


def _tables(fed: Federation) -> tuple[Table, Table]:
    owner, partner = (_site(fed, name).table_of(fed.scope) for name in _names(fed))
    return owner, partner
