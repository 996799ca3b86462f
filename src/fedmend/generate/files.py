"""The file of a fitted generator: one value of the wire's codec, so there is no pickle in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmend.errors import DataError
from fedmend.split.parts import read_file, write_file

__all__ = ["read", "write"]

_FORMAT = "fedmend generator"
_VERSION = 1


def write(path: str | Path, values: dict[str, Any]) -> Path:
    """Write a generator's values whole or not at all."""
    target = Path(path)
    write_file(target, {"format": _FORMAT, "version": _VERSION, **values})
    return target


def read(path: str | Path) -> dict[str, Any]:
    """The values that `write` wrote."""
    values = read_file(Path(path))
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise DataError(
            f"{path} holds no generator", mend="give the file that Generator.save wrote"
        )
    if values["version"] != _VERSION:
        raise DataError(
            f"{path} is of version {values['version']}, this fedmend reads {_VERSION}",
            mend="fit the generator again, or install the fedmend that saved it",
        )
    return values
