"""Party and Federation: the coordinator's side of the programming model.

fed = Federation(Party("bank", bank), Party("telco", telco))
ranks = fed.workers(RankWorker)            # one worker at every party
ranks["bank"].sums()                       # ask one
ranks.sums()                               # ask all at once: {"bank": …, "telco": …}
ranks.add(Each({"bank": 1, "telco": 2}))   # a different argument for each
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._html import html_table
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, PrivacyWarning
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.engines import Call, Engine
from fedmend.federation.engines.local import LocalEngine
from fedmend.federation.ledger import COORDINATOR, Ledger
from fedmend.federation.policy import Policy
from fedmend.federation.randomness import COSTS, draw_secret, kept_secret, wide_seed
from fedmend.federation.site import Site
from fedmend.federation.worker import Exposure, Worker, exposed

if TYPE_CHECKING:
    import os

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


class Party:
    """A party as the user names it: its table, further tables by name, and its policy.

    >>> Party("bank", Table.from_frame(frame), test=Table.from_frame(later))  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        policy: Policy | None = None,
        home: str | os.PathLike[str] | None = None,
        **tables: Table,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == COORDINATOR:
            raise ConfigError(
                f"{name!r} cannot be a party's name. Mend: Party(name, table), with letters, "
                f"digits, '-', '_' and '.' in the name, and not {COORDINATOR!r}"
            )
        self.name = name
        self.tables = {"train": table, **tables}
        for key, value in self.tables.items():
            if not isinstance(value, Table):
                raise DataError(
                    f"{key} is a {type(value).__name__}, not a Table",
                    party=name,
                    mend="fm.read(path, id=…) or Table.from_frame(frame, id=…)",
                )
        self.policy = policy or Policy()
        self.home = home


# ---------------------------------------------------------------- calling workers


@dataclass(frozen=True)
class Each:
    """Wraps an argument of which every party gets its own: ``Each({"bank": 1, "telco": 2})``."""

    values: Mapping[str, Any]

    @staticmethod
    def own(value: Any, party: str) -> Any:
        """What a party gets of an argument."""
        if not isinstance(value, Each):
            return value
        if party not in value.values:
            raise ConfigError(f"Each(…) has no value for party {party!r}. Mend: give one for each")
        return value.values[party]


