"""Which workers a method may use, by the party's own installation: what a run is bound to.

    declare("vfl", BottomWorker, TopWorker)

A coordinator names the methods of a run when it says hello. That is no consent: the party looks
them up here, in its own copy, leaves out what its policy does not name, and refuses every worker
and call that none of the rest needs. Low-level protocols (`named_only`) are for parties whose
policy names them; what every run needs (alignment, sizes, checkpoints) is declared as `EVERY_RUN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmend._suggest import did_you_mean
from fedmend.errors import Refused
from fedmend.federation.kinds import EXCHANGED, KINDS
from fedmend.federation.policy import Policy, in_the_open

if TYPE_CHECKING:
    from fedmend.federation.worker import Worker

EVERY_RUN = "every run"


@dataclass
class Uses:
    """What a method is declared to use.

    calls: exposed methods by worker. providers: of columns for products. reader: the coordinator
    itself holds the top model, and so must read embeddings. named_only: see above.
    """

    calls: dict[str, frozenset[str]] = field(default_factory=dict)
    providers: set[str] = field(default_factory=set)
    reader: bool = False
    named_only: bool = False


_DECLARED: dict[str, Uses] = {}


def declare(
    method: str,
    *workers: type[Worker] | tuple[type[Worker], frozenset[str]],
    providers: Iterable[str] = (),
    reader: bool = False,
    named_only: bool = False,
) -> None:
    """Let a method use these workers (`but` leaves out calls); said again, it may use more."""
    uses = _DECLARED.setdefault(method, Uses())
    for each in workers:
        worker, calls = each if isinstance(each, tuple) else (each, frozenset(each.exposures))
        name = worker.worker_name()
        uses.calls[name] = uses.calls.get(name, frozenset()) | calls
    uses.providers |= set(providers)
    uses.reader |= reader
    uses.named_only |= named_only


def but(worker: type[Worker], *calls: str) -> tuple[type[Worker], frozenset[str]]:
    """A worker without some of its calls."""
    return worker, frozenset(worker.exposures) - set(calls)


def declared() -> dict[str, Uses]:
    """What every method of this installation uses, by name."""
    return dict(_DECLARED)


def published() -> list[str]:
    """The methods that a policy without a list admits."""
    return sorted(
        name for name, uses in _DECLARED.items() if name != EVERY_RUN and not uses.named_only
    )


@dataclass(frozen=True)
class Bound:
    """What the methods of a run may use at a party.

    sealed: workers whose embeddings and gradients cross end-to-end encrypted or not at all.
    """

    methods: tuple[str, ...]
    calls: Mapping[str, frozenset[str]]
    providers: frozenset[str]
    sealed: frozenset[str]

    @classmethod
    def to(
        cls,
        party: str,
        methods: Iterable[str],
        policy: Policy,
        *,
        own: Iterable[type[Worker]] = (),
        seal: bool = True,
    ) -> Bound:
        """Bind a run to its methods, as far as this party's policy admits them.

        own: further workers, of modules that the party's own file names. seal: what parties
        exchange is end-to-end encrypted wherever the coordinator has no need to read it.
        """
        names = tuple(dict.fromkeys(methods))
        for name in names:
            _admit_method(party, name, policy)
        uses = [_DECLARED[name] for name in (EVERY_RUN, *names) if name in _DECLARED]
        calls: dict[str, frozenset[str]] = {}
        for each in uses:
            for worker, some in each.calls.items():
                calls[worker] = calls.get(worker, frozenset()) | some
        calls |= {worker.worker_name(): frozenset(worker.exposures) for worker in own}
        read = {worker for each in uses if each.reader for worker in each.calls}
        theirs = {worker.worker_name() for worker in own}
        return cls(
            names,
            calls,
            frozenset(name for each in uses for name in each.providers),
            frozenset(set(calls) - read - theirs) if seal else frozenset(),
        )

    def lets_out(self, installed: Mapping[str, type[Worker]], policy: Policy) -> list[str]:
        """The kinds of value that may leave by what these methods use, settings aside."""
        kinds = {
            installed[worker].exposures[call].kind
            for worker, calls in self.calls.items()
            for call in calls
            if worker in installed
        }
        return [kind for kind in KINDS if kind in kinds & policy.may_leave and kind != "control"]

    def admit_worker(self, party: str, worker: str) -> None:
        if worker not in self.calls:
            raise Refused(
                party,
                f"the worker {worker} is used by none of the methods of this run "
                f"({', '.join(self.methods) or 'none is named'})",
                _mend_for(worker),
            )

    def admit_call(self, party: str, worker: str, method: str) -> None:
        if method not in self.calls.get(worker, ()):
            raise Refused(
                party,
                f"{worker}.{method} is used by none of the methods of this run "
                f"({', '.join(self.methods) or 'none is named'})",
                "take a method that needs it",
            )

    def admit_provider(self, party: str, provider: str) -> None:
        if provider not in self.providers:
            raise Refused(
                party,
                f"products of {provider!r} columns are no part of the methods of this run "
                f"({', '.join(self.methods) or 'none is named'})",
                f'methods = ["products", …] in the policy of {party!r}, if it agrees',
            )

    def admit_crossing(self, party: str, worker: str, kind: str, value: Any) -> None:
        """Refuse embeddings and gradients that the coordinator could read, or put in its own."""
        if kind in EXCHANGED and worker in self.sealed and in_the_open(value):
            raise Refused(
                party,
                f"a value of kind {kind!r} would cross the coordinator in the open, which has no "
                f"need to read it for {', '.join(self.methods)}",
                f"leave seal out (or seal = true); or sealed = [] in the policy of {party!r}",
            )


def _admit_method(party: str, name: str, policy: Policy) -> None:
    uses = _DECLARED.get(name)
    if uses is None or name == EVERY_RUN:
        raise Refused(
            party,
            f"no method {name!r} is installed here",
            f"{did_you_mean(name, published())}; the same fedmend version at all parties",
        )
    if (policy.methods is None and uses.named_only) or (
        policy.methods is not None and name not in policy.methods
    ):
        raise Refused(
            party,
            f"the method {name!r} is not among those it takes part in",
            f"add {name!r} to methods in the policy of {party!r}, or use another method",
        )


def _mend_for(worker: str) -> str:
    users = sorted(name for name, uses in _DECLARED.items() if worker in uses.calls)
    return f"name a method that uses it: {', '.join(users)}" if users else "no method uses it"
