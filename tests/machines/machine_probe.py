"""A worker for the tests over real processes; the parties' party.toml names this module."""

from __future__ import annotations

import time

from fedmend.federation import Worker, exposed


class MachineProbe(Worker):
    """Takes its time."""

    @exposed(kind="control")
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
