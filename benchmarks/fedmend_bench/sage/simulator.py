"""Many clients in one process on one device: FedAvg rounds without parties, wire or ledger.

    simulator = Simulator(pools, NetSpec("resnet8", 10, channels=3), PseudoMethod("sage"),
                          RoundSettings(precision="bf16"), per_round=8, device="cuda")
    report = simulator.run_round()
    simulator.accuracy(test_views, test_labels)

The numbers are those of the same rounds over a federation; the tests compare them. All state of a
run is its round, the weights, what clients keep, and the momentum where that is carried; every
random number follows from the seed, the round and the client. So a checkpoint is a small file, and
a run goes on as if it had never stopped. ResNet-8 in bf16 on a GPU runs by kernels (`kernels.py`).

Networks for tables are small, and a step of one client keeps a machine waiting between calls. There
the weights of a round's clients are stacked, a step is one batch of matrix products for all of
them, and the loss is one loss over the rows of all clients: as the rows of a client depend on its
own weights only, its gradient is the one it would have got alone. (Numbers differ from the loop's
by rounding.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError, ResumeError
from fedmend.learn.optim import FlatOptimizer
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.local_methods import (
    MEASURES,
    Client,
    InputBatch,
    LocalMethod,
    PseudoMethod,
    StepBatch,
    Supervised,
)
from fedmend.methods.horizontal.networks import (
    Inputs,
    NetSpec,
    TableNet,
    build_net,
    initial_weights,
)
from fedmend.methods.horizontal.rounds import (
    Plan,
    Pool,
    RoundReport,
    RoundSettings,
    Server,
    Trainer,
    Update,
    draw_clients,
    make_plan,
    pick,
    round_generator,
)
from fedmend.methods.horizontal.rules import Rule
from fedmend.methods.horizontal.views import ImageViews, Views
from fedmend.split.halves import resolve_device
from fedmend_bench.sage import kernels

__all__ = ["Simulator", "StackedNet", "simulator_of"]

MODES = ("auto", "loop", "stacked")

V = TypeVar("V", bound=Views)


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
    mode: "loop" trains one client after another, "stacked" all of a round side by side (networks
    for tables); "auto" stacks where that can be done.
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
        device: str = "auto",
        mode: str = "auto",
        capture: bool | None = None,
        server: Server | None = None,
    ) -> None:
        kernels.install()
        self.settings = settings or RoundSettings()
        self.net, self.method, self.per_round, self.seed = net, method, per_round, seed
        self.device = resolve_device(device)
        moved: dict[int, Views] = {}
        self.pools = {pool.name: pool.to(self.device, self.settings, moved) for pool in pools}
        self._can_stack = can_stack(net, method, self.settings.carry_momentum)
        self._check(pools, mode)
        self.mode = ("stacked" if self._can_stack else "loop") if mode == "auto" else mode
        self.trainer = Trainer(net, method, self.settings, self.device, capture=capture)
        self._stacked = StackedTrainer(self.trainer)
        self._warm: Trainer | None = None
        self.server = server or Server()
        start = initial_weights(net, seed)
        self.weights = start.to(self.device, self.settings.dtype)
        self.round = 0
        self.states: dict[str, dict[str, Tensor]] = {name: {} for name in self.pools}

    def _check(self, pools: Sequence[Pool], mode: str) -> None:
        problems = []
        if len(self.pools) != len(pools):
            problems.append("two clients have one name. Mend: Pool(…, name=…)")
        if mode not in MODES:
            problems.append(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "stacked" and not self._can_stack:
            problems.append(
                f"mode='stacked' is for mlp networks and row-wise methods without carry_momentum, "
                f"got {self.net.kind}, {self.method.name!r}. Mend: mode='auto'"
            )
        draw_clients(list(self.pools), self.per_round, self.seed, 0)
        if problems:
            raise ConfigError(problems)

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
        pools = [self.pools[name] for name in names]
        generators = [round_generator(self.seed, name, number) for name in names]
        if self.mode == "stacked":
            stacked = StackedTrainer(trainer) if warm else self._stacked
            return stacked.train(pools, self.weights, generators)
        sent = {} if warm else self.server.send(self.weights)
        return [
            trainer.train(
                *(pool, self.weights, generator),
                state=None if warm else self.states[pool.name],
                extras=sent,
            )
            for pool, generator in zip(pools, generators, strict=True)
        ]

    # ------------------------------------------------------------------ using

    def probabilities(self, views: Views, weights: Tensor | None = None) -> Tensor:
        """What the global model says of these rows, or one of other weights. **Shape** [n, K]."""
        used = self.weights if weights is None else weights
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
        if self.settings.carry_momentum:
            self.trainer.net.optimizer.restore(saved["momentum"])
        self.states = {name: {} for name in self.pools}
        for name, state in saved["states"].items():
            self.states[name] = {key: value.to(self.device) for key, value in state.items()}
        self.server.restore({key: each.to(self.device) for key, each in saved["server"].items()})


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().cpu() for key, value in tensors.items()}


# ---------------------------------------------------------------------------------- side by side


def can_stack(spec: NetSpec, method: LocalMethod, carry_momentum: bool) -> bool:
    """Can these clients train side by side? Each row must stand for itself in the loss."""
    rowwise = isinstance(method, Supervised)
    if isinstance(method, PseudoMethod):
        rowwise = type(method.rule).start is Rule.start  # it keeps nothing with a client
    return spec.kind == "mlp" and rowwise and not carry_momentum


class StackedNet:
    """m networks for tables, each layer's weights with a leading dimension of m."""

    def __init__(self, spec: NetSpec, m: int, device: torch.device, dtype: torch.dtype) -> None:
        module = build_net(spec)
        assert isinstance(module, TableNet)
        self.m = m
        self.parameters = [
            nn.Parameter(torch.zeros(m, *each.shape, device=device, dtype=dtype))
            for each in module.parameters()
        ]
        self._tables = len(module.body.tables)
        self._linear = sum(isinstance(layer, nn.Linear) for layer in module.body.body)
        self._clients = torch.arange(m, device=device).view(m, 1)

    @torch.no_grad()
    def load(self, flat: Tensor) -> None:
        """Start all from the same weights. **Shape** [P]."""
        sizes = [each[0].numel() for each in self.parameters]
        for parameter, values in zip(self.parameters, flat.split(sizes), strict=True):
            parameter.copy_(values.view(parameter.shape[1:]))

    def flat(self) -> Tensor:
        """Each client's weights as one vector. **Shape** [m, P]."""
        return torch.cat([each.detach().reshape(self.m, -1) for each in self.parameters], 1)

    def __call__(self, numeric: Tensor, codes: Tensor) -> Tensor:
        """**Shape** [m, b, p], [m, b, q] to [m, b, K]."""
        pieces = [numeric] if numeric.shape[2] else []
        for number in range(self._tables):
            table = self.parameters[number]
            places = codes[:, :, number] + self._clients * table.shape[1]
            pieces.append(nn.functional.embedding(places, table.flatten(0, 1)))
        hidden = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
        layers = self.parameters[self._tables :]
        for number in range(self._linear):
            weight, bias = layers[2 * number], layers[2 * number + 1]
            hidden = torch.baddbmm(bias[:, None], hidden, weight.transpose(1, 2))
            if number < self._linear - 1:
                hidden = torch.relu(hidden)
        return hidden


