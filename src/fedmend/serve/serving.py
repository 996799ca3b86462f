"""``fedmend serve``: predictions as JSON over HTTP, on this machine alone.

    POST /predict   {"bank": [{"customer": 7, "income": 1.2, …}], "telco": [{"customer": 7, …}]}
    GET  /          what the model expects of each party

Rows of several parties are one person where their ids agree. One request at a time is answered;
what it brings is bounded, and nothing of it is kept.
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fedmend._json import plain
from fedmend.errors import DataError, FedmendError, FedmendWarning
from fedmend.flow.new_rows import rows_of_records
from fedmend.serve.loopback import LoopbackHandler, LoopbackServer, serve_until_told
from fedmend.serve.models import chosen
from fedmend.serve.running import party_settings, predict_tables, require_parts, run_config

__all__ = ["PredictServer", "serve_run"]

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4_000_000
MAX_REQUEST_ROWS = 10_000
REQUEST_SECONDS = 30.0


class PredictServer(LoopbackServer):
    """A run's model behind a port of loopback; use it as a context."""

    def __init__(self, run: Path, method: str | None = None, port: int = 0) -> None:
        self.config = run_config(run)
        self.model = chosen(run, method)
        require_parts(self.model)
        # torch keeps its threads per caller, and a model is small: one question at a time.
        self._lock = threading.Lock()
        super().__init__(port, _Handler)

    def about(self) -> dict[str, Any]:
        """What the model expects, by party."""
        known = {party.name: party for party in self.config.party}
        expected = {}
        for name in self.model.manifest["parties"]:
            schema = self.model.schema(name)
            columns = {} if schema is None else {each: schema[each].kind for each in schema}
            expected[name] = {"id": known[name].id, "columns": columns}
        return {
            "method": self.model.title,
            "label_party": self.model.label_party,
            "parties": expected,
            "most_rows": MAX_REQUEST_ROWS,
            "most_bytes": MAX_REQUEST_BYTES,
        }

    def predict(self, asked: Any) -> dict[str, Any]:
        """Predictions of rows by party, as the files of ``fedmend predict`` have them."""
        records = _records(asked)
        known = party_settings(self.config, records)
        with self._lock, warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always", FedmendWarning)
            given = {
                name: rows_of_records(rows, known[name], self.model.schema(name))
                for name, rows in records.items()
            }
            with predict_tables(self.model, given, self.config) as (done, crew):
                answers = {
                    each.party: _by_row(crew[each.party].answers(), given[each.party].ids)
                    for each in done
                    if each.rows
                }
        notes = [str(each.message) for each in noted if issubclass(each.category, FedmendWarning)]
        return {"method": self.model.title, "predictions": answers, "notes": notes}


def _by_row(columns: dict[str, list[Any]], ids: Any) -> list[dict[str, Any]]:
    rows = columns.pop("row")
    cells = zip(*columns.values(), strict=True)
    return [
        {"id": ids[row], **dict(zip(columns, line, strict=True))}
        for row, line in zip(rows, cells, strict=True)
    ]


def _records(asked: Any) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of a request, or what is wrong with it."""
    if not isinstance(asked, dict) or not asked:
        raise DataError(
            "a request is rows by party", mend='{"bank": [{"customer": 7, "income": 1.2}]}'
        )
    for party, rows in asked.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(
                "rows are a list of objects", party=str(party), mend='[{"customer": 7, …}]'
            )
        if len(rows) > MAX_REQUEST_ROWS:
            raise DataError(
                f"{len(rows):,} rows in one request",
                party=str(party),
                mend=f"at most {MAX_REQUEST_ROWS:,}; fedmend predict takes files of any size",
            )
        cells = (cell for row in rows for cell in row.items())
        wrong = next((cell for cell in cells if not _is_cell(cell[1])), None)
        if wrong is not None:
            raise DataError(
                "a cell is a number of 64 bits, a text, true, false or null",
                party=str(party),
                column=str(wrong[0]),
                value=wrong[1],
                mend="one value for each column",
            )
    return asked


def _is_cell(value: Any) -> bool:
    if isinstance(value, str):
        # JSON can write half a character, which is no text.
        return not any("\ud800" <= sign <= "\udfff" for sign in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not isinstance(value, (dict, list))


def serve_run(run: Path, method: str | None, port: int) -> None:
    """Serve until interrupted or told to end (SIGTERM)."""
    import typer

    with PredictServer(run, method, port) as server:
        title = server.model.title
        serve_until_told(
            server,
            lambda: typer.echo(f"{server.address} answers with {title} (Ctrl-C ends it)"),
        )
        typer.echo("ended")


class _Handler(LoopbackHandler):
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        if self._is_for("/"):
            self._send(HTTPStatus.OK, self.app.about())

    def do_POST(self) -> None:
        if not self._is_for("/predict"):
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._send(HTTPStatus.LENGTH_REQUIRED, {"error": "Content-Length is missing"})
        elif len(length) > len(str(MAX_REQUEST_BYTES)) or int(length) > MAX_REQUEST_BYTES:
            self.close_connection = True
            words = f"{length[:12]} bytes, at most {MAX_REQUEST_BYTES:,}"
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": words})
        else:
            self._send(*self._answer(int(length)))

    def _answer(self, length: int) -> tuple[HTTPStatus, Any]:
        try:
            asked = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            return HTTPStatus.BAD_REQUEST, {"error": f"this is no JSON: {error}"}
        try:
            return HTTPStatus.OK, self.app.predict(asked)
        except FedmendError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)}
        except Exception:
            logger.exception("a request could not be answered")
            words = "a fault in fedmend. Mend: its log says more"
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": words}

    def _is_for(self, path: str) -> bool:
        # A page elsewhere could post from a form; whoever sends an origin is a page.
        if not self.is_from_here() or self.headers.get("Origin") is not None:
            self._send(HTTPStatus.FORBIDDEN, {"error": "for this machine only"})
            return False
        if self.path != path:
            self._send(HTTPStatus.NOT_FOUND, {"error": "GET / or POST /predict"})
            return False
        return True

    def _send(self, status: HTTPStatus, content: Any) -> None:
        text = json.dumps(plain(content), ensure_ascii=False)
        self.send(text, "application/json", status)
