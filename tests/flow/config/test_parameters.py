from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from fedmend._parameters import Parameters
from fedmend.flow.config.loading import parameter_problems, type_words
from fedmend.methods.registry import COMPLETIONS, METHODS, method_class

CLASSES = [*map(method_class, METHODS), *(each.load() for each in COMPLETIONS.values())]


def as_toml(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("estimator", CLASSES, ids=lambda each: each.__name__)
def test_the_defaults_of_every_method_are_legal(estimator):
    params = {
        name: as_toml(value)
        for name, value in estimator().get_params().items()
        if value is not None and name != "seed"
    }
    assert list(parameter_problems("here", estimator, params)) == []


@pytest.mark.parametrize("estimator", CLASSES, ids=lambda each: each.__name__)
def test_every_parameter_refuses_what_it_is_not(estimator):
    class Other:
        """Nothing that a TOML file could hold."""

    names = [name for name in estimator().get_params() if name != "seed"]
    found = list(parameter_problems("here", estimator, dict.fromkeys(names, Other())))
    assert len(found) == len(names)
    assert all(" must be " in problem and "Mend: " in problem for problem in found)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"),
        (float | str, "a number or text in quotes"),
        (int | None, "a whole number"),
        (tuple[int, ...], "a list of whole numbers"),
        (Sequence[str] | None, "a list of texts"),
        (Sequence[Any], "a list"),
        (Mapping[str, Any] | None, "a table"),
    ],
)
def test_types_in_words(hint, words):
    assert type_words(hint) == words


def test_what_a_class_takes_itself_goes_before_its_bases() -> None:
    class Base(Parameters):
        def __init__(self, *, epochs: int = 100, lr: float = 0.1) -> None:
            self.epochs, self.lr = epochs, lr

    class Own(Base):
        def __init__(self, *, epochs: int = 20, **params: Any) -> None:
            super().__init__(epochs=epochs, **params)

    assert sorted(Own.parameter_names()) == ["epochs", "lr"]
    assert Own().get_params() == {"epochs": 20, "lr": 0.1}
    # Only what is not the default is shown: its own default, not its base's.
    assert repr(Own()) == "Own()"
    assert repr(Own(epochs=100, lr=0.5)) in ("Own(epochs=100, lr=0.5)", "Own(lr=0.5, epochs=100)")


def test_a_preset_is_named_in_a_file_and_changed_there():
    class Preset(method_class("vfl")):
        PRESETS: ClassVar = {"paper": {"epochs": 7, "lr": 0.5}}

    assert list(parameter_problems("m", Preset, {"preset": "paper", "epochs": 3})) == []
    (problem,) = parameter_problems("m", Preset, {"preset": "papr"})
    assert problem == "m.preset = 'papr' is not known: did you mean 'paper'?"
    made = Preset.preset("paper", epochs=3)
    assert (made.epochs, made.lr) == (3, 0.5)
