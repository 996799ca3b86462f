"""What all methods of horizontal federations share: rounds of local training and averaging.

The parties have the same columns and different people. In a round some of them train the common
model on their own rows, and the coordinator averages what comes back; what a party does with its
labelled and unlabelled rows is the method's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.federation import Federation, Worker, exposed
from fedmend.learn.clients.federated import FederatedClients
from fedmend.learn.clients.hidden import HiddenClients
from fedmend.learn.clients.rounds import (
    Aggregate,
    LocalMethod,
    NetSpec,
    Pool,
    RoundReport,
    RoundSettings,
)
from fedmend.learn.clients.simulator import Simulator
from fedmend.learn.metrics import normalised_entropy
from fedmend.learn.optim import OptimizerSpec
from fedmend.learn.parts import MANIFEST, read_file, read_json, write_file, write_json
from fedmend.learn.training import Progress
from fedmend.methods.estimator import Estimator

if TYPE_CHECKING:
    import pandas as pd

MODEL = "model.fmw"
STATE = "rounds.fmw"
HISTORY = "history.json"
# Rounds between two checkpoints.
KEEP_EVERY = 5
SECURE = ("none", "masks", "he")
NETS = ("auto", "mlp", "cnn", "resnet8")


class ModelKeeper(Worker):
    """A party's own copy of the common model."""

    @exposed(kind="control", takes={"model": "weights"})
    def keep(self, path: str, model: dict[str, Any], manifest: dict[str, Any]) -> None:
        folder = self.site.folder(path)
        write_file(folder / MODEL, model)
        write_json(folder / MANIFEST, manifest)


