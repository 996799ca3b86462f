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
    def _param_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; unknown ones are refused, all in one message."""
        known = self._param_names()
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
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self).__init__).parameters.items()
            if name != "self" and getattr(self, name) != parameter.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"
