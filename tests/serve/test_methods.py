"""Every method predicts rows that all know, that one knows, and with a partner away or alone."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
from tests.serve.conftest import ANNOTATED, HORIZONTAL, THREE, VERTICAL, people, run_of

from fedmend.cli.running import predict
from fedmend.errors import ConfigError, DataError
from fedmend.methods.registry import METHODS
from fedmend.report.record import RunRecord
from fedmend.serve import predict_alone, predict_run
from fedmend.serve.models import chosen
from fedmend.serve.running import _STAYS, run_config

pytestmark = pytest.mark.filterwarnings(
    "ignore::fedmend.errors.FedmendWarning", "ignore::fedmend.errors.PrivacyWarning"
)
PROBABLE = ["p(no)", "p(yes)", "uncertainty"]


def test_no_method_is_left_out():
    tried = {METHODS[name].class_name for name in (*VERTICAL, *ANNOTATED, *HORIZONTAL)}
    # methods of rounds differ in how they train; what they leave is one kind of model. ImageRISA is
    # RISA with other settings, for parts of pictures, which no CSV file holds. Auto is made of the
    # others (tests/methods/auto)
    rounds = {each.class_name for each in METHODS.values() if each.horizontal}
    assert {each.class_name for each in METHODS.values()} - tried <= {*rounds, "ImageRISA", "Auto"}


def files(folder, **frames):
    found = {}
    for name, frame in frames.items():
        found[name] = folder / f"{name}-new.csv"
        frame.to_csv(found[name], index=False)
    return found


def read(out, party):
    found = pd.read_csv(out / party / "predictions.csv").set_index("id")
    np.testing.assert_allclose(found.filter(like="p(").sum(1), 1, atol=1e-5)
    assert found["uncertainty"].between(0, 1).all()
    shares = found.filter(like="share(")
    if len(shares.columns):
        np.testing.assert_allclose(shares.sum(1), 1, atol=1e-4)
    return found


def alone(run, rows, party, out, method):
    """What one party predicts with its part by itself."""
    predict(run, [f"{party}={rows[party]}"], method, out, alone=party)
    return read(out, party)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    frame = people(60, 9)
    return files(
        tmp_path_factory.mktemp("fresh"),
        bank=frame[["id", "a", "b", "city"]].iloc[:40],
        telco=frame[["id", "c", "d", "e"]].iloc[20:],
    )


@pytest.mark.parametrize("method", VERTICAL)
def test_rows_of_all_of_one_and_alone(vertical, fresh, tmp_path, method):
    """A party by itself says what it says when the others are asked and know nothing of a row."""
    done = predict_run(vertical, fresh, tmp_path / "out", method=method)
    ids = people(60, 9)["id"].tolist()
    bank = read(tmp_path / "out", "bank")
    assert list(bank.index) == ids[:40]
    assert bank["known_to"].tolist() == 20 * ["bank"] + 20 * ["bank telco"]
    by_bank = alone(vertical, fresh, "bank", tmp_path / "bank", method)
    assert list(by_bank.index) == ids[:40] and (by_bank["used"] == "bank").all()
    # The first ones have none of telco's columns, and trees stay with the label party.
    if method in ("local", "local-trees", "boosting"):
        reason = _STAYS.get(method, "uses none of its columns")
        noted = RunRecord.load(vertical).notes
        assert any("telco cannot predict alone: " in each and reason in each for each in noted)
        words = f"'telco': cannot predict alone by {METHODS[method].shown}: .*{reason}.*vfl, risa"
        with pytest.raises(DataError, match=words):
            alone(vertical, fresh, "telco", tmp_path / "telco", method)
    if method in ("local", "local-trees"):
        assert (bank["used"] == "bank").all()
        assert [each.skipped for each in done] == [0, 20]
        return
    assert (bank["used"].iloc[20:] == "bank telco").all()
    telco = read(tmp_path / "out", "telco")
    assert list(telco.index) == ids[40:] and (telco["used"] == "telco").all()
    if method != "random-match":  # which draws a stranger as long as somebody is there
        np.testing.assert_allclose(by_bank[PROBABLE][:20], bank[PROBABLE][:20], atol=1e-5)
    if method != "boosting":
        by_telco = alone(vertical, fresh, "telco", tmp_path / "telco", method)
        assert list(by_telco.index) == ids[20:] and (by_telco["used"] == "telco").all()
        if method != "random-match":
            np.testing.assert_allclose(by_telco[PROBABLE][20:], telco[PROBABLE], atol=1e-5)


def test_alone_needs_no_other_folder(vertical, fresh, tmp_path):
    """Nothing of the coordinator's and nothing of telco's is read."""
    model = chosen(vertical, "vfl")
    shutil.copytree(model.folder / "bank", tmp_path / "kept" / "vfl")
    (bank, _) = run_config(vertical).party
    done = predict_alone(tmp_path / "kept" / "vfl", bank, fresh["bank"], tmp_path / "out")
    assert done.alone == 40 and len(read(tmp_path / "out", "bank")) == 40
    with pytest.raises(ConfigError, match="--alone bank predicts its rows only"):
        given = [f"{party}={rows}" for party, rows in fresh.items()]
        predict(vertical, given, "vfl", tmp_path / "both", alone="bank")


@pytest.mark.parametrize("method", ANNOTATED)
def test_several_annotators(annotated, tmp_path, method):
    frame = people(50, 8)
    rows = files(tmp_path, ward=frame[["id", "a", "b"]].iloc[:30], clinic=frame[["id", "c", "d"]])
    done = predict_run(annotated, rows, tmp_path / "out", method=method)
    counts = {each.party: (each.shared, each.alone) for each in done}
    assert counts == {"ward": (30, 0), "clinic": (0, 20)}
    assert len(read(tmp_path / "out", "ward")) == 30
    by_itself = alone(annotated, rows, "clinic", tmp_path / "alone", method)
    clinic = read(tmp_path / "out", "clinic")
    np.testing.assert_allclose(by_itself["p(yes)"][30:], clinic["p(yes)"], atol=1e-5)


@pytest.mark.parametrize("method", HORIZONTAL)
def test_the_same_columns_of_different_people(horizontal, tmp_path, method):
    rows = files(tmp_path, south=people(30, 7).drop(columns="y"))
    (done,) = predict_run(horizontal, rows, tmp_path / "out", method=method)
    assert (done.party, done.alone) == ("south", 30)
    by_itself = alone(horizontal, rows, "south", tmp_path / "alone", method)
    pd.testing.assert_frame_equal(by_itself, read(tmp_path / "out", "south"), atol=1e-6)


@pytest.mark.parametrize("method", THREE)
def test_three_parties_know_some_of_the_rows_each(three, tmp_path, method):
    frame = people(60, 6)
    rows = files(
        tmp_path,
        bank=frame[["id", "a", "b"]].iloc[:40],
        telco=frame[["id", "c", "d"]].iloc[10:50],
        shop=frame[["id", "e", "city"]].iloc[20:],
    )
    predict_run(three, rows, tmp_path / "out", method=method)
    found = pd.concat([read(tmp_path / "out", name) for name in ("bank", "telco", "shop")])
    ids = frame["id"]
    who = {
        "bank": ids[:10], "bank telco": ids[10:20], "bank telco shop": ids[20:40],
        "telco shop": ids[40:50], "shop": ids[50:],
    }  # fmt: skip
    assert sorted(found.index) == ids.tolist()  # everybody once
    for parties, known in who.items():
        assert (found.loc[known, "known_to"] == parties).all()


def test_one_row_by_a_common_model(horizontal, tmp_path):
    """It is the party's own row: nobody else is told anything of it."""
    rows = files(tmp_path, south=people(30, 7).drop(columns="y").iloc[:1])
    predict_run(horizontal, rows, tmp_path / "out", method="sage")
    by_itself = alone(horizontal, rows, "south", tmp_path / "alone", "sage")
    pd.testing.assert_frame_equal(by_itself, read(tmp_path / "out", "south"), atol=1e-6)


