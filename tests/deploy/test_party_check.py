from __future__ import annotations

import json
import socket
import ssl
import threading

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.deploy.party_check import check_party
from fedmend.deploy.party_file import PARTNERS_FILE, load_party, open_site
from fedmend.deploy.provision import make_kits
from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.host import Hello
from fedmend.secure.keys import Identity, fingerprint
from fedmend.split.labels import ask_for_noise

from .conftest import sign_anew


def graded(kit, **options):
    found = {}
    for check in check_party(kit, **options):
        found.setdefault(check.name, []).append((check.grade, check.words))
    return found


def the(found, name):
    ((grade, words),) = found[name]
    return grade, words


class Server:
    """A TLS server with the server's kit, as strict as FLARE's; says one byte to whom it admits."""

    def __init__(self, kits):
        startup = kits.server / "startup"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(startup / "server.crt", startup / "server.key")
        context.load_verify_locations(startup / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        content = json.loads((startup / "fed_server.json").read_text())
        port = int(content["servers"][0]["service"]["target"].rpartition(":")[2])
        self.ears = socket.create_server(("127.0.0.1", port))
        self.context = context
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                plain, _ = self.ears.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(plain, server_side=True) as end:
                    end.sendall(b"h")
                    end.recv(1)
            except OSError:
                plain.close()

    def close(self):
        self.ears.shutdown(socket.SHUT_RDWR)
        self.ears.close()
        self.thread.join(5)


@pytest.fixture
def server(kits):
    made = Server(kits)
    yield made
    made.close()


def test_a_kit_that_is_in_order(kits, server, fedmend):
    found = graded(kits.party("bank"))
    notes = {name for name, each in found.items() if "ok" not in {grade for grade, _ in each}}
    assert notes == {"partners"}  # which a kit names, and whose keys it cannot know
    assert the(found, "table") == ("ok", "160 rows, 2 columns, label default")
    assert the(found, "schema")[1] == "1 continuous, 1 nominal, 1 binary"
    code, out, _ = fedmend("party", "check", kits.party("bank"))
    assert code == 0 and "no problems" in out


def test_whose_keys_are_pinned_and_whose_believed(kits):
    party = kits.party("bank") / "party.toml"
    text = party.read_text()
    (note,) = graded(kits.party("bank"), seconds=0.1)["partners"]
    assert note[0] == "note"
    assert "the key of 'telco' is not pinned (will be believed when first seen)" in note[1]
    telco = Identity().public
    (kits.party("bank") / PARTNERS_FILE).write_text(json.dumps({"telco": telco.hex()}))
    (note,) = graded(kits.party("bank"), seconds=0.1)["partners"]
    assert f"({fingerprint(telco)} was believed when first seen)" in note[1]
    party.write_text(text + f'[keys.pinned]\ntelco = "{telco.hex()}"\n')
    (found,) = graded(kits.party("bank"), seconds=0.1)["partners"]
    assert found == ("ok", "only telco, all keys pinned")
    (kits.party("bank") / PARTNERS_FILE).write_text("rubbish")
    (found,) = graded(kits.party("bank"), seconds=0.1)["partners"]
    assert found[0] == "problem" and "does not hold the keys" in found[1]
    (kits.party("bank") / PARTNERS_FILE).unlink()
    party.write_text(text.replace('partners = ["telco"]', ""))
    (note,) = graded(kits.party("bank"), seconds=0.1)["partners"]
    assert note[0] == "note" and "none is named, and none pinned" in note[1]


def test_what_a_pair_of_eyes_would_notice_and_new_rows(kits, workshop):
    table = pd.read_csv(workshop.folder / "bank.csv")
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(len(table)), "D")
    table["since"] = days.strftime("%d.%m.%Y")
    table.to_csv(workshop.folder / "bank.csv", index=False)
    party = kits.party("bank") / "party.toml"
    text = party.read_text()
    party.write_text('new = "new.csv"\n' + text)
    missing = graded(kits.party("bank"), seconds=0.1)["new rows"]
    assert missing[0][0] == "problem" and "new.csv: there is no such file" in missing[0][1]
    table.head(3).assign(mood="good").to_csv(kits.party("bank") / "new.csv", index=False)
    found = graded(kits.party("bank"), seconds=0.1)
    (note,) = [words for grade, words in found["table"] if grade == "note"]
    assert "column 'since': its values are dates (such as '01.01.2020')" in note
    assert found["new rows"][0] == ("ok", "3 rows to predict")
    assert "the model knows no 'mood'" in found["new rows"][1][1]


def test_what_was_told_of_labels_is_on_the_account(kits):
    kit = kits.party("bank")
    assert "labels" not in graded(kit, seconds=0.1)
    site = open_site(load_party(kit), Hello("spring", "", ("vfl",), 0, 0.25), kit)
    ask_for_noise(site, "train", 2.0, by="TopWorker")
    spent, line = graded(kit, seconds=0.1)["labels"]
    assert spent == ("ok", "default: told at random with ε = 2 in all runs together, of 8")
    assert line[1].endswith(f"run spring: {len(site.tables['train'])} labels with ε = 2")
    party = kit / "party.toml"
    party.write_text(party.read_text() + "\nlabel_epsilon = 2\n")
    assert graded(kit, seconds=0.1)["labels"][0][0] == "note"
    (kit / "records" / "labels.json").write_bytes(b"\xff\x00")
    ((grade, words),) = graded(kit, seconds=0.1)["labels"]
    assert grade == "problem" and "labels.json, cannot be read" in words


