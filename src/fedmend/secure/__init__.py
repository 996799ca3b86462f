"""Cryptographic protocols over workers: alignment, inner products, sums. Knows no models."""

from __future__ import annotations

from fedmend.secure.align import align
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.keys import Identity, KeyRing, keyring
from fedmend.secure.sums import Sum, SumSession, SumWorker, offer_summand, secure_sum

__all__ = [
    "Identity",
    "KeyRing",
    "SealingWorker",
    "Sum",
    "SumSession",
    "SumWorker",
    "align",
    "introduce",
    "keyring",
    "offer_summand",
    "secure_sum",
]
