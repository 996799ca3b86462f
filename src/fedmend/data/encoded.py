"""The arrays an :class:`~fedmend.data.encode.Encoder` makes of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmend.errors import DataError

__all__ = ["Encoded"]


@dataclass
class Encoded:
    """Arrays of n rows.

    **Shape**: ``numeric`` and ``missing`` [n, p], ``codes`` [n, q], ``blocks`` [n, ...] each;
    ``cardinalities`` holds k + 2 for each code column.
    """

    numeric: np.ndarray
    missing: np.ndarray
    codes: np.ndarray
    blocks: dict[str, np.ndarray] = field(default_factory=dict)
    cardinalities: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.numeric)

    def __len__(self) -> int:
        return len(self.numeric)

    def take(self, rows: Any) -> Encoded:
        """These rows, by position or mask; a row may be taken more than once."""
        return Encoded(
            self.numeric[rows],
            self.missing[rows],
            self.codes[rows],
            {name: block[rows] for name, block in self.blocks.items()},
            self.cardinalities,
        )

    def onehot(self) -> np.ndarray:
        """``numeric`` and one indicator per category, for linear models; blocks are left out.

        A missing or never seen category has no indicator set.
        **Shape**: [n, p + sum of k].
        """
        if len(self.cardinalities) != self.codes.shape[1]:
            raise DataError(
                f"{len(self.cardinalities)} cardinalities for {self.codes.shape[1]} code columns",
                mend="make Encoded with cardinalities=encoder.cardinalities",
            )
        sizes = [cardinality - 2 for cardinality in self.cardinalities]
        out = np.zeros((self.n_rows, self.numeric.shape[1] + sum(sizes)), self.numeric.dtype)
        out[:, : self.numeric.shape[1]] = self.numeric
        start = self.numeric.shape[1]
        for column, size in enumerate(sizes):
            code = self.codes[:, column]
            rows = np.flatnonzero((code >= 1) & (code <= size))
            out[rows, start + code[rows] - 1] = 1
            start += size
        return out
