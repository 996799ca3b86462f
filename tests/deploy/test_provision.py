from __future__ import annotations

import json
import shutil
import stat

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedmend.cli import main
from fedmend.deploy.party_file import load_party
from fedmend.deploy.processes import role_of, server_address
from fedmend.deploy.provision import make_kits, provision, require_kits
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.kits import PARTY_CLASS, RELAY_CLASS
from fedmend.flow.config import load_config


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("made") / "kits", ["bank", "tel-co"], port=9123)


def names(kit, file):
    certificate = x509.load_pem_x509_certificate((kit / "startup" / file).read_bytes())
    return certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


def test_everybody_has_a_kit_of_its_own_name(kits):
    assert kits.parties == ["bank", "tel-co"]
    assert names(kits.party("bank"), "client.crt") == "bank"
    assert names(kits.party("tel-co"), "client.crt") == "tel-co"
    assert names(kits.server, "server.crt") == "localhost"
    assert server_address(kits.party("bank")) == ("localhost", 9123)
    assert (role_of(kits.server), role_of(kits.party("bank"))) == ("server", "party")


def test_keys_are_for_their_owners_only(kits):
    for path in kits.folder.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(kits.folder.stat().st_mode) == 0o700
    (authority,) = kits.folder.rglob("cert.json")  # the authority's own key is in it
    assert stat.S_IMODE(authority.stat().st_mode) == 0o600
    assert not any(kits.party("bank").rglob("*rootCA.key"))


def test_kits_are_closed(kits):
    for kit, classes in (
        (kits.party("bank"), [PARTY_CLASS]),
        (kits.server, [RELAY_CLASS]),
    ):
        resources = json.loads((kit / "local" / "resources.json").read_text())
        allowed = resources["class_allow_list"]
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert len(allowed) == 2
        assert set(classes) < set(allowed)
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert set(rights) == {"project_admin"}
        for right in ("byoc", "shell_commands", "operate", "download_job"):
            assert rights["project_admin"][right] == "none"
        assert not list(kit.glob("startup/*.sh"))


def test_the_server_keeps_its_files_in_its_kit(kits):
    text = (kits.server / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in text
    assert str(kits.server.resolve() / "jobs") in text


def test_only_local_addresses_by_default(kits):
    content = json.loads((kits.server / "startup" / "fed_server.json").read_text())
    assert content["servers"][0]["service"]["target"] == "localhost:9123"
    assert content["servers"][0]["connection_security"] == "mtls"


@pytest.mark.parametrize(
    ("parties", "port", "parts"),
    [
        (["a b"], 1, ["'a b'", "letters"]),
        (["bänk"], 1, ["'bänk'"]),
        (["ca"], 1, ["'ca'", "taken"]),
        (["coordinator"], 1, ["taken"]),
        (["bank"], 0, ["port", "0"]),
        (["bank"], 70000, ["70000"]),
    ],
)
def test_names_and_ports_that_cannot_be(tmp_path, parties, port, parts):
    with pytest.raises(ConfigError) as caught:
        make_kits(tmp_path, parties, port=port)
    assert all(part in str(caught.value) for part in parts)
    assert not any(tmp_path.iterdir())


def test_provisioning_from_the_file(workshop):
    workshop.write("[flare]\nport = 9200\n")
    kits = provision(load_config(workshop.config))
    bank = load_party(kits.party("bank"))
    assert (bank.name, bank.id, bank.label) == ("bank", "customer", "default")
    assert bank.at(bank.data).resolve() == (workshop.folder / "bank.csv").resolve()
    assert load_party(kits.party("telco")).label is None
    assert (bank.partners, load_party(kits.party("telco")).partners) == (["telco"], ["bank"])
    # What is only proposed can be taken by removing its first sign.
    path = kits.party("telco") / "party.toml"
    keys = ("encoding", "delimiter", "decimal", "missing", "drop", "new")
    lines = path.read_text().splitlines()
    proposed = [
        line.removeprefix("# ")
        for line in lines
        if line.startswith(tuple(f"# {k} =" for k in keys))
    ]
    assert len(proposed) == len(keys)
    path.write_text("\n".join(proposed + lines))
    assert (load_party(path).delimiter, load_party(path).new) == (";", "new.csv")


def test_a_second_time_needs_force_and_keeps_what_is_the_partys(workshop, capsys):
    workshop.write("[flare]\nport = 9200\n")
    config = load_config(workshop.config)
    kits = provision(config)
    (kits.party("bank") / "party.toml").write_text('name = "bank"\ndata = "own.csv"\n')
    before = (kits.party("bank") / "startup" / "client.crt").read_bytes()
    authority = (kits.party("bank") / "startup" / "rootCA.pem").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["provision", str(workshop.config)])
    assert ended.value.code == 2
    assert "--force" in capsys.readouterr().err
    provision(config, force=True)
    assert "own.csv" in (kits.party("bank") / "party.toml").read_text()
    assert (kits.party("bank") / "startup" / "client.crt").read_bytes() != before
    assert (kits.party("bank") / "startup" / "rootCA.pem").read_bytes() == authority


