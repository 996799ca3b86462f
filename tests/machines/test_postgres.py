"""A party whose table lives in a real PostgreSQL server: the same numbers as from its file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from fedmend.deploy.party_check import check_party
from fedmend.deploy.party_file import confirm, load_party

from .conftest import free_port

pytestmark = pytest.mark.slow


def programs() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    pytest.skip("no PostgreSQL server programs (initdb, pg_ctl) on this machine")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The address of a PostgreSQL server of our own."""
    folder = programs()
    home = Path("/tmp") if os.geteuid() == 0 else tmp_path_factory.mktemp("pg")
    home = home / f"fedmend-machines-pg-{os.getpid()}"
    home.mkdir(mode=0o700)
    as_user = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        os.chown(home, 65534, 65534)
        as_user = {"user": 65534, "group": 65534}

    def run(*command):
        subprocess.run(
            command, check=True, cwd=home, stdout=subprocess.DEVNULL, timeout=120, **as_user
        )

    port = free_port()
    data, options = home / "db", f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        run(folder / "initdb", "-D", data, "-U", "telco", "-A", "trust", "--no-sync")
        run(folder / "pg_ctl", "-D", data, "-o", options, "-l", home / "log", "-w", "start")
        try:
            yield f"postgresql://telco@127.0.0.1:{port}/postgres"
        finally:
            run(folder / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def fill(uri: str, frame: pd.DataFrame) -> None:
    import adbc_driver_postgresql.dbapi as driver

    with driver.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE calls (id bigint, c double precision, d double precision)")
        rows = ", ".join(f"({int(row.id)}, {row.c!r}, {row.d!r})" for row in frame.itertuples())
        cursor.execute(f"INSERT INTO calls VALUES {rows}")


def test_a_party_with_its_table_in_a_database(fresh_world, database):
    world = fresh_world
    frame = pd.read_csv(world.folder / "telco.csv")
    fill(database, frame.astype({"c": float, "d": float}))
    path = world.kits.party("telco") / "party.toml"
    before = path.read_text()
    lines = [
        line for line in before.splitlines() if not line.startswith(("data =", "# sql", "# uri"))
    ]
    query = f'sql = "SELECT id, c, d FROM calls ORDER BY id"\nuri = "{database}"\n'
    path.write_text(query + "\n".join(lines))
    try:
        confirm(load_party(world.kits.party("telco")))
        found = {check.name: check for check in check_party(world.kits.party("telco"))}
        assert found["table"].words == f"{len(frame):,} rows, 2 columns"
        record = world.run("database")
    finally:
        path.write_text(before)
    here = world.run_here("database-here")
    for ours, theirs in zip(record.methods, here.methods, strict=True):
        for name, value in theirs.scores.items():
            assert ours.scores[name] == pytest.approx(value, abs=1e-6)
    told = (world.folder / "database" / "report.html").read_text()
    assert "SELECT id" not in told
