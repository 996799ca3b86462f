"""The networks of the GAIN family: generator and discriminator.

The generator sees the shown cells of a row, which ones they are, and, where there is one, a *side*
input: VGAIN's latent code, VF-GAIN's embedding of the other party's half of the row. It says two
things of every cell: its expected value (numbers) or probabilities (categories) and, for numbers,
how likely each of some equal shares of the column's observed values is. The first fills gaps; the
second is what new rows are drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.generate.encoder import Encoder
from fedmend.generate.training import Dropout

__all__ = ["Critic", "Guess", "Imputer", "Layout"]

KNOTS = 32  # per bin: how finely a column's quantiles are kept


@dataclass(frozen=True)
class Layout:
    """Where the coordinates of an encoder are: scalars (one each) and groups (one per category)."""

    owner: np.ndarray
    scalars: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, encoder: Encoder) -> Layout:
        """The layout of an encoder whose numbers have one coordinate each."""
        spans = encoder.spans
        return cls(
            encoder.owner,
            tuple(span.start for span in spans if span.activation != "softmax"),
            tuple((span.start, span.stop) for span in spans if span.activation == "softmax"),
        )

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return len(self.owner)

    @property
    def columns(self) -> int:
        """Number of columns that have coordinates."""
        return len(self.scalars) + len(self.groups)


class Guess(NamedTuple):
    """What the generator says of rows.

    **Shape**: ``cells`` (n, width): standardised numbers, and logits for groups; ``shares``
    (n, scalars, bins): logits
    """

    cells: Tensor
    shares: Tensor


class Residual(nn.Module):
    """Two layers, added to their input."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.drop = Dropout(dropout)
        self.second = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.second(self.drop(F.silu(self.first(self.norm(inputs)))))


