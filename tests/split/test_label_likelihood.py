"""Labels that are believed more or less: what they become, and that training uses it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedmend as fm
from fedmend.data.table import Table
from fedmend.split.labels import (
    LabelLikelihood,
    expected,
    keep_likelihood,
    label_likelihood,
    label_loss,
)


@given(classes=st.integers(2, 6), seed=st.integers(0, 2**32 - 1))
def test_the_gradient_is_that_of_cross_entropy_with_what_is_expected(classes, seed):
    rng = np.random.default_rng(seed)
    likelihood = torch.from_numpy(rng.uniform(size=(30, classes)))
    likelihood[:10] = torch.eye(classes, dtype=torch.float64)[rng.integers(0, classes, 10)]
    one = torch.from_numpy(rng.normal(size=(30, classes))).requires_grad_()
    other = one.detach().clone().requires_grad_()
    label_loss(one, likelihood).sum().backward()
    wanted = expected(other.detach().log_softmax(1), likelihood)
    torch.nn.functional.cross_entropy(other, wanted, reduction="sum").backward()
    assert one.grad is not None and other.grad is not None
    np.testing.assert_allclose(one.grad, other.grad, atol=1e-12)
    np.testing.assert_allclose(wanted.sum(1), 1.0)


def test_a_certain_label_is_cross_entropy_and_an_undecided_one_says_nothing():
    logits = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    classes = torch.arange(8) % 3
    certain = torch.nn.functional.one_hot(classes, 3).double()
    np.testing.assert_allclose(label_loss(logits, certain), label_loss(logits, classes))
    np.testing.assert_allclose(label_loss(logits, torch.ones_like(logits)), 0.0, atol=1e-12)


def test_a_belief_is_read_by_the_classes_of_the_model():
    found = LabelLikelihood(
        ("a", "b", "c"), np.array([[0.2, 0.4, 0.0], [0.0, 0.0, 1.0], [1.0, 0.5, 0.5]])
    )
    np.testing.assert_allclose(found.of(["b", "a"]), [[1.0, 0.5], [1.0, 1.0], [0.5, 1.0]])
    np.testing.assert_allclose(found.of(["c", "d"])[2], [1.0, 0.0])


def sure_dempster(**params: Any) -> Any:
    return fm.RISA(fusion="dempster", members=1, **params | {"validation": 0.2})


def fitted(method, likelihood: Callable | None, epochs: int = 30) -> np.ndarray:
    """200 rows of two classes, 30 % of whose labels are wrong, with what all labellers said."""
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    said = np.where(rng.random(200) < 0.3, 1 - truth, truth)
    x = truth + 0.1 * rng.normal(size=200)
    table = Table(np.arange(200), {"x": x, "y": np.array(["no", "yes"])[said]}, label="y")
    other = Table(np.arange(200), {"z": rng.normal(size=200)})
    fed = fm.Federation(fm.Party("a", table), fm.Party("b", other), strict=True)
    fm.align(fed)
    if likelihood is not None:
        found = LabelLikelihood(("yes", "no"), likelihood(said))
        keep_likelihood(fed.engine.site("a"), "train", found)
    early = {} if method in (fm.RISA, sure_dempster) else {"patience": None}
    model = method(epochs=epochs, batch_size=32, lr=0.01, validation=0.0, **early).fit(fed)
    return model.predict_proba(fed, rows="all")[:, 1]


@pytest.mark.parametrize(
    "method",
    [fm.Local, *(pytest.param(m, marks=pytest.mark.slow) for m in (fm.LocalVFL, sure_dempster))],
)
def test_who_knows_how_often_labels_are_wrong_is_as_sure_as_the_truth_allows(method):
    def as_said(said: np.ndarray) -> np.ndarray:
        return np.where(said[:, None] == [1, 0], 0.7, 0.3)

    taken_at_their_word, weighed = fitted(method, None), fitted(method, as_said)
    truth = np.arange(200) % 2
    assert abs(taken_at_their_word[truth == 1].mean() - 0.7) < 0.1
    assert weighed[truth == 1].mean() > 0.9 > 0.1 > weighed[truth == 0].mean()


def test_full_trust_changes_nothing_but_rounding():
    def certain(said: np.ndarray) -> np.ndarray:
        return (said[:, None] == [1, 0]) * 1.0

    np.testing.assert_allclose(fitted(fm.VFL, None, 5), fitted(fm.VFL, certain, 5), atol=1e-4)


def test_other_tables_have_no_belief():
    fed = fm.Federation(fm.Party("a", Table(np.arange(3), {"x": np.arange(3.0)})))
    assert label_likelihood(fed.engine.site("a"), "train") is None
