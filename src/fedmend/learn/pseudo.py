"""Pseudo-label rules: pure functions from predictions to (target, mask, weight).

A rule says of every unlabelled row which label it would get, whether the prediction is good
enough, and how far the label deserves trust. `select` then takes, as VFPU-M does, the surest share
of the rows that qualify (FedPSG-PUM, Algorithm 2). SAGE's rules are in `methods.horizontal.rules`.

    labels = probability(model.predict_proba(rows), alpha=0.8)
    chosen = select(labels, share=0.25)          # row numbers, surest first
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.errors import ConfigError


@dataclass(frozen=True, repr=False)
class PseudoLabels:
    """What a rule says of n rows.

    target: class numbers [n], soft labels [n, C], or values [n].
    mask: bool [n], the rows that qualify.
    weight: [n], how far the target deserves trust: from 0 to 1.
    score: [n], what the rows are ordered by; the same as `weight` unless a rule leaves [0, 1].
    """

    target: Any
    mask: Any
    weight: Any
    score: Any


def published(predicted: np.ndarray, labelled: np.ndarray, alpha: float) -> PseudoLabels:
    """Regression as published: s = 1 - |y - mu| / sigma, mu and sigma of the labelled values.

    It calls a row confident because it is *average*; kept for comparison.

    >>> published(np.array([0.0, 3.0]), np.array([-2.0, 2.0]), alpha=0.5).score.tolist()
    [1.0, -0.5]
    """
    _check_share("alpha", alpha)
    mean, deviation = float(np.mean(labelled)), float(np.std(labelled))
    distance = np.abs(np.asarray(predicted, dtype=np.float64) - mean)
    # Labelled values that are all the same make any other prediction infinitely far away.
    far = distance / deviation if deviation > 0 else np.where(distance > 0, np.inf, 0.0)
    score = 1.0 - far
    return PseudoLabels(predicted, score >= alpha, score.clip(0.0, 1.0), score)


def probability(probabilities: np.ndarray, alpha: float) -> PseudoLabels:
    """Classification as published: s = max_c P(c), the label is the class that has it.

    **Shape**: probabilities [n, C].
    """
    _check_share("alpha", alpha)
    score = probabilities.max(axis=1)
    return PseudoLabels(probabilities.argmax(axis=1), score >= alpha, score, score)


def spread(
    members: np.ndarray,
    alpha: float,
    *,
    residual: float | np.ndarray = 0.0,
) -> PseudoLabels:
    """Agreement of an ensemble, from 0 to 1.

    Regression ([K, n], in standard deviations of the labelled values): s = 1 - d, where d^2 is the
    variance over the K members plus `residual`^2 (what the members are known to be off by
    together). Classification ([K, n, C]): s = max_c of the mean probability, times 1 - (mean total
    variation between members and mean). The target is the members' mean, or its largest class.

    >>> spread(np.array([[1.0, 1.0], [1.0, 0.0]]), 0.5).score.tolist()
    [1.0, 0.5]
    """
    _check_share("alpha", alpha)
    members = np.asarray(members, dtype=np.float64)
    mean = members.mean(axis=0)
    if members.ndim == 3:
        apart = 0.5 * np.abs(members - mean).sum(axis=2).mean(axis=0)
        score = mean.max(axis=1) * (1.0 - apart)
        return PseudoLabels(mean.argmax(axis=1), score >= alpha, score, score)
    apart = np.sqrt(members.var(axis=0) + np.square(residual))
    score = (1.0 - apart).clip(0.0, 1.0)
    return PseudoLabels(mean, score >= alpha, score, score)


def select(labels: PseudoLabels, share: float) -> np.ndarray:
    """VFPU-M's selection: of the rows that qualify the surest share, surest first.

    At least one row is taken where one qualifies; of rows equally sure the first come first.

    >>> select(probability(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), 0.5), 0.5).tolist()
    [0, 2]
    """
    _check_share("share", share, above_zero=True)
    candidates = np.flatnonzero(labels.mask)
    order = np.argsort(-np.asarray(labels.score)[candidates], kind="stable")
    return candidates[order[: math.ceil(share * len(candidates) - 1e-9)]]


def _check_share(name: str, value: float, *, above_zero: bool = False) -> None:
    low = "(0" if above_zero else "[0"
    if not 0 <= value <= 1 or (above_zero and value == 0):
        raise ConfigError(f"{name} must lie in {low}, 1], got {value}")
