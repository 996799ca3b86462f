"""The file of a fitted generator: one value of the wire's codec, so there is no pickle in it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from fedmend.errors import DataError
from fedmend.federation import wire

__all__ = ["read", "write"]

_FORMAT = "fedmend generator"
_VERSION = 1


def write(path: str | Path, values: dict[str, Any]) -> Path:
    """Write a generator's values whole or not at all."""
    data = wire.encode({"format": _FORMAT, "version": _VERSION, **values})
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(data)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def read(path: str | Path) -> dict[str, Any]:
    """The values that `write` wrote."""
    values = wire.decode(Path(path).read_bytes())
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
