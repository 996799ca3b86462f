"""A coordinator that says what it likes to a real party: its host, behind messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from tests.attacks.reached import AtHost

from fedmend.federation.ledger import Entry, read_ledger


class Hostile(AtHost):
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
        super().__init__(folder, methods=methods)

    def begin(self, worker: str, **params: Any) -> str:
        return self.start(worker, params)

    def have(self, handle: str, method: str, **kwargs: Any) -> Any:
        return self.call(handle, method, kwargs)

    @property
    def left(self) -> list[Entry]:
        """What left the party by its own ledger, refusals aside."""
        assert self.host._ledger is not None
        self.host._ledger.flush()
        path = self.host._ledger.path
        assert path is not None
        return [each for each in read_ledger(path) if each.sender == self.party and not each.note]