class HorizontalEstimator(Estimator):
    """One model for parties with the same columns, behind fit / predict / evaluate / save / load.

    net: "auto" (a table: "mlp"; images: "resnet8"), "mlp", "cnn" or "resnet8"; hidden: layers of
    an mlp. rounds: rounds of averaging; per_round: parties drawn for each, None for all.
    epochs, labelled_batch, unlabelled_batch: a party's round is `epochs` times one unlabelled row
    in every labelled_batch, or `steps_per_epoch` steps, each of both batches.
    carry_momentum: the momentum goes from party to party (the authors' quirk; simulation only).
    prox: FedProx's pull towards the round's common model.
    noise, drop: strong views of table rows, standard deviations of noise and share of cells lost;
    flip: images may be mirrored.
    secure: "none" (the coordinator sees every party's weights), or "masks" or "he": it learns their
    average only, by a secure sum. Not for methods that look at single updates (FedDB, FedMatch).
    watch: a further table of the parties ("test") on which accuracy is told after every round.
    """

    paper_rounds: ClassVar[int] = 300

    def __init__(
        self,
        *,
        net: str = "auto",
        hidden: tuple[int, ...] = (64,),
        rounds: int = 50,
        per_round: int | None = None,
        epochs: int = 5,
        labelled_batch: int = 32,
        unlabelled_batch: int = 64,
        steps_per_epoch: int | None = None,
        optimizer: str = "sgd",
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        carry_momentum: bool = False,
        prox: float = 0.0,
        noise: float = 0.3,
        drop: float = 0.4,
        flip: bool = True,
        precision: str = "float32",
        secure: str = "none",
        watch: str | None = None,
        seed: int = 0,
    ) -> None:
        self.net = net
        self.hidden = hidden
        self.rounds = rounds
        self.per_round = per_round
        self.epochs = epochs
        self.labelled_batch = labelled_batch
        self.unlabelled_batch = unlabelled_batch
        self.steps_per_epoch = steps_per_epoch
        self.optimizer = optimizer
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.carry_momentum = carry_momentum
        self.prox = prox
        self.noise = noise
        self.drop = drop
        self.flip = flip
        self.precision = precision
        self.secure = secure
        self.watch = watch
        self.seed = seed

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of SAGE's authors for CIFAR-10, quirks included."""
        params: dict[str, Any] = {
            "net": "resnet8",
            "rounds": cls.paper_rounds,
            "per_round": 8,
            "epochs": 5,
            "labelled_batch": 128,
            "unlabelled_batch": 256,
            "optimizer": "sgd",
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "carry_momentum": True,
        }
        return cls(**(params | changes))

    # ------------------------------------------------------------------ a method's own part

    def _method(self) -> LocalMethod:
        """What a party does in a round."""
        raise NotImplementedError(f"{type(self).__name__} has no local method")

    def _aggregate(self) -> Aggregate | None:
        """How updates become the next model; None averages them by rows (FedAvg)."""
        return None

    def _settings(self) -> RoundSettings:
        optimizer = OptimizerSpec(self.optimizer, self.lr, self.weight_decay, self.momentum)
        return RoundSettings(
            epochs=self.epochs,
            labelled_batch=self.labelled_batch,
            unlabelled_batch=self.unlabelled_batch,
            steps_per_epoch=self.steps_per_epoch,
            optimizer=optimizer,
            prox=self.prox,
            carry_momentum=self.carry_momentum,
            precision=self.precision,
        )

    def _check(self) -> None:
        """Raise all that is wrong with the parameters at once."""
        problems = []
        for name in ("rounds", "per_round"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, however: {value}")
        if self.net not in NETS:
            problems.append(f"net must be one of {', '.join(NETS)}, however: {self.net!r}")
        if self.noise < 0 or not 0 <= self.drop < 1:
            problems.append(
                f"noise must not be negative and drop lie in [0, 1), however: {self.noise} and "
                f"{self.drop}"
            )
        if self.secure not in SECURE:
            problems.append(f"secure must be one of {', '.join(SECURE)}, however: {self.secure!r}")
        elif self.secure != "none" and self._aggregate() is not None:
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
        self._check()
        clients = self._clients(fed)
        folder = None if checkpoint is None else Path(checkpoint)
        history: list[dict[str, Any]] = []
        if folder is not None and resume and (folder / STATE).is_file():
            clients.load_checkpoint(folder / STATE)
            history = read_json(folder / HISTORY, "a checkpoint")[: clients.round]
        while clients.round < self.rounds:
            entry = entry_of(clients.run_round(), clients.method)
            if self.watch is not None:
                entry["accuracy"] = clients.evaluate(fed.on(self.watch))["accuracy"]
            history.append(entry)
            if progress is not None:
                progress("train", clients.round, self.rounds, _told(entry))
            due = clients.round % KEEP_EVERY == 0 or clients.round == self.rounds
            if folder is not None and due:
                # The history first: it may be longer than the state, never shorter.
                write_json(folder / HISTORY, history)
                clients.save_checkpoint(folder / STATE)
        self._adopt(fed, clients, history)
        return self

    def _clients(self, fed: Federation, common: dict[str, Any] | None = None) -> FederatedClients:
        server = self._aggregate()
        send = getattr(server, "send", None)
        options: dict[str, Any] = {}
        if self.secure != "none":
            options["mode"] = self.secure
        clients: FederatedClients = (HiddenClients if options else FederatedClients)(
            fed,
            self._method(),
            self._settings(),
            net=self.net,
            hidden=self.hidden,
            per_round=None if self.per_round is None else min(self.per_round, len(fed.names)),
            seed=self.seed,
            aggregate=server,
            extras=None if send is None else lambda name: send(clients.weights),
            noise=self.noise,
            drop=self.drop,
            flip=self.flip,
            common=common,
            **options,
        )
        return clients

    def _adopt(
        self, fed: Federation, clients: FederatedClients, history: list[dict[str, Any]]
    ) -> None:
        self.fed_ = fed
        self.clients_ = clients
        self.history_ = history
        self.classes_ = np.asarray(clients.classes)
        self.task_ = "binary" if len(clients.classes) == 2 else "multiclass"

    # ------------------------------------------------------------------ using

    def predict_proba(self, fed: Federation) -> dict[str, np.ndarray]:
        """Every party's rows in the order of its table: probabilities [n, C] as `classes_` are.

        They leave the parties for it (kind "prediction").
        """
        return self._ready(fed).probabilities(fed)

    def predict(self, fed: Federation) -> dict[str, np.ndarray]:
        """Every party's rows: classes in their own values."""
        found = self.predict_proba(fed)
        return {party: self.classes_[rows.argmax(1)] for party, rows in found.items()}

    def predict_table(self, fed: Federation) -> dict[str, pd.DataFrame]:
        """Every party's rows: prediction, p(class) and uncertainty, one line for each."""
        from fedmend.methods.outlook import frame_of

        return {
            party: frame_of(self.classes_.tolist(), rows, normalised_entropy(rows), {})
            for party, rows in self.predict_proba(fed).items()
        }

    def evaluate(self, fed: Federation) -> dict[str, float]:
        """Accuracy, macro F1 and log loss over the labelled rows of all parties together.

        The parties tell counts and sums only.
        """
        scores = self._ready(fed).evaluate(fed)
        return {name: value for name, value in scores.items() if name != "rows"}

    def uncertainty_report(self, fed: Federation) -> dict[str, Any]:
        """Whether undecided rows err more, and whether probabilities can be taken at their word.

        From counts of labelled rows that every party tells (see `fedmend.learn.tallies`).
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
        write_file(folder / MODEL, {"common": clients.common, "weights": clients.weights})
        write_json(
            folder / MANIFEST,
            {
                "method": type(self).__name__,
                "params": self.get_params(),
                "parties": list(self.fed_.names),
                "rounds": clients.round,
                "history": self.history_,
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
        saved = read_json(folder / MANIFEST, "a saved model") | {"alone": True}
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
        model._adopt(fed, clients, saved["history"])
        return model

    def to(self, fed: Federation) -> Self:
        """The same model at the parties of another federation."""
        source = self.clients_ if hasattr(self, "clients_") else None
        if source is None:
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")
        model = type(self)(**self.get_params())
        clients = model._clients(fed, source.common)
        clients.weights, clients.round = source.weights, source.round
        model._adopt(fed, clients, list(self.history_))
        return model

    # ------------------------------------------------------------------ all clients in one process

    def simulator(
        self, pools: Sequence[Pool], net: NetSpec, *, device: str = "auto", mode: str = "auto"
    ) -> Simulator:
        """The same rounds without parties, on one device: for benchmarks and large studies."""
        server = self._aggregate()
        send = getattr(server, "send", None)
        simulator = Simulator(
            pools,
            net,
            self._method(),
            self._settings(),
            per_round=self.per_round,
            seed=self.seed,
            device=device,
            mode=mode,
            aggregate=server,
            extras=None if send is None else lambda name: send(simulator.weights),
        )
        return simulator


def entry_of(report: RoundReport, method: LocalMethod) -> dict[str, Any]:
    """A round's report as an entry of the history; what is not known is None."""
    known: tuple[str, ...] = ()
    if method.uses_unlabelled:
        known = ("utilisation", "pseudo_accuracy")
    known += ("confidence_gap",) if method.uses_world else ()
    return {
        "round": report.number,
        "clients": list(report.clients),
        "loss": _known(report.loss),
        **{key: _known(getattr(report, key)) for key in known},
        "per_client": [_plain(each, known) for each in report.per_client],
    }


def _plain(facts: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    facts = facts | {
        "loss": facts["loss_labelled"] + facts["loss_unlabelled"],
        "confidence_gap": facts["gap"],
    }
    names = ("client", "rows", "steps", "loss", "loss_labelled", "loss_unlabelled", *known)
    if "confidence_gap" in known:
        names += ("confidence_local", "confidence_world")
    return {name: _known(facts[name]) for name in names}


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _told(entry: dict[str, Any]) -> dict[str, float]:
    names = ("loss", "utilisation", "accuracy")
    return {name: entry[name] for name in names if entry.get(name) is not None}
