"""How long networks on annotators' labels are trained: as the votes on held-out rows say."""

from typing import Any

import numpy as np
import pytest
import torch

from fedmend.errors import ResumeError
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators import estimator
from fedmend.methods.annotators.baselines import EM, MJ
from fedmend.methods.annotators.inc import InC

pytestmark = pytest.mark.usefixtures("whole_trainings")
WIDE: dict[str, Any] = {"bottom": (64,), "top": (64,), "lr": 0.01}


def test_the_loss_of_held_out_votes_by_hand():
    predicted = np.array([[0.8, 0.2], [0.5, 0.5]])
    evidence = np.log([[0.9 * 0.7, 0.1 * 0.3], [0.1, 0.6]])
    by_hand = -np.mean(np.log([0.8 * 0.63 + 0.2 * 0.03, 0.5 * 0.1 + 0.5 * 0.6]))
    assert crowds.held_out_loss(predicted, evidence) == pytest.approx(by_hand)


def test_a_loss_is_less_only_by_more_than_its_standard_error():
    rng = np.random.default_rng(0)
    plain = rng.normal(1.0, 0.3, 400)
    spared = rng.normal(0.0, 0.5, 400)
    spared -= spared.mean()
    for gain, clear in ((0.02, False), (0.03, True), (-0.1, False)):  # an error is .025
        assert crowds.clearly_less(plain - spared - gain, than=plain) == clear


@pytest.mark.slow
@pytest.mark.parametrize("method", [EM, MJ])
def test_a_network_stops_before_it_learns_the_errors_by_heart(method, crowd_of):
    crowd = crowd_of(rates=(0.25, 0.3, 0.35), seed=1)
    test = crowd.fed.on("test")
    short = method(**WIDE, epochs=60).fit(crowd.fed)
    long = method(**WIDE, epochs=60, patience=None).fit(
        crowd_of(rates=(0.25, 0.3, 0.35), seed=1).fed
    )
    assert short.best_epoch_ < 60 == long.best_epoch_
    assert len(short.history_) == short.best_epoch_, "trained again on all rows for as long"
    losses = [
        each.evaluate(each.fed_.on("test"), against="p0")["log_loss"] for each in (short, long)
    ]
    assert losses[0] < losses[1]
    assert short.predict_proba(test).shape == (200, 3)


def test_the_loss_that_is_told_is_none_below_zero(crowd_of):
    told = []
    EM(epochs=2).fit(
        crowd_of(rates=(0.1,) * 9, rows=120).fed,  # so many that a class less is summed
        progress=lambda stage, *rest: told.append(rest[2]["val_loss"]) if stage == "length" else 0,
    )
    assert len(told) == 2 and min(told) > 0


def test_a_training_that_collapses_begins_again(crowd_of, monkeypatch):
    tried: list[int] = []
    one = estimator.Trial._one

    def collapsing(self: Any, restarts: int, *args: Any) -> tuple[float, int]:
        tried.append(restarts)
        return (np.inf, 1) if restarts == 0 else one(self, restarts, *args)

    monkeypatch.setattr(estimator.Trial, "_one", collapsing)
    model = EM(**WIDE, epochs=4).fit(crowd_of().fed)
    assert tried == [0, 1]
    assert "It began again once" in model.notes_[0]


@pytest.mark.slow
def test_labels_are_never_worse_explained_than_by_dawid_skene(crowd_of):
    crowd = crowd_of(rates=(0.3, 0.35, 0.4), rows=400)
    inc = InC(**WIDE).fit(crowd.fed)
    votes = EM(epochs=0).fit(crowd.fed)
    right = [(each.posterior_.argmax(1) == crowd.truth).mean() for each in (inc, votes)]
    assert right[0] > right[1] + 0.03
    assert {facts.get("stage") for facts in inc.history_} == {1.0, 2.0, None}


def test_columns_that_say_nothing_leave_dawid_skenes_labels(crowd_of):
    crowd = crowd_of(rates=(0.1, 0.25, 0.35), seed=3)
    for name in crowd.fed.names:
        frame = crowd.fed.engine.site(name).tables["train"].frame
        for column in frame.columns.drop("y"):
            frame[column] = np.random.default_rng(7).normal(size=len(frame))
    inc = InC(**WIDE, epochs=6).fit(crowd.fed)
    votes = EM(epochs=0).fit(crowd.fed)
    np.testing.assert_allclose(inc.posterior_, votes.posterior_, atol=1e-6)


@pytest.mark.parametrize("how", [{}, {"crossfit": False}])
def test_nobody_goes_on_with_other_votes(crowd_of, tmp_path, how):
    """Of a party without columns, which trains nothing of its own."""
    InC(**WIDE, epochs=2, **how).fit(crowd_of(rows=120).fed, checkpoint=tmp_path)
    crowd = crowd_of(rows=120)
    frame = crowd.fed.engine.site("p2").tables["train"].frame
    frame.loc[0, "y"] = "a" if frame.loc[0, "y"] != "a" else "b"
    with pytest.raises(ResumeError, match="Mend: resume with the same ones"):
        InC(**WIDE, epochs=2, **how).fit(crowd.fed, checkpoint=tmp_path, resume=True)


def test_a_chosen_length_survives_a_stop(crowd_of, tmp_path):
    whole = InC(**WIDE, epochs=4).fit(crowd_of(rows=120).fed, checkpoint=tmp_path)
    crowd = crowd_of(rows=120)
    again = InC(**WIDE, epochs=4).fit(crowd.fed, checkpoint=tmp_path, resume=True)
    assert again.best_epoch_ == whole.best_epoch_
    np.testing.assert_array_equal(
        again.predict_proba(crowd.fed.on("test")), whole.predict_proba(whole.fed_.on("test"))
    )


@pytest.mark.parametrize(("method", "believes"), [(InC, False), (EM, False), (MJ, True)])
def test_predictions_are_believed_as_far_as_held_out_votes_say(
    method, believes, crowd_of, tmp_path
):
    """Where it is known how often annotators err: a majority's errors are no truth to judge by."""
    crowd = crowd_of(rates=(0.3, 0.3, 0.35), rows=300)
    model = method(**WIDE, epochs=40, patience=10).fit(crowd.fed)
    test, scaling = crowd.fed.on("test"), model.network_.server.scaling
    told = model.predict_proba(test)
    model.save(tmp_path / "model")
    moved = method.load(tmp_path / "model", crowd_of(rows=300).fed)
    np.testing.assert_allclose(moved.predict_proba(moved.fed_.on("test")), told, atol=1e-6)
    assert (not scaling) == believes
    if not believes:
        usual = scaling["aligned"]
        assert abs(usual.temperature - 1.0) > 0.05
        scaling.clear()
        raw = torch.from_numpy(model.predict_proba(test))
        np.testing.assert_allclose(told, usual.of(raw).numpy(), atol=1e-6)


def test_rows_of_one_party_are_believed_by_their_kind(crowd_of):
    crowd = crowd_of(rates=(0.1, 0.2, 0.3), rows=300)
    scaling = InC(**WIDE, epochs=10).fit(crowd.fed).network_.server.scaling
    assert set(scaling) == {"aligned", *InC(**WIDE, epochs=1).fit(crowd.fed).network_.parties}
