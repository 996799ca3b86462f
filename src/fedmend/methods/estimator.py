"""What all estimators share, after scikit-learn's conventions: parameters by name, and manifests.

Keyword-only constructor arguments stored under their own names, `fit` returns self, fitted
attributes end in `_`, and `get_params` / `set_params` / `sklearn.base.clone` work.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Self

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.learn.parts import MANIFEST, read_json

__all__ = ["Estimator", "require_federation"]


def require_federation(fed: Any) -> None:
    """Whoever comes from scikit-learn gives a table first."""
    if not isinstance(fed, Federation):
        raise DataError(
            f"fit takes a Federation, not a {type(fed).__name__}",
            mend="fm.Federation(fm.Party(name, table), …), and fm.align(fed)",
        )


class Estimator:
    """Parameters by name, as scikit-learn has them."""

    @classmethod
    def parameter_names(cls) -> list[str]:
        return list(cls._parameters())

    @classmethod
    def _parameters(cls) -> dict[str, inspect.Parameter]:
        """A class whose constructor takes ``**params`` takes its base's parameters besides."""
        found: dict[str, inspect.Parameter] = {}
        for each in cls.__mro__:
            if "__init__" not in vars(each):
                continue
            own = inspect.signature(vars(each)["__init__"]).parameters
            named = {name: p for name, p in own.items() if p.kind is not p.VAR_KEYWORD}
            found = named | found
            if len(named) == len(own):
                break
        return {name: p for name, p in found.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        known = self.parameter_names()
        problems = []
        for name in params:
            if name not in known:
                hint = did_you_mean(name, known)
                problems.append(f"{type(self).__name__} has no parameter {name!r}: {hint}")
        if problems:
            raise ConfigError(problems)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = self._parameters()
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def _of_manifest(cls, path: str | os.PathLike[str]) -> tuple[Self, dict[str, Any]]:
        """An unfitted estimator as it was saved, and what else the manifest says."""
        saved = read_json(Path(path) / MANIFEST, "a saved model")
        if saved["method"] != cls.__name__:
            raise ConfigError(
                f"{path} holds a {saved['method']}, not a {cls.__name__}. "
                f"Mend: fm.{saved['method']}.load(…)"
            )
        # JSON has no tuples; no parameter is a list.
        params = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in saved["params"].items()
        }
        return cls(**params), saved
