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

import numpy as np
import torch

from fedmend.generate.base import Generator
from fedmend.generate.encoder import Encoded, Encoder, Raw
from fedmend.generate.gain_nets import Critic, Imputer, Layout
from fedmend.generate.gain_parts import Duel, Game, Rows, draw_cells, expected_cells, score
from fedmend.generate.training import EMA, Progress, batches, generator_for, held_out, train

__all__ = ["GAIN"]

_ROWS = 8192  # at once, where nothing is trained


class GAIN(Generator):
    """Fills gaps, and makes rows, by masking.

    refine: how often the guess is fed back. bins: shares of a number's values to draw from.
    rounds: in how many rounds a row is drawn, at most. blank: share of training rows of which
    nothing is shown. patience: how many scores (every 100 steps, on a tenth of the rows) may pass
    without a better one; 0 never stops early.

    >>> from fedmend.data import datasets
    >>> table = datasets.load("breast-cancer")                            # doctest: +SKIP
    >>> GAIN().fit(table).impute(table_with_gaps)                         # doctest: +SKIP
    """

    name = "gain"
    impute_draws = 2  # the noise is small: more of them change nothing

    def __init__(
        self,
        *,
        hidden: int = 256,
        blocks: int = 1,
        dropout: float = 0.1,
        refine: int = 3,
        bins: int = 32,
        hint: float = 0.9,
        alpha: float = 100.0,
        noise: float = 0.01,
        blank: float = 0.1,
        steps: int = 6000,
        batch_size: int = 128,
        lr: float = 1e-3,
        patience: int = 15,
        rounds: int = 16,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.hidden = hidden
        self.blocks = blocks
        self.dropout = dropout
        self.refine = refine
        self.bins = bins
        self.hint = hint
        self.alpha = alpha
        self.noise = noise
        self.blank = blank
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.rounds = rounds
        self.seed = seed
        self.device = device

    def _problems(self) -> list[str]:
        params = self.get_params()
        least = {"blocks": 0, "refine": 0, "bins": 2, "rounds": 1}
        problems = super()._problems()
        problems += [
            f"{name} must be a whole number from {low}, got {name}={params[name]!r}"
            for name, low in least.items()
            if not isinstance(params[name], int) or params[name] < low
        ]
        problems += [
            f"{name} must be in [0, 1], got {name}={params[name]!r}"
            for name in ("hint", "blank")
            if not 0 <= params[name] <= 1
        ]
        return problems

    # --- what a generator says of itself ---------------------------------------------------

    def _encoder(self) -> Encoder:
        return Encoder(numeric="minmax")

    def _build(self) -> dict[str, torch.nn.Module]:
        layout = Layout.of(self.encoder_)
        self.net_ = self._imputer(layout)
        self.critic_ = Critic(layout, hidden=self.hidden)
        return {"net": self.net_, "critic": self.critic_}

    def _imputer(self, layout: Layout) -> Imputer:
        return Imputer(
            layout,
            hidden=self.hidden,
            blocks=self.blocks,
            dropout=self.dropout,
            bins=self.bins,
            side=self._side_width,
        )

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
            rows, lambda part: draw_cells(self.net_, part, self._game, self.rounds, generator)
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