def test_every_method_says_what_its_doubt_is_worth(vertical, horizontal, annotated):
    for run in (vertical, horizontal, annotated):
        for method in RunRecord.load(run).methods:
            worth = method.uncertainty["worth"]
            assert worth["rows"] > 5 and len(worth["deciles"]) == 10, method.title
            # Where votes are the truth, this is said.
            voted = method.uncertainty["against"].startswith("the majority of the labels of ")
            assert voted == (run == annotated)


# ---------------------------------------------------------------- a label party without columns


def test_a_label_party_that_knows_rows_by_their_ids_only(tmp_path):
    frame = people(150, 4)
    registry, ward, lab = frame[["id", "y"]], frame[["id", "a", "b"]], frame[["id", "c"]]
    tables = {"registry": registry, "ward": ward, "lab": lab}
    run = run_of(tmp_path, tables, {"vfl": "epochs = 2"}, predict='alone = ["lab"]')
    rows = files(tmp_path, registry=registry[:15], ward=ward[:20], lab=lab[5:20])
    # Without it those with columns get the predictions.
    given = {name: rows[name] for name in ("ward", "lab")}
    (done,) = predict_run(run, given, tmp_path / "without")
    assert (done.party, done.shared, done.alone) == ("ward", 15, 5)
    assert len(pd.read_csv(done.path)) == 20
    # With its ids the label party does.
    by_party = {each.party: each for each in predict_run(run, rows, tmp_path / "with")}
    assert (by_party["registry"].shared, by_party["ward"].shared) == (15, 5)
    found = pd.read_csv(by_party["registry"].path)
    assert set(found["known_to"]) == {"registry ward lab", "registry ward"}
    assert set(found["used"]) == {"ward lab", "ward"}
    assert len(alone(run, rows, "lab", tmp_path / "lab-only", "vfl")) == 15
    with pytest.raises(DataError, match="'registry'"):
        alone(run, rows, "registry", tmp_path / "none", "vfl")


def test_a_regression_has_numbers_only(tmp_path):
    frame = people(150, 4).assign(y=lambda each: 3 * (each["a"] + each["b"]) + 10)
    tables = {"bank": frame[["id", "a", "y"]], "telco": frame[["id", "b"]]}
    run = run_of(tmp_path, tables, {"vfl": "epochs = 20"})
    (done,) = predict_run(run, files(tmp_path, **tables), tmp_path / "out")
    found = pd.read_csv(done.path)
    shares = [f"share({name})" for name in ("bank", "telco")]
    assert list(found.columns) == ["id", "known_to", "used", "prediction", *shares]
    assert np.corrcoef(found["prediction"], frame["y"])[0, 1] > 0.5
