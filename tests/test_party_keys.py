"""The table [keys] of a party.toml: lasting identities and pinned partners."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.data.table import Table
from fedmend.deploy.party_file import load_party
from fedmend.deploy.party_keys import KeySettings, install_keys, own_identity
from fedmend.errors import ConfigError, CryptoError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
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


def test_a_new_key_pair_needs_a_password_and_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    with pytest.raises(ConfigError, match=r"new key pair .* password of your choice.* export FEDM"):
        own_identity(KeySettings(), tmp_path)
    assert not any(tmp_path.iterdir())


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
        keys = KeySettings(
            identity="identity.pem", pinned={other: own[other].public.hex()}, only_pinned=True
        )
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


def test_a_partner_without_a_pinned_key_is_refused_if_asked_for(fed, tmp_path):
    install_keys(fed.engine.sites["telco"], KeySettings(only_pinned=True), tmp_path)
    with pytest.raises(CryptoError, match="'telco' was given no key of 'bank' in advance"):
        rank_correlation(fed, "bank", "telco", mode="dealer")


def test_no_keys_change_nothing(fed, tmp_path):
    install_keys(fed.engine.sites["bank"], KeySettings(), tmp_path)
    assert rank_correlation(fed, "bank", "telco", mode="dealer").matrix.shape == (2, 2)


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
    assert identity.fingerprint in shown.output
    assert 'identity = "identity.pem"' in shown.output
