"""A client's round: settings, rows, what is drawn, the steps, and what comes of it.

Workers (`worker.py`) and the benchmarks' simulator run the same `Trainer`, with the same draws from
the same seed, and so get the same numbers. The views of many steps are made at once and the global
model looks at them in large batches; what is left for a step is one pass forward and back. On a GPU
that step is captured once and replayed. (SAGE, §3.1 and §5.1; FedAvg: McMahan et al., 2017;
FedProx: Li et al., 2020.)
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedmend._parameters import NOT_NEGATIVE, Rules, at_least, check_values, one_of
from fedmend.errors import ConfigError, DataError, FedmendWarning
from fedmend.federation.randomness import stream
from fedmend.learn.augment import on_device
from fedmend.learn.nets import Spec
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.local_methods import (
    MEASURES,
    Client,
    InputBatch,
    LocalMethod,
    mean_of,
)
from fedmend.methods.horizontal.networks import FlatNet, Inputs, NetSpec
from fedmend.methods.horizontal.views import ImageViews, Views

PRECISIONS = ("float32", "float64", "bf16")
CHECKED: Rules = {
    "epochs": at_least(1),
    "batch_size": at_least(1),
    "warmup": NOT_NEGATIVE,
    "prox": NOT_NEGATIVE,
    "precision": one_of(PRECISIONS),
}
EVAL_ROWS = 4096
ROWS_AT_ONCE = {"cuda": 1 << 17, "cpu": 1 << 12}
"""Rows of which views are made at a time: a client's whole round on a GPU."""
SMALL = 1 << 26
"""Products of a step (weights x rows) up to which a team of threads on the CPU costs more time than
it saves: its members wait for each other in every one of many small calls."""


# ---------------------------------------------------------------------------------- settings, rows


