"""Predictions of a finished run for new rows: known to all, to one, or to fewer parties."""

from __future__ import annotations

import errno
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedmend as fm
from fedmend.cli import app
from fedmend.errors import ConfigError, DataError, FedmendError, FedmendWarning
from fedmend.federation.bound import declared
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.report.record import RunRecord
from fedmend.serve import predict_run
from fedmend.serve.serving import PredictServer

METHODS = '[run]\nleave_out = ["report"]\n' + "".join(
    f'[[method]]\nname = "{name}"\nepochs = 2\n' for name in ("local", "local-vfl")
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
    assert (bank["used"] == bank["known_to"]).all()
    np.testing.assert_allclose(bank.loc[11:, ["share(bank)", "share(telco)"]].sum(1), 1, atol=1e-5)
    assert (bank.loc[:10, "share(bank)"] == 1).all()
    assert list(telco.index) == list(range(31, 41)) and (telco["known_to"] == "telco").all()
    for each in (bank, telco):
        np.testing.assert_allclose(each["p(no)"] + each["p(yes)"], 1, atol=1e-6)
        assert (each["prediction"] == np.where(each["p(yes)"] > 0.5, "yes", "no")).all()
        assert each["uncertainty"].between(0, 1).all()
    # Common rows get what the model says in Python.
    tables = {name: fm.read(path, id="customer") for name, path in shop.new.items()}
    fed = fm.Federation(*(fm.Party(name, table) for name, table in tables.items()))
    fm.align(fed)
    expected = fm.VFL.load(shop.run / "model" / "vfl", fed).predict_proba(fed)
    order = tables["bank"].ids[fed.engine.sites["bank"].alignments["train"].aligned]
    np.testing.assert_allclose(bank.loc[order, ["p(no)", "p(yes)"]], expected, atol=1e-6)


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


def test_a_disk_that_takes_nothing_is_told_before_anybody_predicts(shop, monkeypatch):
    shop.out.write_text("in the way")
    rows = f"--with=bank={shop.new['bank']}"
    for more in ([], ["--alone", "bank"]):
        words = ["predict", str(shop.run), rows, "--out", str(shop.out / "deep" / "er"), *more]
        with monkeypatch.context() as patch:
            patch.setattr("fedmend.serve.running.load_model", None)
            found = CliRunner().invoke(app, words).exception
        assert type(found) is FedmendError and found.exit_code == 1
        assert "er cannot be written: Not a directory. Mend: --out another" in str(found)


@pytest.mark.parametrize("alone", [[], ["--alone", "bank"]])
def test_a_disk_that_is_full_when_predictions_are_written(shop, monkeypatch, alone):
    def full(*given, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedmend.serve.predicting.write_frame", full)
    words = ["predict", str(shop.run), f"--with=bank={shop.new['bank']}", "--out", str(shop.out)]
    found = CliRunner().invoke(app, [*words, *alone]).exception
    assert type(found) is FedmendError
    assert "cannot be written: No space left on device. Mend: --out another" in str(found)


def test_a_run_that_is_not_there(shop, tmp_path):
    with pytest.raises(ConfigError, match=f"no such run. Mend: .*the runs there are: {shop.run}"):
        predict_run(shop.run.with_name("federatoin"), shop.new, shop.out)
    with pytest.raises(ConfigError, match="no such run. Mend: .*'fedmend run' makes one"):
        predict_run(tmp_path / "nowhere" / "run", shop.new, shop.out)


def by_local(shop, edit):
    """The predictions of the bank's rows, edited, by the bank's own columns."""
    edit(pd.read_csv(shop.new["bank"])).to_csv(shop.new["bank"], index=False)
    (bank,) = predict_run(shop.run, {"bank": shop.new["bank"]}, shop.out, method="local")
    return read(bank)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda f: f.drop(columns="income"), "'bank'.*'income'.*lack it.*Mend: add it"),
        (lambda f: f.assign(income="much"), "'bank'.*'income'.*'much'.*Mend"),
        (lambda f: f.iloc[:0], "'bank'.*no rows.*Mend"),
        (lambda f: f.assign(customer=1), "'bank'.*Mend"),
        (lambda f: f.drop(columns="customer"), "'bank'.*customer.*Mend"),
        (lambda f: pd.DataFrame(), "'bank'.*Mend"),
    ],
)
def test_bad_rows_name_party_column_value_and_mend(shop, edit, problem):
    with pytest.raises(DataError, match=problem):
        by_local(shop, edit)
    assert not shop.out.exists()


