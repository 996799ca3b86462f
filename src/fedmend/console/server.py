"""``fedmend console``: pages for the people of one party, on this machine alone.

Whoever has the link that the command prints is let in, once: the browser gets a cookie instead.
Every page is under that cookie and asked for by this machine's own name; what changes something is
a form of these pages, which carries a token besides. Pages run one script of the console's own,
which only looks for news, and load nothing from anywhere.
"""

from __future__ import annotations

import datetime
import hmac
import logging
import secrets
import time
from functools import cache
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from fedmend.console.actions import ACTIONS, Download
from fedmend.console.pages import PAGES
from fedmend.console.party import Party
from fedmend.errors import FedmendError
from fedmend.federation.engines.flare.events import printable
from fedmend.report.amounts import human_bytes, human_seconds, percent
from fedmend.report.page import style
from fedmend.serve.loopback import LOOPBACK, LoopbackHandler, LoopbackServer

if TYPE_CHECKING:
    from jinja2 import Environment

logger = logging.getLogger(__name__)

MAX_FORM_BYTES = 1 << 18
MAX_FIELDS = 2000
NOTICES_KEPT = 50
HTML = "text/html; charset=utf-8"


class ConsoleServer(LoopbackServer):
    """The console of a kit; use it as a context. `link` is for the browser, and good for once."""

    def __init__(self, place: Path, port: int = 0) -> None:
        self.party = Party(place)
        self.csrf = secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)
        self._notices: dict[str, str] = {}
        super().__init__(port, _Handler)

    @property
    def link(self) -> str:
        return f"{self.address}?token={self._token}"

    @property
    def cookie(self) -> str:
        """Browsers send the cookies of one port to all others of this machine."""
        return f"fedmend-{urlsplit(self.address).port}"

    def admit(self, token: str) -> bool:
        """Whether a link is the one that was printed, and was not used before."""
        if self._token is None or not hmac.compare_digest(token.encode(), self._token.encode()):
            return False
        self._token = None
        return True

    def keep_notice(self, words: str) -> str:
        """Words to be shown on the next page, by a name that goes into its address."""
        name = secrets.token_hex(8)
        self._notices[name] = words
        while len(self._notices) > NOTICES_KEPT:
            del self._notices[next(iter(self._notices))]
        return name

    def page(self, path: str, notice: str = "", error: str = "", **more: Any) -> str:
        """A page as text. notice: the name of kept words. more: what an action adds to it."""
        template, _, make = PAGES[path]
        # Before the page is made: what happens meanwhile is news to it.
        state = self.party.state()
        shown: dict[str, Any] = {}
        try:
            shown = make(self.party)
        except FedmendError as wrong:
            error = error or str(wrong)
        return (
            _templates()
            .get_template(template if shown else "page.html")
            .render(
                party=self.party.name,
                path=path,
                chapters=[(each, words) for each, (_, words, _) in PAGES.items()],
                waiting=self.party.question() is not None,
                running=self.party.daemon.running(),
                notice=self._notices.get(notice, ""),
                error=error,
                csrf=self.csrf,
                state=state,
                **(shown | more),
            )
        )


@cache
def _templates() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

    packages = ("fedmend.console", "fedmend.report")
    made = Environment(
        loader=ChoiceLoader([PackageLoader(each, "templates") for each in packages]),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": human_bytes,
        "seconds": human_seconds,
        "percent": percent,
        "clock": lambda when: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)),
        "shown": printable,
    }
    made.globals["today"] = lambda: datetime.date.today().isoformat()
    return made


def _asset(path: str) -> tuple[str, str] | None:
    files = resources.files("fedmend.console") / "templates"
    if path == "/console.js":
        return (files / "console.js").read_text(encoding="utf-8"), "text/javascript"
    if path == "/console.css":
        return str(style()) + (files / "console.css").read_text(encoding="utf-8"), "text/css"
    return None


