"""Tables from SQL queries through ADBC, in a session that cannot write.

SQLite files are opened read-only; PostgreSQL sessions are told to be read-only before the
query runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fedmend.data.readers import to_frame
from fedmend.data.schema import KindSpec
from fedmend.data.table import Table, reject_doubled, require_name
from fedmend.errors import DataError, MissingExtra, ReadError

if TYPE_CHECKING:
    import pyarrow as pa

# A password may hold an @ that should have been written %40: all up to the last one is hidden.
_LOGIN = re.compile(r"(//[^:@/?]*:)(.*)(?=@)")
_OPTION = re.compile(r"((?:ssl)?password=)([^&\s]*)", re.IGNORECASE)
_BATCH_ROWS = "adbc.sqlite.query.batch_rows"


def read_sql(
    query: str,
    *,
    uri: str,
    id: str | None = None,
    label: str | None = None,
    kinds: Mapping[str, KindSpec] | None = None,
    drop: Sequence[str] = (),
) -> Table:
    """The rows a query returns, without the columns to `drop`.

    ``uri`` is ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or
    ``postgresql://user:password@host:port/database``.
    """
    arrow = _queried(query, uri, [])
    if arrow.num_columns == 0:
        raise ReadError("the query returns no columns", mend="use a SELECT query")
    if arrow.num_rows == 0:
        raise ReadError("the query returns no rows", mend="check its WHERE clause and the table")
    try:
        reject_doubled(arrow.column_names)
        for name in drop:
            require_name(name, arrow.column_names, "column (named in drop)")
        frame = to_frame(arrow.drop_columns(list(drop)))
        return Table.from_frame(frame, id=id, label=label, kinds=kinds)
    except ReadError:
        raise
    except DataError as error:
        error.problem += f" [{without_password(uri)}]"
        raise


def query_rows(query: str, ids: Sequence[Any], *, uri: str) -> list[dict[str, Any]]:
    """The rows that a query returns of some people; ``{ids}`` in it stands for their ids.

    They are handed to the database as values: nothing in an id is ever read as SQL.
    """
    is_sqlite = uri.partition(":")[0].lower() == "sqlite"
    signs = ("?" if is_sqlite else f"${number + 1}" for number in range(len(ids)))
    return _queried(query.replace("{ids}", ", ".join(signs)), uri, list(ids)).to_pylist()


def _queried(query: str, uri: str, values: list[Any]) -> pa.Table:
    scheme = uri.partition(":")[0].lower()
    if scheme == "sqlite":
        return _sqlite(query, uri, values)
    if scheme in ("postgresql", "postgres"):
        return _postgresql(query, uri, values)
    raise ReadError(
        "unknown kind of database",
        value=without_password(uri),
        mend="use sqlite:///file.db or postgresql://user@host/database",
    )


def _sqlite(query: str, uri: str, values: list[Any]) -> pa.Table:
    try:
        import adbc_driver_sqlite.dbapi as driver
    except ImportError as error:
        raise MissingExtra("adbc-driver-sqlite", "sql", "reading from SQLite") from error
    path = Path(re.sub(r"^sqlite:(///)?", "", uri, flags=re.IGNORECASE))
    if not path.is_file():
        raise ReadError(
            f"{path}: there is no such database file",
            mend="check the path: sqlite:///relative.db or sqlite:////absolute.db",
        )
    opened = f"file:{quote(str(path))}?mode=ro"
    read_only = "PRAGMA query_only = ON"
    try:
        return _fetch(driver, opened, read_only, query, values, {_BATCH_ROWS: 1 << 16})
    except _failures(driver) as error:
        if "type mismatch" not in str(error).lower():
            raise _sql_error(error, uri) from error
    # the driver takes a column's type from the first batch: make all rows one batch instead
    try:
        return _fetch(driver, opened, read_only, query, values, {_BATCH_ROWS: 1 << 30})
    except _failures(driver) as error:
        raise _sql_error(error, uri) from error


def _postgresql(query: str, uri: str, values: list[Any]) -> pa.Table:
    try:
        import adbc_driver_postgresql.dbapi as driver
    except ImportError as error:
        raise MissingExtra("adbc-driver-postgresql", "sql", "reading from PostgreSQL") from error
    try:
        return _fetch(driver, uri, "SET default_transaction_read_only = on", query, values, {})
    except _failures(driver) as error:
        raise _sql_error(error, uri) from error


def _fetch(
    driver: Any, uri: str, read_only: str, query: str, values: list[Any], options: dict[str, int]
) -> pa.Table:
    connection = driver.connect(uri, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(read_only)
        with connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{k: str(v) for k, v in options.items()})
            cursor.execute(query, values or None)
            return cursor.fetch_arrow_table()
    finally:
        connection.close()


def _failures(driver: Any) -> tuple[type[Exception], ...]:
    """What a driver raises: its own errors, and Arrow's while rows are fetched."""
    import pyarrow as pa

    return (driver.Error, OSError, pa.ArrowException)


def _sql_error(error: Exception, uri: str) -> ReadError:
    said = str(error).splitlines()[0].strip()
    where, secrets = _hidden(uri)
    for secret in secrets:
        said = said.replace(secret, "***").replace(unquote(secret), "***")
    lowered = str(error).lower()
    if "read-only" in lowered or "readonly" in lowered:
        return ReadError(
            f"{where}: the query would write, and the session is read-only ({said})",
            mend="use a SELECT query",
        )
    return ReadError(
        f"{where}: the database refused ({said})",
        mend="check the address, the user's rights, and the names in the query",
    )


def without_password(uri: str) -> str:
    """A database address as it may be shown.

    >>> without_password("postgresql://me:secret@host/db?sslpassword=other")
    'postgresql://me:***@host/db?sslpassword=***'
    """
    return _hidden(uri)[0]


def replace_passwords(uri: str, put: Callable[[str], str]) -> str:
    """A database address with what `put` makes of each password in it."""

    def other(found: re.Match[str]) -> str:
        return found[1] + put(found[2])

    return _OPTION.sub(other, _LOGIN.sub(other, uri))


def _hidden(uri: str) -> tuple[str, list[str]]:
    """The address without its passwords, and these."""
    secrets: list[str] = []

    def hide(password: str) -> str:
        secrets.append(password)
        return "***"

    shown = replace_passwords(uri, hide)
    return shown, [each for each in secrets if each]
