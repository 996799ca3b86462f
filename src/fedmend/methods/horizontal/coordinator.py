"""Horizontal federated training over a federation: the same columns, different people.

    clients = FederatedClients(fed, PseudoMethod("sage"), RoundSettings(epochs=1))
    for _ in range(20):
        report = clients.run_round()
    clients.evaluate(fed.on("test"))

A round: some parties are drawn, each trains the common model on its own rows, and the weights that
come back are averaged.

What each role learns
- The coordinator: names and kinds of the columns, the categories and classes that occur, count,
  mean and variance of each number, every drawn party's weights after its round, and means over a
  round's rows (losses, shares of pseudo-labels). Weights say much about the rows they were
  trained on.
- A party: the common encoding, and the averaged weights. With `carry_momentum` also the previous
  party's momentum.
With `HiddenClients` no party's weights come to light: the coordinator gets their average only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedmend.data.encode import Encoder
from fedmend.errors import ConfigError, DataError, ResumeError
from fedmend.federation import COORDINATOR, Crew, Each, Federation
from fedmend.learn.metrics import as_share, f1_of
from fedmend.methods.horizontal.encoding import (
    common_classes,
    common_encoder,
    common_schema,
    views_of,
)
from fedmend.methods.horizontal.local_methods import LocalMethod
from fedmend.methods.horizontal.networks import NetSpec, initial_weights
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
from fedmend.methods.horizontal.tallies import auc_of, describe_tallies, scale_of
from fedmend.methods.horizontal.worker import LIMIT, UPDATE, ClientWorker, HiddenClientWorker
from fedmend.secure.sums import SumSession, SumWorker
from fedmend.split.halves import resolve_device
from fedmend.split.label_dp import account_of
from fedmend.split.parts import read_file, write_file

if TYPE_CHECKING:
    from fedmend.data.table import Table

__all__ = ["FederatedClients", "HiddenClients"]

FRACTION_BITS = 32


class FederatedClients:
    """The coordinator's half: what is common to all, rounds, evaluation, checkpoints.

    net: "auto" (tables "mlp", images "resnet8"), "mlp", "cnn", "resnet8", or a NetSpec;
    hidden, width: of its layers. per_round: parties drawn for a round, None for all.
    server: how updates become the next weights, and what goes to clients besides (FedAvg).
    average_rounds: use the mean of the models over about so many rounds (`averaged`) instead of the
    last one; training goes on from the last one (`weights`).
    noise, drop: strong views of table rows; flip: images may be mirrored. common: `common` of
    earlier clients, to go on with their encoding and network.
    label_dp: ε of randomised response, through which a training knows labels.
    folder: where parties without a home keep draws; privacy: what was told with which ε.
    """

    worker_type: ClassVar[type[ClientWorker]] = ClientWorker

    def __init__(
        self,
        fed: Federation,
        method: LocalMethod,
        settings: RoundSettings | None = None,
        *,
        net: str | NetSpec = "auto",
        hidden: Sequence[int] = (64,),
        width: int = 64,
        per_round: int | None = None,
        seed: int | None = None,
        server: Server | None = None,
        noise: float = 0.1,
        drop: float = 0.2,
        flip: bool = True,
        common: Mapping[str, Any] | None = None,
        average_rounds: int | None = None,
        label_dp: float | None = None,
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
        self._crews: dict[str, Crew] = {}
        self._told: Crew | None = None
        self.server = server or Server()
        if common is None:
            views = {"noise": noise, "drop": drop, "flip": flip}
            common = self._agree(views, net, hidden, width)
        self.common = {
            **common,
            "settings": self.settings.to_dict(),
            "method": method.to_dict(),
            "seed": self.seed,
        }
        self.net = NetSpec.from_dict(self.common["net"])
        self.weights = initial_weights(self.net, self.seed).to(self.settings.dtype)
        self.momentum: dict[str, Tensor] | None = None
        self.round = 0
        self.mean = None if average_rounds is None else RoundAverage(average_rounds)

    @property
    def classes(self) -> list[Any]:
        """The label's values, in the order of the probabilities."""
        return list(self.common["classes"])

    # ------------------------------------------------------------------ what is common

    def _agree(
        self, views: dict[str, Any], net: str | NetSpec, hidden: Sequence[int], width: int
    ) -> dict[str, Any]:
        with self.fed.workers(ClientWorker, run=self.run) as crew:
            described = crew.columns()
            schema = common_schema(described)
            label, classes = common_classes(described)
            found = crew.moments(schema.to_dict())
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

    def _crew(self, fed: Federation) -> Crew:
        """Prepared workers on the rows of this federation, kept for the next time."""
        if fed.scope not in self._crews:
            crew = fed.workers(self.worker_type, run=self.run)
            self._crews[fed.scope] = crew
            crew.prepare(self.common)
        return self._crews[fed.scope]

    def _training(self) -> Crew:
        """Those that train; where labels are told at random, apart from those that evaluate."""
        if self.label_dp is None:
            return self._crew(self.fed)
        if self._told is None:
            crew = self._told = self.fed.workers(self.worker_type, run=self.run)
            folder = None if self.folder is None else str(self.folder)
            told = crew.tell_labels(float(self.label_dp), self.classes, folder)
            self.privacy = account_of({name: each for name, each in told.items() if each})
            crew.prepare(self.common)
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
        if not self.settings.carry_momentum:
            done = self._drawn(names).train_round(self.weights, number, sent or None)
        else:
            crew, done = self._training(), {}
            for name in names:
                momentum = self.momentum
                done[name] = crew[name].train_round(self.weights, number, sent or None, momentum)
                self.momentum = done[name]["momentum"]
        told = ("weights", "rows", "steps", "measures", "extras")
        return [Update(name, *(done[name][key] for key in told)) for name in names]

    def _drawn(self, names: Sequence[str]) -> Crew:
        handles = self._training()._handles
        return Crew(self.fed.engine, self.worker_type, {name: handles[name] for name in names})

    # ------------------------------------------------------------------ using

    @property
    def averaged(self) -> Tensor:
        """The model in use: the mean over rounds where it is asked for, else the last one's."""
        kept = None if self.mean is None else self.mean.weights
        return self.weights if kept is None else kept

    def evaluate(self, fed: Federation | None = None) -> dict[str, float]:
        """Accuracy, AUC, macro F1 and log loss over the labelled rows of all parties together.

        From counts the parties tell; the AUC to the width of its bins (`learn.tallies.ranks`).
        """
        crew = self._crew(fed or self.fed)
        scale = scale_of(list(crew.odds(self.averaged).values()))
        found, counts, rows = _confusion(crew.confusion(self.averaged, scale))
        return {
            "accuracy": as_share(np.trace(counts) / rows),
            "auc": auc_of(
                sum(each["ranks"] for each in found), sum(each["selves"] for each in found)
            ),
            "f1": as_share(f1_of(counts)),
            "log_loss": max(0.0, sum(each["log_loss"] for each in found) / rows),
            "rows": float(rows),
        }

    def accuracy(self, fed: Federation | None = None) -> float:
        """The share of labelled rows that are right."""
        return self.accuracies(fed)[0]

    def accuracies(self, fed: Federation | None = None) -> tuple[float, dict[str, float]]:
        """The same, and of each party's own rows, where it has labelled ones."""
        found = self._crew(fed or self.fed).confusion(self.averaged)
        _, counts, rows = _confusion(found)
        parts = {name: each["counts"] for name, each in found.items()}
        own = {name: as_share(np.trace(n) / n.sum()) for name, n in parts.items() if n.any()}
        return as_share(np.trace(counts) / rows), own

    def uncertainty_report(self, fed: Federation | None = None) -> dict[str, Any]:
        """Whether undecided rows err more, from the parties' counts of labelled rows."""
        found = self._crew(fed or self.fed).tallies(self.averaged)
        return describe_tallies(list(found.values()))

    def probabilities(self, fed: Federation | None = None) -> dict[str, np.ndarray]:
        """Each party's rows in its own order, where it lets them out. **Shape** [n, K] each."""
        return self._crew(fed or self.fed).predict(self.averaged)

    def predict_here(self, fed: Federation | None = None) -> dict[str, int]:
        """Let each party predict its rows and keep what it finds; how many there are."""
        return self._crew(fed or self.fed).predict_here(self.averaged)

    def probabilities_of(self, table: Table) -> np.ndarray:
        """Rows of the coordinator's own. **Shape** [n, K]."""
        device = resolve_device(self.fed.device)
        trainer = Trainer(self.net, self.method, self.settings, device)
        pool = Pool(views_of(table, self.common, COORDINATOR), np.full(len(table), -1, np.int64))
        start = self.averaged.to(device, self.settings.dtype)
        ready = pool.to(device, self.settings)
        return trainer.probabilities(ready.views, start).float().cpu().numpy()

    def close(self) -> None:
        """Stop the workers."""
        for crew in [*self._crews.values(), *([self._told] if self._told else [])]:
            crew.stop()
        self._crews.clear()
        self._told = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ checkpoints

    def fingerprint(self) -> str:
        """What must be the same for a run to go on from a checkpoint."""
        facts: dict[str, Any] = {
            "common": self.common,
            "per_round": self.per_round,
            "parties": self.fed.names,
        }
        if self.label_dp is not None:
            facts["label_dp"] = self.label_dp
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def checkpoint(self) -> dict[str, Any]:
        """The coordinator's part of a run, as wire values."""
        return {
            "run": self.fingerprint(),
            "round": self.round,
            "weights": self.weights,
            "momentum": self.momentum,
            "server": {key: value.detach().cpu() for key, value in self.server.state().items()},
            "mean": {} if self.mean is None else self.mean.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of this run."""
        if saved.get("run") != self.fingerprint():
            raise ResumeError(
                "the checkpoint belongs to another run (other parties, columns, method, settings "
                "or seed). Mend: give the same ones, or start afresh"
            )
        self.round, self.weights = int(saved["round"]), saved["weights"]
        self.momentum = saved["momentum"]
        self.server.restore(saved["server"])
        if self.mean is not None:
            self.mean.restore(saved.get("mean", {}), self.weights)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Write the coordinator's part here; the parties keep theirs on their own disks."""
        self._training().save_state(_parties_part(path), self.round)
        write_file(Path(path), self.checkpoint())
        return Path(path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint, at the parties too, and go on from it."""
        self.restore(read_file(Path(path)))
        self._training().load_state(_parties_part(path), self.round)


class HiddenClients(FederatedClients):
    """Averages under masks ("masks") or encryption ("he"), by secure sums of the parties' changes.

    The average is FedAvg's, but for rounding to 2^-32. With two parties in a round each of them can
    tell the other's part from the average.
    """

    worker_type: ClassVar[type[ClientWorker]] = HiddenClientWorker

    def __init__(self, fed: Federation, *args: Any, mode: str = "masks", **options: Any) -> None:
        super().__init__(fed, *args, **options)
        problems = []
        if mode not in ("masks", "he"):
            problems.append(f"secure must be 'none', 'masks' or 'he', got {mode!r}")
        if type(self.server) is not Server:
            problems.append(
                "secure averaging is FedAvg's; this method looks at single parties' updates. "
                "Mend: secure='none', or another method"
            )
        if self.settings.carry_momentum:
            problems.append("carry_momentum sends a party's momentum on. Mend: switch it off")
        if min(self.per_round or len(fed.names), len(fed.names)) < 2:
            problems.append("a sum over one party is that party's. Mend: at least two in a round")
        if problems:
            raise ConfigError(problems)
        self.mode = mode
        self._sessions: dict[tuple[str, ...], SumSession] = {}
        self._summing: Crew | None = None

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
    encoder: Encoder, net: str | NetSpec, hidden: Sequence[int], width: int, classes: int
) -> NetSpec:
    """The network these columns call for."""
    shapes = encoder.block_shapes
    columns = len(encoder.numeric_names) + len(encoder.code_names)
    if isinstance(net, NetSpec):
        return net
    if not shapes:
        if net not in ("auto", "mlp"):
            raise ConfigError(f"net={net!r} is for images, but the clients have columns only")
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
        raise ConfigError("net='mlp' is for columns, but the clients have images")
    kind = "resnet8" if net == "auto" else net
    return NetSpec(kind, classes, channels=shape[0], width=width)


def _confusion(
    told: Mapping[str, dict[str, Any]],
) -> tuple[list[dict[str, Any]], np.ndarray, int]:
    """What each party tells, counts [truth, predicted] of all of them, and how many rows."""
    counts = np.sum([each["counts"] for each in told.values()], axis=0)
    rows = round(float(counts.sum()))  # estimates of counts add up to as many
    if not rows:
        raise DataError(
            "no party has a labelled row here, or enough of them to tell a score of",
            mend="give tables with labels to evaluate on, each with as many as its policy's "
            "min_rows asks for (10 by default)",
        )
    return list(told.values()), counts, rows
