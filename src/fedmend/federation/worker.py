"""A Worker is the party-side half of a protocol. Only what it marks `@exposed` can be asked for.

    class MeanWorker(Worker):
        @exposed(kind="statistic")
        def mean(self, column: str) -> float:
            return float(self.table.frame[column].mean())

Workers are known by name: a job names a worker and its parameters, the party runs its own
installed code, and no code ever travels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedmend.errors import AlignmentError, ConfigError, DataError, WireError
from fedmend.federation.kinds import AGGREGATES, KINDS
from fedmend.federation.policy import unknown_kind
from fedmend.federation.rows import Asked

if TYPE_CHECKING:
    from fedmend.data.table import Table
    from fedmend.federation.site import Alignment, Site

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Exposure:
    """What is declared of an exposed method: the kind that leaves, and the kinds it takes.

    opens: the kind of what becomes readable by it, where that is not what leaves.
    over_rows: whether the answer rests on rows, of which there must be enough.
    optional: where there are not, nothing (None) is answered, and nobody is refused.
    """

    method: str
    kind: str
    signature: inspect.Signature
    takes: Mapping[str, str]
    opens: str = ""
    over_rows: bool = False
    optional: bool = False

    @cached_property
    def least(self) -> int:
        """How many arguments must be given; more than can be, where some go by name only."""
        known = self.signature.parameters.values()
        if any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in known):
            return len(known) + 1
        return sum(each.default is inspect.Parameter.empty for each in known)

    def bind(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name; a wrong call is refused before anything crosses."""
        if not kwargs and self.least <= len(args) <= len(self.signature.parameters):
            return dict(zip(self.signature.parameters, args, strict=False))
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            takes = ", ".join(self.signature.parameters) or "no argument"
            raise WireError(f"{call}: {error}. Mend: it takes {takes}") from None


def exposed(
    *,
    kind: str,
    takes: Mapping[str, str] | None = None,
    opens: str = "",
    over_rows: bool | None = None,
    optional: bool = False,
) -> Callable[[Method], Method]:
    """Let the coordinator call this method; `kind` is what leaves the party by it.

    `takes` names the kinds of arguments that are more than settings (``{"gradient": "gradient"}``),
    so that the ledger can say what the party was shown. `opens` is the kind of what becomes
    readable out of shares or sums of what leaves. `over_rows` says whether the answer rests on
    rows (see `Worker.rows_asked`); of counts, statistics and weights it is taken for granted.
    `optional`: None leaves instead of an answer over too few rows, for what a protocol can miss.
    """
    declared = dict(takes or {})
    rests = over_rows if over_rows is not None else (opens or kind) in AGGREGATES
    for name in (kind, *declared.values(), *([opens] if opens else [])):
        if name not in KINDS:
            raise ConfigError(unknown_kind(name, "exposed"))

    def mark(method: Method) -> Method:
        if method.__name__ == "stop" or method.__name__.startswith("_"):
            raise ConfigError(f"{method.__qualname__}: a method of this name cannot be exposed")
        signature = inspect.signature(method)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        unknown = declared.keys() - signature.parameters.keys()
        if unknown:
            raise ConfigError(
                f"exposed({method.__qualname__}): no parameter {sorted(unknown)[0]!r}"
            )
        method.__exposure__ = Exposure(  # type: ignore[attr-defined]
            method.__name__, kind, signature, declared, opens, rests, optional
        )
        return method

    return mark


class Worker:
    """Base of all workers. Subclasses keep their state on themselves, at the party.

    parallel_inside: the methods use all cores by themselves, as tensor programs do. In one process
    such workers take turns: side by side in threads they would each start a team of OpenMP
    threads, and with more of those than cores every parallel loop of the process gets slower.
    """

    parallel_inside: ClassVar[bool] = False

    exposures: ClassVar[dict[str, Exposure]] = {}
    _registry: ClassVar[dict[str, type[Worker]]] = {}

    def __init__(self, site: Site, scope: str = "train") -> None:
        self.site = site
        self.scope = scope

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.exposures = {
            name: method.__exposure__
            for name, method in inspect.getmembers(cls, inspect.isfunction)
            if hasattr(method, "__exposure__")
        }
        name = cls.worker_name()
        known = Worker._registry.get(name)
        if known is not None and known.__module__ != cls.__module__:
            # A policy that admits a name must not admit somebody else's worker by it.
            raise ConfigError(
                f"a worker named {name!r} is already defined in {known.__module__}. "
                f"Mend: rename the one in {cls.__module__}"
            )
        Worker._registry[name] = cls

    def incoming(self, exposure: Exposure, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a call as its method is to see them; here as they came."""
        return kwargs

    def outgoing(self, exposure: Exposure, kwargs: Mapping[str, Any], value: Any) -> Any:
        """What leaves in answer to a call; here what its method returned."""
        return value

    def opens(self, exposure: Exposure) -> str:
        """The kind of what becomes readable by a call; here as declared."""
        return exposure.opens

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        """The sets of places in `table` on which the answer to a call rests; None is all rows."""
        return [None]

    def about_rows(self, method: str) -> str:
        """Whether the answer to a call is about "columns" or "labels" (`RowAccount.admit`)."""
        return "columns"

    @classmethod
    def worker_name(cls) -> str:
        """The name a policy and a job know this worker by."""
        return cls.__name__

    @staticmethod
    def installed() -> dict[str, type[Worker]]:
        """Every worker this installation knows, by name."""
        return dict(Worker._registry)

    @property
    def table(self) -> Table:
        # Asked for every time: labels may have come under protection since.
        return self.site.table_of(self.scope)

    @property
    def alignment(self) -> Alignment:
        alignment = self.site.alignments.get(self.scope)
        if alignment is None:
            raise AlignmentError(
                f"party {self.site.name!r}: the rows of {self.scope!r} are not aligned yet. "
                "Mend: call fm.align(fed) first"
            )
        return alignment

    def column(self, name: str) -> Any:
        if name not in self.table.names:
            raise DataError(
                "there is no such column",
                party=self.site.name,
                column=name,
                mend=f"name one of {', '.join(self.table.names)}",
            )
        return self.table.frame[name]
