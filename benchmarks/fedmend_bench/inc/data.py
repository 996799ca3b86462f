"""Data of `fedmend bench inc`: rows and columns of several parties, and annotators who err.

Tables are dealt out to four parties, and noise is put on their labels; LabelMe (59 annotators) and
CIFAR-10N (three) have human votes. LabelMe's features are VGG's. CIFAR's are those of one frozen
convolution layer for each half of the picture, its filters the centroids of whitened patches
(Coates, Ng & Lee 2011): nobody's labels take part, and every party computes them from its own half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.data.crowds import annotators
from fedmend.data.encode import LabelEncoder
from fedmend.errors import ConfigError
from fedmend_bench import datasets
from fedmend_bench.harness import paper_rows

PARTIES = 4
SPANS = {
    "low-small": (0.1, 0.2),
    "median-small": (0.3, 0.4),
    "median-large": (0.2, 0.5),
    "high-large": (0.3, 0.6),
}
KINDS = ("symmetric", "pair-flip", "instance")
TABLE_KINDS = KINDS[:2]
"""Those of the tables; "instance" is asked for by name."""
HUMAN = "human"
SPARED = 0.05
"""The error rate of the classes a pair-flipping annotator mostly gets right."""
PAPER_NAMES = {"letter": "Letter", "covertype": "Covtype", "sensorless": "Sensorless"}
PATCH = 6


@dataclass(frozen=True)
class Worlds:
    """Several draws (seeds) of training and test rows, and of votes setting by setting.

    **Shape** train [R, N, F], test [R, M, F], columns in the order of the parties; y_train [R, N];
    votes [R, S, N, K], -1 for none. redrawn: how many draws of votes were thrown away.
    """

    train: Tensor
    test: Tensor
    y_train: np.ndarray
    y_test: np.ndarray
    votes: np.ndarray
    columns: tuple[int, ...]
    classes: int
    redrawn: int = 0


# ---------------------------------------------------------------- tables with noise put on


@dataclass(frozen=True)
class Problem:
    """A table of numbers and its classes."""

    name: str
    features: np.ndarray
    labels: np.ndarray
    classes: int


@lru_cache(maxsize=1)
def load_problem(name: str, rows: int | None = None) -> Problem:
    """A named data set; `rows` keeps a random part of it. Covertype is classes 1 and 2."""
    options = {"classes": (1, 2)} if name == "covertype" else {}
    table = datasets.load(name, **options)
    labels = LabelEncoder("multiclass").fit(table.y, table.schema[str(table.label)])
    features = table.frame[table.feature_names].to_numpy(np.float32)
    kept = _some(len(table), rows)
    return Problem(name, features[kept], labels.transform(table.y)[kept], len(labels.classes_))


def _some(count: int, rows: int | None) -> np.ndarray:
    kept = np.random.default_rng(0).permutation(count)[:rows]
    return kept if rows is not None and rows < count else np.arange(count)


def make_worlds(
    problem: Problem,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    kind: str = "symmetric",
    device: str = "cpu",
    labelled: float = 1.0,
) -> Worlds:
    """Every seed draws its own split (80 % are trained on), its columns' owners, and its votes.

    labelled: the share of rows that each annotator labels.
    """
    n, width = problem.features.shape
    trained = int(0.8 * n)
    train, test, y_train, y_test, votes, redrawn = [], [], [], [], [], 0
    for seed in seeds:
        rng = np.random.default_rng([seed, 11])
        order, columns = rng.permutation(n), rng.permutation(width)
        rows, rest = order[:trained], order[trained:]
        values = problem.features[:, columns]
        scaled = _standardised(values[rows], values[rest])
        train.append(torch.from_numpy(scaled[0]).to(device))
        test.append(torch.from_numpy(scaled[1]).to(device))
        y_train.append(problem.labels[rows])
        y_test.append(problem.labels[rest])
        drawn = [
            draw_votes(y_train[-1], problem.classes, each, kind, seed, scaled[0])
            for each in settings
        ]
        silent = np.random.default_rng([seed, 12]).random((trained, PARTIES)) >= labelled
        votes.append([np.where(silent, -1, said) for said, _ in drawn])
        redrawn += sum(again for _, again in drawn)
    parts = np.array_split(np.arange(width), PARTIES)
    return Worlds(
        torch.stack(train),
        torch.stack(test),
        np.stack(y_train),
        np.stack(y_test),
        np.array(votes),
        tuple(len(part) for part in parts),
        problem.classes,
        redrawn,
    )


def _standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, spread = train.mean(0), train.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    return (train - mean) / spread, (test - mean) / spread


def draw_votes(
    y: np.ndarray,
    classes: int,
    setting: str,
    kind: str,
    seed: int,
    columns: np.ndarray | None = None,
) -> tuple[np.ndarray, int]:
    """Four parties' labels [n, K], and how many draws were thrown away.

    Thrown away are draws in which the parties together are no better than chance: then classes
    swap, whatever the method. Pair-flip: half of the classes are mistaken for the next one at a
    rate of the setting's span, the others at 5 %. Instance: see `_by_row`.
    """
    low, high = SPANS[setting]
    for redrawn in range(1000):
        rng = np.random.default_rng(
            [seed, sorted(SPANS).index(setting), KINDS.index(kind), redrawn]
        )
        rates: list[float | list[float]]
        if kind != "pair-flip":
            rates = list(rng.uniform(low, high, PARTIES))
        else:
            rates = [_flipping(rng, classes, low, high) for _ in range(PARTIES)]
        if kind == "instance":
            assert columns is not None
            votes = _by_row(y, columns, classes, np.array(rates), rng)
        else:
            votes = annotators(
                y, rates=rates, kind=kind, n_classes=classes, seed=int(rng.integers(2**32))
            )
        if (votes == y[:, None]).mean() > 1 / classes:
            return votes, redrawn
    raise ConfigError(f"no draw of {setting} beats chance with {classes} classes")


def _by_row(
    y: np.ndarray, columns: np.ndarray, classes: int, rates: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Errors that depend on the row: some rows are hard for everybody.

    An annotator's rate is multiplied by twice the rank of the row, from 0 to 1, in a direction of
    the columns that all annotators share, so that they err together. What a row is mistaken for
    follows from its columns, at each annotator in another way (after Xia et al. 2020).
    """
    along = columns @ rng.normal(size=columns.shape[1])
    hardness = 2 * along.argsort().argsort() / len(y)
    votes = np.empty((len(y), len(rates)), np.int64)
    for annotator, rate in enumerate(rates):
        scores = columns @ rng.normal(size=(columns.shape[1], classes)) + rng.gumbel(
            size=(len(y), classes)
        )
        scores[np.arange(len(y)), y] = -np.inf
        wrong = rng.random(len(y)) < rate * hardness
        votes[:, annotator] = np.where(wrong, scores.argmax(1), y)
    return votes


