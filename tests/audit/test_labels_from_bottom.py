"""Labels from a trained bottom: a gain where embeddings know the labels, none where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.audit.labels_from_bottom import LabelsFromBottom, draw_examples
from fedmend.audit.scene import NotApplicable
from fedmend.audit.sightings import Look, Sightings


def with_final(scene, values: np.ndarray, party: str = "telco") -> LabelsFromBottom:
    sightings = Sightings("train", len(values), 1)
    sightings.final[party].append(Look(np.arange(len(values)), values))
    return LabelsFromBottom(sightings)


def test_a_bottom_that_has_learnt_the_labels_gives_them_away(make_scene) -> None:
    scene = make_scene(known_labels=(10,), repeats=3)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 4))
    values[:, 0] += 4 * scene.labels
    (found,) = with_final(scene, values).run(scene)
    assert found.score > 0.95
    assert found.gain_low > 0.1
    assert found.known == 20
    assert found.rows == 380
    assert found.guess < 0.9  # telco's own columns carry some of the signal


def test_a_bottom_of_noise_gains_nothing(make_scene) -> None:
    scene = make_scene(known_labels=(10,), repeats=3)
    noise = np.random.default_rng(0).normal(size=(400, 4))
    (found,) = with_final(scene, noise).run(scene)
    assert found.grade == "not shown"
    assert found.gain > -0.1  # it still has its own columns


def test_raw_columns_handed_over_gain_nothing(make_scene) -> None:
    scene = make_scene(known_labels=(20,), repeats=3)
    (found,) = with_final(scene, scene.columns("telco")).run(scene)
    assert abs(found.gain) < 0.02


def test_too_many_examples_are_said_not_drawn(make_scene) -> None:
    scene = make_scene(n=60, known_labels=(10, 40), repeats=2)
    found = with_final(scene, np.random.default_rng(0).normal(size=(60, 3))).run(scene)
    assert [each.known for each in found] == [20]
    assert "40 examples of each class are too many" in scene.facts[0]
    scene = make_scene(n=60, known_labels=(40,), repeats=2)
    with pytest.raises(NotApplicable, match="fewer rows than examples"):
        with_final(scene, np.ones((60, 3))).run(scene)
    with pytest.raises(NotApplicable, match="trained a bottom"):
        LabelsFromBottom(Sightings("train", 60, 1)).run(scene)


@pytest.mark.parametrize(("ones", "rows", "enough"), [
    (10, 100, False), (11, 100, True), (15, 39, False), (15, 40, True),
])  # fmt: skip
def test_a_class_must_have_more_rows_than_examples_and_some_are_left_to_score(
    make_scene, ones: int, rows: int, enough: bool
) -> None:
    scene = make_scene(n=100, known_labels=(10,), repeats=1)
    labels = np.full(100, -1)
    labels[:rows] = np.arange(rows) < ones
    scene.__dict__["labels"] = labels
    attack = with_final(scene, np.random.default_rng(0).normal(size=(100, 3)))
    if enough:
        assert [each.rows for each in attack.run(scene)] == [rows - 20]
    else:
        with pytest.raises(NotApplicable):
            attack.run(scene)


def test_no_more_rows_are_scored_than_granted(make_scene) -> None:
    scene = make_scene(known_labels=(10,), repeats=1, most_rows=50)
    (found,) = with_final(scene, np.random.default_rng(0).normal(size=(400, 3))).run(scene)
    assert found.rows == 50


def test_a_party_with_labels_infers_none(make_scene) -> None:
    scene = make_scene()
    with pytest.raises(NotApplicable, match="only parties with labels"):
        with_final(scene, np.ones((400, 3)), "bank").run(scene)


def test_examples_are_as_many_of_every_class() -> None:
    labels = np.array([0] * 50 + [1] * 9 + [-1] * 5)
    drawn = draw_examples(labels, 4, 2, np.random.default_rng(0))
    assert np.bincount(labels[drawn]).tolist() == [4, 4]
    assert len(set(drawn)) == 8
