"""Certificates that are over, or soon will be: told before anybody waits."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("nvflare", reason="kits need nvflare")

from fedmend.deploy.processes import Daemon
from fedmend.deploy.provision import require_kits
from fedmend.errors import ConfigError, FedmendWarning
from fedmend.flow.config import load_config

from .conftest import certificate


@pytest.fixture
def kit(tmp_path):
    startup = tmp_path / "telco" / "startup"
    startup.mkdir(parents=True)
    (startup / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "telco"}}))
    (startup / "rootCA.pem").write_bytes(certificate("authority", -1, 300)[0])
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
def test_a_party_does_not_start_with_what_nobody_accepts(kit, file, dates, words, fedmend):
    (kit / "startup" / file).write_bytes(certificate("telco", *dates)[0])
    with pytest.raises(ConfigError, match=words):
        Daemon(kit).start()
    for more in ([], ["--detach"]):
        code, _, err = fedmend("party", "start", kit, *more)
        assert code == ConfigError.exit_code and "Mend: " in err
    assert not (kit / "process.json").exists()


def test_what_soon_is_over_is_noted(kit):
    (kit / "startup" / "client.crt").write_bytes(certificate("telco", -300, 5)[0])
    with pytest.warns(FedmendWarning, match=r"certificate of telco expires on .*, in time"):
        Daemon(kit).require_valid()
    (kit / "startup" / "client.crt").write_bytes(b"damaged")
    Daemon(kit).require_valid()  # 'party check' and the process itself say what is wrong with it


def test_a_run_names_every_certificate_that_is_over(workshop, kits):
    config = load_config(workshop.config)
    require_kits(config, kits)
    (kits.admin / "startup" / "client.crt").write_bytes(certificate("coordinator", -40, -2)[0])
    (noted,) = (kits.folder / "ca").glob("*/state/cert.json")
    content = json.loads(noted.read_text())
    content["telco"]["cert"] = certificate("telco", -40, -3)[0].decode()
    noted.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        require_kits(config, kits)
    assert len(caught.value.problems) == 2
    assert all("fedmend party renew" in each for each in caught.value.problems)
