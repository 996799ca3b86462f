"""Split training on rows that some of the parties lack.

A bottom embeds only the rows its party has: nothing is spent on fill rows, and batch norm sees
real rows only. The top is told who has which row of a batch and makes of it what its method wants
(`JointTop`): a mean over whoever is there, estimates of what is not, pseudo-labels for rows
without a label. Batches have a fixed make-up, so that aligned rows are never rare in them, and
bottoms of like shape may be shared.

A method brings its joint top (`register`) and the make-up of its batches (`Mix`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import DataError
from fedmend.federation import Each, exposed
from fedmend.federation.randomness import begin
from fedmend.learn.augment import Weak
from fedmend.learn.nets import Spec, initialise
from fedmend.split.config import Settings
from fedmend.split.features import (
    ALIGNED,
    MixedOrder,
    Segments,
    is_known,
    presence,
    rows_of,
    spans,
)
from fedmend.split.models import BottomModel, PartialBottom, TopModel
from fedmend.split.parts import TOPS, TopPart
from fedmend.split.training import AlignedJudges, SplitNetwork
from fedmend.split.workers import BottomWorker, TopPlan, TopWorker

# ---------------------------------------------------------------------------------- joint tops


@dataclass(frozen=True)
class JointSpec(Spec):
    """A joint top over embeddings of the given widths; `own` is the label party's place, or -1."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...]
    out: int
    own: int
    options: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return super().from_dict({**values, "options": tuple(dict(values["options"]).items())})


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


def joint_options(model: Any, kind: str, *names: str) -> dict[str, Any]:
    """What a joint top is built from: an estimator's parameters of these names, as wire values."""
    found = {name: getattr(model, name) for name in names}
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}
    return {"joint": {"kind": kind} | plain}


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


# ---------------------------------------------------------------------------------- parties


class SharesBottom:
    """A worker's part where bottoms of one shape become one now and then (`Session.share`)."""

    def _shared_bottom(self) -> nn.Module | None:
        part = self._part().bottom  # type: ignore[attr-defined]
        return None if part is None else part.module

    def _targets_of(self, numbers: np.ndarray) -> np.ndarray:
        return numbers  # pseudo-labels stand beside labels, also of rows that it does not know

    @exposed(kind="control")
    def bottom_shapes(self) -> dict[str, list[int]]:
        """The shape of everything in this party's bottom, by name."""
        module = self._shared_bottom()
        found = {} if module is None else module.state_dict()
        return {key: list(value.shape) for key, value in found.items()}

    @exposed(kind="weights")
    def bottom_weights(self) -> dict[str, Tensor]:
        """This party's bottom, to be joined with others of the same shape.

        Nothing where few rows have taught it since it last left: they could be told from it.
        """
        module, part = self._shared_bottom(), self._part()  # type: ignore[attr-defined]
        if module is None or part.is_thin:
            return {}
        part.since, found = np.zeros(0, np.int64), module.state_dict()
        return {key: value.detach().clone() for key, value in found.items()}

    @exposed(kind="control", takes={"weights": "weights"})
    def take_bottom(self, weights: dict[str, Tensor]) -> None:
        module = self._shared_bottom()
        if module is not None:
            module.load_state_dict(weights)

    @exposed(kind="control")
    def set_groups(self, groups: list[np.ndarray], counts: list[int], batches: int) -> int:
        """Train on these rows, by segment, of each so many in a batch; how many batches."""
        trained = self.trained  # type: ignore[attr-defined]
        augment = trained.settings.augment == "weak"
        order = MixedOrder(groups, counts, batches, trained.device, augment=augment)
        return int(trained.walk(order))


class PartialBottomWorker(SharesBottom, BottomWorker):
    """A feature party without labels, which some rows are not known to."""

    model_type: ClassVar[type[BottomModel]] = PartialBottom

    def _new_model(self, segments: Segments, settings: Settings) -> BottomModel:
        made = super()._new_model(segments, settings)
        assert isinstance(made, PartialBottom)
        made.mine = [is_known(name, self.site.name) for name, _ in segments]
        return made