def test_a_list_of_workers_is_held_against_those_that_are_installed(kits):
    party = kits.party("bank") / "party.toml"
    text = party.read_text()
    party.write_text(text + '\nworkers = ["TopWorker", "PairWorker"]\n')
    found = graded(kits.party("bank"), seconds=0.1)["party.toml"]
    assert found[1] == ("ok", "lets only PairWorker, TopWorker be started")
    party.write_text(text + '\nworkers = ["TopWorker", "PairWorkers"]\n')
    grade, words = graded(kits.party("bank"), seconds=0.1)["party.toml"][1]
    assert grade == "problem" and "'PairWorkers' is installed here: did you mean 'PairW" in words


@pytest.mark.parametrize("text", ['{"client', '{"servers": []}', "[]"])
def test_a_kit_that_was_damaged_on_its_way(kits, text, fedmend):
    (kits.party("bank") / "startup" / "fed_client.json").write_text(text)
    code, _, err = fedmend("party", "check", kits.party("bank"))
    assert code == ConfigError.exit_code
    assert "fed_client.json is damaged" in " ".join(err.split())


def test_every_problem_is_told_at_once(kits, workshop, fedmend):
    grade, words = the(graded(kits.party("bank"), seconds=0.5), "server")
    assert grade == "problem"
    assert "cannot be reached: Connection refused" in words
    (workshop.folder / "bank.csv").unlink()
    code, _, err = fedmend("party", "check", kits.party("bank"))
    assert code == ConfigError.exit_code and "server:" in err and "table:" in err


def test_a_certificate_of_another_federation(kits, server, tmp_path):
    other = make_kits(tmp_path / "other", ["bank"], port=9999)
    for name in ("client.crt", "client.key"):
        source = other.party("bank") / "startup" / name
        (kits.party("bank") / "startup" / name).write_bytes(source.read_bytes())
    found = graded(kits.party("bank"))
    assert "not signed by this federation's authority" in the(found, "certificate")[1]
    assert the(found, "server")[0] == "problem"
    assert "not to this certificate" in the(found, "server")[1]


def test_a_certificate_or_key_of_another_party(kits):
    mine, theirs = (kits.party(name) / "startup" for name in ("bank", "telco"))
    (mine / "client.key").write_bytes((theirs / "client.key").read_bytes())
    assert "belongs to another" in the(graded(kits.party("bank"), seconds=0.1), "certificate")[1]
    (mine / "client.crt").write_bytes((theirs / "client.crt").read_bytes())
    grade, words = the(graded(kits.party("bank"), seconds=0.1), "certificate")
    assert (grade, "'telco'" in words, "'bank'" in words) == ("problem", True, True)


@pytest.mark.parametrize(
    ("first", "last", "words"), [(-20, -10, "expired"), (5, 10, "set the clock")]
)
def test_a_certificate_out_of_its_time(kits, server, first, last, words):
    sign_anew(kits, "bank", first, last)
    found = graded(kits.party("bank"))
    grade, told = the(found, "clock")
    assert grade == "problem"
    assert words in told
    assert the(found, "server")[0] == "problem"


def test_an_open_key_a_foreign_file_and_a_test_table_without_a_column(kits, workshop):
    (kits.party("bank") / "startup" / "client.key").chmod(0o644)
    workshop.bank.drop(columns="job").to_csv(workshop.folder / "later.csv", index=False)
    path = kits.party("bank") / "party.toml"
    text = path.read_text()
    path.write_text('test = "../../later.csv"\n' + text)
    found = graded(kits.party("bank"), seconds=0.1)
    grade, words = the(found, "key")
    assert (grade, "chmod 600" in words) == ("note", True)
    lacks = ("problem", "the test table lacks job. Mend: give both the same columns")
    assert lacks in found["schema"]
    path.write_text(text.replace('name = "bank"', 'name = "telco"'))
    assert the(graded(kits.party("bank"), seconds=0.1), "party.toml")[0] == "problem"


def test_something_that_is_no_kit(tmp_path):
    with pytest.raises(ConfigError, match="is no start-up kit"):
        check_party(tmp_path)


@pytest.mark.parametrize("spoil", ["gone", "damaged", "empty"])
def test_a_key_that_cannot_be_read_is_told_beside_all_the_rest(kits, spoil):
    kit = kits.party("bank")
    key = kit / "startup" / "client.key"
    if spoil == "gone":
        key.unlink()
    else:
        key.write_bytes(key.read_bytes()[:400] if spoil == "damaged" else b"")
    found = graded(kit, seconds=0.1)
    grade, words = the(found, "certificate")
    assert grade == "problem" and words.startswith("client.key cannot be read")
    assert the(found, "server")[0] == "problem" and "was not called" in the(found, "server")[1]
    assert the(found, "clock")[0] == "ok" and the(found, "disk")[0] in ("ok", "note")
    assert ("ok", "160 rows, 2 columns, label default") in found["table"]
