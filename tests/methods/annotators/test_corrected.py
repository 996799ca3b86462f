"""Corrected labels as the labels of a federation, against the votes and the truth."""

from typing import Any

import numpy as np
import pytest

import fedmend as fm
from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, NotFitted, Refused
from fedmend.federation import Policy
from fedmend.methods.annotators.corrected import _likelihood, correct_labels
from fedmend.split.labels import label_likelihood


@pytest.fixture(scope="module")
def fitted(crowd_of):
    crowd = crowd_of(rows=300, rates=(0.3, 0.1, 0.15), missing=0.2, strict=True)
    model = fm.MJ(epochs=1, secure="masks").fit(crowd.fed)
    return crowd, model


def labels_in_order(fed: Any, party: str) -> np.ndarray:
    site = fed.engine.site(party)
    table = site.tables[fed.dataset]
    return table.y.to_numpy(dtype=object)[site.alignments[fed.scope].aligned]


def test_one_party_labels_with_the_corrected_classes(fitted):
    crowd, model = fitted
    done = correct_labels(crowd.fed, model, to="p0")
    assert done.federation.label_parties == ["p0"] and crowd.fed.label_parties != ["p0"]
    now, before = labels_in_order(done.federation, "p0"), labels_in_order(crowd.fed, "p0")
    voted = model.posterior_.sum(1) > 0
    assert now[voted].tolist() == model.corrected_[voted].tolist()
    assert not any(now[~voted]) and 0 < (~voted).sum() < 5
    known = np.array([isinstance(each, str) for each in before])
    assert done.rows == 300 and done.dropped == 0
    assert done.changed == int((known & (before != now)).sum()) > 0
    assert done.filled == int((~known & voted).sum()) > 0
    truth = np.array(["a", "b", "c"])[crowd.truth]
    assert (now == truth).mean() > (before[known] == truth[known]).mean() + 0.05


def test_features_stay_and_labels_of_others_are_no_features(fitted):
    crowd, model = fitted
    done = correct_labels(crowd.fed, model, to="p1", name="other")
    for party, facts in crowd.fed.roster.items():
        assert done.federation.roster[party]["features"] == facts["features"]
    assert done.federation.alignment == crowd.fed.alignment


def test_doubtful_labels_are_left_out_and_what_the_votes_say_is_kept(fitted):
    crowd, model = fitted[0], fm.EM(epochs=1, secure="masks").fit(fitted[0].fed)
    done = correct_labels(crowd.fed, model, to="p0", least=0.9, name="sure")
    sure = model.posterior_.max(1) >= 0.9
    now = labels_in_order(done.federation, "p0")
    assert [each is not None for each in now] == sure.tolist()
    site = crowd.fed.engine.site("p0")
    found = label_likelihood(site, "sure")
    assert found is not None and found.classes == ("a", "b", "c")
    assert label_likelihood(site, "train") is None
    np.testing.assert_allclose(
        found.likelihood[site.alignments["sure"].aligned], by_hand(crowd, model), atol=2e-3
    )


def test_labels_of_a_method_that_knows_no_expertise_are_certain(fitted):
    crowd, model = fitted
    correct_labels(crowd.fed, model, to="p0", name="certain")
    site = crowd.fed.engine.site("p0")
    found = label_likelihood(site, "certain")
    assert found is not None
    rows = found.likelihood[site.alignments["certain"].aligned]
    voted = model.posterior_.sum(1) > 0
    np.testing.assert_array_equal(rows[voted], np.eye(3)[model.posterior_.argmax(1)][voted])
    assert (rows[~voted] == 1).all(), "of a row without votes nothing is known"


