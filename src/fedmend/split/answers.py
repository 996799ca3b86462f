"""A label party that has the outputs of all its rows at once: what it tells of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmend.errors import NotFitted
from fedmend.federation import exposed
from fedmend.split.workers import JUDGED as JUDGED
from fedmend.split.workers import JudgingWorker, scored


class AnsweringWorker(JudgingWorker):
    """Holds outputs of the rows at hand, and tells them, or how good they are."""

    def __init__(self, site: Any, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope, model=model)
        self._outputs: np.ndarray | None = None

    @exposed(kind="control")
    def about(self) -> dict[str, Any]:
        labels = self._labels()
        account = None if self.reported is None else self.reported.account
        return {"task": labels.task, "classes": list(labels.classes_), "label_dp": account}

    @exposed(kind="prediction")
    def predictions(self, table_order: bool = False) -> np.ndarray:
        """What was predicted, in the common order or in the order of this party's table."""
        return self._let_out_in_order(self._rows_used, self._take_outputs(), table_order)

    @exposed(kind="statistic")
    def metrics(self) -> dict[str, float]:
        """Of the outputs; through randomised response an estimate of those by true labels."""
        found = self._labels(), self._targets(), self._take_outputs()
        return scored(*found, noise=self._noise)

    def _take_outputs(self) -> np.ndarray:
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            raise NotFitted(f"party {self.site.name!r} predicted nothing. Mend: run first")
        return outputs
