"""The recorder: what really crosses at the border of every site, and whose rows it is about.

A rehearsal is a copy of a federation: sites of its own over the same tables and alignment, a
ledger of its own. What is trained in it leaves no trace in the federation it was copied from, and
the sites do what they always do: a listener is told of a call after it was answered.

Observations are kept as the receiver could keep them, by row number: a feature party knows which of
its rows were in which batch, and so does whoever receives the embeddings, or relays them in the
open (the order of rows follows from seeds that all of them are told).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedmend.errors import ConfigError
from fedmend.federation import Federation, Ledger, Site, Worker, wire
from fedmend.federation.engines.local import LocalEngine
from fedmend.federation.labels import LabelGuard

WEIGHTED_SUMS = "additive"
BOTTOM = "bottom"


@dataclass(frozen=True)
class Observed:
    """One call that a party answered: what it was given, and what it let out.

    scope: which rows its worker works on. before, after: the row numbers of the batch that the
    party had in flight before and after the call, as it knows them itself; None where its worker
    has no batches. given, answer: as the party has them; whoever keeps them takes a copy. at: the
    party's own model, where an attack looks for the truth that it is judged by. sealed: they
    crossed end-to-end encrypted.
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


Listener = Callable[[Observed], None]


class RecordedSite(Site):
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

    def show_labels(self) -> None:
        """From now on its labels are seen as they are, whatever methods were let to know."""
        policy = replace(self.policy, label_dp_only=False)
        self.labels = LabelGuard(self.name, self.tables, policy, None, "")

    def call(self, handle: str, method: str, kwargs: Mapping[str, Any]) -> Any:
        before = self._in_flight(handle)
        crossed = super().call(handle, method, kwargs)
        worker = self._workers[handle]
        given, answer = self._inside.pop(handle)
        self._hear(
            Observed(
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

    def hear(call: Observed) -> None:
        with lock:
            for listener in listeners:
                listener(call)

    datasets = list(dict.fromkeys(d for name in fed.names for d in fed.engine.site(name).tables))
    scopes = {fed.on(dataset).scope: dataset for dataset in datasets}
    sites = [RecordedSite(fed.engine.site(name), scopes, hear) for name in fed.names]
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


@dataclass(frozen=True)
class Look:
    """One message: a line of `values` for each of `rows`."""

    rows: np.ndarray
    values: np.ndarray


class Observations:
    """A listener that keeps the first `most` looks at every aligned row, and the final ones.

    gradients, embeddings: by party and channel ("bottom": the network's; "additive": the sums
    over columns that RISA adds to it), in the order they crossed. final: embeddings that the
    trained model makes, observed once `training` is False. unread: calls whose gradients or
    embeddings belong to no row it knows of, which no attack looks at.
    """

    def __init__(self, scope: str, aligned: int, most: int) -> None:
        self.scope = scope
        self.aligned = aligned
        self.most = most
        self.training = True
        self.gradients: dict[tuple[str, str], list[Look]] = defaultdict(list)
        self.embeddings: dict[tuple[str, str], list[Look]] = defaultdict(list)
        self.final: dict[str, list[Look]] = defaultdict(list)
        self.unread: set[str] = set()
        self._read: dict[str, bool] = {}
        self._asked: dict[str, np.ndarray] = {}
        self._seen: dict[tuple[str, ...], np.ndarray] = {}

    def hear(self, call: Observed) -> None:
        """Keep what a call says about aligned rows."""
        if call.scope != self.scope:
            return
        if call.method == "additive_begin" and "rows" in call.given:
            self._asked[call.handle] = np.asarray(call.given["rows"])
        gradient = call.given.get("gradient")
        if gradient is not None or call.kind == "embedding":
            self._read[call.party] = self._read.get(call.party, False) or not call.sealed
        if gradient is not None:
            rows = self._rows(call, before=True)
            self._keep(call, "gradient", rows, gradient)
        if call.kind == "embedding" and call.method != "fill_embedding":
            self._keep(call, "embedding", self._rows(call, before=False), call.answer)

    def _rows(self, call: Observed, *, before: bool) -> np.ndarray | None:
        """Whose rows a gradient (that arrived) or an embedding (that was answered) has."""
        if call.method.startswith("additive_"):
            return self._asked.get(call.handle)
        if call.method == "embed":
            return np.asarray(call.given["rows"])
        if call.method == "take_gradient":  # a whole gradient at once, for all rows in their order
            return np.arange(self.aligned)
        return call.before if before else call.after

    def _keep(self, call: Observed, kind: str, rows: np.ndarray | None, value: Any) -> None:
        readable = rows is not None and hasattr(value, "shape")
        at = self.places(rows, len(value)) if rows is not None and readable else None
        if rows is None or at is None:
            self.unread.add(f"{call.worker}.{call.method}")
            return
        if not len(at):
            return
        channel = WEIGHTED_SUMS if call.method.startswith("additive_") else BOTTOM
        if kind == "embedding" and not self.training:
            if call.method == "embed":
                self.final[call.party].append(Look(rows[at].copy(), as_array(value)[at]))
            return
        seen = self._seen.setdefault((kind, call.party, channel), np.zeros(self.aligned))
        if seen[rows[at]].min() >= self.most:
            return
        seen[rows[at]] += 1
        looks = self.gradients if kind == "gradient" else self.embeddings
        looks[call.party, channel].append(Look(rows[at].copy(), as_array(value)[at]))

    def places(self, rows: np.ndarray, lines: int) -> np.ndarray | None:
        """Where the aligned ones among these rows stand in a message of so many lines.

        A party without some of the rows leaves their lines out. The aligned ones it has; where
        they lead, their lines do. None where it cannot be told.
        """
        at = np.flatnonzero(rows < self.aligned)
        if lines >= len(rows) or not len(at):
            return at
        leading = bool((at == np.arange(len(at))).all()) and len(at) <= lines
        return at if leading else None

    def sealed(self, party: str) -> bool:
        """Whether all that went up from a party and came down to it was sealed."""
        return not self._read.get(party, True)

    def final_embeddings(self, party: str) -> np.ndarray | None:
        """The trained model's embeddings of all aligned rows, as they crossed. **Shape** [n, d]"""
        looks = self.final.get(party)
        if not looks:
            return None
        found = np.zeros((self.aligned, looks[-1].values.shape[1]))
        there = np.zeros(self.aligned, dtype=bool)
        for look in looks:
            if look.values.shape[1] == found.shape[1]:
                found[look.rows], there[look.rows] = look.values, True
        return found if there.all() else None

    def stacked(self, looks: list[Look], *, unit: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Looks side by side, and how many there are at each row; zeros where there are fewer.

        unit: every line scaled to length 1. **Shape** [n, looks * d], [n]
        """
        width = looks[0].values.shape[1]
        alike = [look for look in looks if look.values.shape[1] == width]
        counts = np.zeros(self.aligned, dtype=np.int64)
        found = np.zeros((self.aligned, self.most, width), np.float32)
        for look in alike:
            values = look.values
            if unit:
                length = np.linalg.norm(values, axis=1, keepdims=True)
                values = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
            # A row may be twice in one batch; the first time counts.
            rows, first = np.unique(look.rows, return_index=True)
            room = counts[rows] < self.most
            rows, first = rows[room], first[room]
            found[rows, counts[rows]] = values[first]
            counts[rows] += 1
        used = max(1, int(counts.max(initial=0)))
        return found[:, :used].reshape(self.aligned, -1), counts
