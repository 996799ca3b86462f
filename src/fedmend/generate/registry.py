"""The generators by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.generate.base import Generator

__all__ = ["class_of", "generators", "known_generators", "load", "make"]

_REGISTRY: dict[str, str] = {
    "ctgan": "CTGAN",
    "tablegan": "TableGAN",
    "ctabgan": "CTABGAN",
    "vae": "VAE",
    "tabddpm": "TabDDPM",
    "gain": "GAIN",
    "vgain": "VGAIN",
    "vfgain": "VFGAIN",
}


def generators() -> list[str]:
    """The names of all generators, for `make`."""
    return list(_REGISTRY)


def known_generators() -> list[str]:
    """The same, and those of one's own that have been imported."""
    return [*_REGISTRY, *_own()]


def make(name: str, **params: Any) -> Generator:
    """A generator by name: ``make("vae", epochs=100)``."""
    return class_of(name)(**params)


def load(path: str | Path) -> Generator:
    """The generator that `Generator.save` wrote, of whichever class."""
    from fedmend.generate.base import Generator

    return Generator.load(path)


def class_of(name: str) -> type[Generator]:
    """The class of that name; its module is imported only now.

    A generator of one's own is known by its name as soon as its class is there.
    """
    if name not in _REGISTRY:
        own = _own()
        if name in own:
            return own[name]
        raise ConfigError(
            f"there is no generator {name!r}: {did_you_mean(name, known_generators())}"
        )
    found: type[Generator] = getattr(
        importlib.import_module(f"fedmend.generate.{name}"), _REGISTRY[name]
    )
    return found


def _own() -> dict[str, type[Generator]]:
    """Generators that were defined elsewhere, by name."""
    from fedmend.generate.base import Generator

    found: dict[str, type[Generator]] = {}
    todo: list[type[Generator]] = [Generator]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        name = kind.__dict__.get("name")
        if isinstance(name, str) and name not in _REGISTRY:
            found[name] = kind
    return found
