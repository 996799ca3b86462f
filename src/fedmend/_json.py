"""JSON for people's files: any result as plain values, written whole or not at all.

What is read may be anything: a file that was cut off, of another version, or random bytes. Whoever
takes one apart does so within :func:`reading`, and makes its records with :func:`typed`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedmend._files import write_whole
from fedmend.errors import DataError

Record = TypeVar("Record")


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
    text = json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    return write_whole(path, text + "\n")


@contextmanager
def reading(path: str | Path, mend: str) -> Iterator[None]:
    """Whatever goes wrong with a file's content in here is a `DataError` that names the file."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{path} is damaged: {_said(error)}", mend=mend) from error
    except RecursionError as error:
        raise DataError(f"{path} is damaged: it is nested too deeply", mend=mend) from error


def typed(kind: type[Record], stored: Any) -> Record:
    """A dataclass made of JSON; `TypeError` unless every field has a value of its type.

    A number may be missing (null), as `plain` writes it.
    """
    if not isinstance(stored, Mapping):
        raise TypeError(f"a {type(stored).__name__} where a table must be")
    made: Any = kind
    for name, hint in _hints(made).items():
        # Most values are just what they must be; a ledger has a million of them.
        if name in stored and type(stored[name]) is not hint and not _fits(stored[name], hint):
            raise TypeError(f"{name} must not be a {type(stored[name]).__name__}")
    return kind(**stored)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, each) for each in inside)
    if origin is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, origin):
        return False
    if origin is list:
        return all(_fits(each, inside[0]) for each in value)
    return origin is not dict or all(_fits(each, inside[1]) for each in value.values())


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    return str(error)[:200] or type(error).__name__