class WorkerGroup:
    """One worker at each of several parties. A method called on the group is called at all.

    Every public name of a worker group but `stop` and `apart` is a method that its workers expose.
    """

    def __init__(self, engine: Engine, worker: type[Worker], handles: dict[str, str]) -> None:
        self._engine = engine
        self._worker = worker
        self._handles = handles

    def __getitem__(self, party: str) -> Proxy:
        if party not in self._handles:
            raise KeyError(f"no worker at {party!r}; there is one at {', '.join(self._handles)}")
        return Proxy(self, party)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, party: object) -> bool:
        return party in self._handles

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        exposure = self._exposure(method)

        def call_at_all(*args: Any, **kwargs: Any) -> dict[str, Any]:
            calls = []
            for party in self._handles:
                own = tuple(Each.own(value, party) for value in args)
                named = {key: Each.own(value, party) for key, value in kwargs.items()}
                calls.append(self._call(party, exposure, own, named))
            return dict(zip(self._handles, self._engine.call_all(calls), strict=True))

        return call_at_all

    def _exposure(self, method: str) -> Exposure:
        exposure = self._worker.exposures.get(method)
        if exposure is None:
            raise AttributeError(
                f"{self._worker.worker_name()} exposes no {method!r}; it exposes "
                + (", ".join(sorted(self._worker.exposures)) or "nothing")
            )
        return exposure

    def _call(
        self, party: str, exposure: Exposure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        bound = exposure.bind(f"{self._worker.worker_name()}.{exposure.method}", args, kwargs)
        return Call(party, self._handles[party], self._worker, exposure, bound)

    @property
    def apart(self) -> bool:
        """Whether they run in other processes than whoever calls them."""
        return self._engine.apart

    def stop(self) -> None:
        """End the workers; what they held ends with them."""
        for party, handle in self._handles.items():
            self._engine.stop(party, handle)

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Proxy:
    """One party's worker, as the coordinator sees it."""

    def __init__(self, workers: WorkerGroup, party: str) -> None:
        self._workers = workers
        self._party = party

    def __getattr__(self, method: str) -> Callable[..., Any]:
        workers, exposure = self._workers, self._workers._exposure(method)
        return lambda *args, **kwargs: workers._engine.call(
            workers._call(self._party, exposure, args, kwargs)
        )


# ---------------------------------------------------------------- the federation


@dataclass(frozen=True)
class AlignmentCounts:
    """What the coordinator knows of an alignment: how many rows, never which.

    completed: how many of the aligned rows, the last ones, have sides that a method made up.
    same_order: the tables had the same rows in the same order, so that nothing had to be found.
    """

    aligned: int
    unaligned: Mapping[str, int]
    completed: int = field(default=0, compare=False)
    same_order: bool = field(default=False, compare=False)


class RosterWorker(Worker):
    """Answers what all must know before anything starts: how many rows and columns, who labels."""

    @exposed(kind="count", over_rows=False)
    def rows(self) -> dict[str, Any]:
        return {
            "rows": len(self.table),
            "features": len(self.table.feature_names),
            "blocks": len(self.table.blocks),
            "labelled": self.table.label is not None,
        }


declare(EVERY_RUN, RosterWorker)


def _check_arguments(parties: Sequence[Any], seed: Any, device: Any) -> None:
    problems = [
        f"a federation is made of parties, not of a {type(each).__name__}. "
        "Mend: Federation(Party(name, table), …)"
        for each in parties
        if not isinstance(each, Party)
    ]
    if not hasattr(seed, "__index__") or isinstance(seed, bool) or seed < 0:
        problems.append(f"seed must be a whole number from 0 on, got {seed!r}. Mend: seed=0")
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        problems.append(
            f"device must be 'cpu', 'cuda', 'cuda:0' or 'auto', got {device!r}. Mend: device='auto'"
        )
    if problems:
        raise ConfigError(problems)


def require_federation(fed: Any) -> None:
    """Whoever comes from scikit-learn gives a table first."""
    if not isinstance(fed, Federation):
        raise DataError(
            f"this takes a Federation, not a {type(fed).__name__}",
            mend="fm.Federation(fm.Party(name, table), …), and fm.align(fed)",
        )


class Federation:
    """Parties, the engine they run on, and the ledger of what crosses between them.

    seed: one seed per run, split per site and purpose.
    reproducible: all random choices follow from the seed, by default in one process; else they
        come from the operating system, as between machines (an audit rehearses with these).
    strict: send every crossing through the wire even in one process (the tests do).
    ledger: a path for the JSON lines, or a Ledger; in memory only by default.
    """

    def __init__(
        self,
        *parties: Party,
        seed: int = 0,
        strict: bool = False,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        device: str = "cpu",
        reproducible: bool | None = None,
        engine: Engine | None = None,
    ) -> None:
        _check_arguments(parties, seed, device)
        names = [party.name for party in parties]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ConfigError(f"two parties are named {doubled[0]!r}. Mend: rename one of them")
        if engine is None and not parties:
            raise ConfigError("a federation needs a party. Mend: Federation(Party(…), …)")
        if not isinstance(ledger, Ledger):
            ledger = Ledger(Path(ledger) if ledger is not None else None)
        if reproducible is None:
            reproducible = engine is None or not engine.apart
        if engine is None:
            sites = [
                Site(
                    party.name,
                    party.tables,
                    policy=party.policy,
                    seed=seed,
                    secret=None if reproducible else draw_secret(),
                    device=device,
                    home=Path(party.home) if party.home is not None else None,
                )
                for party in parties
            ]
            engine = LocalEngine(sites, strict=strict, ledger=ledger)
        self.engine: Engine = engine
        self.seed = seed
        self.secret = None if reproducible else draw_secret()
        self.device = device
        self.dataset = "train"
        self._members: tuple[str, ...] = engine.names
        self._alignments: dict[str, AlignmentCounts] = {}
        self._rosters: dict[str, dict[str, dict[str, Any]]] = {}

    @classmethod
    def over_flare(
        cls,
        kits: str | os.PathLike[str],
        *,
        parties: Sequence[str] | None = None,
        run: str = "interactive",
        title: str = "",
        methods: Sequence[str] = (),
        seed: int = 0,
        resume: bool = False,
        reproducible: bool = False,
        home: str | os.PathLike[str] | None = None,
        test_share: float = 0.25,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        ledgers: Path | None = None,
        wait_seconds: float = 60.0,
        call_timeout: float = 3600.0,
        stall_seconds: float = 60.0,
        keep_jobs: int = 5,
        waiting: Callable[[list[str]], None] | None = None,
        answered: Callable[[str, bool, list[str]], None] | None = None,
        asker: Mapping[str, str] | None = None,
    ) -> Federation:
        """A federation whose parties run elsewhere, by the kits that `fedmend provision` made.

        The server must be up (`fedmend server start`), and so must the parties; `waiting` is told
        who is not there yet, and `answered` of every party whether it takes part and for whom the
        run still waits. run: under which name the parties keep models and checkpoints. title: what
        they are shown, with the organisation, person and study of `asker`. methods: names of the
        methods that will be used (``("vfl", "predict")``), to which the parties bind the run.
        ledgers: where their ledgers are put at the end. keep_jobs: of how many finished runs the
        server keeps the jobs. resume: go on with the run of this name, with the random choices that
        the parties have kept of it. home: a folder in which the coordinator keeps its own.
        reproducible: all of them follow from the seed, with a `PrivacyWarning`; a party refuses
        unless its policy allows it.
        """
        from fedmend.federation.engines.flare.engine import Opening
        from fedmend.federation.engines.flare.host import Hello
        from fedmend.federation.engines.flare.kits import Kits

        _check_arguments((), seed, "cpu")
        if reproducible:
            warnings.warn(
                f"reproducible=True: {COSTS}. Mend: leave it out, and runs differ a little",
                PrivacyWarning,
                stacklevel=2,
            )
        found = Kits(Path(kits))
        if not (found.admin / "startup").is_dir():
            raise ConfigError(
                f"{kits} holds no kit of the coordinator. Mend: 'fedmend provision' makes the kits"
            )
        if not isinstance(ledger, Ledger):
            ledger = Ledger(Path(ledger) if ledger is not None else None)
        named, share = tuple(methods), float(test_share)
        hello = Hello(
            run, title or run, named, int(seed), share, resume, reproducible, **(asker or {})
        )
        engine = Opening(found.admin, run, wait_seconds, keep_jobs, waiting).engine(
            list(parties) if parties is not None else found.parties,
            hello,
            ledger=ledger,
            call_timeout=call_timeout,
            stall_seconds=stall_seconds,
            answered=answered,
        )
        engine.ledgers = ledgers
        fed = cls(engine=engine, seed=seed, reproducible=reproducible)
        if home is not None and not reproducible:
            fed.secret = kept_secret(Path(home), COORDINATOR, resumed=resume)
        return fed

    # ------------------------------------------------------------------ who is here

    @property
    def names(self) -> tuple[str, ...]:
        return self._members

    @property
    def ledger(self) -> Ledger:
        return self.engine.ledger

    @property
    def reproducible(self) -> bool:
        """Whether all random choices of this federation follow from its seed."""
        return self.secret is None

    def own_seed(self, seed: int, purpose: str) -> int:
        """As a site's (`Site.own_seed`), for what the coordinator draws and others must not."""
        return seed if self.secret is None else wide_seed(self.secret, f"seed {purpose} {seed}")

    @property
    def scope(self) -> str:
        """Names the rows a worker works on: a table, and the parties among which it is aligned."""
        if self._members == self.engine.names:
            return self.dataset
        return f"{self.dataset}@{'+'.join(self._members)}"

    @property
    def roster(self) -> dict[str, dict[str, Any]]:
        """Rows, feature columns, how many of them are blocks (images), and whether there is a
        label, per party; asked once per table."""
        if self.scope not in self._rosters:
            with self.workers(RosterWorker) as workers:
                self._rosters[self.scope] = workers.rows()
        return self._rosters[self.scope]

    @property
    def label_parties(self) -> list[str]:
        return [name for name, facts in self.roster.items() if facts["labelled"]]

    @property
    def label_party(self) -> str:
        """The one party that holds labels."""
        holders = self.label_parties
        if len(holders) == 1:
            return holders[0]
        if not holders:
            raise DataError(
                "no party has a label column",
                mend="name it where the table is read: fm.read(path, id=…, label=…)",
            )
        raise DataError(
            f"several parties have labels: {', '.join(holders)}",
            mend="name one: label_party=…, or use a method for several annotators",
        )

    def require_party(self, parameter: str, name: str) -> None:
        """That a party which a parameter names is one of these."""
        if name not in self.names:
            raise ConfigError(
                f"{parameter}={name!r} is not in the federation. "
                f"Mend: one of {', '.join(self.names)}"
            )

    def on(self, dataset: str) -> Federation:
        """The same parties and ledger, working on another of their tables (``fed.on("test")``)."""
        return self._view(dataset, self._members)

    def only(self, *names: str) -> Federation:
        """The same federation seen as if only these parties were there."""
        if not names:
            raise ConfigError(f"nobody is named. Mend: name some of {', '.join(self._members)}")
        for name in names:
            if name not in self._members:
                raise ConfigError(
                    f"there is no party {name!r}. Mend: name some of {', '.join(self._members)}"
                )
        return self._view(self.dataset, tuple(name for name in self._members if name in names))

    def _view(self, dataset: str, members: tuple[str, ...]) -> Federation:
        view = object.__new__(Federation)
        view.__dict__.update(self.__dict__)
        view.dataset = dataset
        view._members = members
        return view

    # ------------------------------------------------------------------ alignment

    @property
    def is_aligned(self) -> bool:
        return self.scope in self._alignments

    @property
    def alignment(self) -> AlignmentCounts:
        """How many rows are aligned, and how many each party has besides."""
        if self.scope not in self._alignments:
            view = "fed" if self.dataset == "train" else f"fed.on({self.dataset!r})"
            raise AlignmentError(
                f"the rows of {self.scope!r} are not aligned yet. Mend: call fm.align({view}) first"
            )
        return self._alignments[self.scope]

    def note_alignment(self, counts: AlignmentCounts) -> None:
        """Called by an alignment protocol when every party has stored its side."""
        self._alignments[self.scope] = counts

    # ------------------------------------------------------------------ workers

    def workers(
        self,
        worker: type[Worker],
        *,
        parties: Sequence[str] | None = None,
        **params: Any,
    ) -> WorkerGroup:
        """Start a worker at every party (or the named ones); `Each` gives each its own value."""
        members = list(self._members if parties is None else parties)
        handles = {}
        try:
            for party in members:
                own = {key: Each.own(value, party) for key, value in params.items()}
                handles[party] = self.engine.start(party, worker.worker_name(), self.scope, own)
        except BaseException:
            WorkerGroup(self.engine, worker, handles).stop()
            raise
        return WorkerGroup(self.engine, worker, handles)

    def close(self, reason: str = "finished") -> None:
        """Stop the engine and bring the ledger to disk; parties elsewhere are told the reason."""
        self.engine.close(reason)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close("finished" if error is None else f"{type(error).__name__}: {error}"[:500])

    def __repr__(self) -> str:
        return f"Federation({', '.join(self._members)}; on {self.dataset!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the parties' sizes, which they are asked for once."""
        known = f"{self.alignment.aligned:,}" if self.is_aligned else ""
        rows = [
            [name, f"{has['rows']:,}", known, has["features"], "yes" if has["labelled"] else ""]
            for name, has in self.roster.items()
        ]
        below = ["fm.overview(fed) says what is torn" if self.is_aligned else "not aligned yet"]
        head = ["party", "rows", "known to all", "columns", "label"]
        return html_table(head, rows, title=repr(self), below=below)
