"""Certificates that are over, or soon will be: told before anybody waits."""

from __future__ import annotations

import datetime
import json

import pytest

pytest.importorskip("nvflare", reason="kits need nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedmend.cli import main
from fedmend.deploy.processes import Daemon
from fedmend.deploy.provision import provision, require_kits
from fedmend.errors import ConfigError, FedmendWarning
from fedmend.flow.config import load_config


def certificate(name: str, first: float, last: float) -> bytes:
    """Signed by itself, valid from so many days from now until so many."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=first))
        .not_valid_after(now + datetime.timedelta(days=last))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def kit(tmp_path):
    startup = tmp_path / "telco" / "startup"
    startup.mkdir(parents=True)
    (startup / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "telco"}}))
    (startup / "rootCA.pem").write_bytes(certificate("authority", -1, 300))
    (startup.parent / "party.toml").write_text('name = "telco"\ndata = "telco.csv"\n')
    return startup.parent


@pytest.mark.parametrize(
    ("file", "dates", "words"),
    [
        ("client.crt", (-40, -2), r"certificate of telco expired on .*Mend: the coordinator makes"),
        ("client.crt", (3, 90), r"certificate of telco is valid from .* Mend: set the clock"),
        ("rootCA.pem", (-400, -1), r"certificate of the authority expired on"),
    ],
)
def test_a_party_does_not_start_with_what_nobody_accepts(kit, file, dates, words, capsys):
    (kit / "startup" / file).write_bytes(certificate("telco", *dates))
    with pytest.raises(ConfigError, match=words):
        Daemon(kit).start()
    for more in ([], ["--detach"]):
        with pytest.raises(SystemExit) as ended:
            main(["party", "start", str(kit), *more])
        assert ended.value.code == ConfigError.exit_code
        assert "Mend: " in capsys.readouterr().err
    assert not (kit / "process.json").exists()


def test_what_soon_is_over_is_noted(kit):
    (kit / "startup" / "client.crt").write_bytes(certificate("telco", -300, 5))
    with pytest.warns(FedmendWarning, match=r"certificate of telco expires on .*, in time"):
        Daemon(kit).require_valid()
    (kit / "startup" / "client.crt").write_bytes(b"damaged")
    Daemon(kit).require_valid()  # 'party check' and the process itself say what is wrong with it


def test_a_run_names_every_certificate_that_is_over(workshop):
    workshop.write("[flare]\nport = 8299\n")
    config = load_config(workshop.config)
    kits = provision(config)
    require_kits(config, kits)
    (kits.admin / "startup" / "client.crt").write_bytes(certificate("coordinator", -40, -2))
    (noted,) = (kits.folder / "ca").glob("*/state/cert.json")
    content = json.loads(noted.read_text())
    content["telco"]["cert"] = certificate("telco", -40, -3).decode()
    noted.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        require_kits(config, kits)
    assert len(caught.value.problems) == 2
    assert all("--force makes new kits" in each for each in caught.value.problems)
