"""Local, VFL and LocalVFL behind the estimator interface."""

from typing import Any

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted, Refused
from fedmend.federation import Alignment, AlignmentCounts, Policy
from fedmend.methods import RISA, SAGE, VFL, FedPSGPUM, InC, Local, LocalVFL
from fedmend.methods.network import SplitEstimator
from fedmend.report.overview import overview
from fedmend.secure.align import align

ALL: list[type[SplitEstimator]] = [Local, VFL, LocalVFL]
SMALL: dict[str, Any] = {"batch_size": 32, "lr": 5e-3, "bottom": (16,), "top": (16,)}
QUICK = SMALL | {"epochs": 12, "refit": False}
BRIEF = SMALL | {"epochs": 1, "validation": 0.0}

all_methods = pytest.mark.parametrize("method", ALL)


@pytest.fixture
def fed(make_fed, make_frame):
    """240 rows at the bank, 100 of them known to telco and shop; 80 two-sided test rows."""
    return make_fed(make_frame(), aligned=100, test=make_frame(80, seed=5))


@pytest.fixture(scope="module")
def fitted(make_fed, make_frame):
    """Each method once, on a federation of its own."""
    found = {}
    for method in ALL:
        fed = make_fed(make_frame(), aligned=100, test=make_frame(80, seed=5))
        model = method(**QUICK)
        assert model.fit(fed) is model
        found[method] = fed, model
    return found


