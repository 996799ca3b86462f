"""The generator of VF-GAIN: GAIN with an embedding of the same row beside its cells.

It lives at the party that has the gaps. Without an embedding — fitted on a plain table, or asked
for rows that have none — it is GAIN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.generate.encoder import Encoded
from fedmend.generate.gain import GAIN, Rows
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.halves import Settings

__all__ = ["ContextGAIN"]


class ContextGAIN(GAIN):
    """GAIN beside an embedding of the same row.

    bottom, embedding: hidden layers and width of A's network. blind: share of aligned rows that
    train without their embedding. precision: "float32" or "float64"; wire: "same", "float16" or
    "bfloat16". seal: embeddings and gradients cross in boxes that the coordinator cannot open;
    None is between machines. All other parameters are GAIN's.
    """

    def __init__(
        self,
        *,
        bottom: tuple[int, ...] = (64,),
        embedding: int = 32,
        blind: float = 0.1,
        precision: str = "float32",
        wire: str = "same",
        seal: bool | None = None,
        blank: float = 0.25,
        **params: Any,
    ) -> None:
        super().__init__(blank=blank, **params)
        self.bottom = bottom
        self.embedding = embedding
        self.blind = blind
        self.precision = precision
        self.wire = wire
        self.seal = seal

    def _problems(self) -> list[str]:
        problems = super()._problems()
        if not 0 <= self.blind <= 1:
            problems.append(f"blind must be in [0, 1], got blind={self.blind!r}")
        if self.embedding < 1 or any(width < 1 for width in self.bottom):
            problems.append("embedding and the widths in bottom must be positive")
        if self.precision == "bf16":
            problems.append("precision must be float32 or float64, got 'bf16'")
        return problems

    def _check_params(self) -> None:
        super()._check_params()
        self._settings()  # refuses precisions and types of the wire that it does not know

    def _settings(self) -> Settings:
        return Settings(self.batch_size, OptimizerSpec(lr=self.lr), self.precision, self.wire)

    # --- B's rows, and what stands beside them ---------------------------------------------------

    context_ = 0
    """Width of the other party's embedding; 0 after a fit on a table."""
    _beside: Tensor | None = None

    @property
    def _side_width(self) -> int:
        return self.context_ + 1 if self.context_ else 0

    def prepare(self, table: Table, context: int) -> None:
        """Encoder and fresh networks for B's table, beside an embedding of this width."""
        self._check_params()
        self._check_table(table)
        self.context_ = context
        self._prepare(table)
        if not self.modules_:
            raise DataError(
                "no column holds two different values, so there is nothing to learn",
                column=table.names[0],
                mend="name the columns to make: fit(fed, …, columns=[…])",
            )

    def _place_modules(self) -> None:
        super()._place_modules()
        for module in self.modules_.values():
            module.to(self._settings().dtype)

    def encode(self, table: Table) -> Encoded:
        """B's rows as coordinates."""
        return self.encoder_.encode(self.encoder_.raw(table.frame))

    def received(self, embedding: Tensor) -> Tensor:
        """An embedding off the wire."""
        return embedding.detach().to(self.device_, self._settings().dtype)

    def side(self, context: Tensor, there: Tensor | None = None) -> Tensor:
        """Embeddings and a flag that they are there. **Shape**: (n, context) -> (n, context + 1)"""
        flag = context.new_ones(len(context)) if there is None else there.to(context.dtype)
        return torch.cat([context * flag[:, None], flag[:, None]], 1)

    def impute_beside(
        self, table: Table, context: Tensor, seed: int | None, draws: int | None
    ) -> Table:
        """`impute`, knowing the embedding of every row."""
        names = [name for name in self.schema_ if name in table.frame.columns]
        gaps = torch.from_numpy(table.frame[names].isna().any(axis=1).to_numpy())
        with self._seeing(self.side(context[gaps])):
            return super().impute(table, seed, draws)

    @contextmanager
    def _seeing(self, side: Tensor) -> Iterator[None]:
        self._beside = side
        try:
            yield
        finally:
            self._beside = None

    def _rows_of(self, encoded: Encoded) -> Rows:
        rows = super()._rows_of(encoded)
        return rows if self._beside is None else rows._replace(side=self._beside)

    def _extra(self) -> dict[str, Any]:
        return {"context": self.context_}

    def _set_extra(self, values: dict[str, Any]) -> None:
        self.context_ = values["context"]
