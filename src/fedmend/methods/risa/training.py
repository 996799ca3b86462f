"""One step of evidential training at each party: batches, bottoms over rows they know, heads.

A batch takes a fixed number of rows of each segment (rows known to all, then each party's own), so
that overlapping rows are never lost among the others, and so that every party knows the layout of
a batch without being told. A party embeds only the rows it has, and its mean row once a batch,
which is the imputed embedding of all others. Plain torch: no parties, no calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learn.augment import Weak
from fedmend.learn.nets import Batch, Bottom
from fedmend.learn.optim import FlatOptimizer
from fedmend.learn.recorded import Recorded, can_record
from fedmend.methods.risa.ensemble import BottomEnsemble
from fedmend.methods.risa.heads import JOINT, EvidenceTop, Objective, total_loss
from fedmend.methods.risa.imputation import MeanRow, OwnRows, embed
from fedmend.split.features import ALIGNED, BatchOrder, Segments, augmented
from fedmend.split.halves import BottomHalf, Settings, TopHalf, _gradient, one_cycle

__all__ = ["EvidenceBottomHalf", "EvidenceTopHalf", "Pools", "batch_make_up"]

# ---------------------------------------------------------------------------------- batches

# Overlapping rows are shown at most so often in an epoch, however few there are: learnt by heart
# they would be of no use.
MOST_PASSES = 4


def batch_make_up(counts: Sequence[int], batch_size: int, least: float) -> tuple[list[int], int]:
    """Rows of each segment in a batch, the first segment's at least a share `least`; and steps.

    >>> batch_make_up([100, 900, 0], 100, 0.25)
    ([25, 75, 0], 10)
    """
    total = sum(counts)
    size = min(batch_size, total)
    steps = max(1, round(total / size))
    first = 0
    if counts[0]:
        wanted = min(math.ceil(least * size), math.ceil(MOST_PASSES * counts[0] / steps))
        first = max(round(size * counts[0] / total), wanted, min(2, size))
    rest = total - counts[0]
    if not rest:
        first = size
    left = size - first
    sizes = [first]
    for place, count in enumerate(counts[1:], 2):
        later = sum(counts[place:])
        share = left if not later else round((size - first) * count / rest)
        share = min(left, max(share, 1) if count else 0)
        sizes.append(share)
        left -= share
    return sizes, steps


class Pools(BatchOrder):
    """Training rows by segment, dealt into batches from one seed per epoch.

    A pool that a batch takes more of than its share goes round several times in an epoch.
    make_up: how many rows of each segment a batch has.
    """

    def __init__(
        self,
        pools: Sequence[np.ndarray],
        batch_size: int,
        least: float,
        device: torch.device,
        *,
        augment: bool = False,
    ) -> None:
        super().__init__(np.concatenate(pools), batch_size, device, augment=augment)
        self._pools = self.rows.split([len(pool) for pool in pools])
        self.make_up, self.steps = batch_make_up([len(p) for p in pools], batch_size, least)
        self.batch_size = sum(self.make_up)
        self.sizes = [self.batch_size] * self.steps

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        columns = []
        for pool, size in zip(self._pools, self.make_up, strict=True):
            if not size:
                continue
            needed, found = self.steps * size, []
            while needed > 0:
                shuffled = pool[torch.randperm(len(pool), generator=generator)][:needed]
                found.append(shuffled)
                needed -= len(shuffled)
            columns.append(torch.cat(found).view(self.steps, size))
        return torch.cat(columns, 1).flatten()

    def walked(self) -> np.ndarray:
        """As of any order; of a whole epoch each row once.

        How often chance deals which of them says nothing.
        """
        if self._at - self._told_until == len(self.shuffled):
            return self.rows.numpy()
        return super().walked()

    @property
    def done(self) -> float:
        """The share of this epoch's batches that were handed out."""
        return self._number / self.steps

    def places(self, mine: Sequence[bool]) -> Tensor:
        """Where in a batch the rows of these segments stand."""
        ends = np.cumsum(self.make_up)
        pieces = [
            np.arange(end - size, end)
            for size, end, own in zip(self.make_up, ends, mine, strict=True)
            if own
        ]
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *pieces])).to(self.device)


