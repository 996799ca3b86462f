"""Answers over machines: a partner in a process of its own, mutual TLS on loopback."""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID
from tests.serve.conftest import SlowLink, serving

from fedmend.errors import ConfigError, DataError, PartyAbsent, Refused
from fedmend.federation import Policy
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.ledger import read_ledger
from fedmend.serve import answering, channel
from fedmend.serve.channel import IDLE_SECONDS, Channel, Listener
from fedmend.serve.partner import PartnerServer, served_only
from fedmend.serve.service import Families, WholeRun, open_kit
from fedmend.serve.serving import PredictServer
from fedmend.split.config import SplitConfig

pytestmark = pytest.mark.filterwarnings("ignore::fedmend.errors.PrivacyWarning")
TOKEN, QUOTA = "a token of the tests", 12
ASKED = list(range(1060, 1150))
SHARED = range(1050, 1150)  # of 1000 … 1159 here and 1040 … 1199 at the partner


class Authority:
    """Makes kits as provisioning does, with quicker keys."""

    def __init__(self, days=90) -> None:
        self.days = days
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmend")])
        self.root = self._signed(self.name, self.key, ca=True)

    def _signed(self, name, key, *, ca=False):
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - 9 * day)
            .not_valid_after(now + (90 if ca else self.days) * day)
            .add_extension(x509.BasicConstraints(ca, None), critical=True)
            .sign(self.key, SHA256())
        )

    def kit(self, folder, name):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
        startup = folder / "startup"
        startup.mkdir(parents=True)
        (startup / "client.crt").write_bytes(self._signed(subject, key).public_bytes(pem))
        plain = serialization.NoEncryption()
        (startup / "client.key").write_bytes(key.private_bytes(pem, form, plain))
        (startup / "rootCA.pem").write_bytes(self.root.public_bytes(pem))
        return folder