class PartialTopModel(TopModel):
    """A joint top with the bottom of the label party.

    present: by party which of the numbered rows it has [N]. places: where the rows that it has
    stand in every batch.
    """

    top: JointTop
    order: MixedOrder
    segments: Segments
    present: dict[str, Tensor]
    places: dict[str, Tensor]

    def attach(self, segments: Segments) -> None:
        self.segments = segments
        self.present = {
            name: torch.from_numpy(presence(name, segments)).to(self.device) for name in self.names
        }

    def walk(self, order: MixedOrder) -> int:  # type: ignore[override]
        self.places = {
            name: order.places([is_known(segment, name) for segment, _ in self.segments])
            for name in self.names
        }
        return super().walk(order)

    def draw_from(self, seed: int) -> None:
        """What the top draws in the epoch to come is the label party's own."""
        self.top.start_epoch(begin(torch.Generator(self.device), seed))

    def _batch_loss(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, draws: Weak | None
    ) -> Tensor:
        assert self.targets is not None
        with self.settings.autocast(self.device):
            views = self._views(embeddings, numbers, self.places, draws)
            return self.top.loss(views, self.targets.index_select(0, numbers))

    def _outputs(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        draws: Weak | None = None,
        known: Sequence[str] | None = None,
    ) -> Tensor:
        at = {
            name: (each[numbers] & (known is None or name in known)).nonzero()[:, 0]
            for name, each in self.present.items()
        }
        with self.settings.autocast(self.device):
            views = self._views(embeddings, numbers, at, draws)
            return self.top.outputs(views).to(self.settings.dtype)

    def _views(
        self,
        embeddings: Mapping[str, Tensor],
        numbers: Tensor,
        at: Mapping[str, Tensor],
        draws: Weak | None,
    ) -> Views:
        # Who is not in the federation has none of the rows.
        widths = zip(self.names, self.top.spec.widths, strict=True)
        values = {name: numbers.new_zeros((0, width)) for name, width in widths}
        values |= dict(embeddings)
        if self.own_embedding is not None and len(here := at[str(self.own)]):
            own_draws = None if draws is None else draws[here]
            found = self.own_embedding(numbers.index_select(0, here), own_draws)
            values[str(self.own)] = found
        pieces = {name: values[name].to(self.settings.dtype) for name in self.names}
        return Views(len(numbers), pieces, dict(at))


class PartialTopWorker(SharesBottom, TopWorker):
    """The label party, with a top that can do without some parties."""

    model_type: ClassVar[type[TopModel]] = PartialTopModel
    soft_targets: ClassVar[bool] = False

    @exposed(kind="control")
    def start_epoch(self, epoch: int) -> None:
        name = zlib.crc32(self.site.name.encode())
        self.trained.draw_from(self.site.own_seed(epoch ^ name, "draws"))
        super().start_epoch(epoch)

    def _new_model(self, segments: Segments, settings: Settings, train: bool) -> TopModel:
        made = super()._new_model(segments, settings, train)
        assert isinstance(made, PartialTopModel)
        made.attach(segments)
        return made

    def _new_top(self, plan: TopPlan) -> Any:
        config, names, me = plan.config, plan.names, self.site.name
        joint = dict(config.options["joint"])
        kind = str(joint.pop("kind"))
        own, options = names.index(me) if me in names else -1, tuple(joint.items())
        spec = JointSpec(tuple(plan.widths), config.top, plan.out, own, options)
        return TopPart(names, plan.labels, initialise(JOINT_TOPS[kind](spec), plan.weights), kind)


# ---------------------------------------------------------------------------------- coordinator


