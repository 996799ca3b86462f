"""Labels from gradients: known answers, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmend.audit import labels_from_gradients
from fedmend.audit.labels_from_gradients import LabelsFromGradients, _relative_lengths
from fedmend.audit.scene import NotApplicable
from fedmend.audit.sightings import BOTTOM, Look, Sightings


def sightings_of(scene, make_values, epochs: int = 3) -> Sightings:
    """Batches of 50 rows, `make_values(rows)` for each, at telco."""
    n = len(scene.labels)
    sightings = Sightings("train", n, most=epochs)
    rng = np.random.default_rng(5)
    for _ in range(epochs):
        order = rng.permutation(n)
        for at in range(0, n, 50):
            rows = order[at : at + 50]
            sightings.gradients["telco", BOTTOM].append(Look(rows, make_values(rows)))
    return sightings


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
def test_two_classes_are_told_apart_without_a_single_label(make_scene, turned: bool) -> None:
    """Whichever of them is the first."""
    scene = with_labels(make_scene(), turned)
    attack = LabelsFromGradients(sightings_of(scene, cross_entropy_gradients(scene.labels, 2)))
    direction, norm = attack.run(scene)
    assert direction.score > 0.97
    assert direction.grade == "strong"
    assert 0.5 < direction.guess < 0.56  # either side may be either class
    assert norm.guess == 0.5
    assert (direction.known, direction.rows) == (0, 400)
    assert "norm" in norm.from_


def with_labels(scene, turned: bool):
    scene.__dict__["labels"] = 1 - scene.labels if turned else scene.labels
    return scene


@pytest.mark.parametrize("turned", [False, True])
def test_the_rarer_class_has_longer_gradients(make_scene, turned: bool) -> None:
    scene = with_labels(make_scene(), turned)
    rare = int(np.bincount(scene.labels).argmin())
    rng = np.random.default_rng(0)

    def lengths(rows: np.ndarray) -> np.ndarray:
        values = rng.normal(size=(len(rows), 40))
        return values * np.where(scene.labels[rows] == rare, 3.0, 1.0)[:, None]

    _, norm = LabelsFromGradients(sightings_of(scene, lengths)).run(scene)
    assert norm.score > 0.99


def test_three_classes_are_clustered(make_scene) -> None:
    scene = make_scene(task="multiclass")
    attack = LabelsFromGradients(sightings_of(scene, cross_entropy_gradients(scene.labels, 3)))
    (found,) = attack.run(scene)
    assert found.metric == "balanced accuracy"
    assert found.score > 0.9
    assert 1 / 3 < found.guess < 0.45


def test_lengths_are_relative_to_their_look() -> None:
    """Gradients shrink as a model learns: a look counts as much as another."""
    first, second = np.array([1.0, 2.0, 4.0]), np.array([0.01, 0.01, 0.04])
    stacked = np.stack([first, second], 1)
    found = _relative_lengths(stacked, np.array([2, 2, 2]))
    assert found == pytest.approx([(0.5 + 1) / 2, (1 + 1) / 2, (2 + 4) / 2])
    missing = _relative_lengths(stacked, np.array([2, 1, 2]))
    assert missing[1] == pytest.approx(1.0)  # its second look is none


def test_either_side_of_the_axis_may_be_either_class() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 2
    units = (2 * truth - 1)[:, None] * np.ones(4) + 0.1 * rng.normal(size=(60, 4))
    for said in (truth, 1 - truth):
        scores = LabelsFromGradients._directions(units, 2, said, rng)
        assert scores[said == 1].min() > scores[said == 0].max()


def test_classes_far_apart_are_the_clusters() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 20)
    found = labels_from_gradients.clustered(
        np.eye(3)[truth] + 0.01 * rng.normal(size=(60, 3)), 3, rng
    )
    assert len(set(zip(truth, found, strict=True))) == 3


def test_of_few_rows_a_matching_of_chance_is_above_one_third(make_scene) -> None:
    scene = make_scene(n=60, task="multiclass")
    rng = np.random.default_rng(0)
    noise = sightings_of(scene, lambda rows: rng.normal(size=(len(rows), 8)))
    (found,) = LabelsFromGradients(noise).run(scene)
    assert found.guess > 0.38


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_noise_tells_nothing(make_scene, task: str) -> None:
    scene = make_scene(task=task)
    rng = np.random.default_rng(0)
    noise = sightings_of(scene, lambda rows: rng.normal(size=(len(rows), 8)))
    for found in LabelsFromGradients(noise).run(scene):
        assert found.grade == "not shown"
        assert found.low <= found.guess <= found.high


def test_gradients_of_shuffled_labels_tell_nothing_about_the_true_ones(make_scene) -> None:
    scene = make_scene()
    others = np.random.default_rng(3).permutation(scene.labels)
    attack = LabelsFromGradients(sightings_of(scene, cross_entropy_gradients(others, 2)))
    assert {found.grade for found in attack.run(scene)} == {"not shown"}


def test_what_does_not_apply_says_why(make_scene) -> None:
    scene = make_scene()
    with pytest.raises(NotApplicable, match="no gradient"):
        LabelsFromGradients(Sightings("train", 400, 3)).run(scene)
    few = Sightings("train", 400, 3)
    few.gradients["telco", BOTTOM].append(Look(np.arange(5), np.ones((5, 2))))
    with pytest.raises(NotApplicable, match="5 labelled rows"):
        LabelsFromGradients(few).run(scene)
    own = Sightings("train", 400, 3)
    own.gradients["bank", BOTTOM].append(Look(np.arange(50), np.ones((50, 2))))
    with pytest.raises(NotApplicable, match="have the labels"):
        LabelsFromGradients(own).run(scene)
    scene.model.classes_ = None
    with pytest.raises(NotApplicable, match="is a number"):
        LabelsFromGradients(few).run(make_number(scene))


def make_number(scene):
    scene.__dict__.pop("labels", None)
    scene.__dict__.pop("class_names", None)
    return scene
