"""Kits that are made once for all tests, certificates of any dates, and somebody to ask."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="kits need nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from fedmend.deploy.consent import open_question
from fedmend.deploy.provision import Kits, provision
from fedmend.errors import Refused
from fedmend.flow.config import load_config


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory, make_workshop):
    """Kits of bank and telco; to make their keys takes seconds."""
    made, port = make_workshop(tmp_path_factory.mktemp("provisioned")), free_port()
    made.write(f"[flare]\nport = {port}\n")
    return SimpleNamespace(kits=provision(load_config(made.config)), port=port)


@pytest.fixture
def kits(workshop, provisioned):
    """A copy of them beside tables and a federation.toml, as `provision` would have made it."""
    workshop.write(f"[flare]\nport = {provisioned.port}\n")
    shutil.copytree(provisioned.kits.folder, workshop.folder / "kits")
    return Kits(workshop.folder / "kits")


class Asked:
    """A party whose people are asked in the background, by a call that waits for them."""

    def __init__(self, kit, ask):
        self._ask, self._error = ask, None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while open_question(kit) is None and self._thread.is_alive():
            time.sleep(0.01)

    def _run(self):
        try:
            self._ask()
        except Refused as error:
            self._error = error

    def outcome(self):
        """None after a yes."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self._error


def certificate(name, first, last, issuer=None, signer=None):
    """PEM of a certificate, valid from and until so many days from now, and of its key.

    Signed by itself, or by the issuer's key.
    """
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(
            issuer or subject, subject, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now + datetime.timedelta(days=first))
        .not_valid_after(now + datetime.timedelta(days=last))
        .sign(signer or key, SHA256())
    )
    form = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *form)
    return made.public_bytes(serialization.Encoding.PEM), private


def sign_anew(kits, party, first, last):
    """A party's certificate by the federation's own authority, of other dates."""
    (state,) = (kits.folder / "ca").glob("*/state/cert.json")
    known = json.loads(state.read_text())
    root = x509.load_pem_x509_certificate(known["root_cert"].encode())
    signer = serialization.load_pem_private_key(known["root_pri_key"].encode(), None)
    made = certificate(party, first, last, root.subject, signer)
    for name, content in zip(("client.crt", "client.key"), made, strict=True):
        (kits.party(party) / "startup" / name).write_bytes(content)
