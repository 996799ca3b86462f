"""What all methods of horizontal federations share: parameters, rounds, use and keeping.

The parties have the same columns and different people. In a round some of them train the common
model on their own rows, and the coordinator averages what comes back; what a party does with its
labelled and unlabelled rows is the method's.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedmend._parameters import (
    NOT_NEGATIVE,
    PROPER_SHARE,
    Rules,
    at_least,
    one_of,
    parameters,
    wrong_values,
)
from fedmend.errors import ConfigError, DataError, NotFitted, PrivacyWarning
from fedmend.federation import Federation
from fedmend.federation.bound import declare
from fedmend.learn.metrics import normalised_entropy
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.contract import Estimator
from fedmend.methods.horizontal.coordinator import FederatedClients, HiddenClients
from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.networks import KINDS
from fedmend.methods.horizontal.rounds import RoundSettings, Server
from fedmend.methods.horizontal.worker import (
    MODEL,
    ClientWorker,
    HiddenClientWorker,
    ModelKeeper,
)
from fedmend.methods.outlook import frame_of
from fedmend.secure.sums import SumWorker
from fedmend.split.parts import MANIFEST, read_file, read_json, write_file, write_json
from fedmend.split.training import Progress

if TYPE_CHECKING:
    import pandas as pd

    from fedmend.data.table import Table

__all__ = ["HorizontalEstimator", "declare_rounds"]

STATE = "rounds.fmw"
HISTORY = "history.json"
# Rounds between two checkpoints.
KEEP_EVERY = 5
SECURE = ("none", "masks", "he")
NETS = ("auto", *KINDS)
RULES: Rules = {
    "rounds": at_least(1),
    "per_round": ("at least 1", lambda value: value is None or value >= 1),
    "average_rounds": ("at least 1", lambda value: value is None or value >= 1),
    "net": one_of(NETS),
    "noise": NOT_NEGATIVE,
    "drop": PROPER_SHARE,
    "label_dp": ("a positive ε or None", lambda value: value is None or 0 < value < math.inf),
    "secure": one_of(SECURE),
}


@parameters
class HorizontalEstimator(Estimator):
    """One model for parties with the same columns, behind fit / predict / evaluate / save / load.

    net: "auto" (a table: "mlp"; images: "resnet8"), "mlp", "cnn" or "resnet8"; hidden: layers of
    an mlp. rounds: rounds of averaging; per_round: parties drawn for each, None for all.
    epochs, labelled_batch, unlabelled_batch: a party's round is `epochs` times one unlabelled row
    in every labelled_batch steps, each of both batches.
    warmup: the first so many rounds learn from labelled rows only, so that pseudo-labels come from
    a model that knows something already (ours; see docs/sage.md for when it pays).
    carry_momentum: the momentum goes from party to party (the authors' quirk; for simulations).
    average_rounds: the model told, saved and predicted with is the mean of the common models over
    about so many rounds (newer ones count more), which swings less from round to round; training
    goes on from the last one. None: the last one (ours; see docs/sage.md for when it pays).
    noise, drop: strong views of table rows, standard deviations of noise and share of cells lost;
    flip: images may be mirrored.
    secure: "none" (the coordinator sees every party's weights), or "masks" or "he": it learns their
    average only, by a secure sum. Not for methods that look at single updates (FedDB, FedMatch).
    watch: a further table of the parties ("test") on which accuracy is told after every round.
    label_dp: ε of randomised response at every party, through which alone the training knows its
    labels, or None. Drawn once, and kept; what was told with which ε is `privacy_`.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "net": "resnet8",
            "rounds": 300,
            "per_round": 8,
            "epochs": 5,
            "labelled_batch": 128,
            "unlabelled_batch": 256,
            "optimizer": "sgd",
            "lr": 0.1,
            "weight_decay": 1e-4,
            "carry_momentum": True,
        }
    }
    """paper: the settings of SAGE's authors for CIFAR-10, quirks included."""
    horizontal: ClassVar[bool] = True

    net: str = "auto"
    hidden: tuple[int, ...] = (64,)
    rounds: int = 50
    per_round: int | None = None
    warmup: int = 0
    epochs: int = 5
    labelled_batch: int = 32
    unlabelled_batch: int = 64
    optimizer: str = "sgd"
    lr: float = 0.05
    weight_decay: float = 1e-4
    carry_momentum: bool = False
    average_rounds: int | None = None
    noise: float = 0.3
    drop: float = 0.4
    flip: bool = True
    precision: str = "float32"
    secure: str = "none"
    watch: str | None = None
    seed: int = 0
    label_dp: float | None = None

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of SAGE's authors for CIFAR-10, quirks included."""
        return cls.preset("paper", **changes)

    # ------------------------------------------------------------------ a method's own part

    _rules: ClassVar[Rules] = {}
    """What the method's own parameters must be."""

    def _method(self) -> LocalMethod:
        """What a party does in a round."""
        raise NotImplementedError(f"{type(self).__name__} has no local method")

    def _server(self) -> Server:
        """How updates become the next model: by default they are averaged by rows (FedAvg)."""
        return Server()

    def _settings(self) -> RoundSettings:
        return RoundSettings(
            self.epochs,
            self.labelled_batch,
            self.unlabelled_batch,
            OptimizerSpec(self.optimizer, self.lr, self.weight_decay),
            carry_momentum=self.carry_momentum,
            precision=self.precision,
            warmup=self.warmup,
        )

    def learnt_from(self, fed: Federation) -> list[str]:
        return list(fed.label_parties)

    def _check(self) -> None:
        problems = wrong_values(self, {**RULES, **self._rules})
        if self.warmup >= self.rounds > 0:
            problems.append(f"warmup must be below rounds, got {self.warmup} and {self.rounds}")
        if self.secure in SECURE[1:] and type(self._server()) is not Server:
            problems.append(
                f"secure = {self.secure!r}: {type(self).__name__} looks at single parties' "
                "updates. Mend: secure='none', or another method"
            )
        if self.secure != "none" and self.carry_momentum:
            problems.append("secure and carry_momentum: momentum would go from party to party")
        for make in (self._settings, self._method):
            try:
                make()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def _clients(self, fed: Federation, common: dict[str, Any] | None = None) -> FederatedClients:
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("net", "hidden", "seed", "noise", "drop", "flip", "average_rounds")
        }
        options |= {"label_dp": self.label_dp, "server": self._server(), "common": common}
        if self.per_round is not None:
            options["per_round"] = min(self.per_round, len(fed.names))
        if self.secure == "none":
            return FederatedClients(fed, self._method(), self._settings(), **options)
        return HiddenClients(fed, self._method(), self._settings(), mode=self.secure, **options)

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
            entry = clients.run_round().entry(clients.method, self.warmup)
            if self.watch is not None:
                told = clients.accuracies(fed.on(self.watch))
                entry["accuracy"], entry["accuracy_by_party"] = told
            history.append(entry)
            if progress is not None:
                shown = ("loss", "utilisation", "accuracy")
                facts = {name: entry[name] for name in shown if entry.get(name) is not None}
                progress("train", clients.round, self.rounds, facts)
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

    def _fitted(self) -> FederatedClients:
        if not hasattr(self, "clients_"):
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        return self.clients_

    def _ready(self, fed: Federation) -> FederatedClients:
        clients = self._fitted()
        if fed.engine is not self.fed_.engine:
            raise ConfigError(
                "the model is at the parties of another federation. Mend: model.to(fed), or give "
                "the rows as a further table of the same parties: Party(name, table, test=…) and "
                "fed.on('test')"
            )
        return clients

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Weights, encoding and classes in one file; `model.json` comes last and makes it one."""
        clients, folder = self._fitted(), Path(path)
        (folder / MANIFEST).unlink(missing_ok=True)
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
        source = self._fitted()
        model = type(self)(**self.get_params())
        clients = model._clients(fed, source.common)
        clients.weights, clients.round = source.averaged, source.round
        clients.privacy = source.privacy
        model._adopt(fed, clients, list(self.history_))
        return model


def declare_rounds(name: str, *, single_updates: bool = False) -> None:
    """What a run of a method may start: rounds, averaged in the open or by a secure sum.

    single_updates: its server looks at those of single parties, so they cannot be summed.
    """
    declare(name, ClientWorker, ModelKeeper)
    if not single_updates:
        declare(name, HiddenClientWorker, SumWorker)
