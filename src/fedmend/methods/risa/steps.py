"""Steps of evidential training as modules of loose tensors, so that a GPU can replay them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedmend.learn.nets import Batch, Bottom
from fedmend.methods.risa.committee import BottomCommittee
from fedmend.methods.risa.imputation import MeanRow, embed
from fedmend.split.halves import Settings

if TYPE_CHECKING:
    from fedmend.methods.risa.halves import EvidenceTopHalf

__all__ = ["JudgeStep", "MeanStep", "ViewsStep", "loose"]


def loose(batch: Batch | None) -> tuple[Tensor, ...]:
    """The tensors of a batch; none of none."""
    return () if batch is None else (batch.numeric, batch.codes, *batch.blocks)


class MeanStep(nn.Module):
    """Embeddings of a batch of loose tensors, and last of the mean row."""

    def __init__(
        self,
        bottom: Bottom | BottomCommittee,
        mean: MeanRow,
        settings: Settings,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.bottom = bottom
        self._mean, self._settings, self._device = mean, settings, device

    def forward(self, *given: Tensor) -> Any:
        with self._settings.autocast(self._device, cache=False):
            return self._embedded(given)

    def _embedded(self, given: Sequence[Tensor]) -> Tensor:
        batch = Batch(given[0], given[1], tuple(given[2:]))
        return embed(self.bottom, batch, self._mean).to(self._settings.dtype)


class ViewsStep(MeanStep):
    """Embeddings of weak views, from which nothing is learnt; then as `MeanStep`."""

    def forward(self, *given: Tensor) -> Any:
        cut = len(given) // 2
        with self._settings.autocast(self._device, cache=False):
            with torch.no_grad():
                weak = self.bottom(Batch(given[0], given[1], tuple(given[2:cut])))
            return weak.to(self._settings.dtype), self._embedded(given[cut:])


class JudgeStep(nn.Module):
    """The loss of a batch and, last, the fused opinions, from row numbers and embeddings.

    With a bottom of the label party's own, its batch comes after the embeddings.
    """

    def __init__(self, half: EvidenceTopHalf) -> None:
        super().__init__()
        self.trained = half.module
        self._half = half

    def forward(self, numbers: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        half = self._half
        others = [name for name in half.names if name != half.own]
        sides = dict(zip(others, given, strict=False))
        with half.settings.autocast(half.device, cache=False):
            if half.own is not None:
                numeric, codes, *blocks = given[len(others) :]
                sides[half.own] = half.embed_own(Batch(numeric, codes, tuple(blocks)))
            loss, fused = half.judge([sides[name] for name in half.names], numbers)
        return (loss,) if fused is None else (loss, fused)
