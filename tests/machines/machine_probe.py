"""A worker for the tests over real processes; the parties' party.toml names this module."""

from __future__ import annotations

import os
import time
from typing import Any

from fedmend.federation import Worker, exposed


class MachineProbe(Worker):
    """Echoes, sleeps, and fills the disk on demand."""

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def echo(self, gradient: Any) -> Any:
        return gradient

    @exposed(kind="label")
    def labels(self) -> Any:
        return self.table.y.to_numpy()

    @exposed(kind="control")
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @exposed(kind="control")
    def pid(self) -> int:
        return os.getpid()
