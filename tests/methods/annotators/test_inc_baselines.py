"""Clean, Random, MJ and EM behind the estimator interface."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from tests.methods.annotators.in_the_clear import Known, count_votes

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators.baselines import EM, MJ, Clean, Random
from fedmend.methods.annotators.estimator import CrowdEstimator
from fedmend.methods.annotators.inc import InC

NET: dict[str, Any] = {"bottom": (), "embedding": 4, "top": (), "batch_size": 32, "lr": 0.02}
QUICK: dict[str, Any] = NET | {"epochs": 8, "patience": None, "secure": "masks"}
CROWD: list[type[CrowdEstimator]] = [Random, MJ, EM]


@pytest.mark.daily("EM")
@pytest.mark.parametrize("method", CROWD)
def test_the_estimator_interface(method, crowd_of, tmp_path):
    crowd = crowd_of()
    model = clone(method(**QUICK)).fit(crowd.fed)
    test = crowd.fed.on("test")
    assert model.score(test) > 0.8
    assert model.posterior_.shape == (300, 3)
    assert set(model.review_labels()) == {"p0", "p1", "p2"}
    model.save(tmp_path / "m")
    loaded = method.load(tmp_path / "m", crowd.fed)
    np.testing.assert_array_equal(loaded.predict_proba(test), model.predict_proba(test))
    assert loaded.get_params() == model.get_params()


@pytest.mark.daily("EM")
@pytest.mark.parametrize("method", CROWD)
def test_a_resumed_run_ends_the_same(method, crowd_of, tmp_path):
    undisturbed = method(**QUICK).fit(crowd_of(rows=90).fed)
    method(**QUICK | {"epochs": 3}).fit(crowd_of(rows=90).fed, checkpoint=tmp_path)
    crowd = crowd_of(rows=90)
    resumed = method(**QUICK).fit(crowd.fed, checkpoint=tmp_path, resume=True)
    assert resumed.history_ == undisturbed.history_


@pytest.mark.parametrize("method", [InC, EM, MJ])
def test_a_fit_that_was_stopped_leaves_the_labels_of_the_one_before(method, crowd_of):
    first, other = crowd_of(rows=120).fed, crowd_of(rows=120, seed=5).fed
    model = method(epochs=2).fit(first)
    before, doubted = model.corrected_, model.review_labels()

    def stop(stage: str, *_: Any) -> None:
        if stage in ("length", "train"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(other, progress=stop)
    assert model.corrected_.tolist() == before.tolist()
    assert model.review_labels() == doubted


def test_majority_labels(crowd_of):
    crowd = crowd_of(rates=(0.2, 0.2, 0.2, 0.2), missing=0.3)
    model = MJ(**QUICK | {"epochs": 1}).fit(crowd.fed)
    counts = count_votes(crowd.votes, 3)
    known = counts.sum(1) > 0
    chosen = model.posterior_.argmax(1)[known]
    np.testing.assert_array_equal(counts[known, chosen], counts[known].max(1))
    assert (model.posterior_[~known] == 0).all()


def test_dawid_skene_over_parties_is_dawid_skene(crowd_of):
    crowd = crowd_of(missing=0.1)
    model = EM(**QUICK | {"epochs": 1}).fit(crowd.fed)
    known = Known(crowd.votes)
    posterior, _, iterations = crowds.dawid_skene(count_votes(crowd.votes, 3), known)
    # evidence is summed in fixed point, and weights travel as float32
    np.testing.assert_allclose(model.posterior_, posterior, atol=5e-3)
    assert abs(model.iterations_ - iterations) <= 3
    for matrix, party in zip(known.matrices, crowd.fed.names, strict=True):
        np.testing.assert_allclose(model.expertise_[party], matrix, atol=2e-3)


def test_dawid_skene_keeps_what_it_found_out_about_the_annotators(crowd_of, tmp_path):
    crowd = crowd_of()
    model = EM(**QUICK | {"epochs": 1}).fit(crowd.fed)
    believed = [model.standing_[party]["believed"] for party in crowd.fed.names]
    assert believed == sorted(believed, reverse=True), "rates of error are .1, .25, .35"
    model.save(tmp_path)
    again = EM.load(tmp_path, crowd.fed)
    np.testing.assert_array_equal(again.expertise_["p1"], model.expertise_["p1"])
    assert again.standing_ == model.standing_
    silent = EM(**QUICK | {"epochs": 1}, share_expertise=False).fit(crowd_of().fed)
    assert silent.expertise_ == {}


def test_random_takes_one_party_for_each_batch(crowd_of, monkeypatch):
    from fedmend.split.workers import ServerTop

    crowd = crowd_of()
    seen: list[np.ndarray] = []
    kept = ServerTop.set_targets

    def note(self: ServerTop, targets: np.ndarray) -> None:
        seen.append(targets)
        kept(self, targets)

    monkeypatch.setattr(ServerTop, "set_targets", note)
    Random(**QUICK | {"epochs": 3}).fit(crowd.fed)
    one_hot = np.eye(3)[crowd.votes]  # [n, K, C]
    chosen = set()
    for targets in seen[1:]:
        assert (targets.sum(1) == 1).all()
        agrees = (one_hot * targets[:, None]).sum(2)  # [n, K]
        assert (agrees.max(1) == 1).all()
        chosen.add(targets.tobytes())
    assert len(chosen) == 3  # other parties in every epoch


def test_clean_takes_a_labels_only_party(crowd_of):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    x = y[:, None] * 2.0 + rng.normal(size=(200, 2))
    ids = np.arange(200)
    noisy = np.where(rng.random(200) < 0.4, 1 - y, y)
    parties = [
        Party("a", Table(ids, pd.DataFrame({"u": x[:, 0], "label": noisy}), label="label")),
        Party("b", Table(ids, pd.DataFrame({"v": x[:, 1]}))),
        Party("truth", Table(ids, pd.DataFrame({"label": y}), label="label")),
    ]
    fed = Federation(*parties, strict=True)
    for name in fed.names:
        fed.engine.site(name).alignments["train"] = Alignment(ids, ids[:0])
    fed.note_alignment(AlignmentCounts(200, dict.fromkeys(fed.names, 0)))
    model = Clean(**NET, epochs=20, label_party="truth").fit(fed)
    assert model.network_.parties == ["a", "b"]
    assert (model.predict(fed) == y).mean() > 0.9
    assert model.score(fed) > 0.9


def test_wrong_parameters():
    fed = Federation(Party("a", Table(np.arange(2), {"x": [1.0, 2.0]})))
    with pytest.raises(ConfigError) as caught:
        EM(secure="yes", batch_size=0).fit(fed)
    assert len(caught.value.problems) == 2
