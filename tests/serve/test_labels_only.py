"""A label party without columns: it decides, and knows rows by their ids alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.errors import DataError
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.serve import predict_run
from fedmend.serve.commands import predict_command

pytestmark = pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels-only")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    ids = np.arange(150)
    y = np.where(x.sum(1) > 0, "yes", "no")
    pd.DataFrame({"id": ids, "y": y}).to_csv(folder / "registry.csv", index=False)
    pd.DataFrame({"id": ids, "a": x[:, 0], "b": x[:, 1]}).to_csv(folder / "ward.csv", index=False)
    pd.DataFrame({"id": ids, "c": x[:, 2]}).to_csv(folder / "lab.csv", index=False)
    text = '[predict]\nalone = ["lab"]\n\n[[method]]\nname = "vfl"\nepochs = 2\n\n'
    for name, label in (("registry", 'label = "y"'), ("ward", ""), ("lab", "")):
        text += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}\n\n'
    (folder / "federation.toml").write_text(text)
    execute(plan_of(load_config(folder / "federation.toml")), folder / "run")
    return folder / "run"


@pytest.fixture
def rows(tmp_path):
    found = {name: tmp_path / f"{name}.csv" for name in ("registry", "ward", "lab")}
    ids = np.arange(500, 520)
    x = np.random.default_rng(1).normal(size=(20, 3))
    pd.DataFrame({"id": ids[:15], "y": "no"}).to_csv(found["registry"], index=False)
    pd.DataFrame({"id": ids, "a": x[:, 0], "b": x[:, 1]}).to_csv(found["ward"], index=False)
    pd.DataFrame({"id": ids[5:], "c": x[5:, 2]}).to_csv(found["lab"], index=False)
    return found


def test_without_the_label_party_those_with_columns_get_the_predictions(run, rows, tmp_path):
    given = {name: rows[name] for name in ("ward", "lab")}
    done = predict_run(run, given, tmp_path / "out")
    assert [(each.party, each.shared, each.alone) for each in done] == [("ward", 15, 5)]
    assert len(pd.read_csv(done[0].path)) == 20


def test_with_its_ids_the_label_party_gets_them(run, rows, tmp_path):
    done = {each.party: each for each in predict_run(run, rows, tmp_path / "out")}
    assert (done["registry"].shared, done["ward"].shared) == (15, 5)
    found = pd.read_csv(done["registry"].path)
    assert set(found["known_to"]) == {"registry ward lab", "registry ward"}
    assert set(found["used"]) == {"ward lab", "ward"}


def test_a_party_with_columns_alone(run, rows, tmp_path):
    options = {"method": None, "parts": {}, "kits": None}
    predict_command(run, {"lab": rows["lab"]}, tmp_path / "out", alone="lab", **options)
    assert len(pd.read_csv(tmp_path / "out" / "lab" / "predictions.csv")) == 15
    with pytest.raises(DataError, match="'registry'"):
        predict_command(
            run, {"registry": rows["registry"]}, tmp_path / "none", alone="registry", **options
        )
