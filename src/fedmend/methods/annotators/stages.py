"""The two stages of InC, step by step: a network under training, and EM over the labels.

What `fedmend.methods.annotators.inc` puts together; formulas there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.annotators import Labellers
from fedmend.split.server_top import ServerTop
from fedmend.split.session import Session

CALM_EPOCHS = 3
PREDICT_ROWS = 1 << 15
LEAST = 1e-6
"""Below this a network's probability is rounding, not evidence."""


class Correction:
    """Stage 2's EM, at the server: holds ŷ's successor ỹ and never a single vote.

    counts: votes for each class [n, C]. posterior: ỹ, None before the first step. labels: its
    likeliest classes, those of the votes before.
    """

    def __init__(self, labellers: Labellers, counts: np.ndarray, rule: str) -> None:
        self.labellers = labellers
        self.rule = rule
        self.counts = counts
        self.posterior: np.ndarray | None = None
        self.labels = counts.argmax(1)
        self.weights: np.ndarray | None = None
        self.calm = 0

    def step(self, predicted: np.ndarray) -> float:
        """One M- and E-step; returns the share of corrected labels that changed."""
        weights = self._weights(predicted)
        if weights is not None:
            self.labellers.m_step(weights)
        self.weights = weights
        evidence = self.labellers.evidence()
        if self.rule == "product":
            # float32 holds a log-probability to 2^-19, finer than the fixed point it came in.
            updated = crowd.combine(_log(predicted), evidence.astype(np.float32, copy=False))
        else:
            updated = predicted + evidence
            updated /= updated.sum(1, keepdims=True)
        before = self.labels
        self.posterior, self.labels = updated, updated.argmax(1)
        return float((before != self.labels).mean())

    def _weights(self, predicted: np.ndarray) -> np.ndarray | None:
        """What the M-step counts rows by; None leaves T as it is (identity, at first)."""
        if self.rule != "product":
            return None if self.posterior is None else predicted
        if self.posterior is not None:
            return self.posterior
        return (predicted + self.counts) / (1 + self.counts.sum(1, keepdims=True))

    def targets(self, kind: str) -> np.ndarray:
        assert self.posterior is not None
        return self.posterior if kind == "soft" else crowd.hardened(self.posterior)

    def take_up(self, posterior: np.ndarray | None, weights: np.ndarray | None, calm: int) -> None:
        """Go on from what was kept; T follows from the weights it was last estimated with."""
        self.posterior, self.weights, self.calm = posterior, weights, calm
        if weights is not None:
            self.labellers.m_step(weights)
        if posterior is not None:
            self.labels = posterior.argmax(1)


class Classifier:
    """The network under training, and those whose ŷ corrects the labels if that is not it.

    One helper is a corrector of another shape. Two see half of the rows each (crossfit), and ŷ of
    a row comes from the one that was not trained on it.
    """

    def __init__(
        self, main: tuple[Session, ServerTop], helpers: Sequence[tuple[Session, ServerTop]] = ()
    ) -> None:
        self.session = main[0]
        self._all = [main, *helpers]

    def epoch(self, number: int) -> dict[str, float]:
        for session, _ in reversed(self._all):
            session.epoch(number)
        return self.session.network.history[-1]

    def set_targets(self, targets: np.ndarray) -> None:
        for _, server in self._all:
            server.set_targets(targets)

    def predicted(self) -> np.ndarray:
        """ŷ of all rows."""
        asked = [session for session, _ in self._all[1:]] or [self.session]
        one, two = asked[0], asked[-1]
        outputs = _outputs(one, one.all_rows)
        if one is two:
            return outputs
        seen = np.unique(one.train)
        outputs[seen] = _outputs(two, seen)
        return outputs

    def checkpoint(self, folder: Path, epoch: int) -> None:
        for number, (session, _) in reversed(list(enumerate(self._all))):
            session.checkpoint(_part(folder, number), epoch)

    def resume(self, folder: Path) -> int:
        epoch = self.session.resume(folder)
        if epoch:
            for number, (session, _) in enumerate(self._all[1:], 1):
                session.resume(_part(folder, number), epoch)
        return epoch


def _log(predicted: np.ndarray) -> np.ndarray:
    return torch.from_numpy(predicted).float().clamp_min(LEAST).log_().numpy()


def _outputs(session: Session, rows: np.ndarray) -> np.ndarray:
    """As `session.outputs`, in larger pieces: this is asked for in every epoch."""
    for at in range(0, len(rows), PREDICT_ROWS):
        chunk = rows[at : at + PREDICT_ROWS]
        session.top.predict_chunk(chunk, session.bottoms.embed(chunk))
    return session.top.predictions()


def _part(folder: Path, number: int) -> Path:
    return folder if number == 0 else folder / f"helper-{number}"