# ---------------------------------------------------------------------------------- parties


def loose(batch: Batch | None) -> tuple[Tensor, ...]:
    """The tensors of a batch; none of none."""
    return () if batch is None else (batch.numeric, batch.codes, *batch.blocks)


class _Trained:
    """What both halves add to theirs: pools, and a schedule that goes by shares of the training."""

    settings: Settings
    device: torch.device
    optimizer: FlatOptimizer
    module: Any
    order: Any

    def _prepare(self, segments: Segments, own: str | None) -> None:
        self.segment_names = [str(name) for name, _ in segments]
        self._mine = [name in (ALIGNED, own) for name in self.segment_names]
        self._places = torch.zeros(0, dtype=torch.int64)
        self._span = (0.0, 0.0)

    def set_pools(self, pools: Sequence[np.ndarray], least: float) -> int:
        """Train on these rows from now on; returns an epoch's number of batches."""
        settings = self.settings
        augment = settings.augment == "weak"
        self.order = Pools(pools, settings.batch_size, least, self.device, augment=augment)
        self._places = self.order.places(self._mine)
        if not hasattr(self, "optimizer"):
            self.optimizer = FlatOptimizer(
                list(self.module.parameters()), settings.optimizer, aligned=True
            )
        return self.order.steps

    def begin(self, span: tuple[float, float]) -> None:
        """An epoch that goes from one share of the whole training to another."""
        self._span = span

    def _scale(self) -> float:
        if self.settings.schedule == "constant":
            return 1.0
        start, end = self._span
        return one_cycle(start + (end - start) * self.order.done)

    def _known(self, rows: OwnRows, numbers: Tensor) -> Batch:
        """This party's rows of a batch, their images flipped and shifted as drawn."""
        batch = rows.batch(numbers)
        draws = self.order.draws
        if draws is None or not batch.blocks:
            return batch
        own = draws[self._places]
        return batch._replace(blocks=tuple(augmented(block, own) for block in batch.blocks))


class MeanStep(nn.Module):
    """Embeddings of a batch of loose tensors, and last of the mean row, for a GPU to replay."""

    def __init__(self, half: EvidenceBottomHalf) -> None:
        super().__init__()
        self.bottom = half.bottom
        self._half = half

    def forward(self, *given: Tensor) -> Tensor:
        half = self._half
        with half.settings.autocast(half.device, cache=False):
            batch = Batch(given[0], given[1], tuple(given[2:]))
            return embed(half.bottom, batch, half.mean).to(half.settings.dtype)


class EvidenceBottomHalf(_Trained, BottomHalf):
    """A party's bottom over the rows it has, and its mean row."""

    def __init__(
        self,
        module: Bottom | BottomEnsemble,
        own: OwnRows,
        mean: MeanRow,
        segments: Segments,
        name: str,
        settings: Settings,
        device: torch.device,
    ) -> None:
        BottomHalf.__init__(self, module, own, settings, device)  # type: ignore[arg-type]
        self._prepare(segments, name)
        self.bottom = module
        self.own = own
        self.mean = mean.to(device, settings.dtype)
        self._embed = None
        if can_record(device, module):
            self._embed = Recorded(lambda: MeanStep(self), on=True)
        self._batch: Batch | None = None

    def forward(self) -> Tensor:
        """Embeddings of this party's rows of the next batch, and last of its mean row."""
        self._numbers = self.order.next().index_select(0, self._places)
        self._batch = self._known(self.own, self._numbers)
        self._embedding = self._compute(self._numbers)
        return self.settings.for_wire(self._embedding.detach())

    @torch.no_grad()
    def embed(self, numbers: Tensor) -> Tensor:
        """Embeddings of those of the rows that this party has, and last of its mean row."""
        self.module.eval()
        known = numbers[self.own.slot.index_select(0, numbers) >= 0]
        self._batch = self.own.batch(known)
        return self.settings.for_wire(self._compute(known))

    def _compute(self, numbers: Tensor, draws: Weak | None = None) -> Tensor:
        assert self._batch is not None
        if self._embed is not None and torch.is_grad_enabled():
            return self._embed(*loose(self._batch))
        with self.settings.autocast(self.device):
            return embed(self.bottom, self._batch, self.mean).to(self.settings.dtype)


