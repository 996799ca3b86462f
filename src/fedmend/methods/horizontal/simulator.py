"""Many clients in one process on one device: FedAvg rounds without parties, wire or ledger.

    simulator = Simulator(pools, NetSpec("resnet8", 10, channels=3), PseudoMethod("sage"),
                          RoundSettings(precision="bf16"), per_round=8, device="cuda")
    report = simulator.run_round()
    simulator.accuracy(test_views, test_labels)

The numbers are those of the same rounds over a federation (`federated.py`); the tests compare them.
All state of a run is its round, the weights, what clients keep, and the momentum where that is
carried; every random number follows from the seed, the round and the client. So a checkpoint is a
small file, and a run goes on as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedmend.errors import ConfigError, ResumeError
from fedmend.methods.horizontal.local_methods import LocalMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec, initial_weights
from fedmend.methods.horizontal.round_average import RoundAverage
from fedmend.methods.horizontal.rounds import (
    Aggregate,
    Pool,
    RoundReport,
    RoundSettings,
    Update,
    average,
    draw_clients,
    restore_server,
    round_generator,
    server_state,
)
from fedmend.methods.horizontal.row_views import ImageViews, Views
from fedmend.methods.horizontal.stacked import StackedTrainer, can_stack
from fedmend.methods.horizontal.trainer import Trainer
from fedmend.split.halves import resolve_device
from fedmend.split.parts import read_file, write_file

__all__ = ["MODES", "Pool", "Simulator"]

MODES = ("auto", "loop", "stacked")

V = TypeVar("V", bound=Views)


class Simulator:
    """Clients, a global model, and rounds.

    per_round: how many clients are drawn for a round; None takes all.
    mode: "loop" trains one client after another, "stacked" all of a round side by side (networks
    for tables); "auto" stacks where that can be done.
    capture: on a GPU, replay captured steps; None where the method allows it.
    aggregate: how updates become the next weights; FedAvg by default.
    extras: what the server sends a client besides the weights, asked for before its round.
    average_rounds: use the mean of the common models over about so many rounds (`averaged`) instead
    of the last one; training goes on from the last one (`weights`).
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        net: NetSpec,
        method: LocalMethod,
        settings: RoundSettings | None = None,
        *,
        per_round: int | None = None,
        seed: int = 0,
        device: str = "auto",
        mode: str = "auto",
        capture: bool | None = None,
        aggregate: Aggregate | None = None,
        extras: Callable[[str], dict[str, Tensor]] | None = None,
        average_rounds: int | None = None,
    ) -> None:
        self.settings = settings or RoundSettings()
        self.net, self.method, self.per_round, self.seed = net, method, per_round, seed
        self.device = resolve_device(device)
        moved: dict[int, Views] = {}
        self.pools = {pool.name: pool.to(self.device, self.settings, moved) for pool in pools}
        self._check(pools, mode)
        self.mode = mode
        if mode == "auto":
            stacks = can_stack(net, method, self.settings.carry_momentum)
            self.mode = "stacked" if stacks else "loop"
        self.trainer = Trainer(net, method, self.settings, self.device, capture=capture)
        self._stacked = StackedTrainer(self.trainer) if self.mode == "stacked" else None
        self._warm: Trainer | None = None
        self._aggregate = aggregate or average
        self._extras = extras
        start = initial_weights(net, seed)
        self.weights = start.to(self.device, self.settings.dtype)
        self.round = 0
        self.mean = None if average_rounds is None else RoundAverage(average_rounds)
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in self.pools}

    def _check(self, pools: Sequence[Pool], mode: str) -> None:
        problems = []
        if not pools:
            problems.append("a simulation needs a client. Mend: give it a pool")
        if len(self.pools) != len(pools):
            problems.append("two clients have one name. Mend: Pool(…, name=…)")
        if mode not in MODES:
            problems.append(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        carries = self.settings.carry_momentum
        if mode == "stacked" and not can_stack(self.net, self.method, carries):
            problems.append(
                f"mode='stacked' is for mlp networks and row-wise methods without carry_momentum, "
                f"got {self.net.kind}, {self.method.name!r}. Mend: mode='auto'"
            )
        for pool in pools:
            highest = int(pool.labels.max())
            if highest >= self.net.classes:
                problems.append(
                    f"client {pool.name!r}: a label is {highest}, but there are "
                    f"{self.net.classes} classes"
                )
        if pools:
            draw_clients(list(self.pools), self.per_round, self.seed, 0)
        if problems:
            raise ConfigError(problems)

    # ------------------------------------------------------------------ rounds

    def run_round(self) -> RoundReport:
        """Draw clients, train them, average what they have learnt."""
        number = self.round + 1
        names = draw_clients(list(self.pools), self.per_round, self.seed, number)
        warm = number <= self.settings.warmup
        updates = self._warm_up(names, number) if warm else self._train(names, number)
        weights = torch.stack([update.weights for update in updates])
        rows = [update.rows for update in updates]
        self.weights = (average if warm else self._aggregate)(
            weights, rows, [update.extras for update in updates], self.weights
        )
        self.round = number
        if self.mean is not None:
            self.mean.add(self.weights)
        return RoundReport.of(number, updates)

    def _train(self, names: Sequence[str], number: int) -> list[Update]:
        pools = [self.pools[name] for name in names]
        generators = [round_generator(self.seed, name, number) for name in names]
        if self._stacked is not None:
            return self._stacked.train(pools, self.weights, generators)
        updates = []
        for pool, generator in zip(pools, generators, strict=True):
            extras = self._extras(pool.name) if self._extras is not None else None
            state = self.states[pool.name]
            updates.append(
                self.trainer.train(pool, self.weights, generator, state=state, extras=extras)
            )
        return updates

    def _warm_up(self, names: Sequence[str], number: int) -> list[Update]:
        """A round on labelled rows only."""
        if self._warm is None:
            self._warm = Trainer(self.net, Supervised(), self.settings, self.device)
        pools = [self.pools[name] for name in names]
        generators = [round_generator(self.seed, name, number) for name in names]
        if self._stacked is not None:
            return StackedTrainer(self._warm).train(pools, self.weights, generators)
        return [
            self._warm.train(pool, self.weights, generator)
            for pool, generator in zip(pools, generators, strict=True)
        ]

    # ------------------------------------------------------------------ using

    @property
    def averaged(self) -> Tensor:
        """The model in use: the mean over rounds where it is asked for, else the last one's."""
        kept = None if self.mean is None else self.mean.weights
        return self.weights if kept is None else kept

    def probabilities(self, views: Views, weights: Tensor | None = None) -> Tensor:
        """What the global model says of these rows, or one of other weights. **Shape** [n, K]."""
        used = self.averaged if weights is None else weights
        return self.trainer.probabilities(self.ready(views), used)

    def ready(self, views: V) -> V:
        """Rows on the device of this simulator; moved once if they are tested often."""
        images = isinstance(views, ImageViews)
        return views.to(self.device, self.settings.image_dtype if images else self.settings.dtype)

    def accuracy(self, views: Views, labels: Any, weights: Tensor | None = None) -> float:
        """The share of rows whose largest probability is at their label."""
        truth = torch.as_tensor(labels, dtype=torch.int64, device=self.device)
        return float((self.probabilities(views, weights).argmax(1) == truth).double().mean())

    # ------------------------------------------------------------------ checkpoints

    def fingerprint(self) -> str:
        """What must be the same for a run to go on from a checkpoint."""
        sizes = {
            name: [len(pool.labelled), len(pool.unlabelled)] for name, pool in self.pools.items()
        }
        facts = {
            "net": self.net.to_dict(),
            "method": self.method.to_dict(),
            "settings": self.settings.to_dict(),
            "per_round": self.per_round,
            "seed": self.seed,
            "clients": sizes,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def checkpoint(self) -> dict[str, Any]:
        """All that a run needs to go on, as wire values."""
        momentum = {}
        if self.settings.carry_momentum:
            momentum = _on_cpu(self.trainer.net.optimizer.state())
        return {
            "run": self.fingerprint(),
            "round": self.round,
            "weights": self.weights.cpu(),
            "momentum": momentum,
            "states": {name: _on_cpu(state) for name, state in self.states.items() if state},
            "server": server_state(self._aggregate),
            "mean": {} if self.mean is None else self.mean.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of this run, on whatever device."""
        if saved.get("run") != self.fingerprint():
            raise ResumeError(
                "the checkpoint belongs to another run (other clients, network, method, settings "
                "or seed). Mend: give the same ones, or start afresh"
            )
        self.round = int(saved["round"])
        self.weights = saved["weights"].to(self.device, self.settings.dtype)
        if self.settings.carry_momentum:
            self.trainer.net.optimizer.restore(saved["momentum"])
        self.states = {name: {} for name in self.pools}
        for name, state in saved["states"].items():
            self.states[name] = {key: value.to(self.device) for key, value in state.items()}
        restore_server(self._aggregate, saved["server"], self.device)
        if self.mean is not None:
            self.mean.restore(saved.get("mean", {}), self.weights)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint, whole or not at all."""
        write_file(Path(path), self.checkpoint())
        return Path(path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Read a checkpoint and go on from it."""
        self.restore(read_file(Path(path)))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().cpu() for key, value in tensors.items()}
