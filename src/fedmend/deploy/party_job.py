"""The class that a FLARE job names for the parties: opens the site from the kit's party.toml."""

from __future__ import annotations

from pathlib import Path

from fedmend.deploy.consent import ask
from fedmend.deploy.party_file import load_party, open_site
from fedmend.federation import Site
from fedmend.federation.engines.flare.collab import CollabParty
from fedmend.federation.engines.flare.host import Hello, Opener

__all__ = ["PartyJob"]


class PartyJob(CollabParty):
    """A party's end of a job."""

    def opener(self, kit: Path) -> Opener:
        def open_it(hello: Hello) -> Site:
            file = load_party(kit)
            if file.approve == "ask":
                ask(kit, hello, file.approve_seconds)
            return open_site(file, hello, kit)

        return open_it

    def patience(self, kit: Path) -> float:
        return load_party(kit).patience
