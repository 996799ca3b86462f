from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

import fedmend as fm
from fedmend.cli import main
from fedmend.errors import AlignmentError, ConfigError, DataError, Refused
from fedmend.report.page import run_banner
from fedmend.report.record import RunRecord

pytestmark = pytest.mark.usefixtures("bare_report")


@pytest.fixture
def call(fedmend, workshop, monkeypatch):
    """In the workshop, on a wide terminal."""
    monkeypatch.chdir(workshop.folder)
    monkeypatch.setenv("COLUMNS", "160")
    return fedmend


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom fedmend.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'pydantic', 'matplotlib', 'sklearn', 'pyarrow'}\n"
        "sys.stderr.write(repr(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]"
    for command in ("demo", "init", "check", "run", "ledger", "datasets", "bench"):
        assert command in done.stdout
    spent: list[float] = []
    while len(spent) < 3 and min(spent, default=9.0) >= 1.0:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fedmend", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Processor time, because the machine that tests may be busy; alone it takes about 0.25 s.
    assert min(spent) < 1.0


def test_an_error_ends_the_process_before_the_interpreter_goes_down():
    """Threads of pyarrow that are still at work would abort it then, and the code be lost."""
    code = (
        "import atexit, os, sys\nfrom fedmend.cli import main\n"
        "class Late:\n    def __del__(self): os.abort()\n"
        "sys.late = Late()\natexit.register(print, 'tidied')\n"
        "sys.argv = ['fedmend', 'check', 'absent.toml']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == ConfigError.exit_code
    assert done.stdout == "tidied\n" and "absent.toml" in done.stderr and "Mend: " in done.stderr


def test_version(call):
    from fedmend._version import __version__

    assert call("--version") == (0, f"fedmend {__version__}\n", "")


def test_unknown_commands_and_options_name_the_closest(call):
    code, _, err = call("bnech")
    assert code == 2 and "Did you mean 'bench'?" in err
    code, _, err = call("run", "--resum")
    assert code == 2 and "--resume" in err
    code, _, err = call("bench", "splitt")
    assert code == 2 and "there is no benchmark 'splitt'" in err


def test_init_check_run_ledger(call, workshop):
    workshop.write()
    workshop.config.unlink()
    code, out, _ = call("init", "bank.csv", "telco.csv", "--label", "default")
    assert code == 0 and "fedmend check federation.toml" in out
    assert out.count("guessed: id") == 1, "not once for each party"
    few = 'name = "auto"\ncandidates = ["local", "vfl"]\nepochs = 2\nfolds = 2'
    workshop.edit(('name = "auto"', few))
    code, out, err = call("check")
    assert (code, err) == (0, "")
    assert "100 of bank's 160 rows" in out and "no problems" in out
    code, out, err = call("run")
    assert (code, err) == (0, ""), err
    assert "What is torn" in out and "ederation" in out and "Auto" in out and "report.html" in out
    assert "\x1b[" not in out and "━" not in out
    code, out, _ = call("ledger", workshop.run)
    assert code == 0 and "No row and no label left a party in the clear, but" in out
    assert "The coordinator saw" in out and "telco received" in out
    record = RunRecord.load(workshop.run)
    record.methods[0].params["label_dp"] = 1.0
    record.save(workshop.run)
    for command in (("ledger", workshop.run), ("audit", "--ledger", workshop.run)):
        told = " ".join(call(*command)[1].split())  # what the report's first lines say
        assert all(line in told for line in run_banner(workshop.run).lines)
        assert "label_dp = 1 lets" in told
    code, out, _ = call("ledger", workshop.run, "--party", "telco")
    assert "telco received" in out and "The coordinator saw" not in out
    code, out, _ = call("ledger", workshop.run, "--json", "--party", "telco")
    assert {each["receiver"] for each in json.loads(out)} == {"telco"}
    code, _, err = call("ledger", workshop.run, "--party", "telko")
    assert code == ConfigError.exit_code and "did you mean 'telco'?" in err
    code, _, err = call("ledger", workshop.folder)
    assert code == DataError.exit_code and "no ledger at" in err


def test_run_again_resume_and_force(call, workshop):
    workshop.write()
    assert call("run", "--folder", "out")[0] == 0
    code, _, err = call("run", "--folder", "out")
    assert code == 2 and "error: out exists already. Mend:" in err
    assert call("run", "--folder", "out", "--force")[0] == 0


@pytest.mark.parametrize(
    ("folder", "words"),
    [(".", "is no run, and"), ("..", "is no run, and"), ("/", "can hold no run")],
)
def test_folders_that_have_no_name_of_their_own(call, workshop, folder, words):
    workshop.write()
    code, _, err = call("run", "--folder", folder, "--force")
    assert code == 2 and words in err


def test_interrupt_says_how_to_go_on(call, workshop, monkeypatch):
    from fedmend.flow import mending

    def stop(*_, **__):
        raise KeyboardInterrupt

    workshop.write()
    monkeypatch.setattr(mending, "overview", stop)
    code, _, err = call("run")
    assert code == 130 and "fedmend run federation.toml --resume" in err
    assert workshop.leftovers() == ["federation.part"]
    workshop.telco["default"] = workshop.bank["default"].to_numpy()[: len(workshop.telco)]
    workshop.write()
    workshop.edit(('"telco.csv"', '"telco.csv"\nlabel = "default"'))
    code, _, err = call("run", "--folder", "my runs/one", "--recipe", "correct-auto")
    told = "fedmend run federation.toml --folder 'my runs/one' --recipe correct-auto --resume"
    assert code == 130 and told in err


def test_unexpected_errors_are_told_apart_and_traced_on_request(call, workshop, monkeypatch):
    from fedmend.flow import mending

    def fault(*_, **__):
        raise ZeroDivisionError("by zero")

    workshop.write()
    monkeypatch.setattr(mending, "overview", fault)
    code, _, err = call("run")
    assert code == 1 and "unexpected error: ZeroDivisionError: by zero" in err
    assert "Traceback" not in err and "--debug" in err
    assert workshop.leftovers() == []
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "run"])


