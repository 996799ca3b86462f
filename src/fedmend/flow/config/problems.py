"""Problems of single values of a federation.toml, each as key, value and mend."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from fedmend._suggest import did_you_mean
from fedmend.flow.config.settings import TABLES, Config

__all__ = ["key_name", "problem_of"]

_EXAMPLES = {
    "name": '"bank"', "data": '"bank.csv"', "id": '"customer"', "label": '"default"',
    "party": "[[party]] with a name and data", "seed": "0", "seeds": "[0, 1, 2]",
    "test_share": "0.25", "metrics": '["auc", "accuracy"]', "minimum": "10", "device": '"cpu"',
    "strict": "true", "min_rows": "10", "folder": '"runs/first"', "min_intersection": "10",
    "title": '"Our run"',
    "to": '"bank"', "labellers": '["bank", "telco"]', "alone": '["telco"]', "least": "0.6",
    "recipe": '"complete-vfl"', "leave_out": '["report"]', "keep_stages": "false",
    "reference": '"bank"', "export": "true", "also_unmended": "true", "label_review": "true",
}  # fmt: skip
_MUST_BE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list in [ ]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def problem_of(error: Any, raw: Mapping[str, Any]) -> str:
    """One pydantic error as key, value and mend."""
    # A union names its branches in the location; only keys and positions are the file's own.
    location = [part for part in error["loc"] if not _is_branch(part)]
    key, last = key_name(location, raw), str(location[-1])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return f"{key} is missing. Mend: add {last} = {_EXAMPLES.get(last, '…')}"
    if kind == "extra_forbidden":
        return f"{key} = {value!r} is not known: {did_you_mean(last, _known_keys(location))}"
    if kind == "literal_error":
        wanted = f"one of {context['expected']}"
    elif kind == "string_pattern_mismatch" and last == "name":
        return _name_problem(key, str(value))
    elif kind == "string_pattern_mismatch":
        wanted = {"device": "'cpu', 'cuda' or 'cuda:0'"}.get(last, "another text")
    elif kind in _MUST_BE:
        wanted = _MUST_BE[kind]
    elif kind == "too_short":
        return f"{key} is empty. Mend: give {_EXAMPLES.get(last, 'at least one')}"
    else:
        wanted = str(error["msg"]).removeprefix("Input should be ").lower()
    mend = f"for instance {last} = {_EXAMPLES[last]}" if last in _EXAMPLES else f"give {wanted}"
    return f"{key} must be {wanted}, got {value!r}. Mend: {mend}"


def _name_problem(key: str, name: str) -> str:
    """A party's name is also a folder's; what it stands for goes into the title."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-_.")[:40].rstrip("-_.")
    return (
        f"{key} must be letters a to z, digits, '-', '_' and '.', 64 at most, got {name!r}. "
        f'Mend: for instance name = "{plain or "bank"}"'
    )


def _is_branch(part: Any) -> bool:
    return isinstance(part, str) and (part in ("str", "int") or part.startswith(("list[", "dict[")))


def key_name(location: list[Any], raw: Mapping[str, Any]) -> str:
    """``party[bank].data``: entries of lists are named by their name where they have one."""
    text, here = "", raw
    for part in location:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = {}
        if isinstance(part, int):
            name = here.get("name") if isinstance(here, Mapping) else None
            text += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def _known_keys(location: list[Any]) -> list[str]:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        model = TABLES.get(str(part), model)
    return list(model.model_fields)
