"""What columns that lie elsewhere say of B's columns is set aside before models learn these.

A's other rows are of another time, say, and its columns that tell the time are left out
(`beyond.py`). If one of the columns that stay is distributed in another way there too, it may have
stood for the time among the aligned rows, and what was learnt from it about B's columns leads the
wrong way: telephones told early months from late ones, and with them low rates from high ones;
later everybody had a mobile, at whatever rate. So the columns that lie elsewhere say what they can
of B's columns on the aligned rows, by ridge and logistic regression on their bins. Of numbers
models then learn the rest; for A's other rows, where these columns say nothing, that part is its
mean, 0. Probabilities of classes are believed as far as they say more (`stacking.news`).

    with AsideModels(fed, "bank", "telco", targets=["rate"], model=model, beyond=False) as models:
        models.set_aside()

What each role learns is what it learns of `linear.py`; predictions are for the aligned rows only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmend.federation.worker import exposed
from fedmend.methods.completion.beyond import bins_of, columns_within
from fedmend.methods.completion.linear import LinearModels
from fedmend.methods.completion.linear_workers import LinearFeatures, LinearTargets

__all__ = ["AsideModels"]


class AsideFeatures(LinearFeatures):
    """A's side: the bins of its columns that lie elsewhere on its other rows."""

    def _encoded(self) -> np.ndarray:
        table = self.table.take(self.rows)
        stay = columns_within(table, self.aligned)
        gone = [name for name in table.feature_names if name not in stay]
        return bins_of(table, self.aligned, gone)

    @exposed(kind="count")
    def bins(self) -> int:
        """How many bins tell aligned rows from one another."""
        return int(self.columns.shape[1])


class AsideTargets(LinearTargets):
    """B's side: keeps what was predicted; of numbers it is taken out of the labels."""

    def own_places(self, target: str) -> np.ndarray:
        """None: only what A's columns explain is set aside."""
        return np.zeros(0, np.int64)

    @exposed(kind="control")
    def take_aside(self) -> None:
        for name in self.board.learnt:
            target = self.board[name]
            target.aside, target.outputs, target.spread = target.made(), None, None
            self.board.release(name)


class AsideModels(LinearModels):
    """B's columns by the bins of A's columns that lie elsewhere."""

    family = "aside"
    workers = (AsideFeatures, AsideTargets)

    def set_aside(self, **options: Any) -> bool:
        """Predict the targets and let models learn the rest; tells whether anything was there."""
        if not self.targets or not self.at_a.bins():
            return False
        self.fit(**options)
        self.predict(rows="aligned", **options)
        self.at_b.take_aside()
        return True
