"""Generative adversarial imputation (Yoon, Jordon, van der Schaar, *GAIN: Missing Data Imputation
using Generative Adversarial Nets*, 2018).

A generator fills the hidden cells of a row; a discriminator, told most of it by a hint, tells
which cells were filled. Kept from the paper: min-max scaling, hint rate .9, noise in [0, .01],
reconstruction weighted 100 (squared error; cross-entropy for categories), Adam at 1e-3, batches of
128. Departures: cells are also hidden on purpose, and the generator learns to restore them, so
that complete tables can be learnt from and any set of columns can be given; the guess is fed back
``refine`` times; the networks are wider, and an average of their weights is kept.

`impute` gives expected values and the likeliest categories (a draw with ``draws=1``). `sample`
draws cell after cell in random order, each given those before it: any known columns are honoured
by masking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend._parameters import parameters
from fedmend.generate.base import Generator
from fedmend.generate.encoder import Encoded, Encoder, Heads, Raw
from fedmend.generate.training import (
    EMA,
    Progress,
    batches,
    descend,
    generator_for,
    held_out,
    train,
)
from fedmend.learn.nets import SeededDropout, mlp, seed_dropout
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

# --- the networks ---------------------------------------------------------------------------

BINS = 32  # shares of a number's values to draw from
KNOTS = 32  # per bin: how finely a column's quantiles are kept


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
        self.drop = SeededDropout(dropout)
        self.second = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.second(self.drop(F.silu(self.first(self.norm(inputs)))))


class Imputer(nn.Module):
    """The generator: a residual block, with a linear path beside it.

    It takes standardised values: with min-max scaling alone, a column with an outlier would weigh
    next to nothing. Its guess is fed back ``refine`` times in place of the hidden cells, as
    regressions are chained in the classical imputers; only the last pass is trained through.
    """

    centre: Tensor
    scale: Tensor
    knots: Tensor
    stepped: Tensor

    def __init__(
        self, heads: Heads, *, hidden: int, dropout: float, bins: int = BINS, side: int = 0
    ) -> None:
        """heads: of an encoder whose columns have one span each, on the device to be trained on."""
        super().__init__()
        self.heads, self.bins, self.side = heads, bins, side
        self.owner, self.grouped = heads.span, heads.softmax
        self.scalars = heads.scalar.nonzero()[:, 0]
        self.scalar_columns = self.owner[self.scalars]
        width, scalars = len(self.owner), len(self.scalars)
        inputs = width + heads.n_spans + side
        self.enter = nn.Linear(inputs, hidden)
        self.body = nn.Sequential(Residual(hidden, dropout))
        self.leave = nn.Linear(hidden, width)
        self.beside = nn.Linear(inputs, width)
        self.share = nn.Linear(hidden, scalars * bins) if scalars else None
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("knots", torch.zeros(scalars, bins * KNOTS + 1))
        self.register_buffer("stepped", torch.zeros(scalars, dtype=torch.bool))

    @torch.no_grad()
    def measure(self, values: np.ndarray, observed: np.ndarray) -> None:
        """Learn every number's mean, deviation and quantiles from the observed cells."""
        ranks = np.linspace(0, 1, self.knots.shape[1])
        for slot, (at, column_at) in enumerate(
            zip(self.scalars.tolist(), self.scalar_columns.tolist(), strict=True)
        ):
            column = values[observed[:, column_at], at].astype(np.float64)
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
        return torch.where(self.grouped, self.heads.log_softmax(cells).exp(), cells)

    def cell_losses(self, guess: Guess, values: Tensor) -> Tensor:
        """Squared error (numbers) or cross-entropy (groups). **Shape**: (n, columns)"""
        wrong = (guess.cells - values).square()
        unlikely = -self.heads.log_softmax(guess.cells) * values
        return torch.where(self.grouped, unlikely, wrong) @ self.heads.member.to(wrong.dtype)

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

    def __init__(self, heads: Heads, *, hidden: int) -> None:
        super().__init__()
        self.body = mlp(len(heads.span) + heads.n_spans, (hidden, hidden), heads.n_spans)

    def forward(self, cells: Tensor, hint: Tensor) -> Tensor:
        """**Shape**: (n, width), (n, columns) -> logits (n, columns)"""
        return self.body(torch.cat([cells, hint], 1))


