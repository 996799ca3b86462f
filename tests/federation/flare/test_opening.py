"""What an engine over FLARE closes when it ends, whoever is gone by then."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

import socket
from pathlib import Path

from fedmend.federation.engines.flare.engine import Opening, _Job


class GoneServer:
    """A login whose server was killed: every question fails."""

    closed = False

    def status(self, job: str) -> str:
        raise ConnectionError("no connection to server")

    def close(self) -> None:
        self.closed = True
        raise ConnectionError("no connection to server")


def test_the_login_is_closed_though_the_server_is_gone(tmp_path: Path) -> None:
    """FLARE's threads would keep the process alive for ever after its report was written."""
    opening = Opening(tmp_path, "r", 60.0, 5, None)
    opening.admin = GoneServer()
    with socket.socket(socket.AF_UNIX) as ears:
        opening.jobs.append(_Job("bank", ears, id="1"))
        opening.end("finished")
        opening.tidy()
    assert opening.admin.closed
