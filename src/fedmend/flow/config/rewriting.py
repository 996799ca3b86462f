"""A federation.toml written anew: as the pre-flight advises, and without passwords."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend.errors import ConfigError
from fedmend.federation.kinds import KINDS, SEAL
from fedmend.flow.config.references import begins_elsewhere, is_reference, with_references
from fedmend.flow.config.settings import AUTO, WEIGHTS, Config
from fedmend.methods.registry import METHODS, contestants

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# What the advice decides; everything else is taken over as it stands.
_DECIDED = ("recipe", "correct", "method")
_ORDER = ("run", "party", "align", "correct", "complete", "method", "evaluate")
_PATHS = ("data", "test")
_IN_COMMENT = re.compile(r"(#.*?//[^:@/?\s]*:)([^@\s]+)(?=@)")


def write_mended(config: Config, advice: Mapping[str, Any], path: Path) -> Path:
    """Write the file that follows an advice."""
    settings = advice.get("settings", {})
    if not settings.get("methods") and not settings.get("recipe"):
        raise ConfigError(
            "there is no advice to write down: no party has a label, or no row is shared. "
            "Mend: see what 'fedmend check' says is torn",
            source=str(config.source),
        )
    return write_whole(path, mended_text(config, advice, path))


def mended_text(config: Config, advice: Mapping[str, Any], path: Path) -> str:
    """The parties and settings of a file, with the recipe and methods that an advice names."""
    raw = tomllib.loads(config.source.read_text(encoding="utf-8-sig"))
    kept = {key: value for key, value in raw.items() if key not in _DECIDED}
    way = os.path.relpath(config.source.parent.resolve(), path.parent.resolve())
    if way != ".":
        kept["party"] = [moved(party, Path(way)) for party in kept["party"]]
    recipe, correct = (advice["settings"].get(key) for key in ("recipe", "correct"))
    methods = _weighing(config, advice["settings"]["methods"])
    hidden, several = _hidden(config), len(config.labellers) > 1 and not correct
    if hidden and not methods:
        methods = [{"name": AUTO}]  # the recipe's, to be told what it must not tell
    names = contestants(horizontal=config.horizontal, annotators=several)
    decided = {
        "recipe": recipe,
        "correct": correct and correct | _known([correct.get("name", "inc")], hidden),
        "method": [
            each | _known(names if each["name"] == AUTO else [each["name"]], hidden)
            for each in methods
        ],
    }
    content = kept | {key: value for key, value in decided.items() if value}
    ordered = {key: content[key] for key in _ORDER if key in content}
    head = [
        f"# {config.source.name}, mended as 'fedmend check' advises:",
        *(f"#   {line}" for line in advice["words"]),
        "",
    ]
    return "\n".join(head) + "\n" + toml_text(ordered | content)


def _weighing(config: Config, methods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is advised, where a file weighs its rows by what can: others would learn the weights."""
    weights = next((each.params[WEIGHTS] for each in config.method if WEIGHTS in each.params), None)
    if weights is None:
        return methods
    return [{"name": AUTO, "candidates": ["local-trees", "boosting"], WEIGHTS: weights}]


def _hidden(config: Config) -> dict[str, Any]:
    """What a file has set so that its methods tell less: label_dp, seal and the like."""
    switches = {SEAL, *(kind.switch for kind in KINDS.values() if kind.switch is not None)}
    parts = [*config.method, *([] if config.correct is None else [config.correct])]
    found: dict[str, Any] = {}
    for switch in sorted(switches, key=lambda each: each.parameter):
        on = [
            each.params[switch.parameter]
            for each in parts
            if switch.is_on(each.params.get(switch.parameter))
        ]
        found |= {switch.parameter: min(on)} if on else {}
    return found


def _known(names: Iterable[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these parameters that one of the methods has."""
    return {key: value for name in names for key, value in METHODS[name].known(params).items()}


def moved(party: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A party whose relative paths are meant from another folder."""
    changed = dict(party)
    for key in _PATHS:
        if key in changed and not begins_elsewhere(changed[key]):
            changed[key] = (folder / changed[key]).as_posix()
    uri = str(changed.get("uri", ""))
    file = uri.removeprefix("sqlite:///")
    if file != uri and not file.startswith("/") and not begins_elsewhere(file):
        changed["uri"] = f"sqlite:///{(folder / file).as_posix()}"
    return changed


def without_passwords(text: str) -> str:
    """A federation.toml with references in place of its passwords.

    >>> print(without_passwords('party = [{name = "bank", uri = "postgresql://me:pw@db/x"}]'))
    party = [{name = "bank", uri = "postgresql://me:${PASSWORD_BANK}@db/x"}]
    """
    content = tomllib.loads(text)
    for party in content.get("party", []):
        uri = party.get("uri")
        if isinstance(uri, str) and uri:
            party["uri"] = with_references(uri, str(party.get("name", "")))
            text = text.replace(uri, party["uri"])
    commented = _IN_COMMENT.sub(
        lambda found: found[0] if is_reference(found[2]) else f"{found[1]}***", text
    )
    for candidate in (commented, text):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(candidate) == content:
                return candidate
    return toml_text(content)  # an address that is written with escapes: comments are lost


# ---------------------------------------------------------------- TOML


def toml_text(content: Mapping[str, Any]) -> str:
    """Tables, lists of tables and plain values as TOML.

    >>> print(toml_text({"run": {"seed": 0}, "method": [{"name": "vfl"}]}), end="")
    [run]
    seed = 0
    <BLANKLINE>
    [[method]]
    name = "vfl"
    """
    return "\n".join(_tables("", content)).strip() + "\n"


def _tables(prefix: str, content: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{_key(name)} = {_value(value)}" for name, value in content.items() if not _is_table(value)
    ]
    for name, value in content.items():
        full = f"{prefix}{_key(name)}"
        if isinstance(value, Mapping):
            lines += ["", f"[{full}]", *_tables(f"{full}.", value)]
        elif _is_table(value):
            for each in value:
                lines += ["", f"[[{full}]]", *_tables(f"{full}.", each)]
    return lines


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, Mapping) for each in value)
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value)
