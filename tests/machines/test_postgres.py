"""A party whose table lives in a real PostgreSQL server: the same numbers as from its file."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from fedmend.deploy.party_check import check_party
from fedmend.deploy.party_file import confirm, load_party

from . import machine_probe

pytestmark = pytest.mark.slow


def fill(uri: str, frame: pd.DataFrame) -> None:
    import adbc_driver_postgresql.dbapi as driver

    with driver.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE calls (id bigint, c double precision, d double precision)")
        rows = ", ".join(f"({int(row.id)}, {row.c!r}, {row.d!r})" for row in frame.itertuples())
        cursor.execute(f"INSERT INTO calls VALUES {rows}")


def test_a_party_with_its_table_in_a_database(fresh_world, postgresql, monkeypatch):
    world = fresh_world
    # The party's own worker, which its check loads here; this process has it by another name.
    monkeypatch.setitem(sys.modules, "machine_probe", machine_probe)
    frame = pd.read_csv(world.folder / "telco.csv")
    fill(postgresql, frame.astype({"c": float, "d": float}))
    path = world.kits.party("telco") / "party.toml"
    before = path.read_text()
    lines = [
        line for line in before.splitlines() if not line.startswith(("data =", "# sql", "# uri"))
    ]
    query = f'sql = "SELECT id, c, d FROM calls ORDER BY id"\nuri = "{postgresql}"\n'
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
