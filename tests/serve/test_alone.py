"""Who may predict alone, and what a policy has to say about it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tests.serve.conftest import people

import fedmend as fm
from fedmend.cli.parties import predict as party_predict
from fedmend.cli.running import predict
from fedmend.errors import ConfigError, DataError, NotFitted, Refused
from fedmend.flow import execute, plan_of
from fedmend.flow.config import PartySettings, load_config
from fedmend.methods.auto.auto import BlendNetwork
from fedmend.report.record import RunRecord
from fedmend.serve import predict_alone
from fedmend.serve.models import adopt

ALONE = '[predict]\nalone = ["telco"]\n'


def test_a_label_party_that_keeps_its_weights(workshop, tmp_path):
    """The run goes through, the report says who cannot predict alone, and the command too."""
    workshop.write(ALONE)
    text = workshop.config.read_text()
    workshop.config.write_text(
        text.replace('label = "default"', 'label = "default"\npolicy = {refuse = ["weights"]}')
    )
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    (note,) = (each for each in record.notes if "telco cannot predict alone" in each)
    assert "'weights'" in note
    assert "telco cannot predict alone" in (workshop.run / "report.html").read_text()
    assert RunRecord.load(workshop.run).notes == record.notes
    rows = tmp_path / "new.csv"
    workshop.telco.iloc[:5].to_csv(rows, index=False)
    with pytest.raises(DataError, match=r"'telco'.*policy lets 'weights' out"):
        predict(workshop.run, [f"telco={rows}"], out=tmp_path / "out", alone="telco")
    assert not (tmp_path / "out").exists()
    # the bank itself needs nobody
    bank = tmp_path / "bank.csv"
    workshop.bank.iloc[:5].to_csv(bank, index=False)
    predict(workshop.run, [f"bank={bank}"], out=tmp_path / "out", alone="bank")
    assert len(pd.read_csv(tmp_path / "out" / "bank" / "predictions.csv")) == 5


def test_a_blend_says_that_it_stays_with_the_label_party_and_what_would_not(tmp_path):
    """What the run was asked for is not the reason, and asking once more is no help."""
    folder = tmp_path / "model" / "auto"
    (folder / "telco").mkdir(parents=True)
    saved = {"method": "Auto", "parties": ["bank", "telco"], "label_party": "bank"}
    (folder / "model.json").write_text(json.dumps(saved))
    telco = PartySettings(name="telco", id="id")
    with pytest.raises(
        DataError, match=r"by Auto: several models decide.* --method .*\(vfl, risa\)"
    ):
        predict_alone(folder / "telco", telco, tmp_path / "rows.csv", tmp_path / "out")
    with pytest.raises(Refused, match="several models decide, and stay with it"):
        network = SimpleNamespace(label_party="bank", stays=BlendNetwork.stays)
        BlendNetwork.hand_out(network, "model", "telco", {})


def test_a_label_party_whose_part_is_in_its_kit_is_told_where(tmp_path):
    """After a run over machines; asking for a copy would be refused to it as well."""
    (folder := tmp_path / "model" / "vfl").mkdir(parents=True)
    saved = {"method": "VFL", "parties": ["bank", "telco"], "label_party": "bank"}
    (folder / "model.json").write_text(json.dumps(saved))
    bank = PartySettings(name="bank", id="id")
    with pytest.raises(DataError, match=r"'bank'.*keeps its part.* Mend: .*--part with its kit"):
        predict_alone(folder / "bank", bank, tmp_path / "new.csv", tmp_path / "out")


def test_what_is_handed_out_stands_in_the_ledger(make_fed, make_frame, tmp_path):
    with pytest.raises(NotFitted, match="call fit"):
        fm.VFL().hand_out(tmp_path)
    fed = make_fed(make_frame(120), aligned=60)
    model = fm.VFL(epochs=2).fit(fed)
    model.save(tmp_path / "model")

    def weights():
        return sum(each.count for each in fed.ledger if each.kind == "weights")

    before = weights()
    assert model.hand_out(tmp_path / "model") == [] and weights() == before
    assert model.hand_out(tmp_path / "model", parties=["telco"]) == []
    assert weights() == before + 2  # from the bank, and on to telco
    told = model.hand_out(tmp_path / "model", parties=["nobody"])
    assert told == ["nobody cannot predict alone: VFL uses none of its columns"]
    # A saved model with a copy still loads for all.
    again = fm.VFL.load(tmp_path / "model", fed)
    np.testing.assert_allclose(again.predict_proba(fed), model.predict_proba(fed), atol=1e-6)


def test_a_common_model_is_every_partys(horizontal, tmp_path):
    """In one process without any part of one's own, and taken into a kit."""
    rows = tmp_path / "rows.csv"
    people(12, 9).drop(columns="y").to_csv(rows, index=False)
    predict(horizontal, [f"north={rows}"], "sage", tmp_path / "here", alone="north")
    here = pd.read_csv(tmp_path / "here" / "north" / "predictions.csv")
    assert len(here) == len(pd.read_csv(rows))
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "party.toml").write_text('name = "north"\ndata = "north.csv"\nid = "id"\nlabel = "y"\n')
    adopt(kit, horizontal, "spring")
    party_predict(kit, rows, tmp_path / "there", "spring", "sage")
    there = pd.read_csv(tmp_path / "there" / "north" / "predictions.csv")
    pd.testing.assert_frame_equal(here, there)
    with pytest.raises(ConfigError, match="holds several models.*--run spring --method fedavg"):
        party_predict(kit, rows, tmp_path / "again", None, None)
