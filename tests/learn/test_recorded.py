"""Steps that a GPU replays: what is recorded, and that it computes the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmend.learn.nets import Bottom, BottomSpec
from fedmend.learn.recorded import SWITCH, Recorded, can_record
from fedmend.methods.risa import training as evidence_training
from fedmend.methods.risa.risa import RISA
from fedmend.methods.risa.training import JudgeStep
from fedmend.methods.vertical.absent_partner import AbsentPartner
from fedmend.methods.vertical.vfl import VFL
from fedmend.split import models
from fedmend_bench.risa.cost import _noise
from fedmend_bench.risa.data import tear

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_only_images_on_a_gpu_are_recorded(monkeypatch):
    image = Bottom(BottomSpec(0, (), ((3, 8, 4),), (), 4))
    assert can_record(GPU, None, image)
    assert not can_record(CPU, image)
    assert not can_record(GPU, Bottom(BottomSpec(5)))
    monkeypatch.setenv(SWITCH, "0")
    assert not can_record(GPU, image)


class Doubled(nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Doubled.made += 1

    def forward(self, values: Tensor) -> Tensor:
        return values * 2


def test_one_step_for_each_shape_and_none_too_many():
    Doubled.made = 0
    step = Recorded(Doubled, on=False)
    for size in (2, 3, 2, 3):
        assert step(torch.ones(size)).tolist() == [2.0] * size
    assert Doubled.made == 2
    step.forget()
    step(torch.ones(2))
    assert Doubled.made == 3
    for size in range(2, 20):
        step(torch.ones(size))
    assert len(step._steps) <= 6


def test_what_cannot_be_recorded_runs_as_it_is_and_nobody_is_told(monkeypatch, caplog):
    asked = []

    def refused(step: Any, *_: Any, **__: Any) -> None:
        asked.append(step)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refused)
    step = Recorded(Doubled, on=True)
    for _ in range(9):
        assert step(torch.ones(2)).tolist() == [2.0, 2.0]
        step(torch.ones(3))
    assert len(asked) == 1
    assert not [each for each in caplog.records if each.levelname != "INFO"]


def emulated(step: Any, samples: tuple[Tensor, ...], **_: Any) -> None:
    """What `torch.cuda.make_graphed_callables` does, without a GPU.

    Inputs are copied to where they were first, outputs are where they were before, and all of
    them seem to need a gradient.
    """
    parameters = tuple(step.parameters())
    plain, static = step.forward, samples
    outputs: list[Tensor] = []

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            for mine, given in zip(static, inputs, strict=False):
                with torch.no_grad():
                    mine.copy_(given)
            with torch.enable_grad():
                made = plain(*static)
            found = made if isinstance(made, tuple) else (made,)
            if not outputs:
                outputs.extend(torch.empty_like(each) for each in found)
            for place, each in zip(outputs, found, strict=True):
                place.copy_(each.detach())
            ctx.found = found
            return tuple(each.detach() for each in outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            wanted = [each for each in (*static, *parameters) if each.requires_grad]
            pairs = [
                (each, gradient)
                for each, gradient in zip(ctx.found, gradients, strict=True)
                if each.requires_grad
            ]
            made, given = zip(*pairs, strict=True)
            rest = iter(torch.autograd.grad(made, wanted, given, allow_unused=True))
            return tuple(next(rest) if x.requires_grad else None for x in (*static, *parameters))

    def forward(*inputs: Tensor) -> Any:
        made = Replay.apply(*inputs, *parameters)
        return made if len(made) > 1 or isinstance(step, JudgeStep) else made[0]

    step.forward = forward


def trained(method: str, device: str, rows: int) -> np.ndarray:
    common: dict[str, Any] = {"conv": "cnn", "bottom": (), "embedding": 8, "batch_size": 16}
    world = tear(_noise(rows), 0.5, 0, device)
    if method == "vfl":
        more = {"epochs": 2, "optimizer": "sgd", "validation": 0.0, "augment": "weak"}
        model: Any = VFL(**common | more)
    elif method == "absent":
        model = AbsentPartner(**common | {"epochs": 2, "optimizer": "sgd", "validation": 0.0})
    else:
        more = {"epochs": 3, "threshold": 0.1, "lr": 0.01}
        model = RISA.for_images(**common | more | {"final_threshold": 0.8})
    return np.asarray(model.fit(world.fed).predict_proba(world.fed.on("test")))


METHODS = ["vfl", "absent", "risa"]


@pytest.mark.daily("vfl")
@pytest.mark.parametrize("method", METHODS)
def test_models_do_not_mind_that_steps_are_replayed(monkeypatch, method):
    alone = trained(method, "cpu", 64)
    replayed = []

    def noted(step: Any, samples: tuple[Tensor, ...], **more: Any) -> None:
        replayed.append(step)
        emulated(step, samples, **more)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", noted)
    for module in (models, evidence_training):
        monkeypatch.setattr(module, "can_record", lambda *_: True)
    np.testing.assert_allclose(trained(method, "cpu", 64), alone, atol=1e-5)
    assert replayed


@needs_gpu
@pytest.mark.parametrize("method", METHODS)
def test_replayed_trainings_are_the_same(monkeypatch, method):
    """Up to rounding: kernels may add up in another order."""
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        found.append(trained(method, "cuda", 640))
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
