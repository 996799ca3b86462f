"""Evidential split training at the parties: bottoms that embed what they know, heads that judge.

As in `split.py`, the top lives at the label party with that party's own bottom, embeddings go up
and gradients come down. New is that a party only embeds rows it has: for all others its mean row
stands in, embedded once a batch. Labels, made-up labels of passive rows and opinions on rows stay
at the label party; row numbers that take part in the training are said to all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.errors import DataError
from fedmend.federation import exposed
from fedmend.federation.randomness import begin
from fedmend.learn.nets import Batch
from fedmend.methods.risa.additive_workers import AdditiveParty
from fedmend.methods.risa.committee import BottomCommittee, CommitteeSpec, draw
from fedmend.methods.risa.halves import EvidenceBottomHalf
from fedmend.methods.risa.imputation import OwnRows, mean_row
from fedmend.methods.risa.parts import (
    EvidencePart,
    HeadsPart,
    drop_part,
    load_part,
    new_part,
    part_of,
    save_part,
)
from fedmend.split.belief import row_confidence
from fedmend.split.features import ALIGNED, Segments
from fedmend.split.halves import Settings
from fedmend.split.parts import BottomPart
from fedmend.split.sharing import SharesBottom
from fedmend.split.worker import SplitWorker
from fedmend.split.workers import _numbers


class EvidenceWorker(SharesBottom, SplitWorker):
    """What bottoms and heads have in common: own rows, the mean row, parts on disk."""

    @exposed(kind="control")
    def save(self, path: str) -> None:
        save_part(self.site, self.model, path)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        load_part(self.site, self.model, path)

    @exposed(kind="control")
    def start_from(self, other: str) -> None:
        """Begin with the bottom of another model this party has a part of."""
        mine, theirs = self._part().bottom, part_of(self.site, other).bottom
        if mine is None or theirs is None:
            return
        if isinstance(mine.module, BottomCommittee):
            mine.module.take(theirs.module)
        else:
            mine.module.load_state_dict(theirs.module.state_dict())

    def _shared_bottom(self) -> nn.Module | None:
        part = self._part().bottom
        return None if part is None else part.module

    @exposed(kind="control")
    def drop(self) -> None:
        """Forget a model that only served to train another."""
        drop_part(self.site, self.model)

    def _part(self) -> EvidencePart:
        return part_of(self.site, self.model)

    def _new_bottom(
        self, net: Mapping[str, Any], settings: Settings, *, solo: bool = False
    ) -> BottomPart:
        """A fresh bottom, or those of several members side by side; with `solo` twice as many."""
        part = super()._new_bottom(net, settings)
        members = int(net["members"]) * (2 if solo else 1)
        if members > 1:
            module = BottomCommittee(CommitteeSpec(part.module.spec, members))
            weights = self.site.torch_generator(f"bottoms {net['seed']}", "cpu")
            draw(module, weights)
            # What images look like is learnt once, and so are the layers that rest on it.
            module.take_networks(part.module)
            part.module = module  # type: ignore[assignment]
        return part

    def _own(
        self, part: EvidencePart, segments: Segments, settings: Settings, how: Mapping[str, Any]
    ) -> OwnRows:
        """This party's rows among the numbered ones; when it trains, its mean row as well."""
        assert part.bottom is not None
        rows = self._rows(segments)
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.bottom.encoder.transform(table, party=self.site.name)
        placed = np.where(rows >= 0, np.searchsorted(present, rows), -1)
        if part.mean is None:
            overlapping = sum(int(str(count)) for name, count in segments if name == ALIGNED)
            observed = placed[:overlapping]
            trust = row_confidence(self.site, self.scope.partition("@")[0])
            if trust is not None:
                observed = observed[trust[rows[:overlapping]] == 1.0]
            part.mean = mean_row(
                encoded,
                observed,
                least=int(how["min_mean_rows"]),
                nominal=str(how["nominal"]),
                party=self.site.name,
            )
        return OwnRows(encoded, placed, self.device, settings.dtype)


class EvidenceBottomWorker(AdditiveParty, EvidenceWorker):
    """A feature party without labels."""

    half: EvidenceBottomHalf
    _attached: np.ndarray

    @exposed(kind="control")
    def create(self, net: dict[str, Any], settings: dict[str, Any]) -> int:
        """Make a fresh bottom; returns the width of its embedding."""
        part = new_part(self.site, self.model)
        part.bottom = self._new_bottom(net, Settings.from_dict(settings))
        return part.bottom.module.spec.out

    @exposed(kind="control", takes={"part": "weights"})
    def take_top(self, part: dict[str, Any]) -> None:
        """A copy of the heads, with which this party can predict alone."""
        self._part().heads = HeadsPart.from_wire({**part, "foreign": True})

    @exposed(kind="control")
    def attach(self, segments: list[Any], settings: dict[str, Any], how: dict[str, Any]) -> None:
        """Take these rows, and be ready to embed them."""
        settled, part = Settings.from_dict(settings), self._part()
        if part.bottom is None:
            raise DataError("holds no bottom model", party=self.site.name, mend="fit the model")
        own = self._own(part, segments, settled, how)
        self._attached = self._rows(segments)
        assert part.mean is not None
        self.half = EvidenceBottomHalf(
            part.bottom.module,
            own,
            part.mean,
            segments,
            self.site.name,
            settled,
            self.device,
            strong=self._strong_views(own) if how["consistency"] else None,
        )

    @exposed(kind="prediction")
    def confidence(self) -> np.ndarray | None:
        """How far this party's side of each row is believed; None where nothing was completed."""
        found = row_confidence(self.site, self.scope.partition("@")[0])
        if found is None:
            return None
        return np.where(self._attached >= 0, found[self._attached], 1.0).astype(np.float32)

    def _strong_views(self, own: OwnRows) -> Callable[[Batch], Batch]:
        self._drawn = torch.Generator(self.device)
        return lambda batch: own.strong_view(batch, self._drawn)

    @exposed(kind="control")
    def set_pools(self, pools: list[np.ndarray], least: float) -> int:
        return self.half.set_pools(pools, least)

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(
        self,
        gradient: Tensor | None = None,
        epoch: int | None = None,
        done: list[float] | None = None,
    ) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embeddings."""
        if gradient is not None:
            self.half.backward(gradient)
        if epoch is not None and done is not None:
            self.half.start_epoch(epoch, self._dropout_seed(epoch))
            self.half.begin((done[0], done[1]))
            if self.half.strong is not None:
                begin(self._drawn, self._dropout_seed(epoch) ^ 0x57)
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self.half.backward(gradient)

    @exposed(kind="embedding")
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of those of the rows it has, and last of its mean row; no training.

        Behind the embeddings what its columns add up to, where it has learnt that.
        """
        numbers = _numbers(rows, self.device)
        found = self.half.embed(numbers)
        scores = self._part().scores
        if scores is None:
            return found
        known = numbers[self.half.own.slot.index_select(0, numbers) >= 0]
        added = scores.of(self.half.own.batch(known)).to(found)
        return torch.cat([found, torch.cat([added, added.new_zeros(1, added.shape[1])])], 1)
