"""Labels, from gradients and from a trained bottom: known answers, and none where there is none."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmend.audit.context import NotApplicable
from fedmend.audit.labels_from_bottom import LabelsFromBottom
from fedmend.audit.labels_from_gradients import LabelsFromGradients, _relative_lengths
from fedmend.audit.recorder import BOTTOM, Look, Observations


def observations_of(context, make_values, epochs: int = 3) -> Observations:
    """Batches of 50 rows, `make_values(rows)` for each, at telco."""
    n = len(context.labels)
    seen = Observations("train", n, most=epochs)
    rng = np.random.default_rng(5)
    for _ in range(epochs):
        order = rng.permutation(n)
        for at in range(0, n, 50):
            rows = order[at : at + 50]
            seen.gradients["telco", BOTTOM].append(Look(rows, make_values(rows)))
    return seen


def cross_entropy_gradients(labels: np.ndarray, classes: int, width: int = 8):
    """Of a plain torch network's loss by its input, before it has learnt anything."""
    torch.manual_seed(0)
    top = torch.nn.Sequential(
        torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes)
    )

    def make(rows: np.ndarray) -> np.ndarray:
        inputs = torch.randn(len(rows), width, requires_grad=True)
        F.cross_entropy(top(inputs), torch.from_numpy(labels[rows])).backward()
        return inputs.grad.double().numpy()

    return make


@pytest.mark.parametrize("turned", [False, True])
def test_two_classes_are_told_apart_without_a_single_label(make_context, turned):
    """Whichever of them is the first."""
    context = with_labels(make_context(), turned)
    attack = LabelsFromGradients(
        observations_of(context, cross_entropy_gradients(context.labels, 2))
    )
    direction, norm = attack.run(context)
    assert direction.score > 0.97
    assert direction.grade == "strong"
    assert 0.5 < direction.guess < 0.56  # either side may be either class
    assert norm.guess == 0.5
    assert (direction.known, direction.rows) == (0, 400)
    assert "norm" in norm.from_


def with_labels(context, turned: bool):
    context.__dict__["labels"] = 1 - context.labels if turned else context.labels
    return context


@pytest.mark.parametrize("turned", [False, True])
def test_the_rarer_class_has_longer_gradients(make_context, turned):
    context = with_labels(make_context(), turned)
    rare = int(np.bincount(context.labels).argmin())
    rng = np.random.default_rng(0)

    def lengths(rows: np.ndarray) -> np.ndarray:
        values = rng.normal(size=(len(rows), 40))
        return values * np.where(context.labels[rows] == rare, 3.0, 1.0)[:, None]

    _, norm = LabelsFromGradients(observations_of(context, lengths)).run(context)
    assert norm.score > 0.99


def test_three_classes_are_clustered(make_context):
    context = make_context(task="multiclass")
    attack = LabelsFromGradients(
        observations_of(context, cross_entropy_gradients(context.labels, 3))
    )
    (found,) = attack.run(context)
    assert found.metric == "balanced accuracy"
    assert found.score > 0.9
    assert 1 / 3 < found.guess < 0.45


def test_lengths_are_relative_to_their_look():
    """Gradients shrink as a model learns: a look counts as much as another."""
    first, second = np.array([1.0, 2.0, 4.0]), np.array([0.01, 0.01, 0.04])
    stacked = np.stack([first, second], 1)
    found = _relative_lengths(stacked, np.array([2, 2, 2]))
    assert found == pytest.approx([(0.5 + 1) / 2, (1 + 1) / 2, (2 + 4) / 2])
    missing = _relative_lengths(stacked, np.array([2, 1, 2]))
    assert missing[1] == pytest.approx(1.0)  # its second look is none


def test_of_few_rows_a_matching_of_chance_is_above_one_third(make_context):
    context = make_context(n=60, task="multiclass")
    rng = np.random.default_rng(0)
    noise = observations_of(context, lambda rows: rng.normal(size=(len(rows), 8)))
    (found,) = LabelsFromGradients(noise).run(context)
    assert found.guess > 0.38


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_noise_and_other_peoples_labels_tell_nothing(make_context, task):
    context, rng = make_context(task=task), np.random.default_rng(0)
    other = np.random.default_rng(3).permutation(context.labels)
    shuffled = cross_entropy_gradients(other, 2 if task == "binary" else 3)
    for made in (lambda rows: rng.normal(size=(len(rows), 8)), shuffled):
        for found in LabelsFromGradients(observations_of(context, made)).run(context):
            assert found.grade == "not shown"
            assert found.low <= found.guess <= found.high


