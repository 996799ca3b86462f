"""Where start-up kits are, and the names under which kits and jobs know each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError

ADMIN = "coordinator@fedmend.org"
PARTY_CLASS = "fedmend.deploy.party_job.PartyJob"
RELAY_CLASS = "fedmend.federation.engines.flare.collab.CollabRelay"


@dataclass(frozen=True)
class Kits:
    """The kits of a federation, as `fedmend provision` lays them out."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "coordinator" / "server"

    @property
    def admin(self) -> Path:
        return self.folder / "coordinator" / "admin"

    def party(self, name: str) -> Path:
        return self.folder / name

    @property
    def parties(self) -> list[str]:
        """The parties that have a kit here."""
        return sorted(
            each.name
            for each in self.folder.iterdir()
            if (each / "startup" / "fed_client.json").is_file()
        )


def owner_of(kit: Path) -> str:
    """Whose kit it is."""
    with _readable(kit) as content:
        return str(content["client"]["fqsn"])


def server_of(kit: Path) -> tuple[str, int]:
    """Host and port of the server, as a party's kit has them."""
    with _readable(kit) as content:
        host, _, port = str(content["servers"][0]["service"]["target"]).rpartition(":")
        return host, int(port)


@contextmanager
def _readable(kit: Path) -> Iterator[Any]:
    """What a party's kit says of itself; one that was damaged on its way is told as that."""
    file = kit / "startup" / "fed_client.json"
    try:
        yield json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{file} is damaged ({type(error).__name__}). Mend: ask for a new kit"
        ) from error
