"""A coordinator that writes into a kit's party.toml, or says in a run, what a party is to call.

It provisions the kits, so it can point ``uri`` at a machine of its own and put any environment
variable of the party into it; and in alignments of mode "spu" it says where the partner is.
Measured: a listening socket in the coordinator's hands, to which nobody may connect, and an
environment that nobody may read, before the party's own people have confirmed it.
"""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from fedmend.cli import app
from fedmend.cli import parties as commands
from fedmend.data.table import Table
from fedmend.deploy.party_check import check_party
from fedmend.deploy.party_file import CONFIRMED_FILE, confirm, load_party, open_site, unconfirmed
from fedmend.errors import ConfigError, Refused
from fedmend.federation import Federation, Party, Site
from fedmend.federation.engines.flare.host import Hello, PartyHost
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.flow import reading
from fedmend.secure import psi_spu
from fedmend.secure.align import align

HELLO = Hello("r1", "first", ("vfl",), 0, 0.25)
ROWS = pd.DataFrame({"customer": range(40), "age": np.arange(40) % 7 + 20.5})


class Kit:
    """A kit as it arrives at the bank, with a file that somebody else wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "startup").mkdir()
        (folder / "startup" / "fed_client.json").write_text(
            '{"client": {"fqsn": "bank"}, "servers": [{"service": {"target": "localhost:1"}}]}'
        )
        ROWS.to_csv(folder / "bank.csv", index=False)

    def write(self, text: str) -> None:
        (self.folder / "party.toml").write_text(f'name = "bank"\nid = "customer"\n{text}\n')

    def ask(self) -> Any:
        """What the coordinator gets when it begins a run."""

        def open_it(hello: Any) -> Site:
            return open_site(load_party(self.folder), hello, self.folder)

        host = PartyHost("bank", open_it, self.folder)
        try:
            return read_reply(host.answer(request("hello", **HELLO.to_wire())), "bank", "hello")
        finally:
            host.close("the test is over")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A machine of the coordinator's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def was_called(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


# ---------------------------------------------------------------- kits


def test_no_database_is_called_before_the_party_confirmed_it(kit, listener, monkeypatch):
    port = listener.getsockname()[1]
    monkeypatch.setenv("BANK_SECRET", "hunter2")
    looked = []
    monkeypatch.setattr(
        reading, "look_up", lambda written, key: looked.append(written) or pytest.fail()
    )
    address = f"postgresql://reader:${{BANK_SECRET}}@127.0.0.1:{port}/x?connect_timeout=2"
    kit.write(f'sql = "SELECT 1"\nuri = "{address}"')
    with pytest.raises(
        Refused, match=r"not confirmed where its party.toml leads \(uri, sql\)"
    ) as no:
        kit.ask()
    assert "127.0.0.1" not in str(no.value)  # what stands in the file is not the coordinator's
    found = [each for each in check_party(kit.folder, seconds=0.1) if each.name == "party.toml"]
    told = [each for each in found if "is not confirmed" in each.words]
    assert [each.grade for each in told] == ["problem", "problem"]
    assert address in told[0].words and "reads BANK_SECRET" in told[0].words
    assert "hunter2" not in str(found)
    assert not was_called(listener) and looked == []


def test_once_confirmed_it_is_read_and_a_change_is_asked_again(kit):
    with sqlite3.connect(kit.folder / "bank.db") as database:
        ROWS.to_sql("people", database, index=False)
    database.close()
    kit.write(f'sql = "SELECT * FROM people"\nuri = "sqlite:///{kit.folder}/bank.db"')
    confirm(load_party(kit.folder))
    assert (kit.folder / CONFIRMED_FILE).stat().st_mode & 0o077 == 0
    assert "sqlite" not in (kit.folder / CONFIRMED_FILE).read_text()
    assert "session" in kit.ask()
    for change in ("SELECT * FROM people WHERE age > 21", "SELECT customer, age FROM people"):
        kit.write(f'sql = "{change}"\nuri = "sqlite:///{kit.folder}/bank.db"')
        with pytest.raises(Refused, match=r"leads \(sql\)"):
            kit.ask()
    kit.write(f'sql = "SELECT * FROM people"\nuri = "sqlite:////{kit.folder}/bank.db"')
    with pytest.raises(Refused, match=r"leads \(uri\)"):
        kit.ask()


@pytest.mark.parametrize("key", ["data", "test", "new"])
def test_no_variable_of_the_environment_is_read_unseen(kit, monkeypatch, key):
    monkeypatch.setenv("FOLDER", str(kit.folder))
    more = "" if key == "data" else 'data = "bank.csv"\n'
    kit.write(f'{more}{key} = "${{FOLDER}}/bank.csv"')
    with pytest.raises(Refused, match=rf"leads \({key}\)"):
        kit.ask()
    (lead,) = unconfirmed(load_party(kit.folder))
    assert lead.words.endswith("(reads FOLDER from the environment)")
    confirm(load_party(kit.folder))
    assert "session" in kit.ask()


def test_a_table_beside_the_file_has_nothing_to_confirm(kit):
    kit.write('data = "bank.csv"')
    assert "session" in kit.ask()
    kit.write('data = "a$${b}.csv"')  # a dollar sign, no reference
    assert unconfirmed(load_party(kit.folder)) == []


def test_what_was_confirmed_for_one_key_is_not_for_another(kit, monkeypatch):
    monkeypatch.setenv("FOLDER", str(kit.folder))
    kit.write('data = "${FOLDER}/bank.csv"')
    confirm(load_party(kit.folder))
    kit.write('data = "${FOLDER}/bank.csv"\nnew = "${FOLDER}/bank.csv"')
    with pytest.raises(Refused, match=r"leads \(new\)"):
        kit.ask()


def test_a_damaged_memory_confirms_nothing(kit):
    kit.write('data = "${FOLDER}/bank.csv"')
    for content in ("", "[]", '{"confirmed": 7}', "\x00"):
        (kit.folder / CONFIRMED_FILE).write_text(content)
        with pytest.raises(ConfigError, match="is damaged .*party confirm"):
            unconfirmed(load_party(kit.folder))


# ---------------------------------------------------------------- the command


def test_the_command_shows_asks_and_remembers(kit, monkeypatch):
    kit.write('sql = "SELECT 1"\nuri = "postgresql://me:hunter2@db/x"')
    run = CliRunner().invoke
    nobody = run(app, ["party", "confirm", str(kit.folder)])
    assert nobody.exit_code != 0 and not (kit.folder / CONFIRMED_FILE).exists()
    assert 'uri = "postgresql://me:***@db/x"' in nobody.output and "--yes" in str(nobody.exception)
    # Nobody sits there either when the party is started, in the background or not.
    for more in ([], ["--detach"]):
        assert run(app, ["party", "start", str(kit.folder), *more]).exit_code != 0
    assert not (kit.folder / CONFIRMED_FILE).exists()
    assert run(app, ["party", "confirm", str(kit.folder), "--yes"]).exit_code == 0
    assert unconfirmed(load_party(kit.folder)) == []
    assert "leads" not in run(app, ["party", "confirm", str(kit.folder)]).output


@pytest.mark.parametrize("said", [True, False])
def test_somebody_at_the_keyboard_is_asked(kit, monkeypatch, said):
    kit.write('data = "${FOLDER}/bank.csv"')
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda words: said)
    if said:
        commands.confirm(kit.folder)
    else:
        with pytest.raises(ConfigError, match="not confirmed"):
            commands.confirm(kit.folder)
    assert (unconfirmed(load_party(kit.folder)) == []) is said


def test_what_is_shown_cannot_paint_over_itself(kit):
    kit.write('sql = "SELECT 1"\nuri = "sqlite:///x\\u001b[2K\\rinnocent\\n.db"')
    uri, _ = unconfirmed(load_party(kit.folder))
    assert not set(uri.words) & set("\x1b\r\n")


# ---------------------------------------------------------------- spu


@pytest.fixture
def spu(monkeypatch) -> list[dict[str, Any]]:
    """The jobs that spu's process would have been given."""
    jobs: list[dict[str, Any]] = []

    def child(party: str, peer: str, job: dict[str, Any], folder: Path) -> None:
        jobs.append(job)
        Path(job["output"]).write_text(Path(job["input"]).read_text())

    monkeypatch.setenv(psi_spu.PYTHON_VARIABLE, sys.executable)
    monkeypatch.delenv(psi_spu.ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(psi_spu, "_run_child", child)
    return jobs


def pair() -> Federation:
    tables = {name: Table(list(range(30)), {"x": list(range(30))}) for name in ("bank", "telco")}
    return Federation(*(Party(name, table) for name, table in tables.items()))


def said_to(fed: Federation, **addresses: str) -> None:
    for site in fed.engine.sites.values():
        site.vault[psi_spu.PARTNER_ADDRESSES] = addresses


def test_spu_calls_nobody_whom_the_party_has_not_named(spu):
    fed = pair()
    said_to(fed)  # as on machines of their own, with nothing in party.toml
    with pytest.raises(Refused, match=r"has not confirmed. Mend: ask .* spu_addresses = "):
        align(fed, mode="spu")
    said_to(fed, bank="10.0.0.5:9500", telco="10.0.0.6")
    with pytest.raises(Refused, match="has not confirmed"):
        align(fed, mode="spu")
    assert spu == []


def test_spu_calls_the_address_of_the_file(spu):
    fed = pair()
    said_to(fed, bank="127.0.0.1", telco="127.0.0.1")
    assert align(fed, mode="spu").aligned == 30 and len(spu) == 2
    assert align(pair(), mode="spu").aligned == 30  # in one process: loopback alone


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"telco": "10.6.6.6:9500"}, "the coordinator says that 'telco' is at 10.6.6.6:9500"),
        ({"telco": "127.0.0.1.evil.org:95"}, "has not confirmed"),
        ({"telco": "127.0.0.1"}, "is no address of 'telco'"),
        ({"telco": "127.0.0.1:95 --flag"}, "is no address of 'telco'"),
        ({"bank": "0.0.0.0:9500"}, "it is to listen at '0.0.0.0:9500', which is not its address"),
    ],
)
def test_a_coordinator_cannot_say_where_spu_goes(spu, monkeypatch, change, problem):
    fed = pair()
    call = psi_spu.SpuWorker.intersect

    def lied_to(worker: Any, addresses: dict[str, str]) -> int:
        hers = worker.site.name == "bank"
        return call(worker, addresses | change if hers else addresses)

    lied_to.__exposure__ = call.__exposure__  # type: ignore[attr-defined]
    monkeypatch.setattr(psi_spu.SpuWorker, "intersect", lied_to)
    with pytest.raises(Refused, match=problem):
        align(fed, mode="spu")
    assert not any("10.6.6.6" in str(job) or "0.0.0.0" in str(job) for job in spu)


def test_addresses_of_a_kit_are_confirmed_and_reach_the_site(kit):
    kit.write('data = "bank.csv"\nspu_addresses = {telco = "10.0.0.5:9500"}')
    with pytest.raises(Refused, match=r"leads \(spu_addresses.telco\)"):
        kit.ask()
    file = load_party(kit.folder)
    assert unconfirmed(file)[0].words == 'spu_addresses.telco = "10.0.0.5:9500"'
    confirm(file)
    site = open_site(file, HELLO, kit.folder)
    assert site.vault[psi_spu.PARTNER_ADDRESSES] == {"telco": "10.0.0.5:9500"}
