"""The live page: what a run tells while it trains, served on loopback."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest
from tests.serve.conftest import serving

from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.live import LIVE_FILE, Listener, LiveState, read_live
from fedmend.serve import loopback
from fedmend.serve.watching import WatchServer, live_page


def watching(run):
    return serving(WatchServer(run))


def get(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


class Watcher(Listener):
    """Looks at the page in the middle of the second training."""

    def __init__(self, run):
        self.run, self.stages, self.seen = run, [], None

    def stage(self, words):
        self.stages.append(words)

    def progress(self, title, done, total, facts=None):
        trainings = [each for each in self.stages if each.startswith("Training")]
        if len(trainings) == 2 and done == 2 and self.seen is None:
            with watching(self.run) as server:
                self.seen = (json.loads(get(server.address + "state")), get(server.address))
            self.live = read_live(self.run.with_name(self.run.name + ".part"))


@pytest.fixture(scope="module")
def watched(make_workshop, tmp_path_factory):
    """A finished run (not to be changed), who looked at it meanwhile, and its record."""
    workshop = make_workshop(tmp_path_factory.mktemp("watched"))
    workshop.write('[[method]]\nname = "local"\nepochs = 2\n')
    watcher = Watcher(workshop.run)
    record = execute(plan_of(load_config(workshop.config)), workshop.run, listener=watcher)
    return workshop, watcher, record


def test_the_page_of_a_run_that_is_going_on(watched):
    _, watcher, record = watched
    state, page = watcher.seen
    assert state["finished"] is False
    assert 'id="live"' in page and "Training Local" in page
    assert 'id="overview"' in page and "What is torn" in page
    assert 'id="costs"' in page and "Finding the rows that are known to all" in page
    # the first method is scored already, the second one's curve has begun
    assert [run.title for run in watcher.live.record.methods][:1] == ["VFL"]
    assert watcher.live.record.methods[0].scores == record.methods[0].scores
    assert watcher.live.stage == "Training Local"


def test_a_finished_run_shows_its_report(watched, tmp_path):
    workshop, _, _ = watched
    assert not (workshop.run / LIVE_FILE).exists()
    with watching(workshop.run) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert json.loads(get(server.address + "state"))["finished"] is True
        page = get(server.address)
    report = (workshop.run / "report.html").read_text()
    assert report.partition("<main>")[2].partition("</main>")[0] in page
    shutil.copytree(workshop.run, tmp_path / "run", ignore=shutil.ignore_patterns("report.html"))
    with watching(tmp_path / "run") as server:
        assert json.loads(get(server.address + "state"))["finished"] is True
        assert "finished, and the run leaves the report out" in get(server.address)


def test_only_this_machine_by_its_own_name(watched):
    workshop, _, _ = watched
    with watching(workshop.run) as server:
        for url, host, code in [
            (server.address, "evil.example:80", 403),
            (server.address + "ledger.jsonl", None, 404),
            (server.address + "../federation.toml", None, 404),
        ]:
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(url, host)
            assert caught.value.code == code
            caught.value.close()


def test_a_run_that_has_told_nothing_yet(workshop):
    part = workshop.run.with_name("federation.part")
    part.mkdir(parents=True)
    with watching(workshop.run) as server:
        assert "has not reported anything yet" in get(server.address)
        for text in ('{"stage": "half', "{}", "[]", '{"record": {"format": 99}}'):
            (part / LIVE_FILE).write_text(text)
            assert "has not reported anything yet" in get(server.address)


def test_a_run_whose_folder_is_deleted(tmp_path):
    part = tmp_path / "run.part"
    part.mkdir()
    with watching(tmp_path / "run") as server:
        assert json.loads(get(server.address + "state"))["finished"] is False
        part.rmdir()
        assert json.loads(get(server.address + "state"))["finished"] is True
        assert "folder is gone" in get(server.address)


def test_silent_and_dropped_connections(tmp_path, monkeypatch, capfd):
    """They are closed in time, leave room for others, and nothing is printed."""
    monkeypatch.setattr(loopback, "MOST_CONNECTIONS", 4)
    monkeypatch.setattr(loopback.LoopbackHandler, "timeout", 0.5)
    before = threading.active_count()
    with watching(tmp_path) as server, contextlib.ExitStack() as stack:
        place = ("127.0.0.1", int(server.address.rpartition(":")[2].strip("/")))
        for _ in range(12):
            stack.enter_context(socket.create_connection(place))
        assert "fedmend" in get(server.address)
        assert threading.active_count() <= before + 1 + 4
        for _ in range(3):
            gone = socket.create_connection(place)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            gone.close()  # a reset, in the middle of a request
        assert "fedmend" in get(server.address)
    assert "Traceback" not in capfd.readouterr().err


def test_no_such_run_and_a_taken_port(tmp_path):
    with pytest.raises(ConfigError, match="there is no run in"):
        WatchServer(tmp_path / "nothing")
    with WatchServer(tmp_path) as first:
        port = int(first.address.rpartition(":")[2].strip("/"))
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            WatchServer(tmp_path, port)


def test_a_watcher_leaves_the_run_its_time(tmp_path, monkeypatch):
    part, drawn = tmp_path / "run.part", []
    part.mkdir()
    (part / LIVE_FILE).write_text("{}")
    with WatchServer(tmp_path / "run") as server:
        server.patience = 1e9
        monkeypatch.setattr(server, "_draw", lambda: drawn.append(1) or f"page {len(drawn)}")
        first = server.state()["version"]
        assert server.page() == server.page() == "page 1"
        (part / LIVE_FILE).write_text("{ }")
        assert server.state()["version"] == first and server.page() == "page 1"
        server._again = 0.0
        assert server.state()["version"] != first and server.page() == "page 2"


def test_how_far_a_stage_is(watched, tmp_path):
    _, _, record = watched
    page = live_page(LiveState("Training <b>", 3, 12, "epochs", record), tmp_path, "1")
    assert "Training &lt;b&gt;: epochs, 3 of 12" in page
    assert '<progress max="1" value="0.250">' in page
