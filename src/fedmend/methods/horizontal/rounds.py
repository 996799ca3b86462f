"""Horizontal federated training, a client's side: settings, rows, and a round of local steps.

Workers (`worker.py`) and the simulator (`simulator.py`) run the same `Trainer`, with the same
draws from the same seed, and so get the same numbers. (SAGE, §3.1 and §5.1; FedAvg: McMahan et al.,
2017; FedProx: Li et al., 2020.)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import ConfigError, DataError
from fedmend.federation.randomness import stream
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.local_methods import MEASURES, LocalMethod
from fedmend.methods.horizontal.row_views import ImageViews, Views

__all__ = [
    "Aggregate",
    "Plan",
    "Pool",
    "RoundReport",
    "RoundSettings",
    "Update",
    "average",
    "draw_clients",
    "make_plan",
    "restore_server",
    "round_generator",
    "server_state",
]

PRECISIONS = ("float32", "float64", "bf16")

Aggregate = Callable[[Tensor, list[int], list[dict[str, Tensor]], Tensor], Tensor]
"""From clients' weights [m, P], their rows, their extras and the old weights [P] to new ones."""


@dataclass(frozen=True)
class RoundSettings:
    """A client's round.

    epochs, steps_per_epoch: how many steps; an epoch is by default n_unlabelled // labelled_batch
    steps (SAGE's code). labelled_batch, unlabelled_batch: rows of a step; a client with fewer
    takes all of them, and what does not fill a batch is left out of that pass over the rows.
    prox: FedProx's mu. carry_momentum: the optimizer goes from client to client with its state
    (a quirk of SAGE's code) instead of starting afresh.
    precision: "float32", "float64", or "bf16" (weights stay float32).
    warmup: the first so many rounds learn from labelled rows only, so that pseudo-labels come from
    a model that knows something (not published; not with carry_momentum).
    hold_weak: weak views take part in batch norms' statistics but are held constant in the
    backward pass, which saves a fifth of a step (not published; resnet8 in bf16 on a GPU only).
    """

    epochs: int = 5
    labelled_batch: int = 128
    unlabelled_batch: int = 256
    steps_per_epoch: int | None = None
    optimizer: OptimizerSpec = field(default_factory=lambda: OptimizerSpec("sgd", 0.1, 1e-4, 0.9))
    prox: float = 0.0
    carry_momentum: bool = False
    precision: str = "float32"
    hold_weak: bool = False
    warmup: int = 0

    def __post_init__(self) -> None:
        problems = []
        for name in ("epochs", "labelled_batch", "unlabelled_batch", "steps_per_epoch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, got {value}")
        if self.warmup < 0:
            problems.append(f"warmup must not be negative, got {self.warmup}")
        if self.warmup and self.carry_momentum:
            problems.append("warmup and carry_momentum do not go together. Mend: leave one out")
        if not self.prox >= 0:
            problems.append(f"prox must not be negative, got {self.prox}")
        if self.precision not in PRECISIONS:
            problems.append(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )
        if problems:
            raise ConfigError(problems)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and tables."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def image_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    def steps(self, n_unlabelled: int) -> int:
        """Steps of a round at a client with so many unlabelled rows."""
        per_epoch = self.steps_per_epoch or max(1, n_unlabelled // self.labelled_batch)
        return self.epochs * per_epoch

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if not self.warmup:
            del values["warmup"]  # checkpoints from before there was one go on
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundSettings:
        optimizer = dict(values["optimizer"])
        optimizer["betas"] = tuple(optimizer["betas"])
        return cls(**{**values, "optimizer": OptimizerSpec(**optimizer)})


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
        pool = object.__new__(Pool)
        pool.__dict__.update(self.__dict__)
        pool.views = moved[id(self.views)]
        pool.labels, pool.truth = self.labels.to(device), self.truth.to(device)
        return pool


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
    labelled = _walk(len(pool.labelled), settings.labelled_batch, steps, generator)
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


# ---------------------------------------------------------------------------------- results


@dataclass
class Update:
    """What comes of a client's round. measures: means over its steps, in the order of MEASURES."""

    client: str
    weights: Tensor
    rows: int
    steps: int
    measures: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)


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
    extras: dict[str, dict[str, Tensor]]

    @classmethod
    def of(cls, number: int, updates: Sequence[Update]) -> RoundReport:
        # One copy from the device for all clients.
        table = torch.stack([update.measures for update in updates]).double().cpu()
        # Without labels a client of a supervised method takes no step, and has nothing to tell.
        trained = torch.tensor([update.steps > 0 for update in updates])
        table[~trained] = torch.nan
        per_client = [
            _facts(update, row.tolist()) for update, row in zip(updates, table, strict=True)
        ]
        mean = dict(zip(MEASURES, table[trained].mean(0).tolist(), strict=True))
        return cls(
            number,
            [update.client for update in updates],
            mean["loss_labelled"] + mean["loss_unlabelled"],
            _share(mean["right"], mean["known"]),
            mean["utilisation"],
            mean["gap"],
            per_client,
            {update.client: update.extras for update in updates},
        )


def _facts(update: Update, values: list[float]) -> dict[str, Any]:
    measured = dict(zip(MEASURES, values, strict=True))
    right, known = measured.pop("right"), measured.pop("known")
    facts = {"client": update.client, "rows": update.rows, "steps": update.steps}
    return {**facts, "pseudo_accuracy": _share(right, known), **measured}


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")


def average(
    weights: Tensor, rows: list[int], extras: list[dict[str, Tensor]], old: Tensor
) -> Tensor:
    """FedAvg: the mean of the clients' weights and statistics, by their rows."""
    share = torch.tensor(rows, dtype=weights.dtype)
    if float(share.sum()) <= 0:
        return old.clone()
    share = (share / share.sum()).to(weights.device)
    return torch.mv(weights.T, share)


def server_state(aggregate: Any) -> dict[str, Tensor]:
    """What an aggregate keeps between rounds, if it keeps something (`state` and `restore`)."""
    kept = aggregate.state() if hasattr(aggregate, "state") else {}
    return {key: value.detach().cpu() for key, value in kept.items()}


def restore_server(
    aggregate: Any, saved: Mapping[str, Tensor], device: torch.device | str = "cpu"
) -> None:
    """Give an aggregate back what it kept."""
    if hasattr(aggregate, "restore"):
        aggregate.restore({key: value.to(device) for key, value in saved.items()})


def _rows(given: Any, default: Tensor) -> Tensor:
    return default if given is None else torch.as_tensor(given, dtype=torch.int64).cpu()
