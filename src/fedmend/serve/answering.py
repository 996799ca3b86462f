"""What the label party answers: by those who know a person and are there in time.

People are predicted in groups, by who knows them. Each group is one round with its partners. A
partner that is late, gone or unwilling is left out, and the group is predicted without it at once:
every method has an answer for rows that some parties do not know (docs/predict.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.encode import as_written
from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendError, PartyAbsent
from fedmend.federation import Alignment, Federation, Site
from fedmend.federation.engines.flare.host import Hello
from fedmend.learn.metrics import expected_error
from fedmend.secure.align import align
from fedmend.serve.channel import Channel
from fedmend.serve.engine import Remote, ServingEngine
from fedmend.serve.models import KeptModel, load_model
from fedmend.serve.partner import PEOPLE, SERVE, ServeWorker
from fedmend.serve.sources import People
from fedmend.split.features import ALIGNED, among

logger = logging.getLogger(__name__)

RESERVE = 0.25
"""The share of a deadline that is kept for an answer without the partners that miss it."""
FAILURES = 3
REST_SECONDS, LONGEST_REST = 0.5, 10.0
NOT_KNOWN, DOWN, RESTS, LATE, REFUSED = "not known", "down", "rests", "late", "refused"


@dataclass
class Answers:
    """Of each row: outputs [n, C] (or [n]), who took part, and why others did not."""

    outputs: np.ndarray
    used: list[tuple[str, ...]]
    absent: list[dict[str, str]]


class Breaker:
    """Lets a partner rest that fails again and again: nobody waits for it, and one tries later."""

    def __init__(self) -> None:
        self._failed = 0
        self._until = 0.0

    def is_open(self) -> bool:
        return time.monotonic() < self._until

    def note(self, good: bool) -> None:
        self._failed = 0 if good else self._failed + 1
        over = self._failed - FAILURES
        if over >= 0:
            rest = min(LONGEST_REST, REST_SECONDS * 2.0 ** min(over, 10))
            self._until = time.monotonic() + rest


@dataclass
class _Loaded:
    """The model with the parts of the partners that are there.

    numbers: of each partner, the place in the common order of everybody here, -1 if not shared.
    """

    network: Any
    classes: list[Any] | None
    numbers: dict[str, np.ndarray] = field(default_factory=dict)


class Answerer:
    """Predicts people of the label party. One thread asks; partners join and go at any time."""

    def __init__(
        self,
        model: KeptModel,
        site: Site,
        people: People,
        engine: ServingEngine,
        partners: Sequence[str],
        align_with: Mapping[str, Any],
    ) -> None:
        self.model, self.people, self.engine = model, people, engine
        self.label_party = str(model.label_party)
        self.partners = list(partners)
        self.breakers = {name: Breaker() for name in partners}
        self._site = site
        self._align_with = dict(align_with)
        self._lock = threading.Lock()
        # Choices that others must not know are this party's own.
        self.fed = Federation(engine=engine, reproducible=False)
        self._joined: dict[str, np.ndarray] = {}
        self._now = self._load()

    # ------------------------------------------------------------------ who is there

    def join(self, partner: str) -> int:
        """Find the people shared with a partner that is there, and load its part of the model."""
        # One that went while it joined was met with other keys.
        self.engine.renew()
        people = self.fed.on(PEOPLE)
        pair = people.only(self.label_party, partner)
        counts = align(pair, minimum=1, **self._align_with)
        aligned = self._site.alignments[pair.scope].aligned
        numbers = np.full(len(self.people.ids), -1)
        numbers[aligned] = np.arange(len(aligned))
        with self._lock:
            self._joined[partner] = numbers
            self._reload()
        return counts.aligned

    def leave(self, partner: str) -> None:
        with self._lock:
            if self._joined.pop(partner, None) is not None:
                self._reload()

    @property
    def present(self) -> list[str]:
        return list(self._now.numbers)

    def unknown_shares(self) -> dict[str, float]:
        """Of the people here, those that each partner that is there does not know."""
        return {name: float((known < 0).mean()) for name, known in self._now.numbers.items()}

    def _reload(self) -> None:
        # Workers that are kept have met those of partners that were there before.
        self.engine.renew()
        self._now = self._load()

    def _load(self) -> _Loaded:
        view = self.fed.on(PEOPLE).only(self.label_party, *self._joined)
        estimator = load_model(self.model.name, self.model.folder, view, alone=True)
        self.engine.flush()
        classes = None if estimator.classes_ is None else estimator.classes_.tolist()
        return _Loaded(estimator.network_, classes, dict(self._joined))

    # ------------------------------------------------------------------ answers

    def columns(self, answers: Answers) -> dict[str, list[Any]]:
        """As the files of ``fedmend predict`` have them."""
        classes, outputs = self._now.classes, answers.outputs
        if not classes:
            return {"prediction": outputs.tolist()}
        shown = [as_written(value) for value in classes]
        found: dict[str, list[Any]] = {
            "prediction": [shown[at] for at in outputs.argmax(1).tolist()]
        }
        found |= {f"p({name})": outputs[:, at].tolist() for at, name in enumerate(shown)}
        return found | {"uncertainty": expected_error(outputs).tolist()}

    def answer(self, table: Table, places: np.ndarray, until: float) -> Answers:
        """What is known of these rows; `places` are people's here, -1 for new ones."""
        now = self._now
        absent: list[dict[str, str]] = [{} for _ in places]
        numbers: dict[str, np.ndarray] = {}
        for partner in self.partners:
            reason = self._away(partner, now)
            found = np.full(len(places), -1)
            if not reason:
                known = now.numbers[partner]
                found = np.where(places >= 0, known[places], -1)
            numbers[partner] = found
            for at in np.flatnonzero(found < 0).tolist():
                absent[at][partner] = reason or NOT_KNOWN
        which = sum(
            (numbers[name] >= 0).astype(np.int64) << bit for bit, name in enumerate(self.partners)
        ) + np.zeros(len(places), np.int64)
        outputs: list[tuple[np.ndarray, np.ndarray]] = []
        used: list[tuple[str, ...]] = [()] * len(places)
        for code in np.unique(which).tolist():
            rows = np.flatnonzero(which == code)
            asked = [name for bit, name in enumerate(self.partners) if code >> bit & 1]
            self._group(now, table, rows, asked, numbers, until, outputs, used, absent)
        order = np.concatenate([rows for rows, _ in outputs])
        values = np.concatenate([found for _, found in outputs])
        whole = np.empty_like(values)
        whole[order] = values
        return Answers(whole, used, absent)

    def _away(self, partner: str, now: _Loaded) -> str:
        if partner not in now.numbers:
            return DOWN
        return RESTS if self.breakers[partner].is_open() else ""

    def _group(
        self,
        now: _Loaded,
        table: Table,
        rows: np.ndarray,
        asked: list[str],
        numbers: Mapping[str, np.ndarray],
        until: float,
        outputs: list[tuple[np.ndarray, np.ndarray]],
        used: list[tuple[str, ...]],
        absent: list[dict[str, str]],
    ) -> None:
        """Predict rows that these partners know, with as many of them as answer in time."""
        own = table if len(rows) == len(table) else table.take(rows)
        present, lacking = list(asked), {}
        left = until - time.monotonic()
        while True:
            self.engine.forget()
            self.engine.give(until - RESERVE * left if len(present) == len(asked) else until)
            try:
                found = self._predict(now, own, present, {p: numbers[p][rows] for p in present})
                lacking = {p: self.engine.told(p) for p in present}
                break
            except FedmendError as error:
                gone = getattr(error, "party", None)
                if gone not in present:
                    raise
                reason = _reason(error)
                if reason != REFUSED:  # one that says no is there, and may say yes to the next
                    self.breakers[gone].note(False)
                present.remove(gone)
                for at in rows.tolist():
                    absent[at][gone] = reason
            finally:
                self.engine.give(None)
        for partner in present:
            self.breakers[partner].note(True)
        without = {p: np.asarray(each) for p, each in lacking.items() if each is not None}
        gone_rows = np.unique(np.concatenate([np.zeros(0, np.int64), *without.values()]))
        keep = np.setdiff1d(np.arange(len(rows)), gone_rows)
        names = (self.label_party, *present)
        uses = tuple(name for name in names if name in now.network.parties)
        for at in rows[keep].tolist():
            used[at] = uses
        if len(keep):
            outputs.append((rows[keep], found[keep]))
        if len(gone_rows):  # whose columns a partner could not give: without it
            lost = [p for p, each in without.items() if len(each)]
            for at in rows[gone_rows].tolist():
                absent[at] |= dict.fromkeys(lost, NOT_KNOWN)
            others = [p for p in present if p not in lost]
            some = rows[gone_rows]
            self._group(now, table, some, others, numbers, until, outputs, used, absent)

    def _predict(
        self,
        now: _Loaded,
        table: Table,
        present: list[str],
        numbers: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        label_party, network = self.label_party, now.network
        if not present and label_party not in network.parties:
            raise DataError(
                "has no columns that the model uses, and no partner is there",
                party=label_party,
                mend="ask again when a partner is back",
            )
        view = self.fed.on(SERVE).only(label_party, *present)
        everybody = np.arange(len(table))
        self._site.tables[SERVE] = table
        self._site.alignments[view.scope] = (
            Alignment(everybody, everybody[:0]) if present else Alignment(everybody[:0], everybody)
        )
        if not present:
            segment = label_party
        else:
            all_there = {*network.parties} <= {label_party, *present}
            segment = ALIGNED if all_there else among([label_party, *present])
        with view.workers(ServeWorker, parties=present) as workers:
            for partner in present:
                pair = self.fed.on(PEOPLE).only(label_party, partner)
                workers[partner].take(pair.scope, numbers[partner])
            return np.asarray(network.predict(view, [[segment, len(table)]]))


def _reason(error: FedmendError) -> str:
    if isinstance(error, PartyAbsent):
        return LATE if error.reason == LATE else DOWN
    return REFUSED


# ---------------------------------------------------------------- partners elsewhere


class Keeper:
    """Keeps a session with a partner: connects, says hello, joins; and again when it is gone."""

    FIRST, LONGEST = 0.2, 5.0

    def __init__(
        self, answerer: Answerer, partner: str, address: str, kit: Path, hello: Hello
    ) -> None:
        self._answerer, self.partner, self._address = answerer, partner, address
        self._kit, self._hello = kit, hello
        self.state = "connecting"
        self._over = threading.Event()
        self.first = threading.Event()
        """Set when the first attempt is over, however it ended."""
        self._thread = threading.Thread(target=self._keep, name="fedmend-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _keep(self) -> None:
        wait, engine = self.FIRST, self._answerer.engine
        while not self._over.is_set():
            channel = None
            try:
                channel = Channel(self.partner, self._address, self._kit)
                engine.remotes[self.partner] = Remote(channel, self._hello, engine.ledger)
                shared = self._answerer.join(self.partner)
                self._say(f"there, with {shared:,} people in common")
                wait = self.FIRST
                self.first.set()
                while not channel.gone and not self._over.wait(0.05):
                    pass
                self._say(channel.gone or "closed")
            except FedmendError as error:
                self._say(str(error).partition(". Mend:")[0])
                wait = min(self.LONGEST, 2 * wait)
            except Exception:  # a fault of ours must not end the attempts: answers go on without it
                logger.exception("the session with %s could not be opened", self.partner)
                wait = self.LONGEST
            finally:
                self.first.set()
                self._answerer.leave(self.partner)
                engine.remotes.pop(self.partner, None)
                if channel is not None:
                    channel.close()
            self._over.wait(wait)

    def _say(self, words: str) -> None:
        if words != self.state:
            logger.info("%s: %s", self.partner, words)
        self.state = words