@all_methods
def test_fit_predict_score(method, fitted):
    fed, model = fitted[method]
    test = fed.on("test")
    probabilities = model.predict_proba(test)
    assert probabilities.shape == (80, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert list(model.classes_) == ["no", "yes"]
    predicted = model.predict(test)
    assert set(predicted) <= {"no", "yes"}
    np.testing.assert_array_equal(predicted, model.classes_[probabilities.argmax(1)])

    site = fed.engine.site("bank")
    truth = site.tables["test"].y.to_numpy()[site.alignments["test"].aligned]
    assert model.score(test) == pytest.approx((predicted == truth).mean())
    assert set(model.evaluate(test)) == {"accuracy", "auc", "f1", "log_loss"}
    assert model.score(test) > 0.55
    assert len(model.history_) >= model.best_epoch_ > 0
    # only VFL leaves out the rows that nobody else knows
    orders = [each for each in fed.ledger if each.call == "TopWorker.set_order"]
    assert (int(orders[0].shape) <= 100) == (method is VFL)


def test_local_needs_no_alignment_and_lets_nothing_out(make_fed):
    fed = make_fed(align=False)
    model = Local(**BRIEF).fit(fed)
    assert {entry.receiver for entry in fed.ledger} == {"bank", "telco", "shop", "coordinator"}
    assert fed.ledger.kinds(sender="telco") == {"control", "count"}  # how many rows, no more
    assert fed.ledger.kinds(sender="bank") == {"control", "count", "statistic"}
    assert fed.ledger.kinds(receiver="bank") == {"control"}
    assert model.predict(fed).shape == (240,)


@pytest.mark.parametrize("method", [Local, LocalVFL])
def test_rows_the_others_do_not_know_are_predicted_in_table_order(method, fitted):
    fed, model = fitted[method]
    everyone = model.predict_proba(fed, rows="all")
    assert everyone.shape == (240, 2)
    aligned = fed.engine.site("bank").alignments["train"].aligned
    np.testing.assert_allclose(
        everyone[aligned], model.predict_proba(fed, rows="aligned"), atol=1e-6
    )
    y = fed.engine.site("bank").tables["train"].y.to_numpy()
    assert (model.classes_[everyone.argmax(1)] == y).mean() == model.score(fed, rows="all") > 0.6


def test_a_model_tells_probabilities_doubt_and_who_decided(fitted):
    fed, model = fitted[VFL]
    told = model.predict_table(fed)
    np.testing.assert_allclose(told[["p(no)", "p(yes)"]], model.predict_proba(fed), atol=1e-6)
    assert (told["prediction"] == model.predict(fed)).all()
    assert told["uncertainty"].between(0, 1).all()
    np.testing.assert_allclose(told.filter(like="share(").sum(1), 1, atol=1e-5)
    own = model.predict_table(fed, rows="bank")
    assert (own["share(bank)"] == 1).all() and "share(telco)" not in own
    with pytest.raises(ConfigError, match="known to different parties. Mend: ask for 'aligned'"):
        model.predict_table(fed, rows="all")


@pytest.mark.parametrize("method", [Local, VFL])
def test_regression(method, make_fed, make_frame):
    fed = make_fed(make_frame(300, task="regression"), aligned=200)
    model = method(**QUICK | {"epochs": 6, "lr": 1e-2}).fit(fed)
    predicted = model.predict(fed)
    assert predicted.dtype == np.float64
    assert predicted.mean() == pytest.approx(11.5, abs=1.5)  # the label's own units
    assert model.score(fed) == pytest.approx(model.evaluate(fed)["r2"])
    with pytest.raises(DataError, match="no probabilities"):
        model.predict_proba(fed)


@pytest.mark.parametrize("method", [Local, VFL])
def test_a_cell_far_out_does_not_carry_a_number_away(method, make_fed, make_frame):
    """A network goes on in a straight line: one typing error was worth an R² of -195,000."""
    frame, test = (make_frame(rows, seed, task="regression") for rows, seed in ((300, 0), (60, 1)))
    test.loc[0, "a"] = 1e6
    fed = make_fed(frame, test=test)
    told = method(**QUICK | {"epochs": 6, "lr": 1e-2}).fit(fed).predict(fed.on("test"))
    ends = np.sort(frame["y"])
    assert told.max() == pytest.approx(ends[-10:].mean()) and told.min() >= ends[:10].mean() - 1e-9


def test_integer_labels_come_back_as_integers(make_fed, make_frame):
    frame = make_frame()
    frame["y"] = (frame["y"] == "yes").astype(int) + 3
    model = VFL(**QUICK | {"epochs": 5}).fit(fed := make_fed(frame))
    predicted = model.predict(fed)
    assert set(predicted) == {3, 4} and np.issubdtype(predicted.dtype, np.integer)


# ------------------------------------------------------------------ parameters


def test_a_table_is_no_federation(fitted):
    table = Table([1, 2], {"x": [1.0, 2.0]})
    model = fitted[VFL][1]
    fits = [method().fit for method in (VFL, InC, FedPSGPUM, RISA, SAGE)]
    for call in (*fits, model.predict, model.evaluate, overview, align):
        with pytest.raises(
            DataError, match=r"takes a Federation, not a Table. Mend: fm.Federation"
        ):
            call(table)


def test_wrong_parameters_are_told_at_fit(fed):
    before = len(fed.ledger)
    with pytest.raises(ConfigError, match="epochs must be at least 1, got 0"):
        VFL(epochs=0).fit(fed)
    assert len(fed.ledger) == before
    with pytest.raises(ConfigError, match="label_party='bnk'"):
        VFL(label_party="bnk").fit(fed)


def test_before_fit(fed, tmp_path):
    for use in (VFL().predict, VFL().score, VFL().evaluate):
        with pytest.raises(NotFitted, match=r"call fit\(fed\) first"):
            use(fed)
    with pytest.raises(NotFitted):
        VFL().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_two_label_parties_need_a_choice(make_fed, make_frame):
    frame = make_frame()
    fed = make_fed(frame, columns={"bank": ["a", "b", "y"], "telco": ["c", "d", "y"]})
    with pytest.raises(DataError, match="several parties have labels"):
        VFL(**BRIEF).fit(fed)
    model = VFL(**BRIEF, label_party="telco").fit(fed)
    assert model.network_.label_party == "telco"
    assert "label" not in fed.ledger.kinds()


def test_a_party_with_labels_only(make_fed, make_frame):
    columns = {"bank": ["y"], "telco": ["a", "d"], "shop": ["city"]}
    fed = make_fed(make_frame(), columns=columns, test=make_frame(80, seed=5))
    for method, how in ((VFL, QUICK | {"epochs": 20, "patience": None}), (LocalVFL, BRIEF)):
        model = method(**how).fit(fed)
        assert model.network_.parties == ["telco", "shop"]
        assert model.score(fed.on("test")) > (0.75 if method is VFL else 0.0)
    with pytest.raises(DataError, match=r"'bank': has labels only.*Mend: VFL"):
        Local(**QUICK).fit(fed)


# ------------------------------------------------------------------ policy


def test_metrics_without_predictions(make_fed):
    fed = make_fed(policy_bank=Policy(refuse=frozenset({"prediction"})))
    model = VFL(**QUICK | {"epochs": 5}).fit(fed)
    assert model.score(fed) > 0.6
    with pytest.raises(Refused, match=r"'bank' refused.*'prediction'"):
        model.predict(fed)


# ------------------------------------------------------------------ keeping


@pytest.mark.parametrize("method", [Local, LocalVFL])
def test_save_and_load(method, make_fed, tmp_path):
    fed = make_fed()
    model = method(**BRIEF).fit(fed)
    model.save(tmp_path / "model")
    assert (tmp_path / "model" / "model.json").is_file()
    assert not list(tmp_path.rglob("*.part"))
    fresh = make_fed()
    loaded = method.load(tmp_path / "model", fresh)
    np.testing.assert_array_equal(loaded.predict_proba(fresh), model.predict_proba(fed))
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_


def test_every_party_keeps_its_own_part(make_fed, tmp_path):
    fed = make_fed()
    homes = {name: tmp_path / f"machine-of-{name}" for name in fed.names}
    for name, home in homes.items():
        fed.engine.site(name).home = home
    VFL(**BRIEF).fit(fed).save(tmp_path / "coordinator" / "model")
    for home in homes.values():
        assert (home / "model" / "part.fmw").is_file()
    kept = [path.name for path in (tmp_path / "coordinator" / "model").iterdir()]
    assert kept == ["model.json"]


def test_a_model_moves_to_another_federation(make_fed):
    fed, other = make_fed(), make_fed()
    model = VFL(**BRIEF).fit(fed)
    with pytest.raises(ConfigError, match=r"model\.to\(fed\)"):
        model.predict(other)
    np.testing.assert_array_equal(model.to(other).predict(other), model.predict(fed))


@pytest.mark.daily("VFL", "LocalVFL")
@pytest.mark.parametrize("method", [VFL, LocalVFL, RISA])
def test_of_rows_that_nobody_has_a_column_of_nothing_is_said(make_fed, method):
    columns = {"bank": ["y"], "telco": ["c", "d"], "shop": ["a", "city"]}
    fed = make_fed(aligned=150, columns=columns)
    model = method(**BRIEF).fit(fed)
    assert len(model.predict(fed)) == 150
    with pytest.raises(DataError, match=r"party 'bank': has labels only.* 90 of its rows"):
        model.predict(fed, rows="all")
    whole = make_fed(columns=columns)
    assert len(method(**BRIEF).fit(whole).predict(whole, rows="all")) == 240


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_of_no_rows_there_are_no_predictions(make_fed, make_frame, task):
    fed = make_fed(make_frame(task=task), test=make_frame(5, seed=1, task=task))
    model = VFL(**BRIEF).fit(fed)
    test = fed.on("test")
    for name in fed.names:
        own = fed.engine.site(name).alignments
        own["test"] = Alignment(own["test"].aligned[:0], own["test"].aligned)
    test.note_alignment(AlignmentCounts(0, dict.fromkeys(fed.names, 5)))
    assert model.predict(test).shape == (0,)
    assert len(model.predict_table(test)) == 0
    assert np.isnan(list(model.evaluate(test).values())).all()


def test_moving_a_model_leaves_saved_ones_alone(make_fed, tmp_path):
    """Parties with a home keep what they are given under its name; one called "model" was lost."""
    fed, other = make_fed(), make_fed()
    for each in (fed, other):
        for name in each.names:
            each.engine.site(name).home = tmp_path / name
    VFL(**BRIEF).fit(fed).save(tmp_path / "model")
    kept = {name: (tmp_path / name / "model" / "part.fmw").read_bytes() for name in fed.names}
    second = VFL(**BRIEF | {"seed": 5}).fit(fed)
    np.testing.assert_array_equal(second.to(other).predict(other), second.predict(fed))
    for name, before in kept.items():
        assert (tmp_path / name / "model" / "part.fmw").read_bytes() == before


def test_a_model_is_not_saved_where_a_file_is(fitted, tmp_path):
    _, model = fitted[VFL]
    (tmp_path / "model").write_text("taken")
    with pytest.raises(DataError, match=r"cannot save a model in .*model: .*Mend: name a folder"):
        model.save(tmp_path / "model")


def test_loading_what_is_not_there_or_not_right(make_fed, tmp_path):
    fed = make_fed()
    with pytest.raises(DataError, match=r"cannot read.*model\.json"):
        VFL.load(tmp_path / "nothing", fed)
    VFL(**BRIEF).fit(fed).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"holds a VFL, not a Local. Mend: fm\.VFL\.load"):
        Local.load(tmp_path / "model", fed)
    with pytest.raises(ConfigError, match="'telco', which is not in the federation"):
        VFL.load(tmp_path / "model", fed.only("bank"))
    part = tmp_path / "model" / "telco" / "part.fmw"
    part.write_bytes(part.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"'telco'.*damaged.*truncated"):
        VFL.load(tmp_path / "model", make_fed())
    part.unlink()
    with pytest.raises(DataError, match=r"'telco': cannot read"):
        VFL.load(tmp_path / "model", make_fed())
