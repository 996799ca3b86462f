"""A newcomer with two files as spreadsheets leave them: from init to predictions and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.federation.ledger import Ledger
from fedmend.federation.wire import measure

pytestmark = pytest.mark.usefixtures("bare_report")


@pytest.fixture
def told(fedmend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit code of a command in a folder of its own, and all that it says in one line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str]:
        code, *said = fedmend(*words)
        return code, " ".join("".join(said).split())

    return run


def spreadsheets(folder: Path) -> None:
    """A clinic's file from an old German program, and a laboratory's from a new one."""
    rng = np.random.default_rng(5)
    n = 160
    signal = rng.normal(size=n)
    numbers = rng.permutation(n) + 17
    clinic = pd.DataFrame({"Patient Nr.": [f"{each:06d}" for each in numbers]})
    days = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 700, n), "D")
    clinic["Aufnahme"] = days.strftime("%d.%m.%Y")
    clinic["Größe"] = [f"{1.7 + 0.1 * each:.2f}".replace(".", ",") for each in signal]
    clinic.loc[::9, "Größe"] = "n/a"
    clinic["Raucher"] = rng.choice(["ja", "nein", "JA"], n)
    findings = np.where(signal + rng.normal(size=n) > 0, "bösartig", "gutartig").astype(object)
    findings[::7] = ""
    clinic["Befund"] = findings
    clinic = pd.concat([clinic.iloc[:130], clinic.iloc[3:5]])
    clinic.to_csv(folder / "klinik.csv", index=False, sep=";", encoding="latin-1")
    laboratory = pd.DataFrame({"pid": numbers, "calcium": signal + rng.normal(size=n)})
    laboratory["zinc"] = 4 + rng.random(n)
    laboratory.loc[[2, 90], "zinc"] = -999
    laboratory["visit"] = days.strftime("%Y-%m-%dT%H:%M")
    laboratory.iloc[40:].to_csv(folder / "labor.csv", index=False, encoding="utf-8-sig")


def test_from_two_spreadsheets_to_predictions(tmp_path: Path, told: Any) -> None:
    spreadsheets(tmp_path)
    files = ["init", "klinik.csv", "labor.csv"]
    code, said = told(*files, "--label", "Befund")
    assert code == 2 and "--id once for each" in said
    code, said = told(*files, "--label", "Befund", "--id", "Patient Nr.", "--id", "pid")
    assert code == 0 and "Next: fedmend check" in said

    # Each error names party, column, value and mend; all of them at once.
    code, said = told("check")
    assert code == 2 and "2 problems" in said
    assert "party 'klinik', column 'Patient Nr.': duplicate id: 2 ids" in said
    assert "party 'labor', column 'visit': dates and times have no kind" in said
    assert "drop = ['visit']" in said

    lines = (tmp_path / "klinik.csv").read_text("latin-1").splitlines(keepends=True)
    (tmp_path / "klinik.csv").write_text("".join(lines[:-2]), "latin-1")
    config = tmp_path / "federation.toml"
    text = config.read_text("utf-8").replace(
        'id = "pid"\n', 'id = "pid"\ndrop = ["visit"]\nmissing = ["-999"]\n'
    )
    config.write_text(text, "utf-8")
    code, said = told("check")
    assert code == 0 and "klinik 130 90" in said.replace("│", " ")
    assert "column 'Aufnahme': its values are dates (such as" in said
    assert "'ja' and 'JA' are taken for different values" in said
    assert "-999" not in said and 'begin with: method = "auto"' in said

    short = text.replace('name = "auto"', 'name = "auto"\nepochs = 3\nfolds = 2')
    short = short.replace('decimal = ","\n', 'decimal = ","\ndrop = ["Aufnahme"]\n')
    config.write_text(short, "utf-8")
    code, said = told("run")
    assert code == 0 and (tmp_path / "runs/federation/report.html").is_file()

    rows = [line.rsplit(";", 1)[0] + "\n" for line in lines[:5]]
    (tmp_path / "neu.csv").write_text("".join(rows), "latin-1")
    code, said = told("predict", "runs/federation", "--with", "klinik=neu.csv")
    assert code == 0
    found = pd.read_csv(tmp_path / "predictions/klinik/predictions.csv", dtype={"id": str})
    assert found["id"].tolist() == [line.split(";")[0] for line in lines[1:5]]
    assert set(found["prediction"]) <= {"bösartig", "gutartig"}
    assert found["uncertainty"].between(0, 1).all()


def test_parties_elsewhere_need_kits_before_a_run(told: Any) -> None:
    config = '[[party]]\nname = "bank"\nlabel = "late"\n[[party]]\nname = "telco"\n[flare]\n'
    Path("federation.toml").write_text(config, "utf-8")
    code, said = told("check")
    assert code == 0 and said.endswith("Next: fedmend provision federation.toml")
    Path("kits").mkdir()
    code, said = told("check")
    assert code == 0 and said.endswith("Next: fedmend run federation.toml --engine flare")


def test_a_ledger_of_nobody_is_not_compared(tmp_path: Path, told: Any) -> None:
    own = tmp_path / "bank.jsonl"
    for path in (tmp_path / "ledger.jsonl", own):
        ledger = Ledger(path)
        ledger.record("bank", "coordinator", "W.rows", "count", measure(3))
        ledger.close()
    reconcile = ["ledger", tmp_path, "--reconcile", "--with"]
    code, said = told(*reconcile, f"bank={own}")
    assert code == 0 and "bank: agrees" in said
    code, said = told(*reconcile, f"banc={own}")
    assert code == 2 and "no such party: did you mean 'bank'?" in said
