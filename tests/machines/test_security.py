"""Who may connect, and what a job may be."""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest
from tests.deploy.conftest import sign_anew

from fedmend.deploy.party_check import check_party
from fedmend.deploy.processes import Daemon
from fedmend.deploy.provision import make_kits
from fedmend.federation.engines.flare.collab import Admin, write_job
from fedmend.federation.engines.flare.kits import ADMIN, PARTY_CLASS


def handshake(port: int, root: Path, pair: tuple[Path, Path] | None = None) -> bytes:
    """What the server says first to whom it admits; an error to others."""
    context = ssl.create_default_context(cafile=str(root))
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*pair)
    with (
        socket.create_connection(("localhost", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.recv(1)


@pytest.fixture
def root(world):
    return world.kits.party("bank") / "startup" / "rootCA.pem"


def pair_of(kit: Path) -> tuple[Path, Path]:
    return kit / "startup" / "client.crt", kit / "startup" / "client.key"


def refused(world, root, pair=None) -> bool:
    try:
        return not handshake(world.port, root, pair)
    except (ssl.SSLError, ConnectionError):
        return True


def test_only_parties_of_the_federation_are_admitted(world, root, tmp_path):
    assert handshake(world.port, root, pair_of(world.kits.party("bank")))
    assert refused(world, root)  # no certificate
    foreign = make_kits(tmp_path / "other", ["bank"], port=world.port)
    assert refused(world, root, pair_of(foreign.party("bank")))
    copy = type(world.kits)(tmp_path / "kits")
    shutil.copytree(world.kits.folder / "ca", copy.folder / "ca")
    shutil.copytree(world.kits.party("bank") / "startup", copy.party("bank") / "startup")
    sign_anew(copy, "bank", -20, -10)
    assert refused(world, root, pair_of(copy.party("bank")))
    found = {check.name: check for check in check_party(copy.party("bank"))}
    assert "expired" in found["clock"].words


def test_the_server_listens_on_loopback_only(world):
    import psutil

    pids = [world.server.running().child]
    pids += [daemon.running().child for daemon in world.parties.values()]
    for pid in pids:
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            for each in process.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN:
                    address = ipaddress.ip_address(each.laddr.ip)
                    address = getattr(address, "ipv4_mapped", None) or address
                    assert address.is_loopback, each


@pytest.mark.slow
def test_a_party_cannot_take_anothers_name(world, tmp_path):
    """The bank's certificate under the name of a party that is not connected."""
    thief = tmp_path / "thief"
    shutil.copytree(world.kits.party("bank") / "startup", thief / "startup")
    shutil.copytree(world.kits.party("bank") / "local", thief / "local")
    path = thief / "startup" / "fed_client.json"
    content = json.loads(path.read_text())
    content["client"]["fqsn"] = "shop"
    path.write_text(json.dumps(content))
    daemon = Daemon(thief)
    daemon.start(owned=True)
    admin = Admin(world.kits.admin, ADMIN)
    try:
        deadline = time.monotonic() + 12.0
        while time.monotonic() < deadline:
            assert "shop" not in admin.clients()
            time.sleep(1.0)
    finally:
        admin.close()
        daemon.stop()


# ---------------------------------------------------------------- jobs


@pytest.fixture
def admin(world):
    made = Admin(world.kits.admin, ADMIN)
    yield made
    for job in made.jobs(over=False):
        made.abort(job)
    made.close()


def outcome(admin, job) -> str:
    """How a job ends, or why it is not even taken."""
    try:
        job_id = admin.submit(job)
    except Exception as error:
        return f"not taken: {error}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = admin.status(job_id)
        if status.startswith("FINISHED"):
            return status
        time.sleep(0.5)
    return "still running"


@pytest.mark.slow
def test_a_job_that_brings_code_is_refused(world, admin, tmp_path):
    job = write_job(tmp_path, "code", str(tmp_path / "nobody"), "bank")
    (job / "app" / "custom").mkdir()
    mark = tmp_path / "ran"
    (job / "app" / "custom" / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config = job / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace(PARTY_CLASS, "evil.Party"))
    found = outcome(admin, job)
    assert found != "FINISHED:COMPLETED"
    assert found != "still running"
    assert not mark.exists()


@pytest.mark.slow
def test_a_job_that_names_another_class_is_refused(world, admin, tmp_path):
    job = write_job(tmp_path, "class", str(tmp_path / "nobody"), "bank")
    mark = tmp_path / "ran"
    config = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    content["components"][0] |= {"path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
    config.write_text(json.dumps(content))
    found = outcome(admin, job)
    assert found not in ("FINISHED:COMPLETED", "still running")
    assert not mark.exists()
