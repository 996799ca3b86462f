"""A small client of ``fedmend serve``, with a connection that stays open.

with Client("http://127.0.0.1:8400", token="…") as ask:
    for row in ask([7, 8], seconds=0.15):
        row["prediction"], row["uncertainty"], row["absent"]
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from fedmend._json import plain
from fedmend.errors import FedmendError


class NotAnswered(FedmendError):
    """A question that was refused, or that does not fit; status: that of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Client:
    """Asks about people by their ids. For one thread; another one makes its own."""

    def __init__(self, address: str, token: str = "", timeout: float = 60.0) -> None:
        parts = urlsplit(address)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.netloc, timeout=timeout)
        self._base = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __call__(self, ids: Sequence[Any], *, seconds: float | None = None) -> list[dict[str, Any]]:
        """A row for each id, in their order."""
        asked: dict[str, Any] = {"ids": list(ids)}
        if seconds is not None:
            asked["deadline_ms"] = 1000 * seconds
        found = self.request("POST", "/predict", asked)["predictions"]
        (rows,) = found.values()
        return list(rows)

    def health(self) -> dict[str, Any]:
        """Which model answers, and which partners are there."""
        return dict(self.request("GET", "/health"))

    def request(self, verb: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(plain(content))
        try:
            answer = self._sent(verb, path, body)
        except (http.client.HTTPException, ConnectionError):  # it was idle for too long
            self._connection.close()
            answer = self._sent(verb, path, body)
        text = answer.read()
        try:
            found = json.loads(text)
            if answer.status == 200:
                return found
            words = found["error"]
        except (ValueError, LookupError, TypeError):  # of a proxy before it, say
            words = f"{answer.status} {answer.reason}, which is no answer of fedmend. Mend: ask "
            words += "whoever keeps what is at this address"
        raise NotAnswered(answer.status, words)

    def _sent(self, verb: str, path: str, body: str | None) -> http.client.HTTPResponse:
        self._connection.request(verb, self._base + path, body, self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
