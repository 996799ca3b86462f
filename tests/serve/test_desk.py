"""Questions that wait, sources of columns, and the client: without machines."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from tests.serve.conftest import people, serving

from fedmend.data.table import Table
from fedmend.deploy.party_file import confirm, load_party, unconfirmed
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation import Alignment, Site
from fedmend.serve import Client
from fedmend.serve.answering import Answers, Breaker
from fedmend.serve.client import NotAnswered
from fedmend.serve.desk import Busy, Desk, Question
from fedmend.serve.drift import MANY, Drift, stability_index
from fedmend.serve.partner import PART, PEOPLE, QUOTA, SERVE, SOURCE
from fedmend.serve.serving import PredictServer
from fedmend.serve.sources import People, Quota, source_of

pytestmark = pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")


class Slow:
    """An answerer that waits until it is let go, and notes what it was asked."""

    def __init__(self):
        self.go, self.asked = threading.Event(), []
        self.people = SimpleNamespace(rows=lambda places: (places, np.zeros(0, int)))

    def answer(self, table, places, until):
        self.go.wait(10)
        self.asked.append(places.tolist())
        n = len(places)
        return Answers(places[:, None] * 1.0, [("bank",)] * n, [{}] * n)

    def columns(self, answers):
        return {"prediction": answers.outputs[:, 0].tolist()}


def question(*places):
    return Question(np.array(places), time.monotonic() + 1)


def test_who_waits_is_answered_together_and_a_full_queue_says_so():
    slow = Slow()
    desk = Desk(slow, most=2)
    found = {}

    def ask(name, *places):
        found[name] = desk.ask(question(*places))["prediction"]

    threads = [threading.Thread(target=ask, args=("first", 1))]
    threads[0].start()
    while len(desk):
        time.sleep(0.01)
    for name, places in (("second", (5, 3)), ("third", (3,))):
        threads.append(threading.Thread(target=ask, args=(name, *places)))
        threads[-1].start()
    while len(desk) < 2:
        time.sleep(0.01)
    with pytest.raises(Busy, match="2 questions wait"):
        desk.ask(question(9))
    slow.go.set()
    for thread in threads:
        thread.join()
    desk.close()
    # One round for those who waited, and a person that two ask about is predicted once.
    assert slow.asked == [[1], [3, 5]]
    assert found == {"first": [1.0], "second": [5.0, 3.0], "third": [3.0]}


def test_an_error_is_everybodys_answer_and_the_desk_goes_on():
    slow = Slow()
    slow.go.set()
    desk = Desk(slow, most=2)
    slow.answer, right = lambda *given: 1 / 0, slow.answer
    with pytest.raises(ZeroDivisionError):
        desk.ask(question(1))
    slow.answer = right
    assert desk.ask(question(2))["prediction"] == [2.0]
    desk.close()


def test_who_asks_about_somebody_without_columns_is_told_and_the_others_are_answered():
    slow = Slow()
    lacks = lambda places: np.flatnonzero(places == 7)  # noqa: E731
    slow.people = SimpleNamespace(ids=np.arange(10), rows=lambda places: (places, lacks(places)))
    desk = Desk(slow, most=4)
    questions = [question(1), question(7, 2), question(2)]
    desk._usual = len(questions)  # all of them in one batch
    with desk._some:
        desk._waiting.extend(questions)
        desk._some.notify()
    slow.go.set()
    assert questions[0].answer.result(10)["prediction"] == [1.0]
    with pytest.raises(DataError, match="no columns of a person.*7"):
        questions[1].answer.result(10)
    assert questions[2].answer.result(10)["prediction"] == [2.0]
    desk.close()
    assert slow.asked == [[1, 2]]


def test_a_partner_tells_of_nobody_over_its_quota_and_of_no_model_that_was_revoked(tmp_path):
    table = Table.from_frame(FRAME, id="id")
    site = Site("telco", {PEOPLE: table})
    everybody = np.arange(len(table))
    site.alignments[PEOPLE] = Alignment(everybody, everybody[:0])
    site.vault |= {SOURCE: People(table), QUOTA: Quota(1), PART: tmp_path / "part"}
    worker = site.start("ServeWorker", SERVE, {})

    def take(*numbers):
        asked = {"people": PEOPLE, "numbers": np.array(numbers)}
        return site.call(worker, "take", asked).tolist()

    with pytest.raises(Refused, match="revoked"):
        take(3)
    (tmp_path / "part").mkdir()
    assert take(3) == []
    assert take(4, 3, 5) == [1], "the others are answered, and it is said of whom not"
    unknown = site.tables[SERVE].frame.isna().all(axis=1)
    assert unknown.tolist() == [False, True, False], "nothing of the second is used"
    with pytest.raises(Refused, match="these 2 people were asked about 1 times today"):
        take(4, 5)


def test_a_partner_that_fails_again_and_again_rests():
    breaker = Breaker()
    for _ in range(2):
        breaker.note(False)
    assert not breaker.is_open()
    breaker.note(False)
    assert breaker.is_open()
    breaker.note(True)
    breaker._until = 0.0
    breaker.note(False)
    assert not breaker.is_open()


def test_scores_that_are_no_longer_those_of_the_beginning(tmp_path):
    rng = np.random.default_rng(0)
    drift = Drift(tmp_path)
    drift.note(rng.beta(2, 5, MANY).tolist())
    assert drift.index() is None, "there is nothing yet to compare with the first"
    drift.note(rng.beta(2, 5, MANY).tolist())
    assert drift.index() < 0.05
    again = Drift(tmp_path)  # after a restart
    again.note(rng.beta(5, 2, MANY).tolist())
    assert again.index() > 0.25
    assert stability_index(np.array([50, 50]), np.array([80, 20])) == pytest.approx(
        0.3 * np.log(1.6) - 0.3 * np.log(0.4)
    )
    (tmp_path / "first-scores.json").write_text("{}")
    with pytest.raises(DataError, match="first-scores.json is damaged"):
        Drift(tmp_path)


def test_a_quota_is_for_each_person_and_asker(monkeypatch):
    quota = Quota(2)
    assert [quota.over("a", [1, 2]), quota.over("a", [1]), quota.over("a", [1, 2])] == [[], [], [1]]
    assert quota.over("b", [1]) == [] and Quota(None).over("a", [1] * 9) == []
    now = time.time()
    monkeypatch.setattr("fedmend.serve.sources.time.time", lambda: now + 86_400)
    assert quota.over("a", [1]) == []


def test_people_are_the_same_however_their_ids_are_written():
    table = Table(["007", "8", "Ann Lee"], {"c": [1.0, 2.0, 3.0]})
    people = People(table, "bank", "number")
    asked = [7, "7", " 007", "08", "ann  LEE", "Ann", ""]
    places = [0, 0, 0, 1, 2, -1, -1]
    assert people.places(asked).tolist() == places
    assert people.places(asked * 10).tolist() == places * 10
    quota = Quota(1)
    assert quota.over("a", people.keys([7])) == []
    assert quota.over("a", people.keys(["007", 8])) == people.keys(["7"])
    assert People(table).places([7, "7", "007"]).tolist() == [-1, -1, 0]
    with pytest.raises(DataError, match="'bank'.*rows 0 and 1 are one id"):
        People(Table(["7", "07"], {"c": [1.0, 2.0]}), "bank", "number")


# ---------------------------------------------------------------- sources


FRAME = people(30, 1)[["id", "c", "d", "e"]]


@pytest.fixture
def kit(tmp_path):
    """A party.toml with what a test says under [serve]."""
    FRAME.to_csv(tmp_path / "telco.csv", index=False)
    with sqlite3.connect(tmp_path / "f.db") as database:
        FRAME.iloc[:20].to_sql("features", database, index=False)
    database.close()

    def made(lines):
        head = 'name = "telco"\ndata = "telco.csv"\nid = "id"\n'
        (tmp_path / "party.toml").write_text(f"{head}{lines}")
        return load_party(tmp_path)

    made.folder = tmp_path
    return made


def schema():
    return Table.from_frame(FRAME, id="id").schema


def taken(source, ids):
    table, lacking = source.rows(source.places(ids))
    return table.frame, lacking.tolist()


def test_columns_from_a_file_and_a_query(kit):
    pytest.importorskip("adbc_driver_sqlite")
    source = source_of(kit("[serve]\nrows = 'telco.csv'"), schema())
    frame, lacking = taken(source, [1003, 1001])
    assert frame["c"].tolist() == FRAME["c"].iloc[[3, 1]].tolist() and lacking == []
    assert source.places([1, "x"]).tolist() == [-1, -1]
    uri = f"uri = 'sqlite:///{kit.folder}/f.db'\n"
    query = "SELECT * FROM features WHERE id IN ({ids})"
    file = kit(f"{uri}[serve]\nsql = '{query}'")
    assert [lead.key for lead in unconfirmed(file)] == ["uri", "serve.sql"]
    confirm(file)
    assert unconfirmed(file) == []
    frame, lacking = taken(source_of(file, schema()), [1019, 1025, 1001])
    np.testing.assert_allclose(frame["d"].iloc[[0, 2]], FRAME["d"].iloc[[19, 1]])
    assert lacking == [1] and frame.iloc[1].isna().all()


def test_columns_from_an_address(kit):
    class Features(BaseHTTPRequestHandler):
        def do_POST(self):
            ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ids"]
            rows = FRAME[FRAME["id"].isin(ids)].to_dict("records") if 1009 not in ids else "no"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"rows": rows}).encode())

        def log_message(self, *words):
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Features)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        file = kit(f"[serve]\nurl = 'http://127.0.0.1:{server.server_port}/'")
        source = source_of(file, schema())
        frame, lacking = taken(source, [1004, 1002])
        np.testing.assert_allclose(frame["e"], FRAME["e"].iloc[[4, 2]])
        assert lacking == []
        with pytest.raises(Refused, match="'telco'.*own source of columns"):
            source.rows(source.places([1009]))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("rows = 'a'\nurl = 'b'", "one of them"),
        ("sql = 'SELECT 1'", "where the ids go"),
        ("askers.crm = 'secret'", "askers.crm must be the SHA-256"),
        ("deadline = 0", "deadline"),
    ],
)
def test_what_is_wrong_under_serve(kit, lines, words):
    with pytest.raises(ConfigError, match=words):
        kit(f"[serve]\n{lines}")


# ---------------------------------------------------------------- one process


def test_the_client_asks_about_people_of_a_run(vertical):
    with serving(PredictServer(vertical, "vfl")) as server, Client(server.address) as ask:
        rows = ask([1000, 1060, 5], seconds=5.0)
        assert [row.get("used") for row in rows] == [["bank"], ["bank", "telco"], None]
        assert rows[1]["uncertainty"] == pytest.approx(min(rows[1]["p(no)"], rows[1]["p(yes)"]))
        assert ask.health()["partners"] == {"telco": "there"}
        with pytest.raises(NotAnswered, match="list of numbers") as caught:
            ask([])
        assert caught.value.status == 422


def test_ids_are_not_sql(kit):
    pytest.importorskip("adbc_driver_sqlite")
    from fedmend.data.sql import query_rows

    uri = f"sqlite:///{kit.folder}/f.db"
    query = "SELECT * FROM features WHERE id IN ({ids})"
    assert query_rows(query, ["1 OR 1=1", "1); DROP TABLE features; --"], uri=uri) == []
    assert len(query_rows(query, [1001, 1002], uri=uri)) == 2