def test_own_labels_of_other_rows_count_as_far_as_corrected_ones_were_right():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 500)
    said = np.array(["no", "yes"], object)[annotators(truth, rates=[0.4, 0.05, 0.05], seed=1)]
    ids = np.arange(500)
    bank = Table(ids, {"x": truth + 0.3 * rng.normal(size=500), "y": said[:, 0]}, label="y")
    others = [fm.Party(f"r{k}", Table(ids[:300], {"y": said[:300, k]}, label="y")) for k in (1, 2)]
    fed = fm.Federation(fm.Party("bank", bank), *others, strict=True)
    fm.align(fed)
    model = fm.EM(epochs=1, secure="masks").fit(fed)
    done = correct_labels(fed, model, to="bank").federation
    found = label_likelihood(fed.engine.site("bank"), done.dataset)
    assert found is not None and found.classes == ("no", "yes")
    found = found.of(found.classes)[300:]
    own = np.where(said[300:, 0] == "yes", 1, 0)
    np.testing.assert_array_equal(found.argmax(1), own)
    assert 0.5 < found.min() < 0.85  # 40 % of them are wrong


def test_correcting_spends_no_more_of_the_label_budget(crowd_of):
    crowd = crowd_of(rows=150, strict=True)
    model = fm.EM(epochs=1, secure="masks", label_dp=4.0).fit(crowd.fed)
    correct_labels(crowd.fed, model, to="p0")
    for party, spent in model.privacy_["spent"].items():
        site = crowd.fed.engine.site(party)
        column = site.tables["train"].label
        assert site.labels.spent(column) == spent == 4.0


def by_hand(crowd: Any, model: Any) -> np.ndarray:
    """How likely the votes are under each class, with everybody's votes in one place."""
    votes = np.stack([labels_in_order(crowd.fed, name) for name in model.label_parties_], 1)
    log = np.zeros((len(votes), 3))
    for said in votes.T:
        known = [value is not None and value == value for value in said]
        says = np.stack([said == value for value in "abc"], 1) & np.array(known)[:, None]
        often = model.posterior_.T @ says
        often = (often + 0.01) / (often + 0.01).sum(1, keepdims=True)
        log += says @ np.log(often).T
    return np.exp(log - log.max(1, keepdims=True))


def test_labels_do_not_come_to_other_rows_after_a_new_alignment(crowd_of, tmp_path):
    """As many rows as before, in another order: with that, right labels would become wrong."""
    crowd = crowd_of(rows=120, rates=(0.1, 0.1, 0.15))
    fed, how = crowd.fed, {"secure": "masks", "crossfit": False, "patience": None}
    model = fm.InC(epochs=2, **how).fit(fed)
    model.save(tmp_path / "inc")
    told = model.review_labels()
    assert fm.InC.load(tmp_path / "inc", fed).review_labels() == told
    assert correct_labels(fed, model, to="p1").rows == 120
    assert fm.align(fed, order="secret").aligned == 120
    for kept in (model, fm.InC.load(tmp_path / "inc", fed)):
        for use in (kept.review_labels, lambda kept=kept: correct_labels(fed, kept, to="p1")):
            with pytest.raises(AlignmentError, match="party 'p[01]': .*another order.*Mend: fit"):
                use()
    assert kept.predict_proba(fed).shape == (120, 3), "a network predicts rows in any order"
    right = fm.InC(epochs=2, **how).fit(fed)
    done = correct_labels(fed, right, to="p1")
    assert labels_in_order(done.federation, "p1").tolist() == right.corrected_.tolist()


def test_a_method_of_one_label_learns_from_them(fitted):
    crowd, model = fitted
    done = correct_labels(crowd.fed, model, to="p0", name="learn")
    vfl = fm.VFL(epochs=15, lr=0.01, patience=None).fit(done.federation)
    found = vfl.predict(crowd.fed.on("test"))
    assert (found == np.array(["a", "b", "c"])[crowd.test_truth]).mean() > 0.8


def test_what_cannot_be(fitted):
    crowd, model = fitted
    with pytest.raises(ConfigError, match="to='nobody' is no label party of the model. Mend"):
        correct_labels(crowd.fed, model, to="nobody")
    with pytest.raises(ConfigError, match="least must lie in"):
        correct_labels(crowd.fed, model, least=1.5)
    with pytest.raises(NotFitted):
        correct_labels(crowd.fed, fm.InC())