def _flipping(rng: np.random.Generator, classes: int, low: float, high: float) -> list[float]:
    rates = np.full(classes, SPARED)
    chosen = rng.permutation(classes)[: classes // 2]
    rates[chosen] = rng.uniform(low, high, len(chosen))
    return rates.tolist()


# ---------------------------------------------------------------- human votes


def human_worlds(
    name: str, seeds: int, device: str, rows: int | None = None, sheets: int | None = None
) -> Worlds:
    """The same rows and votes for every seed, which is another start and order of rows."""
    x, x_test, y, y_test, votes, columns = (
        _labelme() if name == "labelme" else _cifar10n(device, rows, sheets)
    )
    scaled = (torch.from_numpy(each).to(device) for each in _standardised(x, x_test))
    train, test = (each.expand(seeds, -1, -1) for each in scaled)
    y, y_test, votes = (
        np.broadcast_to(each, (seeds, *each.shape)).copy() for each in (y, y_test, votes[None])
    )
    return Worlds(train, test, y, y_test, votes, columns, int(y.max()) + 1)


_Human = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]


def _labelme() -> _Human:
    """1,000 training images, 2.5 votes each; 512 columns over four parties."""
    tables = datasets.load("labelme"), datasets.load("labelme", split="test")
    x, x_test = (table.blocks["features"].astype(np.float32) for table in tables)
    y, y_test = (table.y.to_numpy(np.int64) for table in tables)
    votes = datasets.human_labels("labelme")
    return x, x_test, y, y_test, votes, (128,) * 4


