"""JSON for people's files: any result as plain values, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["plain", "write_json"]


def plain(value: Any) -> Any:
    """A JSON-able twin: numpy and torch values unwrapped, tuples as lists, NaN and inf as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | Path) or value is None:
        return str(value) if isinstance(value, Path) else value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str) else str(value)


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as indented JSON through a temporary neighbour."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    text = json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)
    return path
