"""Additive evidence: its columns, its optimum against scipy, and the label party's gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.nn import functional as F

from fedmend.learn.nets import Batch
from fedmend.methods.risa.columns import (
    EVERYTHING,
    FARTHEST,
    Columns,
    Ridge,
    Sum,
    likely_shares,
    mixed,
    models_of,
)
from fedmend.split.features import ALIGNED


def rows_of(n: int, seed: int = 0) -> tuple[Batch, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    numeric = torch.randn(n, 3, generator=draw)
    codes = torch.randint(0, 5, (n, 2), generator=draw)
    signal = (numeric[:, 0] > 0) * 2.0 - 1 + (codes[:, 0] == 2) * 2.0
    classes = (signal + torch.randn(n, generator=draw) > 0).long() + (codes[:, 1] == 4)
    return Batch(numeric, codes), classes


# ---------------------------------------------------------------------------------- columns


def test_columns_are_numbers_steps_and_categories():
    rows, _ = rows_of(200)
    few = Batch(torch.tensor([[0.0], [1.0], [1.0], [3.0]]), torch.tensor([[1], [2], [1], [2]]))
    found = Columns.of(few, (4,), few)
    # One number, cut at .5 and 2; of four categories the two that occur.
    wanted = torch.tensor([[0.0, 0, 0, 1, 0], [1, 1, 0, 0, 1], [1, 1, 0, 1, 0], [3, 1, 1, 0, 1]])
    torch.testing.assert_close(found.matrix(few), wanted - wanted.mean(0))
    many = Columns.of(rows, (5, 5), rows)
    assert [len(each) for each in many.cuts] == [9, 9, 9]
    assert many.matrix(rows).shape == (200, 3 + 27 + 10)
    torch.testing.assert_close(many.matrix(rows).mean(0), torch.zeros(40), atol=1e-5, rtol=0)


def test_a_far_number_says_no_more_and_a_rare_category_nothing():
    rows, _ = rows_of(100)
    rows = Batch(rows.numeric, rows.codes.clamp_max(3))
    found = Columns.of(rows, (5, 5), rows)
    far = Batch(torch.full((2, 3), 1e6), torch.full((2, 2), 4))
    matrix = found.matrix(far) + found.centre
    assert float(matrix.max()) == FARTHEST
    assert float(matrix[:, -4:].abs().max()) == 0.0  # a code that no overlapping row has


# ---------------------------------------------------------------------------------- choosing


def test_shares_go_by_the_likelihood_of_rows():
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(400, generator=draw)
    worse = noise + 0.2 + 0.5 * torch.rand(400, generator=draw)
    assert float(likely_shares(torch.stack([noise, worse], 1))[0]) > 0.99
    assert likely_shares(torch.stack([noise, noise], 1)).tolist() == pytest.approx([0.5, 0.5])
    # Twelve rows that differ much tell little: neither choice is certain.
    few = torch.stack([noise[:12] * 4, noise[12:24] * 4], 1)
    assert 0.05 < float(likely_shares(few)[0]) < 0.95
    found = mixed({2.0: noise, 6.0: noise, 20.0: worse})
    assert found == pytest.approx({2.0: 0.5, 6.0: 0.5}, abs=1e-6)


# ---------------------------------------------------------------------------------- learning


def optimum(matrix, y, offset, ridge):
    """The same penalised loss, minimised by scipy; its value and the weights."""
    classes = offset.shape[1]

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(theta, requires_grad=True)
        weights, constant = leaf[:-classes].view(-1, classes), leaf[-classes:]
        sums = offset.double() + matrix.double() @ weights + constant
        lost = F.cross_entropy(sums, y, reduction="sum") + ridge / 2 * weights.square().sum()
        lost = lost + 1e-3 / 2 * constant.square().sum()
        lost.backward()
        assert leaf.grad is not None
        return float(lost.detach()), leaf.grad.numpy()

    start = np.zeros(matrix.shape[1] * classes + classes)
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return float(found.fun), found.x[:-classes].reshape(-1, classes)


def learnt(parts, y, offset, ridges):
    """All parties learn together, through what crosses between them and the label party."""
    unseen = torch.arange(len(y)) % 3
    plan = {name: models_of(ridges, [EVERYTHING]) for name in (ALIGNED, *parts)}
    labels = Sum(y, offset, unseen, plan)
    blocks = [labels.blocks(ALIGNED)] * len(ridges) + [2] * len(ridges)
    ridge = {
        name: Ridge(matrix, ridges * 2, blocks, offset.shape[1]) for name, matrix in parts.items()
    }
    for _ in range(200):
        slopes = labels.gradients({name: each.scores() for name, each in ridge.items()})
        for name, each in ridge.items():
            each.step(slopes[name])
    return labels, ridge


@pytest.mark.parametrize("ridge", [2.0, 50.0])
def test_two_parties_reach_the_optimum_that_one_piece_has(ridge):
    rows, y = rows_of(300)
    matrix = Columns.of(rows, (5, 5), rows).matrix(rows)
    offset = torch.randn(300, 3, generator=torch.Generator().manual_seed(1)) * 0.3
    parts = {"telco": matrix[:, :20], "shop": matrix[:, 20:]}
    _, found = learnt(parts, y, offset, [ridge])
    joined = torch.cat([found[name].weights(0) for name in parts])
    _, wanted = optimum(matrix, y, offset, ridge)
    np.testing.assert_allclose(joined, wanted, atol=0.02)
    _, alone = optimum(parts["shop"], y, torch.zeros_like(offset), ridge)
    np.testing.assert_allclose(found["shop"].weights(1), alone, atol=0.02)


def test_more_columns_than_rows():
    rows, y = rows_of(30)
    matrix = Columns.of(rows, (5, 5), rows).matrix(rows)
    assert matrix.shape[1] > 30
    _, found = learnt({"telco": matrix}, y, torch.zeros(30, 3), [5.0])
    np.testing.assert_allclose(
        found["telco"].weights(0), optimum(matrix, y, torch.zeros(30, 3), 5.0)[1], atol=0.02
    )


@given(seed=st.integers(0, 1000))
def test_gradients_are_those_of_the_loss(seed):
    draw = torch.Generator().manual_seed(seed)
    y, unseen = torch.randint(0, 3, (12,), generator=draw), torch.arange(12) % 2
    offset = torch.randn(12, 3, generator=draw)
    plan = {
        ALIGNED: models_of([2.0, 6.0], [0, 1]),
        "telco": models_of([2.0], [0, 1]),
        "shop": models_of([2.0], [0, 1]),
    }
    labels = Sum(y, offset, unseen, plan)
    scores = {n: torch.randn(12, (4 + 2) * 3, generator=draw) for n in ("telco", "shop")}
    leaves = {name: each.clone().requires_grad_() for name, each in scores.items()}
    seen = {fold: unseen != fold for fold in (0, 1)}
    total = torch.zeros(())
    for number, (fold, _) in enumerate(plan[ALIGNED]):
        cut = slice(3 * number, 3 * number + 3)
        sums = offset + leaves["telco"][:, cut] + leaves["shop"][:, cut]
        total = total + F.cross_entropy(sums[seen[fold]], y[seen[fold]], reduction="sum")
    for name in ("telco", "shop"):
        for number, (fold, _) in enumerate(plan[name]):
            cut = slice(12 + 3 * number, 15 + 3 * number)
            sums = leaves[name][:, cut]
            total = total + F.cross_entropy(sums[seen[fold]], y[seen[fold]], reduction="sum")
    total.backward()
    found = labels.gradients(scores)
    for name, leaf in leaves.items():
        torch.testing.assert_close(found[name], leaf.grad, atol=1e-5, rtol=1e-4)


def test_rows_are_judged_by_models_that_have_not_seen_them():
    y, unseen = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    plan = {name: models_of([2.0, 6.0], [0, 1]) for name in (ALIGNED, "telco")}
    labels = Sum(y, torch.zeros(4, 2), unseen, plan)
    scores = torch.arange(4 * 8 * 2.0).view(4, 8, 2) / 10
    found = labels.losses({"telco": scores.flatten(1)})
    # Models are (0, 2), (0, 6), (1, 2), (1, 6): rows 0 and 1 belong to the first two.
    mine = torch.stack([scores[0, 0], scores[1, 0], scores[2, 2], scores[3, 2]])
    torch.testing.assert_close(found[ALIGNED][2.0], F.cross_entropy(mine, y, reduction="none"))
    last = Sum(y, torch.zeros(4, 2), unseen, {n: models_of([2.0], [0, 1, -1]) for n in plan})
    scores = torch.arange(4 * 6 * 2.0).view(4, 6, 2)
    only = {ALIGNED: {2.0: 1.0}, "telco": {2.0: 1.0}}
    kept = last.unseen_scores({"telco": scores.flatten(1)}, "telco", only)
    torch.testing.assert_close(kept[ALIGNED], torch.stack([scores[i, i // 2] for i in range(4)]))
    torch.testing.assert_close(
        kept["alone"], torch.stack([scores[i, 3 + i // 2] for i in range(4)])
    )
