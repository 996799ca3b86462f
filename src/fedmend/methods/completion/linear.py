"""Linear models of many targets over two parties: ridge in closed form, logistic by gradients.

A turns its columns (standardised numbers, one indicator per category) into secret coordinates
(`rotation.py`): Z [n, r], drawn afresh for every `fit`. B assembles everything else:

*Ridge.* One run of products gives B Z'W[1, X^B, Y] for every set W of training rows; A adds Z'WZ
over the aligned rows (for rows that joined later, which A does not know, it comes as products with
the columns z_j z_k), and B solves the normal equations of all targets.
*Logistic.* Per step, Z'R for the residuals R of all classes of all targets, and Z D for the
directions D; both through the same masked or encrypted Z (`logistic.py` chooses the steps).
*Prediction.* B's weights against A's rows, as one more product that B alone learns.

What each role learns
- The coordinator: sizes, names and tasks of the targets, how many have converged.
- A: nothing but sizes: no target, no weight, no prediction, not which rows train.
- B: the sums above and its weights in A's secret coordinates (with them the eigenvalues of A's
  columns, not their axes), and the scores u'z of the rows: the predictions that are asked for, one
  linear combination of A's columns for each output. Logistic training shows B such combinations of
  the training rows for every step and class. Once they are as many as A has columns, B knows A's
  rows up to the unknown turn of the axes; that is the price of many linear predictions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.errors import ConfigError
from fedmend.methods.completion.linear_workers import LinearFeatures, LinearTargets, people_norm
from fedmend.methods.completion.targets import FitReport, Progress, TargetModels
from fedmend.secure.columns import Columns
from fedmend.secure.fixed_point import MAX_BITS, fitting_bits
from fedmend.secure.inner_product import LIMIT_BITS, ProductSession

if TYPE_CHECKING:
    from fedmend.federation.federation import Federation

__all__ = ["LinearModels"]

logger = logging.getLogger(__name__)

PAIRS = 256  # products of two coordinates in one session
PEOPLE = 16384  # rows that are predicted at once


class LinearModels(TargetModels):
    """Ridge for numbers, logistic regression for classes (one softmax per target).

    alpha: the penalty alpha |w|^2 of ridge, and alpha/2 |w|^2 of logistic regression (which is
    scikit-learn's C = 1/alpha), on A's standardised columns and B's own.
    ensemble: bootstrap members per numeric target, whose disagreement enters the spread.
    steps: most steps of logistic training; it stops earlier at `tolerance`, the largest change
    of an output that the next step promises.
    With ``beyond=False`` lines end with the aligned rows in columns that go beyond them a little.
    """

    family = "linear"
    workers = (LinearFeatures, LinearTargets)

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        alpha: float = 1.0,
        ensemble: int = 0,
        steps: int = 30,
        tolerance: float = 1e-3,
        seed: int = 0,
        **options: Any,
    ) -> None:
        problems = []
        if not alpha >= 0 or not math.isfinite(alpha):
            problems.append(f"alpha must be a finite number from 0 on, got {alpha}")
        if ensemble < 0 or ensemble == 1:
            problems.append(f"ensemble must be 0, or at least 2 to disagree, got {ensemble}")
        if steps < 1:
            problems.append(f"steps must be at least 1, got {steps}")
        if problems:
            raise ConfigError(problems)
        self.steps = steps
        self._ensemble, self._seed, self._rounds = ensemble, seed, 0
        at_b = {"alpha": float(alpha), "tolerance": float(tolerance)}
        super().__init__(fed, a, b, **options, params={"b": at_b})
        self._rank = 0

    # ------------------------------------------------------------------ fitting

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        tell = progress or (lambda stage, done, total: None)
        self._rank = self.at_a.start()
        self._rounds += 1
        seeds = self._member_seeds()
        plan = self.at_b.begin(self.at_a.moments_for(self.b, seeds), self.a, seeds)
        length = self.at_b.reach()
        bits = fitting_bits(self.n_rows, self.mode)
        self.at_a.load_columns(bits, length)
        fixed = self._state(self.a, "columns")
        with ProductSession(self.scoped("rows", length), fixed, self.b, mode=self.mode) as session:
            if plan["paired"]:
                self._paired_sums(length, tell)
            if plan["columns"]:
                self.at_b.load_sums(bits, length)
                self._multiply(session, "changing", "products", bits)
                self.at_b.solve(2 * bits)
                tell("solving", 1, 1)
            if plan["classes"]:
                self._logistic(session, bits, length, tell)
        return self._report()

    def _paired_sums(self, length: int, tell: Progress) -> None:
        """Sums of z_j z_k over rows that A does not know, a few hundred pairs at a time."""
        bits, pair_bits = self._pair_bits()
        count = self._rank * (self._rank + 1) // 2
        for first in range(0, count, PAIRS):
            last = min(count, first + PAIRS)
            self.at_a.load_pairs(pair_bits, length, first, last)
            fixed = self._state(self.a, "pairs")
            view = self.scoped("rows", length)
            with ProductSession(view, fixed, self.b, mode=self.mode) as session:
                self.at_b.load_weights(bits, length)
                self._multiply(session, "changing", "products", bits)
            self.at_b.take_pairs(bits + pair_bits)
            tell("products of A's columns", last, count)

    def _logistic(self, session: ProductSession, bits: int, length: int, tell: Progress) -> None:
        people_bits, weight_bits = self._score_bits()
        self.at_a.load_people(people_bits, 0, length)
        with self._scores(people_bits) as forward:
            for number in range(self.steps):
                if not self.at_b.load_residuals(bits, length):
                    break
                self._multiply(session, "changing", "products", bits)
                if not self.at_b.load_directions(2 * bits, weight_bits):
                    break
                self._forward(forward, weight_bits)
                self.at_b.step(people_bits + weight_bits)
                tell("logistic", number + 1, self.steps)

    # ------------------------------------------------------------------ predicting

    def predict(self, *, rows: str = "unaligned", progress: Progress | None = None) -> None:
        """As the others, or for the "aligned" rows."""
        first = 0 if rows == "aligned" else self._first_row(rows)
        end = self.n_aligned if rows == "aligned" else self.n_rows
        people_bits, weight_bits = self._score_bits()
        if not self.at_b.load_outputs(weight_bits):
            return
        for start in range(first, end, PEOPLE):
            stop = min(end, start + PEOPLE)
            self.at_a.load_people(people_bits, start, stop)
            with self._scores(people_bits) as session:
                self._forward(session, weight_bits)
            self.at_b.take_outputs(people_bits + weight_bits, start)
            if progress is not None:
                progress("predicting", stop - first, end - first)

    def _scores(self, bits: int) -> ProductSession:
        people = self._state(self.a, "people")
        return ProductSession(self.scoped("axes", self._rank), people, self.b, mode=self.mode)

    def _forward(self, session: ProductSession, bits: int) -> None:
        changing = self._state(self.b, "weights")
        session.products(changing, to=self.b, store=f"{self.model}:scores")

    # ------------------------------------------------------------------ integers

    def _multiply(self, session: ProductSession, key: str, store: str, bits: int) -> None:
        session.products(self._state(self.b, key), to=self.b, store=f"{self.model}:{store}")

    def _state(self, party: str, key: str) -> Columns:
        return Columns(party, "state", {"key": f"{self.model}:{key}"})

    def _score_bits(self) -> tuple[int, int]:
        """Bits of A's rows and of B's weights, whose products are |z| |u| <= sqrt(n) at most."""
        norm = people_norm(self.n_rows, self._rank)
        room = LIMIT_BITS[self.mode] - norm.bit_length() - 2
        return min(MAX_BITS, room // 2), min(MAX_BITS, room // 2)

    def _pair_bits(self) -> tuple[int, int]:
        """Bits of weights of norm sqrt(n) and of products of norm n."""
        room = LIMIT_BITS[self.mode] - (1.5 * math.log2(self.n_rows + 1)) - 2
        return min(MAX_BITS, int(room // 2)), min(MAX_BITS, int(room // 2))

    def _member_seeds(self) -> list[int]:
        source = np.random.SeedSequence([self.fed.seed, self._seed, self._rounds])
        words: Sequence[int] = source.generate_state(max(self._ensemble, 1)).tolist()
        return list(words[: self._ensemble])
