"""The two workers of VF-GAIN: a bottom network at A, generator and discriminator at B.

A learns how many rows are asked for and the gradients of its embeddings; B learns an embedding for
each row, by number; the coordinator relays both (between machines, or with `seal=True`, in boxes it
cannot open) and, after a score, hears from B whether it was the best so far. B's cells, what it
makes of A's rows, losses and scores stay at B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedmend.data.table import Table
from fedmend.errors import DataError, NotFitted
from fedmend.federation import Site, exposed
from fedmend.generate.base import Generator
from fedmend.generate.gain import Duel, Rows
from fedmend.generate.registry import make
from fedmend.generate.training import EMA, batches, generator_for
from fedmend.secure.exchange import ExchangeWorker
from fedmend.split.features import BatchOrder
from fedmend.split.halves import BottomHalf, Settings
from fedmend.split.parts import part_of
from fedmend.split.workers import BottomWorker

if TYPE_CHECKING:
    from fedmend.generate.context_gain import ContextGAIN

__all__ = ["ORDERS", "ContextWorker", "ImputerWorker", "give_rows", "made_rows", "numbered_rows"]

ORDERS = ("secret", "seeded", "kept")
FILE = "generator.fmw"
_MADE, _NUMBERED, _MODELS = "made rows", "numbered rows", "generators"


def made_rows(site: Site, name: str) -> Table:
    """At B: the rows that were completed under a name; the ids of A's are numbers from 0."""
    return _stored(site, _MADE, name)


def numbered_rows(site: Site, name: str) -> np.ndarray:
    """At A: the positions of the rows that B completed under a name, in order of their numbers."""
    return _stored(site, _NUMBERED, name)


def give_rows(site: Site, name: str, table: Table) -> None:
    """At B: store rows under a name, to be completed by ``impute(fed, given=name)``."""
    site.state.setdefault(_MADE, {})[name] = table


def _stored(site: Site, key: str, name: str) -> Any:
    found = site.state.get(key, {})
    if name not in found:
        raise NotFitted(
            f"party {site.name!r} holds no rows named {name!r}. Mend: impute with keep={name!r}"
        )
    return found[name]


