"""SSLVFL: every party pre-trains its bottom on all its rows, then a split network on aligned ones.

RISA's baseline "SSL + VFL". Pre-training needs no labels and no other party:

- `"simclr"`: two views of a row must be closer to each other than to other rows' views (SimCLR:
  Chen et al., 2020). Images: two strong views. Tables: the row itself and a copy many of whose
  cells come from other rows (SCARF: Bahri et al., 2022).
- `"autoencoder"`: a corrupted row must be restored from its embedding (`SFHTL`).

Only the mean loss of an epoch leaves a party.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend._parameters import NOT_NEGATIVE, POSITIVE, POSITIVE_SHARE, Rules, at_least, parameters
from fedmend.federation import exposed
from fedmend.federation.bound import declare
from fedmend.learn.nets import Batch, Bottom, mlp
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.local import LocalTrainer, RowViews
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import BatchOrder
from fedmend.split.training import Session, SplitNetwork, epoch_seed
from fedmend.split.workers import BottomWorker, SplitWorker, TopWorker

__all__ = ["SSLVFL"]

SMALL_SIDE = 8
"""Images are restored at no more than so many pixels each way."""


# ---------------------------------------------------------------------------------- at a party


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss: each of 2n views must find its twin among the other 2n - 1.

    **Shape** first, second [n, d].
    """
    views = F.normalize(torch.cat([first, second]).float(), dim=1)
    n = len(first)
    similar = views @ views.T / temperature
    similar.fill_diagonal_(float("-inf"))
    twins = torch.arange(2 * n, device=views.device).roll(n)
    return F.cross_entropy(similar, twins)


class Decoder(nn.Module):
    """Restores a row from its embedding: numbers, log-probabilities of codes, small images."""

    def __init__(self, bottom: Bottom) -> None:
        super().__init__()
        spec = bottom.spec
        self.numeric = spec.numeric
        self.cardinalities = spec.cardinalities
        self.sizes = [_small(shape) for shape in spec.block_shapes]
        out = spec.numeric + sum(spec.cardinalities) + sum(int(np.prod(s)) for s in self.sizes)
        self.body = mlp(spec.out, (2 * spec.out,), out)

    def loss(self, embedding: Tensor, batch: Batch) -> Tensor:
        """The mean over columns; an image counts as one, at reduced size."""
        restored = self.body(torch.relu(embedding)).float()
        losses, at = [], self.numeric
        if self.numeric:
            error = (restored[:, : self.numeric] - batch.numeric).square().mean(0)
            losses.append(error)
        for column, cardinality in enumerate(self.cardinalities):
            logits = restored[:, at : at + cardinality]
            losses.append(F.cross_entropy(logits, batch.codes[:, column])[None])
            at += cardinality
        for block, size in zip(batch.blocks, self.sizes, strict=True):
            width = int(np.prod(size))
            small = F.adaptive_avg_pool2d(block, (size[1], size[2])) if block.dim() == 4 else block
            losses.append(F.mse_loss(restored[:, at : at + width], small.flatten(1))[None])
            at += width
        return torch.cat(losses).mean()


