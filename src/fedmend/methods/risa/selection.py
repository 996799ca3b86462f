"""Which rows without a label get one, and which imputed rows stay in the training.

`Choice` gives labels to rows the self-training model is sure of (RISA, §II-C): where p >= tau, or
where it reaches the threshold of its own class. `precise_thresholds` are those at which rows with
a known label were right often enough. `Watch` keeps the mean doubt about every row over some
epochs (§II-D, last paragraph), by which rows are dropped later on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.errors import ConfigError
from fedmend.learn import pseudo

__all__ = [
    "MEASURES",
    "RULES",
    "TWO_OPINIONS",
    "Choice",
    "Watch",
    "final_threshold",
    "precise_thresholds",
]

MEASURES = ("uncertainty", "doubt")
RULES = ("probability", "evidential", "cpg", "cdsc")
TWO_OPINIONS = ("cpg", "cdsc")
"""Rules of `learn.pseudo` that compare a party's own head with the joint one (SAGE)."""


@dataclass(frozen=True)
class Choice:
    """When a row gets a label.

    threshold: least probability of the likeliest class. per_class: classes that reach it rarely
    get an easier one, in proportion to how often they do (FlexMatch), never below `floor`.
    soft: the label is the whole prediction instead of its likeliest class.
    rule: which of `learn.pseudo` decides: "probability"; "evidential" (uncertainty of at most one
    minus the threshold); "cpg" and "cdsc" (SAGE: the party's own head where it is sure, else the
    joint one; the latter with labels mixed of both, by `kappa`).
    """

    threshold: float = 0.95
    per_class: bool = False
    floor: float = 0.5
    soft: bool = False
    rule: str = "probability"
    kappa: float = math.log(2.0) / 0.05

    def __post_init__(self) -> None:
        for name in ("threshold", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.rule not in RULES:
            raise ConfigError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")

    def by_rule(
        self,
        probabilities: np.ndarray,
        uncertainty: np.ndarray,
        own: np.ndarray | None = None,
        joint: np.ndarray | None = None,
        least: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Targets, class numbers [n], and which rows get theirs.

        own, joint: what either head says by itself, for the rules that compare them.
        **Shape** probabilities, own, joint [n, K], uncertainty [n], least [K].
        """
        if self.rule == "probability":
            target, mask = self.labels(probabilities, least)
            return target, probabilities.argmax(1), mask
        if self.rule == "evidential":
            classes = probabilities.shape[1]
            u = np.maximum(uncertainty, 1e-12)[:, None]
            evidence = (probabilities - u / classes).clip(0.0) * classes / u
            found = pseudo.evidential(evidence, 1.0 - self.threshold)
        elif own is None or joint is None:
            raise ConfigError(f"rule {self.rule!r} compares a party's own head with a joint one")
        elif self.rule == "cpg":
            found = pseudo.cpg(own, joint, self.threshold)
        else:
            found = pseudo.cdsc(own, joint, self.threshold, self.kappa)
        target = np.asarray(found.target)
        label = target.argmax(1) if target.ndim == 2 else target
        mask = np.asarray(found.mask, bool)
        if least is not None:
            mask = mask & (
                np.take_along_axis(probabilities, label[:, None], 1)[:, 0] >= least[label]
            )
        return target, label, mask

    def thresholds(self, probabilities: np.ndarray) -> np.ndarray:
        """The threshold of every class [K]."""
        classes = probabilities.shape[1]
        flat = np.full(classes, self.threshold)
        if not self.per_class or not len(probabilities):
            return flat
        sure = probabilities.max(1) >= self.threshold
        reached = np.bincount(probabilities.argmax(1)[sure], minlength=classes).astype(float)
        # How well a class is learnt, from 0 to 1, warped so that few are let in at first.
        learnt = reached / max(1.0, reached.max())
        return np.maximum(flat * learnt / (2.0 - learnt), min(self.floor, self.threshold))

    def labels(
        self, probabilities: np.ndarray, least: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels of all rows (class numbers, or soft [n, K]), and which rows get theirs.

        least: thresholds [K] that hold besides.
        """
        likeliest = probabilities.argmax(1)
        limits = self.thresholds(probabilities)
        limit = (limits if least is None else np.maximum(limits, least))[likeliest]
        mask = probabilities.max(1) >= limit
        return (probabilities if self.soft else likeliest), mask


def precise_thresholds(probabilities: np.ndarray, targets: np.ndarray, wanted: float) -> np.ndarray:
    """Per class the least probability from which on a share `wanted` of its labels is right.

    Judged by rows with a known label that the model has not learnt from. The share is Laplace's,
    (right + 1) / (rows + 2): a few rows that happen to be right do not make a class precise.
    Above one, which nobody reaches, where no threshold does. **Shape** [n, K], [n] -> [K].

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    >>> precise_thresholds(p, np.array([0, 0, 1, 1]), 0.75).tolist()
    [0.8, 2.0]
    """
    likeliest, sure = probabilities.argmax(1), probabilities.max(1)
    found = np.full(probabilities.shape[1], 2.0)
    for number in range(len(found)):
        rows = np.flatnonzero(likeliest == number)
        rows = rows[np.argsort(-sure[rows], kind="stable")]
        right = (np.cumsum(targets[rows] == number) + 1) / (np.arange(len(rows)) + 3)
        if (reached := np.flatnonzero(right >= wanted)).size:
            found[number] = sure[rows[reached[-1]]]
    return found


def final_threshold(last: float, done: float) -> float:
    """tau_t = tau_0^(t / T): from one down to `last`.

    >>> final_threshold(0.25, 0.5)
    0.5
    """
    return float(last**done)


class Watch:
    """Mean uncertainty and mean doubt (1 - the probability of the row's label) of every row."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._sums = torch.zeros((2, rows), device=device)
        self._seen = torch.zeros(rows, device=device)

    def add(self, numbers: Tensor, fused: Tensor, targets: Tensor) -> None:
        """fused: belief and uncertainty [n, K + 1]; targets: class numbers or soft labels."""
        u = fused[:, -1]
        p = fused[:, :-1] + u[:, None] / (fused.shape[1] - 1)
        if targets.is_floating_point():
            targets = targets.argmax(1)
        right = p.gather(1, targets[:, None])[:, 0]
        self._sums[0].index_add_(0, numbers, u.float())
        self._sums[1].index_add_(0, numbers, 1.0 - right.float())
        self._seen.index_add_(0, numbers, torch.ones_like(u, dtype=torch.float32))

    def below(
        self, rows: np.ndarray, limit: float, measure: str, most: int | None = None
    ) -> np.ndarray:
        """Of these rows those whose mean is at most the limit; rows never seen stay.

        most: no more than so many are kept, the surest; rows never seen are the least sure.
        """
        if measure not in MEASURES:
            raise ConfigError(f"select must be one of {', '.join(MEASURES)}, got {measure!r}")
        at = torch.from_numpy(np.ascontiguousarray(rows)).to(self._seen.device)
        mean = self._sums[MEASURES.index(measure)][at] / self._seen[at].clamp_min(1.0)
        unseen = self._seen[at] == 0
        keep = (mean <= limit) | unseen
        if most is not None and most < len(rows):
            order = torch.argsort(mean.masked_fill(unseen, torch.inf), stable=True)
            keep[order[most:]] = False
        return rows[keep.cpu().numpy()]

    def clear(self) -> None:
        self._sums.zero_()
        self._seen.zero_()

    def to_wire(self) -> dict[str, Any]:
        return {"sums": self._sums, "seen": self._seen}

    def take(self, saved: Mapping[str, Any]) -> None:
        self._sums.copy_(saved["sums"])
        self._seen.copy_(saved["seen"])
