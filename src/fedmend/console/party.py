"""A kit as its console sees it: what lies in its files, read anew whenever somebody looks."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedmend.data.table import Table
from fedmend.deploy.consent import Question, open_question
from fedmend.deploy.party_file import PartyFile, install_workers, load_party, unconfirmed
from fedmend.deploy.processes import Daemon
from fedmend.errors import ConfigError, FedmendWarning
from fedmend.federation.bound import EVERY_RUN, declared
from fedmend.federation.engines.flare.events import EVENTS_FILE, Event, read_events
from fedmend.federation.engines.flare.host import LEDGER_FOLDER
from fedmend.federation.engines.flare.kits import owner_of
from fedmend.flow.reading import read_party


class Party:
    """place: the kit, or the party.toml in it."""

    def __init__(self, place: Path) -> None:
        kit = place.parent if place.is_file() else place
        self.daemon = Daemon(kit)
        if self.daemon.role != "party":
            raise ConfigError(
                f"{place} is the kit of a {self.daemon.role}. Mend: name the one of a party"
            )
        self.kit = self.daemon.kit
        self.name = owner_of(self.kit)
        self._read: tuple[tuple[int, ...], Table] | None = None
        self._lock = threading.Lock()

    @property
    def file(self) -> PartyFile:
        return load_party(self.kit)

    def question(self) -> Question | None:
        return open_question(self.kit)

    def methods(self) -> list[str]:
        """What rules may name. Modules of its own may be importable only where the party runs."""
        install_workers()
        with suppress(ConfigError):
            install_workers(self.file.modules)
        return sorted(name for name in declared() if name != EVERY_RUN)

    def ledgers(self) -> list[Path]:
        """The ledgers of all runs, the latest first."""
        found = (self.kit / LEDGER_FOLDER).glob("*.jsonl")
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def events(self, most: int) -> list[Event]:
        """The last ones, the latest first."""
        found = [event for event, _ in read_events(self.kit / EVENTS_FILE)]
        return found[: -most - 1 : -1]

    def table(self) -> Table:
        """The party's own table, read once as long as neither it nor party.toml changes."""
        file = self.file
        if unconfirmed(file):
            raise ConfigError(
                "the table is not read before its people have confirmed where party.toml leads. "
                "Mend: confirm it on the first page"
            )
        stamp = tuple(
            path.stat().st_mtime_ns
            for path in (self.kit / "party.toml", *([file.at(file.data)] if file.data else []))
            if path.is_file()
        )
        with self._lock:
            if self._read is None or self._read[0] != stamp:
                with warnings.catch_warnings():  # the check of the table tells them
                    warnings.simplefilter("ignore", FedmendWarning)
                    self._read = (stamp, read_party(file, file)[0])
            return self._read[1]

    def state(self) -> str:
        """A text that changes with what the first page shows."""
        return hashlib.sha256("\n".join(self._facts()).encode()).hexdigest()[:16]

    def _facts(self) -> Iterator[str]:
        question, running = self.question(), self.daemon.running()
        yield question.mark if question else ""
        yield f"{running} {self.daemon.is_connected()}" if running else ""
        for path in (self.kit / EVENTS_FILE, *self.ledgers()[:1]):
            yield f"{path.stat().st_size if path.is_file() else 0}"