class Partner:
    """``fedmend party serve`` as a process."""

    def __init__(self, kit, port=0):
        command = [sys.executable, "-m", "fedmend", "party", "serve", str(kit)]
        command += ["--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split()[3]
        self.port = int(self.address.rpartition(":")[2])

    def send(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def world(vertical, tmp_path_factory):
    """Kits of bank and telco with their parts of a run, and the partner's process."""
    folder = tmp_path_factory.mktemp("machines")
    authority = Authority()
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    more = {
        "bank": f'label = "y"\n[serve]\ndigits = 4\nquota = {QUOTA}\naskers.crm = "{digest}"\n',
        "telco": '[policy]\nmethods = ["vfl", "boosting", "risa", "serve"]\n',
    }
    for name, other in (("bank", "telco"), ("telco", "bank")):
        kit = authority.kit(folder / name, name)
        shutil.copy(vertical.parent / f"{name}.csv", kit)
        head = f'name = "{name}"\ndata = "{name}.csv"\nid = "id"\npartners = ["{other}"]\n'
        (kit / "party.toml").write_text(f"{head}threads = 1\n{more[name]}")
        for part in (vertical / "model").glob(f"*/{name}"):
            shutil.copytree(part, kit / "runs" / "run" / part.parent.name)
    made = SimpleNamespace(folder=folder, authority=authority, partner=Partner(folder / "telco"))
    yield made
    made.partner.end()


@pytest.mark.parametrize("method", ["vfl", "secureboost", "risa"])
def test_the_numbers_are_those_of_one_process(world, vertical, method):
    ids = [1000, *SHARED, 1159, "nobody", 77]
    near = WholeRun(vertical, method).service()
    far = open_kit(world.folder / "bank", {"telco": world.partner.address}, method=method)
    try:
        found, expected = far.by_ids(ids, 10.0, "t"), near.by_ids(ids, 10.0)
    finally:
        far.close()
        near.close()
    assert [row.get("used") for row in found] == [row.get("used") for row in expected]
    assert found[0]["used"] == ("bank",) and found[0]["absent"] == {"telco": "not known"}
    assert found[1]["used"] == ("bank", "telco") and found[1]["absent"] == {}
    assert found[-2:] == [{"id": "nobody", "unknown": True}, {"id": 77, "unknown": True}]
    p = [[row["p(yes)"] for row in rows[:-2]] for rows in (found, expected)]
    np.testing.assert_allclose(*p, atol=6e-5)  # digits = 4
    np.testing.assert_allclose(p[0], [1 - row["p(no)"] for row in expected[:-2]], atol=6e-5)
    # what crossed stands in both ledgers, one round for each batch
    for name, file in (
        ("bank", f"serve-run-{method}.jsonl"),
        ("telco", f"serve-bank-run-{method}.jsonl"),
    ):
        path = world.folder / name / "ledgers" / file
        # The partner, a process of its own, writes its last second when it sees the other leave.
        until, kinds = time.monotonic() + 30, {""}
        while not kinds & {"embedding", "side"} and time.monotonic() < until:
            kinds = {entry.kind for entry in read_ledger(path)}
            time.sleep(0.02)
        assert "hashed-id" in kinds and kinds & {"embedding", "side"}
        assert not kinds & {"row", "label"}


def test_foreign_certificates_are_refused_by_name(world):
    shop = world.authority.kit(world.folder / "shop", "shop")
    hello = Channel("telco", world.partner.address, shop)
    until = time.monotonic() + 10
    with pytest.raises(PartyAbsent, match="'shop' is not a partner"):
        hello.wait(hello.ask([b"x"], until), until)
    foreign = Authority().kit(world.folder / "foreign", "bank")
    with pytest.raises(PartyAbsent, match="not of this federation's authority"):
        Channel("telco", world.partner.address, foreign)
    with pytest.raises(PartyAbsent, match="is 'telco', by its certificate"):
        Channel("shop", world.partner.address, world.folder / "bank")
    told = (world.folder / "telco" / "events.jsonl").read_text()
    assert "refused 'shop' from 127.0.0.1: not a partner" in told


def test_a_session_can_predict_and_nothing_else():
    from fedmend.methods.vertical import vfl as vfl

    bound = served_only("telco", ("vfl", "serve"), Policy())
    assert {"attach", "embed", "load"} <= bound.calls["BottomWorker"]
    for method in ("create", "step", "save", "fill_embedding", "take_top"):
        with pytest.raises(Refused):
            bound.admit_call("telco", "BottomWorker", method)
    for worker in ("AlignmentKeeper", "OverviewWorker", "DigestWorker", "LedgerHeadWorker"):
        with pytest.raises(Refused):
            bound.admit_worker("telco", worker)
    assert {"PairWorker", "StarWorker", "RosterWorker", "ServeWorker"} <= set(bound.calls)


def test_a_session_holds_the_part_that_it_was_opened_for(world):
    """Other models of the run, and of the label party, lie beside it, and may have been revoked."""
    with PartnerServer(world.folder / "telco", "127.0.0.1:0") as server:
        hello = Hello("serve-bank-run-vfl", "run/vfl", ("vfl", "risa", "boosting", "serve"), 0, 0.0)
        site = server._site("bank", hello)
        for worker, method in (
            ("EvidenceBottomWorker", "risa"),
            ("PassiveTrees", "secureboost"),
            ("BottomWorker", "localvfl"),
        ):
            asked = site.start(worker, "serve@bank+telco", {"model": method})
            for path in (method, f"/somewhere/run/model/{method}"):
                with pytest.raises(Refused, match="'telco'.*another model.*Mend"):
                    site.call(asked, "load", {"path": path})
        bottom = site.start("BottomWorker", "serve@bank+telco", {"model": "vfl"})
        site.call(bottom, "load", {"path": "/somewhere/run/model/vfl"})


def test_columns_are_those_of_people_who_are_asked_about_and_of_nobody_else(world):
    """A label party that starts a bottom over everybody, past `take` and its quota."""
    with PartnerServer(world.folder / "telco", "127.0.0.1:0") as server:
        hello = Hello("serve-bank-run-vfl", "run/vfl", ("vfl", "serve"), 0, 0.0)
        site = server._site("bank", hello)
        bottom = site.start("BottomWorker", "people@bank+telco", {"model": "vfl"})
        site.call(bottom, "load", {"path": "vfl"})
        everybody = {"segments": [["all", 0]], "config": SplitConfig().to_wire()}
        with pytest.raises(DataError, match="column"):
            site.call(bottom, "attach", everybody)


def test_over_a_slow_link_the_partner_is_waited_for_until_the_deadline(world):
    link = SlowLink(world.partner.address)
    served = open_kit(world.folder / "bank", {"telco": link.address}, method="risa")
    try:
        link.delay = 0.05
        (row,) = served.by_ids([1060], 10.0)
        assert row["absent"] == {}
        link.delay = 2.0
        began = time.monotonic()
        (row,) = served.by_ids([1061], 0.4)
        assert row["absent"] == {"telco": "late"} and row["used"] == ("bank",)
        assert 0.3 <= time.monotonic() - began < 2.0
        link.delay = 0.0
        (row,) = served.by_ids([1061], 30.0)  # what came late was read, and the connection goes on
        assert row["absent"] == {} and served.health()["partners"] == {"telco": "there"}
    finally:
        served.close()
        link.close()


def until(met, seconds):
    ends = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_connection_that_ends_while_nobody_asks_is_noticed_and_costs_no_answer(world):
    link = SlowLink(world.partner.address)
    served = open_kit(world.folder / "bank", {"telco": link.address}, method="risa")
    remotes = served.answerer.engine.remotes
    try:
        before, channel = remotes["telco"], remotes["telco"].channel
        time.sleep(2 * IDLE_SECONDS)
        assert not channel.gone and served.health()["partners"] == {"telco": "there"}
        for end in link._ends:  # the partner is started anew
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        until(lambda: channel.gone, 2.0)
        until(lambda: remotes.get("telco", before) is not before, 10.0)
        until(lambda: served.health()["partners"] == {"telco": "there"}, 20.0)
        (row,) = served.by_ids([1062], 10.0)
        assert row["absent"] == {} and row["used"] == ("bank", "telco")
        link.close()  # and it is gone for good
        until(lambda: served.health()["partners"]["telco"] != "there", 2.0)
        families = Families()
        served.tell(families)
        assert 'fedmend_partner_up{model="run/risa",partner="telco"} 0' in str(families)
        until(lambda: "cannot be reached" in served.health()["partners"]["telco"], 5.0)
    finally:
        served.close()
        link.close()


@pytest.fixture(scope="module")
def server(world):
    with serving(
        PredictServer(
            world.folder / "bank",
            "vfl",
            partners={"telco": world.partner.address},
            log=world.folder / "requests.jsonl",
        )
    ) as found:
        yield found


def ask(server, content, path="predict", token=TOKEN, get=False):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if get else json.dumps(content).encode()
    request = urllib.request.Request(server.address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, text if path == "metrics" else json.loads(text)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def rows_of(server, ids, **more):
    status, found = ask(server, {"ids": ids, **more})
    assert status == 200, found
    return found["predictions"]["bank"]


def test_askers_have_tokens_and_people_a_quota(server):
    for token in ("", "another"):
        assert ask(server, {"ids": [1050]}, token=token)[0] == 401
    log = (server._place.parent / "requests.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in log[-2:]]
    assert [(each["asker"], each["outcome"], each["rows"]) for each in told] == [
        ("", "refused", 0)
    ] * 2
    for _ in range(QUOTA):
        (row,) = rows_of(server, [1051])
    assert row["p(yes)"] == round(row["p(yes)"], 4)
    status, found = ask(server, {"ids": [1050, 1051]})
    assert status == 429 and "1051 among them" in found["error"]
    assert rows_of(server, [1050])[0]["used"] == ["bank", "telco"]


def test_new_people_and_what_is_wrong(server):
    new = {"id": 5, "a": 0.3, "b": -1.0, "city": "Ulm"}
    status, found = ask(server, {"bank": [new, {**new, "id": 1052}]})
    rows = found["predictions"]["bank"]
    assert status == 200 and [row["used"] for row in rows] == [["bank"], ["bank", "telco"]]
    for content, words in (
        ({"telco": [{"id": 1, "c": 1.0}]}, "'telco'.*own source"),
        ({"ids": []}, "list of numbers"),
        ({"ids": [1.5]}, "list of numbers"),
        ({"ids": [1], "deadline_ms": -1}, "deadline_ms"),
        ({"ids": [1], "dead": 1}, "'dead'"),
    ):
        status, found = ask(server, content)
        assert status == 422, content
        assert re.search(words, found["error"])


def wait_for(server, ids, wanted, seconds=60.0):
    """Ask until the partner's part is as wanted; every request is answered."""
    until = time.monotonic() + seconds
    for at in range(10_000):
        (row,) = rows_of(server, [ids[at % len(ids)]])
        if row["absent"].get("telco") == wanted:
            return row
        assert time.monotonic() < until, row
        time.sleep(0.1)


def test_slow_and_back_again(world, server, vertical):
    ids = ASKED
    alone = WholeRun(vertical, "vfl").service()
    alone.answerer.leave("telco")
    (expected,) = alone.by_ids([1053], 10.0)
    alone.close()
    world.partner.send(signal.SIGSTOP)
    try:
        for _ in range(3):  # a signal takes its time
            began = time.monotonic()
            (row,) = rows_of(server, [1053], deadline_ms=300)
            took = time.monotonic() - began
            if row["absent"]:
                break
        assert row["absent"] == {"telco": "late"} and row["used"] == ["bank"], row
        assert took < 2.0
        assert row["p(yes)"] == pytest.approx(expected["p(yes)"], abs=1e-4)
        wait_for(server, ids, "rests")
    finally:
        world.partner.send(signal.SIGCONT)
    wait_for(server, ids, None)


@pytest.mark.slow
def test_dead_and_back_again(world, server, monkeypatch):
    ids = ASKED
    wait_for(server, ids, None)
    port = world.partner.port
    world.partner.end()
    assert wait_for(server, ids, "down")["used"] == ["bank"]
    whole, broken = answering.align, []

    def broken_off(*given, **how):
        found = whole(*given, **how)
        if not broken:
            broken.append(found)
            raise PartyAbsent("telco", "it went while it joined")
        return found

    monkeypatch.setattr(answering, "align", broken_off)
    world.partner = Partner(world.folder / "telco", port)
    assert wait_for(server, ids, None)["used"] == ["bank", "telco"] and broken


def test_a_part_that_is_taken_away_answers_nobody(world, server):
    part = world.folder / "telco" / "runs" / "run" / "vfl"
    part.rename(part.with_name("revoked"))
    try:
        (row,) = rows_of(server, [1056])
        assert row["absent"] == {"telco": "refused"} and row["used"] == ["bank"]
    finally:
        part.with_name("revoked").rename(part)
    assert rows_of(server, [1056])[0]["used"] == ["bank", "telco"]


def test_what_is_told_of_it(world, server):
    (row,) = rows_of(server, [1055])
    status, health = ask(server, None, "health", get=True)
    assert status == 200 and health["partners"] == {"telco": "there"}
    _, text = ask(server, None, "metrics", get=True)
    of = 'model="run/vfl"'
    assert f'fedmend_partner_up{{{of},partner="telco"}} 1' in text
    assert f'fedmend_absent_total{{{of},partner="telco",reason="late"}}' in text
    assert f'fedmend_request_seconds_count{{{of},outcome="partial"}}' in text
    assert f'fedmend_expected_absent_share{{{of},partner="telco"}} 0.25' in text
    _, told = ask(server, None, "openapi.json", get=True)
    paths = {"/", "/predict", "/models/{run}/{method}/predict", "/health", "/metrics"}
    assert set(told["paths"]) == paths
    log = (world.folder / "requests.jsonl").read_text()
    lines = [json.loads(each) for each in log.splitlines()]
    assert lines[-1]["asker"] == "crm" and lines[-1]["outcome"] == "complete"
    assert {each["outcome"] for each in lines} == {"complete", "partial", "refused", "invalid"}
    assert not any("id" in each for each in lines) and row["id"] == 1055


def test_models_side_by_side_one_on_trial_and_back_again(world):
    kit, partners = world.folder / "bank", {"telco": world.partner.address}
    file = kit / "party.toml"
    before = file.read_text()
    file.write_text(f'{before}model = "run/risa"\n')
    trees = "run/secureboost"
    try:
        with serving(PredictServer(kit, partners=partners, also=[trees], shadow=trees)) as server:

            def row(path="predict"):
                status, found = ask(server, {"ids": [1140], "deadline_ms": 10_000}, path)
                assert status == 200, found
                (answer,) = found["predictions"]["bank"]
                assert answer["used"] == ["bank", "telco"]
                return found["model"], answer["p(yes)"]

            risa, boosted = row(), row(f"models/{trees}/predict")
            assert (risa[0], boosted[0]) == ("run/risa", trees) and risa[1] != boosted[1]
            assert ask(server, {"ids": [1140]}, "models/run/clean/predict")[0] == 404
            file.write_text(f'{before}model = "{trees}"\n')
            assert row() == risa and server.choose_again() == trees and row() == boosted
            file.write_text(f'{before}model = "run/nothing"\n')
            with pytest.raises(ConfigError, match="holds no model 'run/nothing'.* of.*vfl"):
                server.choose_again()
            assert row() == boosted
            file.write_text(f'{before}model = "run/risa"\n')
            assert server.choose_again() == "run/risa" and row() == risa
            # What others answered was asked of the one on trial too, and it differs somewhat.
            of, until = f'{{model="{trees}"}}', time.monotonic() + 30
            while f"fedmend_shadow_rows_total{of} 3" not in (
                text := server.versions.metrics_text()
            ):
                assert time.monotonic() < until, text
                time.sleep(0.05)
            assert f"fedmend_shadow_left_total{of} 0" in text
            assert f"fedmend_shadow_difference_total{of} 0.000000" not in text
            assert text.count("# TYPE fedmend_request_seconds histogram") == 1
            told = ask(server, None, "health", get=True)[1]
            assert set(told["models"]) == {"run/risa", trees}
            with pytest.raises(ConfigError, match="another process answers with this model"):
                open_kit(kit, partners, method="risa")
            # A person's answers count together, whichever model gives them.
            for _ in range(QUOTA - 6):
                row(f"models/{trees}/predict")
            assert ask(server, {"ids": [1140]})[0] == 429
    finally:
        file.write_text(before)


def test_a_disk_that_is_full_at_the_label_party(world, monkeypatch):
    """No answer leaves that the ledger does not know."""
    kit, partners = world.folder / "bank", {"telco": world.partner.address}
    with serving(PredictServer(kit, "risa", partners=partners)) as server:
        assert ask(server, {"ids": [1141]})[0] == 200

        def full(*given, **more):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(server.service.answerer.engine.ledger, "record", full)
            status, found = ask(server, {"ids": [1141]})
            assert status == 503 and "ledger cannot be written: No space left" in found["error"]
        assert ask(server, {"ids": [1141]})[0] == 200


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_partner(world, tmp_path):
    disk, kit = tmp_path / "disk", tmp_path / "telco"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    shutil.copytree(world.folder / "telco", kit, ignore=shutil.ignore_patterns("ledgers"))
    (kit / "ledgers").symlink_to(disk)
    partner = Partner(kit)
    try:
        service = open_kit(world.folder / "bank", {"telco": partner.address}, method="risa")
        places = service.answerer.people.places([1143])
        assert service.answers([1143], places, 10.0)[0]["absent"] == {}
        with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(bytes(1024))
        until = time.monotonic() + 30  # the ledger's own last block has room for a while
        while not (row := service.answers([1143], places, 10.0)[0])["absent"]:
            assert time.monotonic() < until
        service.close()
    finally:
        partner.end()
        subprocess.run(["umount", str(disk)], check=True)
    assert row["absent"] == {"telco": "refused"} and row["used"] == ("bank",)
    assert "No space left on device" in (kit / "events.jsonl").read_text()


@pytest.mark.slow
def test_a_label_party_that_is_killed_finds_its_partner_again(world):
    """As a process, which SIGHUP tells to read anew which model answers."""
    kit, file = world.folder / "bank", world.folder / "bank" / "party.toml"
    before = file.read_text()
    partner = f"telco={world.partner.address}"
    words = ["serve", str(kit), "--run", "run", "--method", "risa", "--partner", partner]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmend", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert "answers with RISA" in process.stdout.readline()
        file.write_text(f'{before}model = "run/secureboost"\n')
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "run/secureboost answers\n"
    finally:
        file.write_text(before)
        process.kill()
        process.wait()
        process.stdout.close()
    service = open_kit(kit, {"telco": world.partner.address}, method="risa")
    try:
        assert service.by_ids([1142], 10.0)[0]["used"] == ("bank", "telco")
    finally:
        service.close()


def test_nobody_listens(tmp_path):
    kit = Authority().kit(tmp_path / "bank", "bank")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(PartyAbsent, match="cannot be reached"):
        Channel("telco", f"127.0.0.1:{port}", kit)


def test_a_certificate_that_is_over_is_named_on_both_sides(tmp_path, monkeypatch):
    authority, told = Authority(), []
    good = authority.kit(tmp_path / "good", "bank")
    authority.days = -1
    kits = {name: authority.kit(tmp_path / name, name) for name in ("bank", "telco")}
    with pytest.raises(ConfigError, match=r"certificate of telco expired on .*Mend: .*renew"):
        Listener(kits["telco"], "127.0.0.1:0", frozenset(["bank"]), None, told.append)
    with pytest.raises(ConfigError, match=r"certificate of bank expired on .*Mend: .*renew"):
        Channel("telco", "127.0.0.1:9", kits["bank"])
    # while they are in use, or where the other side's clock is wrong
    monkeypatch.setattr(channel, "require_kit_valid", lambda kit: None)
    listener = Listener(kits["telco"], "127.0.0.1:0", frozenset(["bank"]), None, told.append)
    thread = threading.Thread(target=listener.serve)
    thread.start()
    try:
        with pytest.raises(PartyAbsent, match=r"not valid now \(certificate has expired\)"):
            Channel("telco", listener.address, good)
        listener._context = channel._context(good, server=True)
        with contextlib.suppress(PartyAbsent):
            Channel("bank", listener.address, kits["bank"]).close()
        until = time.monotonic() + 20
        while not any("refused" in each and "certificate has expired" in each for each in told):
            assert time.monotonic() < until, told
            time.sleep(0.02)
    finally:
        listener.close()
        thread.join()


def test_one_connection_that_fails_in_coming_ends_no_service(tmp_path, monkeypatch):
    """As one does that is gone before it is taken, or while too many files are open."""
    authority = Authority()
    kits = [authority.kit(tmp_path / name, name) for name in ("telco", "shop")]
    listener = Listener(kits[0], "127.0.0.1:0", frozenset(), lambda *_: None, lambda _: None)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]
    monkeypatch.setattr(
        socket.socket, "accept", lambda self: accept(self) if not failures else _raise(failures)
    )
    thread = threading.Thread(target=listener.serve)
    thread.start()
    try:
        Channel("telco", listener.address, kits[1]).close()
    finally:
        listener.close()
        thread.join()
    assert not failures


def _raise(failures):
    raise failures.pop()
