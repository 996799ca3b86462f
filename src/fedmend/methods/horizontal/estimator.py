"""What all methods of horizontal federations share: rounds of local training and averaging.

The parties have the same columns and different people. In a round some of them train the common
model on their own rows, and the coordinator averages what comes back; what a party does with its
labelled and unlabelled rows is the method's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedmend.errors import ConfigError, DataError, NotFitted, PrivacyWarning
from fedmend.federation import Federation, Worker, exposed
from fedmend.learn.metrics import normalised_entropy
from fedmend.methods.horizontal.federated import FederatedClients
from fedmend.methods.horizontal.history import entry_of, told_of
from fedmend.methods.horizontal.settings import HorizontalSettings
from fedmend.split.parts import MANIFEST, read_file, read_json, write_file, write_json
from fedmend.split.training import Progress

if TYPE_CHECKING:
    import pandas as pd

    from fedmend.data.table import Table

MODEL = "model.fmw"
STATE = "rounds.fmw"
HISTORY = "history.json"
# Rounds between two checkpoints.
KEEP_EVERY = 5


class ModelKeeper(Worker):
    """A party's own copy of the common model."""

    @exposed(kind="control", takes={"model": "weights"})
    def keep(self, path: str, model: dict[str, Any], manifest: dict[str, Any]) -> None:
        folder = self.site.folder(path)
        write_file(folder / MODEL, model)
        write_json(folder / MANIFEST, manifest)


