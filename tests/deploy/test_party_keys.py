"""The table [keys] of a party.toml: lasting identities and pinned partners."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.data.table import Table
from fedmend.deploy.party_file import load_party
from fedmend.deploy.party_keys import PARTNERS_FILE, KeySettings, install_keys, own_identity
from fedmend.errors import ConfigError, CryptoError, Refused
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Site
from fedmend.secure.correlation import rank_correlation
from fedmend.secure.keys import Identity, keyring

PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", PASSWORD)


@pytest.fixture
def fed():
    rng = np.random.default_rng(0)
    parties = []
    for name in ("bank", "telco"):
        frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=[f"{name}_0", f"{name}_1"])
        parties.append(Party(name, Table(np.arange(60), frame)))
    fed = Federation(*parties, strict=True)
    for site in fed.engine.sites.values():
        site.alignments["train"] = Alignment(np.arange(60), np.array([], dtype=np.int64))
    fed.note_alignment(AlignmentCounts(60, {"bank": 0, "telco": 0}))
    with fed:
        yield fed


def write_party(folder, keys=""):
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("id,x\n1,2\n2,3\n")
    (folder / "party.toml").write_text(f'name = "bank"\ndata = "rows.csv"\nid = "id"\n{keys}')
    return folder


def test_an_identity_is_made_once_and_stays(tmp_path):
    identity, path, new = own_identity(KeySettings(), tmp_path)
    assert new and path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in path.read_bytes()
    again, _, new = own_identity(KeySettings(), tmp_path)
    assert not new and again.public == identity.public


def test_without_a_password_a_key_pair_is_the_owners_to_read(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    identity, path, new = own_identity(KeySettings(), tmp_path)
    assert new and path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" not in path.read_bytes()
    assert own_identity(KeySettings(), tmp_path)[0].public == identity.public
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "too late")
    assert own_identity(KeySettings(), tmp_path)[0].public == identity.public


def test_a_missing_or_wrong_password(tmp_path, monkeypatch):
    own_identity(KeySettings(), tmp_path)
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "another")
    with pytest.raises(CryptoError, match="password"):
        own_identity(KeySettings(), tmp_path)
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "")
    with pytest.raises(ConfigError, match="FEDMEND_KEY_PASSWORD is not set"):
        own_identity(KeySettings(), tmp_path)
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    with pytest.raises(ConfigError, match="FEDMEND_KEY_PASSWORD is not set"):
        own_identity(KeySettings(), tmp_path)


def test_partners_who_know_each_other(fed, tmp_path):
    for name in ("bank", "telco"):
        (tmp_path / name).mkdir()
    own = {name: own_identity(KeySettings(), tmp_path / name)[0] for name in ("bank", "telco")}
    for name, other in (("bank", "telco"), ("telco", "bank")):
        keys = KeySettings(identity="identity.pem", pinned={other: own[other].public.hex()})
        install_keys(fed.engine.sites[name], keys, tmp_path / name)
    found = rank_correlation(fed, "bank", "telco", mode="dealer")
    assert found.matrix.shape == (2, 2)
    known = keyring(fed.engine.sites["bank"]).fingerprints()
    assert known == {name: own[name].fingerprint for name in own}


def test_a_coordinator_that_passes_on_another_key_is_found_out(fed, tmp_path):
    real = Identity()
    keys = KeySettings(pinned={"telco": real.public.hex()})
    install_keys(fed.engine.sites["bank"], keys, tmp_path)
    with pytest.raises(CryptoError, match=r"key of 'telco' has changed.*Mend"):
        rank_correlation(fed, "bank", "telco", mode="dealer")


def test_who_pins_or_names_a_partner_works_with_nobody_else(fed, tmp_path):
    pinned = KeySettings(pinned={"shop": Identity().public.hex()})
    install_keys(fed.engine.sites["telco"], pinned, tmp_path, ["club"])
    with pytest.raises(Refused, match=r"'bank' is none of its partners \(club, shop\).*Mend: if"):
        rank_correlation(fed, "bank", "telco", mode="dealer")


def test_a_partner_that_is_named_is_believed_once_and_held_to_its_key(fed, tmp_path):
    site, told = fed.engine.sites["bank"], []
    install_keys(site, KeySettings(), tmp_path, ["telco"])
    site.note = told.append
    assert rank_correlation(fed, "bank", "telco", mode="dealer").matrix.shape == (2, 2)
    telco = keyring(fed.engine.sites["telco"]).identity
    assert json.loads((tmp_path / PARTNERS_FILE).read_text()) == {"telco": telco.public.hex()}
    assert (
        len(told) == 1 and telco.fingerprint in told[0] and "first meeting with 'telco'" in told[0]
    )


def in_a_later_run(folder, keys=None, partners=()):
    """The key ring of the same party in another process."""
    site = Site("bank", {})
    install_keys(site, keys or KeySettings(), folder, partners)
    return keyring(site)


def test_keys_seen_once_are_remembered_over_runs(tmp_path):
    telco, stranger = Identity(), Identity()
    first = in_a_later_run(tmp_path)
    first.pin("telco", telco.public)
    first.pin("shop", telco.public)  # in the first run nobody is known yet
    later = in_a_later_run(tmp_path)
    assert later.identity.public == first.identity.public
    assert later.pin("telco", telco.public) == telco.public
    with pytest.raises(CryptoError, match="the key of 'telco' has changed"):
        later.pin("telco", stranger.public)
    with pytest.raises(Refused, match=r"'ghost' is none of its partners \(shop, telco\)"):
        later.pin("ghost", stranger.public)
    # What the party itself says goes before what was seen.
    assert in_a_later_run(tmp_path, partners=["ghost"]).pin("ghost", stranger.public)
    pinned = KeySettings(pinned={"telco": stranger.public.hex()})
    assert in_a_later_run(tmp_path, pinned).pin("telco", stranger.public) == stranger.public


@pytest.mark.parametrize("text", ["", "[]", '{"telco": 5}', '{"telco": "ab"}', "\udcff"])
def test_a_damaged_memory_is_named(tmp_path, text):
    (tmp_path / PARTNERS_FILE).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"partners\.json does not hold the keys .*Mend"):
        in_a_later_run(tmp_path)


def test_an_identity_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no 'mine\.pem' beside party\.toml.*Mend"):
        in_a_later_run(tmp_path, KeySettings(identity="mine.pem"))


def test_party_file_with_keys(tmp_path):
    key = Identity().public.hex()
    file = load_party(write_party(tmp_path / "kit", f'[keys]\npinned = {{telco = "{key}"}}\n'))
    assert file.keys.pinned == {"telco": key}
    with pytest.raises(ConfigError, match=r"'telco' is not 64 hexadecimal digits"):
        load_party(write_party(tmp_path / "kit", '[keys]\npinned = {telco = "12ab"}\n'))
    with pytest.raises(ConfigError, match=r"'telco' is not 64 hexadecimal digits"):
        load_party(write_party(tmp_path / "kit", f'[keys]\npinned = {{telco = "{"zy" * 32}"}}\n'))
    with pytest.raises(ConfigError, match=r"'telco' is not 64 hexadecimal digits"):
        load_party(write_party(tmp_path / "kit", f'[keys]\npinned = {{telco = "{key}ab"}}\n'))
    shouted = f'[keys]\npinned = {{telco = "{key.upper()}"}}\n'
    assert load_party(write_party(tmp_path / "kit", shouted)).keys.pinned == {"telco": key.upper()}
    with pytest.raises(ConfigError, match="pined"):
        load_party(write_party(tmp_path / "kit", f'[keys]\npined = {{telco = "{key}"}}\n'))


def test_the_command_shows_what_partners_need(tmp_path):
    kit = write_party(tmp_path / "kit")
    shown = CliRunner().invoke(app, ["party", "keys", str(kit)])
    assert shown.exit_code == 0, shown.output
    identity, _, new = own_identity(KeySettings(), kit)
    assert not new
    assert f'bank = "{identity.public.hex()}"' in shown.output
    assert f"{identity.fingerprint}  bank (this party)" in shown.output
    assert "encrypted; the password is needed" in shown.output


def test_the_command_shows_the_partners_keys(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    telco, shop = Identity(), Identity()
    kit = write_party(tmp_path / "kit", f'[keys]\npinned = {{telco = "{telco.public.hex()}"}}\n')
    in_a_later_run(kit, partners=["shop"]).pin("shop", shop.public)
    (kit / "identity.pem").unlink()
    shown = CliRunner().invoke(app, ["party", "keys", str(kit)])
    assert shown.exit_code == 0, shown.output
    assert "identity.pem, readable by its owner only" in shown.output
    assert f"{telco.fingerprint}  telco (pinned)" in shown.output
    assert f"{shop.fingerprint}  shop (as first seen)" in shown.output


def test_a_ledger_is_exported_signed_and_verified(tmp_path, capsys):
    import json

    from fedmend.cli import main
    from fedmend.federation import Ledger
    from fedmend.federation.wire import Measure

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
            raise SystemExit(0)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out + err

    kit, export = write_party(tmp_path / "bank"), tmp_path / "export.json"
    ledger = Ledger(kit / "ledgers" / "run.jsonl")
    ledger.record("bank", "coordinator", "W.sums", "statistic", Measure("3", "int64", 44, ""))
    ledger.close()
    assert call("ledger", kit / "ledgers" / "run.jsonl", "--export", export)[0] == 0
    code, said = call("ledger", export, "--verify")
    assert code == 0
    identity, _, _ = own_identity(KeySettings(), kit)
    assert "signed by bank" in said and identity.signing_fingerprint in said
    assert "The coordinator saw 1 message" in said
    assert identity.signing_fingerprint in call("party", "keys", kit)[1]
    code, said = call("ledger", kit / "ledgers" / "run.jsonl", "--export", export)
    assert code == 2 and "exists already" in said
    content = json.loads(export.read_text())
    other = Identity()
    for change in (
        {"party": "telco"},
        {"in words": ["Nothing left."]},
        {"lines": []},
        {"signature": other.sign(b"x").hex()},
        {"key": other.signing_key.hex()},
    ):
        export.write_text(json.dumps(content | change))
        code, said = call("ledger", export, "--verify")
        assert code == CryptoError.exit_code and "was altered" in said
    loose = tmp_path / "run.jsonl"
    loose.write_bytes((kit / "ledgers" / "run.jsonl").read_bytes())
    code, said = call("ledger", loose, "--export", tmp_path / "more.json")
    assert code == 2 and "lies in no kit" in said
