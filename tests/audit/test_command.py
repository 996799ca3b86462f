"""`fedmend audit`: a file's methods rehearsed, or a run's ledger read."""

import json
import sys

import pytest

from fedmend.audit.result import read_audit
from fedmend.cli import main
from fedmend.cli.auditing import _subjects
from fedmend.errors import DataError
from fedmend.federation import Ledger
from fedmend.federation.wire import Measure
from fedmend.flow import plan_of
from fedmend.flow.config import load_config
from fedmend.report.page import write_report
from fedmend.report.record import RunRecord


@pytest.fixture
def call(capsys, workshop, monkeypatch):
    monkeypatch.chdir(workshop.folder)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
            sys.exit(0)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return invoke


OPTIONS = ("-o", "repeats=2", "-o", "known_labels=[4]", "-o", "known_rows=20")


def test_an_audit_beside_another_setting(call, workshop):
    workshop.write()
    code, out, err = call("audit", *OPTIONS, "--compare", "embedding=2")
    assert (code, err) == (0, "")
    for words in ("with the consent of all", "labels of bank", "calls of telco", "With embedding=2",
                  "the model itself", "What lowers it", "is no proof"):  # fmt: skip
        assert words in out
    assert workshop.leftovers() == ["federation-audit"]
    folder = workshop.run.with_name("federation-audit")
    stored = json.loads((folder / "audit.json").read_text())  # for anybody
    found = stored["reports"][0]["findings"]
    assert "labels from a trained bottom" in {each["attack"] for each in found}
    assert all(each["low"] <= each["high"] for each in found)
    (report,) = read_audit(folder)
    assert report.other.params["embedding"] == 2
    assert report.params["epochs"] == 2
    page = (folder / "audit.html").read_text()
    for words in ("What could be inferred", "With embedding=2", "calls of telco", "bootstrap"):
        assert words in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")


def finished_run(folder):
    """A run of which only the ledger and the record are looked at."""
    ledger = Ledger(folder / "ledger.jsonl")
    for _ in range(6):
        batch = Measure("50x4", "float32", 800, "")
        ledger.record("coordinator", "telco", "BottomWorker.step", "gradient", batch)
    ledger.close()
    RunRecord(title="a run", methods=[], metric="auc").save(folder)
    write_report(folder)
    return folder


def test_an_audit_becomes_a_chapter_of_a_runs_report(call, workshop):
    workshop.write()
    run = finished_run(workshop.folder / "done")
    assert "What could be inferred" not in (run / "report.html").read_text()
    ledger = (run / "ledger.jsonl").read_bytes()
    code, out, _ = call("audit", *OPTIONS, "--run", run, "-o", 'attacks=["gradients"]')
    assert code == 0
    assert "report.html" in out
    page = (run / "report.html").read_text()
    assert page.count("What could be inferred") == 2  # in the head of the page, and its section
    assert 'id="audit"' in page
    assert (run / "ledger.jsonl").read_bytes() == ledger
    (run / "audit.json").write_text("{}")
    with pytest.raises(DataError, match="audit again"):
        read_audit(run)


def test_a_ledger_alone_is_read(call, workshop, monkeypatch):
    run = finished_run(workshop.folder / "done")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("audit", "--ledger", run, "--out", "read")
    assert code == 0
    (line,) = [each.split() for each in out.splitlines() if each.startswith(" telco")]
    assert line == ["telco", "gradient", "coordinator", "6", "–", "high"]  # no word is broken
    assert out.count("• gradient: labels of training rows") == 1
    (read,) = read_audit(workshop.folder / "read")
    assert read.method == ""
    assert [(each.role, each.lines, each.looks) for each in read.readings] == [("telco", 300, None)]
    record = RunRecord.load(run)
    record.overview = {"aligned": 60}
    record.save(run)
    assert call("audit", "--ledger", run, "--out", "read")[0] == 0
    assert read_audit(workshop.folder / "read")[0].readings[0].looks == 5
    assert call("audit", "--ledger", run / "ledger.jsonl")[0] == 0


def test_what_completes_and_corrects_is_audited_too(workshop):
    workshop.telco["said"] = workshop.bank["default"].to_numpy()
    workshop.write('[complete]\nname = "fedpsg-pum"\ntau = 0.0\n')
    text = workshop.config.read_text().replace(
        'data = "telco.csv"\nid = "customer"', 'data = "telco.csv"\nid = "customer"\nlabel = "said"'
    )
    workshop.config.write_text(text + '\n[correct]\nto = "bank"\n')
    plan = plan_of(load_config(workshop.config))
    found = _subjects(plan, [])
    assert [type(each).__name__ for each in found.values()] == ["FedPSGPUM", "InC", "VFL"]
    assert found["VFL"].label_party == "bank"
    assert list(_subjects(plan, ["fedpsg-pum", "vfl"])) == ["fedpsg-pum", "VFL"]


def test_a_method_with_several_settings_is_audited_under_each(call, workshop):
    workshop.write(method='name = "vfl"\ntitle = "wide"\nepochs = 1')
    text = workshop.config.read_text()
    narrow = '\n[[method]]\nname = "vfl"\ntitle = "narrow"\nembedding = 2\nepochs = 1\n'
    workshop.config.write_text(text + narrow)
    plan = plan_of(load_config(workshop.config))
    assert list(_subjects(plan, ["vfl"])) == ["wide", "narrow"]
    assert list(_subjects(plan, ["narrow"])) == ["narrow"]
    options = (*OPTIONS, "-o", 'attacks=["gradients"]', "--out", "audited")
    code, out, _ = call("audit", "--method", "vfl", *options)
    assert code == 0 and "wide, rehearsed" in out and "by the audit of narrow" in out
    assert [each.method for each in read_audit("audited")] == ["wide", "narrow"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--method", "vlf"), 2, "did you mean 'vfl'"),
        (("--compare", "embeding=2"), 2, "embedding"),
        (("-o", "look=2"), 2, "looks"),
        (("--run", "runs/none"), 2, "no finished run"),
        (("--ledger", "runs/none"), 3, "no ledger"),
    ],
)
def test_mistakes(call, workshop, given, code, said):
    workshop.write()
    ended, _, err = call("audit", *given)
    assert ended == code and said in err.lower()
    assert not workshop.run.with_name("federation-audit").exists()
