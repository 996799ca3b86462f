"""Cryptographic protocols over workers: alignment, inner products, sums. Knows no models."""

from __future__ import annotations

from fedmend.secure.align import align
from fedmend.secure.channel import SealingWorker, introduce
from fedmend.secure.keys import Identity, KeyRing, keyring

__all__ = [
    "Identity",
    "KeyRing",
    "SealingWorker",
    "align",
    "introduce",
    "keyring",
]
