"""The file that follows the advice: valid, complete, and it runs."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data, look
from fedmend.flow.config import load_config
from fedmend.flow.config.rewriting import toml_text, write_mended


def seen(workshop):
    config = load_config(workshop.config)
    found = look(config, check_data(config))
    assert found is not None
    return config, found


def test_check_tells_what_is_torn_and_what_mends_it(workshop, fedmend):
    workshop.write()
    text = " ".join(fedmend("check", workshop.config)[1].split())
    assert "bank 160 100" in text.replace("│", " ")
    assert "What is torn" in text and "What would mend it" in text
    assert "100 of bank's 160 rows are shared" in text and "no problems" in text


def test_problems_only(workshop, fedmend):
    workshop.write()
    code, out, _ = fedmend("check", workshop.config, "--problems")
    assert code == 0 and "What is torn" not in out


@pytest.mark.parametrize("option", ["--write", "--json", "--curve"])
def test_what_is_not_looked_at_is_not_written(workshop, fedmend, option):
    workshop.write()
    more = [] if option == "--curve" else [workshop.folder / "new"]
    code, _, err = fedmend("check", workshop.config, "--problems", option, *more)
    assert code == 2 and "leave out --problems" in err
    workshop.edit(('data = "telco.csv"\n', ""), ("[[method]]", "[flare]\n[[method]]"))
    if more:
        code, _, err = fedmend("check", workshop.config, option, *more)
        assert code == 2 and "party 'telco' has its table elsewhere" in err
    assert not (workshop.folder / "new").exists()
    assert "bank: 160 rows, 2 columns" in fedmend("check", workshop.config)[1]


def test_json_and_file(workshop, fedmend):
    workshop.write()
    mended, facts = workshop.folder / "sub" / "mended.toml", workshop.folder / "found.json"
    write = ["check", workshop.config, "--write", mended]
    code, out, _ = fedmend(*write, "--json", facts)
    found = json.loads(facts.read_text())
    assert found["aligned"] == 100 and found["advice"]["tears"][0]["name"] == "few-shared"
    config = load_config(mended)
    assert config.at(config.party[0].data).resolve() == workshop.folder / "bank.csv"
    assert config.recipe is None and [each.name for each in config.method] == ["auto"]
    assert code == 0 and f"fedmend run {mended}" in "".join(out.split("\n"))
    code, _, err = fedmend(*write)
    assert code == 2 and "exists already" in err
    assert fedmend(*write, "--force")[0] == 0


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_the_file_runs(workshop):
    workshop.write('[evaluate]\nmetrics = ["auc"]\n')
    config, found = seen(workshop)
    advice = dict(found.advice)
    # the same method, with less work
    (method,) = advice["settings"]["methods"]
    less = {"epochs": 1, "trees": 4, "folds": 2}
    advice["settings"] = {**advice["settings"], "methods": [method | less]}
    path = write_mended(config, advice, workshop.folder / "mended.toml")
    record = execute(plan_of(load_config(path)), workshop.folder / "runs" / "mended")
    assert [run.title for run in record.methods] == ["Auto"]
    assert record.overview["advice"]["tears"]


def test_rows_stay_weighed_by_what_can(workshop):
    workshop.bank["weight"] = 1.0 + workshop.bank["customer"] % 2
    how = 'name = "boosting"\nweight_column = "weight"\ntrees = 4'
    workshop.write(method=how)
    config, found = seen(workshop)
    mended = load_config(write_mended(config, found.advice, workshop.folder / "mended.toml"))
    (method,) = mended.method
    assert (method.name, method.candidates) == ("auto", ["local-trees", "boosting"])
    assert method.params["weight_column"] == "weight"


def test_what_a_file_hides_stays_hidden(workshop):
    """Advice is about what is torn: it must not undo what keeps labels and embeddings back."""
    workshop.write(method='name = "vfl"\nlabel_dp = 2\nseal = true\nembedding = 4')
    config, found = seen(workshop)
    mended = load_config(write_mended(config, found.advice, workshop.folder / "mended.toml"))
    (method,) = mended.method
    assert method.name == "auto"
    assert method.params == {"label_dp": 2, "seal": True, "embedding": 4}


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_votes_that_are_told_at_random_stay_so(tmp_path):
    config = labelled_by_three(tmp_path, shared=60)
    text = config.source.read_text()
    config.source.write_text(text + "label_dp = 3\n")
    config = load_config(config.source)
    advice = {"words": [], "settings": {"recipe": "correct-auto", "correct": {"to": "bank"}}}
    advice["settings"]["methods"] = []
    mended = load_config(write_mended(config, advice, tmp_path / "mended.toml"))
    assert mended.correct.params["label_dp"] == 3
    assert [each.params.get("label_dp") for each in mended.method] == [3]
    assert check_data(mended).problems == []


def labelled_by_three(folder, *, shared):
    """A bank and two agencies label 120 people; the telco knows `shared` of them."""
    rng = np.random.default_rng(3)
    people, income, calls = np.arange(120), rng.normal(size=120), rng.normal(size=120)
    truth = np.where(income + calls > 0, "yes", "no")
    wrong = rng.random((3, 120)) < 0.25
    said = np.where(wrong, np.where(truth == "yes", "no", "yes"), truth)
    tables = {
        "bank": pd.DataFrame({"id": people, "income": income, "y": said[0]}),
        "one": pd.DataFrame({"id": people, "y": said[1]}),
        "two": pd.DataFrame({"id": people, "y": said[2]}),
        "telco": pd.DataFrame({"id": people[:shared], "calls": calls[:shared]}),
    }
    text = ""
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        label = 'label = "y"\n' if "y" in frame else ""
        text += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "id"\n{label}\n'
    (folder / "federation.toml").write_text(text + '[[method]]\nname = "inc"\n')
    return load_config(folder / "federation.toml")


@pytest.mark.daily("120")
@pytest.mark.parametrize("shared", [120, 60])
@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_labellers_who_disagree(tmp_path, shared):
    config = labelled_by_three(tmp_path, shared=shared)
    found = look(config, check_data(config))
    assert found.agreement["lowest"] < 0.5
    advice = dict(found.advice)
    settings = advice["settings"]
    assert (settings["correct"] is not None) == (shared == 60)
    assert settings["recipe"] == ("correct-auto" if shared == 60 else None)
    assert found.labellers_share == 120 or shared == 120
    assert found.columns_share == shared
    settings["methods"] = [{"name": "auto", "epochs": 1, "trees": 4, "folds": 2}]
    if settings["correct"]:
        settings["correct"] = {**settings["correct"], "epochs": 2, "initial_epochs": 1}
    path = write_mended(config, advice, tmp_path / "mended.toml")
    assert check_data(load_config(path)).problems == []
    record = execute(plan_of(load_config(path)), tmp_path / "runs" / "mended")
    assert all(run.scores for run in record.methods)


def test_no_advice_is_not_written(workshop):
    workshop.write()
    config, _ = seen(workshop)
    with pytest.raises(ConfigError, match="no advice to write down"):
        write_mended(config, {}, workshop.folder / "mended.toml")


def test_a_sqlite_file_is_found_from_another_folder(workshop):
    workshop.write()
    config, found = seen(workshop)
    workshop.edit(('data = "telco.csv"', 'sql = "select 1"\nuri = "sqlite:///telco.db"'))
    path = write_mended(config, found.advice, workshop.folder / "sub" / "mended.toml")
    assert load_config(path).party[1].uri == "sqlite:///../telco.db"


plain = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("aZ9 .\"'#=ü\n\\", max_size=6),
)
keys = st.text('aZ9_- ."ü', min_size=1, max_size=4)
tables = st.recursive(
    st.dictionaries(keys, st.one_of(plain, st.lists(plain))),
    lambda below: st.dictionaries(keys, st.one_of(plain, below, st.lists(below, min_size=1))),
    max_leaves=8,
)


@given(tables)
def test_what_is_written_is_read_again(content):
    assert tomllib.loads(toml_text(content)) == content
