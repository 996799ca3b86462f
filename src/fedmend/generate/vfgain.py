"""VF-GAIN: GAIN whose generator also sees the other party's embedding of the same row.

Party B holds the table with gaps and runs generator and discriminator; party A holds a bottom
network that embeds its own columns of the aligned rows. They are trained together by split
learning, with one exchange a step: A's embeddings go to B, B's gradients of them go back with the
request for the next ones. Then B can fill gaps of aligned rows, and make its columns for rows that
only A has, of which it knows a number and an embedding.

Rows that only B has take part in the training without an embedding, and some aligned ones are
treated so: B's generator works without A as well. Fitted on a plain table, VFGAIN is GAIN.

    model = VFGAIN().fit(fed, a="telco", b="bank")
    made = model.impute(fed)                 # at the bank: made_rows(site, made.name)

A learns how many rows are asked for and the gradients of its embeddings; B learns an embedding for
each row, by number; the coordinator relays both (between machines, or with `seal=True`, end-to-end
encrypted) and, after a score, hears from B whether it was the best so far. B's cells, what it
makes of A's rows, losses and scores stay at B.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedmend._parameters import at_least, one_of, wrong_values
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.federation import Federation, Site, exposed
from fedmend.federation.rows import Asked
from fedmend.generate.base import MIN_ROWS, Generator, Given
from fedmend.generate.encoder import Encoded
from fedmend.generate.gain import GAIN, Duel, Rows
from fedmend.generate.training import (
    EMA,
    History,
    Progress,
    batches,
    generator_for,
    held_out,
    shown,
)
from fedmend.learn.optim import OptimizerSpec
from fedmend.secure.channel import ExchangeWorker, is_sealed, seal_exchange
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import ALIGNED, BatchOrder, digest_of
from fedmend.split.parts import MANIFEST, begin_model, keep_part, part_of, read_json, write_json
from fedmend.split.training import PREDICT_ROWS, epoch_seed
from fedmend.split.workers import BottomWorker

FILE = "generator.fmw"
ORDERS = ("secret", "seeded", "kept")
BLIND = 0.1  # share of aligned rows that train without their embedding
_EVERY = 100  # steps between scores, at least
_SCORED = 2000  # rows held out for them, at most
_MADE, _NUMBERED = "made rows", "numbered rows"


@dataclass(frozen=True)
class Made:
    """What the coordinator knows of completed rows: where they are, their name, how many."""

    party: str
    name: str
    rows: int


# ---------------------------------------------------------------------------------- at the parties


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


class _Beside:
    """Both sides: an embedding stands beside the cells of its own row, where rows are named."""

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        return digest_of(kwargs["rows"]) if "rows" in kwargs else ""


class ContextWorker(_Beside, BottomWorker):
    """A: embeds its columns of the rows; scores and use take an average of its weights."""

    average: EMA | None = None

    @exposed(kind="control")
    def set_order(self, rows: np.ndarray) -> int:
        """The rows to train on; from here on the average is kept."""
        count = self.trained.set_order(rows)
        self.average = EMA(self.trained.module)
        self._best: Mapping[str, Tensor] | None = None
        return count

    def _learn(self, gradient: Tensor) -> None:
        super()._learn(gradient)
        if self.average is not None:
            self.average.update()

    @exposed(kind="embedding")
    @torch.no_grad()
    def embed(self, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows of these numbers, by the averaged weights."""
        module: nn.Module = self.trained.module if self.average is None else self.average.average
        module.eval()
        numbers = torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)
        return module(self.trained.features.batch(numbers))

    @exposed(kind="control")
    def keep_best(self) -> None:
        if self.average is not None:
            self._best = _copied(self.average.average)

    @exposed(kind="control")
    def restore_best(self) -> None:
        """End of training: the best-scored average, or the last one, is the bottom."""
        if self.average is not None:
            self.trained.module.load_state_dict(self._best or self.average.average.state_dict())
            self.average = None

    @exposed(kind="control")
    def attach_own(self, config: dict[str, Any], order: str, name: str) -> None:
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
        self.trained = self._model_on(own, SplitConfig.from_wire(config).settings)


