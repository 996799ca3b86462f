"""The local engine: every site in this process.

Values pass by reference and the ledger measures them without encoding them, so that split
training costs close to the same network in one piece. With ``strict=True`` every value really
goes through the wire: whatever runs strict runs over a network.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedmend.errors import ConfigError, Refused
from fedmend.federation import wire
from fedmend.federation.engines import Call, by_kind, raise_first
from fedmend.federation.engines.flare.messages import error_measure, error_reply
from fedmend.federation.ledger import COORDINATOR, ERROR, REFUSED, Ledger
from fedmend.federation.site import Site


class LocalEngine:
    """Sites side by side in one process; calls to several of them run concurrently."""

    apart = False

    def __init__(self, sites: Iterable[Site], *, strict: bool = False, ledger: Ledger) -> None:
        self.sites = {site.name: site for site in sites}
        self.strict = strict
        self.ledger = ledger
        self._pool: ThreadPoolExecutor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sites)

    def site(self, party: str) -> Site:
        if party not in self.sites:
            raise ConfigError(
                f"there is no party {party!r}. Mend: name one of {', '.join(self.sites)}"
            )
        return self.sites[party]

    def start(self, party: str, worker: str, scope: str, params: dict[str, Any]) -> str:
        site = self.site(party)
        message = {"worker": worker, "scope": scope, "params": params}
        sent = self._cross(COORDINATOR, party, f"{worker}.start", "control", message)
        try:
            handle = site.start(sent["worker"], sent["scope"], sent["params"])
        except Exception as error:
            self._error(site, f"{worker}.start", "control", error)
            raise
        return str(self._cross(party, COORDINATOR, f"{worker}.start", "control", handle))

    def call(self, call: Call) -> Any:
        site, kind = self.site(call.party), call.exposure.kind
        kwargs: dict[str, Any] = {}
        for taken, group in by_kind(call.kwargs, call.exposure.takes).items():
            kwargs |= self._cross(COORDINATOR, call.party, call.name, taken, group)
        exposure = site.exposure(call.handle, call.method)
        try:
            value = site.call(call.handle, call.method, kwargs)
        except Exception as error:
            self._error(site, call.name, kind, error)
            raise
        opens = exposure.opens if exposure else ""
        return self._cross(call.party, COORDINATOR, call.name, kind, value, opens)

    def call_all(self, calls: list[Call]) -> list[Any]:
        """All calls at the same time; the first error is raised after all of them ended.

        Workers that use all cores by themselves take turns (see `Worker.parallel_inside`).
        """
        if len(calls) < 2 or calls[0].worker.parallel_inside:
            return [self.call(call) for call in calls]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(8, len(self.sites)), "fedmend-site")
        futures = [self._pool.submit(self.call, call) for call in calls]
        found = [future.exception() for future in futures]
        raise_first([error for error in found if isinstance(error, Exception)])
        return [future.result() for future in futures]

    def stop(self, party: str, handle: str) -> None:
        self.site(party).stop(handle)

    def close(self, reason: str = "finished") -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.ledger.close()

    def _cross(
        self, sender: str, receiver: str, call: str, kind: str, value: Any, opens: str = ""
    ) -> Any:
        """Take a value over the boundary: measured and noted, in strict mode encoded as well."""
        if not self.strict:
            self.ledger.record(sender, receiver, call, kind, wire.measure(value), opens=opens)
            return value
        encoded, size = wire.encode_measured(value)
        self.ledger.record(sender, receiver, call, kind, size, opens=opens)
        return wire.decode(encoded)

    def _error(self, site: Site, call: str, kind: str, error: Exception) -> None:
        """An error is an answer: noted with the bytes it would have from another machine."""
        refused = isinstance(error, Refused)
        size = error_measure(error_reply(error, policy=site.policy))
        # What was withheld keeps its kind in the ledger; an error is words.
        kind, note = (kind, REFUSED) if refused else ("control", ERROR)
        self.ledger.record(site.name, COORDINATOR, call, kind, size, note=note)
