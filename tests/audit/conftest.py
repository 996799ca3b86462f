"""Scenes without a training: a real federation, and a model of which only the classes are known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedmend.audit.scene import Budget, Scene


@pytest.fixture
def make_scene(make_fed, make_frame):
    def scene_of(n: int = 400, task: str = "binary", **budget) -> Scene:
        frame = make_frame(n, task=task)
        fed = make_fed(frame)
        model = SimpleNamespace(learnt_from=lambda _: ["bank"], classes_=np.unique(frame["y"]))
        return Scene(fed, model, Budget(**budget))

    return scene_of
