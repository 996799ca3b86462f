"""A Site is a party's side: its tables, device, randomness, policy and the workers it hosts."""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendError, PartyFailed, Refused
from fedmend.federation.bound import Bound, declared
from fedmend.federation.labels import LabelGuard
from fedmend.federation.policy import Policy, Predicted, admit_weights
from fedmend.federation.randomness import numpy_stream, stream, wide_seed
from fedmend.federation.rows import RowAccount
from fedmend.federation.worker import Exposure, Worker

if TYPE_CHECKING:
    import torch

    from fedmend.federation.ledger import Ledger

logger = logging.getLogger(__name__)


RECORDS = "records"
ROWS_FILE = "rows-asked.jsonl"


@dataclass(frozen=True)
class Alignment:
    """A party's rows after alignment, as positions in its own table.

    aligned: rows known to all parties, in one common order that says nothing about the ids.
    unaligned: the party's other rows.
    """

    aligned: np.ndarray
    unaligned: np.ndarray


class Site:
    """Holds what never leaves, and answers calls as far as the policy goes.

    secret: what the site's random choices follow from; without one they follow from the seed, the
    site's name and their purpose, which others know (see `randomness`).
    home: of this run. records: a folder of the party's own that outlasts runs, by default in its
    home; without one, records live as long as the site does.
    bound: what the methods of this run may use; None admits every installed worker, as where all
    parties are in one process and their policies name no methods.
    """

    def __init__(
        self,
        name: str,
        tables: Mapping[str, Table],
        *,
        policy: Policy | None = None,
        seed: int = 0,
        secret: bytes | None = None,
        device: str = "cpu",
        home: str | Path | None = None,
        records: str | Path | None = None,
        bound: Bound | None = None,
    ) -> None:
        self.name = name
        self.tables = dict(tables)
        self.policy = policy or Policy()
        self.seed = seed
        self.secret = secret
        self.device = device
        self.home = Path(home) if home is not None else None
        if records is None and self.home is not None:
            records = self.home / RECORDS
        self.records = Path(records) if records is not None else None
        run = self.home.name if self.home is not None else ""
        self.labels = LabelGuard(name, self.tables, self.policy, self.records, run)
        self.ledger: Ledger | None = None
        """Its own, where it has one: on a machine of its own."""
        self.rows = RowAccount(
            name,
            self.policy.min_rows,
            given=self.tables.values(),
            run=run,
            file=None if self.records is None else self.records / ROWS_FILE,
        )
        # Where callers may name but one of the folders in its home: which.
        self.only: str | None = None
        self.alignments: dict[str, Alignment] = {}
        # Of scopes with some of the rows of another, in a word, which these are.
        self.excerpts: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        # Callers name places in `state` (where a result goes, say); nobody can name one in here.
        self.vault: dict[str, Any] = {}
        # Where a party shows and keeps what its people should know; whoever hosts the site sets it.
        self.note: Callable[[str], None] = logger.info
        self.predicted = Predicted()
        self.bound = bound
        self._binds_itself = bound is None and self.policy.methods is not None
        self._workers: dict[str, Worker] = {}
        self._numbers = itertools.count(1)

    def table_of(self, scope: str) -> Table:
        """The table of a scope: a table's name, or ``name@a+b`` within a smaller federation.

        Its labels are those that workers may see (`federation.labels`).
        """
        dataset = scope.partition("@")[0]
        if dataset not in self.tables:
            raise DataError(
                f"there is no table {dataset!r}",
                party=self.name,
                mend=f"give it as Party({self.name!r}, …, {dataset}=table); here are "
                + ", ".join(sorted(self.tables)),
            )
        return self.labels.seen(dataset, self.tables[dataset])

    def keep_rows(self, file: Path) -> None:
        """Keep the account of rows in a file, and go on with what is in it."""
        given = self.tables.values()
        self.rows = RowAccount(self.name, self.policy.min_rows, given=given, file=file)

    # ------------------------------------------------------------------ what the engine asks

    def start(self, worker: str, scope: str, params: Mapping[str, Any]) -> str:
        """Start a worker by name; the returned handle is how it is called from then on."""
        self.policy.admit_worker(self.name, worker)
        cls = Worker.installed().get(worker)
        if cls is None:
            raise Refused(
                self.name,
                f"no worker {worker!r} is installed here",
                "install the same fedmend version at all parties",
            )
        if self._binds_itself:  # with what is declared by now: methods load when they are used
            named = sorted(set(self.policy.methods or ()) & set(declared()))
            self.bound = Bound.to(self.name, named, self.policy, seal=False)
        if self.bound is not None:
            self.bound.admit_worker(self.name, worker)
        if set(scope) & set("/\\\0"):  # workers name files by it
            raise Refused(self.name, f"{scope!r} is no name for rows", "name a table")
        handle = f"{worker}#{next(self._numbers)}"
        with self._errors(f"{worker}.start"):
            self._workers[handle] = cls(self, scope=scope, **params)
        return handle

    def admit(self, handle: str, method: str) -> Exposure:
        """The declaration of a method that may be called now, or `Refused`."""
        worker = self._workers.get(handle)
        if worker is None:
            raise Refused(self.name, f"no worker {handle!r} runs here", "start it first")
        exposure = self.exposure(handle, method)
        if exposure is None:
            raise Refused(
                self.name,
                f"{worker.worker_name()}.{method} is not exposed",
                "call one of " + ", ".join(sorted(worker.exposures)),
            )
        if self.bound is not None:
            self.bound.admit_call(self.name, worker.worker_name(), method)
        call = f"{worker.worker_name()}.{method}"
        self.policy.admit_kind(self.name, call, exposure.kind)
        if exposure.opens:
            self.policy.admit_kind(self.name, call, exposure.opens)
        return exposure

    def exposure(self, handle: str, method: str) -> Exposure | None:
        """What is declared of a method, whether or not it may be called; None if nothing is."""
        worker = self._workers.get(handle)
        exposure = None if worker is None else worker.exposures.get(method)
        if worker is None or exposure is None:
            return None
        opens = worker.opens(exposure)
        return exposure if opens == exposure.opens else replace(exposure, opens=opens)

    def call(self, handle: str, method: str, kwargs: Mapping[str, Any]) -> Any:
        """Run an exposed method. A refused kind is refused before the value exists."""
        exposure = self.admit(handle, method)
        worker = self._workers[handle]
        call = f"{worker.worker_name()}.{method}"
        self._admit_taken(worker.worker_name(), call, exposure, kwargs)
        with self._errors(call):
            given = worker.incoming(exposure, kwargs)
            if exposure.over_rows and not self._enough_rows(worker, exposure, call, given):
                return None
            value = worker.outgoing(exposure, given, self._run(handle, method, given))
        self.policy.admit_value(self.name, call, exposure.kind, value)
        if self.bound is not None:
            self.bound.admit_crossing(self.name, worker.worker_name(), exposure.kind, value)
        return value

    def _enough_rows(
        self, worker: Worker, exposure: Exposure, call: str, given: Mapping[str, Any]
    ) -> bool:
        """Whether an answer rests on enough rows; if not, `Refused` unless it can be missed."""
        # What a training leads to is not subtracted from anything that is counted.
        weights = exposure.kind == "weights"
        about = "weights" if weights else worker.about_rows(exposure.method)
        try:
            for rows in worker.rows_asked(exposure.method, given):
                self.rows.admit(call, worker.table, rows, about)
        except Refused:
            if not exposure.optional:
                raise
            return False
        return True

    def _admit_taken(
        self, worker: str, call: str, exposure: Exposure, kwargs: Mapping[str, Any]
    ) -> None:
        """What comes in has a kind too, and the policy a word on it."""
        for name, kind in exposure.takes.items():
            value = kwargs.get(name)
            if value is None:
                continue
            self.policy.admit_taken(self.name, call, kind, value)
            if self.bound is not None:
                self.bound.admit_crossing(self.name, worker, kind, value)
            if kind == "weights":
                admit_weights(self.name, call, value)

    def _run(self, handle: str, method: str, given: Mapping[str, Any]) -> Any:
        return getattr(self._workers[handle], method)(**given)

    def stop(self, handle: str) -> None:
        self._workers.pop(handle, None)

    # ------------------------------------------------------------------ what workers use

    @property
    def reproducible(self) -> bool:
        """Whether others can draw what this site draws."""
        return self.secret is None

    def rng(self, purpose: str) -> np.random.Generator:
        """Randomness of this site; its numbers must not be shown to anybody (use `secrets`)."""
        return numpy_stream(self._entropy(purpose))

    def draws_of(self, ids: np.ndarray) -> np.ndarray:
        """A number in [0, 1) for each id, always the same one; nobody else can tell it."""
        key = self.rng("numbers of ids").bytes(8).hex()
        words = np.array([str(each) for each in ids.tolist()], dtype=object)
        return pd.util.hash_array(words, hash_key=key) / 2.0**64

    def torch_generator(
        self, purpose: str, device: str | torch.device | None = None
    ) -> torch.Generator:
        return stream(self._entropy(purpose), device or self.device)

    def own_seed(self, seed: int, purpose: str) -> int:
        """In place of a seed that all are told, one of this site's own; for `randomness.begin`."""
        return seed if self.secret is None else wide_seed(self.secret, f"seed {purpose} {seed}")

    def folder(self, path: str) -> Path:
        """Where this party keeps its part of something saved as `path`.

        A site with a home of its own never follows a path given by somebody else.
        """
        if self.home is None:
            return Path(path) / self.name
        name = Path(path).name
        if name in ("", ".", ".."):
            raise ConfigError(f"{path!r} is no name for a saved model. Mend: give a plain name")
        if self.only not in (None, name):
            raise Refused(self.name, f"{name!r} is another model", "a session of its own for it")
        return self.home / name

    def _entropy(self, purpose: str) -> list[int]:
        if self.secret is not None:
            return [wide_seed(self.secret, f"stream {purpose}")]
        return [self.seed, zlib.crc32(self.name.encode()), zlib.crc32(purpose.encode())]

    @contextmanager
    def _errors(self, call: str) -> Iterator[None]:
        """Names party and call in whatever a worker raises; our own errors keep their type."""
        try:
            yield
        except DataError as error:
            error.at(self.name)
            raise
        except FedmendError:
            raise
        except Exception as error:
            raise PartyFailed(self.name, call, error) from error
