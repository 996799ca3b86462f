"""The party's side of a prediction: which rows are asked about, and answers beside their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend._files import beside
from fedmend.data.writers import write_frame
from fedmend.errors import DataError
from fedmend.federation import Alignment
from fedmend.federation.bound import but, declare
from fedmend.federation.worker import Worker, exposed
from fedmend.learn.metrics import normalised_entropy
from fedmend.methods.contract import frame_of
from fedmend.methods.horizontal.worker import kept_predictions

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PREDICTIONS_FILE", "PredictionWorker"]

PREDICTIONS_FILE = "predictions.csv"


class PredictionWorker(Worker):
    """Groups of rows by who knows them, and what was predicted of each."""

    def __init__(self, site: Any, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._taken = np.zeros(len(self.table), bool)
        self._groups: dict[str, np.ndarray] = {}
        self._parts: list[Any] = []
        self._foreign: list[tuple[np.ndarray, np.ndarray]] = []

    @exposed(kind="count", over_rows=False)
    def rows(self) -> int:
        return len(self.table)

    @exposed(kind="count", over_rows=False)
    def claim(self, group: str, scope: str | None = None) -> int:
        """A group of rows: those aligned in `scope` that no larger group has, or all that are left.

        Whoever knows a row of a group knows it in every larger group it is in, so that all
        parties of a group leave out the same rows.
        """
        rows = np.arange(len(self.table)) if scope is None else self.site.alignments[scope].aligned
        self._groups[group] = rows[~self._taken[rows]]
        self._taken[self._groups[group]] = True
        return len(self._groups[group])

    @exposed(kind="control")
    def close_groups(self) -> None:
        """Forget all groups: every row is this party's own."""
        self._groups.clear()
        self._taken[:] = False

    @exposed(kind="control")
    def choose(self, group: str, alone: bool) -> None:
        """From now on this scope's rows are the group's; a party that is not in it has none."""
        rows = self._groups.get(group, np.zeros(0, np.int64))
        nothing = rows[:0]
        split = (nothing, rows) if alone else (rows, nothing)
        self.site.alignments[self.scope] = Alignment(*split)

    @exposed(kind="control", takes={"answers": "prediction"})
    def take(
        self,
        group: str,
        known_to: str,
        used: str,
        answers: dict[str, Any],
        classes: list[Any] | None = None,
    ) -> None:
        """Predictions of a group's rows, in its order; columns by name.

        classes: what the predictions are the numbers of, where they are no numbers themselves.
        """
        import pandas as pd

        rows = self._groups[group]
        count = len(answers["prediction"])
        if count != len(rows):
            raise DataError(
                f"{count:,} predictions came for {len(rows):,} rows",
                party=self.site.name,
                mend="the same tables from alignment to prediction",
            )
        head = {"id": self.table.ids[rows], "known_to": known_to, "used": used}
        named = pd.Series(classes)[answers["prediction"]].to_numpy() if classes else None
        told = answers if named is None else answers | {"prediction": named}
        self._parts.append((rows, pd.DataFrame(head | told)))

    @exposed(kind="control")
    def take_kept(self, group: str) -> None:
        """Predictions of all rows that this party made itself, with a model that was sent in."""
        import pandas as pd

        classes, found = kept_predictions(self.site, self.scope.partition("@")[0])
        rows, mine = self._groups[group], self.site.name
        answers = frame_of(classes, found[rows], normalised_entropy(found[rows]), {})
        head = pd.DataFrame({"id": self.table.ids[rows], "known_to": mine, "used": mine})
        self._parts.append((rows, pd.concat([head, answers], axis=1)))
        self._foreign.append((rows, found[rows]))

    @exposed(kind="control")
    def write(self, path: str) -> None:
        """One file with all of them, in the order of this party's table; whole or not at all."""
        file = self.site.folder(path) / PREDICTIONS_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside(file) as part:
            write_frame(self._frame(), part, float_format="%.7g")

    @exposed(kind="prediction")
    def answers(self) -> dict[str, Any]:
        """The same to whoever gave the rows: their numbers in this party's table, and no ids."""
        site = self.site
        for place, found in self._foreign:
            ids = self.table.ids[place]
            site.predicted.admit(site.name, site.policy, ids, found, foreign=True)
        frame = self._frame().drop(columns="id")
        rows = np.sort(np.concatenate([place for place, _ in self._parts]))
        return {"row": rows.tolist(), **{str(name): frame[name].tolist() for name in frame}}

    def _frame(self) -> pd.DataFrame:
        import pandas as pd

        places = np.concatenate([place for place, _ in self._parts])
        whole = pd.concat([part for _, part in self._parts], ignore_index=True)
        return whole.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


# The answers of rows that a party calls its own are written there, and go nowhere else.
declare("predict", but(PredictionWorker, "answers"))