class ImputerWorker(_Beside, ExchangeWorker):
    """B: the table with gaps, generator and discriminator, and whatever they make."""

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope)
        self.model = model
        self._parts: list[Tensor] = []

    @property
    def generator(self) -> VFGAIN:
        """This party's part of the model."""
        found: VFGAIN = part_of(self.site, self.model)
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
        made = VFGAIN(**{**params, "seed": seed, "device": self.site.device})
        made.prepare(own.select(columns), context)
        keep_part(self.site, self.model, made)

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
        rows = rows._replace(side=made.side(context, draw >= BLIND))
        if self._alone is None:
            return rows
        alone = self.alone.take(next(self._alone))
        return Rows(*(torch.cat(pair) for pair in zip(rows, alone, strict=True)))

    def about_rows(self, method: str) -> str:
        return "scores of a generator"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        return [self.alignment.aligned[kwargs["rows"]]]

    @exposed(kind="control", over_rows=True, optional=True, takes={"embedding": "embedding"})
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
    def take(self, embedding: Tensor, rows: np.ndarray) -> None:
        """The context of the next rows, which these are, in the order of their numbers."""
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
        keep_part(self.site, self.model, Generator.load(file))


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _unknown(made: VFGAIN, count: int) -> Table:
    """Rows of which nothing is known but their numbers."""
    empty = pd.Series([None] * count, dtype=object)
    frame = pd.DataFrame({name: empty for name in made.schema_})
    return Table._trusted(np.arange(count), made.schema_, None, frame, {})


# ---------------------------------------------------------------------------------- the generator


