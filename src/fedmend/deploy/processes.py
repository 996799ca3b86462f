"""The long-lived process of a kit: FLARE's server or client, kept up by a supervisor of ours.

The supervisor starts FLARE's process, starts it again when it dies, and ends it with everything it
started. A file in the kit says who it is; a process id alone could by now be somebody else's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend._json import typed
from fedmend.deploy.provision import anchor_server, require_kit_valid
from fedmend.deploy.reach import reach, require_free
from fedmend.errors import ConfigError, MissingExtra
from fedmend.federation.engines.flare.events import EVENTS_FILE, Events
from fedmend.federation.engines.flare.kits import (
    KEEP_JOBS,
    clear_folders,
    clear_store,
    owner_of,
    server_of,
)

PROCESS_FILE = "process.json"
OUTPUT_FILE = "output.txt"
QUICK_DEATHS = 5
CLEAR_SECONDS = 60.0
LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class Running:
    """A supervisor that is up, and FLARE's process under it (0 while it is being restarted).

    since, child_since: seconds after the machine's start, whose mark is `boot`: the clock may be
    set while they run.
    """

    supervisor: int
    child: int
    since: float
    child_since: float = 0.0
    boot: str = ""

    @property
    def began(self) -> float:
        """Seconds since the epoch, by the clock as it is now."""
        return float(_psutil().boot_time()) + self.since


def role_of(kit: Path) -> str:
    """ "party" or "server", by what the kit holds."""
    for role, name in (("party", "fed_client.json"), ("server", "fed_server.json")):
        if (kit / "startup" / name).is_file():
            return role
    raise ConfigError(
        f"{kit} is no start-up kit. Mend: name a folder that 'fedmend provision' made, "
        "for instance kits/bank"
    )


class Daemon:
    """The process of one kit."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit.resolve()
        self.role = role_of(self.kit)
        self.events = Events(self.kit / EVENTS_FILE)
        self._stop = threading.Event()
        self._looked, self._trouble = 0.0, ""
        self._started: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------ from outside

    def running(self) -> Running | None:
        """Who runs this kit now; None when nobody does."""
        found = self._noted()
        return found if found and _is_alive(found.supervisor, found.since) else None

    def _noted(self) -> Running | None:
        """Who ran this kit last, by its file."""
        try:
            known = json.loads((self.kit / PROCESS_FILE).read_text(encoding="utf-8"))
            found = typed(Running, known)
            return found if found.boot == _boot() else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def start(self, *, seconds: float = 60.0, owned: bool = False) -> Running:
        """Start a supervisor in the background, and wait until FLARE's process is up.

        owned: it ends when the process that calls this is gone, however that ended.
        """
        self._refuse_second()
        self.require_valid()
        if self.role == "server":
            self._end_orphan()  # which would hold the port
            require_free(*server_of(self.kit))
        owner = [str(os.getpid())] if owned else []
        with (self.kit / OUTPUT_FILE).open("ab") as output:
            self._started = process = subprocess.Popen(
                [sys.executable, "-m", "fedmend.deploy.processes", str(self.kit), *owner],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.running()
            if found is not None and found.child:
                return found
            if process.poll() is not None:
                break
            time.sleep(0.1)
        process.terminate()
        process.wait()
        raise ConfigError(
            f"the process of {self.kit.name} did not start. Mend: see {self.kit / OUTPUT_FILE}"
        )

    def require_valid(self) -> None:
        """That the certificates of this kit are valid now."""
        require_kit_valid(self.kit)

    def stop(self, *, seconds: float = 20.0) -> bool:
        """End the supervisor and all below it; False when nothing ran."""
        found = self.running()
        if found is None:
            return False
        _end_processes(found.supervisor, seconds, ask_all=False)  # which ends those below it
        if self._started is not None:
            self._started.wait()
            self._started = None
        (self.kit / PROCESS_FILE).unlink(missing_ok=True)
        return True

    def is_connected(self) -> bool:
        """Whether the party's process has its connection to the server."""
        found = self.running()
        if found is None or not found.child:
            return False
        _, port = server_of(self.kit)
        psutil = _psutil()
        try:
            connections = psutil.Process(found.child).net_connections(kind="tcp")
        except psutil.Error:
            return False
        return any(
            each.status == psutil.CONN_ESTABLISHED and each.raddr and each.raddr.port == port
            for each in connections
        )

    # ------------------------------------------------------------------ from inside

    def supervise(self, tick: Callable[[], None] | None = None, owner: int = 0) -> None:
        """Keep FLARE's process up until told to stop; `tick` is called twice a second.

        owner: a process without which this one has no purpose.
        """
        self._refuse_second()
        owner_since = _born(owner) if owner else 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        self._end_orphan()
        self._clean()
        quick, cleared = 0, time.monotonic()
        child: subprocess.Popen[bytes] | None = None
        try:
            while not self._stop.is_set():
                began = self._looked = time.monotonic()
                child = self._spawn()
                self._remember(child.pid)
                while not self._stop.wait(0.5) and child.poll() is None:
                    if tick is not None:
                        tick()
                    if self.role == "party" and time.monotonic() - cleared > CLEAR_SECONDS:
                        self._clean()
                        cleared = time.monotonic()
                    if self.role == "party":
                        self._look()
                    if owner and not _is_alive(owner, owner_since):
                        self._stop.set()
                if self._stop.is_set():
                    break
                quick = quick + 1 if time.monotonic() - began < 60 else 0
                self._remember(0)
                if quick >= QUICK_DEATHS:
                    self._give_up(child.returncode)
                self.events.note(
                    f"FLARE's process ended (code {child.returncode}); starting it again", "error"
                )
                self._stop.wait(1.0)
        finally:
            # However this ends, FLARE's process must not go on without anybody looking.
            if child is not None and child.poll() is None:
                _end_processes(child.pid)
                child.wait()
            (self.kit / PROCESS_FILE).unlink(missing_ok=True)

    def _look(self) -> None:
        """Tell the people here why there is no connection: FLARE tries on, and says so nowhere."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        connected = self.is_connected()
        wrong, words = (False, "") if connected else reach(self.kit, 3.0)
        if wrong and words != self._trouble:
            self.events.note(f"no connection to the server: {words}", "error")
        elif connected and self._trouble:
            self.events.note("connected to the server again")
        self._trouble = words if wrong else ""
        self._looked = time.monotonic()

    def _give_up(self, code: int) -> None:
        words = f"FLARE's process ended {QUICK_DEATHS} times at once (code {code}); giving up"
        self.events.note(words, "error")
        raise ConfigError(f"{words}. Mend: see log.txt and {OUTPUT_FILE} in {self.kit}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        if self.role == "server":
            anchor_server(self.kit)
            module, config = "server.server_train", "fed_server.json"
            names = ["org=coordinator"]
        else:
            module, config = "client.client_train", "fed_client.json"
            party = owner_of(self.kit)
            names = [f"uid={party}", f"org={party.replace('-', '_')}"]
        with (self.kit / OUTPUT_FILE).open("ab") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"),
                    *("-m", str(self.kit), "-s", config, "--set", "secure_train=true"),
                    *(*names, "config_folder=config"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _remember(self, child: int) -> None:
        me, since = os.getpid(), _born(child) if child else 0.0
        content = asdict(Running(me, child, _born(me), since, _boot()))
        write_whole(self.kit / PROCESS_FILE, json.dumps(content))

    def _refuse_second(self) -> None:
        found = self.running()
        if found is not None and found.supervisor != os.getpid():
            raise ConfigError(
                f"{self.kit.name} runs already (process {found.supervisor}). "
                f"Mend: 'fedmend {self.role} stop' first"
            )

    def _end_orphan(self) -> None:
        """A supervisor that was killed leaves FLARE's process behind, under the same name."""
        known = self._noted()
        if known and known.child and _is_alive(known.child, known.child_since):
            self.events.note(f"ending process {known.child}, left by a supervisor that was killed")
            _end_processes(known.child)

    def _clean(self) -> None:
        """Remove what jobs left in the kit, but for the last ones."""
        if self.role == "party":
            clear_folders(self.kit, self._kept_jobs())
            return
        clear_folders(self.kit, 0)
        clear_store(self.kit)
        shutil.rmtree(self.kit / "snapshots", ignore_errors=True)

    def _kept_jobs(self) -> int:
        """As party.toml says; all of what reads it in earnest is too much for a supervisor."""
        try:
            told = tomllib.loads((self.kit / "party.toml").read_text(encoding="utf-8"))
            return max(0, int(told.get("keep_jobs", KEEP_JOBS)))
        except (OSError, ValueError, TypeError):
            return KEEP_JOBS


def _is_alive(pid: int, since: float) -> bool:
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        return abs(_born(pid) - since) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _born(pid: int) -> float:
    """Seconds after the machine's start; what psutil tells moves with the clock."""
    psutil = _psutil()
    try:
        return float(psutil.Process(pid).create_time() - psutil.boot_time())
    except psutil.NoSuchProcess:
        return 0.0


def _boot() -> str:
    """What marks this start of the machine, after which the same numbers are other processes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _end_processes(pid: int, seconds: float = 5.0, *, ask_all: bool = True) -> None:
    """End a process and all below it: those that were asked and have not ended are killed."""
    psutil = _psutil()
    try:
        top = psutil.Process(pid)
        processes = [*top.children(recursive=True), top]
    except psutil.NoSuchProcess:
        return
    for process in processes if ask_all else [top]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise MissingExtra("psutil", "flare", "a federation of several machines") from error
    return psutil


if __name__ == "__main__":
    Daemon(Path(sys.argv[1])).supervise(owner=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
