"""Mean imputation of a party's side of a row that the party does not know (RISA, §II-C).

It is the mean of the party's overlapping rows. Numeric columns and images: the mean; nominal
columns: the mean one-hot vector, through the embedding. The published scheme sends the means; here
a party embeds its own mean row itself, so nothing but that embedding leaves it, and only when
enough rows went into the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.encode import Encoded
from fedmend.errors import DataError
from fedmend.learn.nets import Batch, Bottom
from fedmend.methods.risa.ensemble import BottomEnsemble

__all__ = ["MIN_MEAN_ROWS", "MeanRow", "OwnRows", "embed", "mean_row"]

MIN_MEAN_ROWS = 10
"""A mean of a few rows says much about each of them, and of one row says everything."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class MeanRow:
    """The mean of some rows. `codes` holds, per nominal column, the share of every code."""

    numeric: Tensor
    codes: tuple[Tensor, ...]
    blocks: tuple[Tensor, ...]

    def to(self, device: torch.device, dtype: torch.dtype) -> MeanRow:
        return MeanRow(
            self.numeric.to(device, dtype),
            tuple(each.to(device, dtype) for each in self.codes),
            tuple(each.to(device, dtype) for each in self.blocks),
        )

    def to_wire(self) -> dict[str, Any]:
        return {
            "numeric": self.numeric.cpu(),
            "codes": [each.cpu() for each in self.codes],
            "blocks": [each.cpu() for each in self.blocks],
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> MeanRow:
        return cls(saved["numeric"], tuple(saved["codes"]), tuple(saved["blocks"]))


def mean_row(encoded: Encoded, overlapping: np.ndarray, *, party: str | None = None) -> MeanRow:
    """The mean of the overlapping rows; where these are too few, of all the party's rows."""
    rows = overlapping if len(overlapping) >= MIN_MEAN_ROWS else np.arange(len(encoded))
    if len(rows) < MIN_MEAN_ROWS:
        raise DataError(
            f"{len(rows)} rows are too few for a mean that may leave",
            party=party,
            mend=f"at least {MIN_MEAN_ROWS} rows",
        )
    shares = []
    for column, cardinality in enumerate(encoded.cardinalities):
        counts = np.bincount(encoded.codes[rows, column], minlength=cardinality).astype(np.float64)
        shares.append(torch.from_numpy(counts / counts.sum()))
    return MeanRow(
        torch.from_numpy(encoded.numeric[rows].mean(0, dtype=np.float64)),
        tuple(shares),
        tuple(torch.from_numpy(_mean_block(block, rows)) for block in encoded.blocks.values()),
    )


def _mean_block(block: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The mean over some rows, some thousand at a time, without a copy of all of them."""
    weights = (np.bincount(rows, minlength=len(block)) / len(rows)).astype(block.dtype)
    total = np.zeros(block.shape[1:], np.float64)
    for at in range(0, len(block), _ROWS_AT_ONCE):
        part = block[at : at + _ROWS_AT_ONCE]
        flat = weights[at : at + _ROWS_AT_ONCE] @ part.reshape(len(part), -1)
        total += flat.reshape(total.shape)
    return total


def embed(bottom: Bottom | BottomEnsemble, batch: Batch, mean: MeanRow) -> Tensor:
    """Embeddings of the rows and, last, of the mean row. **Shape** [n + 1, width].

    The mean row goes through batch norm together with the real rows, as one of many.
    """
    numeric = torch.cat([batch.numeric, mean.numeric[None]])
    others = []
    for number, table in enumerate(bottom.tables):
        weights = table.weight
        assert isinstance(weights, Tensor)
        imputed = (mean.codes[number].to(weights.dtype) @ weights)[None]
        others.append(torch.cat([table(batch.codes[:, number]), imputed]))
    for net, block, mean_block in zip(bottom.convolutions, batch.blocks, mean.blocks, strict=True):
        images = torch.cat([block, mean_block[None].to(block.dtype)])
        if images.ndim == 4 and images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        others.append(net(images))
    if isinstance(bottom, BottomEnsemble):
        return bottom.joined(numeric, others)
    pieces = [numeric, *others] if bottom.spec.numeric else others
    return bottom.body(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1))


class OwnRows:
    """The rows a party really has, on its device, found by the row numbers all parties share."""

    def __init__(
        self, encoded: Encoded, rows: np.ndarray, device: torch.device, dtype: torch.dtype
    ) -> None:
        present = rows >= 0
        kept = rows[present]
        # All rows go to the device and are put in order there: copying images costs a CPU seconds.
        in_order = np.array_equal(kept, np.arange(len(encoded)))
        order = None if in_order else torch.from_numpy(kept).to(device)

        def taken(values: np.ndarray) -> Tensor:
            there = torch.from_numpy(values).to(device)
            return there if order is None else there.index_select(0, order)

        self.numeric = taken(encoded.numeric).to(dtype)
        self.codes = taken(encoded.codes)
        self.blocks = tuple(taken(block).to(dtype) for block in encoded.blocks.values())
        slot = np.full(len(rows), -1)
        slot[present] = np.arange(len(kept))
        self.slot = torch.from_numpy(slot).to(device)

    def batch(self, numbers: Tensor) -> Batch:
        """The rows of these numbers, all of which the party must have."""
        slots = self.slot.index_select(0, numbers)
        return Batch(
            self.numeric.index_select(0, slots),
            self.codes.index_select(0, slots),
            tuple(block.index_select(0, slots) for block in self.blocks),
        )
