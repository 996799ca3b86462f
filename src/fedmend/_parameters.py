"""Constructor arguments as scikit-learn has them: kept under their own names, read and changed."""

from __future__ import annotations

import inspect
from typing import Any, Self

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

__all__ = ["Parameters"]


class Parameters:
    """For classes whose constructor takes keyword arguments and stores each under its name."""

    @classmethod
    def parameter_names(cls) -> list[str]:
        """The names of the constructor's arguments."""
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
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; unknown ones are refused, all in one message."""
        known = self.parameter_names()
        problems = [
            f"{type(self).__name__} has no parameter {name!r}: {did_you_mean(name, known)}"
            for name in params
            if name not in known
        ]
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
