"""What is kept of the messages of a split training: whose rows, how often, which lines."""

from typing import Any

import numpy as np
import pytest

from fedmend.audit.recorder import BOTTOM, WEIGHTED_SUMS, Look, Observations, Observed, rehearsal


def call(method: str = "step", scope: str = "train", **changes: Any) -> Observed:
    """A batch of rows 2, 0 that a gradient comes for, and of rows 1, 3 that are embedded next."""
    values: dict[str, Any] = {
        "party": "telco", "worker": "BottomWorker", "handle": "h", "method": method,
        "scope": scope, "given": {"gradient": np.array([[2.0, 0.0], [0.0, 5.0]])},
        "answer": np.array([[1.0], [3.0]]), "kind": "embedding", "before": np.array([2, 0]),
        "after": np.array([1, 3]),
    }  # fmt: skip
    return Observed(**(values | changes))


def test_gradients_are_of_the_batch_before_and_embeddings_of_the_one_after():
    seen = Observations("train", 4, most=3)
    seen.hear(call())
    (gradient,) = seen.gradients["telco", BOTTOM]
    assert gradient.rows.tolist() == [2, 0]
    assert gradient.values.tolist() == [[2.0, 0.0], [0.0, 5.0]]
    (embedding,) = seen.embeddings["telco", BOTTOM]
    assert embedding.rows.tolist() == [1, 3]
    assert embedding.values.tolist() == [[1.0], [3.0]]
    other = Observations("train", 4, most=3)
    other.hear(call(scope="test"))  # a table that is not looked at
    assert not other.gradients and not other.embeddings and not other.unread


def test_no_more_looks_are_kept_than_granted():
    seen = Observations("train", 4, most=2)
    for _ in range(5):
        seen.hear(call())
    assert len(seen.gradients["telco", BOTTOM]) == len(seen.embeddings["telco", BOTTOM]) == 2
    seen.hear(call(before=np.array([1, 3])))  # rows of which nothing was seen yet
    assert len(seen.gradients["telco", BOTTOM]) == 3


def test_once_trained_only_what_the_model_makes_of_all_rows_is_final():
    seen = Observations("train", 3, most=1)
    seen.training = False
    rows = {"rows": np.array([2, 0])}
    seen.hear(call("embed", given=rows, answer=np.array([[2.0], [0.0]])))
    assert seen.final_embeddings("telco") is None  # row 1 is not there yet
    seen.hear(call("embed", given={"rows": np.array([1])}, answer=np.array([[1.0]])))
    assert seen.final_embeddings("telco").tolist() == [[0.0], [1.0], [2.0]]
    seen.hear(call(given={}))
    assert not seen.embeddings


def test_lines_of_rows_that_a_party_lacks_are_left_out():
    """Two aligned rows lead, and one beyond them is not the party's: two lines came."""
    seen = Observations("train", 4, most=3)
    two = np.array([[1.0], [2.0]])
    seen.hear(call(given={}, after=np.array([3, 1, 7]), answer=two))
    (look,) = seen.embeddings["telco", BOTTOM]
    assert look.rows.tolist() == [3, 1]
    assert look.values.tolist() == [[1.0], [2.0]]
    # Where they do not lead nobody can tell whose lines these are.
    seen.hear(call(given={}, after=np.array([7, 3, 1]), answer=two))
    assert len(seen.embeddings["telco", BOTTOM]) == 1
    assert seen.unread == {"BottomWorker.step"}


def test_sums_over_columns_are_kept_apart():
    seen = Observations("train", 4, most=3)
    seen.hear(call("additive_begin", given={"rows": np.array([1, 0])}, kind="control"))
    seen.hear(call("additive_step", given={"gradient": np.ones((2, 1))}, kind="control"))
    assert not seen.gradients[("telco", BOTTOM)]
    (look,) = seen.gradients["telco", WEIGHTED_SUMS]
    assert look.rows.tolist() == [1, 0]


def test_looks_side_by_side_a_row_twice_in_a_batch_counts_once():
    seen = Observations("train", 3, most=2)
    looks = [
        Look(np.array([1, 1, 0]), np.array([[3.0, 4.0], [9.0, 9.0], [0.0, 0.0]])),
        Look(np.array([1]), np.array([[0.0, 2.0]])),
        Look(np.array([1]), np.array([[7.0, 7.0]])),  # one more than is granted
    ]
    stacked, counts = seen.stacked(looks)
    assert counts.tolist() == [1, 2, 0]
    assert stacked[1].tolist() == [3.0, 4.0, 0.0, 2.0]
    units, _ = seen.stacked(looks, unit=True)
    assert units[1] == pytest.approx([0.6, 0.8, 0.0, 1.0])
    assert not units[[0, 2]].any()


def test_what_is_put_into_a_rehearsals_sites_is_not_in_the_others(make_fed):
    fed = make_fed()
    site = fed.engine.site("bank")
    site.state["models"] = {"first": 1}
    copy = rehearsal(fed, []).engine.site("bank")
    assert copy.state["models"] == {"first": 1}
    copy.state["models"]["second"] = 2
    copy.state["other"] = {}
    copy.alignments.clear()
    copy.tables.pop("train")
    assert site.state == {"models": {"first": 1}}
    assert set(site.alignments) == set(site.tables) == {"train"}
