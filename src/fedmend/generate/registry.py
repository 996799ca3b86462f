"""The generators by name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.generate.base import Generator

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


_own: dict[str, type[Generator]] = {}
"""Generators that were defined elsewhere."""


def defined(kind: type[Generator]) -> None:
    """A generator of one's own is known by its name as soon as its class is there."""
    name = kind.__dict__.get("name")
    if isinstance(name, str) and name not in _REGISTRY:
        _own[name] = kind


def generators() -> list[str]:
    """The names of all generators, for `make`."""
    return list(_REGISTRY)


def known_generators() -> list[str]:
    """The same, and those of one's own that have been imported."""
    return [*_REGISTRY, *_own]


def make(name: str, **params: Any) -> Generator:
    """A generator by name: ``make("vae", epochs=100)``, ``make("gain", preset="paper")``."""
    kind, preset = class_of(name), params.pop("preset", None)
    if preset is None:
        return kind(**params)
    if preset not in kind.PRESETS:
        known = did_you_mean(str(preset), kind.PRESETS)
        raise ConfigError(f"{name} has no preset {preset!r}: {known}")
    return kind(**{**kind.PRESETS[preset], **params})


def class_of(name: str) -> type[Generator]:
    """The class of that name; its module is imported only now."""
    if name in _own:
        return _own[name]
    if name not in _REGISTRY:
        raise ConfigError(
            f"there is no generator {name!r}: {did_you_mean(name, known_generators())}"
        )
    found: type[Generator] = getattr(
        importlib.import_module(f"fedmend.generate.{name}"), _REGISTRY[name]
    )
    return found