class _Handler(LoopbackHandler):
    policy = (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'self'"
    )
    app: ConsoleServer

    def end_headers(self) -> None:
        # With "no-referrer" browsers would not say either from which origin a form comes.
        self.send_header("Referrer-Policy", "same-origin")
        super().end_headers()

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query, max_num_fields=10)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        if not self.is_from_here():
            self._refuse("this console answers to its own address only")
        elif "token" in query:
            self._let_in(query["token"][0])
        elif not self._is_known():
            self._refuse("open the link that 'fedmend console' printed; it is good for once")
        elif asked.path == "/state":
            self.send(self.app.party.state(), "text/plain; charset=utf-8")
        elif (asset := _asset(asked.path)) is not None:
            self.send(*asset)
        elif asked.path in PAGES:
            self._answer(asked.path, notice=query.get("said", [""])[0])
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        form = self._form()
        if form is None:
            return
        if self.path not in ACTIONS:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        home, act = ACTIONS[self.path]
        try:
            done = act(self.app.party, form)
        except FedmendError as error:
            words = "\n".join([str(error), *getattr(error, "__notes__", ())])
            self._answer(home, HTTPStatus.UNPROCESSABLE_ENTITY, error=words)
            return
        except (OSError, RuntimeError, ValueError) as error:  # a disk, or a name that is no path
            logger.exception("%s could not be done", self.path)
            words = f"not finished: {error}. Mend: room on the disk, or another name, then again"
            self._answer(home, HTTPStatus.INTERNAL_SERVER_ERROR, error=words)
            return
        if isinstance(done, Download):
            keep = {"Content-Disposition": f'attachment; filename="{done.name}"'}
            self.send(done.content, done.kind, more=keep)
        elif isinstance(done, str):
            self._go(f"{home}?said={self.app.keep_notice(done)}")
        else:
            self._answer(home, **done)

    # ------------------------------------------------------------------ who asks

    def is_from_here(self) -> bool:
        port = urlsplit(self.app.address).port
        return (self.headers.get("Host") or "") in (f"{LOOPBACK}:{port}", f"localhost:{port}")

    def _is_known(self) -> bool:
        try:
            sent = SimpleCookie(self.headers.get("Cookie", "")).get(self.app.cookie)
        except CookieError:
            return False
        return sent is not None and hmac.compare_digest(
            sent.value.encode(), self.app.session.encode()
        )

    def _is_own_page(self) -> bool:
        """Whether a form was sent by a page of this console, as far as a browser says so."""
        origin = self.headers.get("Origin")
        return origin is None or origin == f"http://{self.headers.get('Host')}"

    def _let_in(self, token: str) -> None:
        if not self.app.admit(token):
            self._refuse("this link was used already, or is another's. Start the console again")
            return
        cookie = f"{self.app.cookie}={self.app.session}; Path=/; HttpOnly; SameSite=Strict"
        self._go("/", **{"Set-Cookie": cookie})

    def _form(self) -> dict[str, str] | None:
        """The fields of a form that this console made; None where something else was sent."""
        body = self.body(MAX_FORM_BYTES)
        if body is None:
            return None
        if not self.is_from_here() or not self._is_own_page():
            self._refuse("for pages of this console only")
            return None
        if not self._is_known():
            self._refuse("open the link that 'fedmend console' printed; it is good for once")
            return None
        try:
            read = parse_qs(
                body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
            )
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return None
        form = {name: ", ".join(values) for name, values in read.items()}
        if not hmac.compare_digest(form.pop("csrf", "").encode(), self.app.csrf.encode()):
            self._refuse("the form is not of this console. Go back, and load the page again")
            return None
        return form

    # ------------------------------------------------------------------ answers

    def _answer(self, path: str, status: HTTPStatus = HTTPStatus.OK, **how: Any) -> None:
        try:
            text = self.app.page(path, **how)
        except Exception:
            logger.exception("the page %s could not be made", path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send(text, HTML, status)

    def _refuse(self, words: str) -> None:
        self.refuse(HTTPStatus.FORBIDDEN, words)

    def _go(self, where: str, **headers: str) -> None:
        self.send("", HTML, HTTPStatus.SEE_OTHER, {**headers, "Location": where})
