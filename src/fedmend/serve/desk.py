"""Where questions wait: a bounded queue, and one thread that answers all that wait at once.

While one batch is predicted the next gathers, so that many askers share a round with each partner.
Whoever finds the queue full is told so at once; everybody else gets an answer.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmend.data.table import Table
from fedmend.errors import DataError, FedmendError
from fedmend.serve.answering import Answerer, Answers

MOST_ROWS = 2000
"""Of a batch; a larger question is a batch of its own."""
GATHER_SECONDS = 0.01
"""How long as many askers as there were last time are waited for: who got their answers together
ask again together, and the first of them would otherwise be a batch alone."""


class Busy(FedmendError):
    """More questions wait than there is room for."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} questions wait already. Mend: ask again in a second")


@dataclass
class Question:
    """People by their places here; or a table of new rows, with the places of those known here.

    until: when an answer is due, whoever is there by then (`time.monotonic`).
    """

    places: np.ndarray
    until: float
    table: Table | None = None
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Desk:
    """Takes questions from any thread; they are answered in one of its own."""

    def __init__(self, answerer: Answerer, most: int) -> None:
        self.answerer = answerer
        self._most = most
        self._waiting: deque[Question] = deque()
        self._some = threading.Condition()
        self._over = False
        self._usual = 1
        self._thread = threading.Thread(target=self._work, name="fedmend-desk", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, question: Question) -> dict[str, Any]:
        """The columns of an answer, a list each; waits for it."""
        with self._some:
            if len(self._waiting) >= self._most:
                raise Busy(len(self._waiting))
            self._waiting.append(question)
            self._some.notify()
        return question.answer.result()

    def close(self) -> None:
        with self._some:
            self._over = True
            self._some.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._answer(batch)
            except Exception as error:
                for each in batch:
                    if not each.answer.done():
                        each.answer.set_exception(error)

    def _enough(self) -> bool:
        return len(self._waiting) >= self._usual or self._over

    def _next(self) -> list[Question]:
        with self._some:
            while not self._waiting and not self._over:
                self._some.wait()
            if len(self._waiting) < self._usual:
                self._some.wait_for(self._enough, GATHER_SECONDS)
            batch: list[Question] = []
            rows = 0
            while self._waiting:
                first = self._waiting[0]
                alone = first.table is not None
                if batch and (alone or rows + len(first.places) > MOST_ROWS):
                    break
                batch.append(self._waiting.popleft())
                rows += len(first.places)
                if alone:
                    break
            self._usual = max(1, len(batch))
            return batch

    def _answer(self, batch: list[Question]) -> None:
        until = min(each.until for each in batch)
        first = batch[0]
        if first.table is not None:
            found = self.answerer.answer(first.table, first.places, until)
            first.answer.set_result(self._told(found, np.arange(len(first.places))))
            return
        # Two may ask about the same person: it is predicted once.
        everybody, where = np.unique(
            np.concatenate([each.places for each in batch]), return_inverse=True
        )
        table, lacking = self.answerer.people.rows(everybody)
        if len(lacking):  # who asks about them is told so; the others are answered
            gone = everybody[lacking]
            self._cannot(batch, gone)
            if left := [each for each in batch if not each.answer.done()]:
                self._answer(left)
            return
        found = self.answerer.answer(table, everybody, until)
        told, at = self._told(found, where), 0
        for each in batch:
            end = at + len(each.places)
            each.answer.set_result({name: column[at:end] for name, column in told.items()})
            at = end

    def _cannot(self, batch: list[Question], gone: np.ndarray) -> None:
        ids = self.answerer.people.ids
        for each in batch:
            if (some := each.places[np.isin(each.places, gone)]).size:
                error = DataError(
                    "this party's own source has no columns of a person",
                    value=ids[some[0]],
                    mend="ask about the others without it",
                )
                each.answer.set_exception(error)

    def _told(self, answers: Answers, where: np.ndarray) -> dict[str, list[Any]]:
        rows = where.tolist()
        picked = Answers(
            answers.outputs[where],
            [answers.used[at] for at in rows],
            [answers.absent[at] for at in rows],
        )
        head: dict[str, list[Any]] = {"used": picked.used, "absent": picked.absent}
        return head | self.answerer.columns(picked)
