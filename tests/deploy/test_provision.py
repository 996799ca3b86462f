from __future__ import annotations

import json
import shutil
import stat

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from fedmend.deploy.party_file import load_party
from fedmend.deploy.processes import role_of
from fedmend.deploy.provision import (
    known_parties,
    make_kits,
    provision,
    renew,
    require_kits,
    revoke,
)
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.kits import PARTY_CLASS, RELAY_CLASS, owner_of, server_of
from fedmend.flow.config import load_config


def names(kit, file):
    certificate = x509.load_pem_x509_certificate((kit / "startup" / file).read_bytes())
    return certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


def test_everybody_has_a_kit_of_its_own_name(kits, provisioned):
    assert kits.parties == [owner_of(kits.party(name)) for name in ("bank", "telco")]
    assert names(kits.party("bank"), "client.crt") == "bank"
    assert names(kits.server, "server.crt") == "localhost"
    assert server_of(kits.party("bank")) == ("localhost", provisioned.port)
    assert (role_of(kits.server), role_of(kits.party("bank"))) == ("server", "party")


def test_a_certificate_is_renewed_and_revoked(kits, workshop, fedmend):
    def certificates(name):
        startup = kits.party(name) / "startup"
        return [(startup / file).read_bytes() for file in ("client.crt", "rootCA.pem")]

    def signed(certificate, authority):
        signer = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(signer)

    telco, config = kits.party("telco"), load_config(workshop.config)
    before = {name: certificates(name) for name in ("bank", "telco")}
    server = (kits.server / "startup" / "server.crt").read_bytes()
    given = f"{telco}: give it to telco, by a way you trust"
    assert fedmend("party", "renew", telco)[:2] == (0, f"{given}\n")
    assert certificates("bank") == before["bank"]
    assert (kits.server / "startup" / "server.crt").read_bytes() == server
    new, authority = certificates("telco")
    assert new != before["telco"][0] and authority == before["telco"][1]
    signed(new, authority)
    require_kits(config, kits)

    code, out, _ = fedmend("party", "revoke", telco)
    assert code == 0 and f"{kits.party('bank')}: give it to bank" in out and given not in out
    assert "telco has no certificate any more" in out and "Start the server anew" in out
    assert kits.parties == ["bank"] and (telco / "party.toml").is_file()
    signed(*certificates("bank"))
    for old in (before["bank"][0], before["telco"][0], new):
        with pytest.raises(InvalidSignature):
            signed(old, certificates("bank")[1])
    with pytest.raises(ConfigError, match="party 'telco' has no kit"):
        require_kits(config, kits)

    assert fedmend("party", "renew", telco)[0] == 0  # and it is back, under the new authority
    signed(certificates("telco")[0], certificates("bank")[1])
    require_kits(config, kits)
    code, _, err = fedmend("party", "renew", kits.party("telko"))
    assert code == 2 and "no party 'telko' in" in err and "'telco'?" in err


def test_a_party_that_has_its_kit_is_revoked_and_comes_back(kits, fedmend):
    """At the coordinator nothing is left of it but its name, beside the authority."""
    telco = kits.party("telco")
    shutil.move(telco, kits.folder.parent / "telco")
    assert fedmend("party", "revoke", telco)[0] == 0
    assert fedmend("party", "revoke", kits.party("bank"))[0] == 0
    assert not telco.exists() and known_parties(kits) == []
    code, _, err = fedmend("party", "renew", kits.party("telko"))
    assert code == 2 and "did you mean 'telco'?" in err
    given = f"{telco}: give it to telco, by a way you trust\n"
    assert fedmend("party", "renew", telco)[:2] == (0, given)
    assert names(telco, "client.crt") == "telco" and known_parties(kits) == ["telco"]


