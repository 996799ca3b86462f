"""How many rounds to train, and how far what the common model says is to be believed.

A common model of few labelled rows is at its best after a few rounds, and surer with every further
one. So a fifth of the labelled rows of every party is held out first: by a secure sum of their
losses over all parties rounds are counted, and all probabilities are divided by a temperature
(`split.scaling`). The model that is kept is then trained on all rows, for as many rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fedmend.learn.metrics import softmax
from fedmend.methods.horizontal.tallies import log_loss
from fedmend.split.scaling import HELD, HELD_BELOW
from fedmend.split.workers import TEMPERATURES, judges_of

SHARE, MOST = 0.2, 0.3
"""Of a party's labelled rows, as many judge; more, up to the latter, where these would be too few
for an answer to rest on."""
UNJUDGED = 20
"""So many rounds where no party has rows enough to judge by."""
UNSURE = (
    "No labelled rows were held out, which takes two parties, and at one of them over three times "
    "its min_rows: the number of rounds was not chosen by held-out rows, and probabilities may be "
    "surer than they should be."
)


@dataclass(frozen=True)
class Length:
    """What a training on all rows is told. notes: what people should know of it."""

    rounds: int
    temperature: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass
class Judges:
    """Sums over held-out rows of all parties, round by round, and which round was the best.

    A round is as good as its predictions are once a temperature has put right how sure they are.
    """

    patience: int
    losses: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)

    def hear(self, total: np.ndarray) -> bool:
        """A sum of `losses_of` all parties; whether the round is the best so far."""
        doubts = [
            0.5 * (math.log(each) / (HELD if each > 1 else HELD_BELOW)) ** 2
            for each in TEMPERATURES
        ]
        least = int(np.argmin(total[1:] + doubts))
        self.add(float(total[1 + least] / total[0]), TEMPERATURES[least])
        return self.best == len(self.losses)

    def add(self, loss: float, temperature: float) -> None:
        self.losses.append(loss if math.isfinite(loss) else math.inf)
        self.temperatures.append(temperature)

    @property
    def best(self) -> int:
        """The number of the best round, from one; 0 before the first."""
        return 1 + int(np.argmin(self.losses)) if self.losses else 0

    @property
    def out_of_patience(self) -> bool:
        return len(self.losses) - self.best >= self.patience

    @property
    def length(self) -> Length:
        return Length(self.best, self.temperatures[self.best - 1])


def held_out(drawn: np.ndarray, least: int, classes: np.ndarray) -> np.ndarray:
    """Which labelled rows judge, of every class a share; none where `least` would be too many.

    drawn: a number from 0 to 1 of each row. **Shape** all [n].
    """
    held = judges_of(drawn, SHARE, least, classes)
    return held & (held.sum() <= MOST * len(held))


def losses_of(probabilities: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """How many rows there are, and their summed log loss at each of the temperatures.

    **Shape** both [n, K]; result [1 + temperatures]. weight: as `tallies.log_loss` has it.
    """
    logs = np.log(np.maximum(probabilities.astype(np.float64), 1e-12))
    found = [float(len(logs))]
    for temperature in TEMPERATURES:
        found.append(log_loss(softmax(logs / temperature), weight))
    return np.array(found)
