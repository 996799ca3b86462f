"""Weights that are sent in: numbers, of a size that training leads to; checked for all workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmend.errors import Refused
from fedmend.federation.wire_types import is_tensor

__all__ = ["LARGEST_WEIGHT", "admit_weights"]

LARGEST_WEIGHT = 1e4
"""Networks on standardised columns end up far below; a weight of this size makes a step function
of a column, which picks out rows."""


def admit_weights(party: str, call: str, value: Any) -> None:
    """Refuse weights that are not finite or too large, wherever they stand in `value`."""
    if isinstance(value, Mapping):
        for each in value.values():
            admit_weights(party, call, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            admit_weights(party, call, each)
    elif is_tensor(value):
        if value.is_floating_point() and value.numel():
            _admit_largest(party, call, float(value.detach().abs().max()))
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
        _admit_largest(party, call, float(np.abs(value).max()))


def _admit_largest(party: str, call: str, largest: float) -> None:
    # A NaN is not below anything.
    if not largest <= LARGEST_WEIGHT:
        raise Refused(
            party,
            f"{call} was given weights up to {largest:g}; they must be numbers of at most "
            f"{LARGEST_WEIGHT:g}",
            "a smaller lr, where the training has diverged",
        )
