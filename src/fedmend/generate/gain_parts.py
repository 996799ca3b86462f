"""What GAIN, VGAIN and VF-GAIN do with their networks: hide cells, learn to restore them, draw.

Drawing goes cell by cell: a few cells of a row are drawn, then shown when the next are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.generate.gain_nets import Critic, Guess, Imputer
from fedmend.generate.training import Dropout

__all__ = ["Duel", "Game", "Rows", "draw_cells", "expected_cells", "hide", "score"]

SHOWN_WEIGHT = 0.1  # copying what is shown is easily learnt and of little use
SHARE_WEIGHT = 0.1  # more of it draws better and fills gaps worse


class Rows(NamedTuple):
    """Rows, which of their cells are known, and what is known beside them.

    **Shape**: ``values`` coordinates (n, width), ``known`` bool (n, columns), ``side`` (n, side)
    """

    values: Tensor
    known: Tensor
    side: Tensor

    def take(self, numbers: Tensor) -> Rows:
        """These rows."""
        return Rows(self.values[numbers], self.known[numbers], self.side[numbers])


# --- training ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Game:
    """The numbers of the game.

    hint: how many cells' origin the discriminator is told. alpha: weight of the reconstruction.
    noise: what hidden cells hold at first. blank: share of training rows that show nothing.
    """

    hint: float = 0.9
    alpha: float = 100.0
    noise: float = 0.01
    blank: float = 0.1
    refine: int = 3
    lr: float = 1e-3


def hide(observed: Tensor, blank: float, generator: torch.Generator) -> Tensor:
    """Which of the observed cells the generator is shown: a random share of each row's.

    Every share from none to all is equally likely; a share ``blank`` of the rows shows nothing.
    """
    n, columns = observed.shape
    draws = torch.rand(n, columns + 2, generator=generator, device=observed.device)
    rate = draws[:, :1].masked_fill(draws[:, 1:2] < blank, 1.0)
    return observed & (draws[:, 2:] >= rate)


class Duel:
    """Generator against discriminator, one step at a time."""

    def __init__(
        self, net: Imputer, critic: Critic, game: Game, generator: torch.Generator
    ) -> None:
        self.net, self.critic, self.game, self.generator = net, critic, game, generator
        self.optimizer = torch.optim.Adam(net.parameters(), game.lr, fused=True)
        self.critic_optimizer = torch.optim.Adam(critic.parameters(), game.lr, fused=True)
        for layer in net.modules():
            if isinstance(layer, Dropout):
                layer.generator = generator

    def step(self, rows: Rows) -> None:
        """One update of both. A side input that wants its gradient has it afterwards."""
        net, game = self.net, self.game
        shown = hide(rows.known, game.blank, self.generator)
        truth, flags = net.standardised(rows.values), shown.to(rows.values.dtype)
        code, cost = net.code(truth, flags, self.generator, rows.known.to(truth.dtype))
        start = game.noise * self._draw(truth)
        guess = net(truth, flags, torch.cat([rows.side, code], 1), start, game.refine)
        spread = flags[:, net.owner]
        cells = truth * spread + net.made(guess.cells) * (1 - spread)
        hint = torch.where(self._draw(flags) < game.hint, flags, 0.5)
        self._train_critic(cells.detach(), hint, flags)
        self.critic.requires_grad_(False)
        caught = (F.softplus(-self.critic(cells, hint)) * (1 - flags)).mean()
        self.critic.requires_grad_(True)
        loss = caught + game.alpha * (error(net, guess, rows, shown, self.generator) + cost)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _train_critic(self, cells: Tensor, hint: Tensor, flags: Tensor) -> None:
        self.critic_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(self.critic(cells, hint), flags).backward()
        self.critic_optimizer.step()

    def _draw(self, like: Tensor) -> Tensor:
        return _uniform(like, self.generator)


def error(
    net: Imputer, guess: Guess, rows: Rows, shown: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean loss over the hidden cells whose value is known, and a little over shown ones."""
    values = rows.values
    hidden = (rows.known & ~shown).to(values.dtype)
    cells = net.cell_losses(guess, net.standardised(values))
    total = _mean(cells, hidden) + SHOWN_WEIGHT * _mean(cells, shown.to(values.dtype))
    if net.share is not None:
        shares = net.share_losses(guess, net.bins_of(values, generator))
        total = total + SHARE_WEIGHT * _mean(shares, hidden[:, net.scalar_columns])
    return total


