"""A label party that has the outputs of all its rows at once: what it tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmend.data.encode import LabelEncoder
from fedmend.errors import NotFitted
from fedmend.federation import exposed
from fedmend.federation.rows import Asked
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.split.workers import SplitWorker, has_label

JUDGED = ("metrics", "uncertainty_report")


class AnsweringWorker(SplitWorker):
    """Holds outputs of the rows at hand, and tells them, or how good they are.

    `_rows_used`: places of these rows in the table, -1 where the party does not know one.
    """

    def __init__(self, site: Any, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._rows_used: np.ndarray = np.zeros(0, np.int64)
        self._outputs: np.ndarray | None = None

    def _labels(self) -> LabelEncoder:
        """How the model knows the label."""
        raise NotImplementedError

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        outputs = self._take_outputs()
        self._let_out(self._rows_used, outputs, foreign=False)
        if not table_order:
            return outputs
        ordered = np.empty_like(outputs)
        ordered[self._rows_used] = outputs
        return ordered

    @exposed(kind="statistic")
    def metrics(self) -> dict[str, float]:
        """Of the outputs; through randomised response an estimate of those by true labels."""
        targets, outputs, labels = self._targets(), self._take_outputs(), self._labels()
        known = has_label(targets)
        if labels.task == "regression":
            return metrics.regression(labels.inverse(targets[known]), outputs[known])
        return metrics.classification(targets[known], outputs[known], self._noise)

    @exposed(kind="statistic")
    def uncertainty_report(self) -> dict[str, Any]:
        """What the uncertainty of the outputs is worth, against the labels there are."""
        targets, outputs = self._targets(), self._take_outputs()
        known = targets >= 0
        undecided = metrics.expected_error(outputs[known])
        return describe(outputs[known], undecided, targets[known], noise=self._noise)

    def about_rows(self, method: str) -> str:
        return "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method in JUDGED:
            return [self._rows_used[has_label(self._targets())]]
        return super().rows_asked(method, kwargs)

    def _take_outputs(self) -> np.ndarray:
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            raise NotFitted(f"party {self.site.name!r} predicted nothing. Mend: run first")
        return outputs

    def _targets(self) -> np.ndarray:
        """The encoded labels of the rows at hand; unknown ones are -1, or not a number."""
        targets = self._encoded()[self._rows_used]
        targets[self._rows_used < 0] = np.nan if targets.dtype.kind == "f" else -1
        return targets

    def _encoded(self) -> np.ndarray:
        """The labels of the table, as the model knows them."""
        labels = self._labels()
        column = self.table.frame[self._label_column(labels)]
        return labels.transform(column, party=self.site.name)
