"""``fedmend serve``: answers as JSON over HTTP, on this machine; partners may be elsewhere.

POST /predict   {"ids": [7, 8]}                       people of the label party
                {"bank": [{"customer": 7, …}]}        new rows, by party
GET  /          what the model expects of each party
GET  /health, /metrics, /openapi.json
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fedmend._json import plain
from fedmend.errors import DataError, FedmendError
from fedmend.serve.desk import Busy
from fedmend.serve.loopback import LoopbackHandler, LoopbackServer, serve_until_told
from fedmend.serve.openapi import document
from fedmend.serve.service import MAX_REQUEST_ROWS, OverQuota, Service, WholeRun, open_kit

__all__ = ["PredictServer", "serve_run"]

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4_000_000
REQUEST_SECONDS = 30.0
LONGEST_DEADLINE = 60.0


class PredictServer(LoopbackServer):
    """A model behind a port of loopback; use it as a context.

    place: a run whose parts are all here, or the kit of the label party, whose partners listen at
    the addresses in `partners` (or those in its party.toml).
    """

    most_connections = 512  # askers keep theirs open

    def __init__(
        self,
        place: Path,
        method: str | None = None,
        port: int = 0,
        *,
        run: str | None = None,
        partners: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.whole: WholeRun | None = None
        self._service: Service | None = None
        self._log = log
        self._opening = threading.Lock()
        super().__init__(port, _Handler)
        try:
            if (place / "party.toml").is_file():
                self._service = open_kit(place, partners or {}, run=run, method=method, log=log)
            else:
                self.whole = WholeRun(place, method)
        except BaseException:
            self._server.server_close()
            raise

    @property
    def title(self) -> str:
        return self.whole.model.title if self.whole else self.service.answerer.model.title

    @property
    def service(self) -> Service:
        """Opened when somebody is first asked about by an id: then tables are read and aligned."""
        with self._opening:
            if self._service is None:
                assert self.whole is not None
                self._service = self.whole.service(self._log)
            return self._service

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._service is not None:
            self._service.close()

    # ------------------------------------------------------------------ what is asked

    def about(self) -> dict[str, Any]:
        """What the model expects, by party."""
        limits = {"most_rows": MAX_REQUEST_ROWS, "most_bytes": MAX_REQUEST_BYTES}
        if self.whole is None:
            service = self.service
            schema = service.schema
            columns = {} if schema is None else {each: schema[each].kind for each in schema}
            own = {service.party.name: {"id": service.party.id, "columns": columns}}
            label_party: str | None = service.party.name
        else:
            model = self.whole.model
            label_party = model.label_party
            known = {party.name: party for party in self.whole.config.party}
            own = {}
            for name in model.manifest["parties"]:
                found = model.schema(name)
                columns = {} if found is None else {each: found[each].kind for each in found}
                own[name] = {"id": known[name].id, "columns": columns}
        return {"method": self.title, "label_party": label_party, "parties": own, **limits}

    def predict(self, asked: Any, asker: str = "") -> dict[str, Any]:
        """Predictions by party, as the files of ``fedmend predict`` have them."""
        began = time.perf_counter()
        rows: list[dict[str, Any]] = []
        outcome = "failed"
        try:
            found, rows = self._predict(asked, asker)
            outcome = "partial" if any(_fell_short(row) for row in rows) else "complete"
            return {"method": self.title, **found}
        except FedmendError as error:
            outcome = _outcome(error)
            raise
        finally:
            if self._service is not None:
                self._service.note(asker, outcome, time.perf_counter() - began, rows)

    def _predict(self, asked: Any, asker: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if isinstance(asked, dict) and "ids" in asked:
            ids, seconds = _ids(asked, self.service.settings.deadline)
            rows = self.service.by_ids(ids, seconds, asker)
            party = self.service.party.name
            return {"predictions": {party: rows}, "notes": []}, rows
        records = _records(asked)
        if self.whole is not None:
            with self._opening:  # one at a time: torch keeps its threads per caller
                answers, notes = self.whole.predict(records)
            return {"predictions": answers, "notes": notes}, []
        service = self.service
        others = [name for name in records if name != service.party.name]
        if others:
            raise DataError(
                "its columns come from its own source",
                party=others[0],
                mend=f"ids, or rows of {service.party.name!r} alone",
            )
        (given,) = records.values()
        rows, notes = service.by_rows(
            [dict(each) for each in given], service.settings.deadline, asker
        )
        return {"predictions": {service.party.name: rows}, "notes": notes}, rows

    def asker_of(self, authorization: str | None) -> str | None:
        """Who asks, by a token; None where nobody is known by it."""
        askers = {} if self._service is None else self._service.settings.askers
        if not askers:
            return ""
        kind, _, token = (authorization or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        for name, known in askers.items():
            if kind.lower() == "bearer" and hmac.compare_digest(digest, known.lower()):
                return name
        return None


def _fell_short(row: dict[str, Any]) -> bool:
    return any(why != "not known" for why in row.get("absent", {}).values())


def _outcome(error: FedmendError) -> str:
    if isinstance(error, Busy):
        return "busy"
    return "refused" if isinstance(error, OverQuota) else "invalid"


def _ids(asked: dict[str, Any], usual: float) -> tuple[list[Any], float]:
    """The ids of a request, and how long its answer may take."""
    ids, more = asked["ids"], [key for key in asked if key not in ("ids", "deadline_ms")]
    if more:
        raise DataError(f"{more[0]!r} is not known beside ids", mend="ids and deadline_ms only")
    if not isinstance(ids, list) or not ids or not all(_is_id(each) for each in ids):
        raise DataError("ids are a list of numbers or texts", mend='{"ids": [7, 8]}')
    _check_count(len(ids), None)
    wanted = asked.get("deadline_ms", 1000 * usual)
    if not isinstance(wanted, (int, float)) or not 0 < wanted <= 1000 * LONGEST_DEADLINE:
        raise DataError(
            f"deadline_ms must lie between 0 and {1000 * LONGEST_DEADLINE:g}", value=wanted
        )
    return ids, wanted / 1000


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and _is_cell(value)


def _check_count(count: int, party: str | None) -> None:
    if count > MAX_REQUEST_ROWS:
        raise DataError(
            f"{count:,} rows in one request",
            party=party,
            mend=f"at most {MAX_REQUEST_ROWS:,}; fedmend predict takes files of any size",
        )


def _records(asked: Any) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of a request, or what is wrong with it."""
    if not isinstance(asked, dict) or not asked:
        raise DataError(
            "a request is ids, or rows by party",
            mend='{"ids": [7]} or {"bank": [{"customer": 7, "income": 1.2}]}',
        )
    for party, rows in asked.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(
                "rows are a list of objects", party=str(party), mend='[{"customer": 7, …}]'
            )
        _check_count(len(rows), str(party))
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


