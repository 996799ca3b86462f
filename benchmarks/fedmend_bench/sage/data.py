"""What `fedmend bench sage` trains on, and what the paper says: clients' pools and Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from fedmend.data.crowds import client_names, client_rows
from fedmend.errors import ConfigError
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.rounds import Pool
from fedmend.methods.horizontal.views import ImageViews, TableViews
from fedmend_bench import datasets
from fedmend_bench.harness import paper_rows
from fedmend_bench.sage.simulator import Simulator

__all__ = ["DATASETS", "TENTH", "World", "paper_accuracy", "world_of"]

DATASETS = ("cifar10", "fashion-mnist", "digits")
TENTH = {"cifar10": 500, "fashion-mnist": 600, "digits": 10}
"""Labels of each class, in all: a tenth of them (digits: rather less)."""
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
# The authors test CIFAR-10 under another deviation than they train with.
CIFAR_TEST_STD = (0.2023, 0.1994, 0.2010)
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)


@dataclass(frozen=True)
class World:
    """Clients' pools, the network they train, and test rows."""

    pools: list[Pool]
    net: NetSpec
    test: ImageViews | TableViews
    labels: np.ndarray
    published: ImageViews | None = None
    """The test images as the authors normalise them, where that differs."""

    def on(self, simulator: Simulator) -> World:
        """The same with its test rows where a simulator needs them after every round."""
        published = None if self.published is None else simulator.ready(self.published)
        return replace(self, test=simulator.ready(self.test), published=published)


def world_of(
    dataset: str,
    alpha: float,
    *,
    clients: int,
    labelled: float | int,
    split: str,
    seed: int,
    all_labels: bool = False,
    sheets: Sequence[int] = (1, 2, 3, 4, 5),
    held_out: float = 0.0,
) -> World:
    """A data set dealt out to clients. all_labels: every row keeps its label (FedAvg-SL).

    sheets: the parts of CIFAR-10's training images, 10,000 each. held_out: a share of the training
    rows, which no client gets and which are tested on instead of the test rows.
    """
    if dataset not in DATASETS:
        raise ConfigError(
            f"dataset = {dataset!r} is not one of {', '.join(DATASETS)}. Mend: choose one"
        )
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is a share below 1, got {held_out:g}. Mend: 0.25, say")
    source = _digits(seed) if dataset == "digits" else _pictures(dataset, tuple(sheets))
    views, y = source.views, source.y
    order = np.random.default_rng([seed, 13]).permutation(len(y))
    out, kept = np.split(order, [round(held_out * len(y))])
    pools = _pools(views, y, np.sort(kept), alpha, clients, labelled, split, seed, all_labels)
    classes = int(y.max()) + 1
    if isinstance(views, TableViews):
        net = NetSpec("mlp", classes=classes, numeric=views.numeric.shape[1], hidden=(64,))
        held: ImageViews | TableViews = TableViews(views.numeric[out])
    else:
        net = NetSpec("resnet8", classes=classes, channels=views.images.shape[1])
        held = ImageViews(views.images[out], views.mean, views.std)
    if len(out):
        return World(pools, net, held, y[out])
    return World(pools, net, source.test, source.test_y, source.published)


@dataclass(frozen=True)
class _Source:
    """Rows to be dealt out, and those of the test."""

    views: ImageViews | TableViews
    y: np.ndarray
    test: ImageViews | TableViews
    test_y: np.ndarray
    published: ImageViews | None = None


@lru_cache(maxsize=1)
def _pictures(dataset: str, sheets: tuple[int, ...]) -> _Source:
    """A data set of images; the one used last is kept, for the next run of a plan."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if dataset == "cifar10":
        table, test = datasets.load("cifar10", batches=sheets), datasets.load("cifar10-test")
        mean, std = CIFAR_MEAN, CIFAR_STD
    else:
        table = datasets.load("fashion-mnist")
        test = datasets.load("fashion-mnist", split="test")
        mean, std = FASHION_MEAN, FASHION_STD
    classes, y = np.unique(table.y.to_numpy(), return_inverse=True)
    images = torch.from_numpy(next(iter(table.blocks.values())))
    tested = torch.from_numpy(next(iter(test.blocks.values())))
    return _Source(
        ImageViews(images, mean, std, flip=dataset == "cifar10"),
        y,
        ImageViews(tested, mean, std),
        np.searchsorted(classes, test.y.to_numpy()),
        ImageViews(tested, mean, CIFAR_TEST_STD) if dataset == "cifar10" else None,
    )


def _digits(seed: int) -> _Source:
    """scikit-learn's 8 × 8 digits as a table of 64 columns: seconds on a laptop."""
    table = datasets.load("digits")
    names = table.feature_names
    values = table.frame[names].to_numpy(np.float32)
    y = table.y.to_numpy().astype(np.int64)
    order = np.random.default_rng([seed, 12]).permutation(len(y))
    test, train = order[:450], order[450:]
    spread = values[train].std(0)
    values = (values - values[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    views, tested = (TableViews(torch.from_numpy(values[rows])) for rows in (train, test))
    return _Source(views, y[train], tested, y[test])


def _pools(
    views: ImageViews | TableViews,
    y: np.ndarray,
    kept: np.ndarray,
    alpha: float,
    clients: int,
    labelled: float | int,
    split: str,
    seed: int,
    all_labels: bool,
) -> list[Pool]:
    """The clients' rows of one views object that all of them share, out of those that are kept."""
    dealt = client_rows(y[kept], clients, alpha, labelled=labelled, style=split, seed=seed)
    labels = y.astype(np.int64)
    return [
        Pool(
            views,
            labels,
            labelled=kept[part.all if all_labels else part.labelled],
            unlabelled=kept[part.all],
            truth=labels,
            name=name,
        )
        for name, part in zip(client_names(clients), dealt, strict=True)
    ]


def paper_accuracy(dataset: str, alpha: float) -> dict[str, float]:
    """Table 1 by method, in per cent; empty where the paper has no such column."""
    column = f"{dataset}-{alpha:g}"
    return {row["method"]: float(row[column]) for row in paper_rows("sage") if column in row}
