"""Predictions of a finished run for new rows: known to all, to one, or to fewer parties."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.errors import ConfigError, DataError, FedmendWarning
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.report.record import RunRecord
from fedmend.serve import predict_run
from fedmend.serve.serving import PredictServer

METHODS = """
[[method]]
name = "local"
epochs = 2

[[method]]
name = "local-vfl"
epochs = 2
"""


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
    assert (bank["used"] == bank["known_to"]).all()
    np.testing.assert_allclose(bank.loc[11:, ["share(bank)", "share(telco)"]].sum(1), 1, atol=1e-5)
    assert (bank.loc[:10, "share(bank)"] == 1).all()
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
    (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local-vfl")
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
    loaded = fm.LocalVFL.load(shop.run / "model" / "localvfl", fed)
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


def test_a_run_that_is_not_there(shop, tmp_path):
    with pytest.raises(ConfigError, match=f"no such run. Mend: .*the runs there are: {shop.run}"):
        predict_run(shop.run.with_name("federatoin"), shop.new, shop.out)
    with pytest.raises(ConfigError, match="no such run. Mend: .*'fedmend run' makes one"):
        predict_run(tmp_path / "nowhere" / "run", shop.new, shop.out)


def change(path, edit):
    frame = pd.read_csv(path)
    (edit(frame) if edit(frame) is not None else frame).to_csv(path, index=False)


BAD = [
    (lambda f: f.drop(columns="income"), "'bank'.*'income'.*lack it.*Mend: add it"),
    (lambda f: f.assign(income="much"), "'bank'.*'income'.*'much'.*Mend"),
    (lambda f: f.iloc[:0], "'bank'.*no rows.*Mend"),
    (lambda f: f.assign(customer=1), "'bank'.*Mend"),
    (lambda f: f.drop(columns="customer"), "'bank'.*customer.*Mend"),
]


@pytest.mark.parametrize(("edit", "problem"), BAD)
def test_bad_rows_name_party_column_value_and_mend(shop, edit, problem):
    change(shop.new["bank"], edit)
    with pytest.raises(DataError, match=problem):
        predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    assert not shop.out.exists()


def test_an_empty_file(shop):
    shop.new["bank"].write_text("")
    with pytest.raises(DataError, match="'bank'.*Mend"):
        predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")


def test_categories_never_seen_and_further_columns_are_told(shop):
    change(shop.new["bank"], lambda f: f.assign(job="pilot", shoes=44))
    with pytest.warns(FedmendWarning) as noted:
        (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    told = " ".join(str(each.message) for each in noted)
    assert "'bank'" in told and "'job' has 'pilot' in 30 rows" in told and "'shoes'" in told
    assert len(read(bank)) == 30


def test_columns_that_nobody_expected_can_hold_anything(shop):
    dated = {"seen": "2024-05-01", "score": np.inf, "default": "perhaps"}
    change(shop.new["bank"], lambda f: f.assign(**dated))
    with pytest.warns(FedmendWarning, match="the model knows no 'seen', 'score': not used"):
        (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    assert len(read(bank)) == 30


def test_one_row_with_an_empty_cell(shop):
    change(shop.new["bank"], lambda f: f.iloc[:1].assign(income=np.nan, job="nurse"))
    (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    assert len(read(bank)) == 1


def test_rows_of_which_the_model_uses_no_column_are_counted(shop):
    done = predict_run(shop.run, shop.new, shop.out, method="local")
    assert [(each.party, each.shared, each.alone, each.skipped) for each in done] == [
        ("bank", 20, 10, 0),
        ("telco", 0, 0, 10),
    ]
    assert done[1].path is None and (read(done[0])["used"] == "bank").all()


def test_a_party_that_keeps_out_of_small_intersections(shop):
    """Its policy refuses, so that everybody's rows are predicted alone."""
    config = shop.run / "federation.toml"
    before = config.read_text()
    config.write_text(
        before.replace('name = "telco"', 'name = "telco"\npolicy = {min_intersection = 90}')
    )
    try:
        done = predict_run(shop.run, shop.new, shop.out, method="vfl")
    finally:
        config.write_text(before)
    assert [(each.shared, each.alone) for each in done] == [(0, 30), (0, 30)]


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
    shares = [f"share({name})" for name in ("bank", "telco")]
    assert list(found.columns) == ["id", "known_to", "used", "prediction", *shares]
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


def test_parts_that_stayed_at_the_parties_are_told_before_any_file_is_read(shop):
    run = shop.out.with_name("run")
    shutil.copytree(shop.run, run, ignore=shutil.ignore_patterns("part.fmw"))
    rows = {"bank": run / "no such file.csv"}
    with pytest.raises(DataError, match="'bank': keeps its part of the model to itself.* --part"):
        predict_run(run, rows, shop.out, method="vfl")
    with pytest.raises(DataError, match="keeps its part of the model to itself"):
        PredictServer(run, "vfl")