def serve_run(
    place: Path,
    method: str | None,
    port: int,
    *,
    run: str | None = None,
    partners: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> None:
    """Serve until interrupted or told to end (SIGTERM)."""
    import typer

    with PredictServer(place, method, port, run=run, partners=partners, log=log) as server:
        serve_until_told(
            server,
            lambda: typer.echo(f"{server.address} answers with {server.title} (Ctrl-C ends it)"),
        )
        typer.echo("ended")


class _Handler(LoopbackHandler):
    timeout = REQUEST_SECONDS
    # Connections stay open, and an answer leaves in one piece: no waiting for acknowledgements.
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        pages = {
            "/": lambda: self._send(HTTPStatus.OK, self.app.about()),
            "/health": lambda: self._send(HTTPStatus.OK, self.app.service.health()),
            "/metrics": lambda: self.send(
                self.app.service.metrics_text(), "text/plain; version=0.0.4"
            ),
            "/openapi.json": lambda: self._send(HTTPStatus.OK, document()),
        }
        if self._is_for(*pages):
            pages[self.path]()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self.close_connection = True
            self._send(HTTPStatus.LENGTH_REQUIRED, {"error": "Content-Length is missing"})
        elif len(length) > len(str(MAX_REQUEST_BYTES)) or int(length) > MAX_REQUEST_BYTES:
            self.close_connection = True
            words = f"{length[:12]} bytes, at most {MAX_REQUEST_BYTES:,}"
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": words})
        else:
            body = self.rfile.read(int(length))
            if self._is_for("/predict"):
                self._answer(body)

    def _answer(self, body: bytes) -> None:
        asker = self.app.asker_of(self.headers.get("Authorization"))
        if asker is None:
            words = "no token of an asker that is known here. Mend: Authorization: Bearer …"
            self._send(HTTPStatus.UNAUTHORIZED, {"error": words})
            return
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": f"this is no JSON: {error}"})
            return
        try:
            self._send(HTTPStatus.OK, self.app.predict(asked, asker))
        except Busy as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}, retry=True)
        except OverQuota as error:
            self._send(HTTPStatus.TOO_MANY_REQUESTS, {"error": str(error)})
        except FedmendError as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
        except Exception:
            logger.exception("a request could not be answered")
            words = "a fault in fedmend. Mend: its log says more"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": words})

    def _is_for(self, *paths: str) -> bool:
        # A page elsewhere could post from a form; whoever sends an origin is a page.
        if not self.is_from_here() or self.headers.get("Origin") is not None:
            self._send(HTTPStatus.FORBIDDEN, {"error": "for this machine only"})
            return False
        if self.path not in paths:
            self._send(HTTPStatus.NOT_FOUND, {"error": "GET / or POST /predict"})
            return False
        return True

    def _send(self, status: HTTPStatus, content: Any, *, retry: bool = False) -> None:
        text = json.dumps(plain(content), ensure_ascii=False)
        self.send(text, "application/json", status, {"Retry-After": "1"} if retry else {})
