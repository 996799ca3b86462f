"""A kit with a console that answers, and a browser of few words that asks it."""

from __future__ import annotations

import http.client
import json
import re
from types import SimpleNamespace
from urllib.parse import urlencode, urlsplit

import pytest
from tests.serve.conftest import serving

pytest.importorskip("nvflare", reason="kits need nvflare")

from fedmend.console.server import ConsoleServer

TOML = 'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\napprove = "ask"\n'


class Visitor:
    """Whoever talks to the console: with its cookie once let in, and the token of its forms."""

    def __init__(self, server):
        self.server, self.cookie, self.csrf = server, "", ""
        self.address = urlsplit(server.address).netloc

    def ask(self, method, path, body=None, **headers):
        sent = {"Host": self.address, "Cookie": self.cookie} | headers
        if body is not None:
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return SimpleNamespace(
                status=answer.status, headers=answer.headers, text=answer.read().decode()
            )
        finally:
            connection.close()

    def enter(self):
        answer = self.ask("GET", "/?" + urlsplit(self.server.link).query)
        assert answer.status == 303, answer.text
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.csrf = re.search(r'name="csrf" value="([^"]+)"', self.get("/rules")).group(1)
        return answer

    def get(self, path="/", status=200):
        answer = self.ask("GET", path)
        assert answer.status == status, answer.text
        return answer.text

    def post(self, path, status=303, **fields):
        """What the page says after a form was sent."""
        answer = self.ask("POST", path, urlencode({"csrf": self.csrf} | fields, doseq=True))
        assert answer.status == status, answer.text
        return self.get(answer.headers["Location"]) if status == 303 else answer.text


@pytest.fixture
def kit(workshop):
    """The bank's table and file, as a kit has them."""
    workshop.write()
    (workshop.folder / "startup").mkdir()
    client = {
        "client": {"fqsn": "bank"},
        "servers": [{"service": {"target": "localhost:1"}}],
    }
    (workshop.folder / "startup" / "fed_client.json").write_text(json.dumps(client))
    (workshop.folder / "party.toml").write_text(TOML)
    return workshop.folder


@pytest.fixture
def visitor(kit):
    with serving(ConsoleServer(kit)) as server:
        made = Visitor(server)
        made.kit = kit
        made.enter()
        yield made
