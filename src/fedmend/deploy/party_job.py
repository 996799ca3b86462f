"""The class that a FLARE job names for the parties: opens the site from the kit's party.toml."""

from __future__ import annotations

from pathlib import Path

from fedmend.deploy.consent import consent
from fedmend.deploy.party_file import PartyFile, load_party, open_site, rules_of
from fedmend.deploy.reach import reach
from fedmend.errors import ConfigError
from fedmend.federation import Site, Worker
from fedmend.federation.engines.flare.collab import CollabParty
from fedmend.federation.engines.flare.events import EVENTS_FILE, Events
from fedmend.federation.engines.flare.host import Hello, Opener
from fedmend.federation.engines.flare.kits import owner_of


class PartyJob(CollabParty):
    """A party's end of a job."""

    def opener(self, kit: Path) -> Opener:
        def open_it(hello: Hello) -> Site:
            file = _own_file(kit)
            policy, bound = rules_of(file, hello)  # nobody is asked for what is refused anyway
            consent(kit, file, hello, bound.lets_out(Worker.installed(), policy), self.over)
            return open_site(file, hello, kit)

        return open_it

    def patience(self, kit: Path) -> float:
        try:
            return load_party(kit).patience
        except ConfigError:
            # The job must start all the same: the hello is answered with what is wrong.
            return super().patience(kit)

    def why_ended(self, kit: Path) -> str:
        wrong, words = reach(kit, 3.0)
        if wrong:
            return f"the server is gone: {words}"
        return "the coordinator or the server ended its job"


def _own_file(kit: Path) -> PartyFile:
    """The kit's party.toml; what is wrong in it is for this party's eyes only."""
    try:
        return load_party(kit)
    except ConfigError as error:
        Events(kit / EVENTS_FILE).note(str(error), "error")
        raise ConfigError(
            f"party {owner_of(kit)!r}: its party.toml cannot be used. "
            "Mend: 'fedmend party check' there names what is wrong"
        ) from None