def _small(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 3:
        return shape
    return (shape[0], min(SMALL_SIDE, shape[1]), min(SMALL_SIDE, shape[2]))


class Pretrainer(LocalTrainer):
    """One bottom and its projection head or decoder, epoch by epoch.

    how: the kind, epochs, batch_size, temperature (of SimCLR's similarities).
    """

    def __init__(
        self, bottom: Bottom, views: RowViews, settings: Settings, how: Mapping[str, Any]
    ) -> None:
        features, out = views.features, bottom.spec.out
        self.order = BatchOrder(
            np.arange(features.n_rows),
            how["batch_size"],
            features.numeric.device,
            least=settings.epoch_steps,
        )
        self.temperature = how["temperature"] if how["kind"] == "simclr" else None
        helper = Decoder(bottom) if self.temperature is None else mlp(out, (out,), out)
        super().__init__(bottom, helper, views, settings, how["epochs"] * len(self.order.sizes))

    def epoch(self, seed: int) -> float:
        """One pass over the rows; the mean loss."""
        self.bottom.train()
        self.order.start(seed)
        total = torch.zeros((), device=self.device)
        for size in self.order.sizes:
            total += self.update(self._loss, self.order.next()) * size
        return float(total) / max(1, sum(self.order.sizes))

    def _loss(self, numbers: Tensor) -> Tensor:
        views = self.views
        if self.temperature is None:
            return self.helper.loss(self.bottom(views.weak(numbers)), views.plain(numbers))
        has_images = any(block.dim() == 4 for block in views.features.blocks)
        one = views.strong(numbers) if has_images else views.plain(numbers)
        other = views.strong(numbers)
        first, second = (self.helper(torch.relu(self.bottom(view))) for view in (one, other))
        return nt_xent(first, second, self.temperature)


class PretrainWorker(SplitWorker):
    """A feature party that pre-trains its bottom on all of its rows."""

    @exposed(kind="control")
    def begin(self, config: dict[str, Any]) -> None:
        own = SplitConfig.from_wire(config)
        part, how = self._part().own_bottom(self.site.name), own.options["pretraining"]
        features = self._features(part, np.arange(len(self.table)), own.settings)
        purpose = f"pretraining {own.seed}"
        cpu, on_device = (
            self.site.torch_generator(purpose, where) for where in ("cpu", self.device)
        )
        views = RowViews(features, cpu, on_device, how["corruption"])
        self.trainer = Pretrainer(part.module, views, own.settings, how)

    @exposed(kind="statistic")
    def epoch(self, seed: int) -> float:
        """One pass over this party's own rows; the mean loss."""
        return self.trainer.epoch(self.site.own_seed(seed, "order of rows"))


# ---------------------------------------------------------------------------------- coordinator


class PretrainedSession(Session):
    """A session whose fresh bottoms are pre-trained before anything else (not when it resumes)."""

    def _created(self) -> None:
        network: Any = self.network
        if network.resuming:
            return
        fed, config = network.fed, network.config
        epochs = int(config.options["pretraining"]["epochs"])
        with fed.workers(PretrainWorker, parties=network.parties, model=network.model) as group:
            group.begin(config.to_wire())
            for number in range(1, epochs + 1):
                seed = epoch_seed(fed.seed, config.seed, -number % 2**31)
                told = group.epoch(seed)
                if network.progress is not None:
                    now = {f"loss {name}": float(loss) for name, loss in told.items()}
                    network.progress("pretrain", number, epochs, now)


class PretrainedNetwork(SplitNetwork):
    """A split network whose bottoms are pre-trained."""

    session_type = PretrainedSession


@parameters
class SSLVFL(SplitEstimator):
    """Uses the unaligned rows of all parties, without their labels, to pre-train.

    pretrain_epochs, pretrain_batch: passes over a party's rows, and rows a batch.
    temperature: of the similarities. corruption: share of a table row's cells that is replaced.
    """

    pretrain_epochs: int = 20
    pretrain_batch: int = 256
    temperature: float = 0.5
    corruption: float = 0.6

    _network_type: ClassVar[type[SplitNetwork]] = PretrainedNetwork
    _rules: ClassVar[Rules] = {
        "pretrain_epochs": NOT_NEGATIVE,
        "pretrain_batch": at_least(2),
        "temperature": POSITIVE,
        "corruption": POSITIVE_SHARE,
    }

    def _options(self) -> dict[str, Any]:
        how = {
            "kind": "simclr",
            "epochs": self.pretrain_epochs,
            "batch_size": self.pretrain_batch,
            "temperature": self.temperature,
            "corruption": self.corruption,
        }
        return {"pretraining": how}


declare("ssl-vfl", PretrainWorker, BottomWorker, TopWorker)
