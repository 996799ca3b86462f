"""Models side by side: one answers, others are asked by their names, one is only tried.

A model's name is RUN/METHOD, as its part lies in the kit. Which one answers is changed without a
restart (`choose`): to a newer one, or back. The shadow is asked what the others were asked, after
they have answered; how far it differs is counted, and nobody waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from fedmend.errors import ConfigError, FedmendError
from fedmend.serve.channel import MAX_OF_A_PARTY
from fedmend.serve.service import Families, Service, score_of

logger = logging.getLogger(__name__)

WAITING = 64


class Shadow:
    """Asks another model the same, in a thread of its own; what it cannot keep up with is left."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.rows = self.changed = self.left = 0
        self.difference = 0.0
        self._jobs: queue.Queue[tuple[list[dict[str, Any]], float] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="fedmend-shadow", daemon=True)
        self._thread.start()

    def try_it(self, answered: list[dict[str, Any]], seconds: float) -> None:
        try:
            self._jobs.put_nowait((answered, seconds))
        except queue.Full:
            self.left += len(answered)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            answered, seconds = job
            try:
                ids = [row["id"] for row in answered]
                places = self.service.answerer.people.places(ids)
                self._compare(answered, self.service.answers(ids, places, seconds))
            except FedmendError as error:
                self.left += len(answered)
                logger.info("the shadow did not answer: %s", error)
            except Exception:  # a fault of a model on trial harms nobody
                self.left += len(answered)
                logger.exception("the shadow failed")

    def _compare(self, answered: list[dict[str, Any]], tried: list[dict[str, Any]]) -> None:
        pairs = [
            (one, other)
            for one, other in zip(answered, tried, strict=True)
            if "prediction" in one and "prediction" in other
        ]
        scores = [(score_of(one), score_of(other)) for one, other in pairs]
        self.rows += len(pairs)
        self.changed += sum(one["prediction"] != other["prediction"] for one, other in pairs)
        self.difference += sum(abs(one - other) for one, other in scores)

    def tell(self, into: Families) -> None:
        counted = {"rows": self.rows, "changed": self.changed, "left": self.left}
        for name, value in {**counted, "difference": f"{self.difference:.6f}"}.items():
            into.add(f"fedmend_shadow_{name}_total counter", value, model=self.service.name)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(5.0)


class Versions:
    """The models that are served; `opened` makes a further one of the same party by its name."""

    def __init__(self, first: Service, opened: Callable[[str], Service] | None = None) -> None:
        self._all = {first.name: first}
        self._opened = opened
        self._lock = threading.Lock()
        self.default = first
        self.shadow: Shadow | None = None

    def add(self, name: str) -> Service:
        """Open a model, if it is not open; who asks it has the quota that all have together."""
        with self._lock:
            if name not in self._all:
                if self._opened is None:
                    raise ConfigError(f"{name!r} is not served here. Mend: serve a kit")
                if len(self._all) >= MAX_OF_A_PARTY:  # each has a connection to each partner
                    raise ConfigError(
                        f"{len(self._all)} models are open, and partners take no more. Mend: end "
                        "the service and serve fewer"
                    )
                made = self._opened(name)
                made.share_quota(self.default)
                self._all[made.name] = made
                return made
            return self._all[name]

    def choose(self, name: str) -> None:
        """Let this model answer from now on."""
        self.default = self.add(name)

    def try_beside(self, name: str) -> None:
        """Let this model be the shadow."""
        self.shadow = Shadow(self.add(name))

    def find(self, name: str) -> Service | None:
        return self._all.get(name)

    def health(self) -> dict[str, Any]:
        """Of the model that answers, and which others there are."""
        told = self.default.health()
        if len(self._all) > 1:
            told["models"] = {name: each.health() for name, each in list(self._all.items())}
            told["shadow"] = None if self.shadow is None else self.shadow.service.name
        return told

    def metrics_text(self) -> str:
        """All of it for Prometheus."""
        families = Families()
        for each in list(self._all.values()):  # one may be opened meanwhile
            each.tell(families)
        if self.shadow is not None:
            self.shadow.tell(families)
        return str(families)

    def close(self) -> None:
        if self.shadow is not None:
            self.shadow.close()
        for each in self._all.values():
            each.close()
