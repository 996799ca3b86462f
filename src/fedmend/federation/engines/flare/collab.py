"""The one file that knows NVIDIA FLARE (2.9): the job's two ends, and how it starts.

The life of a job (who takes part, set-up, end) is Collab's. The messages go over FLARE's core
cells, one frame there and one back: Collab's own calls stream their arguments with
acknowledgements, which takes twice the time and twice the extra bytes for a batch.

A job is three small JSON files that name these two classes and nothing else: parties run the code
they have installed. The classes stand on the allow list that provisioning writes into each kit,
and the kits' authorization refuses jobs that bring code of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvflare.collab import collab
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from nvflare.fuel.f3.message import Message

from fedmend.federation.engines.flare.kits import (
    CONTROLLER_CLASS,
    EXECUTOR_CLASS,
    PARTY_CLASS,
    RELAY_CLASS,
    mark_finished,
)
from fedmend.federation.engines.flare.link import ABSENT, OK, READY, SECONDS, Frame, Link

if TYPE_CHECKING:
    from fedmend.federation.engines.flare.host import Opener, PartyHost

logger = logging.getLogger(__name__)
# Where nobody set a log up, as at the coordinator, FLARE's lines would run over the screen.
logging.getLogger("nvflare").addHandler(logging.NullHandler())

THREADS = 32
CHANNEL, TOPIC = "fedmend", "ask"


class CollabParty:
    """The job's object at a party. Subclasses say how the party's site is opened."""

    def __init__(self) -> None:
        self._host: PartyHost | None = None
        self._server = ""
        self._folder = Path()

    def opener(self, kit: Path) -> Opener:
        """How to make the site from the files of this kit."""
        raise NotImplementedError

    def patience(self, kit: Path) -> float:
        """Seconds without a word from the coordinator after which the job ends here."""
        return 180.0

    def why_ended(self, kit: Path) -> str:
        """What the people here are told when the job ends and the coordinator has not ended it."""
        return "the job ended"

    def over(self) -> bool:
        """Whether the job has ended, also while the site is being opened."""
        return self._host is not None and self._host.over

    @collab.init
    def open(self) -> None:
        # Brings pandas, for which the relay has no use.
        from fedmend.federation.engines.flare.host import PartyHost

        kit = Path(collab.workspace.get_root_dir())
        self._host = PartyHost(
            collab.site_name,
            self.opener(kit),
            kit,
            patience=self.patience(kit),
            # FLARE has no way out for a job whose server is gone; the process has nothing open.
            lost=lambda: os._exit(3),
        )
        self._folder = kit / str(collab.fl_ctx.get_job_id())
        self._server = collab.server.backend.target_fqcn
        core = collab.fl_ctx.get_engine().get_cell().core_cell
        core.register_request_cb(CHANNEL, TOPIC, self._asked)

    def _asked(self, request: Message) -> Message:
        """A request of this job's relay; FLARE binds the origin to the connection's certificate."""
        assert self._host is not None
        origin = request.get_header(MessageHeaderKey.ORIGIN)
        caller = "server" if origin == self._server else str(origin)
        payload = request.payload
        message = bytes(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else b""
        return make_reply(ReturnCode.OK, body=self._host.answer(message, caller))

    @collab.final
    def close(self) -> None:
        if self._host is not None:
            if not self._host.over:
                self._host.close(self.why_ended(self._folder.parent))
            if self._host.finished:
                mark_finished(self._folder)


class CollabRelay:
    """The job's object at the server: hands bytes from the coordinator's link to the parties."""

    def __init__(self, address: str) -> None:
        self.address = address
        # FLARE would load torch for tensors of its own; here only bytes pass, one process a party.
        sys.modules.setdefault("nvflare.app_opt.pt", None)  # type: ignore[arg-type]

    @collab.main
    def run(self) -> None:
        end = socket.socket(socket.AF_UNIX)
        end.connect(self.address)
        link = Link(end)
        core = collab.fl_ctx.get_engine().get_cell().core_cell
        cells = {client.name: client.backend.target_fqcn for client in collab.clients}
        link.send(Frame(0, READY, "", json.dumps(sorted(cells)).encode()))
        pool = ThreadPoolExecutor(THREADS, "fedmend-relay")
        threading.Thread(target=_end_when_aborted, args=(collab.context, link), daemon=True).start()
        try:
            while (frame := link.receive()) is not None:
                pool.submit(_hand_on, link, core, cells, frame)
        finally:
            link.close()
            pool.shutdown(wait=False, cancel_futures=True)


def _end_when_aborted(context: Any, link: Link) -> None:
    """FLARE aborts a job whose party died; whoever waits at the link must hear of it."""
    while not context.is_aborted():
        time.sleep(0.2)
    link.close()


def _hand_on(link: Link, core: Any, cells: dict[str, str], frame: Frame) -> None:
    try:
        status, payload = _answer(core, cells, frame)
    except Exception as error:  # without a reply the coordinator would wait as long as a call may
        logger.exception("a frame could not be handed on")
        status, payload = ABSENT, f"the relay could not hand it on ({error!r})".encode()
    try:
        link.send(Frame(frame.ticket, status, frame.name, payload))
    except OSError:
        logger.warning("the coordinator's process is gone")


def _answer(core: Any, cells: dict[str, str], frame: Frame) -> tuple[int, bytes]:
    """Status and bytes of the party's answer to a frame."""
    (seconds,) = SECONDS.unpack_from(frame.payload)
    if frame.name not in cells:
        return ABSENT, b"is not in the job"
    request = new_cell_message({}, frame.payload[SECONDS.size :])
    answer = core.send_request(CHANNEL, TOPIC, cells[frame.name], request, timeout=seconds)
    code = answer.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
    if code == ReturnCode.OK:
        # A number would be taken for so many zero bytes.
        return OK, bytes(memoryview(answer.payload))
    if code == ReturnCode.TIMEOUT:
        return ABSENT, f"no answer within {seconds:.0f} s".encode()
    return ABSENT, f"FLARE cannot reach it ({code})".encode()