class SharingSession(AlignedJudges):
    """Bottoms of like shape become one now and then, for sides of like shape (halves of images).

    Every `share_every` steps (of the options) the parties' bottoms are joined and all go on from
    the result, as in federated averaging: weights cross, rows do not. What one party learns from
    its many labelled rows thus serves the other's side of a row as well. Bottoms that have the same
    shapes are joined; one that has no like goes on alone.
    """

    _began = False

    @property
    def share_every(self) -> int:
        return int(self.network.config.options.get("share_every", 0))

    def epoch(self, number: int) -> float:
        """As any session's; where bottoms are shared, from a common one."""
        if self.share_every and not self._began:
            self._began = True
            self._share()
        return super().epoch(number)

    def _exchange(self, embeddings: dict[str, Any]) -> None:
        if not self.share_every:
            return super()._exchange(embeddings)
        for step in range(1, self._batches):
            gradients = Each(self.top.step(embeddings))
            if step % self.share_every == 0:
                self.bottoms.finish(gradients)
                self._share()
                embeddings = self.bottoms.step()
            else:
                embeddings = self.bottoms.step(gradients)
        self.bottoms.finish(Each(self.top.step(embeddings)))
        self._share()

    def _share(self) -> None:
        """Each bottom counts by the rows that its party trains on."""
        workers = {name: self.bottoms[name] for name in self.bottoms}
        workers[str(self.network.label_party)] = self.top
        given = {name: worker.bottom_weights() for name, worker in workers.items()}
        found = {name: each for name, each in given.items() if each}
        rows = {
            name: int(presence(name, self.segments)[self.train].sum())
            for name in self.network.parties
        }
        alike = [names for names in same_shapes(found) if len(names) > 1]
        if not alike:
            self._warn(
                f"share_every joins bottoms of one shape, but those of {', '.join(given)} all "
                "differ, or learn from few rows in between: none is shared. Mend: share_every=0",
                "shapes",
            )
        for names in alike:
            joined = _mean({name: found[name] for name in names}, rows)
            for name in names:
                workers[name].take_bottom(joined)


def _mean(found: Mapping[str, dict[str, Tensor]], rows: Mapping[str, int]) -> dict[str, Tensor]:
    """The mean of bottoms, each counted by its party's rows."""
    total = sum(rows[name] for name in found)
    joined = dict(next(iter(found.values())))
    for key, value in joined.items():
        if value.is_floating_point():
            joined[key] = torch.zeros_like(value)
            for name, weights in found.items():
                joined[key].add_(weights[key].to(value.device), alpha=rows[name] / total)
    return joined


def same_shapes(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The parties whose bottoms have the same shapes, in groups; who has none is in no group.

    found: by party its bottom's weights, or their shapes.

    >>> same_shapes({"a": {"w": [2]}, "b": {"w": [3]}, "c": {"w": [2]}, "d": {}})
    [['a', 'c'], ['b']]
    """
    groups: dict[str, list[str]] = {}
    for name, weights in found.items():
        if weights:
            shapes = [(key, list(getattr(each, "shape", each))) for key, each in weights.items()]
            groups.setdefault(str(shapes), []).append(name)
    return list(groups.values())


@dataclass(frozen=True)
class Mix:
    """Which rows take part besides the aligned ones, and the least share of those in a batch."""

    unlabelled: bool = False
    least: float = 0.25


class PartialSession(SharingSession):
    """A session whose batches mix aligned rows, the label party's others, and unlabelled ones."""

    def _set_order(self) -> None:
        network = self.network
        groups = self._groups()
        if len(groups[0]) < 2:
            raise DataError(
                f"{len(groups[0])} aligned rows to train on",
                party=network.label_party,
                mend="Local trains on one party's rows alone; align on ids that both sides use",
            )
        size = network.config.settings.batch_size
        counts, batches = make_up([len(group) for group in groups], size, network.mix.least)
        batches = max(batches, network.config.settings.epoch_steps)
        self._batches = self.top.set_groups(groups, counts, batches)
        self.bottoms.set_groups(groups, counts, batches)

    def _groups(self) -> list[np.ndarray]:
        """Numbers of the training rows by segment: aligned, the label party's own, each other's."""
        groups = []
        for name, at, end in spans(self.segments):
            labelled = name in (ALIGNED, self.network.label_party)
            chosen = rows_of(self.segments, [name], self.train) if labelled else np.arange(at, end)
            groups.append(chosen if labelled or self.network.mix.unlabelled else chosen[:0])
        return groups


class PartialNetwork(SplitNetwork):
    """A split network that trains on, and predicts, rows known to some of its parties."""

    bottom_worker = PartialBottomWorker
    top_worker = PartialTopWorker
    session_type = PartialSession
    imputes = "own"
    mix: ClassVar[Mix] = Mix()
