"""`fedmend run` with several annotators: from the configuration file to the report."""

import numpy as np
import pandas as pd
import pytest

from fedmend.cli import main
from fedmend.report.record import RunRecord

METHODS = """[[method]]
name = "dawid-skene"
epochs = 4
secure = "masks"

[evaluate]
reference = "bank"

[report]
label_review = true
"""
INC = 'name = "inc"\nepochs = 8\nlr = 0.02\nsecure = "masks"\ncorrector = { top = [8] }'


@pytest.fixture
def labelled(workshop, toys):
    """The bank is nearly always right; the telco's label column is wrong in a third of the rows."""
    rng = np.random.default_rng(0)
    truth = workshop.bank.set_index("customer")["default"]
    wrong = rng.random(len(truth)) < 1 / 3
    said = pd.Series(np.where(wrong, np.where(truth == "yes", "no", "yes"), truth), truth.index)
    workshop.telco["y"] = said.reindex(workshop.telco["customer"]).to_numpy()
    workshop.write(METHODS, method=INC)
    text = workshop.config.read_text().replace('"telco.csv"', '"telco.csv"\nlabel = "y"')
    workshop.config.write_text(text)
    return workshop


def test_from_the_file_to_the_report(labelled, capsys, monkeypatch):
    monkeypatch.chdir(labelled.folder)
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "InC" in shown
    assert "EM" in shown
    record = RunRecord.load(labelled.run)
    found = {each.title: each.labelling for each in record.methods}
    assert set(found) == {"InC", "EM"}
    for labelling in found.values():
        assert labelling is not None
        assert set(labelling["expertise"]) == {"bank", "telco"}, "both methods estimate T"
        wrong, votes = labelling["suspicious"], labelling["votes"]
        assert wrong["bank"] / votes["bank"] < wrong["telco"] / votes["telco"]
    page = (labelled.run / "report.html").read_text("utf-8")
    assert "probably wrong" in page
    assert page.count("How well each party labels") >= 2, "a heat map for each method"
    reviews = sorted(each.parent.name for each in labelled.run.rglob("label_review.csv"))
    assert reviews == ["bank", "bank", "telco", "telco"]


@pytest.mark.slow
def test_dawid_skene_corrects_the_labels_of_parties_without_columns(workshop, toys, monkeypatch):
    rng = np.random.default_rng(0)
    truth = workshop.bank.set_index("customer")["default"]
    other = np.where(truth == "yes", "no", "yes")
    for number, rate in enumerate((0.1, 0.2, 0.3)):
        said = np.where(rng.random(len(truth)) < rate, other, truth)
        frame = pd.DataFrame({"customer": truth.index, "y": said})
        frame.to_csv(workshop.folder / f"doctor{number}.csv", index=False)
    workshop.write(
        '[correct]\nname = "dawid-skene"\namong = "labellers"\nto = "doctor1"\n'
        'labellers = ["doctor0", "doctor1", "doctor2"]\n[evaluate]\nreference = "bank"'
    )
    text = workshop.config.read_text()
    text += "".join(
        f'\n[[party]]\nname = "doctor{number}"\ndata = "doctor{number}.csv"\n'
        'id = "customer"\nlabel = "y"\n'
        for number in range(3)
    )
    workshop.config.write_text(text)
    monkeypatch.chdir(workshop.folder)
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert not ended.value.code
    found = RunRecord.load(workshop.run).correction
    assert found["method"] == "EM" and found["history"] == []
    assert set(found["labelling"]["expertise"]) == {"doctor0", "doctor1", "doctor2"}