def test_a_query_and_a_policy_go_into_the_partys_file(workshop):
    workshop.write()
    workshop.config.write_text(
        '[[party]]\nname = "bank"\nsql = "SELECT * FROM t"\nuri = "sqlite:///b.db"\nid = "c"\n'
        'label = "y"\nkinds.age = "integer"\n'
        '[party.policy]\nrefuse = ["weights"]\nmin_intersection = 50\n'
        '[[party]]\nname = "telco"\n[flare]\n'
    )
    kits = provision(load_config(workshop.config))
    bank = load_party(kits.party("bank"))
    assert (bank.sql, bank.uri, bank.kinds) == (
        "SELECT * FROM t",
        "sqlite:///../../b.db",
        {"age": "integer"},
    )
    assert bank.policy.build().min_intersection == 50
    assert "weights" not in bank.policy.build().may_leave


def test_how_a_file_is_written_goes_into_the_partys_file(workshop):
    workshop.write()
    workshop.config.write_text(
        '[[party]]\nname = "bank"\ndata = "bank.csv"\nid = "Kunden-Nr"\nlabel = "Ausfall"\n'
        'encoding = "cp1252"\ndelimiter = ";"\ndecimal = ","\ndrop = ["Eröffnet am"]\n'
        'missing = ["?"]\n[party.kinds]\n"Größe in m" = "continuous"\nstufe = ["tief", "hoch"]\n'
        '[[party]]\nname = "telco"\ndata = "telco.csv"\n[flare]\n'
    )
    config = load_config(workshop.config)
    kits = provision(config)
    for party in config.party:
        told = load_party(kits.party(party.name))
        spared = {"data", "policy"}
        assert told.model_dump(include=set(party.model_fields_set) - spared) == party.model_dump(
            include=set(party.model_fields_set) - spared
        )
        assert told.at(str(told.data)).resolve() == config.at(str(party.data)).resolve()


def test_kits_that_are_not_those_of_the_file_are_told_before_anyone_waits(workshop):
    workshop.write("[flare]\nport = 9200\n")
    kits = provision(load_config(workshop.config))
    require_kits(load_config(workshop.config), kits)
    text = workshop.config.read_text().replace("port = 9200", "port = 9201")
    workshop.config.write_text(text + '[[party]]\nname = "shop"\n')
    later = load_config(workshop.config)
    with pytest.raises(ConfigError) as caught:
        require_kits(later, kits)
    address, nobody = caught.value.problems
    assert "are localhost:9201, but" in address and "was made for localhost:9200" in address
    assert "party 'shop' has no kit" in nobody and "--force" in nobody
    # Who keeps the authority elsewhere can still run.
    shutil.rmtree(kits.folder / "ca")
    workshop.config.write_text(workshop.config.read_text().replace("9201", "9200"))
    require_kits(load_config(workshop.config), kits)
