"""The generators by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.generate.base import Generator

__all__ = ["class_of", "generators", "load", "make"]

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


def make(name: str, **params: Any) -> Generator:
    """A generator by name: ``make("vae", epochs=100)``."""
    return class_of(name)(**params)


def load(path: str | Path) -> Generator:
    """The generator that `Generator.save` wrote, of whichever class."""
    from fedmend.generate.base import Generator

    return Generator.load(path)


def class_of(name: str) -> type[Generator]:
    """The class of that name; its module is imported only now."""
    if name not in _REGISTRY:
        raise ConfigError(f"there is no generator {name!r}: {did_you_mean(name, _REGISTRY)}")
    found: type[Generator] = getattr(
        importlib.import_module(f"fedmend.generate.{name}"), _REGISTRY[name]
    )
    return found