class JudgeStep(nn.Module):
    """The loss of a batch and the fused opinions, from row numbers and embeddings.

    With a bottom of the label party's own, its batch comes after the embeddings.
    """

    def __init__(self, half: EvidenceTopHalf) -> None:
        super().__init__()
        self.trained = half.module
        self._half = half

    def forward(self, numbers: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        half = self._half
        others = [name for name in half.names if name != half.own]
        sides = dict(zip(others, given, strict=False))
        with half.settings.autocast(half.device, cache=False):
            if half.own is not None:
                numeric, codes, *blocks = given[len(others) :]
                sides[half.own] = half.embed_own(Batch(numeric, codes, tuple(blocks)))
            return half.judge([sides[name] for name in half.names], numbers)


class EvidenceTopHalf(_Trained, TopHalf):
    """The heads, with the bottom of the party they live at; targets are class numbers.

    unseen: by row the member that does not learn from it, or -1; None where all learn from all.
    reliable: by party how far its side of each row is believed, where cells of it are completed.
    The side is then between the completed and the imputed embedding, and the party's own opinion
    is discounted (Shafer) and learnt from as far.
    """

    def __init__(
        self,
        top: EvidenceTop,
        how: Objective,
        settings: Settings,
        device: torch.device,
        *,
        names: Sequence[str],
        segments: Segments,
        label_party: str,
        bottom: Bottom | BottomEnsemble | None,
        own: OwnRows | None,
        mean: MeanRow | None,
        watch: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        TopHalf.__init__(
            self,
            top,
            settings,
            device,
            names=names,
            own=label_party if bottom is not None else None,
            bottom=bottom,
        )
        self._prepare(segments, label_party)
        self.top = top
        self.how = how
        self.own_rows = own
        self.mean = None if mean is None else mean.to(device, settings.dtype)
        self.watch = watch
        self.unseen: Tensor | None = None
        self.reliable: dict[str, Tensor] = {}
        self._layout: list[tuple[Tensor, Tensor]] = []
        self._step = Recorded(lambda: JudgeStep(self), can_record(device, bottom, top))

    def set_pools(self, pools: Sequence[np.ndarray], least: float) -> int:
        steps = super().set_pools(pools, least)
        size = self.order.batch_size
        self._layout = []
        for party in self.names:
            places = self.order.places([name in (ALIGNED, party) for name in self.segment_names])
            index = torch.full((size,), len(places), dtype=torch.int64, device=self.device)
            index[places] = torch.arange(len(places), device=self.device)
            self._layout.append((index, index < len(places)))
        self._step.forget()
        return steps

    def step(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One update; returns the gradient for each embedding that came in."""
        assert self.targets is not None
        numbers = self.order.next()
        leaves = {
            name: value.detach().to(self.device, self.settings.dtype).requires_grad_()
            for name, value in embeddings.items()
        }
        given = [leaves[name] for name in self.names if name != self.own]
        self.optimizer.zero_grad()
        own = None
        if self.own_rows is not None:
            own = self._known(self.own_rows, numbers.index_select(0, self._places))
        loss, fused = self._step(numbers, *given, *loose(own))
        loss.backward()
        self.update()
        self._loss += loss.detach() * len(numbers) / self.top.spec.members
        self._rows += len(numbers)
        if self.watch is not None:
            self.watch(numbers, fused.detach())
        return {name: self.settings.for_wire(_gradient(leaf)) for name, leaf in leaves.items()}

    def judge(self, whole: Sequence[Tensor], numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the fused opinion on each of its rows."""
        assert self.targets is not None
        sides = [
            side.index_select(0, index)
            for side, (index, _) in zip(whole, self._layout, strict=True)
        ]
        imputed, present = [side[-1] for side in whole], [known for _, known in self._layout]
        for number, name in enumerate(self.names):
            if name in self.reliable:
                sides[number] = self._believed(name, sides[number], imputed[number], numbers)
                present[number] = present[number] * self.reliable[name].index_select(0, numbers)
        total, fused = total_loss(
            self.top,
            self.how,
            sides,
            imputed,
            present,
            self.order.make_up[0] if self.segment_names[0] == ALIGNED else 0,
            self.targets.index_select(0, numbers),
            self._row_weights(numbers),
            likely=self.likely,
        )
        return total, self._agreed(fused, numbers)

    def _believed(self, name: str, side: Tensor, imputed: Tensor, numbers: Tensor) -> Tensor:
        """The imputed embedding where a side is not believed at all, else as far to the side."""
        if name not in self.reliable:
            return side
        trust = self.reliable[name].index_select(0, numbers)
        return imputed + trust[:, None] * (side - imputed)

    def _row_weights(self, numbers: Tensor) -> Tensor:
        """How far rows count [n]; with several members for each of them [members, n]."""
        found = torch.ones(len(numbers), dtype=self.settings.dtype, device=self.device)
        if self.top.spec.members == 1:
            return found
        members = torch.arange(self.top.spec.members, device=self.device)[:, None]
        if self.unseen is None:
            return found.expand(len(members), -1)
        return found * (self.unseen.index_select(0, numbers) != members)

    def embed_own(self, batch: Batch) -> Tensor:
        assert self.mean is not None
        assert isinstance(self._bottom, (Bottom, BottomEnsemble))
        return embed(self._bottom, batch, self.mean)

    # ------------------------------------------------------------------ without training

    @torch.no_grad()
    def own_embedding(self, numbers: Tensor) -> Tensor:
        """As `EvidenceBottomHalf.embed`, for the party the heads live at."""
        assert self.own_rows is not None
        self.module.eval()
        known = numbers[self.own_rows.slot.index_select(0, numbers) >= 0]
        with self.settings.autocast(self.device):
            return self.embed_own(self.own_rows.batch(known)).to(self.settings.dtype)

    @torch.no_grad()
    def source_outputs(
        self,
        sides: Sequence[Tensor],
        imputed: Sequence[Tensor],
        known: Sequence[bool],
        numbers: Tensor,
    ) -> dict[str, Tensor]:
        """Outputs of every source that has something to say on rows known to these parties."""
        self.module.eval()
        ready = [
            self._believed(name, side, mean, numbers)
            if has
            else mean[None].expand(len(numbers), -1)
            for name, side, mean, has in zip(self.names, sides, imputed, known, strict=True)
        ]
        found: dict[str, Tensor] = {}
        with self.settings.autocast(self.device):
            if self.top.spec.heads:
                for number, name in enumerate(self.names):
                    if known[number] or self.how.imputed:
                        found[name] = self.top.head(number, ready[number])
            if self.top.spec.joint:
                found[JOINT] = self.top.together(ready)
        return {name: self._agreed(outputs, numbers) for name, outputs in found.items()}

    def _agreed(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        """Of a row that a member has not seen in training that member's, else the members' mean."""
        if outputs.ndim == 2:
            return outputs
        mean = outputs.mean(0)
        if self.unseen is None:
            return mean
        member = self.unseen.index_select(0, numbers)
        rows = torch.arange(len(numbers), device=self.device)
        return torch.where(member[:, None] < 0, mean, outputs[member.clamp_min(0), rows])
