"""Every method predicts rows that all know, that one knows, and with a partner away or alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.errors import ConfigError, DataError
from fedmend.methods.registry import METHODS
from fedmend.report.record import RunRecord
from fedmend.serve import predict_run
from fedmend.serve.commands import predict_command
from fedmend.serve.models import chosen

VERTICAL = [
    "local", "local-trees", "boosting", "vfl", "local-vfl", "random-match", "ssl-vfl", "sfhtl",
    "fedcvt", "few-shot-vfl", "risa", "absent-partner", "clean",
]  # fmt: skip
ANNOTATED = ["inc", "majority", "dawid-skene", "random-labeller"]
HORIZONTAL = ["sage", "fedavg"]
pytestmark = pytest.mark.filterwarnings(
    "ignore::fedmend.errors.FedmendWarning", "ignore::fedmend.errors.PrivacyWarning"
)


def test_no_method_is_left_out():
    tried = {METHODS[name].class_name for name in (*VERTICAL, *ANNOTATED, *HORIZONTAL)}
    # methods of rounds differ in how they train; what they leave is one kind of model. ImageRISA is
    # RISA with other settings, for parts of pictures, which no CSV file holds
    rounds = {each.class_name for each in METHODS.values() if each.horizontal}
    assert {each.class_name for each in METHODS.values()} - tried <= {*rounds, "ImageRISA"}


def files(folder, **frames):
    found = {}
    for name, frame in frames.items():
        found[name] = folder / f"{name}-new.csv"
        frame.to_csv(found[name], index=False)
    return found


def read(out, party):
    found = pd.read_csv(out / party / "predictions.csv").set_index("id")
    probabilities = found.filter(like="p(")
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert found["uncertainty"].between(0, 1).all()
    shares = found.filter(like="share(")
    if len(shares.columns):
        np.testing.assert_allclose(shares.sum(1), 1, atol=1e-4)
    return found


@pytest.fixture(scope="module")
def fresh(new_people):
    frame = new_people(60, 9)
    return {
        "bank": frame[["id", "a", "b", "city"]].iloc[:40],
        "telco": frame[["id", "c", "d", "e"]].iloc[20:],
    }


@pytest.mark.parametrize("method", VERTICAL)
def test_rows_of_all_and_of_one(vertical, fresh, tmp_path, method):
    done = predict_run(vertical, files(tmp_path, **fresh), tmp_path / "out", method=method)
    bank = read(tmp_path / "out", "bank")
    assert list(bank.index) == fresh["bank"]["id"].tolist()
    assert (bank["known_to"].iloc[:20] == "bank").all()
    assert (bank["known_to"].iloc[20:] == "bank telco").all()
    if method in ("local", "local-trees"):
        assert (bank["used"] == "bank").all()
        assert [each.skipped for each in done] == [0, 20]
        return
    assert (bank["used"].iloc[20:] == "bank telco").all()
    telco = read(tmp_path / "out", "telco")
    assert list(telco.index) == fresh["telco"]["id"].iloc[20:].tolist()
    assert (telco["used"] == "telco").all()


@pytest.mark.parametrize("method", VERTICAL)
@pytest.mark.parametrize("party", ["bank", "telco"])
def test_one_party_with_its_part_alone(vertical, fresh, tmp_path, method, party):
    """The same as when the others are asked, and have nothing to say."""
    rows = files(tmp_path, **{party: fresh[party]})
    alone = {"method": method, "alone": party, "parts": {}, "kits": None}
    # One has none of telco's columns, and trees stay with the label party.
    if method in ("local", "local-trees", "boosting") and party == "telco":
        with pytest.raises(DataError, match=r"'telco'.*\[predict\] alone = \[\"telco\"\]"):
            predict_command(vertical, rows, tmp_path / "alone", **alone)
        return
    predict_command(vertical, rows, tmp_path / "alone", **alone)
    found = read(tmp_path / "alone", party)
    assert list(found.index) == fresh[party]["id"].tolist()
    assert (found["used"] == party).all()
    if method != "random-match":  # which draws a stranger as long as somebody is there
        predict_run(vertical, rows, tmp_path / "out", method=method)
        together = read(tmp_path / "out", party)
        columns = ["p(no)", "p(yes)", "uncertainty"]
        np.testing.assert_allclose(found[columns], together[columns], atol=1e-5)


def test_alone_needs_no_other_folder(vertical, fresh, tmp_path):
    """Nothing of the coordinator's and nothing of telco's is read."""
    import shutil

    from fedmend.serve import predict_alone
    from fedmend.serve.running import run_config

    model = chosen(vertical, "vfl")
    shutil.copytree(model.folder / "bank", tmp_path / "kept" / "vfl")
    (bank, _) = run_config(vertical).party
    rows = files(tmp_path, bank=fresh["bank"])["bank"]
    done = predict_alone(tmp_path / "kept" / "vfl", bank, rows, tmp_path / "out")
    assert done.alone == 40 and len(read(tmp_path / "out", "bank")) == 40


def test_alone_is_for_its_own_rows(vertical, fresh, tmp_path):
    rows = files(tmp_path, **fresh)
    with pytest.raises(ConfigError, match="--alone bank predicts its rows only"):
        predict_command(
            vertical, rows, tmp_path / "out", method="vfl", alone="bank", parts={}, kits=None
        )


# ---------------------------------------------------------------- several labellers


@pytest.mark.parametrize("method", ANNOTATED)
def test_several_labellers(crowded, new_people, tmp_path, method):
    frame = new_people(50, 8)
    rows = files(tmp_path, ward=frame[["id", "a", "b"]].iloc[:30], clinic=frame[["id", "c", "d"]])
    done = predict_run(crowded, rows, tmp_path / "out", method=method)
    assert {each.party: (each.shared, each.alone) for each in done} == {
        "ward": (30, 0),
        "clinic": (0, 20),
    }
    assert len(read(tmp_path / "out", "ward")) == 30
    clinic = {"clinic": rows["clinic"]}
    predict_command(
        crowded, clinic, tmp_path / "alone", method=method, alone="clinic", parts={}, kits=None
    )
    predict_run(crowded, clinic, tmp_path / "apart", method=method)
    one, other = (read(tmp_path / name, "clinic") for name in ("alone", "apart"))
    np.testing.assert_allclose(one["p(yes)"], other["p(yes)"], atol=1e-5)


# ---------------------------------------------------------------- the same columns


@pytest.mark.parametrize("method", HORIZONTAL)
def test_the_same_columns_of_different_people(horizontal, new_people, tmp_path, method):
    rows = files(tmp_path, south=new_people(30, 7).drop(columns="y"))
    (done,) = predict_run(horizontal, rows, tmp_path / "out", method=method)
    assert (done.party, done.alone) == ("south", 30)
    alone = {"method": method, "alone": "south", "parts": {}, "kits": None}
    predict_command(horizontal, rows, tmp_path / "alone", **alone)
    one, other = (read(tmp_path / name, "south") for name in ("alone", "out"))
    np.testing.assert_allclose(one["p(yes)"], other["p(yes)"], atol=1e-6)


# ---------------------------------------------------------------- three parties


@pytest.mark.parametrize("method", ["vfl", "absent-partner", "risa"])
def test_three_parties_know_some_of_the_rows_each(three, new_people, tmp_path, method):
    frame = new_people(60, 6)
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
    for parties, people in who.items():
        assert (found.loc[people, "known_to"] == parties).all()


# ---------------------------------------------------------------- what doubt is worth


def test_every_method_of_one_truth_says_what_its_doubt_is_worth(vertical, horizontal):
    for run in (vertical, horizontal):
        for method in RunRecord.load(run).methods:
            worth = method.uncertainty["worth"]
            assert worth["rows"] > 5 and len(worth["deciles"]) == 10, method.title
        assert 'id="uncertainty"' in (run / "report.html").read_text()


def test_where_votes_are_the_truth_this_is_said(crowded):
    for method in RunRecord.load(crowded).methods:
        assert method.uncertainty["worth"]["rows"]
        assert method.uncertainty["against"].startswith("the majority of the labels of ")
