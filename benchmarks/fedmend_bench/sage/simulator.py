"""Many clients in one process on one device: FedAvg rounds without parties, wire or ledger.

    simulator = Simulator(pools, NetSpec("resnet8", 10, channels=3), PseudoMethod("sage"),
                          RoundSettings(precision="bf16"), per_round=8, device="cuda")
    report = simulator.run_round()
    simulator.accuracy(test_views, test_labels)

The numbers are those of the same rounds over a federation; the tests compare them. All state of a
run is its round, the weights, what clients keep, and the momentum where that is carried; every
random number follows from the seed, the round and the client. So a checkpoint is a small file, and
a run goes on as if it had never stopped. ResNet-8 in bf16 on a GPU runs by kernels (`kernels.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmend.errors import ConfigError, ResumeError
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.local_methods import LocalMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec, initial_weights
from fedmend.methods.horizontal.rounds import (
    Pool,
    RoundReport,
    RoundSettings,
    Server,
    Trainer,
    Update,
    draw_clients,
    round_generator,
)
from fedmend.methods.horizontal.views import ImageViews, Views
from fedmend.split.config import resolve_device
from fedmend_bench.sage import kernels

__all__ = ["Simulator", "simulator_of"]


def simulator_of(
    estimator: HorizontalEstimator, pools: Sequence[Pool], net: NetSpec, **options: Any
) -> Simulator:
    """An estimator's rounds without parties. Labels are as the pools have them."""
    return Simulator(
        pools,
        net,
        estimator._method(),
        estimator._settings(),
        per_round=estimator.per_round,
        seed=estimator.seed,
        server=estimator._server(),
        **options,
    )


class Simulator:
    """Clients, a global model, and rounds.

    per_round: how many clients are drawn for a round; None takes all.
    carry_momentum: one optimizer goes from client to client (a quirk of SAGE's code).
    capture: on a GPU, replay captured steps; None where the method allows it.
    server: how updates become the next weights, and what goes to clients besides; FedAvg's.
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
        carry_momentum: bool = False,
        device: str = "auto",
        capture: bool | None = None,
        server: Server | None = None,
    ) -> None:
        kernels.install()
        self.settings = settings or RoundSettings()
        if carry_momentum and self.settings.warmup:
            raise ConfigError("warmup and carry_momentum do not go together. Mend: leave one out")
        self.net, self.method, self.per_round, self.seed = net, method, per_round, seed
        self.device = resolve_device(device)
        moved: dict[int, Views] = {}
        self.pools = {pool.name: pool.to(self.device, self.settings, moved) for pool in pools}
        if len(self.pools) != len(pools):
            raise ConfigError("two clients have one name. Mend: Pool(…, name=…)")
        draw_clients(list(self.pools), per_round, seed, 0)  # raises where there are fewer
        self.trainer = Trainer(
            *(net, method, self.settings, self.device),
            capture=capture,
            carry_momentum=carry_momentum,
        )
        self._warm: Trainer | None = None
        self.server = server or Server()
        start = initial_weights(net, seed)
        self.weights = start.to(self.device, self.settings.dtype)
        self.round = 0
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in self.pools}

    # ------------------------------------------------------------------ rounds

    def run_round(self) -> RoundReport:
        """Draw clients, train them, average what they have learnt."""
        number = self.round + 1
        names = draw_clients(list(self.pools), self.per_round, self.seed, number)
        warm = number <= self.settings.warmup
        updates = self._train(names, number, warm)
        weights = torch.stack([update.weights for update in updates])
        rows = [update.rows for update in updates]
        server = Server() if warm else self.server
        extras = [update.extras for update in updates]
        self.weights = server(weights, rows, extras, self.weights)
        self.round = number
        return RoundReport.of(number, updates)

    def _train(self, names: Sequence[str], number: int, warm: bool) -> list[Update]:
        if warm and self._warm is None:  # a round on labelled rows only
            self._warm = Trainer(self.net, Supervised(), self.settings, self.device)
        trainer = self._warm if warm and self._warm is not None else self.trainer
        sent = {} if warm else self.server.send(self.weights)
        return [
            trainer.train(
                self.pools[name],
                self.weights,
                round_generator(self.seed, name, number),
                state=None if warm else self.states[name],
                extras=sent,
            )
            for name in names
        ]

    # ------------------------------------------------------------------ using

    def probabilities(self, views: Views, weights: Tensor | None = None) -> Tensor:
        """What the global model says of these rows, or one of other weights. **Shape** [n, K]."""
        used = self.weights if weights is None else weights
        return self.trainer.probabilities(self.ready(views), used)

    def ready(self, views: Views) -> Any:
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
        # Under the names of the first runs, so that checkpoints of these can be gone on with.
        settings = self.settings.to_dict()
        settings |= {
            "labelled_batch": settings.pop("batch_size"),
            "unlabelled_batch": self.settings.unlabelled_batch,
            "carry_momentum": self.trainer.carry_momentum,
        }
        sizes = {
            name: [len(pool.labelled), len(pool.unlabelled)] for name, pool in self.pools.items()
        }
        facts = {
            "net": self.net.to_dict(),
            "method": self.method.to_dict(),
            "settings": settings,
            "per_round": self.per_round,
            "seed": self.seed,
            "clients": sizes,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def checkpoint(self) -> dict[str, Any]:
        """All that a run needs to go on, as wire values."""
        momentum = {}
        if self.trainer.carry_momentum:
            momentum = _on_cpu(self.trainer.net.optimizer.state())
        return {
            "run": self.fingerprint(),
            "round": self.round,
            "weights": self.weights.cpu(),
            "momentum": momentum,
            "states": {name: _on_cpu(state) for name, state in self.states.items() if state},
            "server": _on_cpu(self.server.state()),
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
        if self.trainer.carry_momentum:
            self.trainer.net.optimizer.restore(saved["momentum"])
        self.states = {name: {} for name in self.pools}
        for name, state in saved["states"].items():
            self.states[name] = {key: value.to(self.device) for key, value in state.items()}
        self.server.restore({key: each.to(self.device) for key, each in saved["server"].items()})


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().cpu() for key, value in tensors.items()}
