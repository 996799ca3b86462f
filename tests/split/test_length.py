"""How long a training is: enough steps on few rows, held-out rows, refitting, beginning again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.network import EPOCH_STEPS
from fedmend.methods.risa.risa import STEPS_OF_TWO
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import BatchOrder
from fedmend.split.labels import LabelLikelihood, keep_likelihood
from fedmend.split.parts import part_of
from fedmend.split.training import UNJUDGED, SplitNetwork, restarted
from fedmend.split.workers import TopWorker, judges_of

pytestmark = pytest.mark.usefixtures("whole_trainings")

CONFIG = SplitConfig(
    bottom=(8,),
    embedding=4,
    top=(8,),
    epochs=8,
    validation=0.2,
    patience=3,
    refit=True,
    restarts=2,
    settings=Settings(32, OptimizerSpec(lr=1e-2), epoch_steps=5),
)


def network(fed: Any, config: SplitConfig = CONFIG) -> SplitNetwork:
    return SplitNetwork(fed, parties=list(fed.names), label_party="bank", config=config)


def weights(fed: Any, model: SplitNetwork) -> torch.Tensor:
    parts = [part_of(site, model.model) for site in fed.engine.sites.values()]
    halves = [half for part in parts for half in (part.bottom, part.top) if half is not None]
    return torch.cat([v.detach().flatten() for h in halves for v in h.module.state_dict().values()])


@pytest.fixture(scope="module")
def undisturbed(make_fed, whole_trainings):
    """A training that looks at held-out rows and then at all, and on how many it was trained."""
    fed, trained = make_fed(), []
    model = network(fed)
    attempt = model.session

    def watched(*given: Any) -> Any:
        session = attempt(*given)
        order = session._set_order
        session._set_order = lambda: (trained.append(len(session.train)), order())
        return session

    model.session = watched
    return fed, model.fit(segments(fed)), trained


def segments(fed: Any) -> list[list[object]]:
    return [["aligned", fed.alignment.aligned]]


# ---------------------------------------------------------------------------------- steps


def test_an_epoch_of_few_rows_is_several_whole_passes():
    order = BatchOrder(np.arange(100), 32, torch.device("cpu"), least=10)
    order.start(1)
    assert order.sizes == [32, 32, 36] * 4  # four passes; a rest of few rows is in the last batch
    seen = torch.cat([order.next() for _ in order.sizes])
    assert (torch.bincount(seen) == 4).all()
    np.testing.assert_array_equal(order.walked(), np.arange(100))  # a loss tells of each row once
    many = BatchOrder(np.arange(1000), 32, torch.device("cpu"), least=10)
    assert many.sizes == [32] * 30 + [40]


FIXED = {"epochs": 1, "patience": None}


@pytest.mark.daily("model0-20", "model2-20", "model3-10")
@pytest.mark.parametrize(
    ("model", "least"),
    [
        (fm.VFL(**FIXED), EPOCH_STEPS),
        (fm.AbsentPartner(**FIXED), EPOCH_STEPS),
        (fm.RISA(epochs=1, members=1), EPOCH_STEPS),
        (fm.RISA(epochs=1), STEPS_OF_TWO),  # an ensemble, of two classes
    ],
)
def test_every_method_takes_enough_steps_of_a_small_table(model, least, make_fed):
    steps: list[int] = []

    class Counted(model._network_type):
        def session(self, *given: Any, **options: Any) -> Any:
            made = super().session(*given, **options)
            epoch = made.epoch

            def counted(number: int) -> float:
                steps.append(made._batches)
                return float(epoch(number))

            made.epoch = counted
            return made

    model._network_type = Counted
    model.fit(make_fed())
    assert min(steps) >= least
    if least == STEPS_OF_TWO:
        assert max(steps) < EPOCH_STEPS


# ---------------------------------------------------------------------------------- held-out rows


def test_every_class_is_among_the_judges_by_its_share():
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.repeat([0, 1, 2], [500, 60, 20]))
    for _ in range(20):
        held = judges_of(rng.random(580), 0.2, 10, classes)
        counts = np.bincount(classes[held], minlength=3)
        assert counts[1] >= 6 and counts[2] >= 2
        assert counts.sum() <= 0.45 * 580


def test_few_rows_hold_out_more_and_then_train_on_all(undisturbed):
    first, last = undisturbed[2]
    assert 240 * 0.55 < first < 240 * 0.85  # not the fifth that was asked for: 200, or 30 %
    assert last == 240


def test_refitting_is_training_on_all_rows_as_long_as_held_out_rows_chose(make_fed, undisturbed):
    fed, model, _ = undisturbed
    assert 0 < model.best_epoch <= 8
    assert "val_log_loss" in model.history[-1]
    again = make_fed()
    length = replace(CONFIG, refit=False, validation=0.0, epochs=model.best_epoch, restarts=0)
    whole = network(again, length).fit(segments(again))
    assert torch.equal(weights(fed, model), weights(again, whole))


class Killed(Exception):
    """Stands for a process that is ended between two epochs."""


def test_a_refit_is_resumed(make_fed, tmp_path, undisturbed):
    fed, whole, _ = undisturbed

    def kill(stage: str, done: int, total: int, scores: dict[str, float]) -> None:
        if stage == "refit" and done == 2:
            raise Killed

    broken = make_fed()
    with pytest.raises(Killed):
        network(broken).fit(segments(broken), checkpoint=tmp_path, progress=kill)
    assert (tmp_path / "refit" / "training.json").is_file()
    fresh, stages = make_fed(), set[str]()
    resumed = network(fresh).fit(
        segments(fresh),
        checkpoint=tmp_path,
        resume=True,
        progress=lambda stage, *_: stages.add(stage),
    )
    assert stages == {"refit"}
    assert torch.equal(weights(fresh, resumed), weights(fed, whole))
    assert resumed.history == whole.history


def test_too_few_rows_to_hold_out_train_a_fixed_length(make_fed, make_frame):
    fed = make_fed(make_frame(14))
    model = network(fed, replace(CONFIG, epochs=100)).fit(segments(fed))
    assert len(model.history) == UNJUDGED


def test_corrected_labels_are_judged_by_what_was_said(make_fed, make_frame):
    frame = make_frame(200)
    fed = make_fed(frame)
    said = np.where(frame["y"].to_numpy()[:, None] == ["no", "yes"], 0.9, 0.6)
    keep_likelihood(fed.engine.site("bank"), "train", LabelLikelihood(("no", "yes"), said))
    model = network(fed, replace(CONFIG, epochs=1, refit=False)).fit(segments(fed))
    # Whatever p is, -log(p + (1 - p) 2/3) is at most log 1.5; cross-entropy would be near log 2.
    assert 0 < model.history[0]["val_calibrated_loss"] < np.log(1.5)


# ---------------------------------------------------------------------------------- collapse


def test_a_collapse_begins_again_with_other_weights_and_shorter_steps(make_fed, monkeypatch):
    answers, config = iter([True, False]), replace(CONFIG, epochs=3)
    monkeypatch.setattr(TopWorker, "_collapsed", lambda *_: next(answers))
    fed = make_fed()
    model = network(fed, config).fit(segments(fed))
    assert "began again once" in model.notes[0] and "then learnt" in model.notes[0]
    second = restarted(config, 1)
    assert second.seed != config.seed
    assert second.settings.optimizer.lr < config.settings.optimizer.lr
    again = make_fed()
    monkeypatch.undo()
    alone = network(again, second).fit(segments(again))
    assert torch.equal(weights(fed, model), weights(again, alone))
    assert model.config == config  # what was asked for


def test_where_there_is_nothing_to_learn_it_says_so(make_fed, make_frame):
    frame = make_frame(160)
    frame["y"] = np.random.default_rng(1).choice(["no", "yes"], len(frame))
    model = fm.VFL(lr=0.03, patience=1, epochs=3).fit(make_fed(frame))
    assert model.notes_ and "to no avail" in model.notes_[0]


@pytest.mark.slow
def test_a_training_that_diverges_begins_again(make_fed, make_frame):
    frame = make_frame(200)
    frame["a"] *= 1e6  # numbers are standardised: it is the steps that are too long
    fed = make_fed(frame)
    far = replace(CONFIG.settings, optimizer=OptimizerSpec("sgd", lr=30.0))
    losses: list[float] = []
    model = network(fed, replace(CONFIG, settings=far))
    model.fit(segments(fed), progress=lambda *given: losses.append(given[3]["loss"]))
    assert "collapsed" in model.notes[0]
    assert np.isfinite(losses).all()


def test_classes_and_numbers_that_are_learnt_beat_a_constant():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    for y in (np.where(x > 0, "yes", "no"), 3 * x + rng.normal(size=300)):
        fed = fm.Federation(fm.Party("bank", Table(np.arange(300), {"x": x, "y": y}, label="y")))
        assert fm.Local(epochs=5, bottom=(8,), top=(8,)).fit(fed).notes_ == []
