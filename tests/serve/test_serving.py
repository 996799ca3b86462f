"""A model behind HTTP, on loopback: what it answers, what it refuses, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pandas as pd
import pytest
from tests.serve.conftest import people, run_of, serving

import fedmend as fm
from fedmend.errors import ConfigError
from fedmend.serve import Client, predict_run
from fedmend.serve import serving as room
from fedmend.serve.client import NotAnswered
from fedmend.serve.service import Families
from fedmend.serve.serving import PredictServer

pytestmark = pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")


def ask(address, content=None, path="predict", **headers):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def look(address, path):
    try:
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def server(vertical):
    with serving(PredictServer(vertical, "vfl")) as found:
        yield found


@pytest.fixture
def rows():
    frame = people(6, 9)
    return {
        "bank": frame[["id", "a", "b", "city"]].iloc[:4].to_dict("records"),
        "telco": frame[["id", "c", "d", "e"]].iloc[2:].to_dict("records"),
    }


def test_it_answers_as_the_files_do(server, rows, vertical, tmp_path):
    status, found = ask(server.address, rows)
    assert status == 200 and found["method"] == "VFL" and found["notes"] == []
    files = {name: tmp_path / f"{name}.csv" for name in rows}
    for name, path in files.items():
        pd.DataFrame(rows[name]).to_csv(path, index=False)
    for done in predict_run(vertical, files, tmp_path / "out", method="vfl"):
        expected = pd.read_csv(done.path)
        served = pd.DataFrame(found["predictions"][done.party])
        assert served["id"].tolist() == expected["id"].tolist()
        assert served["known_to"].tolist() == expected["known_to"].tolist()
        assert served["prediction"].tolist() == expected["prediction"].tolist()
        columns = ["p(no)", "p(yes)", "uncertainty"]
        np.testing.assert_allclose(served[columns], expected[columns], atol=1e-6)


def test_why_one_person_is_not_joined_is_among_the_notes(server, rows):
    one = {"bank": rows["bank"][2:3], "telco": rows["telco"][:1]}
    assert one["bank"][0]["id"] == one["telco"][0]["id"]
    status, found = ask(server.address, one)
    assert status == 200 and found["predictions"]["bank"][0]["known_to"] == "bank"
    (note,) = found["notes"]
    assert "min_intersection = 1" in note and str(one["bank"][0]["id"]) not in note


def test_true_and_false_and_halves_are_taken_as_in_training(tmp_path):
    """The rows that a model has learnt from, as a file, as JSON and by their ids."""
    frame = people(80, 4)
    rng = np.random.default_rng(4)
    bank = frame[["id", "a"]].assign(
        flag=rng.random(80) < 0.5, dose=rng.choice([0.5, 1.5], 80), y=frame["y"]
    )
    telco = frame[["id", "c"]]
    run = run_of(tmp_path, {"bank": bank, "telco": telco}, {"vfl": "epochs = 1"})
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "telco")}
    (done,) = predict_run(run, files, tmp_path / "out")
    found = pd.read_csv(done.path).set_index("id")[["p(no)", "p(yes)"]]
    tables = {name: fm.read(path, id="id") for name, path in files.items()}
    fed = fm.Federation(*(fm.Party(name, table) for name, table in tables.items()))
    fm.align(fed)
    expected = fm.VFL.load(run / "model" / "vfl", fed).predict_proba(fed, rows="aligned")
    order = tables["bank"].ids[fed.engine.sites["bank"].alignments["train"].aligned]
    np.testing.assert_allclose(found.loc[order], expected, atol=1e-6)
    with serving(PredictServer(run)) as server:
        rows = {"bank": bank.drop(columns="y"), "telco": telco}
        asked = {name: each.to_dict("records") for name, each in rows.items()}
        for content in (asked, {"ids": frame["id"].tolist(), "deadline_ms": 60_000}):
            status, answer = ask(server.address, content)
            assert status == 200, answer
            told = pd.DataFrame(answer["predictions"]["bank"]).set_index("id")
            np.testing.assert_allclose(told.loc[order, found.columns], expected, atol=1e-6)


def test_one_row_of_one_party_and_what_it_expects(server, rows):
    status, found = ask(server.address, {"telco": rows["telco"][:1]})
    assert status == 200
    (row,) = found["predictions"]["telco"]
    assert row["used"] == "telco" and 0 <= row["uncertainty"] <= 1
    with urllib.request.urlopen(server.address, timeout=10) as answer:
        about = json.loads(answer.read())
    assert about["parties"]["bank"] == {
        "id": "id", "columns": {"a": "continuous", "b": "continuous", "city": "nominal"},
    }  # fmt: skip
    assert about["label_party"] == "bank"
    # A name may need to be written so: that of `party adopt --run`, say.
    asked = {"ids": [1000], "deadline_ms": 60_000}
    assert ask(server.address, asked, path="models/%72un/vfl/predict")[0] == 200
    # Port 80 is not named by browsers.
    assert ask(server.address, rows, Host="localhost")[0] == 200


BAD = [
    (b"{", 400, "no JSON"),
    ([1], 422, "rows by party"),
    ({}, 422, "rows by party"),
    ({"bank": {"id": 1}}, 422, "list of objects"),
    ({"shop": [{"id": 1}]}, 422, "no party 'shop' in the run. Mend: name one of bank"),
    ({"bank": []}, 422, "no rows"),
    ({"bank": [{"a": 1.0, "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*'id'"),
    ({"bank": [{"id": 1, "a": 1.0, "b": 1.0}]}, 422, "'bank'.*'city'.*Mend"),
    ({"bank": [{"id": 1, "a": "x", "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*'a'.*'x'.*Mend"),
    ({"bank": [{"id": 1, "a": [1], "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*'a'.*one value"),
    ({"bank": [{"id": 1, "a": 10**400, "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*'a'.*64 bits"),
    ({"ids": [1000], "deadline_ms": True}, 422, "deadline_ms.*True"),
    ({"bank": [{"id": "\ud800", "a": 1.0, "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*'id'.*text"),
    ({"bank": 2 * [{"id": 1, "a": 1.0, "b": 1.0, "city": "Ulm"}]}, 422, "'bank'.*Mend"),
]


def test_bad_requests_are_answered(server):
    for content, status, words in BAD:
        found = ask(server.address, content)
        assert found[0] == status and re.search(words, found[1]["error"]), content
    # and nothing is broken by them; what it has never seen is told
    row = {"id": 1, "a": 1.0, "b": 0.0, "city": "Rome", "shoes": "2024-05-01"}
    status, found = ask(server.address, {"bank": [row]})
    assert status == 200
    assert any("'Rome' in 1 row, which" in note for note in found["notes"])
    assert any("'shoes'" in note for note in found["notes"])


def test_large_requests_are_not_read(server, monkeypatch):
    for length, status in [("\xb2", 411), ("-1", 411), ("9" * 5000, 413)]:
        assert ask(server.address, b"{}", **{"Content-Length": length})[0] == status
    monkeypatch.setattr(room, "MAX_REQUEST_BYTES", 100)
    status, found = ask(server.address, b" " * 101)
    assert status == 413 and "at most 100" in found["error"]
    monkeypatch.setattr(room, "MAX_REQUEST_ROWS", 2)
    status, found = ask(server.address, {"bank": [{"id": each} for each in range(3)]})
    assert status == 422 and "fedmend predict takes files" in found["error"]


def test_no_two_ways_to_see_where_a_request_ends(server):
    """A proxy that sees them otherwise would hand an answer to somebody else."""
    hidden = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(hidden)
    asked = [
        (b"GET /", length, b"200"),
        (b"GET /", b"Transfer-Encoding: chunked\r\n", b"200"),
        (b"POST /predict", b"Content-Length: 0\r\n" + length, b"411"),
        (b"POST /predict", b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", b"411"),
    ]
    host, port = server.address[7:-1].split(":")
    for line, headers, status in asked:
        with socket.create_connection((host, int(port)), timeout=10) as end:
            end.sendall(line + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + hidden)
            with suppress(ConnectionResetError):  # some of it was not read
                answer = b"".join(iter(partial(end.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 " + status) and answer.count(b"HTTP/1.1 ") == 1, headers


def test_a_log_that_cannot_be_written_is_told(vertical, tmp_path):
    for log in (tmp_path, tmp_path / "none" / "log.jsonl"):
        with pytest.raises(ConfigError, match=rf"--log {log} cannot be written.* Mend: "):
            PredictServer(vertical, "vfl", log=log)


def test_what_is_looked_at_is_told_in_words_where_tables_are_gone(vertical, tmp_path, capfd):
    shutil.copytree(vertical, run := tmp_path / "run")
    with serving(PredictServer(run, "vfl")) as server:
        for path in ("health", "metrics"):
            status, found = look(server.address, path)
            assert status == 422 and "'bank'" in found and "Mend" in found
        for name in ("bank.csv", "telco.csv"):
            shutil.copy(vertical.parent / name, tmp_path / name)
        assert look(server.address, "health")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_names_with_quotation_marks_are_read_by_prometheus():
    families = Families()
    families.add("fedmend_partner_up gauge", 1, partner='St. "Anna"\\\n')
    assert '{partner="St. \\"Anna\\"\\\\\\n"} 1\n' in str(families)


def test_a_fault_of_ours_is_not_told_as_bad_json(server, monkeypatch, caplog):
    monkeypatch.setattr(PredictServer, "predict", lambda self, asked: int("x"))
    status, found = ask(server.address, {"bank": []})
    assert status == 500 and "a fault in fedmend" in found["error"]
    assert "a request could not be answered" in caplog.text


def test_every_question_is_logged_and_counted_also_one_that_is_turned_away(
    vertical, rows, tmp_path
):
    log = tmp_path / "requests.jsonl"
    with serving(PredictServer(vertical, "vfl", log=log)) as server:
        asked = [rows, {"bank": []}, b"{", {"ids": [1000], "deadline_ms": 60_000}]
        assert [ask(server.address, each)[0] for each in asked] == [200, 422, 400, 200]
        assert ask(server.address, rows, path="models/run/clean/predict")[0] == 404
        assert ask(server.address, rows, Origin="https://a.b")[0] == 403
        lines = [json.loads(each) for each in log.read_text().splitlines()]
        text = server.versions.metrics_text()
    told = [(each["outcome"], each["rows"]) for each in lines]
    assert told[:4] == [("complete", 6), ("invalid", 0), ("invalid", 0), ("complete", 1)]
    assert told[4:] == [("invalid", 0), ("refused", 0)]
    assert {each["model"] for each in lines} == {"run/vfl"} and lines[0]["ms"] > 0
    of = 'model="run/vfl"'
    for outcome, requests in (("complete", 2), ("invalid", 3), ("refused", 1)):
        assert f'fedmend_request_seconds_count{{{of},outcome="{outcome}"}} {requests}\n' in text
    assert f'fedmend_rows_total{{{of},outcome="complete"}} 7\n' in text
    assert text.count("# TYPE fedmend_request_seconds histogram") == 1


def test_parties_of_the_same_columns_are_logged_too(horizontal, tmp_path):
    """Nobody's people can be asked about there, so that no table is ever read."""
    log = tmp_path / "requests.jsonl"
    rows = people(12, 9).drop(columns="y").to_dict("records")
    with serving(PredictServer(horizontal, "sage", log=log)) as server:
        assert ask(server.address, {"north": rows})[0] == 200
        assert ask(server.address, {"ids": [1]})[0] == 422
        status, found = look(server.address, "health")
        assert status == 200 and json.loads(found)["partners"] == {}
        status, found = look(server.address, "metrics")
        assert 'outcome="complete"} 12\n' in found
    told = [json.loads(each) for each in log.read_text().splitlines()]
    assert [(each["outcome"], each["rows"]) for each in told] == [("complete", 12), ("invalid", 0)]