@dataclass(kw_only=True, eq=False, repr=False)
class VFGAIN(GAIN):
    """GAIN beside another party's embedding of the same row.

    bottom, embedding: hidden layers and width of A's network. precision: "float32" or "float64".
    seal: embeddings and gradients cross end-to-end encrypted, unread by the coordinator; None is
    between machines. All other parameters are GAIN's.
    """

    name = "vfgain"

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    precision: str = "float32"
    seal: bool | None = None
    blank: float = 0.25

    def _problems(self) -> list[str]:
        rules = {
            "embedding": at_least(1),
            "bottom": ("positive widths", lambda widths: all(width >= 1 for width in widths)),
            "precision": one_of(("float32", "float64")),
        }
        return super()._problems() + wrong_values(self, rules)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    def _config(self) -> SplitConfig:
        """Of A's network, and of what crosses."""
        settings = Settings(self.batch_size, OptimizerSpec(lr=self.lr), self.precision)
        return SplitConfig(
            bottom=tuple(self.bottom), embedding=self.embedding, seed=self.seed, settings=settings
        )

    # --- B's rows, and what stands beside them ---------------------------------------------------

    context_ = 0
    """Width of the other party's embedding; 0 after a fit on a table."""

    @property
    def _side_width(self) -> int:
        return self.context_ + 1 if self.context_ else 0

    def prepare(self, table: Table, context: int) -> None:
        """Encoder and fresh networks for B's table, beside an embedding of this width."""
        self._check_params()
        self._check_table(table)
        self.context_ = context
        self._prepare(table)
        if not self.modules_:
            raise DataError(
                "no column holds two different values, so there is nothing to learn",
                column=table.names[0],
                mend="name the columns to make: fit(fed, …, columns=[…])",
            )

    def _place_modules(self) -> None:
        super()._place_modules()
        for module in self.modules_.values():
            module.to(self._dtype)

    def encode(self, table: Table) -> Encoded:
        """B's rows as coordinates."""
        return self.encoder_.encode(self.encoder_.raw(table.frame))

    def received(self, embedding: Tensor) -> Tensor:
        """An embedding off the wire."""
        return embedding.detach().to(self.device_, self._dtype)

    def side(self, context: Tensor, there: Tensor | None = None) -> Tensor:
        """Embeddings and a flag that they are there. **Shape**: (n, context) -> (n, context + 1)"""
        flag = context.new_ones(len(context)) if there is None else there.to(context.dtype)
        return torch.cat([context * flag[:, None], flag[:, None]], 1)

    def impute_beside(
        self, table: Table, context: Tensor, seed: int | None, draws: int | None
    ) -> Table:
        """`impute`, knowing the embedding of every row."""
        names = [name for name in self.schema_ if name in table.frame.columns]
        gaps = torch.from_numpy(table.frame[names].isna().any(axis=1).to_numpy())
        self._beside = self.side(context[gaps])
        try:
            return super().impute(table, seed, draws)
        finally:
            del self._beside

    def _rows_of(self, encoded: Encoded) -> Rows:
        rows = super()._rows_of(encoded)
        # While rows are imputed beside embeddings, those are there.
        beside = getattr(self, "_beside", None)
        return rows if beside is None else rows._replace(side=beside)

    def _extra(self) -> dict[str, Any]:
        return {"context": self.context_}

    def _set_extra(self, values: dict[str, Any]) -> None:
        self.context_ = values["context"]

    def _check_fitted(self) -> None:
        if not hasattr(self, "encoder_") and hasattr(self, "model_"):
            raise NotFitted(
                f"the parts of this model are at {self.a_!r} and {self.b_!r}. "
                "Mend: give the federation: impute(fed), sample(fed)"
            )
        super()._check_fitted()

    # --- training --------------------------------------------------------------------------------

    def fit(
        self,
        table: Table | Federation,
        progress: Progress | None = None,
        *,
        a: str | None = None,
        b: str | None = None,
        columns: list[str] | None = None,
    ) -> Self:
        """Learn from a table, or from the aligned rows of parties ``a`` and ``b``.

        ``columns`` are the columns of B to be made: by default all of its features.
        """
        with self._or_as_before():
            if isinstance(table, Table):
                self.context_ = 0
                for name in ("model_", "fed_"):
                    self.__dict__.pop(name, None)
                return super().fit(table, progress)
            self._check_params()
            self._fit_two(table, progress, a, b, columns)
        return self

    def _fit_two(
        self,
        fed: Federation,
        progress: Progress | None,
        a: str | None,
        b: str | None,
        columns: list[str] | None,
    ) -> None:
        rows = fed.alignment.aligned
        self.a_, self.b_ = _two(fed, a, b)
        if rows < MIN_ROWS:
            raise DataError(
                f"{rows} aligned rows; a generator needs {MIN_ROWS} at least",
                party=self.b_,
                mend="align more rows, or fit on the table of one party",
            )
        self.__dict__.pop("encoder_", None)
        self.fed_, self.model_ = fed, f"vfgain-{secrets.token_hex(6)}"
        share = min(0.1, _SCORED / rows)
        kept, scored = held_out(rows, share, self._numpy_rng("held out"))
        with self._pair(fed) as (bottom, imputer), shown(self.name, progress) as tell:
            self._open(bottom, imputer, rows, columns)
            batches = imputer.set_order(kept)
            bottom.set_order(kept)
            self._exchange(bottom, imputer, batches, scored, tell)
            bottom.restore_best()
            imputer.restore_best()

    def _open(self, bottom: Any, imputer: Any, rows: int, columns: list[str] | None) -> None:
        """Fresh networks at both, attached to the aligned rows."""
        config = self._config().to_wire()
        imputer.create(self.get_params(), columns, bottom.create(config))
        bottom.attach([[ALIGNED, rows]], config)
        imputer.attach()

    def _exchange(
        self,
        bottom: Any,
        imputer: Any,
        batches: int,
        scored: np.ndarray,
        tell: Progress | None,
    ) -> None:
        self.history_ = history = History()
        epoch = misses = 0
        while history.steps < self.steps and not history.stopped_early:
            epoch += 1
            count = min(batches, self.steps - history.steps)
            seed = epoch_seed(self.fed_.seed, self.seed, epoch)
            imputer.start_epoch(seed)
            embedding = bottom.step(epoch=seed)
            for _ in range(count - 1):
                embedding = bottom.step(imputer.step(embedding))
            bottom.finish(imputer.step(embedding))
            history.steps += count
            if tell is not None:
                tell("fit", history.steps, self.steps)
            last = history.steps == self.steps
            if not len(scored) or (epoch % max(1, _EVERY // batches) and not last):
                continue
            misses += 1
            if imputer.judge(bottom.embed(scored), scored):
                bottom.keep_best()
                history.best_step, misses = history.steps, 0
            history.stopped_early = bool(self.patience) and misses >= self.patience

    # --- use -----------------------------------------------------------------------------------

    def impute(
        self,
        table: Table | Federation,
        seed: int | None = None,
        draws: int | None = None,
        *,
        rows: str = "unaligned",
        given: str | None = None,
        keep: str | None = None,
        order: str = "secret",
    ) -> Any:
        """Fill the gaps of a table, which gives a table; or those of a federation's rows: `Made`.

        What is made of a federation's rows is kept at B.

        rows: "unaligned" (B's columns for the rows that only A has) or "aligned" (gaps of B's own).
        given: name of rows stored at B that hold what is known of A's already. keep: the name to
        store the rows under. order: in which A's rows are numbered: "secret" (A draws it anew),
        "seeded" (from A's randomness of this run, which in one process follows from the seed) or
        "kept" (of an order that is secret already).
        """
        if isinstance(table, Table):
            return super().impute(table, seed, draws)
        self._check_pair(table)
        if rows not in ("unaligned", ALIGNED) or order not in ORDERS:
            raise ConfigError(
                f"rows must be unaligned or aligned and order one of {', '.join(ORDERS)}, "
                f"got rows={rows!r}, order={order!r}"
            )
        counts, aligned = table.alignment, rows == ALIGNED
        made = Made(
            self.b_,
            keep or f"made-{secrets.token_hex(6)}",
            counts.aligned if aligned else counts.unaligned[self.a_],
        )
        config = self._config().to_wire()
        with self._pair(table) as (bottom, imputer):
            if aligned:
                bottom.attach([[ALIGNED, made.rows]], config)
            else:
                bottom.attach_own(config, order, made.name)
            for part in np.split(
                np.arange(made.rows), range(PREDICT_ROWS, made.rows, PREDICT_ROWS)
            ):
                imputer.take(bottom.embed(part), part)
            imputer.complete(made.name, aligned, given, draws, seed)
        return made

    def sample(
        self,
        n: int | Federation | None = None,
        given: Given | str | None = None,
        seed: int | None = None,
    ) -> Any:
        """New rows; or, given a federation, one draw for each row that only A has: `Made`, at B."""
        if isinstance(n, Federation):
            if given is not None and not isinstance(given, str):
                raise ConfigError("given names rows that are stored at B: give_rows(site, name, …)")
            return self.impute(n, seed, draws=1, given=given)
        if isinstance(given, str):
            raise ConfigError(f"given={given!r} is a name. Mend: give a federation, or columns")
        return super().sample(n, given, seed)

    # --- keeping ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """A file; or, of two parties, a folder in which each keeps its part."""
        if not hasattr(self, "model_"):
            return super().save(path)
        folder = Path(path)
        begin_model(folder)
        with self._pair(self.fed_, exchange=False) as (bottom, imputer):
            bottom.save(str(folder))
            imputer.save(str(folder))
        facts = {"method": "VFGAIN", "params": self.get_params(), "a": self.a_, "b": self.b_}
        write_json(folder / MANIFEST, facts)
        return folder

    @classmethod
    def load(cls, path: str | Path, fed: Federation | None = None) -> Self:
        """What `save` wrote; with ``fed``, the parts go to its parties."""
        if fed is None:
            return super().load(path)
        saved = read_json(Path(path) / MANIFEST, "a saved model")
        if saved["method"] != cls.__name__:
            raise ConfigError(f"{path} holds a {saved['method']}, not a {cls.__name__}")
        model = cls._unfitted({**saved["params"], "bottom": tuple(saved["params"]["bottom"])})
        model.a_, model.b_ = _two(fed, saved["a"], saved["b"])
        model.fed_, model.model_ = fed, f"vfgain-{secrets.token_hex(6)}"
        with model._pair(fed, exchange=False) as (bottom, imputer):
            bottom.load(str(path))
            imputer.load(str(path))
        return model

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "fed_"):
            raise ConfigError(
                "a VFGAIN of two parties cannot be pickled or copied: its parts are at the "
                "parties. Mend: model.save(folder), and VFGAIN.load(folder, fed); "
                "sklearn.base.clone(model) is one that is not fitted"
            )
        return vars(self)

    def _check_pair(self, fed: Federation) -> None:
        if not hasattr(self, "model_"):
            raise NotFitted("this VFGAIN has no parts at parties. Mend: call fit(fed, a=…, b=…)")
        if fed.engine is not self.fed_.engine:
            raise ConfigError(
                "the model's parts are at the parties of another federation. "
                "Mend: save it and VFGAIN.load(path, fed)"
            )

    @contextmanager
    def _pair(self, fed: Federation, *, exchange: bool = True) -> Iterator[tuple[Any, Any]]:
        """Workers at A and B, then stopped; `exchange`: embeddings will cross between them."""
        with (
            fed.workers(ContextWorker, parties=[self.a_], model=self.model_) as context,
            fed.workers(ImputerWorker, parties=[self.b_], model=self.model_) as imputer,
        ):
            if exchange and is_sealed(fed, self.seal):
                seal_exchange(context, imputer, by_party=False)
            yield context[self.a_], imputer[self.b_]


def _two(fed: Federation, a: str | None, b: str | None) -> tuple[str, str]:
    """The two parties; of a federation of two, one is enough."""
    others = [name for name in fed.names if name not in (a, b)]
    if len(fed.names) == 2 and len(others) == 1:
        a, b = (a or others[0], b or others[0])
    if a is None or b is None or a == b or a not in fed.names or b not in fed.names:
        raise ConfigError(
            f"VF-GAIN needs two parties of the federation, got a={a!r}, b={b!r}. "
            f"Mend: name two of {', '.join(fed.names)}"
        )
    return a, b
