"""`fedmend run` where parties without columns label: from the file to corrected labels."""

import numpy as np
import pandas as pd
import pytest

from fedmend.cli import main
from fedmend.report.record import RunRecord


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
    assert found["method"] == "Dawid–Skene" and found["history"] == []
    assert set(found["labelling"]["expertise"]) == {"doctor0", "doctor1", "doctor2"}
