"""Reading a federation.toml: every problem found is in one ConfigError."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedmend.errors import ConfigError
from fedmend.flow.config.checks import cross_problems
from fedmend.flow.config.problems import problem_of
from fedmend.flow.config.recipe import RecipeUnknown, with_recipe
from fedmend.flow.config.settings import Config
from fedmend.flow.config.shapes import shape_of

__all__ = ["load_config"]


def load_config(path: str | Path, *, recipe: str | None = None) -> Config:
    """Read and check a federation.toml; all its problems come in one ConfigError.

    recipe: a recipe's name, in place of the one that the file names.
    """
    path = Path(path)
    raw = _parse(path)
    problems: list[str] = []
    if isinstance(raw.get("method"), str):
        raw["method"] = {"name": raw["method"]}
    if isinstance(raw.get("method"), dict):
        raw["method"] = [raw["method"]]
    asked = recipe or raw.get("recipe")
    if isinstance(asked, str):
        try:
            raw = with_recipe(raw, asked)
        except RecipeUnknown as unknown:
            problems.append(str(unknown))
    if "method" not in raw and shape_of(raw) == "horizontal":
        raw["method"] = [{"name": "sage"}]
    config: Config | None = None
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems += [problem_of(each, raw) for each in error.errors()]
    problems += cross_problems(raw)
    if problems or config is None:
        raise ConfigError(list(dict.fromkeys(problems)), source=str(path))
    config._source = path
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        mend = "'fedmend init' writes one to start from"
        raise ConfigError(f"there is no such file. Mend: {mend}", source=str(path)) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}. Mend: name a federation.toml that you may read",
            source=str(path),
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"is not UTF-8 (byte {error.start}). Mend: save it as UTF-8", source=str(path)
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"is not TOML: {error}. Mend: text needs quotes, lists need [ ]", source=str(path)
        ) from error
