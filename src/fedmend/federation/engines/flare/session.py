"""Opening a flare engine: wait for the parties, submit the job, and take the relay's call.

The coordinator's process listens on a socket file that only its user can open; the job's process
at the server, which runs on the same machine, connects to it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.errors import MissingExtra, PartyAbsent
from fedmend.federation.engines.flare.engine import FlareEngine
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.engines.flare.link import READY, Link
from fedmend.federation.ledger import Ledger

if TYPE_CHECKING:
    from fedmend.federation.engines.flare.collab import Admin

logger = logging.getLogger(__name__)

SERVER = "server"
JOB_SECONDS = 120.0
Waiting = Callable[[list[str]], None]


@dataclass(frozen=True)
class Reach:
    """How the server is reached, and how long anything is waited for.

    admin: the coordinator's own kit. user: its name at the server. party_class: the class that
    a job names for the parties. wait_seconds: for parties that are not connected yet.
    """

    admin: Path
    user: str
    party_class: str
    wait_seconds: float = 60.0
    call_timeout: float = 3600.0
    stall_seconds: float = 60.0


def open_engine(
    reach: Reach,
    parties: Sequence[str],
    hello: Hello,
    *,
    ledger: Ledger,
    waiting: Waiting | None = None,
) -> FlareEngine:
    """Start a job with these parties and say hello to them. `waiting` is told who is missing."""
    admin = _login(reach)
    scratch = Path(tempfile.mkdtemp(prefix="fedmend-"))
    ears = socket.socket(socket.AF_UNIX)
    job_id = ""
    try:
        _wait_for(admin, parties, reach.wait_seconds, waiting)
        _clean_up(admin)
        address = scratch / "relay"
        ears.bind(str(address))
        ears.listen(1)
        job_id = _submit(admin, scratch, reach, hello, str(address), parties)
        link = _relay(admin, ears, job_id)
        return FlareEngine(
            link,
            parties,
            hello,
            ledger=ledger,
            call_timeout=reach.call_timeout,
            stall_seconds=reach.stall_seconds,
            ended=lambda: _end(admin, job_id),
        )
    except BaseException:
        _end(admin, job_id)
        raise
    finally:
        ears.close()
        shutil.rmtree(scratch, ignore_errors=True)


def connected(reach: Reach) -> list[str]:
    """The parties that are connected to the server now."""
    admin = _login(reach)
    try:
        return admin.clients()
    finally:
        admin.close()


def _login(reach: Reach) -> Admin:
    try:
        from fedmend.federation.engines.flare.collab import Admin
    except ImportError as error:
        raise MissingExtra("nvflare", "flare", "a federation of several machines") from error
    deadline = time.monotonic() + reach.wait_seconds
    while True:
        try:
            return Admin(reach.admin, reach.user)
        except Exception as error:  # FLARE raises a dozen kinds for "not there (yet)"
            if time.monotonic() > deadline:
                raise PartyAbsent(SERVER, f"the FLARE server cannot be reached: {error}") from error
            time.sleep(1.0)


def _wait_for(
    admin: Admin, parties: Sequence[str], seconds: float, waiting: Waiting | None
) -> None:
    deadline = time.monotonic() + seconds
    told: list[str] = []
    while True:
        there = admin.clients()
        missing = [name for name in parties if name not in there]
        if not missing:
            return
        if missing != told and waiting is not None:
            waiting(missing)
        told = missing
        if time.monotonic() > deadline:
            others = f" (there are {', '.join(there)})" if there else ""
            raise PartyAbsent(
                missing[0],
                f"not connected to the server within {seconds:.0f} s"
                + (f", nor {', '.join(missing[1:])}" if missing[1:] else "")
                + others,
            )
        time.sleep(0.5)


def _clean_up(admin: Admin) -> None:
    """A job whose process died stays listed as running, and would block the next one."""
    for stale in admin.running():
        logger.info("ending the stale job %s", stale)
        admin.abort(stale)


def _submit(
    admin: Admin, scratch: Path, reach: Reach, hello: Hello, address: str, parties: Sequence[str]
) -> str:
    from fedmend.federation.engines.flare.collab import write_job

    name = re.sub(r"[^A-Za-z0-9_-]", "-", hello.run)
    return admin.submit(write_job(scratch, name, reach.party_class, address, parties))


def _relay(admin: Admin, ears: socket.socket, job_id: str) -> Link:
    """The link to the job's process, once it runs; a job that fails before is named."""
    deadline = time.monotonic() + JOB_SECONDS
    ears.settimeout(1.0)
    while True:
        with contextlib.suppress(TimeoutError):
            end, _ = ears.accept()
            break
        status = admin.status(job_id)
        if status.startswith(("FINISHED", "ABANDONED", "FAILED")) or time.monotonic() > deadline:
            raise PartyAbsent(
                SERVER,
                f"the job did not start (FLARE says {status or 'nothing'}): a party refused it, "
                "or lost the connection; log.txt in the kits of server and parties says why",
            )
    end.settimeout(None)
    link = Link(end)
    frame = link.receive()
    if frame is None or frame.status != READY:
        raise PartyAbsent(SERVER, "the job's process ended at once")
    logger.info("job %s runs with %s", job_id, ", ".join(json.loads(frame.payload)))
    return link


def _end(admin: Any, job_id: str) -> None:
    """The relay ends by itself when the link closes; whatever is left is aborted."""
    try:
        if job_id:
            deadline = time.monotonic() + 10.0
            while time.monotonic() < deadline and not admin.status(job_id).startswith("FINISHED"):
                time.sleep(0.5)
            if not admin.status(job_id).startswith("FINISHED"):
                admin.abort(job_id)
        admin.close()
    except Exception as error:  # the server may be the one that is gone
        logger.info("logging out: %s", error)