# --- the game: cells are hidden, restored, drawn --------------------------------------------

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
        spec = OptimizerSpec("adam", game.lr)
        self.optimizer = FlatOptimizer(list(net.parameters()), spec)
        self.critic_optimizer = FlatOptimizer(list(critic.parameters()), spec)
        seed_dropout(net, generator)

    def step(self, rows: Rows) -> None:
        """One update of both. A side input that wants its gradient has it afterwards."""
        net, game = self.net, self.game
        shown = hide(rows.known, game.blank, self.generator)
        truth, flags = net.standardised(rows.values), shown.to(rows.values.dtype)
        code, cost = net.code(truth, flags, self.generator, rows.known.to(truth.dtype))
        start = game.noise * _uniform(truth, self.generator)
        guess = net(truth, flags, torch.cat([rows.side, code], 1), start, game.refine)
        spread = flags[:, net.owner]
        cells = truth * spread + net.made(guess.cells) * (1 - spread)
        hint = torch.where(_uniform(flags, self.generator) < game.hint, flags, 0.5)
        told = self.critic(cells.detach(), hint)
        descend(F.binary_cross_entropy_with_logits(told, flags), self.critic_optimizer)
        self.critic.requires_grad_(False)
        caught = (F.softplus(-self.critic(cells, hint)) * (1 - flags)).mean()
        self.critic.requires_grad_(True)
        loss = caught + game.alpha * (error(net, guess, rows, shown, self.generator) + cost)
        descend(loss, self.optimizer)


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
    for start, stop in net.heads.groups:
        chosen = _pick(guess.cells[:, start:stop].softmax(1), generator)
        drawn[:, start:stop] = F.one_hot(chosen, stop - start).to(drawn.dtype)
    return drawn


