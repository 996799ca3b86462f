"""federation.toml: what a run is, checked as a whole before anything starts."""

from fedmend.flow.config.loading import load_config
from fedmend.flow.config.problems import problem_of
from fedmend.flow.config.settings import Config, MethodSettings, PartySettings, without_password

__all__ = [
    "Config",
    "MethodSettings",
    "PartySettings",
    "load_config",
    "problem_of",
    "without_password",
]