def test_what_does_not_apply_says_why(make_context):
    context = make_context()
    with pytest.raises(NotApplicable, match="no gradient"):
        LabelsFromGradients(Observations("train", 400, 3)).run(context)
    few = Observations("train", 400, 3)
    few.gradients["telco", BOTTOM].append(Look(np.arange(5), np.ones((5, 2))))
    with pytest.raises(NotApplicable, match="5 labelled rows"):
        LabelsFromGradients(few).run(context)
    own = Observations("train", 400, 3)
    own.gradients["bank", BOTTOM].append(Look(np.arange(50), np.ones((50, 2))))
    with pytest.raises(NotApplicable, match="have the labels"):
        LabelsFromGradients(own).run(context)
    context.model.classes_ = None
    with pytest.raises(NotApplicable, match="is a number"):
        LabelsFromGradients(few).run(make_number(context))


def make_number(context):
    context.__dict__.pop("labels", None)
    context.__dict__.pop("class_names", None)
    return context


# ---------------------------------------------------------------- from a trained bottom


def with_final(context, values: np.ndarray, party: str = "telco") -> LabelsFromBottom:
    seen = Observations("train", len(values), 1)
    seen.final[party].append(Look(np.arange(len(values)), values))
    return LabelsFromBottom(seen)


def test_a_bottom_that_has_learnt_the_labels_gives_them_away(make_context):
    context = make_context(known_labels=(10,), repeats=3)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 4))
    values[:, 0] += 4 * context.labels
    (found,) = with_final(context, values).run(context)
    assert found.score > 0.95
    assert found.gain_low > 0.1
    assert found.known == 20
    assert found.rows == 380
    assert found.guess < 0.9  # telco's own columns carry some of the signal


@pytest.mark.slow
def test_noise_and_raw_columns_handed_over_gain_nothing(make_context):
    context = make_context(known_labels=(20,), repeats=3, most_rows=300)
    noise = np.random.default_rng(0).normal(size=(400, 4))
    (nothing,) = with_final(context, noise).run(context)
    assert nothing.grade == "not shown"
    assert nothing.gain > -0.1  # it still has its own columns
    assert nothing.rows == 300  # no more are scored than granted
    (found,) = with_final(context, context.columns("telco")).run(context)
    assert abs(found.gain) < 0.02


def test_too_many_examples_are_said_not_drawn(make_context):
    context = make_context(n=60, known_labels=(10, 40), repeats=2)
    found = with_final(context, np.random.default_rng(0).normal(size=(60, 3))).run(context)
    assert [each.known for each in found] == [20]
    assert "40 examples of each class are too many" in context.facts[0]
    context = make_context(n=60, known_labels=(40,), repeats=2)
    with pytest.raises(NotApplicable, match="fewer rows than examples"):
        with_final(context, np.ones((60, 3))).run(context)
    with pytest.raises(NotApplicable, match="trained a bottom"):
        LabelsFromBottom(Observations("train", 60, 1)).run(context)
    with pytest.raises(NotApplicable, match="only parties with labels"):
        with_final(context, np.ones((60, 3)), "bank").run(context)


@pytest.mark.parametrize(("ones", "rows", "enough"), [
    (10, 100, False), (11, 100, True), (15, 39, False), (15, 40, True),
])  # fmt: skip
def test_a_class_must_have_more_rows_than_examples_and_some_are_left_to_score(
    make_context, ones, rows, enough
):
    context = make_context(n=100, known_labels=(10,), repeats=1)
    labels = np.full(100, -1)
    labels[:rows] = np.arange(rows) < ones
    context.__dict__["labels"] = labels
    attack = with_final(context, np.random.default_rng(0).normal(size=(100, 3)))
    if enough:
        assert [each.rows for each in attack.run(context)] == [rows - 20]
    else:
        with pytest.raises(NotApplicable):
            attack.run(context)
