"""A coordinator that says what it likes to a real party: its host, behind messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fedmend._version import __version__
from fedmend.deploy.party_file import load_party, open_site
from fedmend.federation.engines.flare.host import PartyHost
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.federation.ledger import Entry, read_ledger
from fedmend.federation.wire_types import VERSION


class Hostile:
    """Asks one party whatever it wants, by the messages that a coordinator sends."""

    def __init__(
        self,
        folder: Path,
        frame: pd.DataFrame,
        *methods: str,
        name: str = "bank",
        label: str | None = None,
        policy: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        frame.to_csv(folder / f"{name}.csv", index=False)
        text = f'name = "{name}"\ndata = "{name}.csv"\nid = "id"\nthreads = 1\n'
        text += f'label = "{label}"\n' if label else ""
        (folder / "party.toml").write_text(f"{text}[policy]\n{policy}\n")
        file = load_party(folder)
        self.name, self.number, self.session = name, 0, b""
        self.host = PartyHost(name, lambda hello: open_site(file, hello, folder), folder)
        told = {"run": "r", "title": "nothing special", "methods": list(methods), "seed": 0}
        told |= {"test_share": 0.2, "resumed": False, "reproducible": False}
        self.session = self.ask("hello", version=__version__, wire=VERSION, **told)["session"]

    def ask(self, operation: str, **content: Any) -> Any:
        self.number += 1
        message = request(operation, session=self.session, number=self.number, **content)
        return read_reply(self.host.answer(message), self.name, operation)

    def start(self, worker: str, scope: str = "train", **params: Any) -> str:
        return str(self.ask("start", worker=worker, scope=scope, params=params))

    def call(self, handle: str, method: str, **kwargs: Any) -> Any:
        return self.ask("call", handle=handle, method=method, kwargs=kwargs)

    @property
    def left(self) -> list[Entry]:
        """What left the party by its own ledger, refusals aside."""
        assert self.host._ledger is not None
        self.host._ledger.flush()
        path = self.host._ledger.path
        assert path is not None
        return [each for each in read_ledger(path) if each.sender == self.name and not each.note]
