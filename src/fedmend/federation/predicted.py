"""The account of predictions that left a party: per row how many different ones, under whose model.

Predictions under enough models tell a row's columns: at once where the weights were chosen for it,
up to a mixture of them where they were not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmend.errors import Refused
from fedmend.federation.policy import Policy

__all__ = ["Predicted"]


class Predicted:
    """What left a site in one run. The same prediction again tells nothing new, and is free."""

    def __init__(self) -> None:
        self._left: dict[bool, dict[Any, set[bytes]]] = {True: {}, False: {}}

    def admit(
        self,
        party: str,
        policy: Policy,
        ids: Sequence[Any] | np.ndarray,
        outputs: np.ndarray,
        *,
        foreign: bool,
    ) -> None:
        """Let the outputs [n, …] of the rows `ids` leave and count them, or refuse all of them.

        foreign: under a model whose weights were sent in.
        """
        most = policy.foreign_predictions if foreign else policy.predictions
        if most is None:
            return
        said = np.ascontiguousarray(outputs).reshape(len(outputs), -1)
        left = self._left[foreign]
        new = []
        for row, values in zip(ids, said, strict=True):
            seen, told = left.get(row, set()), values.tobytes()
            if told in seen:
                continue
            if len(seen) >= most:
                raise Refused(party, *_words(party, most, foreign=foreign))
            new.append((row, told))
        for row, told in new:
            left.setdefault(row, set()).add(told)


def _words(party: str, most: int, *, foreign: bool) -> tuple[str, str]:
    field = "foreign_predictions" if foreign else "predictions"
    if foreign and not most:
        what = "predictions of its rows under a model that was sent in do not leave it"
        mend = (
            "predict at the party ('fedmend party predict', 'fedmend predict --engine flare'), "
            f"or predict a table of your own; {field} = 1 in the policy of {party!r}, if it agrees"
        )
    else:
        whose = "models that were sent in" if foreign else "models trained here"
        what = f"a row's predictions under {most} {whose} have left in this run, and no more may"
        mend = f"a larger {field} in the policy of {party!r}, if it agrees"
    return what, mend