def test_certificates_are_made_where_the_authority_is(kits, monkeypatch):
    authority = (kits.party("bank") / "startup" / "rootCA.pem").read_bytes()
    monkeypatch.setattr("fedmend.deploy.provision._run_provisioner", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # an authority is given up only for another one
        revoke(kits.party("telco"))
    monkeypatch.undo()
    assert kits.parties == ["bank", "telco"] and not (kits.folder / "ca.before").exists()
    renew(kits.party("telco"))
    assert (kits.party("telco") / "startup" / "rootCA.pem").read_bytes() == authority
    shutil.rmtree(kits.folder / "ca")
    for change in (renew, revoke):
        with pytest.raises(ConfigError, match="no authority in .*Mend: .* ask the coordinator"):
            change(kits.party("telco"))


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


def test_the_server_keeps_its_files_in_its_kit_and_listens_where_it_was_told(provisioned):
    kits = provisioned.kits
    text = (kits.server / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in text
    assert str(kits.server.resolve() / "jobs") in text
    content = json.loads((kits.server / "startup" / "fed_server.json").read_text())
    assert content["servers"][0]["service"]["target"] == f"localhost:{provisioned.port}"
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


def test_provisioning_from_the_file(workshop, kits):
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


def test_a_second_time_needs_force_and_keeps_what_is_the_partys(workshop, kits, fedmend):
    config = load_config(workshop.config)
    (kits.party("bank") / "party.toml").write_text('name = "bank"\ndata = "own.csv"\n')
    before = (kits.party("bank") / "startup" / "client.crt").read_bytes()
    authority = (kits.party("bank") / "startup" / "rootCA.pem").read_bytes()
    code, _, err = fedmend("provision", workshop.config)
    assert code == 2 and "--force" in err
    provision(config, force=True)
    assert "own.csv" in (kits.party("bank") / "party.toml").read_text()
    assert (kits.party("bank") / "startup" / "client.crt").read_bytes() != before
    assert (kits.party("bank") / "startup" / "rootCA.pem").read_bytes() == authority


def test_what_the_file_says_of_a_party_goes_into_the_partys_file(workshop):
    """Queries, policies, and how a file is written."""
    workshop.write()
    workshop.config.write_text(
        '[[party]]\nname = "bank"\nsql = "SELECT * FROM t"\nuri = "sqlite:///b.db"\nid = "c"\n'
        'label = "y"\nkinds.age = "integer"\n'
        '[party.policy]\nrefuse = ["weights"]\nmin_intersection = 50\n'
        '[[party]]\nname = "tel-co"\ndata = "telco.csv"\nid = "Kunden-Nr"\n'
        'encoding = "cp1252"\ndelimiter = ";"\ndecimal = ","\ndrop = ["Eröffnet am"]\n'
        'missing = ["?"]\n[party.kinds]\n"Größe in m" = "continuous"\nstufe = ["tief", "hoch"]\n'
        "[flare]\n"
    )
    config = load_config(workshop.config)
    kits = provision(config)
    bank = load_party(kits.party("bank"))
    assert (bank.sql, bank.uri) == ("SELECT * FROM t", "sqlite:///../../b.db")
    assert bank.kinds == {"age": "integer"}
    assert bank.policy.build().min_intersection == 50
    assert "weights" not in bank.policy.build().may_leave
    said, told = config.party[1], load_party(kits.party("tel-co"))
    spared = set(said.model_fields_set) - {"data", "policy"}
    assert told.model_dump(include=spared) == said.model_dump(include=spared)
    assert told.at(str(told.data)).resolve() == config.at(str(said.data)).resolve()


def test_kits_that_are_not_those_of_the_file_are_told_before_anyone_waits(
    workshop, kits, provisioned
):
    require_kits(load_config(workshop.config), kits)
    port = f"port = {provisioned.port}"
    text = workshop.config.read_text().replace(port, "port = 9")
    workshop.config.write_text(text + '[[party]]\nname = "shop"\n')
    later = load_config(workshop.config)
    with pytest.raises(ConfigError) as caught:
        require_kits(later, kits)
    address, nobody = caught.value.problems
    assert "are localhost:9, but" in address
    assert f"was made for localhost:{provisioned.port}" in address
    assert "party 'shop' has no kit" in nobody and "--force" in nobody
    # Who keeps the authority elsewhere can still run.
    shutil.rmtree(kits.folder / "ca")
    workshop.config.write_text(workshop.config.read_text().replace("port = 9", port))
    require_kits(load_config(workshop.config), kits)