class ContextWorker(BottomWorker):
    """A: embeds its half of the rows; scores and use take an average of its weights."""

    average: EMA | None = None

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        """The rows to train on; from here on the average is kept."""
        count = self.half.set_order(rows)
        self.average = EMA(self.half.module)
        self._best: Mapping[str, Tensor] | None = None
        return count

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, gradient: Tensor | None = None, epoch: int | None = None) -> Tensor:
        """Learn from the last batch's gradient; hand out the next batch's embedding."""
        if gradient is not None:
            self._learn(gradient)
        if epoch is not None:
            self.half.start_epoch(epoch, self._dropout_seed(epoch))
        return self.half.forward()

    @exposed(kind="control", takes={"gradient": "gradient"})
    def finish(self, gradient: Tensor) -> None:
        """Learn from the last gradient, with no embedding to follow."""
        self._learn(gradient)

    def _learn(self, gradient: Tensor) -> None:
        self.half.backward(gradient)
        if self.average is not None:
            self.average.update()

    @exposed(kind="embedding")
    @torch.no_grad()
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows of these numbers, by the averaged weights."""
        module: nn.Module = self.half.module if self.average is None else self.average.average
        module.eval()
        numbers = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)
        return self.half.settings.for_wire(module(self.half.features.batch(numbers)))

    @exposed(kind="control")
    def keep_best(self) -> None:
        if self.average is not None:
            self._best = _copied(self.average.average)

    @exposed(kind="control")
    def restore_best(self) -> None:
        """End of training: the best-scored average, or the last one, is the bottom."""
        if self.average is not None:
            self.half.module.load_state_dict(self._best or self.average.average.state_dict())
            self.average = None

    @exposed(kind="control")
    def attach_own(self, settings: dict[str, Any], order: str, name: str) -> None:
        """Take the rows that only this party has, in an order that says nothing about them.

        Which row has which number stays here, under `name`.
        """
        own = self.alignment.unaligned
        if order == "secret":
            from fedmend.secure.keys import secret_permutation

            own = own[secret_permutation(len(own))]
        elif order == "seeded":
            own = self.site.rng(f"order of {name}").permutation(own)
        self.site.state.setdefault(_NUMBERED, {})[name] = own
        how, part = Settings.from_dict(settings), part_of(self.site, self.model).bottom
        assert part is not None  # whoever made the part made the bottom
        self.half = BottomHalf(part.module, self._features(part, own, how), how, self.device)


class ImputerWorker(ExchangeWorker):
    """B: the table with gaps, generator and discriminator, and whatever they make."""

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope)
        self.model = model
        self._parts: list[Tensor] = []

    @property
    def generator(self) -> ContextGAIN:
        """This party's part of the model."""
        found: ContextGAIN | None = self.site.state.get(_MODELS, {}).get(self.model)
        if found is None:
            raise NotFitted(
                f"party {self.site.name!r} holds no part of model {self.model!r}. "
                "Mend: fit it, or load it"
            )
        return found

    # --- training ----------------------------------------------------------------------------

    @exposed(kind="control")
    def create(self, params: dict[str, Any], columns: list[str] | None, context: int) -> None:
        """A fresh generator for these columns, by default all features but images and tensors."""
        own = self.table.features
        if columns is None:
            columns = [name for name, column in own.schema.items() if not column.is_block]
        # What B's networks begin with, hide and draw would tell A about B's cells, by gradients.
        seed = self.site.own_seed(int(params["seed"]), "generator")
        made: Any = make("vfgain", **{**params, "seed": seed, "device": self.site.device})
        made.prepare(own.select(columns), context)
        self.site.state.setdefault(_MODELS, {})[self.model] = made

    @exposed(kind="control")
    def attach(self) -> None:
        """Take the aligned rows, and those that only this party has, to train on."""
        made, own = self.generator, self.alignment
        self.aligned, self.alone = self._rows(own.aligned), self._rows(own.unaligned)
        everything = made.encode(self.table)
        made.net_.measure(everything.values, everything.observed)
        self.average = EMA(made.net_)
        stream = generator_for(made.device_, made.seed, "train")
        self.duel = Duel(made.net_.train(), made.critic_, made._game, stream)
        self._best: Mapping[str, Tensor] | None = None
        self._best_score = float("inf")

    def _rows(self, positions: np.ndarray) -> Rows:
        made = self.generator
        return made._rows_of(made.encode(self.table.take(positions)))

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        """The aligned rows to train on, by number; tells how many batches an epoch has."""
        device, size = self.generator.device_, self.generator.batch_size
        self.order = BatchOrder(rows, size, device)
        # Rows without a counterpart take part in proportion, at most one for each aligned one.
        beside = round(size * min(1.0, len(self.alone.values) / max(1, len(rows))))
        self._alone = None
        if beside:
            stream = generator_for(device, self.generator.seed, "rows alone")
            self._alone = batches(len(self.alone.values), beside, stream, device)
        return len(self.order.sizes)

    @exposed(kind="control")
    def start_epoch(self, seed: int) -> None:
        self.order.start(seed)

    @exposed(kind="gradient", takes={"embedding": "embedding"})
    def step(self, embedding: Tensor) -> Tensor:
        """One step of both networks; the gradient of the embedding goes back."""
        made = self.generator
        leaf = made.received(embedding).requires_grad_()
        rows = self.training_rows(self.order.next(), leaf)
        self.duel.step(rows)
        self.average.update()
        assert leaf.grad is not None
        return leaf.grad.to(embedding.dtype)

    def training_rows(self, numbers: Tensor, context: Tensor) -> Rows:
        """Aligned rows, some of them as if they had no counterpart, and rows that have none."""
        made = self.generator
        rows = self.aligned.take(numbers)
        draw = torch.rand(len(numbers), generator=self.duel.generator, device=rows.values.device)
        rows = rows._replace(side=made.side(context, draw >= made.blind))
        if self._alone is None:
            return rows
        alone = self.alone.take(next(self._alone))
        return Rows(*(torch.cat(pair) for pair in zip(rows, alone, strict=True)))

    @exposed(kind="control", takes={"embedding": "embedding"})
    def judge(self, embedding: Tensor, rows: np.ndarray) -> bool:
        """Score the average on held-out rows; tells whether it is the best so far."""
        made = self.generator
        numbers = torch.from_numpy(rows).to(made.device_)
        held = self.aligned.take(numbers)._replace(side=made.side(made.received(embedding)))
        found = made._score(self.average, held, blank=0.5)
        if found >= self._best_score:
            return False
        self._best, self._best_score = _copied(self.average.average), found
        return True

    @exposed(kind="control")
    def restore_best(self) -> None:
        """End of training: the best-scored average, or the last one, is the generator."""
        net = self.generator.net_
        net.load_state_dict(self._best or self.average.average.state_dict())
        net.eval()

    # --- use -----------------------------------------------------------------------------------

    @exposed(kind="control", takes={"embedding": "embedding"})
    def take(self, embedding: Tensor) -> None:
        """The context of the next rows, in the order of their numbers."""
        self._parts.append(self.generator.received(embedding))

    @exposed(kind="control")
    def complete(
        self, keep: str, aligned: bool, given: str | None, draws: int | None, seed: int | None
    ) -> None:
        """Fill the rows whose context was taken, and store them under the name `keep`.

        They are this party's aligned rows or, known by their numbers alone, A's; of those, cells
        may be `given` under the name of rows that are stored already.
        """
        made, parts = self.generator, self._parts
        seed = None if seed is None else self.site.own_seed(seed, "made rows")
        context = torch.cat(parts) if parts else torch.zeros(0, made.context_)
        self._parts = []
        if aligned:
            table = self.table.take(self.alignment.aligned).select(made.schema_.names)
        elif given is not None:
            table = made_rows(self.site, given)
        else:
            table = _unknown(made, len(context))
        if len(table) != len(context):
            raise DataError(
                f"{len(table)} rows are given, {len(context)} are to be completed",
                party=self.site.name,
                mend="give one for each row of the other party, in the order of their numbers",
            )
        give_rows(self.site, keep, made.impute_beside(table, context, seed, draws))

    # --- keeping ----------------------------------------------------------------------------

    @exposed(kind="control")
    def save(self, path: str) -> None:
        folder = self.site.folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.generator.save(folder / FILE)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        file = self.site.folder(path) / FILE
        if not file.is_file():
            raise DataError(
                f"there is no {file}", party=self.site.name, mend="name a saved model's folder"
            )
        self.site.state.setdefault(_MODELS, {})[self.model] = Generator.load(file)


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _unknown(made: ContextGAIN, count: int) -> Table:
    """Rows of which nothing is known but their numbers."""
    empty = pd.Series([None] * count, dtype=object)
    frame = pd.DataFrame({name: empty for name in made.schema_})
    return Table._trusted(np.arange(count), made.schema_, None, frame, {})
