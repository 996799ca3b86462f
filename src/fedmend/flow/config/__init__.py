"""federation.toml: what a run is, checked as a whole before anything starts."""

from fedmend.flow.config.loading import checked, load_config, party_problems
from fedmend.flow.config.settings import Config, PartySettings, slug_of

__all__ = [
    "Config",
    "PartySettings",
    "checked",
    "load_config",
    "party_problems",
    "slug_of",
]
