"""The halves of an evidential split network: who knows which rows of a batch.

A party embeds only the rows it has, and its mean row once a batch, which stands in for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.learn.augment import Weak
from fedmend.learn.nets import Batch, Bottom
from fedmend.learn.optim import FlatOptimizer
from fedmend.learn.recorded import Recorded, can_record
from fedmend.methods.risa.committee import BottomCommittee
from fedmend.methods.risa.imputation import MeanRow, OwnRows, embed
from fedmend.methods.risa.pools import Pools
from fedmend.methods.risa.steps import JudgeStep, MeanStep, ViewsStep, loose
from fedmend.methods.risa.top import (
    JOINT,
    EvidenceTop,
    Objective,
    consistency_loss,
    total_loss,
)
from fedmend.split.features import ALIGNED, Segments, augmented
from fedmend.split.halves import BottomHalf, Settings, TopHalf, _gradient, one_cycle


def _rows(batch: Batch, some: slice) -> Batch:
    return Batch(
        batch.numeric[some], batch.codes[some], tuple(block[some] for block in batch.blocks)
    )


def _joined(one: Batch, other: Batch) -> Batch:
    blocks = zip(one.blocks, other.blocks, strict=True)
    return Batch(
        torch.cat([one.numeric, other.numeric]),
        torch.cat([one.codes, other.codes]),
        tuple(torch.cat(pair) for pair in blocks),
    )


def _between(stand_in: Tensor, side: Tensor, trust: Tensor) -> Tensor:
    """The stand-in where a side is not believed at all, the side where it is wholly."""
    return stand_in + trust[:, None] * (side - stand_in)


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


class EvidenceBottomHalf(_Trained, BottomHalf):
    """A party's bottom over the rows it has, and its mean row."""

    def __init__(
        self,
        module: Bottom | BottomCommittee,
        own: OwnRows,
        mean: MeanRow,
        segments: Segments,
        name: str,
        settings: Settings,
        device: torch.device,
        *,
        strong: Callable[[Batch], Batch] | None = None,
    ) -> None:
        BottomHalf.__init__(self, module, own, settings, device)  # type: ignore[arg-type]
        self._prepare(segments, name)
        self.bottom = module
        self.own = own
        self.mean = mean.to(device, settings.dtype)
        self.strong = strong
        self._embed = None
        if can_record(device, module):
            step = ViewsStep if strong is not None else MeanStep
            self._embed = Recorded(lambda: step(module, self.mean, settings, device), on=True)
        self._learnt_from = torch.zeros(0, dtype=torch.int64)
        self._batch: Batch | None = None

    def forward(self) -> Tensor:
        """Embeddings of this party's rows of the next batch, and last of its mean row."""
        self._numbers = self.order.next().index_select(0, self._places)
        self._batch = self._known(self.own, self._numbers)
        if self.strong is None:
            self._embedding = self._compute(self._numbers)
            return self.settings.for_wire(self._embedding.detach())
        return self._forward_views(self._batch, self.strong)

    def _forward_views(self, batch: Batch, strong: Callable[[Batch], Batch]) -> Tensor:
        """Overlapping rows, then weak and strong views of this party's own, then the mean row.

        Nothing is learnt from weak views: their embeddings are made without a graph.
        """
        overlapping = self.order.sizes[0]
        own = _rows(batch, slice(overlapping, None))
        self._batch = _joined(_rows(batch, slice(0, overlapping)), strong(own))
        if self._embed is not None:
            weak, self._embedding = self._embed(*loose(own), *loose(self._batch))
        else:
            with torch.no_grad(), self.settings.autocast(self.device):
                weak = self.bottom(own).to(self.settings.dtype)
            self._embedding = self._compute(batch.numeric)
        assert self._embedding is not None
        learnt = torch.arange(overlapping + len(weak) + 1, device=self.device)
        self._learnt_from = learnt + len(weak) * (learnt >= overlapping)
        made = self._embedding.detach()
        whole = torch.cat([made[:overlapping], weak.detach(), made[overlapping:]])
        return self.settings.for_wire(whole)

    def backward(self, gradient: Tensor) -> None:
        if self.strong is not None:
            gradient = gradient.to(self.device).index_select(0, self._learnt_from)
        super().backward(gradient)

    @torch.no_grad()
    def embed(self, numbers: Tensor) -> Tensor:
        """Embeddings of those of the rows that this party has, and last of its mean row."""
        self.module.eval()
        known = numbers[self.own.slot.index_select(0, numbers) >= 0]
        self._batch = self.own.batch(known)
        return self.settings.for_wire(self._compute(known))

    def _compute(self, numbers: Tensor, draws: Weak | None = None) -> Tensor:
        assert self._batch is not None
        if self._embed is not None and self.strong is None and torch.is_grad_enabled():
            return self._embed(*loose(self._batch))
        with self.settings.autocast(self.device):
            return embed(self.bottom, self._batch, self.mean).to(self.settings.dtype)


