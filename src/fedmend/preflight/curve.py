"""What overlap is worth: a learning curve on the aligned rows, and where it leads.

A small split network is trained on growing shares of the aligned rows and scored on others that
were set aside, in turns, so that every row is set aside as often as any other. A power law through
the errors (`power_law`) says what twice the rows would bring. Beside it stands what the label party
reaches alone with all its labelled rows, on the same people.

The work is bounded by counting training steps beforehand, not by a clock: the same call gives the
same curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.learn.optim import OptimizerSpec
from fedmend.preflight.power_law import Point, point_of, read_curve, widening
from fedmend.split.config import SplitConfig
from fedmend.split.features import ALIGNED, Segments
from fedmend.split.halves import Settings
from fedmend.split.session import Session
from fedmend.split.training import SplitNetwork

__all__ = ["Curve", "fit_and_score", "learning_curve"]

Progress = Callable[[str, int, int], None]

SMALLEST = 0.125
LEAST_ROWS = 80
LEAST_TRAINED = 24
MODEL = "preflight-curve"
# Training steps of two parties in a second, on one core of an x86 server (docs/benchmarks.md).
STEPS_A_SECOND = 800
_EPOCHS = 30
_BATCHES = ((32, 1000), (64, 5000), (256, 1_000_000))  # batch size, for so many rows at most


@dataclass(frozen=True)
class Curve:
    """The score by aligned rows, and where it leads.

    metric: "auc", "rmse" for numbers, or "accuracy" where a class is too rare for an AUC. points:
    measured. twice: with twice the aligned rows, as the power law has it. gain: by how much that
    is better, with its 80 % interval (low, high). alone: the label party without the others, on
    all its labelled rows. repeats: those that were measured. left_out: those that were not, since
    the rows set aside lacked a class.
    """

    metric: str
    points: list[Point]
    twice: Point
    gain: tuple[float, float, float]
    alone: Point | None
    label_party: str
    repeats: int
    held_out: int
    left_out: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def now(self) -> Point:
        return self.points[-1]

    @property
    def words(self) -> list[str]:
        name = {"auc": "AUC", "rmse": "RMSE", "accuracy": "an accuracy of"}[self.metric]
        now, twice = self.now, self.twice
        sentences = [
            f"Trained on {now.rows:,} shared rows, the parties together reach {name} "
            f"{_number(now.score)} ({_number(now.low)} to {_number(now.high)})."
        ]
        if self.alone is not None:
            sentences.append(
                f"{self.label_party} alone, with {self.alone.rows:,} rows of its own, reaches "
                f"{_number(self.alone.score)} ({_number(self.alone.low)} to "
                f"{_number(self.alone.high)})."
            )
        gain, low, high = self.gain
        sentences.append(
            f"Twice as many shared rows would bring it to about {_number(twice.score)} "
            f"({_number(twice.low)} to {_number(twice.high)}): "
            + (
                f"a gain of about {_number(gain)}, in 8 of 10 cases {_number(low)} to "
                f"{_number(high)}."
                if self.worth_it
                else "whether that is a gain cannot be told from these rows."
            )
        )
        if self.metric == "accuracy":
            sentences.append(
                "An AUC cannot be told: a class is too rare to be in the parts that are set aside."
            )
        elif self.left_out:
            sentences.append(
                f"{self.left_out} of {self.left_out + self.repeats} parts that were set aside "
                "lacked a class and do not count."
            )
        return sentences

    @property
    def worth_it(self) -> bool:
        """Whether more shared rows surely bring something."""
        return self.gain[1] > 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self) | {"now": asdict(self.now), "words": self.words}


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.4g}"


class _SomeRows(SplitNetwork):
    """A split network trained on chosen rows, and scored on others of the same segments."""

    chosen: np.ndarray | None = None

    def session(self, segments: Segments, rows: np.ndarray | None = None) -> Session:
        return super().session(segments, self.chosen if rows is None else rows)

    def score(self, segments: Segments, rows: np.ndarray) -> dict[str, float]:
        with self.session_type(self, self.fed, segments, train=False) as session:
            session.run(rows)
            return dict(session.top.metrics(rows))


def learning_curve(
    fed: Federation,
    *,
    label_party: str | None = None,
    sizes: int = 4,
    repeats: int = 8,
    held_out: float = 0.25,
    seconds: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Curve:
    """What the aligned rows are worth, and what twice as many would be.

    sizes: how many numbers of rows are tried, from an eighth of those that are not held out to
    all of them. seconds: about how long it may take on one core; with many rows, fewer are used.
    """
    _check(sizes, repeats, held_out, seconds)
    owner = label_party or fed.label_party
    parties = [name for name in fed.names if fed.roster[name]["features"]]
    usable = _labelled(fed, parties, owner)
    most = _most_rows(seconds, repeats, sizes, len(parties))
    rng = np.random.default_rng([fed.seed, seed, 7])
    if len(usable) > most / (1 - held_out):
        usable = rng.permutation(usable)[: int(most / (1 - held_out))]
    aside = round(held_out * len(usable))
    tried = _sizes(sizes, len(usable) - aside)
    if aside < 2 or len(tried) < 3:
        raise ConfigError(
            f"learning_curve: held_out = {held_out} sets {aside:,} of {len(usable):,} rows aside, "
            f"and trains on {len(usable) - aside:,}. Mend: held_out = 0.25"
        )
    together: list[list[dict[str, float]]] = []
    alone: list[dict[str, float]] = []
    rows_alone = 0
    for repeat in range(repeats):
        held, pool = _in_turn(usable, aside, repeat, [fed.seed, seed])
        together.append([])
        for number, size in enumerate(tried):
            scores = fit_and_score(fed, parties, owner, pool[:size], held, [seed, repeat, number])
            together[repeat].append(scores)
            if progress is not None:
                progress("learning curve", repeat * len(tried) + number + 1, repeats * len(tried))
        if owner in parties:
            scores, rows_alone = _alone(fed, owner, held, most, [seed, repeat])
            alone.append(scores)
    metric, kept = _judged_by(together)
    wider = widening(len(kept), aside / max(1, len(usable) - aside))
    measured = np.array([[each[metric] for each in together[repeat]] for repeat in kept])
    points, twice, gain = read_curve(tried, measured, metric, wider, rng)
    by_itself = np.array([alone[repeat][metric] for repeat in kept]) if alone else None
    return Curve(
        metric,
        points,
        twice,
        gain,
        None if by_itself is None else point_of(rows_alone, by_itself, metric, wider, rng),
        owner,
        len(kept),
        aside,
        repeats - len(kept),
        {"sizes": sizes, "seconds": seconds, "seed": seed},
    )


def _judged_by(told: Sequence[Sequence[dict[str, float]]]) -> tuple[str, list[int]]:
    """The metric, and the repeats that have it: an AUC needs every class among the rows set aside.

    Where half of the repeats or more lack one, accuracy is taken, which needs none.
    """
    everything = list(range(len(told)))
    if "auc" not in told[0][0]:
        return "rmse", everything
    able = [at for at in everything if all(np.isfinite(each["auc"]) for each in told[at])]
    if len(able) >= max(2, len(told) / 2):
        return "auc", able
    return "accuracy", everything


def _sizes(count: int, rows: int) -> list[int]:
    """So many numbers of rows, in equal ratios, up to all of them."""
    least = min(rows, max(LEAST_TRAINED, SMALLEST * rows))
    return sorted({round(each) for each in np.geomspace(least, rows, count)})


def _in_turn(
    rows: np.ndarray, aside: int, repeat: int, seed: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The rows set aside, and the others in an order of their own.

    All rows have had their turn before one has it again.
    """
    turns = max(1, len(rows) // max(1, aside))
    drawn = np.random.default_rng([*seed, 8, repeat // turns]).permutation(rows)
    first = (repeat % turns) * aside
    held, rest = drawn[first : first + aside], np.delete(drawn, np.s_[first : first + aside])
    return np.sort(held), np.random.default_rng([*seed, 9, repeat]).permutation(rest)


def _check(sizes: int, repeats: int, held_out: float, seconds: float) -> None:
    problems = []
    if sizes < 3:
        problems.append(f"sizes must be at least 3, got {sizes}")
    if repeats < 2:
        problems.append(f"repeats must be at least 2, got {repeats}")
    if not 0 < held_out < 1:
        problems.append(f"held_out must be in (0, 1), got {held_out}")
    if not seconds > 0:
        problems.append(f"seconds must be positive, got {seconds}")
    if problems:
        raise ConfigError([f"learning_curve: {each}" for each in problems])


# ---------------------------------------------------------------- training


def _config(rows: int, seed: Sequence[int]) -> SplitConfig:
    batch = next(batch for batch, limit in _BATCHES if rows <= limit)
    number = int(np.random.SeedSequence(list(seed)).generate_state(1)[0] % 2**31)
    # Strong decay and no early stopping: with few rows a held-out fifth of them judges badly.
    return SplitConfig(
        bottom=(32,),
        embedding=16,
        top=(32,),
        epochs=_EPOCHS,
        validation=0.0,
        patience=None,
        seed=number,
        settings=Settings(batch, OptimizerSpec("adam", 3e-3, 3e-2)),
    )


def _network(
    fed: Federation, parties: list[str], owner: str, rows: int, seed: Sequence[int]
) -> _SomeRows:
    config = _config(rows, seed)
    return _SomeRows(fed, parties=parties, label_party=owner, config=config, model=MODEL)


def fit_and_score(
    fed: Federation,
    parties: list[str],
    owner: str,
    rows: np.ndarray,
    held: np.ndarray,
    seed: Sequence[int],
) -> dict[str, float]:
    """Scores on the aligned rows `held`, of a network trained on the aligned rows `rows`."""
    segments = [[ALIGNED, fed.alignment.aligned]]
    network = _network(fed, parties, owner, len(rows), seed)
    network.chosen = np.sort(rows)
    network.fit(segments)
    return network.score(segments, held)


def _alone(
    fed: Federation, owner: str, held: np.ndarray, most: int, seed: Sequence[int]
) -> tuple[dict[str, float], int]:
    """The label party's own columns, on all its labelled rows but the held-out ones."""
    segments = [
        [ALIGNED, fed.alignment.aligned],
        [owner, fed.alignment.unaligned[owner]],
    ]
    network = _network(fed, [owner], owner, most, [*seed, 99])
    with network.session(segments) as session:
        rows = np.setdiff1d(np.union1d(session.train, session.validation), held)
    rows = np.random.default_rng([fed.seed, *seed]).permutation(rows)[:most]
    network = _network(fed, [owner], owner, len(rows), [*seed, 99])
    network.chosen = np.sort(rows)
    network.fit(segments)
    return network.score(segments, held), len(rows)


def _labelled(fed: Federation, parties: list[str], owner: str) -> np.ndarray:
    """The aligned rows that have a label, by their numbers."""
    segments = [[ALIGNED, fed.alignment.aligned]]
    with _network(fed, parties, owner, 100, [0]).session(segments) as session:
        usable = np.union1d(session.train, session.validation)
    if len(usable) < LEAST_ROWS:
        raise DataError(
            f"{len(usable)} aligned rows with a label are too few for a learning curve",
            party=owner,
            mend=f"{LEAST_ROWS} or more of them, or leave the curve out",
        )
    return usable


def _most_rows(seconds: float, repeats: int, sizes: int, parties: int) -> int:
    """So many training rows that all steps together fit the time."""
    steps = seconds * STEPS_A_SECOND * 2 / max(2, parties)
    trained = repeats * _EPOCHS * float(np.geomspace(SMALLEST, 1, sizes).sum())
    most = LEAST_ROWS
    for batch, limit in _BATCHES:
        most = max(most, min(limit, int(steps * batch / trained)))
    return most
