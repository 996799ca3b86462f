"""The live page: what a run tells while it trains, served on loopback."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.live import LIVE_FILE, Listener, read_live
from fedmend.serve.watching import WatchServer


@contextmanager
def watching(run):
    with WatchServer(run) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


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
    # the first method is scored already, the second one's curve has begun
    assert [run.title for run in watcher.live.record.methods][:1] == ["VFL"]
    assert watcher.live.record.methods[0].scores == record.methods[0].scores
    assert watcher.live.stage == "Training Local"


def test_a_finished_run_shows_its_report(watched):
    workshop, _, _ = watched
    assert not (workshop.run / LIVE_FILE).exists()
    with watching(workshop.run) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert json.loads(get(server.address + "state"))["finished"] is True
        page = get(server.address)
    report = (workshop.run / "report.html").read_text()
    assert report.partition("<main>")[2].partition("</main>")[0] in page


def test_a_finished_run_may_have_no_report(watched, tmp_path):
    workshop, _, _ = watched
    run = tmp_path / "run"
    shutil.copytree(workshop.run, run)
    (run / "report.html").unlink()
    with watching(run) as server:
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
        assert "has not told anything yet" in get(server.address)
        for text in ('{"stage": "half', "{}", "[]", '{"record": {"format": 99}}'):
            (part / LIVE_FILE).write_text(text)
            assert "has not told anything yet" in get(server.address)


def test_no_such_run(tmp_path):
    with pytest.raises(ConfigError, match="there is no run in"):
        WatchServer(tmp_path / "nothing")


def test_a_taken_port(tmp_path):
    with WatchServer(tmp_path) as first:
        port = int(first.address.rpartition(":")[2].strip("/"))
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            WatchServer(tmp_path, port)


def test_stages_that_are_done_show_while_the_run_goes_on(watched):
    _, watcher, _ = watched
    _, page = watcher.seen
    assert 'id="costs"' in page and "Finding the rows that are known to all" in page


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
    from fedmend.flow.live import LiveState
    from fedmend.serve.watching import live_page

    _, _, record = watched
    page = live_page(LiveState("Training <b>", 3, 12, "epochs", record), tmp_path, "1")
    assert "Training &lt;b&gt;: epochs, 3 of 12" in page
    assert '<progress max="1" value="0.250">' in page


def ask(address):
    return json.loads(get(address + "state"))


def test_a_run_and_a_watcher_in_processes_of_their_own(workshop):
    """The page follows the run to its end; the watcher ends when told, the run is not disturbed."""
    workshop.write('[[method]]\nname = "local"\nepochs = 400\npatience = 400\n')
    command = [sys.executable, "-m", "fedmend"]
    run = subprocess.Popen(
        [*command, "run", str(workshop.config)], stdout=subprocess.DEVNULL, cwd=workshop.folder
    )
    watch = None
    try:
        part = workshop.run.with_name(workshop.run.name + ".part")
        until(lambda: (part / LIVE_FILE).is_file() or run.poll() is not None)
        watch = subprocess.Popen(
            [*command, "watch", str(workshop.run)], stdout=subprocess.PIPE, text=True
        )
        address = watch.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        versions, stages = set(), set()

        def looked() -> bool:
            assert run.poll() in (None, 0), "the run has failed"
            state = ask(address)
            versions.add(state["version"])
            stages.add(get(address).partition('id="live"')[2][:200])
            return state["finished"]

        until(looked, pause=0.7)  # a look draws the page, which the run has to wait for
        assert run.wait(120) == 0
        assert len(versions) > 1 and len(stages) > 1
        assert "finished" in get(address)
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(60) == 0
    finally:
        for process in (run, watch):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if watch is not None:
            watch.stdout.close()


def until(met, seconds=300.0, pause=0.2):
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