class EvidenceTopHalf(_Trained, TopHalf):
    """The heads, with the bottom of the party they live at; targets are class numbers.

    unseen: by row the member that does not learn from it, or -1; None where all learn from all.
    reliable: by party how far its side of each row is believed, where cells of it are completed.
    The side is then between what was completed and the stand-in, and the party's own opinion is
    discounted (Shafer) and learnt from as far.
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
        bottom: Bottom | BottomCommittee | None,
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
        self.epochs = 0
        # A weight that grows from epoch to epoch would be recorded as it is in the first.
        on = can_record(device, bottom, top) and not how.kl
        self._step = Recorded(lambda: JudgeStep(self), on)

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

    def start_epoch(self, seed: int, dropout_seed: int) -> None:
        super().start_epoch(seed, dropout_seed)
        self.epochs += 1

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
        loss, *more = self._step(numbers, *given, *loose(self._own_batch(numbers)))
        fused = more[0].detach() if more else None
        loss.backward()
        self.update()
        self._loss += loss.detach() * len(numbers) / self.top.spec.members
        self._rows += len(numbers)
        if self.watch is not None and fused is not None:
            self.watch(numbers, fused)
        return {name: self.settings.for_wire(_gradient(leaf)) for name, leaf in leaves.items()}

    def judge(self, whole: Sequence[Tensor], numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of a batch, and the fused opinion on each of its rows."""
        assert self.targets is not None
        targets = self.targets.index_select(0, numbers)
        overlapping = self.order.sizes[0] if self.segment_names[0] == ALIGNED else 0
        if self.how.consistency:
            total = targets.new_zeros((), dtype=self.settings.dtype)
            for number, side in enumerate(whole):
                own = (len(side) - 1 - overlapping) // 2
                total = total + consistency_loss(
                    self.top,
                    self.how,
                    number,
                    side,
                    overlapping,
                    own,
                    targets,
                    likely=self.likely,
                )
            return total, None
        sides = [
            side.index_select(0, index)
            for side, (index, _) in zip(whole, self._layout, strict=True)
        ]
        stand_ins, present = [side[-1] for side in whole], [known for _, known in self._layout]
        for number, name in enumerate(self.names):
            if name in self.reliable:
                sides[number] = self._believed(name, sides[number], stand_ins[number], numbers)
                present[number] = present[number] * self.reliable[name].index_select(0, numbers)
        total, fused = total_loss(
            self.top,
            self.how,
            sides,
            stand_ins,
            present,
            overlapping,
            targets,
            self._row_weights(numbers),
            self.epochs,
            likely=self.likely,
        )
        return total, self._agreed(fused, numbers)

    def _believed(self, name: str, side: Tensor, stand_in: Tensor, numbers: Tensor) -> Tensor:
        trust = self.reliable.get(name)
        return side if trust is None else _between(stand_in, side, trust.index_select(0, numbers))

    def _row_weights(self, numbers: Tensor) -> Tensor:
        """How far rows count [n]; with several members for each of them [members, n]."""
        found = torch.ones(len(numbers), dtype=self.settings.dtype, device=self.device)
        if self.weights is not None:
            found = self.weights.index_select(0, numbers)
        if self.top.spec.members == 1:
            return found
        members = torch.arange(self.top.spec.members, device=self.device)[:, None]
        if self.unseen is None:
            return found.expand(len(members), -1)
        return found * (self.unseen.index_select(0, numbers) != members)

    def _own_batch(self, numbers: Tensor) -> Batch | None:
        """This party's rows of a batch; None where it has no columns."""
        if self.own is None:
            return None
        assert self.own_rows is not None
        return self._known(self.own_rows, numbers.index_select(0, self._places))

    def embed_own(self, batch: Batch) -> Tensor:
        assert self.mean is not None
        assert isinstance(self._bottom, (Bottom, BottomCommittee))
        return embed(self._bottom, batch, self.mean)

    # ------------------------------------------------------------------ without training

    @torch.no_grad()
    def own_embedding(self, numbers: Tensor) -> Tensor:
        """As `EvidenceBottomHalf.embed`, for the party the heads live at."""
        assert self.own_rows is not None
        assert self.mean is not None
        assert isinstance(self._bottom, (Bottom, BottomCommittee))
        self.module.eval()
        known = numbers[self.own_rows.slot.index_select(0, numbers) >= 0]
        with self.settings.autocast(self.device):
            found = embed(self._bottom, self.own_rows.batch(known), self.mean)
        return found.to(self.settings.dtype)

    @torch.no_grad()
    def source_outputs(
        self,
        sides: Sequence[Tensor],
        stand_ins: Sequence[Tensor],
        known: Sequence[bool],
        numbers: Tensor,
    ) -> dict[str, Tensor]:
        """Outputs of every source that has something to say on rows known to these parties."""
        self.module.eval()
        ready = [
            self._believed(name, side, stand_in, numbers)
            if has
            else stand_in[None].expand(len(numbers), -1)
            for name, side, stand_in, has in zip(self.names, sides, stand_ins, known, strict=True)
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
