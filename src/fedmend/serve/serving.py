"""``fedmend serve``: answers as JSON over HTTP, on this machine; partners may be elsewhere.

POST /predict   {"ids": [7, 8]}                       people of the label party
                {"bank": [{"customer": 7, …}]}        new rows, by party
POST /models/RUN/METHOD/predict                       the same, of one of several models
GET  /          what the model expects of each party
GET  /health, /metrics, /openapi.json
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote

from fedmend._json import plain
from fedmend.deploy.party_file import load_party
from fedmend.errors import ConfigError, DataError, FedmendError
from fedmend.serve.desk import Busy
from fedmend.serve.loopback import LoopbackHandler, LoopbackServer
from fedmend.serve.openapi import document
from fedmend.serve.service import (
    MAX_REQUEST_ROWS,
    Families,
    OverQuota,
    Requests,
    Service,
    WholeRun,
    fell_short,
    open_kit,
)
from fedmend.serve.versions import Versions

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4_000_000
REQUEST_SECONDS = 30.0
LONGEST_DEADLINE = 60.0
MODEL_PATH = re.compile(r"/models/([^/]+/[^/]+)/predict")


class PredictServer(LoopbackServer):
    """A model behind a port of loopback; use it as a context.

    place: a run whose parts are all here, or the kit of the label party, whose partners listen at
    the addresses in `partners` (or those in its party.toml). also, shadow: further models of the
    kit, RUN/METHOD (`versions`).
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
        also: Sequence[str] = (),
        shadow: str | None = None,
        log: Path | None = None,
    ) -> None:
        self.whole: WholeRun | None = None
        self._versions: Versions | None = None
        self._place, self._partners = place, partners or {}
        self._opening = threading.Lock()
        super().__init__(port, _Handler)
        self._log: TextIO | None = None
        try:
            self._log = None if log is None else _opened(log)
            if (place / "party.toml").is_file():
                self._versions = self._of_kit(run, method)
                for name in also:
                    self._versions.add(name)
                if shadow is not None:
                    self._versions.try_beside(shadow)
            elif also or shadow is not None:
                raise ConfigError("--also and --shadow are for a kit. Mend: serve the kit")
            else:
                self.whole = WholeRun(place, method, self._log)
        except BaseException:
            self.__exit__()
            raise

    def _of_kit(self, run: str | None, method: str | None) -> Versions:
        chosen = self._chosen() if run is None and method is None else None
        if chosen is not None:
            run, method = chosen.split("/")
        return Versions(self._open(run, method), lambda name: self._open(*_run_and_method(name)))

    def _open(self, run: str | None, method: str | None) -> Service:
        return open_kit(self._place, self._partners, run=run, method=method, log=self._log)

    def _chosen(self) -> str | None:
        """The model that party.toml names now."""
        return load_party(self._place).serve.model

    def choose_again(self) -> str:
        """Let the model answer that party.toml names now; returns its name."""
        chosen = None if self.whole is not None else self._chosen()
        if chosen is not None:
            self.versions.choose(chosen)
        return self.service.name

    @property
    def title(self) -> str:
        return self.whole.model.title if self.whole else self.service.answerer.model.title

    @property
    def versions(self) -> Versions:
        """Opened when somebody is first asked about by an id: then tables are read and aligned."""
        with self._opening:
            if self._versions is None:
                assert self.whole is not None
                self._versions = Versions(self.whole.service())
            return self._versions

    @property
    def service(self) -> Service:
        """The model that answers where none is named."""
        return self.versions.default

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._versions is not None:
            self._versions.close()
        if self._log is not None:
            self._log.close()

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

    def health(self) -> dict[str, Any]:
        """Who is there; of a model without a label party nobody has to be."""
        if self.whole is not None and self.whole.is_common:
            return {"model": self.title, "partners": {}, "waiting": 0}
        return self.versions.health()

    def metrics_text(self) -> str:
        """All of it for Prometheus."""
        if self.whole is None or not self.whole.is_common:
            return self.versions.metrics_text()
        self.whole.requests.tell(families := Families())
        return str(families)

    def predict(
        self, asked: Any, asker: str = "", service: Service | None = None
    ) -> dict[str, Any]:
        """Predictions by party, as the files of ``fedmend predict`` have them.

        service: one of several models, if not the one that answers where none is named.
        """
        began, requests = time.perf_counter(), self.requests_to(service)
        rows: list[dict[str, Any]] = []
        outcome = "failed"
        try:
            if self.whole is not None and not (isinstance(asked, dict) and "ids" in asked):
                found, rows = self._predict_together(self.whole, asked)
            else:
                found, rows = self._predict(asked, asker, service or self.service)
            outcome = "partial" if any(fell_short(row) for row in rows) else "complete"
            return found
        except FedmendError as error:
            _, outcome = _outcome(error)
            raise
        finally:
            requests.note(asker, outcome, time.perf_counter() - began, rows)

    def requests_to(self, service: Service | None) -> Requests:
        """Where a request is counted; of a run that may be before its tables are read."""
        if service is None and self.whole is not None:
            return self.whole.requests
        return (service or self.service).requests

    def _predict_together(
        self, whole: WholeRun, asked: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Rows of all parties of a run."""
        records = _records(asked)
        with self._opening:  # one at a time: torch keeps its threads per caller
            answers, notes = whole.predict(records)
        rows = [row for each in answers.values() for row in each]
        return {"method": self.title, "predictions": answers, "notes": notes}, rows

    def _predict(
        self, asked: Any, asker: str, service: Service
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        found = {"model": service.name, "method": service.answerer.model.title}
        if isinstance(asked, dict) and "ids" in asked:
            ids, seconds = _ids(asked, service.settings.deadline)
            rows = service.by_ids(ids, seconds, asker)
            shadow = self.versions.shadow
            if shadow is not None and shadow.service is not service:
                shadow.try_it(rows, seconds)
            return found | {"predictions": {service.party.name: rows}, "notes": []}, rows
        records = _records(asked)
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
        return found | {"predictions": {service.party.name: rows}, "notes": notes}, rows

    def asker_of(self, authorization: str | None) -> str | None:
        """Who asks, by a token; None where nobody is known by it."""
        askers = {} if self._versions is None else self._versions.default.settings.askers
        if not askers:
            return ""
        kind, _, token = (authorization or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        for name, known in askers.items():
            if kind.lower() == "bearer" and hmac.compare_digest(digest, known.lower()):
                return name
        return None


def _opened(log: Path) -> TextIO:
    try:
        return log.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--log {log} cannot be written: {error.strerror}. Mend: a file in a folder that is "
            "there, with the right to write it"
        ) from error


def _run_and_method(name: str) -> tuple[str, str]:
    run, slash, method = name.partition("/")
    if not slash or not run or not method:
        raise ConfigError(f"{name!r} names no model. Mend: RUN/METHOD, as they lie in the kit")
    return run, method


def _outcome(error: FedmendError) -> tuple[HTTPStatus, str]:
    """How a request ended that gets no answer: for who asked, and for the metrics."""
    if isinstance(error, Busy):
        return HTTPStatus.SERVICE_UNAVAILABLE, "busy"
    if isinstance(error, OverQuota):
        return HTTPStatus.TOO_MANY_REQUESTS, "refused"
    return HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"


def _ids(asked: dict[str, Any], usual: float) -> tuple[list[Any], float]:
    """The ids of a request, and how long its answer may take."""
    ids, more = asked["ids"], [key for key in asked if key not in ("ids", "deadline_ms")]
    if more:
        raise DataError(f"{more[0]!r} is not known beside ids", mend="ids and deadline_ms only")
    if not isinstance(ids, list) or not ids or not all(_is_id(each) for each in ids):
        raise DataError("ids are a list of numbers or texts", mend='{"ids": [7, 8]}')
    _check_count(len(ids), None)
    wanted = asked.get("deadline_ms", 1000 * usual)
    number = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
    if not number or not 0 < wanted <= 1000 * LONGEST_DEADLINE:
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


class _Handler(LoopbackHandler):
    timeout = REQUEST_SECONDS
    # Connections stay open, and an answer leaves in one piece: no waiting for acknowledgements.
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        pages = {
            "/": lambda: self._send(HTTPStatus.OK, self.app.about()),
            "/health": lambda: self._send(HTTPStatus.OK, self.app.health()),
            "/metrics": lambda: self.send(self.app.metrics_text(), "text/plain; version=0.0.4"),
            "/openapi.json": lambda: self._send(HTTPStatus.OK, document()),
        }
        if self._is_for(*pages):
            self._try(pages[self.path])

    def do_POST(self) -> None:
        body, named = self.body(MAX_REQUEST_BYTES), MODEL_PATH.fullmatch(unquote(self.path))
        if body is None or not self._is_for("/predict", *([self.path] if named else [])):
            return
        service = self.app.versions.find(named[1]) if named else None
        if named and service is None:
            self.refuse(HTTPStatus.NOT_FOUND, f"no model {named[1]!r} is served here")
        else:
            self._answer(body, service)

    def _answer(self, body: bytes, service: Service | None) -> None:
        asker = self.app.asker_of(self.headers.get("Authorization"))
        if asker is None:
            words = "no token of an asker that is known here. Mend: Authorization: Bearer …"
            self.refuse(HTTPStatus.UNAUTHORIZED, words, service=service)
            return
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, f"this is no JSON: {error}", asker, service)
            return
        self._try(lambda: self._send(HTTPStatus.OK, self.app.predict(asked, asker, service)))

    def _try(self, answer: Callable[[], None]) -> None:
        """Answer, or say what is wrong."""
        try:
            answer()
        except FedmendError as error:
            self._tell(_outcome(error)[0], str(error))
        except OSError as error:  # no answer leaves that the ledger does not know
            words = f"the ledger cannot be written: {error.strerror}. Mend: make room on its disk"
            self._tell(HTTPStatus.SERVICE_UNAVAILABLE, words)
        except Exception:
            logger.exception("a request could not be answered")
            words = "a fault in fedmend. Mend: its log says more"
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, words)

    def _is_for(self, *paths: str) -> bool:
        # A page elsewhere could post from a form; whoever sends an origin is a page.
        if not self.is_from_here() or self.headers.get("Origin") is not None:
            self.refuse(HTTPStatus.FORBIDDEN, "for this machine only")
            return False
        if self.path not in paths:
            self.refuse(HTTPStatus.NOT_FOUND, "GET / or POST /predict")
            return False
        return True

    def refuse(
        self, status: HTTPStatus, words: str, asker: str = "", service: Service | None = None
    ) -> None:
        """Turn away what is not looked at; a question is counted and written down all the same."""
        if self.command == "POST":
            refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            outcome = "refused" if refused else "invalid"
            self.app.requests_to(service).note(asker, outcome, 0.0, [])
        self._tell(status, words)

    def _tell(self, status: HTTPStatus, words: str) -> None:
        self._send(status, {"error": words})

    def _send(self, status: HTTPStatus, content: Any) -> None:
        text = json.dumps(plain(content), ensure_ascii=False)
        again = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.send(text, "application/json", status, again)
