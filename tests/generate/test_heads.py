from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.generate.encoder import Encoder
from fedmend.generate.heads import Heads


@pytest.fixture
def encoder(mixed: Table) -> Encoder:
    return Encoder("mode").fit(mixed)


@pytest.fixture
def heads(encoder: Encoder) -> Heads:
    return Heads(encoder, torch.device("cpu"))


def spans_of(encoder: Encoder, activation: str) -> list[slice]:
    return [slice(s.start, s.stop) for s in encoder.spans if s.activation == activation]


def test_log_softmax_equals_torch_span_by_span(encoder: Encoder, heads: Heads) -> None:
    logits = 100 * torch.randn(40, encoder.width, dtype=torch.float64)
    logits.requires_grad_()
    ours = heads.log_softmax(logits)
    for part in spans_of(encoder, "softmax"):
        assert torch.allclose(ours[:, part], logits[:, part].log_softmax(1))
    assert (ours[:, heads.scalar] == 0).all()
    weights = torch.randn_like(logits)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), logits)
    twin = logits.detach().clone().requires_grad_()
    total = sum(
        (twin[:, part].log_softmax(1) * weights[:, part]).sum()
        for part in spans_of(encoder, "softmax")
    )
    (expected,) = torch.autograd.grad(total, twin)
    assert torch.allclose(gradient, expected)


def test_activate(encoder: Encoder, heads: Heads) -> None:
    logits = torch.randn(30, encoder.width)
    row = heads.activate(logits)
    for part in spans_of(encoder, "softmax"):
        assert torch.allclose(row[:, part], logits[:, part].softmax(1))
    for part in spans_of(encoder, "tanh"):
        assert torch.allclose(row[:, part], logits[:, part].tanh())
    sigmoid = Encoder("minmax").fit(Table(range(10), {"x": np.arange(10.0)}))
    assert Heads(sigmoid, torch.device("cpu")).activate(torch.zeros(1, 1)).item() == 0.5


def test_categories_are_drawn_by_probability(encoder: Encoder, heads: Heads) -> None:
    logits = torch.randn(1, encoder.width).expand(8000, -1)
    stream = torch.Generator().manual_seed(0)
    relaxed = heads.activate(logits, gumbel=0.2, generator=stream)
    drawn = heads.draw(7 * heads.log_softmax(logits).exp(), stream)  # any sum will do
    for part in spans_of(encoder, "softmax"):
        wanted = logits[0, part].softmax(0)
        winners = torch.nn.functional.one_hot(relaxed[:, part].argmax(1), len(wanted))
        assert torch.allclose(winners.float().mean(0), wanted, atol=0.03)
        assert torch.allclose(relaxed[:, part].sum(1), torch.ones(8000), atol=1e-5)
        assert torch.allclose(drawn[:, part].mean(0), wanted, atol=0.03)
        assert (drawn[:, part].sum(1) == 1).all()
    assert (drawn[:, heads.scalar] == 0).all()


def test_what_has_no_weight_is_not_drawn(encoder: Encoder, heads: Heads) -> None:
    weights = torch.zeros(4000, encoder.width)
    wanted = [part.start + n % (part.stop - part.start) for n, part in enumerate(
        spans_of(encoder, "softmax"))]  # fmt: skip
    weights[:, wanted] = 1e-6
    drawn = heads.draw(weights, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, (weights > 0).float())


def test_cross_entropy_equals_torch(encoder: Encoder, heads: Heads, mixed: Table) -> None:
    target = torch.from_numpy(encoder.encode(encoder.raw(mixed.frame)).values)
    logits = torch.randn(target.shape)
    expected = sum(
        torch.nn.functional.cross_entropy(
            logits[:, part], target[:, part].argmax(1), reduction="none"
        )
        for part in spans_of(encoder, "softmax")
    )
    assert torch.allclose(heads.cross_entropy(logits, target), expected, atol=1e-4)
    assert (heads.cross_entropy(logits, torch.zeros_like(target)) == 0).all()
