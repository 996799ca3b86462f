"""The table [keys] of a party.toml: lasting identities and pinned partners."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.data.table import Table
from fedmend.deploy.party_file import PARTNERS_FILE, install_keys, load_party, own_identity
from fedmend.errors import ConfigError, CryptoError, Refused
from fedmend.federation import Alignment, AlignmentCounts, Federation, Ledger, Party, Site
from fedmend.federation.wire import Measure
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


def write_party(folder, text=""):
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("id,x\n1,2\n2,3\n")
    (folder / "party.toml").write_text(f'name = "bank"\ndata = "rows.csv"\nid = "id"\n{text}')
    return folder


def party(folder, text=""):
    return load_party(write_party(folder, text))


def pinning(**keys):
    pinned = ", ".join(f'{name} = "{key}"' for name, key in keys.items())
    return f"[keys]\npinned = {{{pinned}}}\n"


def test_an_identity_is_made_once_and_stays(tmp_path, monkeypatch):
    identity, path, new = own_identity(party(tmp_path))
    assert new and path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in path.read_bytes()
    again, _, new = own_identity(party(tmp_path))
    assert not new and again.public == identity.public
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "another")
    with pytest.raises(CryptoError, match="password"):
        own_identity(party(tmp_path))
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "")
    with pytest.raises(ConfigError, match="FEDMEND_KEY_PASSWORD is not set"):
        own_identity(party(tmp_path))


def test_without_a_password_a_key_pair_is_the_owners_to_read(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    identity, path, new = own_identity(party(tmp_path))
    assert new and path.stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" not in path.read_bytes()
    monkeypatch.setenv("FEDMEND_KEY_PASSWORD", "too late")
    assert own_identity(party(tmp_path))[0].public == identity.public


def test_partners_who_know_each_other(fed, tmp_path):
    own = {name: own_identity(party(tmp_path / name))[0] for name in ("bank", "telco")}
    for name, other in (("bank", "telco"), ("telco", "bank")):
        file = party(tmp_path / name, pinning(**{other: own[other].public.hex()}))
        install_keys(fed.engine.sites[name], file)
    found = rank_correlation(fed, "bank", "telco", mode="dealer")
    assert found.matrix.shape == (2, 2)
    known = keyring(fed.engine.sites["bank"]).fingerprints()
    assert known == {name: own[name].fingerprint for name in own}


def test_a_coordinator_that_passes_on_another_key_is_found_out(fed, tmp_path):
    file = party(tmp_path, pinning(telco=Identity().public.hex()))
    install_keys(fed.engine.sites["bank"], file)
    with pytest.raises(CryptoError, match=r"key of 'telco' has changed.*Mend"):
        rank_correlation(fed, "bank", "telco", mode="dealer")


def test_who_pins_or_names_a_partner_works_with_nobody_else(fed, tmp_path):
    file = party(tmp_path, 'partners = ["club"]\n' + pinning(shop=Identity().public.hex()))
    install_keys(fed.engine.sites["telco"], file)
    with pytest.raises(Refused, match=r"'bank' is none of its partners \(club, shop\).*Mend: if"):
        rank_correlation(fed, "bank", "telco", mode="dealer")


def test_a_partner_that_is_named_is_believed_once_and_held_to_its_key(fed, tmp_path):
    site, told = fed.engine.sites["bank"], []
    install_keys(site, party(tmp_path, 'partners = ["telco"]\n'))
    site.note = told.append
    assert rank_correlation(fed, "bank", "telco", mode="dealer").matrix.shape == (2, 2)
    telco = keyring(fed.engine.sites["telco"]).identity
    assert json.loads((tmp_path / PARTNERS_FILE).read_text()) == {"telco": telco.public.hex()}
    (words,) = told
    assert telco.fingerprint in words and "first meeting with 'telco'" in words


def in_a_later_run(folder, text=""):
    """The key ring of the same party in another process."""
    site = Site("bank", {})
    install_keys(site, party(folder, text))
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
    assert in_a_later_run(tmp_path, 'partners = ["ghost"]\n').pin("ghost", stranger.public)
    pinned = in_a_later_run(tmp_path, pinning(telco=stranger.public.hex()))
    assert pinned.pin("telco", stranger.public) == stranger.public


@pytest.mark.parametrize("text", ["", "[]", '{"telco": 5}', '{"telco": "ab"}', "\udcff"])
def test_a_damaged_memory_is_named(tmp_path, text):
    (tmp_path / PARTNERS_FILE).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"partners\.json does not hold the keys .*Mend"):
        in_a_later_run(tmp_path)


def test_an_identity_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no 'mine\.pem' beside party\.toml.*Mend"):
        in_a_later_run(tmp_path, '[keys]\nidentity = "mine.pem"\n')


def test_party_file_with_keys(tmp_path):
    key = Identity().public.hex()
    for right in (key, key.upper()):
        assert party(tmp_path, pinning(telco=right)).keys.pinned == {"telco": right}
    for wrong in ("12ab", "zy" * 32, f"{key}ab"):
        with pytest.raises(ConfigError, match=r"'telco' is not 64 hexadecimal digits"):
            party(tmp_path, pinning(telco=wrong))
    with pytest.raises(ConfigError, match="pined"):
        party(tmp_path, f'[keys]\npined = {{telco = "{key}"}}\n')


def test_the_command_shows_what_partners_need(tmp_path, monkeypatch):
    kit = write_party(tmp_path / "kit")
    shown = CliRunner().invoke(app, ["party", "keys", str(kit)])
    assert shown.exit_code == 0, shown.output
    identity, path, new = own_identity(load_party(kit))
    assert not new
    assert f'bank = "{identity.public.hex()}"' in shown.output
    assert f"{identity.fingerprint}  bank (this party)" in shown.output
    assert "encrypted; the password is needed" in shown.output
    monkeypatch.delenv("FEDMEND_KEY_PASSWORD")
    path.unlink()
    telco, shop = Identity(), Identity()
    in_a_later_run(kit, 'partners = ["shop"]\n').pin("shop", shop.public)
    path.unlink()
    write_party(kit, pinning(telco=telco.public.hex()))
    shown = CliRunner().invoke(app, ["party", "keys", str(kit)])
    assert shown.exit_code == 0, shown.output
    assert "identity.pem, readable by its owner only" in shown.output
    assert f"{telco.fingerprint}  telco (pinned)" in shown.output
    assert f"{shop.fingerprint}  shop (as first seen)" in shown.output


def test_a_ledger_is_exported_signed_and_verified(tmp_path, fedmend):
    def call(*arguments):
        code, out, err = fedmend(*arguments)
        return code, out + err

    kit, export = write_party(tmp_path / "bank"), tmp_path / "export.json"
    ledger = Ledger(kit / "ledgers" / "run.jsonl")
    ledger.record("bank", "coordinator", "W.sums", "statistic", Measure("3", "int64", 44, ""))
    ledger.close()
    assert call("ledger", kit / "ledgers" / "run.jsonl", "--export", export)[0] == 0
    code, said = call("ledger", export, "--verify")
    assert code == 0
    identity, _, _ = own_identity(load_party(kit))
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
