"""Arguments of another type than a method asks for are told before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend._parameters import fits
from fedmend.config.catalogue import METHODS, method_class
from fedmend.errors import ConfigError
from fedmend.generate import generators, make


@pytest.mark.parametrize("name", METHODS)
def test_defaults_and_the_papers_settings_are_of_their_types(name: str) -> None:
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
def test_all_wrong_types_are_told_at_once(
    method: Any, wrong: list[str], fed: fm.Federation
) -> None:
    with pytest.raises(ConfigError) as told:
        method.fit(fed)
    assert len(told.value.problems) == len(wrong)
    for name, problem in zip(wrong, told.value.problems, strict=True):
        assert problem.startswith(f"{name} of {type(method).__name__} must be ")
        assert f"however: {getattr(method, name)!r}. Mend: the default is " in problem


@pytest.mark.parametrize("name", generators())
def test_generators_too(name: str) -> None:
    make(name).require_types()
    with pytest.raises(ConfigError, match=r"seed of .* must be a whole number, however: 'x'"):
        make(name, seed="x")._check_params()


def test_types_that_nobody_can_look_up_are_not_asked_for(fed: fm.Federation) -> None:
    class Own(fm.Local):
        def __init__(self, *, far: NowhereToBeFound = 1, **params: Any) -> None:  # noqa: F821
            super().__init__(**params)
            self.far = far

    Own().require_types()
    with pytest.raises(ConfigError, match="epochs of Own must be a whole number"):
        Own(epochs="3").fit(fed)


@pytest.fixture
def fed() -> fm.Federation:
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
def test_what_fits(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected
