"""Arguments of another type than a method asks for are told before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend._parameters import Parameters, fits
from fedmend.errors import ConfigError
from fedmend.generate import generators, make
from fedmend.methods.horizontal.local_methods import PseudoMethod
from fedmend.methods.registry import METHODS, method_class


@pytest.mark.parametrize("name", METHODS)
def test_defaults_and_the_papers_settings_are_of_their_types(name):
    method = method_class(name)
    method().require_types()
    if hasattr(method, "paper"):
        method.paper().require_types()


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (fm.VFL(epochs="3", bottom=16), ["bottom", "epochs"]),
        (fm.RISA(epochs=2.5), ["epochs"]),
        (fm.InC(epochs="3"), ["epochs"]),
        (fm.SAGE(rounds="5"), ["rounds"]),
        (fm.FedPSGPUM(tau=[0.1]), ["tau"]),
    ],
)
def test_all_wrong_types_are_told_at_once(method, wrong, fed):
    with pytest.raises(ConfigError) as told:
        method.fit(fed)
    assert len(told.value.problems) == len(wrong)
    for name, problem in zip(wrong, told.value.problems, strict=True):
        assert problem.startswith(f"{name} of {type(method).__name__} must be ")
        assert f"got {getattr(method, name)!r}. Mend: the default is " in problem


@pytest.mark.parametrize("name", generators())
def test_generators_too(name):
    make(name).require_types()
    with pytest.raises(ConfigError, match=r"seed of .* must be a whole number, got 'x'"):
        make(name, seed="x")._check_params()


def test_types_that_nobody_can_look_up_are_not_asked_for(fed):
    class Own(fm.Local):
        def __init__(self, *, far: NowhereToBeFound = 1, **params: Any) -> None:  # noqa: F821
            super().__init__(**params)
            self.far = far

    Own().require_types()
    with pytest.raises(ConfigError, match="epochs of Own must be a whole number"):
        Own(epochs="3").fit(fed)


@pytest.fixture
def fed():
    frame = pd.DataFrame({"x": np.arange(4.0), "y": [0, 1, 0, 1]})
    return fm.Federation(fm.Party("bank", fm.Table.from_frame(frame, label="y")))


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (np.int64(3), int, True),
        (np.float32(0.5), float, True),
        (3, float, True),
        (True, int, False),
        (True, float, False),
        (3.0, int, False),
        ([1, 2], tuple[int, ...], True),
        (range(3), tuple[int, ...], True),
        ("12", tuple[int, ...], False),
        ((1, "2"), tuple[int, ...], False),
        (None, int | None, True),
        ("a", int | None, False),
        (object(), Any, True),
    ],
)
def test_what_fits(value, hint, expected):
    assert fits(value, hint) is expected


@pytest.mark.parametrize("made", [fm.VFL, fm.RISA, fm.SAGE, fm.FedPSGPUM, fm.InC, fm.Audit])
def test_arguments_without_a_name_are_told_what_to_write(made):
    with pytest.raises(ConfigError, match=rf"{made.__name__} takes its arguments by name") as told:
        made(30, epoch=1)
    assert f"Mend: {made.__name__}(name=30), with one of " in str(told.value)
    assert f"{made.__name__} has no parameter 'epoch'" in str(told.value)


def test_classes_of_ones_own_may_take_arguments_in_order():
    class Own(Parameters):
        def __init__(self, first: int, *, second: int = 2) -> None:
            self.first, self.second = first, second

    assert Own(1).get_params() == {"first": 1, "second": 2}
    with pytest.raises(ConfigError, match="got 2. Mend: Own\\(name=2\\)"):
        Own(1, 2)


@pytest.mark.parametrize("rule", [len, 3, None])
def test_a_rule_of_another_type_is_told(rule):
    with pytest.raises(ConfigError, match=r"a pseudo-label rule is a name, .*got.*Mend: one of"):
        PseudoMethod(rule)
