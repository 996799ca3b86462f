"""Split training on rows that some of the parties lack.

A bottom embeds only the rows its party has: nothing is spent on fill rows, and batch norm sees
real rows only. The top is told who has which row of a batch and makes of it what its method wants
(`JointTop`): a mean over whoever is there, estimates of what is not, pseudo-labels for rows
without a label. Batches have a fixed make-up, so that aligned rows are never rare in them.

A method brings its joint top (`register`) and the make-up of its batches (`Mix`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.learn.augment import Weak
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, BatchOrder, Segments, is_known, rows_of, spans
from fedmend.split.halves import BottomHalf, TopHalf
from fedmend.split.parts import TOPS, part_of
from fedmend.split.session import AlignedJudges
from fedmend.split.sharing import SharesBottom, Sharing, run_steps
from fedmend.split.training import SplitNetwork
from fedmend.split.workers import BottomWorker, TopWorker

# ---------------------------------------------------------------------------------- joint tops


@dataclass(frozen=True)
class JointSpec:
    """A joint top over embeddings of the given widths; `own` is the label party's place, or -1."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    out: int
    dropout: float
    own: int
    options: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JointSpec:
        lists = {key: tuple(values[key]) for key in ("widths", "hidden")}
        return cls(**{**values, **lists, "options": tuple(dict(values["options"]).items())})


@dataclass
class Views:
    """A batch of n rows as the top sees it, parties in the order of its inputs.

    values: embeddings [k, d] of the k rows a party has; at: their positions [k] in the batch.
    """

    n: int
    values: dict[str, Tensor]
    at: dict[str, Tensor]

    def dense(self, name: str) -> Tensor:
        """Embeddings [n, d], zeros for rows the party does not have."""
        values = self.values[name]
        if len(values) == self.n:
            return values
        return values.new_zeros(self.n, values.shape[1]).index_copy(0, self.at[name], values)

    def mask(self, name: str) -> Tensor:
        """Which rows the party has: bool [n]."""
        at = self.at[name]
        return torch.zeros(self.n, dtype=torch.bool, device=at.device).index_fill(0, at, True)

    def masks(self) -> Tensor:
        """bool [parties, n]"""
        return torch.stack([self.mask(name) for name in self.values])


class JointTop(nn.Module):
    """What all joint tops have; `epochs_seen` is kept with the weights, for resumed trainings."""

    epochs_seen: Tensor

    def __init__(self, spec: JointSpec) -> None:
        super().__init__()
        self.spec = spec
        self.options = dict(spec.options)
        self.epoch = 0
        self.generator: torch.Generator | None = None
        self.register_buffer("epochs_seen", torch.zeros((), dtype=torch.int64))

    def start_epoch(self, generator: torch.Generator) -> None:
        self.epochs_seen += 1
        self.epoch = int(self.epochs_seen)
        self.generator = generator

    def outputs(self, views: Views) -> Tensor:
        raise NotImplementedError

    def loss(self, views: Views, targets: Tensor) -> Tensor:
        raise NotImplementedError


JOINT_TOPS: dict[str, Callable[[JointSpec], JointTop]] = {}


def register(kind: str, top: Callable[[JointSpec], JointTop]) -> None:
    """Make a joint top known by name, to workers and to saved models."""
    JOINT_TOPS[kind] = top
    TOPS[kind] = (top, JointSpec)


