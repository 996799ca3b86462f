"""One step of evidential training at each party: batches, bottoms over rows they know, heads.

A batch takes a fixed number of rows of each segment (rows known to all, then each party's own), so
that overlapping rows are never lost among the others, and so that every party knows the layout of
a batch without being told. A party embeds only the rows it has, and its mean row once a batch,
which is the imputed embedding of all others. Plain torch: no parties, no calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learn.augment import Weak
from fedmend.learn.nets import Batch
from fedmend.learn.recorded import Recorded, can_record
from fedmend.methods.risa.network import (
    JOINT,
    EvidenceTop,
    MeanRow,
    Objective,
    PlainLoss,
    embed,
    total_loss,
)
from fedmend.split.config import Settings
from fedmend.split.features import ALIGNED, Features, MixedOrder, Segments, is_known
from fedmend.split.models import PartialBottom, TopModel, TrainedModel, one_cycle

MAX_PASSES = 4
"""Overlapping rows are shown at most so often in an epoch, however few there are: learnt by heart
they would be of no use."""


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
        wanted = min(math.ceil(least * size), math.ceil(MAX_PASSES * counts[0] / steps))
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


class Watch:
    """The mean uncertainty about every row since it was last cleared (§II-D).

    Every E epochs it is compared with tau_t = tau_0^(t / T), which falls from one to tau_0; imputed
    rows above leave the training.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._sum = torch.zeros(rows, device=device)
        self._seen = torch.zeros(rows, device=device)

    def add(self, numbers: Tensor, uncertainty: Tensor) -> None:
        """**Shape** [n] each."""
        self._sum.index_add_(0, numbers, uncertainty.float())
        self._seen.index_add_(0, numbers, torch.ones_like(uncertainty, dtype=torch.float32))

    def below(self, rows: np.ndarray, limit: float) -> np.ndarray:
        """Of these rows those whose mean is at most the limit; rows never seen stay."""
        at = torch.from_numpy(np.ascontiguousarray(rows)).to(self._seen.device)
        mean = self._sum[at] / self._seen[at].clamp_min(1.0)
        return rows[((mean <= limit) | (self._seen[at] == 0)).cpu().numpy()]

    def clear(self) -> None:
        self._sum.zero_()
        self._seen.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"sum": self._sum, "seen": self._seen}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._sum.copy_(saved["sum"])
        self._seen.copy_(saved["seen"])


class _ByEpochs(TrainedModel):
    """A schedule that goes by epochs: their number of steps changes where rows leave."""

    def start_epoch(self, seed: int) -> None:
        super().start_epoch(seed)
        self._steps += 1  # counts epochs here

    def _scale(self) -> float:
        epochs, now = self.settings.schedule_epochs, self._steps
        if self.settings.schedule == "constant":
            return 1.0
        start, end = (now - 1) / epochs, now / epochs
        return one_cycle(start + (end - start) * self.order.done)