class StackedTrainer:
    """Trains many clients from the same weights; `trainer` makes their inputs."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.method, self.settings = trainer.method, trainer.settings
        self._nets: dict[int, tuple[StackedNet, FlatOptimizer]] = {}

    def train(
        self,
        pools: Sequence[Pool],
        start: Tensor,
        generators: Sequence[torch.Generator],
    ) -> list[Update]:
        """A round of these clients, in their order; those of one size train side by side."""
        plans = [
            make_plan(pool, self.settings, self.method, generator)
            for pool, generator in zip(pools, generators, strict=True)
        ]
        order = sorted(range(len(pools)), key=lambda index: plans[index].shape)
        updates: dict[int, Update] = {}
        for _, group in groupby(order, key=lambda index: plans[index].shape):
            members = list(group)
            with self.trainer.one_thread(self.trainer.small(len(members))):
                done = self._train_group(
                    [pools[index] for index in members], [plans[index] for index in members], start
                )
            updates.update(zip(members, done, strict=True))
        return [updates[index] for index in range(len(pools))]

    def _train_group(
        self, pools: Sequence[Pool], plans: Sequence[Plan], start: Tensor
    ) -> list[Update]:
        m, trainer = len(pools), self.trainer
        net, optimizer = self._net(m)
        net.load(start.to(trainer.device, self.settings.dtype))
        before = optimizer.values.clone()
        for moment in optimizer.state().values():
            moment.zero_()
        sums = torch.zeros(m, len(MEASURES), device=trainer.device)
        client = trainer.client(pools[0], {}, {})
        self.method.start(client)
        for first, last in trainer.chunks(plans[0]):
            pairs = zip(pools, plans, strict=True)
            each = [trainer.inputs(pool, plan, start, first, last) for pool, plan in pairs]
            together = _stack(each)
            for step in range(last - first):
                self._step(net, optimizer, client, pick(together, step), before, sums)
        weights, steps = net.flat(), plans[0].steps
        sums /= max(1, steps)
        return [
            Update(pool.name, weights[number], trainer.rows_of(pool), steps, sums[number])
            for number, pool in enumerate(pools)
        ]

    def _net(self, m: int) -> tuple[StackedNet, FlatOptimizer]:
        if m not in self._nets:
            trainer = self.trainer
            net = StackedNet(trainer.spec, m, trainer.device, self.settings.dtype)
            self._nets[m] = (net, FlatOptimizer(net.parameters, self.settings.optimizer))
        return self._nets[m]

    def _step(
        self,
        net: StackedNet,
        optimizer: FlatOptimizer,
        client: Client,
        batch: InputBatch,
        before: Tensor,
        sums: Tensor,
    ) -> None:
        client.noted.clear()
        loss = self.method.loss(client, _joint_pass(net, batch)) * net.m
        optimizer.zero_grad()
        loss.backward()
        if self.settings.prox:
            optimizer.gradient.add_(optimizer.values - before, alpha=self.settings.prox)
        optimizer.step()
        for name, value in client.noted.items():
            if len(value):
                per_client = value.view(net.m, -1).to(sums.dtype)
                sums[:, MEASURES.index(name)] += per_client.mean(1)


def _joint_pass(net: StackedNet, batch: InputBatch) -> StepBatch:
    """As `joint_pass` for one client, with the rows of all clients in one list."""
    views: list[Inputs] = [batch.labelled]
    if batch.weak is not None and batch.strong is not None:
        views += [batch.weak, batch.strong]
    logits = net(*(torch.cat(parts, 1) for parts in zip(*views, strict=True)))
    pieces = logits.split([view[0].shape[1] for view in views], 1)
    labelled = pieces[0].flatten(0, 1)
    if len(pieces) == 1:
        none, rows = labelled[:0], batch.labels.flatten()[:0]
        return StepBatch(labelled, batch.labels.flatten(), none, none, none, rows, rows)
    assert batch.rows is not None and batch.truth is not None
    weak, strong = pieces[1].detach().flatten(0, 1), pieces[2].flatten(0, 1)
    p_g = torch.softmax(weak, 1) if batch.p_g is None else batch.p_g.flatten(0, 1)
    rows, truth = batch.rows.flatten(), batch.truth.flatten()
    return StepBatch(labelled, batch.labels.flatten(), weak, strong, p_g, rows, truth)


def _stack(each: Sequence[InputBatch]) -> InputBatch:
    """Steps of several clients. **Shape** of every tensor [steps, m, ...]."""

    def joined(values: tuple[Inputs | Tensor | None, ...]) -> Inputs | Tensor | None:
        if isinstance(values[0], tuple):
            return tuple(torch.stack(parts, 1) for parts in zip(*values, strict=True))
        return None if values[0] is None else torch.stack(values, 1)  # type: ignore[arg-type]

    names = InputBatch.__dataclass_fields__
    return InputBatch(*(joined(tuple(getattr(one, name) for one in each)) for name in names))  # type: ignore[arg-type]
