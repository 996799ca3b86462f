"""SQL queries: a real SQLite file, and a real PostgreSQL server where there is one."""

from __future__ import annotations

import sqlite3
import sys

import pytest

from fedmend.data import read_sql
from fedmend.errors import DataError, MissingExtra, ReadError

ROWS = [(3, 31, 1.5, "Ulm", "no"), (1, 45, None, None, "yes"), (2, 28, 2.5, "Bonn", "no")]
CREATE = "CREATE TABLE people (id INTEGER, age INTEGER, income REAL, city TEXT, bad TEXT)"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "bank data.db"
    with sqlite3.connect(path) as connection:
        connection.execute(CREATE)
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?, ?)", ROWS)
    connection.close()
    return path


def count(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count(*) FROM people").fetchone()[0]
    finally:
        connection.close()


def test_sqlite(database, monkeypatch):
    table = read_sql("SELECT * FROM people", uri=f"sqlite:///{database}", id="id", label="bad")
    assert table.ids.tolist() == [3, 1, 2] and table.label == "bad"
    assert table.frame["age"].tolist() == [31, 45, 28]
    assert table.missing().to_dict() == {"age": 0, "income": 1, "city": 1, "bad": 0}
    monkeypatch.chdir(database.parent)
    some = read_sql(
        "SELECT id, age FROM people WHERE age > 30",
        uri=f"sqlite:///{database.name}",
        id="id",
        kinds={"age": "integer"},
    )
    assert some.n_rows == 2 and some.schema["age"].kind == "integer"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM people",
        "DELETE FROM people RETURNING *",
        "UPDATE people SET age = 0",
        "DROP TABLE people",
        "CREATE TABLE other (x INTEGER)",
    ],
)
def test_sqlite_cannot_be_written_to(database, query):
    with pytest.raises(ReadError, match="would write, and the session is read-only") as caught:
        read_sql(query, uri=f"sqlite:///{database}", id="id")
    assert caught.value.mend == "use a SELECT query"
    assert count(database) == 3


def test_sqlite_stays_read_only_when_told_otherwise(database):
    with pytest.raises(ReadError):
        read_sql("PRAGMA query_only = OFF", uri=f"sqlite:///{database}", id="id")
    read_sql("SELECT * FROM people; DELETE FROM people", uri=f"sqlite:///{database}", id="id")
    assert count(database) == 3


def test_a_type_that_only_shows_late(tmp_path):
    path = tmp_path / "late.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (id, x)")
        rows = [(n, n) for n in range(70_000)] + [(70_000, 0.5)]
        connection.executemany("INSERT INTO people VALUES (?, ?)", rows)
    connection.close()
    table = read_sql("SELECT * FROM people", uri=f"sqlite:///{path}", id="id")
    assert table.n_rows == 70_001 and table.frame["x"].iloc[-1] == 0.5


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("SELECT * FROM nope", {}, "no such table: nope"),
        ("SELECT FROM", {}, "the database refused"),
        ("SELECT * FROM people WHERE age > 99", {}, "the query returns no rows"),
        ("SELECT * FROM people", {"id": "ids"}, "did you mean 'id'"),
        ("SELECT * FROM people", {"label": "bda"}, "did you mean 'bad'"),
        ("SELECT 1 AS id, age FROM people", {}, "column 'id': duplicate id"),
        ("SELECT NULL AS id, age FROM people", {}, "missing id in 3 rows"),
    ],
)
def test_bad_queries(database, query, options, says):
    with pytest.raises(DataError, match=says) as caught:
        read_sql(query, uri=f"sqlite:///{database}", **({"id": "id"} | options))
    assert caught.value.mend


def test_bad_addresses(tmp_path):
    with pytest.raises(ReadError, match="no such database file"):
        read_sql("SELECT 1", uri=f"sqlite:///{tmp_path}/none.db", id="id")
    assert list(tmp_path.iterdir()) == [], "an absent SQLite file is not made"
    with pytest.raises(ReadError, match=r"unknown kind of database.*postgresql://") as caught:
        read_sql("SELECT 1", uri="mysql://me:secret@host/db", id="id")
    assert "secret" not in str(caught.value)


def test_an_absent_driver_names_the_extra(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    with pytest.raises(MissingExtra, match=r"fedmend\[sql\]"):
        read_sql("SELECT 1", uri=f"sqlite:///{database}", id="id")
    with pytest.raises(MissingExtra, match="adbc-driver-postgresql"):
        read_sql("SELECT 1", uri="postgresql://host/db", id="id")


# --- PostgreSQL -----------------------------------------------------------------------


@pytest.fixture
def people(postgresql):
    import adbc_driver_postgresql.dbapi as driver

    with driver.connect(postgresql, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS people")
        cursor.execute(
            "CREATE TABLE people (id bigint, age smallint, income double precision, city text, "
            "money numeric(8,2), bad boolean, key uuid)"
        )
        cursor.execute(
            "INSERT INTO people VALUES "
            "(3, 31, 1.5, 'Ulm', 10.25, false, '00000000-0000-0000-0000-000000000003'),"
            "(1, 45, NULL, NULL, NULL, true, '00000000-0000-0000-0000-000000000001'),"
            "(2, 28, 2.5, 'Bonn', 99.5, false, '00000000-0000-0000-0000-000000000002'),"
            "(4, 50, 3.5, 'Kiel', 7, false, '00000000-0000-0000-0000-000000000004')"
        )
    return postgresql


def test_postgresql(people):
    query = "SELECT id, age, income, city, money, bad FROM people ORDER BY age"
    table = read_sql(query, uri=people, id="id", label="bad")
    assert table.ids.tolist() == [2, 3, 1, 4] and table.frame["age"].tolist() == [28, 31, 45, 50]
    assert table.frame["money"].tolist()[:2] == [99.5, 10.25]
    assert table.schema["money"].kind == "continuous" and table.schema["bad"].kind == "binary"
    assert table.missing()[["income", "city", "money"]].tolist() == [1, 1, 1]
    keyed = read_sql("SELECT key::text AS key, age FROM people", uri=people, id="key")
    assert keyed.ids[0] == "00000000-0000-0000-0000-000000000003"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM people",
        "WITH gone AS (DELETE FROM people RETURNING *) SELECT * FROM gone",
        "UPDATE people SET age = 0 RETURNING id",
        "CREATE TABLE other AS SELECT * FROM people",
    ],
)
def test_postgresql_cannot_be_written_to(people, query):
    with pytest.raises(ReadError, match="would write, and the session is read-only"):
        read_sql(query, uri=people, id="id")
    assert read_sql("SELECT id FROM people", uri=people, id="id").n_rows == 4


def test_postgresql_errors_hide_the_password(people):
    for query, uri in [
        ("SELECT * FROM nope", people),
        ("SELECT 1", people.replace("/postgres", "/nowhere")),
        ("SELECT 1", "postgresql://bank:hidden@127.0.0.1:1/postgres"),
    ]:
        with pytest.raises(ReadError, match="the database refused") as caught:
            read_sql(query, uri=uri, id="id")
        assert "hidden" not in str(caught.value) and "bank:***@" in str(caught.value)


def test_a_join_that_gives_a_column_twice(database):
    query = "SELECT * FROM people AS a JOIN people AS b ON a.id = b.id"
    with pytest.raises(DataError, match="'id': two columns have this name .*Mend: rename"):
        read_sql(query, uri=f"sqlite:///{database}", id="id")
