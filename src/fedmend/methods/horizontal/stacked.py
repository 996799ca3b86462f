"""The clients of a round as one tensor program: one dimension more, for the client.

Networks for tables are small, and a step of one client keeps a machine waiting between calls. Here
the weights of m clients are stacked, a step is one batch of matrix products for all of them, and
the loss is one loss over the rows of all clients: as the rows of a client depend on its own weights
only, its gradient is the one it would have got alone. (Numbers differ from the loop's by rounding.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from fedmend.learn.optim import FlatOptimizer
from fedmend.methods.horizontal.local_methods import (
    MEASURES,
    Client,
    InputBatch,
    LocalMethod,
    StepBatch,
)
from fedmend.methods.horizontal.networks import Inputs, NetSpec, TableNet, build_net
from fedmend.methods.horizontal.rounds import Plan, Pool, Update, make_plan
from fedmend.methods.horizontal.trainer import Trainer, pick

__all__ = ["StackedNet", "StackedTrainer", "can_stack"]


def can_stack(spec: NetSpec, method: LocalMethod, carry_momentum: bool) -> bool:
    """Can these clients train side by side?"""
    plain = type(method).step is LocalMethod.step
    return spec.kind == "mlp" and method.rowwise and plain and not carry_momentum


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
        return [
            Update(
                pool.name,
                weights[number],
                trainer.rows_of(pool),
                steps,
                sums[number] / max(1, steps),
            )
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
    assert batch.rows is not None
    assert batch.truth is not None
    weak = pieces[1].detach().flatten(0, 1)
    world = torch.softmax(weak, 1) if batch.world is None else batch.world.flatten(0, 1)
    return StepBatch(
        labelled,
        batch.labels.flatten(),
        weak,
        pieces[2].flatten(0, 1),
        world,
        batch.rows.flatten(),
        batch.truth.flatten(),
    )


def _stack(each: Sequence[InputBatch]) -> InputBatch:
    """Steps of several clients. **Shape** of every tensor [steps, m, ...]."""

    def joined(values: tuple[Inputs | Tensor | None, ...]) -> Inputs | Tensor | None:
        if isinstance(values[0], tuple):
            return tuple(torch.stack(parts, 1) for parts in zip(*values, strict=True))
        return None if values[0] is None else torch.stack(values, 1)  # type: ignore[arg-type]

    names = InputBatch.__dataclass_fields__
    return InputBatch(*(joined(tuple(getattr(one, name) for one in each)) for name in names))  # type: ignore[arg-type]