class EvidenceBottom(_ByEpochs, PartialBottom):
    """A party's bottom over the rows it has and, last of every batch, its mean row."""

    def __init__(
        self,
        module: Any,
        features: Features,
        mean: MeanRow,
        mine: Sequence[bool],
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.mine = mine
        mean = mean.to(device, settings.dtype)
        super().__init__(module, features, settings, device, partial(embed, module, mean=mean))


class JudgeStep(nn.Module):
    """The loss of a batch and, to watch, fused opinions, from row numbers and embeddings.

    With a bottom of the label party's own, the tensors of its batch come after the embeddings.
    """

    def __init__(self, top: EvidenceTopModel) -> None:
        super().__init__()
        self.trained = top.module
        self._top = top

    def forward(self, numbers: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        top = self._top
        others = [name for name in top.names if name != top.own]
        sides = dict(zip(others, given, strict=False))
        with top.settings.autocast(top.device, cache=False):
            if top.embed_own is not None:
                numeric, codes, *blocks = given[len(others) :]
                sides[str(top.own)] = top.embed_own(Batch(numeric, codes, tuple(blocks)))
            return top.judge([sides[name] for name in top.names], numbers)


class EvidenceTopModel(_ByEpochs, TopModel):
    """The heads, with the bottom of the party they live at; targets are class numbers.

    unseen: by row the network of an ensemble that does not learn from it, or -1; None where all
    learn from all. reliable: by party how far its side of each row is trusted, where cells of it
    are completed. The side is then between the completed and the imputed embedding, and the party's
    own opinion is discounted (Shafer) and learnt from as far. watch: where rows are selected.
    """

    top: EvidenceTop
    order: MixedOrder

    def __init__(
        self,
        top: EvidenceTop,
        how: Objective,
        settings: Settings,
        device: torch.device,
        *,
        names: Sequence[str],
        segments: Segments,
        own: str | None = None,
        bottom: Any = None,
        features: Features | None = None,
        mean: MeanRow | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.embed_own: Any = None
        if mean is not None:
            self.embed_own = partial(embed, bottom, mean=mean.to(device, settings.dtype))
        super().__init__(
            top,
            settings,
            device,
            names=names,
            own=own,
            bottom=bottom,
            features=features,
            embed=self.embed_own,
        )
        self.how = how
        self.segments = [str(name) for name, _ in segments]
        self.watch = watch
        self.unseen: Tensor | None = None
        self.reliable: dict[str, Tensor] = {}
        self._places: dict[str, Tensor] = {}
        self._layout: list[tuple[Tensor, Tensor]] = []
        self._walked: list[tuple[Tensor, Tensor | None, dict[str, Tensor]]] = []
        self._judged = Recorded(lambda: JudgeStep(self), can_record(device, bottom, top))

    def walk(self, order: MixedOrder) -> int:  # type: ignore[override]
        size = sum(order.counts)
        self._layout = []
        for party in self.names:
            places = order.places([is_known(name, party) for name in self.segments])
            self._places[party] = places
            index = torch.full((size,), len(places), dtype=torch.int64, device=self.device)
            index[places] = torch.arange(len(places), device=self.device)
            self._layout.append((index, index < len(places)))
        self._judged.forget()
        return super().walk(order)

    def _batch_loss(
        self, embeddings: Mapping[str, Tensor], numbers: Tensor, draws: Weak | None
    ) -> Tensor:
        self._walked.append((numbers, self.unseen, self.reliable))
        given = [embeddings[name] for name in self.names if name != self.own]
        if self.own_embedding is not None:
            here = self._places[str(self.own)]
            drawn = None if draws is None else draws[here]
            batch = self.own_embedding.features.batch(numbers.index_select(0, here), drawn)
            given += [batch.numeric, batch.codes, *batch.blocks]
        loss, *fused = self._judged(numbers, *given)
        if self.watch is not None:
            self.watch.add(numbers, fused[0].detach()[:, -1])
        return loss

    def _learn(self, loss: Tensor, rows: int) -> None:
        super()._learn(loss / self.top.spec.members, rows)

    def judge(self, whole: Sequence[Tensor], numbers: Tensor) -> tuple[Tensor, ...]:
        """The loss of a batch and, where rows are watched, the fused opinion on each of them."""
        assert self.targets is not None
        targets = self.targets.index_select(0, numbers)
        weights = self._row_weights(numbers, self.unseen)
        if self._is_plain:
            return (self._plain_loss(whole, targets, weights),)
        sides = [
            side.index_select(0, index)
            for side, (index, _) in zip(whole, self._layout, strict=True)
        ]
        imputed, present = [side[-1] for side in whole], [known for _, known in self._layout]
        for number, name in enumerate(self.names):
            if name in self.reliable:
                sides[number] = self._trusted(name, sides[number], imputed[number], numbers)
                present[number] = present[number] * self.reliable[name].index_select(0, numbers)
        total, fused = total_loss(
            self.top,
            self.how,
            sides,
            imputed,
            present,
            self.order.counts[0] if self.segments[0] == ALIGNED else 0,
            targets,
            weights,
            likely=self.likely,
            fuse=self.watch is not None,
        )
        if self.watch is None or fused is None:
            return (total,)
        return total, self._agreed(fused, numbers)

    @property
    def _is_plain(self) -> bool:
        """Whether slopes can be written down; on a GPU steps may be recorded instead."""
        spec, how = self.top.spec, self.how.plain and self.watch is None and not self.likely
        heads = spec.heads and spec.joint and len(spec.hidden) == 1 < spec.members
        here = self.device.type == "cpu" and self.settings.precision != "bf16"
        return how and heads and here and not spec.same_head and not self.reliable

    def _plain_loss(self, whole: Sequence[Tensor], targets: Tensor, weights: Tensor) -> Tensor:
        known = [self._places[name] for name in self.names]
        counts = [*(weights.index_select(1, rows) for rows in known), weights]
        shares = [each / each.sum(-1, keepdim=True).clamp_min(1e-6) for each in counts]
        shares[:-1] = [each * self.how.party for each in shares[:-1]]
        hard = nn.functional.one_hot(targets, self.top.spec.out)
        wanted = torch.cat([*(hard.index_select(0, rows) for rows in known), hard])
        index = [index for index, _ in self._layout]
        return PlainLoss.apply(self.top, index, wanted, torch.cat(shares, 1), *whole)

    def _trusted(self, name: str, side: Tensor, imputed: Tensor, numbers: Tensor) -> Tensor:
        """The imputed embedding where a side is not trusted at all, else as far to the side."""
        if name not in self.reliable:
            return side
        trust = self.reliable[name].index_select(0, numbers)
        return imputed + trust[:, None] * (side - imputed)

    def _row_weights(self, numbers: Tensor, unseen: Tensor | None) -> Tensor:
        """How far rows count [n]; in an ensemble for each of its networks [members, n]."""
        found = torch.ones(len(numbers), dtype=self.settings.dtype, device=self.device)
        if self.top.spec.members == 1:
            return found
        members = torch.arange(self.top.spec.members, device=self.device)[:, None]
        if unseen is None:
            return found.expand(len(members), -1)
        return found * (unseen.index_select(0, numbers) != members)

    def _forget_loss(self) -> None:
        super()._forget_loss()
        self._walked = []

    def loss_weights(self) -> Tensor:
        """How far each row counts in the terms of the loss that would be told now.

        By head (those of the parties where they have a loss, then all of the batch) and network,
        as things stood when the rows were walked. **Shape** [heads, members, N].
        """
        assert self.targets is not None
        heads = self.names if self.top.spec.heads and self.how.party else []
        shape = len(heads) + 1, self.top.spec.members, len(self.targets)
        found = torch.zeros(shape, device=self.device)
        for numbers, unseen, reliable in self._walked:
            sides = [torch.ones(len(numbers), device=self.device)]
            for name, (_, known) in zip(heads, self._layout, strict=False):
                sides.append(known * reliable[name][numbers] if name in reliable else known.float())
            weights = torch.stack(sides)[:, None] * self._row_weights(numbers, unseen).float()
            weights /= weights.sum(-1, keepdim=True).clamp_min(1e-6)
            found.index_add_(2, numbers, weights)
        return found

    def counted(self) -> Tensor | None:
        """The same, had each row been dealt once; None where it changed while they were walked."""
        if len({(id(unseen), id(reliable)) for _, unseen, reliable in self._walked}) != 1:
            return None
        _, unseen, reliable = self._walked[0]
        assert self.targets is not None
        everybody = torch.arange(len(self.targets), device=self.device)
        whole = torch.ones(len(everybody), device=self.device)
        sides = [reliable.get(name, whole).float() for name in ("", *self.names)]
        return torch.stack(sides)[:, None] * self._row_weights(everybody, unseen).float()

    # ------------------------------------------------------------------ without training

    @torch.no_grad()
    def own_embeddings(self, numbers: Tensor) -> Tensor:
        """As `EvidenceBottom.embed`, for the party the heads live at."""
        assert self.own_embedding is not None
        self.module.eval()
        return self.own_embedding(self.own_embedding.features.known(numbers))

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
            self._trusted(name, side, mean, numbers) if has else mean[None].expand(len(numbers), -1)
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
        """Of a row that a network has not seen in training that network's, else their mean."""
        if outputs.ndim == 2:
            return outputs
        mean = outputs.mean(0)
        if self.unseen is None:
            return mean
        member = self.unseen.index_select(0, numbers)
        rows = torch.arange(len(numbers), device=self.device)
        return torch.where(member[:, None] < 0, mean, outputs[member.clamp_min(0), rows])

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> dict[str, Any]:
        watched = {} if self.watch is None else self.watch.state()
        own = {"targets": self.targets, "watch": watched, "unseen": self.unseen}
        return super().checkpoint() | own

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.targets = saved["targets"].to(self.device)
        if self.watch is not None:
            self.watch.restore(saved["watch"])
        if saved["unseen"] is not None:
            self.unseen = saved["unseen"].to(self.device)
