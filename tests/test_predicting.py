"""Predictions of a finished run for new rows: known to all, to one, or to fewer parties."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.config import load_config
from fedmend.errors import ConfigError, DataError
from fedmend.flow import execute, plan_of
from fedmend.predicting import predict_run
from fedmend.report.record import RunRecord

METHODS = (
    '[[method]]\nname = "local"\nepochs = 2\n\n[[method]]\nname = "absent-partner"\nepochs = 2\n'
)


@pytest.fixture(scope="module")
def finished(make_workshop, tmp_path_factory):
    """A run that all tests predict with, and none changes."""
    workshop = make_workshop(tmp_path_factory.mktemp("finished"))
    workshop.write(METHODS)
    execute(plan_of(load_config(workshop.config)), workshop.run)
    return workshop


@pytest.fixture
def shop(finished, tmp_path):
    rng = np.random.default_rng(1)
    bank = finished.bank.iloc[:30].drop(columns="default")
    bank = bank.assign(customer=np.arange(1, 31), income=rng.normal(size=30))
    telco = finished.telco.iloc[:30].assign(customer=np.arange(11, 41))
    new = {"bank": tmp_path / "bank_new.csv", "telco": tmp_path / "telco_new.csv"}
    bank.to_csv(new["bank"], index=False)
    telco.to_csv(new["telco"], index=False)
    return SimpleNamespace(
        run=finished.run, bank=finished.bank, new=new, out=tmp_path / "predictions"
    )


def read(done):
    return pd.read_csv(done.path).set_index("id")


@pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
def test_every_row_gets_a_prediction_at_the_party_that_knows_it(shop):
    done = predict_run(shop.run, shop.new, shop.out, method="vfl")
    assert [(each.party, each.shared, each.alone) for each in done] == [
        ("bank", 20, 10),
        ("telco", 0, 10),
    ]
    bank, telco = (read(each) for each in done)
    assert list(bank.index) == list(range(1, 31))  # in the order of the table
    assert (bank.loc[11:, "known_to"] == "bank telco").all()
    assert (bank.loc[:10, "known_to"] == "bank").all()
    assert list(telco.index) == list(range(31, 41)) and (telco["known_to"] == "telco").all()
    for each in (bank, telco):
        np.testing.assert_allclose(each["p(no)"] + each["p(yes)"], 1, atol=1e-6)
        assert (each["prediction"] == np.where(each["p(yes)"] > 0.5, "yes", "no")).all()
        assert each["uncertainty"].between(0, 1).all()


@pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
def test_common_rows_get_what_the_model_says_in_python(shop):
    (bank, _) = predict_run(shop.run, shop.new, shop.out, method="vfl")
    tables = {name: fm.read(path, id="customer") for name, path in shop.new.items()}
    fed = fm.Federation(*(fm.Party(name, table) for name, table in tables.items()))
    fm.align(fed)
    expected = fm.VFL.load(shop.run / "model" / "vfl", fed).predict_proba(fed)
    order = tables["bank"].ids[fed.engine.sites["bank"].alignments["train"].aligned]
    found = read(bank).loc[order, ["p(no)", "p(yes)"]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:column .* cells are missing")
def test_a_party_alone_predicts_with_the_absent_one_at_its_mean(shop):
    (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="vfl")
    assert (bank.shared, bank.alone) == (0, 30)
    # the same as a telco all of whose columns are missing
    telco = pd.read_csv(shop.new["telco"]).assign(
        customer=np.arange(1, 31), calls=np.nan, minutes=np.nan
    )
    tables = {
        "bank": fm.read(shop.new["bank"], id="customer"),
        "telco": fm.Table.from_frame(
            telco, id="customer", kinds={"calls": "continuous", "minutes": "continuous"}
        ),
    }
    fed = fm.Federation(*(fm.Party(name, table) for name, table in tables.items()))
    fm.align(fed, mode="same-order")
    loaded = fm.VFL.load(shop.run / "model" / "vfl", fed)
    np.testing.assert_allclose(
        read(bank)[["p(no)", "p(yes)"]], loaded.predict_proba(fed), atol=1e-6
    )


def test_nobody_in_common(shop):
    telco = pd.read_csv(shop.new["telco"]).assign(customer=np.arange(500, 530))
    telco.to_csv(shop.new["telco"], index=False)
    done = predict_run(shop.run, shop.new, shop.out, method="vfl")
    assert [(each.party, each.shared, each.alone) for each in done] == [
        ("bank", 0, 30),
        ("telco", 0, 30),
    ]


@pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
def test_the_best_method_is_taken_by_default(shop):
    done = predict_run(shop.run, shop.new, shop.out)
    assert {each.method for each in done} == {RunRecord.load(shop.run).best().title}


def test_rows_that_still_have_their_label(shop):
    shop.bank.iloc[:30].to_csv(shop.new["bank"], index=False)
    (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    assert "default" not in read(bank).columns


def test_a_party_whose_columns_the_model_does_not_use(shop):
    with pytest.raises(DataError, match="Local uses no column of telco"):
        predict_run(shop.run, {"telco": shop.new["telco"]}, shop.out, method="local")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda shop: {"method": "vlf"}, "no model 'vlf'"),
        (lambda shop: {"tables": {}}, "no rows are given"),
        (lambda shop: {"tables": {"shop": shop.new["bank"]}}, "no party 'shop'"),
        (lambda shop: shop.out.mkdir() or (shop.out / "x").touch() or {}, "is not empty"),
    ],
)
def test_bad_requests(shop, change, problem):
    options = {"tables": shop.new} | change(shop)
    with pytest.raises(ConfigError, match=problem):
        predict_run(shop.run, options.pop("tables"), shop.out, **options)
    assert not list(shop.out.glob("*/*"))


def test_a_missing_column_names_party_and_column(shop):
    pd.read_csv(shop.new["bank"]).drop(columns="income").to_csv(shop.new["bank"], index=False)
    with pytest.raises(DataError, match="income") as caught:
        predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    assert "bank" in str(caught.value)


def run_of(folder, tables, columns, rest):
    """A run of these frames; `columns` is the label line of each party."""
    text = ""
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        text += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{columns[name]}\n'
    config = folder / "federation.toml"
    config.write_text(text + rest)
    execute(plan_of(load_config(config)), folder / "run")
    return folder / "run", {name: folder / f"{name}.csv" for name in tables}


def test_a_regression_has_numbers_only(tmp_path):
    x = np.random.default_rng(0).normal(size=(150, 3))
    bank = pd.DataFrame({"id": np.arange(150), "a": x[:, 0], "y": 3 * x.sum(1) + 10})
    telco = pd.DataFrame({"id": np.arange(150), "b": x[:, 1]})
    run, tables = run_of(
        tmp_path,
        {"bank": bank, "telco": telco},
        {"bank": 'label = "y"', "telco": ""},
        '[[method]]\nname = "vfl"\nepochs = 20\n',
    )
    (done,) = predict_run(run, tables, tmp_path / "out")
    found = pd.read_csv(done.path)
    assert list(found.columns) == ["id", "known_to", "prediction"]
    assert np.corrcoef(found["prediction"], bank["y"])[0, 1] > 0.5


def test_parties_with_the_same_columns_each_get_their_own_rows(tmp_path):
    tables = {}
    for number, name in enumerate(("north", "south")):
        x = np.random.default_rng(number).normal(size=(120, 3))
        frame = pd.DataFrame(x, columns=list("abc"))
        frame.insert(0, "id", 1000 * number + np.arange(120))
        tables[name] = frame.assign(y=np.where(x.sum(1) > 0, "yes", "no"))
    rest = '[run]\nshape = "horizontal"\n[[method]]\nname = "fedavg"\nrounds = 5\nepochs = 1\n'
    run, files = run_of(tmp_path, tables, dict.fromkeys(tables, 'label = "y"'), rest)
    for done in predict_run(run, files, tmp_path / "out"):
        found = pd.read_csv(done.path)
        assert found["id"].tolist() == tables[done.party]["id"].tolist()
        assert (found["prediction"] == tables[done.party]["y"]).mean() > 0.6
