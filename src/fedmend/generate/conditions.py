"""CTGAN's conditional vector and training-by-sampling (Xu et al. 2019, section 4.3).

A condition names one category of one column. All categories of all conditional columns are
numbered through, so that a batch of conditions is one tensor of numbers, drawn with one call; the
rows that hold each category are listed beforehand, so that a matching row is one look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from fedmend.generate.encoder import Encoded, Span

__all__ = ["Conditions"]


class Conditions:
    """The categories of ``spans`` as conditions; without spans there are none.

    ``counts`` are the rows per category once `fit` or restored; ``width`` the number of categories.
    """

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        sizes = torch.tensor([span.stop - span.start for span in spans], dtype=torch.int64)
        positions = [np.arange(span.start, span.stop) for span in spans]
        self.width = int(sizes.sum())
        self.device = device
        self.positions = torch.from_numpy(
            np.concatenate([np.empty(0, np.int64), *positions]).astype(np.int64)
        ).to(device)
        self.column = torch.repeat_interleave(torch.arange(len(spans)), sizes).to(device)
        self.counts = torch.ones(self.width, device=device)

    def fit(self, values: torch.Tensor, sampling: str = "log-frequency") -> None:
        """List the rows of every category; ``sampling`` says how often it will be asked for.

        **Shape**: (n, width of a row), missing cells zero
        """
        self.n_rows = len(values)
        held = values[:, self.positions] > 0.5
        self.counts = held.sum(0).float()
        # Categories in order, and within each its rows: one look-up finds the k-th row of any.
        self.rows = held.T.nonzero()[:, 1]
        self.starts = (self.counts.cumsum(0) - self.counts).long()
        by_log = sampling == "log-frequency"
        self.drawn_by = self._weights(self.counts.log1p() if by_log else self.counts)
        self._any = bool(self.counts.any())

    def _weights(self, masses: torch.Tensor) -> torch.Tensor:
        """A probability for every category: columns alike, within a column by mass."""
        if not self.width:
            return masses
        member = F.one_hot(self.column).to(masses.dtype)  # a sum in the same order every time
        return masses / (member @ (masses @ member)).clamp(min=1e-12)

    def draw(self, n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Row numbers to train on, and the condition each was drawn for.

        A column is drawn evenly, a category by its frequency or the logarithm of it, a row evenly
        among those that hold the category. Where no category is held at all, any row will do.
        """
        if not self._any:
            rows = torch.randint(self.n_rows, (n,), generator=generator, device=self.device)
            return rows, None
        wanted = torch.multinomial(self.drawn_by, n, replacement=True, generator=generator)
        share = torch.rand(n, generator=generator, device=self.device)
        within = (share * self.counts[wanted]).long()
        within = torch.minimum(within, self.counts[wanted].long() - 1)
        return self.rows[self.starts[wanted] + within], wanted

    def natural(self, n: int, generator: torch.Generator) -> torch.Tensor | None:
        """Conditions as frequent as in the table, to sample freely."""
        if not self.counts.any():
            return None
        weights = self._weights(self.counts)
        return torch.multinomial(weights, n, replacement=True, generator=generator)

    def vector(self, wanted: torch.Tensor | None, n: int) -> torch.Tensor:
        """The conditional vector. **Shape**: (n,) -> (n, width)"""
        vector = torch.zeros(n, self.width, device=self.device)
        return vector if wanted is None else vector.scatter_(1, wanted[:, None], 1.0)

    def plane(self, wanted: torch.Tensor | None, n: int, width: int) -> torch.Tensor:
        """Ones where a row has the categories wanted. **Shape**: (n,) -> (n, width of a row)"""
        plane = torch.zeros(n, width, device=self.device)
        return plane if wanted is None else plane.scatter_(1, self.positions[wanted][:, None], 1.0)

    def cross_entropy(self, logits: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
        """How far the generated categories are from the wanted ones, mean over the rows."""
        if wanted is None:
            return logits.new_zeros(())
        scores = logits[:, self.positions]
        other = self.column != self.column[wanted][:, None]
        return F.cross_entropy(scores.masked_fill(other, -torch.inf), wanted)

    def missed(self, made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The rows that do not show the category wanted."""
        other = self.column != self.column[wanted][:, None]
        shown = made[:, self.positions].masked_fill(other, -torch.inf).argmax(1)
        return (shown != wanted).nonzero()[:, 0]

    def rarest(self, known: Encoded, spread: np.ndarray) -> np.ndarray:
        """For every row its known category with the fewest rows, or -1 if none is known.

        ``spread`` (n, width of a row) says which coordinates are observed.
        """
        if not self.width:
            return np.full(known.n_rows, -1)
        positions = self.positions.cpu().numpy()
        held = (known.values[:, positions] > 0.5) & spread[:, positions]
        counts = np.where(held, self.counts.cpu().numpy(), np.inf)
        found: np.ndarray = np.where(held.any(axis=1), counts.argmin(axis=1), -1)
        return found
