"""Horizontal federated training: the same columns, different people.

In a round some parties train the common model on their own rows, and the coordinator averages what
comes back (`FederatedClients`); what a party does with its labelled and unlabelled rows is the
method's. The estimator is what all methods share: parameters, rounds, use and keeping.

    clients = FederatedClients(fed, PseudoMethod("sage"), RoundSettings(epochs=1))
    for _ in range(20):
        report = clients.run_round()
    clients.evaluate(fed.on("test"))

What each role learns
- The coordinator: names and kinds of the columns, the categories and classes that occur, count,
  mean and variance of each number, every drawn party's weights after its round, means over a
  round's rows (losses, shares of pseudo-labels), and sums over all parties of what is lost on the
  rows held out. Weights say much about the rows they were trained on.
- A party: the common encoding, and the averaged weights.
With `HiddenClients` no party's weights come to light: the coordinator gets their average only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedmend._parameters import Rules, at_least, one_of, parameters, wrong_values
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, ResumeError
from fedmend.federation import COORDINATOR, Each, Federation, WorkerGroup
from fedmend.federation.bound import declare
from fedmend.learn.metrics import as_share, expected_error
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.contract import Estimator, frame_of
from fedmend.methods.horizontal.encoding import (
    common_classes,
    common_encoder,
    common_schema,
    views_of,
)
from fedmend.methods.horizontal.length import UNJUDGED, UNSURE, Judges, Length
from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.networks import KINDS, NetSpec, initial_weights
from fedmend.methods.horizontal.rounds import (
    Pool,
    RoundAverage,
    RoundReport,
    RoundSettings,
    Server,
    Trainer,
    Update,
    draw_clients,
)
from fedmend.methods.horizontal.tallies import describe_tallies, scale_of, scores_of, unpacked
from fedmend.methods.horizontal.worker import (
    HELD_OUT,
    JUDGED,
    LIMIT,
    MODEL,
    UPDATE,
    ClientWorker,
    HiddenClientWorker,
    ModelKeeper,
    believed,
)
from fedmend.secure.sums import SumSession, SumWorker
from fedmend.split.config import resolve_device
from fedmend.split.labels import account_of
from fedmend.split.parts import (
    MANIFEST,
    begin_model,
    read_file,
    read_json,
    write_file,
    write_json,
)
from fedmend.split.training import Progress

FRACTION_BITS = 32
# No party's counts, or sums of squared log odds, go further.
JUDGING = float(1 << 36)


class FederatedClients:
    """The coordinator's half: what is common to all, rounds, evaluation, checkpoints.

    net: "auto" (tables "mlp", images "resnet8"), "mlp", "cnn" or "resnet8";
    hidden, width: of its layers. per_round: parties drawn for a round, None for all.
    server: how updates become the next weights, and what goes to clients besides (FedAvg).
    average_rounds: use the mean of the models over about so many rounds (`averaged`) instead of the
    last one; training goes on from the last one (`weights`).
    flip: images may be mirrored. common: `common` of earlier clients, to go on with their encoding
    and network.
    label_dp: ε of randomised response, through which a training knows labels. temperature: by
    which the logarithms of all predictions are divided. judges: some labelled rows are not trained
    on; `held_out_losses` judges by them, and `best` is the best model so far.
    folder: where parties without a home keep draws; privacy: what was reported with which ε.
    told: what happened in the training that people should know; notes: of the last scores, too.
    """

    worker_type: ClassVar[type[ClientWorker]] = ClientWorker

    def __init__(
        self,
        fed: Federation,
        method: LocalMethod,
        settings: RoundSettings | None = None,
        *,
        net: str = "auto",
        hidden: Sequence[int] = (64,),
        width: int = 64,
        per_round: int | None = None,
        seed: int | None = None,
        server: Server | None = None,
        flip: bool = True,
        common: Mapping[str, Any] | None = None,
        average_rounds: int | None = None,
        label_dp: float | None = None,
        temperature: float | None = None,
        judges: bool = False,
    ) -> None:
        self.fed, self.method = fed, method
        self.settings = settings or RoundSettings()
        self.per_round = per_round
        self.seed = fed.seed if seed is None else seed
        draw_clients(fed.names, per_round, self.seed, 0)
        self.run = f"clients-{secrets.token_hex(6)}"
        self.label_dp = label_dp
        self.folder: Path | None = None
        self.privacy: dict[str, Any] | None = None
        self._groups: dict[str, WorkerGroup] = {}
        self._told: WorkerGroup | None = None
        self.told: list[str] = []
        self.notes: list[str] = []
        self.server = server or Server()
        if common is None:
            common = self._agree({"flip": flip}, net, hidden, width)
        self.common = {
            **common,
            "settings": self.settings.to_dict(),
            "method": method.to_dict(),
            "seed": self.seed,
            "held out of": fed.scope if judges else None,
        }
        if temperature is not None:
            self.common["temperature"] = temperature
        self.net = NetSpec.from_dict(self.common["net"])
        self.weights = initial_weights(self.net, self.seed).to(self.settings.dtype)
        self.round = 0
        self.best: Tensor | None = None
        self.mean = None if average_rounds is None else RoundAverage(average_rounds)

    @property
    def classes(self) -> list[Any]:
        """The label's values, in the order of the probabilities."""
        return list(self.common["classes"])

    # ------------------------------------------------------------------ what is common

    def _agree(
        self, views: dict[str, Any], net: str, hidden: Sequence[int], width: int
    ) -> dict[str, Any]:
        with self.fed.workers(ClientWorker, run=self.run) as workers:
            described = workers.columns()
            schema = common_schema(described)
            label, classes = common_classes(described)
            found = workers.moments(schema.to_dict())
        dtype = "float64" if self.settings.precision == "float64" else "float32"
        encoder = common_encoder(schema, found, dtype)
        spec = _net_for(Encoder.from_dict(encoder), net, hidden, width, len(classes))
        return {
            "encoder": encoder,
            "label": label,
            "classes": classes,
            "net": spec.to_dict(),
            "views": views,
        }

    def _workers(self, fed: Federation) -> WorkerGroup:
        """Prepared workers on the rows of this federation, kept for the next time."""
        if fed.scope not in self._groups:
            workers = fed.workers(self.worker_type, run=self.run)
            self._groups[fed.scope] = workers
            workers.prepare(self.common)
        return self._groups[fed.scope]

    def _training(self) -> WorkerGroup:
        """Those that train; under randomised response, apart from those that evaluate."""
        if self.label_dp is None:
            return self._workers(self.fed)
        if self._told is None:
            workers = self._told = self.fed.workers(self.worker_type, run=self.run)
            folder = None if self.folder is None else str(self.folder)
            told = workers.tell_labels(float(self.label_dp), self.classes, folder)
            self.privacy = account_of({name: each for name, each in told.items() if each})
            workers.prepare(self.common)
        return self._told

    # ------------------------------------------------------------------ rounds

    def run_round(self) -> RoundReport:
        """Draw parties, let them train, average what they send back."""
        number = self.round + 1
        names = draw_clients(self.fed.names, self.per_round, self.seed, number)
        updates = self._train(names, number)
        weights = torch.stack([update.weights for update in updates])
        rows = [update.rows for update in updates]
        extras = [update.extras for update in updates]
        warm = number <= self.settings.warmup
        server = Server() if warm else self.server
        self.weights = server(weights, rows, extras, self.weights)
        self._arrive(number)
        return RoundReport.of(number, updates)

    def _arrive(self, number: int) -> None:
        """A round is over; its model is taken into the mean."""
        self.round = number
        if self.mean is not None:
            self.mean.add(self.weights)

    def _train(self, names: Sequence[str], number: int) -> list[Update]:
        sent = self.server.send(self.weights) if number > self.settings.warmup else {}
        done = self._drawn(names).train_round(self.weights, number, sent or None)
        told = ("weights", "rows", "steps", "measures", "extras")
        return [Update(name, *(done[name][key] for key in told)) for name in names]

    def _drawn(self, names: Sequence[str]) -> WorkerGroup:
        handles = self._training()._handles
        return WorkerGroup(
            self.fed.engine, self.worker_type, {name: handles[name] for name in names}
        )

    # ------------------------------------------------------------------ using

    def can_judge(self) -> bool:
        """Whether any party holds rows out, and their sum is not that of one party."""
        return len(self.fed.names) > 1 and any(self._training().holds_out().values())

    def held_out_losses(self, session: SumSession) -> np.ndarray:
        """The sum of `length.losses_of` all parties' held-out rows, in `session`'s secure sum."""
        self._training().offer_held(self.averaged)
        return session.sum(HELD_OUT, between=(-JUDGING, JUDGING), fraction_bits=20).values

    @property
    def averaged(self) -> Tensor:
        """The model in use: the mean over rounds where it is asked for, else the last one's."""
        kept = None if self.mean is None else self.mean.weights
        return self.weights if kept is None else kept

    def evaluate(self, fed: Federation | None = None) -> dict[str, float]:
        """Accuracy, AUC, macro F1 and log loss over the labelled rows of all parties together.

        From counts the parties tell; the AUC to the width of its bins (`learn.tallies.ranks`).
        """
        workers = self._workers(fed or self.fed)
        scale = scale_of(list(workers.odds(self.averaged).values()))
        found = workers.confusion(self.averaged, scale)
        counts = self._counts(found)
        places, alike, loss = (
            sum(each[key] for each in found.values()) for key in ("ranks", "selves", "log_loss")
        )
        return scores_of(counts, places, alike, loss)

    def judge(self, fed: Federation) -> dict[str, float]:
        """The same by secure sums: no party's own counts come to light.

        Nothing where no party has as many labelled rows as the most cautious policy asks for.
        """
        workers = self._workers(fed)
        # What is summed was admitted where it was offered. These workers look at the training
        # table: one to judge by may be too small for any answer, and its party's part is zero.
        with SumSession(self.fed.workers(SumWorker)) as session:

            def total() -> np.ndarray:
                return session.sum(JUDGED, between=(-JUDGING, JUDGING), fraction_bits=20).values

            least = max(workers.offer_rows().values())
            if round(float(total()[0])) < least:
                return {}
            workers.offer_judged(self.averaged)
            scale = scale_of([total()])
            workers.offer_judged(self.averaged, scale)
            return scores_of(*unpacked(total(), len(self.classes)))

    def accuracies(self, fed: Federation | None = None) -> tuple[float, dict[str, float]]:
        """The share of labelled rows that are right, and of each party's own, where it has some."""
        found = self._workers(fed or self.fed).confusion(self.averaged)
        counts = self._counts(found)
        parts = {name: each["counts"] for name, each in found.items()}
        own = {name: as_share(np.trace(n) / n.sum()) for name, n in parts.items() if n.any()}
        return as_share(np.trace(counts) / round(float(counts.sum()))), own

    def _counts(self, told: Mapping[str, dict[str, Any]]) -> np.ndarray:
        """Counts [truth, predicted] of all parties; `notes` says which are in no score."""
        parts = {name: each["counts"] for name, each in told.items()}
        few = [name for name, each in parts.items() if not each.any()]
        if len(few) == len(parts):
            raise DataError(
                "no party has a labelled row here, or enough of them to tell a score of",
                mend="give tables with labels to evaluate on, each with as many as its policy's "
                "min_rows asks for (10 by default)",
            )
        said = "no labelled row there, or fewer than its policy's min_rows"
        without = [f"the scores are without {', '.join(few)}: {said}"] if few else []
        self.notes = [*self.told, *without]
        return np.asarray(np.sum(list(parts.values()), axis=0))

    def uncertainty_report(self, fed: Federation | None = None) -> dict[str, Any]:
        """Whether undecided rows err more, from the parties' counts of labelled rows."""
        found = self._workers(fed or self.fed).tallies(self.averaged)
        return describe_tallies(list(found.values()))

    def probabilities(self, fed: Federation | None = None) -> dict[str, np.ndarray]:
        """Each party's rows in its own order, where it lets them out. **Shape** [n, K] each."""
        return self._workers(fed or self.fed).predict(self.averaged)

    def predict_here(self, fed: Federation | None = None) -> dict[str, int]:
        """Let each party predict its rows and keep what it finds; how many there are."""
        return self._workers(fed or self.fed).predict_here(self.averaged)

    def probabilities_of(self, table: Table) -> np.ndarray:
        """Rows of the coordinator's own. **Shape** [n, K]."""
        device = resolve_device(self.fed.device)
        trainer = Trainer(self.net, self.method, self.settings, device)
        pool = Pool(views_of(table, self.common, COORDINATOR), np.full(len(table), -1, np.int64))
        start = self.averaged.to(device, self.settings.dtype)
        ready = pool.to(device, self.settings)
        found = trainer.probabilities(ready.views, start).float().cpu().numpy()
        return believed(found, self.common)

    def close(self) -> None:
        """Stop the workers."""
        for workers in [*self._groups.values(), *([self._told] if self._told else [])]:
            workers.stop()
        self._groups.clear()
        self._told = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ checkpoints

    def fingerprint(self) -> str:
        """What must be the same for a run to go on from a checkpoint."""
        facts: dict[str, Any] = {
            "common": {key: each for key, each in self.common.items() if key != "temperature"},
            "per_round": self.per_round,
            "parties": self.fed.names,
        }
        if self.label_dp is not None:
            facts["label_dp"] = self.label_dp
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the coordinator's part here; the parties keep theirs on their own disks."""
        self._training().save_state(_parties_part(path), self.round)
        state = {
            "run": self.fingerprint(),
            "round": self.round,
            "weights": self.weights,
            "server": {key: value.detach().cpu() for key, value in self.server.state().items()},
            "mean": {} if self.mean is None else self.mean.state(),
            "best": {} if self.best is None else {"weights": self.best},
        }
        write_file(Path(path), state)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint of this run, at the parties too, and go on from it."""
        saved = read_file(Path(path))
        if saved.get("run") != self.fingerprint():
            raise ResumeError(
                "the checkpoint belongs to another run (other parties, columns, method, settings "
                "or seed). Mend: give the same ones, or start afresh"
            )
        self.round, self.weights = int(saved["round"]), saved["weights"]
        self.server.restore(saved["server"])
        if self.mean is not None:
            self.mean.restore(saved.get("mean", {}), self.weights)
        self.best = saved.get("best", {}).get("weights")
        self._training().load_state(_parties_part(path), self.round)


class HiddenClients(FederatedClients):
    """Averages under masks ("masks") or encryption ("he"), by secure sums of the parties' changes.

    The average is FedAvg's, but for rounding to 2^-32. With two parties in a round each of them can
    tell the other's part from the average.
    """

    worker_type: ClassVar[type[ClientWorker]] = HiddenClientWorker

    def __init__(self, fed: Federation, *args: Any, mode: str = "masks", **options: Any) -> None:
        super().__init__(fed, *args, **options)
        if min(self.per_round or len(fed.names), len(fed.names)) < 2:
            raise ConfigError("a sum over one party is that party's. Mend: at least two in a round")
        self.mode = mode
        self._sessions: dict[tuple[str, ...], SumSession] = {}
        self._summing: WorkerGroup | None = None

    def run_round(self) -> RoundReport:
        """Draw parties, let them train, and learn the average of what they know then."""
        number = self.round + 1
        names = draw_clients(self.fed.names, self.per_round, self.seed, number)
        drawn = self._drawn(names)
        told = drawn.train_hidden(self.weights, number)
        rows = {name: int(told[name]["rows"]) for name in names}
        total = sum(rows.values())
        if total:
            drawn.offer(Each({name: rows[name] / total for name in names}))
            found = self._session(names).sum(
                UPDATE, between=(-LIMIT, LIMIT), fraction_bits=FRACTION_BITS
            )
            change = torch.from_numpy(found.values)
            self.weights = (self.weights.double() + change).to(self.settings.dtype)
        self._arrive(number)
        updates = [
            Update(name, self.weights, rows[name], int(each["steps"]), each["measures"])
            for name, each in told.items()
        ]
        return RoundReport.of(number, updates)

    def _session(self, names: list[str]) -> SumSession:
        """Parties that were drawn together before have exchanged their keys already."""
        if self._summing is None:
            self._summing = self.fed.workers(SumWorker)
        group = tuple(sorted(names, key=self.fed.names.index))
        if group not in self._sessions:
            self._sessions[group] = SumSession(
                self._summing,
                mode=self.mode,  # type: ignore[arg-type]
                parties=group,
            )
        return self._sessions[group]

    def close(self) -> None:
        super().close()
        self._sessions.clear()
        if self._summing is not None:
            self._summing.stop()
            self._summing = None


# ---------------------------------------------------------------------------------- parts


def _parties_part(path: str | os.PathLike[str]) -> str:
    return f"{os.fspath(path)}.parties"


def _net_for(
    encoder: Encoder, net: str, hidden: Sequence[int], width: int, classes: int
) -> NetSpec:
    """The network these columns call for."""
    shapes = encoder.block_shapes
    columns = len(encoder.numeric_names) + len(encoder.code_names)
    if not shapes:
        if net not in ("auto", "mlp"):
            raise ConfigError(
                f"net={net!r} is for images, but the clients have columns only. Mend: net='auto'"
            )
        return NetSpec(
            "mlp",
            classes,
            numeric=len(encoder.numeric_names),
            cardinalities=encoder.cardinalities,
            hidden=tuple(hidden),
        )
    if len(shapes) > 1 or columns:
        raise ConfigError(
            f"clients learn from columns or from one image, got {', '.join(encoder.schema)}. "
            "Mend: drop the others"
        )
    (name, shape), *_ = shapes.items()
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ConfigError(f"the block {name!r} of shape {shape} is no image of 1 or 3 channels")
    if net == "mlp":
        raise ConfigError("net='mlp' is for columns, but the clients have images. Mend: net='auto'")
    kind = "resnet8" if net == "auto" else net
    return NetSpec(kind, classes, channels=shape[0], width=width)


# ---------------------------------------------------------------------------------- estimator

STATE = "rounds.fmw"
HISTORY = "history.json"
TRIAL = "length"  # the folder of rounds without the rows held out
# Rounds between two checkpoints.
KEEP_EVERY = 5
SECURE = ("none", "masks", "he")
NETS = ("auto", *KINDS)
RULES: Rules = {
    "rounds": at_least(1),
    "per_round": ("at least 1", lambda value: value is None or value >= 1),
    "average_rounds": ("at least 1", lambda value: value is None or value >= 1),
    "patience": ("at least 1 or None", lambda value: value is None or value >= 1),
    "net": one_of(NETS),
    "label_dp": ("a positive ε or None", lambda value: value is None or 0 < value < math.inf),
    "secure": one_of(SECURE),
}


@parameters
class HorizontalEstimator(Estimator):
    """One model for parties with the same columns, behind fit / predict / evaluate / save / load.

    net: "auto" (a table: "mlp"; images: "resnet8"), "mlp", "cnn" or "resnet8"; hidden: layers of
    an mlp. rounds: rounds of averaging, at most; per_round: parties drawn for each, None for all.
    patience: rounds in which held-out rows are not predicted better, before the number of rounds
    (and how far predictions are to be believed) is settled; the model is then trained on all rows
    for as many. None trains for all `rounds`, and believes what is predicted.
    epochs: a party's round is `epochs` times a step for every batch_size of its rows. batch_size:
    labelled rows of a step, beside twice as many unlabelled ones.
    warmup: the first so many rounds learn from labelled rows only, so that pseudo-labels come from
    a model that knows something already (ours; see docs/sage.md for when it pays).
    average_rounds: the model told, saved and predicted with is the mean of the common models over
    about so many rounds (newer ones count more), which swings less from round to round; training
    goes on from the last one. None: the last one (ours; see docs/sage.md for when it pays).
    lr, weight_decay: of SGD with momentum 0.9. flip: images may be mirrored.
    secure: "none" (the coordinator sees every party's weights), or "masks" or "he": it learns their
    average only, by a secure sum. Not for methods that look at single updates (FedDB, FedMatch).
    label_dp: ε of randomised response at every party, through which alone the training knows its
    labels, or None. Drawn once, and kept; what was told with which ε is `privacy_`.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "rounds": 300,
            "per_round": 8,
            "epochs": 5,
            "batch_size": 128,
            "lr": 0.1,
            "weight_decay": 1e-4,
            "patience": None,
        }
    }
    """paper: the settings of SAGE's authors for CIFAR-10; images get a ResNet-8 by
    `net = "auto"`, which has an answer for tables, too."""
    horizontal: ClassVar[bool] = True

    net: str = "auto"
    hidden: tuple[int, ...] = (64,)
    rounds: int = 50
    patience: int | None = 10
    per_round: int | None = None
    warmup: int = 0
    epochs: int = 5
    batch_size: int = 32
    lr: float = 0.05
    weight_decay: float = 1e-4
    average_rounds: int | None = None
    flip: bool = True
    precision: str = "float32"
    secure: str = "none"
    seed: int = 0
    label_dp: float | None = None

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of SAGE's authors for CIFAR-10."""
        return cls.preset("paper", **changes)

    # ------------------------------------------------------------------ a method's own part

    _rules: ClassVar[Rules] = {}
    """What the method's own parameters must be."""
    _compared = False

    def _method(self) -> LocalMethod:
        """What a party does in a round."""
        raise NotImplementedError(f"{type(self).__name__} has no local method")

    def _server(self) -> Server:
        """How updates become the next model: by default they are averaged by rows (FedAvg)."""
        return Server()

    def _settings(self) -> RoundSettings:
        return RoundSettings(
            self.epochs,
            self.batch_size,
            OptimizerSpec("sgd", self.lr, self.weight_decay),
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
        for make in (self._settings, self._method):
            try:
                make()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def _clients(
        self, fed: Federation, common: dict[str, Any] | None = None, **more: Any
    ) -> FederatedClients:
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("net", "hidden", "seed", "flip", "average_rounds", "label_dp")
        }
        options |= {"server": self._server(), "common": common, **more}
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
        watch: str | None = None,
    ) -> Self:
        """Train over the parties. `progress(stage, done, total, metrics)` is told every round.

        With `checkpoint` the rounds so far are kept in that folder (and at the parties); with
        `resume` it goes on from there. watch: a further table of the parties ("test") on which
        accuracy is told after every round.
        """
        self.require_types()
        self._check()
        _require_parties(fed, "fit")
        folder = None if checkpoint is None else Path(checkpoint)
        history: list[dict[str, Any]] = []
        clients, length = self._begun(fed, folder, resume, progress)
        clients.folder = folder
        if folder is not None and resume and (folder / STATE).is_file():
            clients.load_checkpoint(folder / STATE)
            history = read_json(folder / HISTORY, "a checkpoint")[: clients.round]
        while clients.round < length.rounds:
            entry = clients.run_round().entry(clients.method, self.warmup)
            if watch is not None:
                told = clients.accuracies(fed.on(watch))
                entry["accuracy"], entry["accuracy_by_party"] = told
            history.append(entry)
            if progress is not None:
                shown = ("loss", "utilisation", "accuracy")
                facts = {name: entry[name] for name in shown if entry.get(name) is not None}
                progress("train", clients.round, length.rounds, facts)
            due = clients.round % KEEP_EVERY == 0 or clients.round == length.rounds
            if folder is not None and due:
                _keep(clients, folder, history)
        self._adopt(fed, clients, history)
        return self

    def shorten(self) -> None:
        """Train to be compared on a fold, not to be kept: not again on all rows."""
        self._compared = True

    def _begun(
        self, fed: Federation, folder: Path | None, resume: bool, progress: Progress | None
    ) -> tuple[FederatedClients, Length]:
        """Who trains, and for how long; those to be compared have done so already."""
        if self.patience is None:
            return self._clients(fed), Length(self.rounds)
        with self._clients(fed, judges=True) as trial:
            trial.folder = folder
            length = self._length(
                trial, None if folder is None else folder / TRIAL, resume, progress
            )
        clients = self._clients(fed, trial.common, temperature=length.temperature)
        clients.told = clients.notes = list(length.notes)
        if self._compared and trial.best is not None:
            clients.weights, clients.mean, clients.round = trial.best, None, length.rounds
        return clients, length

    def _length(
        self,
        trial: FederatedClients,
        folder: Path | None,
        resume: bool,
        progress: Progress | None,
    ) -> Length:
        """Rounds without the rows held out, for as long as these are predicted better."""
        if not trial.can_judge():
            return Length(min(self.rounds, UNJUDGED), notes=(UNSURE,))
        judges, told = Judges(self.patience or self.rounds), list[dict[str, float]]()
        if folder is not None and resume and (folder / STATE).is_file():
            trial.load_checkpoint(folder / STATE)
            told = read_json(folder / HISTORY, "a checkpoint")[: trial.round]
            for each in told:
                judges.add(**each)
        with SumSession(trial.fed.workers(SumWorker)) as session:
            while trial.round < self.rounds and not judges.out_of_patience:
                trial.run_round()
                if judges.hear(trial.held_out_losses(session)):
                    trial.best = trial.averaged.clone()
                loss = judges.losses[-1]
                told.append({"loss": loss, "temperature": judges.temperatures[-1]})
                if progress is not None:
                    progress("length", trial.round, self.rounds, {"val_loss": loss})
                last = trial.round == self.rounds or judges.out_of_patience
                if folder is not None and (last or trial.round % KEEP_EVERY == 0):
                    _keep(trial, folder, told)
        return judges.length

    def _adopt(
        self, fed: Federation, clients: FederatedClients, history: list[dict[str, Any]]
    ) -> None:
        self.fed_ = fed
        self.clients_ = clients
        self.history_ = history
        self.classes_ = np.asarray(clients.classes)
        self.task_ = "binary" if len(clients.classes) == 2 else "multiclass"
        self.privacy_ = clients.privacy
        self.notes_ = clients.notes

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
        self._require_fit()
        if not isinstance(rows, Table):
            raise DataError(
                f"predictions are of a Table or a Federation, not of a {type(rows).__name__}",
                mend="fm.Table.from_frame(frame) of rows of your own",
            )
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
        undecided = expected_error(probabilities)
        return frame_of(self.classes_.tolist(), probabilities, undecided, {})

    def evaluate(self, fed: Federation) -> dict[str, float]:
        """Accuracy, AUC, macro F1 and log loss over the labelled rows of all parties together.

        The parties tell counts and sums only; the AUC, for more than two classes the mean of one
        against the rest, is that of scores in 200 bins. Who has too few labelled rows to tell of
        is left out, and `notes_` says so.
        """
        scores = self._ready(fed).evaluate(fed)
        self.notes_ = self.clients_.notes
        return scores

    def judge(self, fed: Federation) -> dict[str, float]:
        """The same scores by secure sums, whose parts nobody sees; nothing of too few rows.

        ``auto`` compares methods by it, on held-out rows.
        """
        return self._ready(fed).judge(fed)

    def uncertainty_report(self, fed: Federation) -> dict[str, Any]:
        """Whether undecided rows err more, and whether probabilities can be taken at their word.

        From counts of labelled rows that every party tells (see `tallies`).
        """
        return self._ready(fed).uncertainty_report(fed)

    def score(self, fed: Federation) -> float:
        """Accuracy."""
        return self.evaluate(fed)["accuracy"]

    def _ready(self, fed: Federation) -> FederatedClients:
        self._require_fit()
        _require_parties(fed, "this")
        self._require_at(fed)
        return self.clients_

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Weights, encoding and classes in one file; `model.json` comes last and makes it one."""
        self._require_fit()
        clients, folder = self.clients_, Path(path)
        begin_model(folder)
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
        with self.fed_.workers(ModelKeeper, parties=asked) as workers:
            workers.keep(str(folder), kept, saved)
        return []

    @classmethod
    def load(cls, path: str | os.PathLike[str], fed: Federation) -> Self:
        """A saved model for the parties of `fed`, whoever they are: all have the same columns."""
        folder = Path(path)
        saved = read_json(folder / MANIFEST, "a saved model")
        model = cls._unfitted(saved, folder)
        kept = read_file(folder / MODEL)
        clients = model._clients(fed, kept["common"])
        if clients.weights.shape != kept["weights"].shape:
            raise DataError(f"{folder / MODEL} is damaged", mend="take it from a backup")
        clients.weights, clients.round = kept["weights"], int(saved["rounds"])
        clients.privacy = saved.get("privacy")
        model._adopt(fed, clients, saved["history"])
        return model


def _require_parties(fed: Any, what: str) -> None:
    """As `require_federation`, for parties that need no alignment."""
    if not isinstance(fed, Federation):
        raise DataError(
            f"{what} takes a Federation, not a {type(fed).__name__}",
            mend="fm.Federation(fm.Party(name, table), …), a table for every party",
        )


def _keep(clients: FederatedClients, folder: Path, history: Sequence[Any]) -> None:
    # The history first: it may be longer than the state, never shorter.
    write_json(folder / HISTORY, history)
    clients.save_checkpoint(folder / STATE)


def declare_rounds(name: str, *, single_updates: bool = False) -> None:
    """What a run of a method may start: rounds, averaged in the open or by a secure sum.

    single_updates: its server looks at those of single parties, so they cannot be summed.
    """
    declare(name, ClientWorker, ModelKeeper, SumWorker)
    if not single_updates:
        declare(name, HiddenClientWorker)
