"""What overlap is worth: a learning curve on the aligned rows, and where it leads.

A small split network is trained on growing shares of the aligned rows and scored on others that
were set aside, in turns, so that every row is set aside as often as any other. A power law through
the errors, error(n) = floor + a * n^-b (Hestness et al. 2017), says what twice the rows would
bring. Beside it stands what the label party reaches by itself with all its labelled rows, on the
same people. How sure it is comes from drawing repeats and sizes anew (bootstrap), wider because all
repeats draw from the same people (Nadeau and Bengio 2003) and because there are few of them
(Student's t).

The work is bounded by counting training steps beforehand, not by a clock: the same call gives the
same curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedmend._parameters import POSITIVE, Rules, at_least, wrong_values
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import ALIGNED, Segments
from fedmend.split.training import Session, SplitNetwork

Progress = Callable[[str, int, int], None]

SMALLEST_SHARE = 0.125
ROWS_NEEDED = 80
ROWS_TRAINED_ON = 24
MODEL = "preflight-curve"
# Training steps of two parties in a second, on one core of an x86 server (docs/benchmarks.md).
STEPS_A_SECOND = 800
_EPOCHS = 30
_BATCHES = ((32, 1000), (64, 5000), (256, 1_000_000))  # batch size, for so many rows at most
_OVERLAP = 10  # rows that parts of two ways to cut should share; policies ask for 10 by default
_DRAWS = 400
_EXPONENTS = np.linspace(0.1, 1.5, 57)
_FLATTEST = 2 ** -_EXPONENTS[-1]  # of a doubling's gain, what the next one brings at least
_TAIL = 10  # per cent on either side: an interval of 80 %


@dataclass(frozen=True)
class Point:
    """A score at a number of rows, and its 80 % interval."""

    rows: int
    score: float
    low: float
    high: float

    @property
    def words(self) -> str:
        return f"{_number(self.score)} ({_number(self.low)} to {_number(self.high)})"


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
        gain, low, high = map(_number, self.gain)
        sentences = [
            f"Trained on {self.now.rows:,} shared rows, the parties together reach {name} "
            f"{self.now.words}."
        ]
        if self.alone is not None:
            sentences.append(
                f"{self.label_party} alone, with {self.alone.rows:,} rows of its own, reaches "
                f"{self.alone.words}."
            )
        sentences.append(
            f"Twice as many shared rows would bring it to about {self.twice.words}: "
            + (
                f"a gain of about {gain}, in 8 of 10 cases {low} to {high}."
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


class _Unwatched(Session):
    """Asks for no losses: a policy lets out only so much about rows drawn this often, and the
    scores need all of it."""

    def _told_loss(self) -> None:
        return None


class _SomeRows(SplitNetwork):
    """A split network trained on chosen rows, and scored on others of the same segments."""

    session_type = _Unwatched
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
    given = SimpleNamespace(sizes=sizes, repeats=repeats, held_out=held_out, seconds=seconds)
    if problems := wrong_values(given, _RULES):
        raise ConfigError([f"learning_curve: {each}" for each in problems])
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
    wider = _widening(len(kept), aside / max(1, len(usable) - aside))
    measured = np.array([[each[metric] for each in together[repeat]] for repeat in kept])
    points, twice, gain = read_curve(tried, measured, metric, wider, rng)
    by_itself = np.array([alone[repeat][metric] for repeat in kept]) if alone else None
    return Curve(
        metric,
        points,
        twice,
        gain,
        None if by_itself is None else _point(rows_alone, by_itself, metric, wider, rng),
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
    least = min(rows, max(ROWS_TRAINED_ON, SMALLEST_SHARE * rows))
    return sorted({round(each) for each in np.geomspace(least, rows, count)})


def _in_turn(
    rows: np.ndarray, aside: int, repeat: int, seed: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The rows set aside, and the others in an order of their own.

    All rows have had their turn before one has it again. Scores of two ways to cut the same rows
    can be subtracted: a row left over stays so, and few rows are cut in one way only.
    """
    turns = max(1, len(rows) // max(1, aside))
    drawn = np.random.default_rng([*seed, 8, 0]).permutation(rows)
    if repeat >= turns and aside >= _OVERLAP * turns:
        cut = np.isin(rows, drawn[: turns * aside])
        again = np.random.default_rng([*seed, 8, repeat // turns]).permutation(rows[cut])
        drawn = np.concatenate([again, rows[~cut]])
    first = (repeat % turns) * aside
    held, rest = drawn[first : first + aside], np.delete(drawn, np.s_[first : first + aside])
    return np.sort(held), np.random.default_rng([*seed, 9, repeat]).permutation(rest)


_RULES: Rules = {
    "sizes": at_least(3),
    "repeats": at_least(2),
    "held_out": ("in (0, 1)", lambda share: 0 < share < 1),
    "seconds": POSITIVE,
}


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
    network = _SomeRows(fed, parties=parties, label_party=owner, config=_config(rows, seed))
    network.model = MODEL
    return network


def fit_and_score(
    fed: Federation,
    parties: list[str],
    owner: str,
    rows: np.ndarray,
    held: np.ndarray,
    seed: Sequence[int],
    segments: Segments | None = None,
) -> dict[str, float]:
    """Scores on the aligned rows `held`, of a network trained on the rows `rows`.

    segments: of which rows these are the numbers; by default, of the aligned ones.
    """
    segments = segments or [[ALIGNED, fed.alignment.aligned]]
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
    scores = fit_and_score(fed, [owner], owner, rows, held, [*seed, 99], segments)
    return scores, len(rows)


def _labelled(fed: Federation, parties: list[str], owner: str) -> np.ndarray:
    """The aligned rows that have a label, by their numbers."""
    segments = [[ALIGNED, fed.alignment.aligned]]
    with _network(fed, parties, owner, 100, [0]).session(segments) as session:
        usable = np.union1d(session.train, session.validation)
    if len(usable) < ROWS_NEEDED:
        raise DataError(
            f"{len(usable)} aligned rows with a label are too few for a learning curve",
            party=owner,
            mend=f"{ROWS_NEEDED} or more of them, or leave the curve out",
        )
    return usable


def _most_rows(seconds: float, repeats: int, sizes: int, parties: int) -> int:
    """So many training rows that all steps together fit the time."""
    steps = seconds * STEPS_A_SECOND * 2 / max(2, parties)
    trained = repeats * _EPOCHS * float(np.geomspace(SMALLEST_SHARE, 1, sizes).sum())
    most = ROWS_NEEDED
    for batch, limit in _BATCHES:
        most = max(most, min(limit, int(steps * batch / trained)))
    return most


# ---------------------------------------------------------------- where the curve leads


def power_laws(rows: np.ndarray, errors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """floor, a and b of error(n) = floor + a * n^-b, all at least 0, by least squares.

    Of many curves at once. weights: how much each point of each curve counts. **Shape** rows [n],
    errors and weights [m, n] -> [m, 3]
    """
    weights = weights / weights.sum(1, keepdims=True)
    shapes = rows[None, :] ** -_EXPONENTS[:, None]
    mean = (weights * errors).sum(1, keepdims=True)
    middle = weights @ shapes.T
    spread = weights @ (shapes**2).T
    together = (weights * errors) @ shapes.T
    slope = (together - mean * middle) / np.maximum(spread - middle**2, 1e-300)
    level = mean - slope * middle
    # A floor below 0 is set to 0; a curve that rises is taken for a flat one.
    below = level < 0
    level, slope = np.where(below, 0.0, level), np.where(below, together / spread, slope)
    rises = slope < 0
    level, slope = np.where(rises, mean, level), np.where(rises, 0.0, slope)
    fitted = level[:, :, None] + slope[:, :, None] * shapes[None, :, :]
    off = (weights[:, None, :] * (errors[:, None, :] - fitted) ** 2).sum(2)
    best = off.argmin(1)
    at = np.arange(len(errors))
    return np.stack([level[at, best], slope[at, best], _EXPONENTS[best]], axis=1)


def read_curve(
    sizes: Sequence[int], scores: np.ndarray, metric: str, wider: float, rng: np.random.Generator
) -> tuple[list[Point], Point, tuple[float, float, float]]:
    """The measured points, the one at twice the most rows, and the gain between the last two.

    wider: by what factor intervals are. **Shape** scores [repeats, sizes]
    """
    points = [_point(size, scores[:, at], metric, wider, rng) for at, size in enumerate(sizes)]
    errors = scores if metric == "rmse" else 1 - scores
    n = np.array(sizes, dtype=np.float64)
    twice = 2 * n[-1]

    draws = rng.integers(0, len(errors), size=(_DRAWS, len(errors)))
    # Which sizes count how much is drawn too: the law is a guess about the curve's form.
    weights = np.vstack([np.ones(len(n)), rng.exponential(size=(_DRAWS, len(n)))])
    laws = power_laws(n, np.vstack([errors.mean(0), errors[draws].mean(1)]), weights)
    floor, a, b = laws.T
    # The law on both sides, not the last measurement: what lies between is the law's.
    led = np.stack([floor + a * twice**-b, a * (n[-1] ** -b - twice**-b)], axis=1)
    (low, least), (high, most) = _interval(led[0], led[1:], wider)
    error, gain = map(float, led[0])
    # What the last doubling has brought. A learning curve flattens, so that the next one brings no
    # more; and under a power law at least a share of it.
    brought = (errors[:, -2] - errors[:, -1]) * np.log(2) / np.log(n[-1] / n[-2])
    before_low, before_high = _interval(brought.mean(), brought[draws].mean(1), wider)
    bounds = (
        gain,
        max(0.0, min(float(least), _FLATTEST * float(before_low))),
        max(float(most), float(before_high)),
    )
    if metric == "rmse":
        point = Point(int(twice), error, max(0.0, float(low)), float(high))
    else:
        low, high = max(0.0, 1 - float(high)), min(1.0, 1 - float(low))
        point = Point(int(twice), 1 - error, low, high)
    return points, point, bounds


def _point(
    rows: int, scores: np.ndarray, metric: str, wider: float, rng: np.random.Generator
) -> Point:
    """The mean over repeats, and the interval of such means."""
    draws = rng.integers(0, len(scores), size=(_DRAWS, len(scores)))
    low, high = _interval(scores.mean(), scores[draws].mean(1), wider)
    best = np.inf if metric == "rmse" else 1.0
    return Point(int(rows), float(scores.mean()), max(0.0, float(low)), float(min(best, high)))


def _interval(middle: Any, drawn: np.ndarray, wider: float) -> np.ndarray:
    """Both ends of what was drawn around a middle, so much farther apart."""
    ends = np.percentile(drawn, [_TAIL, 100 - _TAIL], axis=0)
    return np.asarray(middle + wider * (ends - middle))


def _widening(repeats: int, ratio: float) -> float:
    """By how much a bootstrap interval of the mean of few dependent repeats is too narrow.

    ratio: rows set aside to rows trained on.
    """
    from scipy import stats  # two seconds of imports that only a curve needs

    free, tail = repeats - 1, 1 - _TAIL / 100
    student = stats.t.ppf(tail, free) / stats.norm.ppf(tail)
    return float(student * np.sqrt(repeats / free) * np.sqrt(1 + repeats * ratio))
