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
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted
from fedmend.federation import Federation
from fedmend.generate.base import MIN_ROWS
from fedmend.generate.context_gain import ContextGAIN
from fedmend.generate.given import Given
from fedmend.generate.training import History, Progress, held_out, shown
from fedmend.generate.vfgain_workers import ORDERS, ContextWorker, ImputerWorker
from fedmend.secure.exchange import is_sealed, seal_exchange
from fedmend.split.features import ALIGNED
from fedmend.split.parts import read_json, write_json
from fedmend.split.session import PREDICT_ROWS, epoch_seed

__all__ = ["VFGAIN", "Made"]

MANIFEST = "model.json"
_EVERY = 100  # steps between scores, at least
_SCORED = 2000  # rows held out for them, at most


@dataclass(frozen=True)
class Made:
    """What the coordinator knows of completed rows: where they are, their name, how many."""

    party: str
    name: str
    rows: int


class VFGAIN(ContextGAIN):
    """GAIN beside another party; see `ContextGAIN` for the parameters."""

    name = "vfgain"

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
        if isinstance(table, Table):
            self.context_ = 0
            self.__dict__.pop("model_", None)
            return super().fit(table, progress)
        self._check_params()
        fed, rows = table, table.alignment.aligned
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
        return self

    def _open(self, bottom: Any, imputer: Any, rows: int, columns: list[str] | None) -> None:
        """Fresh networks at both, attached to the aligned rows."""
        net = {
            "bottom": list(self.bottom),
            "embedding": self.embedding,
            "dropout": 0.0,
            "conv": "cnn",
            "missing_indicator": True,
            "seed": self.seed,
        }
        settings = self._settings().to_dict()
        imputer.create(self.get_params(), columns, bottom.create(net, settings))
        bottom.attach([[ALIGNED, rows]], settings)
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

    @overload
    def impute(self, table: Table, seed: int | None = None, draws: int | None = None) -> Table: ...

    @overload
    def impute(
        self,
        table: Federation,
        seed: int | None = None,
        draws: int | None = None,
        *,
        rows: str = "unaligned",
        given: str | None = None,
        keep: str | None = None,
        order: str = "secret",
    ) -> Made: ...

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
    ) -> Table | Made:
        """Fill the gaps of a table; or, at B and to be kept there, those of a federation's rows.

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
        settings = self._settings().to_dict()
        with self._pair(table) as (bottom, imputer):
            if aligned:
                bottom.attach([[ALIGNED, made.rows]], settings)
            else:
                bottom.attach_own(settings, order, made.name)
            for part in np.split(
                np.arange(made.rows), range(PREDICT_ROWS, made.rows, PREDICT_ROWS)
            ):
                imputer.take(bottom.embed(part))
            imputer.complete(made.name, aligned, given, draws, seed)
        return made

    @overload
    def sample(
        self, n: int | None = None, given: Given | None = None, seed: int | None = None
    ) -> Table: ...

    @overload
    def sample(self, n: Federation, given: str | None = None, seed: int | None = None) -> Made: ...

    def sample(
        self,
        n: int | Federation | None = None,
        given: Given | str | None = None,
        seed: int | None = None,
    ) -> Table | Made:
        """New rows; or, given a federation, one draw for each row that only A has, kept at B."""
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
        (folder / MANIFEST).unlink(missing_ok=True)
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
        model = cls(**{**saved["params"], "bottom": tuple(saved["params"]["bottom"])})
        model.a_, model.b_ = _two(fed, saved["a"], saved["b"])
        model.fed_, model.model_ = fed, f"vfgain-{secrets.token_hex(6)}"
        with model._pair(fed, exchange=False) as (bottom, imputer):
            bottom.load(str(path))
            imputer.load(str(path))
        return model

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