def test_what_a_disk_refuses_is_told_with_a_mend(call, workshop, monkeypatch):
    workshop.write()
    (workshop.folder / "file").write_text("in the way")
    code, _, err = call("run", "--folder", "file/run")
    assert code == 1 and "error: Not a directory: file/run.part. Mend: a file stands" in err

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedmend.flow.stages.mend", full)
    code, _, err = call("run", "--keep-failed")
    assert code == 1 and "error: No space left on device. Mend: make room on this disk" in err
    assert "What is done is kept in" in err and "fault in fedmend" not in err


def test_a_full_disk_that_is_met_again_in_closing_says_where_it_was(call, workshop, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def closing(fed, reason):
        close(fed, reason)
        full()

    workshop.write()
    close = fm.Federation.close
    monkeypatch.setattr("fedmend.flow.mending.align", full)
    monkeypatch.setattr(fm.Federation, "close", closing)
    code, _, err = call("run")
    assert code == 1 and "make room on this disk" in err
    assert err.count("This was in the stage 'align'") == 1


def test_debug_keeps_the_traceback_of_our_own_errors(call):
    assert call("check", "absent.toml")[0] == 2
    with pytest.raises(ConfigError):
        main(["--debug", "check", "absent.toml"])


@pytest.mark.parametrize("named", [(), ("--method", "auto")])
def test_auto_is_not_audited_by_itself(call, workshop, named):
    workshop.write(method='name = "auto"')
    code, _, err = call("audit", *named)
    assert code == 2 and "'auto' is audited by what it chooses" in err
    assert "fedmend audit --ledger RUN" in err


def test_datasets_lists_what_there_is_to_try_things_on(call):
    code, out, _ = call("datasets")
    line = next(line for line in out.splitlines() if line.split()[:1] == ["breast-cancer"])
    assert code == 0 and "569" in line and "binary" in line


def test_bench_lists_and_runs(call, workshop, monkeypatch):
    from fedmend_bench import harness

    (workshop.folder / "tiny_bench_of_cli.py").write_text(
        'from fedmend_bench.harness import BenchResult, Bar\nNAME = "tiny"\nHELP = "a tiny one"\n'
        "def run(quick, rows=3):\n"
        '    return BenchResult("tiny", [{"rows": rows, "quick": quick}], [Bar("b", 1, 2, True)])\n'
    )
    monkeypatch.syspath_prepend(workshop.folder)
    monkeypatch.setitem(harness.REGISTRY, "tiny", "tiny_bench_of_cli")
    code, out, _ = call("bench")
    assert code == 0 and "a tiny one" in out
    code, out, _ = call("bench", "tiny", "--quick", "-o", "rows=5", "--json", "t.json")
    assert code == 0 and "fedmend bench tiny --quick -o rows=5" in out
    assert json.loads((workshop.folder / "t.json").read_text())["rows"] == [
        {"rows": 5, "quick": True}
    ]
    code, _, err = call("bench", "tiny", "-o", "row=5")
    assert code == 2 and "did you mean 'rows'?" in err


# ---------------------------------------------------------------- bad input
# Each spoils one thing; `check` and `run` must both name it, and leave nothing behind.


def duplicate_ids(w):
    w.bank.loc[1, "customer"] = w.bank.loc[0, "customer"]


def no_common_ids(w):
    w.telco["customer"] += 10_000


def one_class(w):
    w.bank["default"] = "yes"


def no_label_column(w):
    w.bank = w.bank.rename(columns={"default": "defaulted"})


def no_id_column(w):
    w.telco = w.telco.rename(columns={"customer": "client"})


def infinite(w):
    w.telco.loc[3, "calls"] = np.inf


def other_id_type(w):
    w.telco["customer"] = [f"C{each}" for each in w.telco["customer"]]


def missing_id(w):
    w.telco["customer"] = w.telco["customer"].astype("Int64")
    w.telco.loc[2, "customer"] = None


SPOILT_TABLES = [
    (duplicate_ids, DataError, ["party 'bank'", "column 'customer'", "duplicate id", "1000"]),
    (no_common_ids, AlignmentError, ["bank", "telco", "no id"]),
    (one_class, DataError, ["party 'bank'", "column 'default'", "'yes'"]),
    (no_label_column, DataError, ["party 'bank'", "column 'default'", "did you mean 'defaulted'"]),
    (no_id_column, DataError, ["party 'telco'", "column 'customer'", "client"]),
    (infinite, DataError, ["party 'telco'", "column 'calls'", "inf"]),
    (other_id_type, AlignmentError, ["bank", "telco", "no id", "text", "integers"]),
    (missing_id, DataError, ["party 'telco'", "column 'customer'", "missing id"]),
]


@pytest.mark.parametrize(
    ("spoil", "error", "parts"), SPOILT_TABLES, ids=lambda each: getattr(each, "__name__", "")
)
def test_bad_tables(call, workshop, spoil, error, parts):
    spoil(workshop)
    workshop.write()
    code, _, err = call("check")
    assert code == 2
    assert all(part in err for part in parts) and "Mend: " in err, err
    code, _, err = call("run")
    assert code == error.exit_code
    assert all(part in err for part in parts) and "Mend: " in err, err
    assert workshop.leftovers() == []


def empty(path):
    path.write_bytes(b"")


def not_utf8(path):
    path.write_bytes(path.read_bytes().replace(b"clerk", b"cl\xe9rk", 1))


def absent(path):
    path.unlink()


def folder(path):
    path.unlink()
    path.mkdir()


def header_only(path):
    path.write_text("customer,income,job,default\n")


def ragged(path):
    path.write_text(path.read_text() + "1,2,3,4,5,6,7\n")


@pytest.mark.parametrize("spoil", [empty, not_utf8, absent, folder, header_only, ragged])
def test_bad_files(call, workshop, spoil):
    workshop.write()
    spoil(workshop.folder / "bank.csv")
    for command, expected in (("check", 2), ("run", DataError.exit_code)):
        code, _, err = call(command)
        assert code == expected
        assert "party 'bank'" in err and "bank.csv" in err and "Mend: " in err, err
    assert workshop.leftovers() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_unreadable_file(call, workshop):
    workshop.write()
    (workshop.folder / "bank.csv").chmod(0)
    code, _, err = call("run")
    assert code == DataError.exit_code and "no permission" in err


def test_all_spoilt_tables_are_reported_together(call, workshop):
    duplicate_ids(workshop)
    infinite(workshop)
    workshop.write()
    code, _, err = call("check")
    assert code == 2 and "2 problems" in err and "duplicate id" in err and "inf" in err


def test_a_column_all_missing_is_noted_and_trained_without(call, workshop):
    workshop.telco["minutes"] = np.nan
    workshop.write()
    code, out, _ = call("check")
    assert code == 0 and "note party 'telco', column 'minutes': all 160 cells are missing" in out
    code, out, err = call("run")
    assert code == 0 and "note: party 'telco', column 'minutes': all 160 cells are missing" in err
    assert "telco has 1 column without any value" in " ".join(out.split())


def test_a_nominal_value_unseen_in_training_is_scored_all_the_same(call, workshop):
    from fedmend.flow.reading import split_by_id

    workshop.write()
    table = fm.read("bank.csv", id="customer")
    unseen = split_by_id(table, 0.25, 0)[1].ids
    workshop.bank.loc[workshop.bank["customer"].isin(unseen), "job"] = "astronaut"
    workshop.write()
    code, _, err = call("run")
    assert (code, err) == (0, "")


def test_missing_cells_are_legal(call, workshop):
    workshop.bank.loc[::3, "income"] = np.nan
    workshop.bank.loc[::5, "job"] = None
    workshop.bank.loc[::7, "default"] = None
    workshop.write()
    assert call("check")[0] == 0
    code, out, _ = call("run")
    assert code == 0 and "bank has a label for" in " ".join(out.split())


def test_ids_written_differently_match_as_text(call, workshop):
    workshop.bank["customer"] = [f"C{each}" for each in workshop.bank["customer"]]
    workshop.telco["customer"] = [f"c{each}" for each in workshop.telco["customer"]]
    workshop.write('[align]\nnormalise = "text"\n')
    assert call("check")[0] == 0
    assert call("run")[0] == 0


def test_a_party_may_refuse(call, workshop):
    workshop.write()
    policy = 'label = "default"\n[party.policy]\nmin_intersection = 5000\n'
    workshop.edit(('label = "default"\n', policy))
    code, _, err = call("run")
    assert code == Refused.exit_code
    assert "party 'bank' refused" in err and "5000" in err and "Mend: " in err
    assert workshop.leftovers() == []


def test_few_common_rows_are_warned_about_in_one_line(call, workshop):
    workshop.telco["customer"] += 75
    workshop.write(method='name = "local"\nepochs = 2')
    text = workshop.config.read_text()
    few = "[party.policy]\nmin_rows = 1\n"
    workshop.config.write_text(
        re.sub(r'(label = "default"\n|id = "customer"\n(?!label))', r"\1" + few, text)
    )
    code, _, err = call("run")
    assert code == 0
    assert "note: only " in err and "can reveal single values" in err
    assert all(line.startswith("note: ") for line in err.strip().splitlines())