def _mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses * weight).sum() / weight.sum().clamp(min=1)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)


# --- use -------------------------------------------------------------------------------------


@torch.no_grad()
def score(
    net: Imputer, rows: Rows, game: Game, generator: torch.Generator, blank: float = 0.0
) -> float:
    """The error on cells hidden as in training; the same stream hides the same cells."""
    shown = hide(rows.known, blank, generator)
    truth, flags = net.standardised(rows.values), shown.to(rows.values.dtype)
    code, cost = net.code(truth, flags, generator, rows.known.to(truth.dtype))
    start = game.noise * _uniform(truth, generator)
    guess = net(truth, flags, torch.cat([rows.side, code], 1), start, game.refine)
    return float(error(net, guess, rows, shown, generator) + cost)


@torch.no_grad()
def expected_cells(
    net: Imputer, rows: Rows, game: Game, draws: int, generator: torch.Generator
) -> Tensor:
    """Expected numbers and probabilities, as means over ``draws`` draws of noise and code.

    **Shape**: coordinates (n, width)
    """
    truth, flags = net.standardised(rows.values), rows.known.to(rows.values.dtype)
    total = torch.zeros_like(truth)
    for _ in range(draws):
        code, _ = net.code(truth, flags, generator)
        start = game.noise * _uniform(truth, generator)
        guess = net(truth, flags, torch.cat([rows.side, code], 1), start, game.refine)
        total += net.made(guess.cells)
    return net.coordinates(total / draws)


@torch.no_grad()
def draw_cells(
    net: Imputer, rows: Rows, game: Game, rounds: int, generator: torch.Generator
) -> Tensor:
    """Coordinates with every unknown cell drawn, in ``rounds`` rounds; categories are one-hot.

    In each round some unknown cells of every row, at random, are drawn and known from then on.
    """
    truth, flags = net.standardised(rows.values), rows.known.to(rows.values.dtype)
    code, _ = net.code(truth, flags, generator)
    side = torch.cat([rows.side, code], 1)
    turn = _turns(rows.known, rounds, generator)
    for number in range(int(turn.max()) + 1):
        start = game.noise * _uniform(truth, generator)
        guess = net(truth, flags, side, start, game.refine)
        drawn = net.standardised(_drawn(net, guess, generator))
        now = (turn == number).to(flags.dtype)
        here = now[:, net.owner]
        truth = truth * (1 - here) + drawn * here
        flags = flags + now
    return net.coordinates(truth)


def _turns(shown: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
    """In which round each hidden cell is drawn, evenly over the rounds; -1 for shown cells."""
    order = torch.rand(shown.shape, generator=generator, device=shown.device)
    place = order.masked_fill(shown, 2.0).argsort(1).argsort(1)
    hidden = (~shown).sum(1, keepdim=True)
    rounds_needed = hidden.clamp(min=1, max=rounds)
    return (place * rounds_needed // hidden.clamp(min=1)).masked_fill(shown, -1)


def _drawn(net: Imputer, guess: Guess, generator: torch.Generator) -> Tensor:
    drawn = torch.zeros_like(guess.cells)
    if net.share is not None:
        bins = _pick(guess.shares.softmax(2), generator)
        drawn[:, net.scalars] = net.numbers_of(bins, generator).to(drawn.dtype)
    for start, stop in net.layout.groups:
        chosen = _pick(guess.cells[:, start:stop].softmax(1), generator)
        drawn[:, start:stop] = F.one_hot(chosen, stop - start).to(drawn.dtype)
    return drawn


def _pick(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """A position of the last axis, drawn by its probabilities."""
    edges = probabilities.cumsum(-1)
    draw = _uniform(edges[..., :1], generator) * edges[..., -1:]
    return (edges <= draw).sum(-1).clamp(max=probabilities.shape[-1] - 1)