@lru_cache(maxsize=1)
def _cifar10n(device: str, rows: int | None, sheets: int | None, filters: int = 400) -> _Human:
    """50,000 training images with three votes each; left half and right half at two parties.

    sheets: read the first of the five training sheets only, 10,000 images each.
    """
    read = range(1, 1 + (sheets or 5))
    train, test = datasets.load("cifar10", batches=read), datasets.load("cifar10-test")
    votes = datasets.human_labels("cifar10n")[: len(train)]
    y, y_test = train.y.to_numpy(np.int64), test.y.to_numpy(np.int64)
    kept = _some(len(y), rows)
    tested = slice(len(kept) if len(kept) < len(y) else None)
    images, test_images = train.blocks["image"][kept], test.blocks["image"][tested]
    halves = []
    for party, columns in enumerate((slice(0, 16), slice(16, 32))):
        bank = FilterBank(images[..., columns], filters, device, seed=party)
        halves.append([bank.features(each[..., columns]) for each in (images, test_images)])
    x, x_test = (np.concatenate(parts, 1) for parts in zip(*halves, strict=True))
    widths = tuple(half[0].shape[1] for half in halves)
    return x, x_test, y[kept], y_test[tested], votes[kept], widths


class FilterBank:
    """Whitened patch centroids of some images, and their soft responses pooled above and below."""

    def __init__(self, images: np.ndarray, filters: int, device: str, *, seed: int = 0) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        some = torch.randperm(len(images), generator=self.generator)[:4000].numpy()
        patches = self._patches(images[some])
        chosen = torch.randint(len(patches), (40 * filters + 4000,), generator=self.generator)
        patches = patches[chosen.to(patches.device)]
        self.mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self.whiten = vectors @ torch.diag((values + 0.1).rsqrt()) @ vectors.T
        self.centroids = self._kmeans((patches - self.mean) @ self.whiten, filters)

    def _patches(self, images: np.ndarray) -> Tensor:
        """All patches, brightness and contrast evened out. **Shape** [n · places, 3 · 6 · 6]."""
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(self.device).float()
        unfolded = F.unfold(pixels, PATCH).transpose(1, 2).reshape(-1, 3 * PATCH * PATCH)
        unfolded = unfolded - unfolded.mean(1, keepdim=True)
        return unfolded / (unfolded.var(1, keepdim=True) + 10).sqrt()

    def _kmeans(self, points: Tensor, count: int, rounds: int = 20) -> Tensor:
        start = torch.randperm(len(points), generator=self.generator)[:count]
        centres = points[start.to(points.device)]
        for _ in range(rounds):
            nearest = torch.cdist(points, centres).argmin(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, points)
            sizes = torch.bincount(nearest, minlength=count)[:, None]
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        return centres

    def features(self, images: np.ndarray) -> np.ndarray:
        """Responses max(0, mean distance − distance), summed over the upper and lower part."""
        high = images.shape[2] - PATCH + 1
        pooled = []
        for at in range(0, len(images), 500):
            batch = images[at : at + 500]
            points = (self._patches(batch) - self.mean) @ self.whiten
            distance = torch.cdist(points, self.centroids)
            response = F.relu(distance.mean(1, keepdim=True) - distance)
            grid = response.view(len(batch), high, -1, len(self.centroids))
            parts = [grid[:, : high // 2], grid[:, high // 2 :]]
            pooled.append(torch.cat([part.sum((1, 2)) for part in parts], 1).cpu())
        return torch.cat(pooled).numpy()


def paper_table(metric: str, dataset: str, model: str) -> dict[tuple[str, str], float]:
    """The paper's numbers by (method, setting); empty where it has none."""
    same = (metric, PAPER_NAMES.get(dataset), model.upper())
    return {
        (row["method"], setting): float(row[setting])
        for row in paper_rows("inc")
        if (row["metric"], row["dataset"], row["model"]) == same
        for setting in SPANS
    }