class Imputer(nn.Module):
    """The generator: residual blocks, with a linear path beside them.

    It takes standardised values: with min-max scaling alone, a column with an outlier would weigh
    next to nothing. Its guess is fed back ``refine`` times in place of the hidden cells, as
    regressions are chained in the classical imputers; only the last pass is trained through.
    """

    centre: Tensor
    scale: Tensor
    knots: Tensor
    stepped: Tensor
    owner: Tensor
    member: Tensor
    grouped: Tensor
    scalars: Tensor
    scalar_columns: Tensor

    def __init__(
        self, layout: Layout, *, hidden: int, blocks: int, dropout: float, bins: int, side: int = 0
    ) -> None:
        super().__init__()
        self.layout, self.bins, self.side = layout, bins, side
        scalars, inputs = len(layout.scalars), layout.width + layout.columns + side
        self.enter = nn.Linear(inputs, hidden)
        self.body = nn.Sequential(*(Residual(hidden, dropout) for _ in range(blocks)))
        self.leave = nn.Linear(hidden, layout.width)
        self.beside = nn.Linear(inputs, layout.width)
        self.share = nn.Linear(hidden, scalars * bins) if scalars else None
        self.register_buffer("centre", torch.zeros(layout.width))
        self.register_buffer("scale", torch.ones(layout.width))
        self.register_buffer("knots", torch.zeros(scalars, bins * KNOTS + 1))
        self.register_buffer("stepped", torch.zeros(scalars, dtype=torch.bool))
        self._index("owner", layout.owner)
        member = F.one_hot(self.owner, layout.columns).to(torch.get_default_dtype())
        self.register_buffer("member", member, persistent=False)
        grouped = torch.ones(layout.width, dtype=torch.bool)
        grouped[list(layout.scalars)] = False
        self.register_buffer("grouped", grouped, persistent=False)
        self._index("scalars", np.array(layout.scalars, np.int64))
        self._index("scalar_columns", layout.owner[list(layout.scalars)])

    def _index(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(values.astype(np.int64)), persistent=False)

    @torch.no_grad()
    def measure(self, values: np.ndarray, observed: np.ndarray) -> None:
        """Learn every number's mean, deviation and quantiles from the observed cells."""
        ranks = np.linspace(0, 1, self.knots.shape[1])
        for slot, at in enumerate(self.layout.scalars):
            column = values[observed[:, self.layout.owner[at]], at].astype(np.float64)
            self.centre[at] = float(column.mean())
            self.scale[at] = max(float(column.std()), 1e-6)
            # Where values repeat, none is made up between two of them.
            few = len(np.unique(column)) <= min(len(ranks), len(column) // 2)
            quantiles = np.quantile(column, ranks, method="inverted_cdf" if few else "linear")
            self.knots[slot] = torch.from_numpy(quantiles)
            self.stepped[slot] = few

    def standardised(self, values: Tensor) -> Tensor:
        """Coordinates as the networks take them."""
        return (values - self.centre) / self.scale

    def coordinates(self, made: Tensor) -> Tensor:
        """The way back from `standardised`."""
        return made * self.scale + self.centre

    def code(
        self,
        values: Tensor,
        shown: Tensor,
        generator: torch.Generator,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """A latent code per row, and what it costs: none here, see VGAIN.

        Told what is ``observed`` (in training), the code may depend on hidden cells.
        """
        return values[:, :0], values.new_zeros(())

    def forward(
        self, values: Tensor, shown: Tensor, side: Tensor, start: Tensor, refine: int
    ) -> Guess:
        """Standardised ``values`` and ``start`` (n, width), ``shown`` 0/1 (n, columns)."""
        spread = shown[:, self.owner]
        known = values * spread
        with torch.no_grad():
            for _ in range(refine):
                told, _inner = self._pass(known + start * (1 - spread), shown, side)
                start = self.made(told)
        cells, inner = self._pass(known + start * (1 - spread), shown, side)
        if self.share is None:
            return Guess(cells, inner[:, :0, None])
        return Guess(cells, self.share(inner).unflatten(1, (-1, self.bins)))

    def _pass(self, values: Tensor, shown: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([values, shown, side], 1)
        inner = self.body(F.silu(self.enter(inputs)))
        return self.leave(inner) + self.beside(inputs), inner

    def made(self, cells: Tensor) -> Tensor:
        """Standardised numbers, and probabilities for groups. **Shape**: (n, width)"""
        if not self.layout.groups:
            return cells
        return torch.where(self.grouped, self._log_probabilities(cells).exp(), cells)

    def _log_probabilities(self, cells: Tensor) -> Tensor:
        """Log-softmax within every group, all at once; 0 at numbers. **Shape**: (n, width)"""
        with torch.no_grad():
            lowest = cells.new_full((len(cells), self.member.shape[1]), -torch.inf)
            peak = lowest.scatter_reduce(1, self.owner.expand(len(cells), -1), cells, "amax")
        shifted = cells - peak[:, self.owner]
        # As products: the gradient of an index is slow, and on CUDA not the same every time.
        return shifted - (shifted.exp() @ self.member).log() @ self.member.T

    def cell_losses(self, guess: Guess, values: Tensor) -> Tensor:
        """Squared error (numbers) or cross-entropy (groups). **Shape**: (n, columns)"""
        wrong = (guess.cells - values).square()
        if self.layout.groups:
            unlikely = -self._log_probabilities(guess.cells) * values
            wrong = torch.where(self.grouped, unlikely, wrong)
        return wrong @ self.member

    def share_losses(self, guess: Guess, bins: Tensor) -> Tensor:
        """Cross-entropy of the shares. **Shape**: bins (n, scalars) -> (n, scalars)"""
        losses = F.cross_entropy(guess.shares.flatten(0, 1), bins.flatten(), reduction="none")
        return losses.view(bins.shape)

    def bins_of(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """The bin of every number; one of them at random where its value fills several.

        **Shape**: coordinates (n, width) -> int64 (n, scalars)
        """
        numbers = values[:, self.scalars].T.contiguous()
        first = torch.searchsorted(self.knots, numbers)
        last = torch.searchsorted(self.knots, numbers, right=True)
        draw = torch.rand(numbers.shape, generator=generator, device=numbers.device)
        at = first + draw * (last - first) - 0.5
        return (at / KNOTS).long().clamp(0, self.bins - 1).T

    def numbers_of(self, bins: Tensor, generator: torch.Generator) -> Tensor:
        """A value drawn in every bin. **Shape**: int64 (n, scalars) -> coordinates (n, scalars)"""
        draw = torch.rand(bins.shape, generator=generator, device=bins.device)
        at = (bins + draw).T * KNOTS
        low = at.long().clamp(max=self.knots.shape[1] - 2)
        left, right = self.knots.gather(1, low), self.knots.gather(1, low + 1)
        along = (at - low).masked_fill(self.stepped[:, None], 0.0)
        return (left + along * (right - left)).T


class Critic(nn.Module):
    """The discriminator: which cells of a row are real? It is told most of them by the hint."""

    def __init__(self, layout: Layout, *, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(layout.width + layout.columns, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, layout.columns),
        )

    def forward(self, cells: Tensor, hint: Tensor) -> Tensor:
        """**Shape**: (n, width), (n, columns) -> logits (n, columns)"""
        return self.body(torch.cat([cells, hint], 1))