def test_people_are_asked_about_by_the_rule_of_the_run(tmp_path):
    """One side has lost the zeros in front; whoever asks may have, too."""
    frame = people(60, 4)
    written = (frame["id"] - 3950).map("{:05}".format)  # 00050 … 00109
    tables = {
        "bank": frame[["id", "a", "b", "y"]].assign(id=written),
        "telco": frame[["id", "c"]].assign(id=frame["id"] - 3950),
    }
    run = run_of(tmp_path, tables, {"vfl": "epochs = 1"}, align='normalise = "number"')
    with serving(PredictServer(run)) as server:
        for many in (1, 20):  # some are looked up one by one, more together
            ids = [100, "00100", "100", "0100 ", 7] * many
            status, found = ask(server.address, {"ids": ids, "deadline_ms": 60_000})
            assert status == 200
            rows = found["predictions"]["bank"]
            assert [row["id"] for row in rows] == ids
            assert rows[4] == {"id": 7, "unknown": True}
            assert {tuple(row["used"]) for row in rows[:4]} == {("bank", "telco")}
            assert len({row["p(yes)"] for row in rows if "unknown" not in row}) == 1


def test_for_this_machine_only(server, rows):
    assert server.address.startswith("http://127.0.0.1:")
    hosts = [{"Host": name} for name in ("evil.example", ":1", "a:127.0.0.1")]
    for headers in [*hosts, {"Origin": "https://a.b"}]:
        assert ask(server.address, rows, **headers)[0] == 403
    assert ask(server.address, rows, path="other")[0] == 404


@pytest.mark.slow
def test_a_real_process_ends_with_ctrl_c(vertical):
    command = [sys.executable, "-m", "fedmend", "serve", str(vertical), "--method", "vfl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]
            row = {"id": 1, "a": 1.0, "b": 0.0, "city": "Ulm"}
            assert ask(address, {"bank": [row]})[0] == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stdout.read().strip() == "ended"
        finally:
            if process.poll() is None:
                process.kill()


class _Proxy(BaseHTTPRequestHandler):
    def do_POST(self):
        status, body = (502, b"<html>") if self.path == "/predict" else (200, b"fine")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def test_what_a_proxy_says_is_no_answer(server):
    with HTTPServer(("127.0.0.1", 0), _Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            for path, status in (("", 502), ("/elsewhere", 200)):
                with Client(f"http://127.0.0.1:{proxy.server_port}{path}") as asking:
                    with pytest.raises(NotAnswered, match=f"{status} .* no answer of fedmend") as e:
                        asking([1])
                    assert e.value.status == status
        finally:
            proxy.shutdown()
    with Client(server.address) as asking:  # ids as arrays have them
        assert asking(np.array([1000, 1001]), seconds=30)[1]["id"] == 1001
