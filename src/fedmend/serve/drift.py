"""Whether scores are still those of a model's first weeks: the population-stability index.

Of the first `MANY` answers the deciles are kept beside the model's part; the last `MANY` are
counted in them. An index below 0.1 is taken for no change and one above 0.25 for a change that
somebody should look at (the custom of credit scoring). Only answers that lack no partner are
counted: who is away is told apart.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from pathlib import Path

import numpy as np

from fedmend._files import write_whole
from fedmend._json import reading

MANY = 1000
BINS = 10
FILE = "first-scores.json"


def stability_index(expected: np.ndarray, found: np.ndarray) -> float:
    """Of two histograms; half a count in a bin stands for none."""
    p, q = (np.maximum(each, 0.5) / np.maximum(each, 0.5).sum() for each in (expected, found))
    return float(((q - p) * np.log(q / p)).sum())


class Drift:
    """Scores of one model, first and last; `folder` is that of its part, None for a trial."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE
        self._lock = threading.Lock()
        self._last: deque[float] = deque(maxlen=MANY)
        self._edges: np.ndarray | None = None
        self._first = np.zeros(0)
        if self._file is not None and self._file.is_file():
            with reading(self._file, "remove it: the next answers are the first then"):
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self._edges, self._first = np.array(kept["edges"]), np.array(kept["counts"])

    def note(self, scores: list[float]) -> None:
        with self._lock:
            for score in scores:
                self._last.append(score)
                if self._edges is None and len(self._last) == MANY:
                    self._keep(np.array(self._last))

    def _keep(self, scores: np.ndarray) -> None:
        # Several deciles are one where many people have the same score.
        self._edges = np.unique(np.quantile(scores, np.arange(1, BINS) / BINS))
        self._first = self._counts(scores)
        if self._file is not None:
            kept = {"edges": self._edges.tolist(), "counts": self._first.tolist()}
            write_whole(self._file, json.dumps(kept))
        self._last.clear()

    def _counts(self, scores: np.ndarray) -> np.ndarray:
        assert self._edges is not None
        places = np.searchsorted(self._edges, scores, side="right")
        return np.bincount(places, minlength=len(self._edges) + 1)

    def index(self) -> float | None:
        """None until there is something to compare."""
        with self._lock:
            if self._edges is None or len(self._last) < MANY:
                return None
            return stability_index(self._first, self._counts(np.array(self._last)))
