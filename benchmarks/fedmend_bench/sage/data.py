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
) -> World:
    """A data set dealt out to clients. all_labels: every row keeps its label (FedAvg-SL).

    sheets: the parts of CIFAR-10's training images, 10,000 each.
    """
    if dataset not in DATASETS:
        raise ConfigError(
            f"dataset = {dataset!r} is not one of {', '.join(DATASETS)}. Mend: choose one"
        )
    if dataset == "digits":
        return _digits(alpha, clients, labelled, split, seed, all_labels)
    pictures = _pictures(dataset, tuple(sheets))
    pools = _pools(pictures.views, pictures.y, alpha, clients, labelled, split, seed, all_labels)
    channels = pictures.views.images.shape[1]
    net = NetSpec(kind="resnet8", classes=int(pictures.y.max()) + 1, channels=channels)
    return World(pools, net, pictures.test, pictures.test_y, pictures.published)


@dataclass(frozen=True)
class _Pictures:
    """Images to be dealt out, and those of the test."""

    views: ImageViews
    y: np.ndarray
    test: ImageViews
    test_y: np.ndarray
    published: ImageViews | None


@lru_cache(maxsize=1)
def _pictures(dataset: str, sheets: tuple[int, ...]) -> _Pictures:
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
    return _Pictures(
        ImageViews(images, mean, std, flip=dataset == "cifar10"),
        y,
        ImageViews(tested, mean, std),
        np.searchsorted(classes, test.y.to_numpy()),
        ImageViews(tested, mean, CIFAR_TEST_STD) if dataset == "cifar10" else None,
    )


def _digits(
    alpha: float, clients: int, labelled: float | int, split: str, seed: int, all_labels: bool
) -> World:
    """scikit-learn's 8 × 8 digits as a table of 64 columns: seconds on a laptop."""
    table = datasets.load("digits")
    names = table.feature_names
    values = table.frame[names].to_numpy(np.float32)
    y = table.y.to_numpy().astype(np.int64)
    order = np.random.default_rng([seed, 12]).permutation(len(y))
    test, train = order[:450], order[450:]
    spread = values[train].std(0)
    values = (values - values[train].mean(0)) / np.where(spread > 0, spread, 1.0)
    views = TableViews(torch.from_numpy(values[train]))
    pools = _pools(views, y[train], alpha, clients, labelled, split, seed, all_labels)
    net = NetSpec("mlp", classes=10, numeric=len(names), hidden=(64,))
    return World(pools, net, TableViews(torch.from_numpy(values[test])), y[test])


def _pools(
    views: ImageViews | TableViews,
    y: np.ndarray,
    alpha: float,
    clients: int,
    labelled: float | int,
    split: str,
    seed: int,
    all_labels: bool,
) -> list[Pool]:
    """The clients' rows of one views object that all of them share."""
    dealt = client_rows(y, clients, alpha, labelled=labelled, style=split, seed=seed)
    labels = y.astype(np.int64)
    return [
        Pool(
            views,
            labels,
            labelled=part.all if all_labels else part.labelled,
            unlabelled=part.all,
            truth=labels,
            name=name,
        )
        for name, part in zip(client_names(clients), dealt, strict=True)
    ]


def paper_accuracy(dataset: str, alpha: float) -> dict[str, float]:
    """Table 1 by method, in per cent; empty where the paper has no such column."""
    column = f"{dataset}-{alpha:g}"
    return {row["method"]: float(row[column]) for row in paper_rows("sage") if column in row}