class HorizontalEstimator(HorizontalSettings):
    """One model for parties with the same columns, behind fit / predict / evaluate / save / load.

    The parameters are those of `HorizontalSettings`.
    """

    horizontal = True

    def learnt_from(self, fed: Federation) -> list[str]:
        return list(fed.label_parties)

    # ------------------------------------------------------------------ fitting

    def fit(
        self,
        fed: Federation,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train over the parties. `progress(stage, done, total, metrics)` is told every round.

        With `checkpoint` the rounds so far are kept in that folder (and at the parties); with
        `resume` it goes on from there.
        """
        self.require_types()
        self._check()
        if not isinstance(fed, Federation):
            raise DataError(
                f"fit takes a Federation, not a {type(fed).__name__}",
                mend="fm.Federation(fm.Party(name, table), …), a table for every party",
            )
        if self.carry_momentum and len(fed.names) > 1:
            warnings.warn(
                "carry_momentum gives every party the momentum of the one before, which tells of "
                "its gradients: for simulation only. Mend: carry_momentum=False",
                PrivacyWarning,
                stacklevel=2,
            )
        clients = self._clients(fed)
        folder = clients.folder = None if checkpoint is None else Path(checkpoint)
        history: list[dict[str, Any]] = []
        if folder is not None and resume and (folder / STATE).is_file():
            clients.load_checkpoint(folder / STATE)
            history = read_json(folder / HISTORY, "a checkpoint")[: clients.round]
        while clients.round < self.rounds:
            entry = entry_of(clients.run_round(), clients.method, self.warmup)
            if self.watch is not None:
                told = clients.accuracies(fed.on(self.watch))
                entry["accuracy"], entry["accuracy_by_party"] = told
            history.append(entry)
            if progress is not None:
                progress("train", clients.round, self.rounds, told_of(entry))
            due = clients.round % KEEP_EVERY == 0 or clients.round == self.rounds
            if folder is not None and due:
                # The history first: it may be longer than the state, never shorter.
                write_json(folder / HISTORY, history)
                clients.save_checkpoint(folder / STATE)
        self._adopt(fed, clients, history)
        return self

    def _adopt(
        self, fed: Federation, clients: FederatedClients, history: list[dict[str, Any]]
    ) -> None:
        self.fed_ = fed
        self.clients_ = clients
        self.history_ = history
        self.classes_ = np.asarray(clients.classes)
        self.task_ = "binary" if len(clients.classes) == 2 else "multiclass"
        self.privacy_ = clients.privacy

    # ------------------------------------------------------------------ using

    def predict_proba(self, rows: Table | Federation) -> np.ndarray | dict[str, np.ndarray]:
        """Probabilities [n, C] as `classes_` are: of a table of your own, or of parties' rows.

        Of a federation every party's rows are predicted, in the order of its table, and leave it
        for that (kind "prediction"). A party lets that happen only where its policy says so
        (`foreign_predictions`): whoever chooses the weights chooses what is said of a row. New rows
        are otherwise predicted where they are (`predict_here`, ``fedmend predict``).
        """
        if isinstance(rows, Federation):
            return self._ready(rows).probabilities(rows)
        if not hasattr(self, "clients_"):
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        return self.clients_.probabilities_of(rows)

    def predict(self, rows: Table | Federation) -> np.ndarray | dict[str, np.ndarray]:
        """Classes in their own values, of rows as in `predict_proba`."""
        found = self.predict_proba(rows)
        if isinstance(found, dict):
            return {party: self.classes_[each.argmax(1)] for party, each in found.items()}
        return self.classes_[found.argmax(1)]

    def predict_table(self, rows: Table | Federation) -> pd.DataFrame | dict[str, pd.DataFrame]:
        """Prediction, p(class) and uncertainty, one line for each row; rows as above."""
        found = self.predict_proba(rows)
        if isinstance(found, dict):
            return {party: self._frame(each) for party, each in found.items()}
        return self._frame(found)

    def predict_here(self, fed: Federation) -> dict[str, int]:
        """Let every party predict its own rows and keep the answers; how many rows there are."""
        return self._ready(fed).predict_here(fed)

    def _frame(self, probabilities: np.ndarray) -> pd.DataFrame:
        from fedmend.methods.outlook import frame_of

        undecided = normalised_entropy(probabilities)
        return frame_of(self.classes_.tolist(), probabilities, undecided, {})

    def evaluate(self, fed: Federation) -> dict[str, float]:
        """Accuracy, AUC, macro F1 and log loss over the labelled rows of all parties together.

        The parties tell counts and sums only; the AUC, for more than two classes the mean of one
        against the rest, is that of scores in 200 bins.
        """
        scores = self._ready(fed).evaluate(fed)
        return {name: value for name, value in scores.items() if name != "rows"}

    def uncertainty_report(self, fed: Federation) -> dict[str, Any]:
        """Whether undecided rows err more, and whether probabilities can be taken at their word.

        From counts of labelled rows that every party tells (see `tallies`).
        """
        return self._ready(fed).uncertainty_report(fed)

    def score(self, fed: Federation) -> float:
        """Accuracy."""
        return self.evaluate(fed)["accuracy"]

    def _ready(self, fed: Federation) -> FederatedClients:
        if not hasattr(self, "clients_"):
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        if fed.engine is not self.fed_.engine:
            raise ConfigError(
                "the model is at the parties of another federation. Mend: model.to(fed), or give "
                "the rows as a further table of the same parties: Party(name, table, test=…) and "
                "fed.on('test')"
            )
        return self.clients_

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Weights, encoding and classes in one file; `model.json` comes last and makes it one."""
        if not hasattr(self, "clients_"):
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        folder = Path(path)
        (folder / MANIFEST).unlink(missing_ok=True)
        clients = self.clients_
        write_file(folder / MODEL, {"common": clients.common, "weights": clients.averaged})
        write_json(
            folder / MANIFEST,
            {
                "method": type(self).__name__,
                "params": self.get_params(),
                "parties": list(self.fed_.names),
                "rounds": clients.round,
                "history": self.history_,
                "privacy": self.privacy_,
            },
        )

    def hand_out(
        self, path: str | os.PathLike[str], parties: Sequence[str] | None = None
    ) -> list[str]:
        """Let parties, by default all, keep the model saved at `path` in folders of their own.

        Every round has sent it to them anyway. Returns who cannot predict alone: nobody.
        """
        folder = Path(path)
        kept = read_file(folder / MODEL)
        # How training went at the others is not for every party to know.
        told = {"alone": True, "history": []}
        saved = read_json(folder / MANIFEST, "a saved model") | told
        asked = [each for each in self.fed_.names if parties is None or each in parties]
        with self.fed_.workers(ModelKeeper, parties=asked) as crew:
            crew.keep(str(folder), kept, saved)
        return []

    @classmethod
    def load(cls, path: str | os.PathLike[str], fed: Federation) -> Self:
        """A saved model for the parties of `fed`, whoever they are: all have the same columns."""
        folder = Path(path)
        model, saved = cls._of_manifest(folder)
        kept = read_file(folder / MODEL)
        clients = model._clients(fed, kept["common"])
        if clients.weights.shape != kept["weights"].shape:
            raise DataError(f"{folder / MODEL} is damaged", mend="take it from a backup")
        clients.weights, clients.round = kept["weights"], int(saved["rounds"])
        clients.privacy = saved.get("privacy")
        model._adopt(fed, clients, saved["history"])
        return model

    def to(self, fed: Federation) -> Self:
        """The same model at the parties of another federation."""
        source = self.clients_ if hasattr(self, "clients_") else None
        if source is None:
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        model = type(self)(**self.get_params())
        clients = model._clients(fed, source.common)
        clients.weights, clients.round = source.averaged, source.round
        clients.privacy = source.privacy
        model._adopt(fed, clients, list(self.history_))
        return model
