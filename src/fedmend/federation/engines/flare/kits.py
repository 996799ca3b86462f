"""Where start-up kits are, and the names under which kits and jobs know each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
