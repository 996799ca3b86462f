"""Federations in which several parties label, and err."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy

CLEAR = Policy(allow={"control", "count", "statistic", "embedding", "gradient", "votes", "label"})


@dataclass
class Crowd:
    """A federation, and what only a simulation knows: the truth and every vote."""

    fed: Federation
    truth: np.ndarray
    votes: np.ndarray
    test_truth: np.ndarray


def make_crowd(
    *,
    rows=300,
    test_rows=200,
    classes=("a", "b", "c"),
    rates=(0.1, 0.25, 0.35),
    votes=None,
    missing=0.0,
    featureless=1,
    policy=None,
    seed=0,
    **options,
):
    """Gaussian classes; the last `featureless` annotators have no features, the rest do.

    Every party has its rows in an order of its own.
    """
    rng = np.random.default_rng(seed)
    k = len(classes)
    truth = rng.integers(0, k, rows + test_rows)
    centres = rng.normal(size=(k, 6)) * 1.5
    x = centres[truth] + rng.normal(size=(rows + test_rows, 6))
    if votes is None:
        votes = annotators(truth[:rows], rates=rates, missing=missing, n_classes=k, seed=seed + 1)
    count = votes.shape[1]
    parties, orders = [], {}
    pool = np.array([*classes, None], object)
    for number in range(max(count, 2)):
        name = f"p{number}"
        columns = [f"x{c}" for c in range(6) if c % max(count - featureless, 2) == number]
        order, test_order = rng.permutation(rows), rng.permutation(test_rows)
        orders[name] = (order, test_order)
        frame = pd.DataFrame(x, columns=[f"x{c}" for c in range(6)])[columns]
        train = frame.iloc[order].reset_index(drop=True)
        test = frame.iloc[rows + test_order].reset_index(drop=True)
        train["y"] = pool[votes[order, number]]
        test["y"] = pool[truth[rows + test_order]]
        parties.append(
            Party(
                name,
                Table(order, train, label="y", kinds={"y": "nominal"}),
                test=Table(test_order, test, label="y", kinds={"y": "nominal"}),
                policy=policy.get(name) if isinstance(policy, dict) else policy,
            )
        )
    fed = Federation(*parties, **{"strict": True, "seed": seed} | options)
    for dataset, which in (("train", 0), ("test", 1)):
        for name, pair in orders.items():
            positions = np.argsort(pair[which])
            fed.engine.site(name).alignments[dataset] = Alignment(positions, np.zeros(0, np.int64))
        counts = dict.fromkeys(orders, 0)
        fed.on(dataset).note_alignment(AlignmentCounts((rows, test_rows)[which], counts))
    return Crowd(fed, truth[:rows], votes, truth[rows:])


@pytest.fixture(scope="session")
def crowd_of():
    return make_crowd


@pytest.fixture(scope="session")
def clear():
    """A policy for simulations: labels may leave."""
    return CLEAR
