"""The server's step, held to the traced one that it replaces."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmend.learn.nets import Top, TopSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.config import Settings
from fedmend.split.models import ServerTopModel, TopModel, soft_loss

NAMES, WIDTHS, CLASSES, ROWS = ["a", "b", "c"], (5, 3, 4), 6, 120


def _half(kind: type[TopModel], hidden: tuple[int, ...], **how) -> TopModel:
    spec = TopSpec(WIDTHS, hidden, CLASSES)
    top = initialise(Top(spec), torch.Generator().manual_seed(1))
    settings = Settings(batch_size=16, optimizer=OptimizerSpec("adam", 1e-2, 1e-4), **how)
    half = kind(top, settings, torch.device("cpu"), names=NAMES)
    half.set_targets(np.random.default_rng(0).dirichlet(np.ones(CLASSES), ROWS))
    half.set_order(np.arange(ROWS))
    return half


def _embeddings(rows: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(rows, width, generator=generator)
        for name, width in zip(NAMES, WIDTHS, strict=True)
    }


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 7)])
def test_a_step_is_the_traced_step(hidden, precision):
    traced = _half(TopModel, hidden, precision=precision)
    written = _half(ServerTopModel, hidden, precision=precision)
    for epoch in range(3):
        for half in (traced, written):
            half.start_epoch(epoch)
        assert traced.order is not None
        for number, size in enumerate(traced.order.sizes):
            given = _embeddings(size, 100 * epoch + number)
            expected, found = traced.step(given), written.step(given)
            assert found.keys() == expected.keys()
            for name in NAMES:
                torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-9)
        assert written.take_loss() == pytest.approx(traced.take_loss(), rel=1e-6)
    torch.testing.assert_close(
        written.optimizer.values, traced.optimizer.values, rtol=1e-6, atol=1e-7
    )


def test_whole_numbers_are_shares_and_no_classes():
    half = _half(ServerTopModel, ())
    votes = np.eye(CLASSES, dtype=np.int64)[np.arange(ROWS) % CLASSES]
    half.set_targets(votes)
    assert half.targets is not None
    assert half.targets.is_floating_point()
    assert half.targets.shape == (ROWS, CLASSES)


def test_soft_loss_and_its_slope():
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(9, CLASSES, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(9, CLASSES, generator=generator, dtype=torch.float64)  # not adding up to 1
    F.cross_entropy(outputs, targets).backward()
    loss, slope = soft_loss(outputs.detach(), targets)
    assert loss.item() == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-12)
    torch.testing.assert_close(slope, outputs.grad, rtol=1e-12, atol=1e-15)
