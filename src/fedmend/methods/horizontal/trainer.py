"""A client's round, run: views, the global model's predictions, and the steps.

The views of many steps are made at once and the global model looks at them in large batches; what
is left for a step is one pass forward and back. On a GPU that step is captured once and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedmend.errors import ConfigError, FedmendWarning
from fedmend.learn.augment import on_device
from fedmend.methods.horizontal.local_methods import (
    MEASURES,
    Client,
    InputBatch,
    LocalMethod,
    mean_of,
)
from fedmend.methods.horizontal.networks import FlatNet, Inputs, NetSpec
from fedmend.methods.horizontal.resnet import fast_eval, fast_train
from fedmend.methods.horizontal.rounds import Plan, Pool, RoundSettings, Update, make_plan
from fedmend.methods.horizontal.row_views import Views

__all__ = ["Trainer"]

EVAL_ROWS = 4096
ROWS_AT_ONCE = {"cuda": 1 << 17, "cpu": 1 << 12}
"""Rows of which views are made at a time: a client's whole round on a GPU."""
SMALL = 1 << 26
"""Products of a step (weights x rows) up to which a team of threads on the CPU costs more time than
it saves: its members wait for each other in every one of many small calls."""


class Trainer:
    """One network on one device that trains clients one after another.

    capture: replay captured steps (GPU only); by default where the method allows it.
    """

    def __init__(
        self,
        spec: NetSpec,
        method: LocalMethod,
        settings: RoundSettings,
        device: torch.device,
        *,
        capture: bool | None = None,
    ) -> None:
        self.spec, self.method, self.settings, self.device = spec, method, settings, device
        self.net = FlatNet(spec, settings.optimizer, device, settings.dtype)
        self.world = FlatNet(spec, settings.optimizer, device, settings.dtype)
        self.world.module.eval()
        for parameter in self.world.module.parameters():
            parameter.requires_grad_(False)
        self.capture = device.type == "cuda" and method.captured and capture is not False
        self._fast = fast_train(self.net.module, device, settings.precision)
        if settings.hold_weak and self._fast is None:
            raise ConfigError(
                "hold_weak is for resnet8 in bf16 on a GPU, got "
                f"{spec.kind}, {settings.precision}, {device.type}. Mend: hold_weak=False"
            )
        self._world_loaded: Tensor | None = None
        self._eval: Any = None
        self._sums = torch.zeros(len(MEASURES), device=device)
        self._start = torch.zeros_like(self.net.values)
        self._graphs: dict[Any, Any] = {}

    # ------------------------------------------------------------------ a round

    def train(
        self,
        pool: Pool,
        start: Tensor,
        generator: torch.Generator,
        *,
        state: dict[str, Tensor] | None = None,
        extras: dict[str, Tensor] | None = None,
    ) -> Update:
        """One client's round from these weights. `state` is the client's own, changed in place.

        With carry_momentum the optimizer goes on as the last client left it.
        """
        with self.one_thread(self.small()):
            return self._train(pool, start, generator, {} if state is None else state, extras or {})

    def _train(
        self,
        pool: Pool,
        start: Tensor,
        generator: torch.Generator,
        own: dict[str, Tensor],
        extras: dict[str, Tensor],
    ) -> Update:
        self.net.load(start)
        self._start.copy_(self.net.values)
        self._sums.zero_()
        if not self.settings.carry_momentum:
            self.forget_momentum()
        client = self.client(pool, own, extras)
        self._look_at(start)
        self.method.start(client)
        cuda = self.device.type == "cuda"  # all that is left for the CPU then is small
        with self.one_thread(cuda):
            plan = make_plan(pool, self.settings, self.method, generator)
        self.net.module.train()
        for first, last in self.chunks(plan):
            with self.one_thread(cuda):
                many = self.inputs(pool, plan, start, first, last)
            for step in range(last - first):
                if self.capture:
                    self._replay(client, pick(many, step))
                else:
                    self._step(client, pick(many, step))
        told = self.method.finish(client)
        if client.state is not own:
            own.update({key: value.clone() for key, value in client.state.items()})
        for key in self.method.passing:
            own.pop(key, None)
        return Update(
            pool.name,
            self.net.flat(),
            self.rows_of(pool),
            plan.steps,
            self._sums / max(1, plan.steps),
            {key: value.clone() for key, value in told.items()},
        )

    def small(self, clients: int = 1) -> bool:
        """Is a step of so many clients too little work for more than one thread?"""
        rows = self.settings.labelled_batch + 2 * self.settings.unlabelled_batch
        work = clients * rows * len(self.net.values)
        return self.device.type == "cpu" and self.spec.kind == "mlp" and work <= SMALL

    @contextmanager
    def one_thread(self, wanted: bool) -> Iterator[None]:
        """One thread on the CPU for many small calls, if that is wanted."""
        threads = torch.get_num_threads()
        if not wanted or threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def rows_of(self, pool: Pool) -> int:
        """How many rows a client's update stands for."""
        return len(pool.unlabelled) if self.method.uses_unlabelled else len(pool.labelled)

    def forget_momentum(self) -> None:
        for moment in self.net.optimizer.tensors():
            moment.zero_()

    def client(self, pool: Pool, state: dict[str, Tensor], extras: dict[str, Tensor]) -> Client:
        return Client(
            name=pool.name,
            classes=self.spec.classes,
            n_rows=len(pool.unlabelled),
            device=self.device,
            net=self.net,
            forward=self.forward,
            start=self._start,
            prox=self.settings.prox,
            state=state,
            extras={key: value.to(self.device) for key, value in extras.items()},
        )

    def chunks(self, plan: Plan) -> Iterator[tuple[int, int]]:
        """First and last step of each stretch whose views are made at once."""
        steps, labelled, unlabelled = plan.shape
        rows = max(1, labelled + 2 * unlabelled)
        at_once = max(1, ROWS_AT_ONCE.get(self.device.type, 1 << 12) // rows)
        for at in range(0, steps, at_once):
            yield at, min(steps, at + at_once)

    def inputs(self, pool: Pool, plan: Plan, start: Tensor, first: int, last: int) -> InputBatch:
        """The inputs of these steps, with a leading dimension for the step."""
        views, count = pool.views, last - first
        _, b, u = plan.shape
        rows = on_device(pool.labelled[plan.labelled[first:last].reshape(-1)], self.device)
        labelled = _stepwise(views.weak(rows, plan.labelled_draws[first * b : last * b]), count)
        labels = pool.labels[rows].view(count, b)
        if not u:
            return InputBatch(labelled, labels)
        numbers = plan.unlabelled[first:last].reshape(-1)
        rows = on_device(pool.unlabelled[numbers], self.device)
        drawn = slice(first * u, last * u)
        weak = views.weak(rows, plan.weak_draws[drawn])
        world = None
        if self.method.uses_world:
            world = self.world_probabilities(weak, start).view(count, u, -1)
        return InputBatch(
            labelled,
            labels,
            _stepwise(weak, count),
            _stepwise(views.strong(rows, plan.strong_draws[drawn]), count),
            world,
            on_device(numbers, self.device).view(count, u),
            pool.truth[rows].view(count, u),
        )

    # ------------------------------------------------------------------ steps

    def forward(self, *views: Inputs, constant: int | None = None) -> tuple[Tensor, ...]:
        """Logits of each of these inputs, from one pass in training mode over all of them.

        constant: the number of an input of whose logits no gradient will be asked; with
        `hold_weak` it is held constant altogether.
        """
        order = list(range(len(views)))
        if constant is not None and self.settings.hold_weak:
            order.append(order.pop(constant))
        sizes = [len(views[number][0]) for number in order]
        held = sizes[-1] if order != sorted(order) else 0
        parts = [views[number] for number in order]
        joined = parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))
        if self._fast is not None:
            logits = self._fast(joined[0], sum(sizes) - held)
        else:
            with self._autocast():
                logits = self.net.module(*joined)
        pieces = dict(zip(order, logits.to(self.settings.dtype).split(sizes), strict=True))
        return tuple(pieces[number] for number in range(len(views)))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _step(self, client: Client, batch: InputBatch) -> None:
        client.noted.clear()
        self.method.step(client, batch)
        for name, value in client.noted.items():
            self._sums[MEASURES.index(name)] += mean_of(value.to(self._sums.dtype))

    def _replay(self, client: Client, batch: InputBatch) -> None:
        """The same step by a captured program, whose tensors never move."""
        named = [*_tensors(batch), *client.state.items(), *client.extras.items()]
        key = tuple((name, tuple(value.shape)) for name, value in named)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._captured(client, batch)
            except RuntimeError as error:
                warnings.warn(
                    f"a step of {self.method.name!r} cannot be captured ({error}); steps are run "
                    "one by one, which is slower. Mend: capture=False says so from the start",
                    FedmendWarning,
                    stacklevel=2,
                )
                self.capture = False
                self._step(client, batch)
                return
        graph, frozen, fixed = self._graphs[key]
        if client.state is not frozen.state:
            # A client's state moves into the captured one, and back when its round is over.
            for into, own in ((frozen.state, client.state), (frozen.extras, client.extras)):
                for name, value in own.items():
                    into[name].copy_(value)
            client.state, client.extras = frozen.state, frozen.extras
        for (_, into), (_, value) in zip(_tensors(fixed), _tensors(batch), strict=True):
            into.copy_(value)
        graph.replay()

    def _captured(self, client: Client, batch: InputBatch) -> tuple[Any, Client, InputBatch]:
        fixed = each_of(batch, torch.clone)
        frozen = self._client_like(client)
        kept = [self.net.values, self.net.statistics, self._sums]
        kept += [*self.net.optimizer.tensors(), *frozen.state.values()]
        kept += self.method.tensors()
        before = [tensor.clone() for tensor in kept]
        try:
            graph = self._record(lambda: self._step(frozen, fixed))
        finally:
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        return graph, frozen, fixed

    def _record(self, step: Callable[[], None]) -> Any:
        """A step as a CUDA graph, after some that let libraries choose and reserve."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    def _client_like(self, client: Client) -> Client:
        values = {each.name: getattr(client, each.name) for each in fields(Client)}
        for name in ("state", "extras"):
            values[name] = {key: value.clone() for key, value in values[name].items()}
        values["noted"] = {}
        return Client(**values)

    # ------------------------------------------------------------------ the global model

    def _look_at(self, weights: Tensor) -> None:
        """Let the round-start model be this one."""
        if self._world_loaded is not weights:
            self.world.load(weights)
            self._world_loaded = weights
            self._eval = fast_eval(self.world.module, self.device, self.settings.precision)

    @torch.no_grad()
    def world_probabilities(self, inputs: Inputs, weights: Tensor) -> Tensor:
        """What a model of these weights says in eval mode. **Shape** [n, K]."""
        self._look_at(weights)
        pieces = []
        for at in range(0, len(inputs[0]), EVAL_ROWS):
            part = tuple(each[at : at + EVAL_ROWS] for each in inputs)
            if self._eval is not None:
                logits = self._eval(*part)
            else:
                with self._autocast():
                    logits = self.world.module(*part)
            pieces.append(torch.softmax(logits.to(self.settings.dtype), 1))
        return torch.cat(pieces) if pieces else torch.zeros(0, self.spec.classes)

    def probabilities(self, views: Views, weights: Tensor) -> Tensor:
        """The same for plain rows of a views object (moved to the device as it is)."""
        pieces = [
            self.world_probabilities(
                views.plain(
                    torch.arange(at, min(at + EVAL_ROWS, views.n_rows), device=self.device)
                ),
                weights,
            )
            for at in range(0, views.n_rows, EVAL_ROWS)
        ]
        return torch.cat(pieces)


def _stepwise(inputs: Inputs, steps: int) -> Inputs:
    return tuple(each.unflatten(0, (steps, -1)) for each in inputs)


def each_of(batch: InputBatch, change: Callable[[Tensor], Tensor]) -> InputBatch:
    """The same batch with every tensor changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(change(each) for each in value)
        return None if value is None else change(value)

    return InputBatch(*(changed(getattr(batch, each.name)) for each in fields(InputBatch)))


def pick(many: InputBatch, step: int) -> InputBatch:
    """One step out of many."""
    return each_of(many, lambda tensor: tensor[step])


def _tensors(batch: InputBatch) -> list[tuple[str, Tensor]]:
    """A batch's tensors by name, those that are there."""
    found = []
    for each in fields(InputBatch):
        value = getattr(batch, each.name)
        if isinstance(value, tuple):
            found += [(f"{each.name}{number}", tensor) for number, tensor in enumerate(value)]
        elif value is not None:
            found.append((each.name, value))
    return found
