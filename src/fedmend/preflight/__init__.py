"""What is worth knowing before anything is trained: annotators, clients, and shared rows."""

from __future__ import annotations

from fedmend.preflight.agreement import Agreement, PairAgreement, label_agreement
from fedmend.preflight.curve import Curve, learning_curve
from fedmend.preflight.skew import Skew, label_skew

__all__ = [
    "Agreement",
    "Curve",
    "PairAgreement",
    "Skew",
    "label_agreement",
    "label_skew",
    "learning_curve",
]
