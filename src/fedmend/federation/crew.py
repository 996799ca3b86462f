"""Crews and proxies: how the coordinator calls workers at one party or at all of them.

Every public name of a crew but `stop` is a method that its workers expose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedmend.errors import ConfigError
from fedmend.federation.engines import Call, Engine
from fedmend.federation.worker import Worker


@dataclass(frozen=True)
class Each:
    """Wraps an argument of which every party gets its own: ``Each({"bank": 1, "telco": 2})``."""

    values: Mapping[str, Any]


class Crew:
    """One worker at each of several parties. A method called on the crew is called at all."""

    def __init__(self, engine: Engine, worker: type[Worker], handles: dict[str, str]) -> None:
        self._engine = engine
        self._worker = worker
        self._handles = handles

    def __getitem__(self, party: str) -> Proxy:
        return Proxy(self, party)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, party: object) -> bool:
        return party in self._handles

    def __getattr__(self, method: str) -> Callable[..., dict[str, Any]]:
        self._exposure(method)

        def call_at_all(*args: Any, **kwargs: Any) -> dict[str, Any]:
            calls = []
            for party in self._handles:
                own = tuple(for_party(value, party) for value in args)
                named = {key: for_party(value, party) for key, value in kwargs.items()}
                calls.append(self._prepare(party, method, own, named))
            return dict(zip(self._handles, self._engine.call_all(calls), strict=True))

        return call_at_all

    def _prepare(
        self, party: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        exposure = self._exposure(method)
        name = self._worker.worker_name()
        bound = exposure.bind(f"{name}.{method}", args, kwargs)
        return Call(
            party,
            self._handles[party],
            name,
            method,
            bound,
            exposure.takes,
            exposure.kind,
            self._worker.parallel_inside,
        )

    def _call(self, party: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._engine.call(self._prepare(party, method, args, kwargs))

    def stop(self) -> None:
        """End the workers; what they held ends with them."""
        for party, handle in self._handles.items():
            self._engine.stop(party, handle)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _exposure(self, method: str) -> Any:
        exposure = self._worker.exposures.get(method)
        if exposure is None:
            raise AttributeError(
                f"{self._worker.worker_name()} exposes no {method!r}; it exposes "
                + (", ".join(sorted(self._worker.exposures)) or "nothing")
            )
        return exposure


class Proxy:
    """One party's worker, as the coordinator sees it."""

    def __init__(self, crew: Crew, party: str) -> None:
        if party not in crew._handles:
            raise KeyError(f"no worker at {party!r}; there is one at {', '.join(crew._handles)}")
        self._crew = crew
        self._party = party

    def __getattr__(self, method: str) -> Callable[..., Any]:
        self._crew._exposure(method)
        return lambda *args, **kwargs: self._crew._call(self._party, method, args, kwargs)


def for_party(value: Any, party: str) -> Any:
    if not isinstance(value, Each):
        return value
    if party not in value.values:
        raise ConfigError(f"Each(…) has no value for party {party!r}. Mend: give one for each")
    return value.values[party]