def row_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of every row, and which rows have a target: a class from 0, or a number."""
    outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs
    if outputs.shape[1] == 1:
        known = ~targets.isnan()
        loss = (outputs[:, 0] - targets.nan_to_num()).square()
    else:
        known = targets >= 0
        loss = F.cross_entropy(outputs, targets.clamp_min(0), reduction="none")
    return loss, known


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Zero where all weights are."""
    weights = weights.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp_min(1e-12)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Over the rows that have a target."""
    return weighted_mean(*row_losses(outputs, targets))


# ---------------------------------------------------------------------------------- batches


class MixedOrder(BatchOrder):
    """Batches that take a fixed number of rows out of each group; small groups come round again."""

    def __init__(
        self,
        groups: Sequence[np.ndarray],
        counts: Sequence[int],
        batches: int,
        device: torch.device,
        *,
        augment: bool = False,
    ) -> None:
        used = [(g, c) for g, c in zip(groups, counts, strict=True) if c and len(g)]
        rows = np.concatenate([group for group, _ in used])
        super().__init__(rows, sum(count for _, count in used), device, augment=augment)
        self._groups = [(torch.from_numpy(np.ascontiguousarray(g)), c) for g, c in used]
        self.sizes = [sum(count for _, count in used)] * batches

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        columns = []
        for group, count in self._groups:
            needed = count * len(self.sizes)
            rounds = -(-needed // len(group))
            turns = [torch.randperm(len(group), generator=generator) for _ in range(rounds)]
            columns.append(group[torch.cat(turns)[:needed]].view(len(self.sizes), count))
        return torch.cat(columns, 1).flatten()

    def walked(self) -> np.ndarray:
        """As in `BatchOrder`; of a whole epoch each row once, however often it was dealt."""
        if self._at == len(self.shuffled) and not self._told_until:
            return self.rows.numpy()
        return super().walked()


def make_up(sizes: Sequence[int], batch_size: int, least: float) -> tuple[list[int], int]:
    """How many rows of each group a batch takes, and how many batches make an epoch.

    In proportion to the groups, but at least a share `least` of the first (the aligned rows).

    >>> make_up([100, 700, 200], 100, 0.25)
    ([25, 58, 17], 10)
    """
    total = sum(sizes)
    others = total - sizes[0]
    first = batch_size
    if others:
        first = max(round(batch_size * sizes[0] / total), round(batch_size * least))
        first = min(first, batch_size - 1) if sizes[0] else 0
    counts = [first]
    rest = batch_size - first
    for size in sizes[1:]:
        counts.append(round(rest * size / others) if others else 0)
    return counts, max(1, round(total / batch_size))


class Presence:
    """Which rows a party has, batch by batch, as positions within the batch."""

    def __init__(self, present: np.ndarray, device: torch.device) -> None:
        self.present = torch.from_numpy(present)
        self.device = device
        self._positions = torch.zeros(0, dtype=torch.int64)
        self._ends: list[int] = []
        self._batch = 0

    def start(self, order: BatchOrder) -> None:
        """Look up a whole epoch at once: asking the device every step would make it wait."""
        sizes = torch.tensor(order.sizes)
        starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        mine = self.present[order.shuffled]
        within = torch.arange(len(starts)) - starts
        self._positions = within[mine].to(self.device)
        batch_of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[mine]
        self._ends = [0, *torch.bincount(batch_of, minlength=len(sizes)).cumsum(0).tolist()]
        self._batch = 0

    def next(self) -> Tensor:
        at, end = self._ends[self._batch], self._ends[self._batch + 1]
        self._batch += 1
        return self._positions[at:end]

    def of(self, numbers: Tensor) -> Tensor:
        """The positions among these row numbers."""
        return self.present[numbers.cpu()].nonzero()[:, 0].to(self.device)


def presence(party: str, segments: Segments) -> np.ndarray:
    """Which numbered rows a party has, as anybody can tell from the segments."""
    pieces = [np.full(int(str(count)), is_known(name, party)) for name, count in segments]
    return np.concatenate(pieces) if pieces else np.zeros(0, bool)


# ---------------------------------------------------------------------------------- halves


class PartialBottomHalf(BottomHalf):
    """A bottom that hands out embeddings of the rows its party has, and of no others."""

    presence: Presence

    def start_epoch(self, seed: int, dropout_seed: int) -> None:
        super().start_epoch(seed, dropout_seed)
        self.presence.start(self.order)

    def _next(self) -> tuple[Tensor, Weak | None]:
        numbers, draws = super()._next()
        here = self.presence.next()
        return numbers.index_select(0, here), None if draws is None else draws[here]

    def backward(self, gradient: Tensor) -> None:
        if len(gradient):
            super().backward(gradient)

    @torch.no_grad()
    def embed(self, numbers: Tensor) -> Tensor:
        return super().embed(numbers.index_select(0, self.presence.of(numbers)))

    def _compute(self, numbers: Tensor, draws: Weak | None = None) -> Tensor:
        if not len(numbers):
            spec: Any = self.module.spec
            return torch.zeros(0, spec.out, dtype=self.settings.dtype, device=self.device)
        return super()._compute(numbers, draws)


class PartialTopHalf(TopHalf):
    """A joint top (`joint.py`) with the bottom of the label party."""

    presences: dict[str, Presence]

    def start_epoch(self, seed: int, dropout_seed: int) -> None:
        super().start_epoch(seed, dropout_seed)
        for each in self.presences.values():
            each.start(self.order)
        self._joint.start_epoch(self._dropout)

    @property
    def _joint(self) -> Any:
        return self._top

    def _batch_loss(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, draws: Weak | None
    ) -> Tensor:
        assert self.targets is not None
        at = {name: each.next() for name, each in self.presences.items()}
        with self.settings.autocast(self.device):
            views = self._views(embeddings, numbers, at, draws)
            return self._joint.loss(views, self.targets.index_select(0, numbers))

    def _outputs(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, draws: Weak | None = None
    ) -> Tensor:
        at = {name: each.of(numbers) for name, each in self.presences.items()}
        with self.settings.autocast(self.device):
            views = self._views(embeddings, numbers, at, draws)
            return self._joint.outputs(views).to(self.settings.dtype)

    def _views(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        at: Mapping[str, Tensor],
        draws: Weak | None,
    ) -> Views:
        # Who is not in the federation has none of the rows.
        widths = zip(self.names, self._joint.spec.widths, strict=True)
        values = {name: numbers.new_zeros((0, width)) for name, width in widths}
        values |= dict(embeddings)
        if self.own is not None and len(here := at[self.own]):
            own_draws = None if draws is None else draws[here]
            values[self.own] = self._own_embedding(numbers.index_select(0, here), own_draws)
        pieces = {name: values[name].to(self.settings.dtype) for name in self.names}
        return Views(len(numbers), pieces, dict(at))


# ---------------------------------------------------------------------------------- workers


class _PartialWorker(SharesBottom):
    site: Site
    model: str
    half: Any

    def _shared_bottom(self) -> nn.Module | None:
        part = part_of(self.site, self.model).bottom
        return None if part is None else part.module

    @exposed(kind="control")
    def set_groups(self, groups: list[np.ndarray], counts: list[int], batches: int) -> int:
        augment = self.half.settings.augment == "weak"
        order = MixedOrder(groups, counts, batches, self.half.device, augment=augment)
        return int(self.half.walk(order))


class PartialBottomWorker(_PartialWorker, BottomWorker):
    """A feature party without labels, which some rows are not known to."""

    half: PartialBottomHalf
    half_type: ClassVar[type[BottomHalf]] = PartialBottomHalf

    def _attach(self, rows: np.ndarray, config: Mapping[str, Any]) -> None:
        super()._attach(rows, config)
        self.half.presence = Presence(rows >= 0, self.device)


class PartialTopWorker(_PartialWorker, TopWorker):
    """The label party, with a top that can do without some parties."""

    half: PartialTopHalf
    half_type: ClassVar[type[TopHalf]] = PartialTopHalf
    soft_targets: ClassVar[bool] = False

    @exposed(kind="control")
    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        rows = super().attach(segments, config, train)
        self.half.presences = {
            name: Presence(presence(name, segments), self.device) for name in self.half.names
        }
        return rows

    def _new_top(
        self, config: SplitConfig, names: list[str], widths: list[int], out: int
    ) -> tuple[nn.Module, str]:
        joint = dict(config.options["joint"])
        kind = str(joint.pop("kind"))
        own = names.index(self.site.name) if self.site.name in names else -1
        options = tuple(joint.items())
        spec = JointSpec(tuple(widths), config.top, out, config.dropout, own, options)
        return JOINT_TOPS[kind](spec), kind


# ---------------------------------------------------------------------------------- coordinator


@dataclass(frozen=True)
class Mix:
    """Which rows take part besides the aligned ones, and the least share of those in a batch."""

    unlabelled: bool = False
    least: float = 0.25


class PartialSession(AlignedJudges):
    """A session whose batches mix aligned rows, the label party's others, and unlabelled ones."""

    _sharing: Sharing | None = None

    def _set_order(self) -> None:
        network = self.network
        mix: Mix = network.mix  # type: ignore[attr-defined]
        groups = self._groups(mix)
        if len(groups[0]) < 2:
            raise DataError(
                f"{len(groups[0])} aligned rows to train on",
                party=network.label_party,
                mend="Local trains on one party's rows alone; align on ids that both sides use",
            )
        size = network.config.settings.batch_size
        counts, batches = make_up([len(group) for group in groups], size, mix.least)
        self._batches = self.top.set_groups(groups, counts, batches)
        self.bottoms.set_groups(groups, counts, batches)

    def _exchange(self, embeddings: dict[str, Any]) -> None:
        every = int(self.network.config.options.get("share_every", 0))
        if not every:
            return super()._exchange(embeddings)
        run_steps(self.bottoms, self.top, self._batches, embeddings, every, self._share)

    def epoch(self, number: int) -> float:
        """As any session's; where bottoms are shared, from a common one."""
        if self.network.config.options.get("share_every") and self._sharing is None:
            assert self.network.label_party is not None
            self._sharing = Sharing(self.bottoms, self.top, self.network.label_party)
            self._share()
        return super().epoch(number)

    def _share(self) -> None:
        assert self._sharing is not None
        rows = {
            name: int(presence(name, self._segments)[self.train].sum())
            for name in self.network.parties
        }
        self._sharing.share(rows)

    def _groups(self, mix: Mix) -> list[np.ndarray]:
        """Row numbers of the training rows: aligned, the label party's own, each other party's."""
        groups = []
        for name, at, end in spans(self._segments):
            if name in (ALIGNED, self.network.label_party):
                groups.append(rows_of(self._segments, [name], self.train))
            elif mix.unlabelled:
                groups.append(np.arange(at, end))
        return groups


class PartialNetwork(SplitNetwork):
    """A split network that trains on, and predicts, rows known to some of its parties."""

    bottom_worker = PartialBottomWorker
    top_worker = PartialTopWorker
    session_type = PartialSession
    stand_ins = "own"
    mix = Mix()
