"""Constructor arguments as scikit-learn has them: kept under their own names, read and changed."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import (
    Any,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
}
MOST_SHOWN = 40
_MANY = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of texts"}


class Parameters:
    """For classes whose constructor takes keyword arguments and stores each under its name."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Arguments without a name, or with one that is not known, are told with the mend."""
        known = cls._parameters()
        in_order = [each for each in known.values() if each.kind is not each.KEYWORD_ONLY]
        problems = []
        if len(values) > len(in_order) and not any(p.kind is p.VAR_POSITIONAL for p in in_order):
            seen = repr(values[len(in_order)])
            shown = seen if len(seen) <= MOST_SHOWN else "…"
            problems.append(
                f"{cls.__name__} takes its arguments by name, got {shown}. Mend: "
                f"{cls.__name__}(name={shown}), with one of {', '.join(known)}"
            )
        problems += cls._unknown(named)
        if problems:
            raise ConfigError(problems)
        return super().__new__(cls)

    @classmethod
    def _unknown(cls, given: Mapping[str, Any]) -> list[str]:
        known = cls.parameter_names()
        return [
            f"{cls.__name__} has no parameter {name!r}: {did_you_mean(name, known)}"
            for name in given
            if name not in known
        ]

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

    @classmethod
    def parameter_types(cls) -> dict[str, Any]:
        """The annotations of the constructor's arguments, those that can be looked up."""
        found: dict[str, Any] = {}
        for each in reversed(cls.__mro__):
            declared = each if "__dataclass_fields__" in vars(each) else vars(each).get("__init__")
            # A name is looked up where its class is: inherited fields have types of other modules.
            known = vars(sys.modules[each.__module__])
            for name, hint in inspect.get_annotations(declared).items() if declared else ():
                # A class of somebody's own may name types that only a type checker imports.
                with contextlib.suppress(NameError):
                    found[name] = eval(hint, known) if isinstance(hint, str) else hint
        return {name: found[name] for name in cls.parameter_names() if name in found}

    def require_types(self) -> None:
        """Raise all arguments that are of another type than their annotation, in one message."""
        hints, defaults = self.parameter_types(), self._parameters()
        problems = [
            f"{name} of {type(self).__name__} must be {type_words(hints[name])}, got {value!r}"
            f". Mend: the default is {defaults[name].default!r}"
            for name, value in self.get_params().items()
            if name in hints and not fits(value, hints[name])
        ]
        if problems:
            raise ConfigError(problems)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; unknown ones are refused, all in one message."""
        problems = self._unknown(params)
        if problems:
            raise ConfigError(problems)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    @contextlib.contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """A fit that is stopped leaves what was fitted before, or nothing, and not half of each."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def __repr__(self) -> str:
        defaults = self._parameters()
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


Declared = TypeVar("Declared", bound=Parameters)


@dataclass_transform(kw_only_default=True, eq_default=False)
def parameters(cls: type[Declared]) -> type[Declared]:
    """Make the annotated attributes of a class the arguments of its constructor, by name.

    Those of its bases come first; what is no argument is a ``ClassVar``.
    """
    return dataclass(kw_only=True, eq=False, repr=False)(cls)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation asks for; any sequence does for a tuple."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if origin is tuple or origin is Sequence:
        item = get_args(hint)[0]
        several = isinstance(value, Sequence) and not isinstance(value, str)
        return several and all(fits(each, item) for each in value)
    if hint is float or hint is int:
        number = Real if hint is float else Integral
        return isinstance(value, number) and not isinstance(value, bool)
    plain = origin or hint
    if plain is Any:
        return True
    return isinstance(value, plain) if isinstance(plain, type) else True


def type_words(hint: Any) -> str:
    """An annotation for people who read no code: ``a number or text in quotes``."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [type_words(each) for each in get_args(hint) if each is not type(None)]
        return " or ".join(parts)
    if origin is tuple or origin is Sequence:
        return _MANY.get(get_args(hint)[0], "a list")
    if origin is Mapping:
        return "a table"
    return _WORDS.get(hint, "another value")


Rule = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and whether it is."""
Rules = Mapping[str, Rule]

POSITIVE: Rule = ("positive", lambda value: value > 0)
NOT_NEGATIVE: Rule = ("0 or more", lambda value: value >= 0)
SHARE: Rule = ("in [0, 1]", lambda value: 0 <= value <= 1)
PROPER_SHARE: Rule = ("in [0, 1)", lambda value: 0 <= value < 1)
POSITIVE_SHARE: Rule = ("in (0, 1]", lambda value: 0 < value <= 1)


def at_least(least: float) -> Rule:
    return f"at least {least:g}", lambda value: value >= least


def one_of(known: Sequence[Any]) -> Rule:
    return f"one of {', '.join(map(str, known))}", lambda value: value in known


def wrong_values(values: Any, rules: Rules) -> list[str]:
    """A sentence for each attribute of `values` that is not as its rule has it."""
    return [
        f"{name} must be {words}, got {getattr(values, name)!r}"
        for name, (words, holds) in rules.items()
        if not holds(getattr(values, name))
    ]


def check_values(values: Any, rules: Rules) -> None:
    """Raise all that `wrong_values` finds, in one message."""
    problems = wrong_values(values, rules)
    if problems:
        raise ConfigError(problems)


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """``["rows=1000", "device=cuda"]`` as a dict; values are read as JSON where they are JSON."""
    options: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            problems.append(f"option {pair!r} has no value. Mend: write it as key=value")
            continue
        try:
            options[key.replace("-", "_")] = json.loads(text)
        except ValueError:
            options[key.replace("-", "_")] = text
    if problems:
        raise ConfigError(problems)
    return options