def test_columns_that_nobody_expected_can_hold_anything(shop):
    more = {"seen": "2024-05-01", "score": np.inf, "default": "perhaps"}
    with pytest.warns(FedmendWarning, match="the model knows no 'seen', 'score': not used"):
        found = by_local(shop, lambda f: f.iloc[:1].assign(income=np.nan, **more))
    assert len(found) == 1 and "default" not in found.columns


def test_rows_of_which_the_model_uses_no_column_are_counted(shop):
    done = predict_run(shop.run, shop.new, shop.out, method="local")
    assert [(each.party, each.shared, each.alone, each.skipped) for each in done] == [
        ("bank", 20, 10, 0),
        ("telco", 0, 0, 10),
    ]
    assert done[1].path is None and (read(done[0])["used"] == "bank").all()
    with pytest.raises(DataError, match="Local uses no column of telco"):
        predict_run(shop.run, {"telco": shop.new["telco"]}, shop.out / "more", method="local")


def test_a_party_that_keeps_out_of_small_intersections(shop):
    """Its policy refuses, so that everybody's rows are predicted alone."""
    config = shop.run / "federation.toml"
    before = config.read_text()
    config.write_text(
        before.replace('name = "telco"', 'name = "telco"\npolicy = {min_intersection = 90}')
    )
    try:
        with pytest.warns(FedmendWarning, match="party 'telco' takes part with .min_intersection"):
            done = predict_run(shop.run, shop.new, shop.out, method="vfl")
    finally:
        config.write_text(before)
    assert [(each.shared, each.alone) for each in done] == [(0, 30), (0, 30)]


def test_one_person_known_to_both_is_joined_where_the_parties_agree_to_it(shop):
    for name, ids in (("bank", [1, 11]), ("telco", [11, 40])):
        frame = pd.read_csv(shop.new[name])
        frame[frame["customer"].isin(ids)].to_csv(shop.new[name], index=False)
    with pytest.warns(FedmendWarning, match=r"Mend: min_intersection = 1 in \[party.policy\]"):
        done = predict_run(shop.run, shop.new, shop.out, method="vfl")
    assert [(each.shared, each.alone) for each in done] == [(0, 2), (0, 2)]
    config = shop.run / "federation.toml"
    before = config.read_text()
    config.write_text(re.sub('(name = "(bank|telco)")', r"\1\npolicy.min_intersection = 1", before))
    try:
        done = predict_run(shop.run, shop.new, shop.out / "mended", method="vfl")
    finally:
        config.write_text(before)
    assert [(each.shared, each.alone) for each in done] == [(1, 1), (0, 1)]


def test_parts_that_stayed_at_the_parties_are_told_before_any_file_is_read(shop):
    run = shop.out.with_name("run")
    shutil.copytree(shop.run, run, ignore=shutil.ignore_patterns("part.fmw"))
    rows = {"bank": run / "no such file.csv"}
    with pytest.raises(DataError, match="'bank': keeps its part of the model to itself.* --part"):
        predict_run(run, rows, shop.out, method="vfl")
    with pytest.raises(DataError, match="keeps its part of the model to itself"):
        PredictServer(run, "vfl")


def test_over_machines_answers_stay_where_the_rows_are():
    calls = declared()["predict"].calls["PredictionWorker"]
    assert "write" in calls and "answers" not in calls
