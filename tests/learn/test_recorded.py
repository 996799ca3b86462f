"""Steps that a GPU replays: what is recorded, and that it computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmend.bench.risa_cost import _noise
from fedmend.bench.risa_data import tear
from fedmend.learn.nets import Bottom, BottomSpec
from fedmend.learn.recorded import SWITCH, Recorded, can_record
from fedmend.methods.baselines.vfl import VFL
from fedmend.methods.risa import RISA

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_only_images_on_a_gpu_without_dropout_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Bottom(BottomSpec(0, (), ((3, 8, 4),), (), 4))
    assert can_record(GPU, None, image)
    assert not can_record(CPU, image)
    assert not can_record(GPU, Bottom(BottomSpec(5)))
    assert not can_record(GPU, image, Bottom(BottomSpec(5, dropout=0.1)))
    monkeypatch.setenv(SWITCH, "0")
    assert not can_record(GPU, image)


class Doubled(nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Doubled.made += 1

    def forward(self, values: Tensor) -> Tensor:
        return values * 2


def test_one_step_for_each_shape_and_none_too_many() -> None:
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


@needs_gpu
@pytest.mark.parametrize("method", ["vfl", "risa", "risa consistency"])
def test_replayed_trainings_are_the_same(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """In float32 and with the kernels of each: up to rounding, over some epochs."""
    common = {"conv": "whitened", "bottom": (), "embedding": 8, "batch_size": 64, "lr": 0.01}
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        world = tear(_noise(640), 0.5, 0, "cuda")
        if method == "vfl":
            model = VFL(**common, epochs=3, optimizer="sgd", validation=0.0, augment="weak")  # type: ignore[arg-type]
        else:
            how = "consistency" if "consistency" in method else "none"
            more = {"epochs": 3, "self_epochs": 2, "self_training": how, "threshold": 0.1}
            model = RISA.for_images(**common | more)  # type: ignore[assignment]
        model.fit(world.fed)
        found.append(model.predict_proba(world.fed.on("test")))
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
