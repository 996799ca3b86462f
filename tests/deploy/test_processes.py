from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.deploy.processes import Daemon, Running, role_of
from fedmend.deploy.reach import require_answer, require_free
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.events import EVENTS_FILE, read_events


@pytest.fixture(autouse=True)
def light(tmp_path, monkeypatch):
    """In place of FLARE's client a process that does nothing; tests/machines has the real one."""
    place = tmp_path / "light" / "nvflare" / "private" / "fed" / "app" / "client"
    place.mkdir(parents=True)
    (place / "client_train.py").write_text("import time\n\ntime.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path / "light"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def daemon(kits):
    made = Daemon(kits.party("bank"))
    yield made
    made.stop()


def test_start_status_and_stop(daemon, fedmend):
    (daemon.kit / "party.toml").write_text("keep_jobs = 0\n")
    stale, failed = (daemon.kit / f"0b0e3f5e-0000-4000-8000-12345678900{n}" for n in (1, 2))
    for folder in (stale, failed, daemon.kit / "runs" / "r1"):
        folder.mkdir(parents=True)
    (stale / "finished").touch()
    assert daemon.running() is None
    assert daemon.stop() is False
    found = daemon.start(owned=True)
    assert psutil.pid_exists(found.child)
    assert not daemon.is_connected()  # there is no server
    code, out, _ = fedmend("party", "status", daemon.kit)
    assert code == 0
    assert "not connected" in out
    with pytest.raises(ConfigError, match="runs already"):
        Daemon(daemon.kit).start()
    assert daemon.stop() is True
    assert not psutil.pid_exists(found.supervisor)
    assert not psutil.pid_exists(found.child)
    code, out, _ = fedmend("party", "status", daemon.kit)
    assert (code, out.splitlines()[0]) == (1, "not running")
    # What old jobs left was removed, but for runs, and for the logs of what failed.
    assert not stale.exists()
    assert failed.exists() and (daemon.kit / "runs" / "r1").exists()


def test_why_there_is_no_connection_is_told_once(daemon, monkeypatch):
    def told():
        daemon._looked = -1e9
        daemon._look()
        return [event.words for event, _ in read_events(daemon.kit / EVENTS_FILE)]

    assert len(told()) == 1
    (words,) = told()
    assert words.startswith("no connection to the server: ") and "cannot be reached" in words
    monkeypatch.setattr(daemon, "is_connected", lambda: True)
    assert told()[1:] == ["connected to the server again"]


def test_a_process_that_dies_is_started_again_and_an_orphan_is_ended(daemon):
    first = daemon.start(owned=True)
    psutil.Process(first.child).kill()
    deadline = time.monotonic() + 30
    while (now := daemon.running()) is None or now.child in (0, first.child):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert now.supervisor == first.supervisor
    assert "starting it again" in daemon.events.path.read_text()
    psutil.Process(now.supervisor).kill()
    daemon._started.wait()
    assert daemon.running() is None
    second = Daemon(daemon.kit)
    try:
        assert second.start(owned=True).child != now.child
        assert not psutil.pid_exists(now.child) or (
            psutil.Process(now.child).status() == psutil.STATUS_ZOMBIE
        )
    finally:
        second.stop()


def test_an_owned_process_ends_with_its_owner(kits):
    code = (
        "import sys, pathlib\n"
        "from fedmend.deploy.processes import Daemon\n"
        "print(Daemon(pathlib.Path(sys.argv[1])).start(owned=True).supervisor)\n"
    )
    owner = subprocess.run(
        [sys.executable, "-c", code, str(kits.party("bank"))],
        capture_output=True,
        text=True,
        check=True,
    )
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(owner.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_process_id_of_somebody_else_is_not_taken_for_ours(daemon):
    path = daemon.kit / "process.json"
    path.write_text(json.dumps({"supervisor": os.getpid(), "child": 0, "since": 12345.0}))
    assert daemon.running() is None
    path.write_text("{")
    assert daemon.running() is None
    path.unlink()


def test_a_clock_that_is_set_ends_nothing(daemon, monkeypatch):
    """psutil tells when a process was born by the clock; a second party is not to be started."""
    found, told = daemon.start(owned=True), psutil._pslinux.boot_time
    for hours in (2.0, -2.0):
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda by=hours: told() + 3600 * by)
        assert Daemon(daemon.kit).running() == found
        assert abs(found.began - psutil.Process(found.supervisor).create_time()) < 1.0
    path = daemon.kit / "process.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"boot": "of another start"}))
    assert daemon.running() is None
    path.write_text(json.dumps(known))


def test_kits_are_not_mixed_up(kits, fedmend):
    assert role_of(kits.server) == "server"
    assert "is the kit of a server" in fedmend("party", "start", kits.server)[2]


def test_flare_s_process_ends_when_the_supervisor_fails(daemon, monkeypatch):
    spawned = []

    def spawn():
        spawned.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return spawned[-1]

    def tick():
        raise OSError("the screen is gone")

    monkeypatch.setattr(daemon, "_spawn", spawn)
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(OSError, match="the screen is gone"):
            daemon.supervise(tick)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert spawned[0].poll() is not None
    assert not (daemon.kit / "process.json").exists()


# ---------------------------------------------------------------- the server's address


@pytest.fixture
def seems_up(monkeypatch):
    """A server whose process runs, as far as its kit says."""
    monkeypatch.setattr(Daemon, "running", lambda daemon: Running(1, 1, 0.0))


def test_a_server_does_not_start_where_somebody_listens(kits, provisioned, fedmend):
    where = f"localhost:{provisioned.port}"
    with socket.create_server(("127.0.0.1", provisioned.port)):
        code, _, err = fedmend("server", "start", kits.folder)
        assert code == 2 and f"cannot listen at {where}: another process listens there" in err
        assert "Mend: end what listens there, or" in err
        assert not (kits.server / "process.json").exists()
        told = (1, f"not running; something else listens at {where}\n")
        assert fedmend("server", "status", kits.folder)[:2] == told
    require_free("localhost", provisioned.port)
    assert fedmend("server", "status", kits.folder)[:2] == (1, "not running\n")


@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_server_does_not_start_at_an_address_that_is_not_here(host):
    with pytest.raises(ConfigError, match=f"cannot listen at {host}:9: .*Mend: .*under .flare."):
        require_free(host, 9)


def test_a_server_that_does_not_answer_is_told_with_a_mend(kits, provisioned, fedmend, seems_up):
    silent = f"does not answer at localhost:{provisioned.port}: nothing listens there. Mend: fedm"
    with pytest.raises(ConfigError, match=silent):
        require_answer(kits, 0.1)

    def answer(ears):
        for _ in range(2):
            end, _ = ears.accept()
            with end, contextlib.suppress(OSError):  # the other side may be gone
                end.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")
                end.recv(4096)

    with socket.create_server(("127.0.0.1", provisioned.port)) as ears:
        threading.Thread(target=answer, args=(ears,), daemon=True).start()
        code, out, err = fedmend("server", "status", kits.folder)
    assert (code, out) == (2, "") and "what listens there is not it, or has other" in err
    assert f"Mend: fedmend server stop {kits.folder}, end what else listens there" in err


def test_parties_whose_kits_were_handed_out_have_a_status(kits, fedmend, monkeypatch, seems_up):
    for name in ("bank", "telco"):
        shutil.move(kits.party(name), kits.folder.parent / name)
    monkeypatch.setattr("fedmend.deploy.reach.require_answer", lambda *_: None)
    there = ["bank", "shop"]  # of one that an older authority knew
    monkeypatch.setattr("fedmend.federation.engines.flare.engine.connected", lambda *_: there)
    code, out, _ = fedmend("server", "status", kits.folder)
    assert (code, out) == (0, "bank: connected\nshop: connected\ntelco: not connected\n")
