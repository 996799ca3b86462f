"""Listening at the border of every site: the messages that really cross, and nothing else.

A rehearsal is a copy of a federation: sites of its own over the same tables and alignment, a
ledger of its own. What is trained in it leaves no trace in the federation it was copied from, and
the sites do what they always do: a listener is told of a call after it was answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedmend.errors import ConfigError
from fedmend.federation import Federation, Ledger, Site, Worker, wire
from fedmend.federation.engines.local import LocalEngine

__all__ = ["Heard", "Listener", "as_array", "rehearsal"]


@dataclass(frozen=True)
class Heard:
    """One call that a party answered: what it was given, and what it let out.

    scope: which rows its worker works on. before, after: the row numbers of the batch that the
    party had in flight before and after the call, as it knows them itself; None where its worker
    has no batches. given, answer: as the party has them; whoever keeps them takes a copy. at: the
    party's own model, where an attack looks for the truth that it is judged by. sealed: they
    crossed in boxes, which the coordinator cannot open.
    """

    party: str
    worker: str
    handle: str
    method: str
    scope: str
    given: Mapping[str, Any]
    answer: Any
    kind: str
    before: np.ndarray | None = None
    after: np.ndarray | None = None
    at: Worker | None = None
    sealed: bool = False


Listener = Callable[[Heard], None]


class TappedSite(Site):
    """A site like another one, which tells listeners what it was asked and what it answered."""

    def __init__(self, of: Site, scopes: Mapping[str, str], hear: Listener) -> None:
        super().__init__(
            of.name, of.tables, policy=of.policy, seed=of.seed, secret=of.secret, device=of.device
        )
        self.alignments = {
            own: of.alignments[theirs] for theirs, own in scopes.items() if theirs in of.alignments
        }
        # What methods put there is put into these copies, never into the other site's.
        self.state = {
            key: dict(value) if isinstance(value, dict) else value
            for key, value in of.state.items()
        }
        self._hear = hear
        self._inside: dict[str, tuple[Mapping[str, Any], Any]] = {}

    def call(self, handle: str, method: str, kwargs: Mapping[str, Any]) -> Any:
        before = self._in_flight(handle)
        crossed = super().call(handle, method, kwargs)
        worker = self._workers[handle]
        given, answer = self._inside.pop(handle)
        self._hear(
            Heard(
                self.name,
                worker.worker_name(),
                handle,
                method,
                worker.scope,
                given,
                answer,
                worker.exposures[method].kind,
                before,
                self._in_flight(handle),
                worker,
                bool(wire.measure([dict(kwargs), crossed]).sealed_for),
            )
        )
        return crossed

    def _run(self, handle: str, method: str, given: Mapping[str, Any]) -> Any:
        answer = super()._run(handle, method, given)
        self._inside[handle] = (given, answer)
        return answer

    def _in_flight(self, handle: str) -> np.ndarray | None:
        model = getattr(self._workers.get(handle), "trained", None)
        numbers = getattr(model, "in_flight", None)
        return None if numbers is None else numbers.cpu().numpy()


def rehearsal(fed: Federation, listeners: Sequence[Listener]) -> Federation:
    """A copy of a federation of one process, in which every listener hears every call."""
    if not isinstance(fed.engine, LocalEngine):
        raise ConfigError(
            "an audit rehearses a training with all tables in one process, and these parties are "
            "on machines of their own. Mend: audit on public or consented data at one place, or "
            "look at what crossed: fedmend audit --ledger RUN"
        )
    lock = threading.Lock()

    def hear(heard: Heard) -> None:
        with lock:
            for listener in listeners:
                listener(heard)

    datasets = list(dict.fromkeys(d for name in fed.names for d in fed.engine.site(name).tables))
    scopes = {fed.on(dataset).scope: dataset for dataset in datasets}
    sites = [TappedSite(fed.engine.site(name), scopes, hear) for name in fed.names]
    engine = LocalEngine(sites, strict=fed.engine.strict, ledger=Ledger())
    copy = Federation(engine=engine, seed=fed.seed, device=fed.device)
    copy.secret = fed.secret
    for dataset in datasets:
        if fed.on(dataset).is_aligned:
            copy.on(dataset).note_alignment(fed.on(dataset).alignment)
    return copy.on(fed.dataset)


def as_array(value: Any) -> np.ndarray:
    """A copy as float32, one line a row."""
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu", torch.float32).numpy()
    found = np.array(value, dtype=np.float32)
    return found.reshape(len(found), -1)