# ---------------------------------------------------------------- the job


def write_job(folder: Path, name: str, address: str, party: str) -> Path:
    """The job of one party as FLARE wants it: names and settings, no code."""
    job = folder / name
    config = job / "app" / "config"
    config.mkdir(parents=True)
    common = {"format_version": 2, "task_data_filters": [], "task_result_filters": []}
    args: dict[str, Any] = {"collab_obj_ids": [], "props": {}}
    workflow = {"path": CONTROLLER_CLASS, "args": {"server_obj_id": "_server", **args}}
    server = common | {
        "workflows": [{"id": "controller", **workflow}],
        "components": [{"id": "_server", "path": RELAY_CLASS, "args": {"address": address}}],
    }
    executor = {"path": EXECUTOR_CLASS, "args": {"client_obj_id": "_client", **args}}
    client = common | {
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "_client", "path": PARTY_CLASS, "args": {}}],
    }
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": 1,
        "mandatory_clients": [party],
        "deploy_map": {"app": ["server", party]},
    }
    for path, content in (
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client),
        (job / "meta.json", meta),
    ):
        path.write_text(json.dumps(content, indent=2))
    return job


class Admin:
    """The coordinator's login at the server: who is there, submit, status, abort."""

    def __init__(self, kit: Path, user: str, timeout: float = 20.0) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        with contextlib.redirect_stdout(io.StringIO()):  # FLARE prints that it connects
            self._session = new_secure_session(user, str(kit), timeout=timeout)

    def clients(self) -> list[str]:
        """The parties that are connected now."""
        return sorted(each.name for each in self._session.get_system_info().client_info)

    def submit(self, job: Path) -> str:
        return str(self._session.submit_job(str(job)))

    def status(self, job_id: str) -> str:
        return str(self._session.get_job_meta(job_id).get("status", ""))

    def jobs(self, *, over: bool) -> list[str]:
        """Jobs that are over, or those that are not, in the order of their submission."""
        found = self._session.list_jobs()
        return [
            each["job_id"] for each in found if str(each["status"]).startswith("FINISHED") is over
        ]

    def delete(self, job_id: str) -> None:
        """Take a job that is over out of the server's store."""
        self._session.delete_job(job_id)

    def abort(self, job_id: str) -> None:
        try:
            self._session.abort_job(job_id)
        except Exception as error:  # FLARE raises whatever it finds; the job is over either way
            logger.info("aborting job %s: %s", job_id, error)

    def close(self) -> None:
        self._session.close()