@dataclass(frozen=True)
class RoundSettings(Spec):
    """A client's round.

    epochs: an epoch is n_unlabelled // batch_size steps (SAGE's code). batch_size: labelled rows of
    a step, beside twice as many unlabelled ones; a client with fewer takes all of them, and what
    does not fill a batch is left out of that pass over the rows.
    prox: FedProx's mu. precision: "float32", "float64", or "bf16" (weights stay float32).
    warmup: the first so many rounds learn from labelled rows only, so that pseudo-labels come from
    a model that knows something (not published).
    """

    epochs: int = 5
    batch_size: int = 128
    optimizer: OptimizerSpec = field(default_factory=lambda: OptimizerSpec("sgd", 0.1, 1e-4, 0.9))
    prox: float = 0.0
    precision: str = "float32"
    warmup: int = 0

    def __post_init__(self) -> None:
        check_values(self, CHECKED)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and tables."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def image_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    @property
    def unlabelled_batch(self) -> int:
        return 2 * self.batch_size

    def steps(self, n_unlabelled: int) -> int:
        """Steps of a round at a client with so many unlabelled rows."""
        return self.epochs * max(1, n_unlabelled // self.batch_size)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "optimizer": OptimizerSpec.from_dict(values["optimizer"])})


class Pool:
    """A client's rows: labelled ones, unlabelled ones, and their views.

    views: of n rows; several pools may share one. labels: int64 [n], -1 where there is none.
    labelled, unlabelled: row numbers; by default the rows with a label, and all rows (labelled ones
    join without their label). truth: labels [n] that are only used to tell how good pseudo-labels
    are, -1 where unknown; by default `labels`.
    """

    def __init__(
        self,
        views: Views,
        labels: Any,
        *,
        labelled: Any = None,
        unlabelled: Any = None,
        truth: Any = None,
        name: str = "client",
    ) -> None:
        self.name = name
        self.views = views
        self.labels = torch.as_tensor(labels, dtype=torch.int64)
        if len(self.labels) != views.n_rows:
            raise DataError(
                f"{len(self.labels)} labels for {views.n_rows} rows",
                party=name,
                mend="give one label a row, -1 for none",
            )
        everyone = torch.arange(views.n_rows)
        self.labelled = _rows(labelled, everyone[self.labels.cpu() >= 0])
        self.unlabelled = _rows(unlabelled, everyone)
        if bool((self.labels.cpu()[self.labelled] < 0).any()):
            raise DataError(
                "a row is to be used as labelled that has no label",
                party=name,
                mend="list only rows with a label in `labelled`",
            )
        if len(self.unlabelled) == 0:
            raise DataError("the client has no rows", party=name, mend="leave it out")
        self.truth = self.labels if truth is None else torch.as_tensor(truth, dtype=torch.int64)

    def to(
        self,
        device: torch.device,
        settings: RoundSettings,
        moved: dict[int, Views] | None = None,
    ) -> Pool:
        """The same rows on a device. `moved` keeps views that pools share from moving twice."""
        images = isinstance(self.views, ImageViews)
        moved = {} if moved is None else moved
        if id(self.views) not in moved:
            dtype = settings.image_dtype if images else settings.dtype
            moved[id(self.views)] = self.views.to(device, dtype)
        pool = copy(self)
        pool.views = moved[id(self.views)]
        pool.labels, pool.truth = self.labels.to(device), self.truth.to(device)
        return pool

    def without(self, rows: np.ndarray) -> Pool:
        """The same rows but these, which are only looked at then."""
        pool, out = copy(self), torch.from_numpy(rows)
        pool.labelled = self.labelled[~torch.isin(self.labelled, out)]
        pool.unlabelled = self.unlabelled[~torch.isin(self.unlabelled, out)]
        return pool


def _rows(given: Any, default: Tensor) -> Tensor:
    return default if given is None else torch.as_tensor(given, dtype=torch.int64).cpu()


# ---------------------------------------------------------------------------------- draws


@dataclass(frozen=True)
class Plan:
    """Which rows each step of a client's round takes, and all that is drawn for their views.

    **Shape** labelled [S, b], unlabelled [S, u]: positions in the pool's lists, on the CPU.
    """

    labelled: Tensor
    unlabelled: Tensor
    labelled_draws: Any
    weak_draws: Any
    strong_draws: Any

    @property
    def steps(self) -> int:
        return len(self.labelled)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.steps, self.labelled.shape[1], self.unlabelled.shape[1]


def make_plan(
    pool: Pool, settings: RoundSettings, method: LocalMethod, generator: torch.Generator
) -> Plan:
    """Draw a client's round: every random number it needs, from one generator on the CPU."""
    steps = settings.steps(len(pool.unlabelled))
    if not method.uses_unlabelled and len(pool.labelled) == 0:
        steps = 0
    labelled = _walk(len(pool.labelled), settings.batch_size, steps, generator)
    views = pool.views
    if not method.uses_unlabelled:
        nothing = torch.zeros(steps, 0, dtype=torch.int64)
        draws = views.draw_weak(labelled.numel(), generator)
        return Plan(labelled, nothing, draws, None, None)
    unlabelled = _walk(len(pool.unlabelled), settings.unlabelled_batch, steps, generator)
    return Plan(
        labelled,
        unlabelled,
        views.draw_weak(labelled.numel(), generator),
        views.draw_weak(unlabelled.numel(), generator),
        views.draw_strong(unlabelled.numel(), generator),
    )


def _walk(n: int, batch: int, steps: int, generator: torch.Generator) -> Tensor:
    """Pass after pass over n rows in random order, whole batches only. **Shape** [steps, batch]."""
    batch = min(batch, n)
    if batch == 0 or steps == 0:
        return torch.zeros(steps, batch, dtype=torch.int64)
    per_pass = n // batch
    passes = [
        torch.randperm(n, generator=generator)[: per_pass * batch].view(per_pass, batch)
        for _ in range(-(-steps // per_pass))
    ]
    return torch.cat(passes)[:steps]


def round_generator(seed: int, client: str, number: int) -> torch.Generator:
    """The generator of a client's round; it depends on nothing that went before."""
    return stream([seed, zlib.crc32(client.encode()), number])


def draw_clients(names: Sequence[str], per_round: int | None, seed: int, number: int) -> list[str]:
    """Who takes part in a round: `per_round` of them without replacement, in the order drawn.

    >>> draw_clients(["a", "b", "c"], None, 0, 1)
    ['a', 'b', 'c']
    """
    if per_round is None or per_round == len(names):
        return list(names)
    if not 1 <= per_round <= len(names):
        raise ConfigError(
            f"per_round must lie in 1..{len(names)}, the number of clients, got {per_round}"
        )
    rng = np.random.default_rng([seed, 1, number])
    return [names[index] for index in rng.permutation(len(names))[:per_round]]


# ---------------------------------------------------------------------------------- training


@dataclass
class Update:
    """What comes of a client's round. measures: means over its steps, in the order of MEASURES."""

    client: str
    weights: Tensor
    rows: int
    steps: int
    measures: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """One network on one device that trains clients one after another.

    capture: replay captured steps (GPU only); by default where the method allows it.
    carry_momentum: the optimizer goes from client to client with its state (a quirk of SAGE's code,
    for simulations) instead of starting afresh.
    """

    def __init__(
        self,
        spec: NetSpec,
        method: LocalMethod,
        settings: RoundSettings,
        device: torch.device,
        *,
        capture: bool | None = None,
        carry_momentum: bool = False,
    ) -> None:
        self.carry_momentum = carry_momentum
        self.spec, self.method, self.settings, self.device = spec, method, settings, device
        half = settings.precision == "bf16"
        self.net = FlatNet(spec, settings.optimizer, device, settings.dtype, half)
        self.common = FlatNet(spec, settings.optimizer, device, settings.dtype, half)
        self.common.module.eval().requires_grad_(False)
        self.capture = device.type == "cuda" and method.captured and capture is not False
        self._loaded: Tensor | None = None
        self._sums = torch.zeros(len(MEASURES), device=device)
        self._start = torch.zeros_like(self.net.values)
        self._graphs: dict[Any, Any] = {}

    def train(
        self,
        pool: Pool,
        start: Tensor,
        generator: torch.Generator,
        *,
        state: dict[str, Tensor] | None = None,
        extras: dict[str, Tensor] | None = None,
    ) -> Update:
        """One client's round from these weights. `state` is the client's own, changed in place."""
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
        if not self.carry_momentum:
            self.net.forget_momentum()
        client = self.client(pool, own, extras)
        self.method.start(client)
        cuda = self.device.type == "cuda"  # all that is left for the CPU then is small
        with self.one_thread(cuda):
            plan = make_plan(pool, self.settings, self.method, generator)
        self.net.module.train()
        for first, last in self.chunks(plan):
            with self.one_thread(cuda):
                many = self.inputs(pool, plan, start, first, last)
            for step in range(last - first):
                (self._replay if self.capture else self._step)(client, pick(many, step))
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

    def small(self) -> bool:
        """Is a step too little work for more than one thread?"""
        rows = self.settings.batch_size + 2 * self.settings.unlabelled_batch
        work = rows * len(self.net.values)
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

    def client(self, pool: Pool, state: dict[str, Tensor], extras: dict[str, Tensor]) -> Client:
        return Client(
            name=pool.name,
            classes=self.spec.classes,
            n_rows=len(pool.unlabelled),
            device=self.device,
            net=self.net,
            start=self._start,
            prox=self.settings.prox,
            state=state,
            extras={key: value.to(self.device) for key, value in extras.items()},
        )

    # ------------------------------------------------------------------ inputs

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
        p_g = None
        if self.method.uses_global:
            p_g = self.probabilities_of(weak, start).view(count, u, -1)
        return InputBatch(
            labelled,
            labels,
            _stepwise(weak, count),
            _stepwise(views.strong(rows, plan.strong_draws[drawn]), count),
            p_g,
            on_device(numbers, self.device).view(count, u),
            pool.truth[rows].view(count, u),
        )

    @torch.no_grad()
    def probabilities_of(self, inputs: Inputs, weights: Tensor) -> Tensor:
        """What a model of these weights says in eval mode. **Shape** [n, K]."""
        if self._loaded is not weights:
            self.common.load(weights)
            self._loaded = weights
        pieces = [
            torch.softmax(self.common(*(each[at : at + EVAL_ROWS] for each in inputs)), 1)
            for at in range(0, len(inputs[0]), EVAL_ROWS)
        ]
        return torch.cat(pieces) if pieces else torch.zeros(0, self.spec.classes)

    def probabilities(self, views: Views, weights: Tensor, rows: Tensor | None = None) -> Tensor:
        """The same for plain rows of a views object (moved to the device as it is), or some."""
        numbers = torch.arange(views.n_rows) if rows is None else rows
        numbers = numbers.to(self.device)
        pieces = [
            self.probabilities_of(views.plain(rows), weights) for rows in numbers.split(EVAL_ROWS)
        ]
        return torch.cat(pieces)

    # ------------------------------------------------------------------ steps

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
        state = {key: value.clone() for key, value in client.state.items()}
        extras = {key: value.clone() for key, value in client.extras.items()}
        frozen = replace(client, state=state, extras=extras, noted={})
        kept = [*self.net.tensors(), self._sums, *frozen.state.values(), *self.method.tensors()]
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


# ---------------------------------------------------------------------------------- averaging


class Server:
    """How updates become the next model: FedAvg, the mean of weights and statistics by rows.

    A method with another server overrides what it needs.
    """

    def __call__(
        self,
        weights: Tensor,
        rows: Sequence[int],
        extras: Sequence[dict[str, Tensor]],
        old: Tensor,
    ) -> Tensor:
        """From clients' weights [m, P], their rows, their extras and the old weights [P]."""
        share = torch.tensor(list(rows), dtype=weights.dtype)
        if float(share.sum()) <= 0:
            return old.clone()
        share = (share / share.sum()).to(weights.device)
        return torch.mv(weights.T, share)

    def send(self, current: Tensor) -> dict[str, Tensor]:
        """What goes to the next round's clients besides the weights."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs."""
        return {}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""


class RoundAverage:
    """A running mean of weights (and batch norms' statistics) over about so many rounds.

    A round's common model depends on who was drawn for it, and its accuracy swings from round to
    round; a mean of past rounds' models swings less (Polyak and Juditsky, 1992). It is the
    coordinator's own doing: nothing more is learnt of a party, and training goes on from the plain
    model. Ours, not the papers'.

    The newest model has the share 2 / (1 + rounds), that of an exponential mean as old on average
    as the plain mean of the last `rounds`; among the first rounds 2 / (1 + round), so that the
    first ones are soon forgotten. One vector is kept, whatever `rounds` is.

    >>> mean = RoundAverage(3)
    >>> [float(mean.add(torch.tensor([value]))) for value in (1.0, 4.0, 4.0, 0.0)]
    [1.0, 3.0, 3.5, 1.75]
    """

    def __init__(self, rounds: int) -> None:
        if rounds < 1:
            raise ConfigError(f"average_rounds must be at least 1, got {rounds}")
        self.rounds = rounds
        self.added = 0
        self.weights: Tensor | None = None

    def add(self, weights: Tensor) -> Tensor:
        """Take the model of another round in, and give the mean."""
        self.added += 1
        if self.weights is None:
            self.weights = weights.clone()
        else:
            share = 2.0 / (1.0 + min(self.added, self.rounds))
            self.weights = torch.lerp(self.weights, weights, share)
        return self.weights

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        if self.weights is None:
            return {}
        return {"added": self.added, "weights": self.weights.detach().cpu()}

    def restore(self, saved: Mapping[str, Any], like: Tensor) -> None:
        """Go on from `state`; from an empty one (no mean was kept then) at the next round."""
        self.added, self.weights = int(saved.get("added", 0)), None
        if "weights" in saved:
            self.weights = saved["weights"].to(like.device, like.dtype)


# ---------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class RoundReport:
    """A round in numbers, means over clients that took a step; not a number where nothing is known.

    utilisation: the share of unlabelled rows that got a label; pseudo_accuracy: of those whose
    truth is known, the share that is right; confidence_gap: mean |max p_local - max p_global|.
    """

    number: int
    clients: list[str]
    loss: float
    pseudo_accuracy: float
    utilisation: float
    confidence_gap: float
    per_client: list[dict[str, Any]]

    @classmethod
    def of(cls, number: int, updates: Sequence[Update]) -> RoundReport:
        # One copy from the device for all clients.
        table = torch.stack([update.measures for update in updates]).double().cpu()
        # Without labels a client of a supervised method takes no step, and has nothing to tell.
        trained = torch.tensor([update.steps > 0 for update in updates])
        table[~trained] = torch.nan
        per_client = []
        for update, row in zip(updates, table, strict=True):
            measured = dict(zip(MEASURES, row.tolist(), strict=True))
            right = _share(measured.pop("right"), measured.pop("known"))
            facts = {"client": update.client, "rows": update.rows, "steps": update.steps}
            per_client.append({**facts, "pseudo_accuracy": right, **measured})
        mean = dict(zip(MEASURES, table[trained].mean(0).tolist(), strict=True))
        return cls(
            number,
            [update.client for update in updates],
            mean["loss_labelled"] + mean["loss_unlabelled"],
            _share(mean["right"], mean["known"]),
            mean["utilisation"],
            mean["gap"],
            per_client,
        )

    def entry(self, method: LocalMethod, warmup: int = 0) -> dict[str, Any]:
        """The round as an entry of a history; what is not known is None.

        A round of the warm-up makes no pseudo-labels, and tells nothing of them.
        """
        known: tuple[str, ...] = ()
        if self.number > warmup:
            known += ("utilisation", "pseudo_accuracy") if method.uses_unlabelled else ()
            known += ("confidence_gap",) if method.uses_global else ()
        names = ("client", "rows", "steps", "loss", "loss_labelled", "loss_unlabelled", *known)
        if "confidence_gap" in known:
            names += ("confidence_local", "confidence_global")
        per_client = []
        for facts in self.per_client:
            loss = facts["loss_labelled"] + facts["loss_unlabelled"]
            facts = facts | {"loss": loss, "confidence_gap": facts["gap"]}
            per_client.append({name: _known(facts[name]) for name in names})
        return {
            "round": self.number,
            "clients": list(self.clients),
            "loss": _known(self.loss),
            **{key: _known(getattr(self, key)) for key in known},
            "per_client": per_client,
        }


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