def _pick(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """A position of the last axis, drawn by its probabilities."""
    edges = probabilities.cumsum(-1)
    draw = _uniform(edges[..., :1], generator) * edges[..., -1:]
    return (edges <= draw).sum(-1).clamp(max=probabilities.shape[-1] - 1)


# --- the generator --------------------------------------------------------------------------

_ROWS = 8192  # at once, where nothing is trained
ROUNDS = 16  # in which a row is drawn, at most


@parameters
class GAIN(Generator):
    """Fills gaps, and makes rows, by masking.

    refine: how often the guess is fed back. blank: share of training rows of which nothing is
    shown. patience: how many scores (every 100 steps, on a tenth of the rows) may pass
    without a better one; 0 never stops early.

    >>> from fedmend.data import datasets
    >>> table = datasets.load("breast-cancer")                            # doctest: +SKIP
    >>> GAIN().fit(table).impute(table_with_gaps)                         # doctest: +SKIP
    """

    name = "gain"
    # The published game and its length; the networks stay ours, which are wider.
    PRESETS: ClassVar = {
        "paper": {"refine": 0, "blank": 0.0, "dropout": 0.0, "steps": 10_000, "patience": 0}
    }
    impute_draws = 2  # the noise is small: more of them change nothing
    noise: ClassVar[float] = 0.01  # what hidden cells hold at first, at most

    hidden: int = 256
    dropout: float = 0.1
    refine: int = 3
    hint: float = 0.9
    alpha: float = 100.0
    blank: float = 0.1
    steps: int = 6000
    batch_size: int = 128
    lr: float = 1e-3
    patience: int = 15

    # --- what a generator says of itself ---------------------------------------------------

    def _encoder(self) -> Encoder:
        return Encoder(numeric="minmax")

    def _build(self) -> dict[str, torch.nn.Module]:
        heads = Heads(self.encoder_, self.device_)
        self.net_ = self._imputer(heads)
        self.critic_ = Critic(heads, hidden=self.hidden)
        return {"net": self.net_, "critic": self.critic_}

    def _imputer(self, heads: Heads) -> Imputer:
        return Imputer(heads, **self._shape)

    @property
    def _shape(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "dropout": self.dropout, "side": self._side_width}

    @property
    def _side_width(self) -> int:
        """How many numbers stand beside a row's cells."""
        return 0

    @property
    def _game(self) -> Game:
        return Game(self.hint, self.alpha, self.noise, self.blank, self.refine, self.lr)

    def _train(self, encoded: Encoded, progress: Progress | None) -> None:
        kept, scored = held_out(encoded.n_rows, 0.1, self._numpy_rng("held out"))
        # A column with a few observed cells may have all of them among the rows held out.
        whole = encoded if not encoded.observed[kept].any(axis=0).all() else encoded.take(kept)
        self.net_.measure(whole.values, whole.observed)
        rows, judged = self._rows_of(encoded.take(kept)), self._rows_of(encoded.take(scored))
        average = EMA(self.net_)
        stream = generator_for(self.device_, self.seed, "train")
        duel = Duel(self.net_.train(), self.critic_, self._game, stream)

        def step(number: int, batch: torch.Tensor) -> None:
            duel.step(rows.take(batch))
            average.update()

        self.history_ = train(
            step,
            batches(len(kept), self.batch_size, stream, self.device_),
            steps=self.steps,
            modules=[average.average],
            score=(lambda: self._score(average, judged)) if len(scored) else None,
            patience=self.patience,
            progress=progress,
        )
        self.net_.load_state_dict(average.average.state_dict())

    def _score(self, average: EMA, rows: Rows, blank: float = 0.0) -> float:
        """The averaged generator's error on rows held out."""
        net, stream = average.average, generator_for(self.device_, self.seed, "score")
        assert isinstance(net, Imputer)
        return score(net, rows, self._game, stream, blank)

    def _rows_of(self, encoded: Encoded) -> Rows:
        """Encoded rows on the device, with nothing beside them."""
        values = torch.from_numpy(encoded.values).to(self.device_, self.net_.centre.dtype)
        observed = torch.from_numpy(encoded.observed).to(self.device_)
        return Rows(values, observed, values.new_zeros(len(values), self._side_width))

    # --- use -------------------------------------------------------------------------------

    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        if known is None:
            known = self._blank_rows(n)
        rows = self._rows_of(known)
        return self._by_parts(
            rows, lambda part: draw_cells(self.net_, part, self._game, ROUNDS, generator)
        )

    def _imputed(self, known: Raw, draws: int, seed: int) -> Raw:
        """Expected numbers and the likeliest categories, unless a single draw is wanted."""
        if draws <= 1 or not self.encoder_.width:
            return super()._imputed(known, draws, seed)
        rows = self._rows_of(self.encoder_.encode(known))
        stream = generator_for(self.device_, seed, "impute")
        filled = self._by_parts(
            rows, lambda part: expected_cells(self.net_, part, self._game, draws, stream)
        )
        return self.encoder_.decode(filled)

    def _by_parts(self, rows: Rows, fill: Callable[[Rows], torch.Tensor]) -> np.ndarray:
        numbers = torch.arange(len(rows.values), device=rows.values.device)
        parts = [fill(rows.take(part)).cpu() for part in numbers.split(_ROWS)]
        return torch.cat(parts).float().numpy()

    def _blank_rows(self, n: int) -> Encoded:
        columns = len(self.encoder_.columns)
        return Encoded(np.tile(self.encoder_.neutral, (n, 1)), np.zeros((n, columns), dtype=bool))