def test_a_party_that_tells_no_counts_is_told_nothing(crowd_of):
    policy = {"p0": Policy(refuse=["count"])}
    crowd = crowd_of(rows=60, policy=policy, strict=True)
    model = fm.MJ()
    model.posterior_ = np.full((60, 3), 1 / 3)
    model.fed_ = crowd.fed
    model.label_parties_, model.orders_ = ["p0", "p1"], {}
    model.classes_ = np.array(["a", "b", "c"])
    with pytest.raises(Refused, match="p0"):
        correct_labels(crowd.fed, model, to="p0")


def test_labels_learnt_among_the_annotators_serve_a_federation_with_fewer_common_rows():
    """Two parties label all of the bank's rows; the telco knows a tenth of them."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    x = 2 * truth[:, None] + rng.normal(size=(400, 3))
    said = annotators(truth, rates=[0.35, 0.1, 0.1], missing=0.2, seed=1)
    said_words = np.array(["no", "yes", None], object)[said]
    ids = np.arange(400)
    bank = Table(ids, {"x": x[:, 0], "y": said_words[:, 0]}, label="y")
    telco = Table(np.r_[ids[:40], 1000 + ids], {"z": np.r_[x[:40, 1], x[:, 2]]})
    others = [fm.Party(f"r{k}", Table(ids, {"y": said_words[:, k]}, label="y")) for k in (1, 2)]
    fed = fm.Federation(fm.Party("bank", bank), fm.Party("telco", telco), *others, strict=True)
    three, pair = fed.only("bank", "r1", "r2"), fed.only("bank", "telco")
    for view in (three, pair):
        fm.align(view)
    model = fm.InC(epochs=6, batch_size=32, lr=0.02, secure="masks").fit(three)
    done = correct_labels(three, model, to="bank", into=pair)
    assert done.rows == 400 and done.federation.names == ("bank", "telco")
    assert done.federation.alignment == pair.alignment
    labels = fed.engine.site("bank").tables[done.federation.dataset].y.to_numpy(dtype=object)
    assert (labels == np.array(["no", "yes"])[truth]).mean() > 0.9
    assert fm.VFL(epochs=2, batch_size=16).fit(done.federation).network_.label_party == "bank"
    with pytest.raises(ConfigError, match="takes no part"):
        correct_labels(three, model, to="r1", into=pair)


def test_labels_of_other_rows_are_refused():
    ids = np.arange(60)
    votes = np.array(["no", "yes"])[ids % 2]
    bank = Table(ids, {"x": ids * 1.0, "y": votes}, label="y")
    other = Table(ids, {"y": votes}, label="y")
    fed = fm.Federation(
        fm.Party("bank", bank, later=bank.take(ids[:50])), fm.Party("r1", other, later=other)
    )
    for view in (fed, fed.on("later")):
        fm.align(view)
    model = fm.MJ(epochs=1, secure="masks").fit(fed)
    with pytest.raises(DataError, match="bank.*do not list the same rows"):
        correct_labels(fed, model, to="bank", into=fed.on("later"))


def test_of_rows_that_were_corrected_other_classes_are_impossible():
    """A label of the party's own that nobody gave elsewhere: it is no class of the model's."""
    values = np.array(["a", None, "rare", None], dtype=object)
    likelihood = np.array([[0.9, 0.1], [0.5, 0.5]])
    often = np.array([[0.8, 0.2], [0.3, 0.7]])
    found = _likelihood(values, np.array([0, 1]), likelihood, ["a", "b"], often)
    assert found.classes == ("a", "b", "rare")
    assert found.likelihood.tolist() == [
        [0.9, 0.1, 0.0],
        [0.5, 0.5, 0.0],
        [0.0, 0.0, 1.0],
        [1.0, 1.0, 1.0],
    ]


def test_a_model_of_one_partys_labels_corrects_none(fitted):
    crowd, _ = fitted
    clean = fm.Clean(epochs=1, label_party="p0").fit(crowd.fed)
    with pytest.raises(ConfigError, match=r"a Clean corrects no labels. Mend: fm.InC"):
        correct_labels(crowd.fed, clean, to="p0")  # type: ignore[arg-type]
