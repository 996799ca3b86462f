"""Networks: shapes, reproducible weights, dropout, and specs that survive the wire."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedmend.errors import ConfigError
from fedmend.federation import wire
from fedmend.learn.nets import (
    Batch,
    Bottom,
    BottomSpec,
    ResidualBlock,
    ResNet8,
    SeededDropout,
    Top,
    TopSpec,
    initialise,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_bottom_joins_numbers_codes_and_blocks():
    spec = BottomSpec(3, (5, 7), ((1, 8, 8), (4,)), hidden=(16,), out=6)
    bottom = Bottom(spec)
    batch = Batch(
        torch.randn(10, 3),
        torch.randint(0, 5, (10, 2)),
        (torch.randn(10, 1, 8, 8), torch.randn(10, 4)),
    )
    assert bottom(batch).shape == (10, 6)
    for piece in range(3):  # every kind of input has a say
        changed = [part.clone() if isinstance(part, torch.Tensor) else part for part in batch]
        if piece < 2:
            changed[piece] = (changed[piece] + 1) % 5
        else:
            changed[2] = tuple(block + 1 for block in batch.blocks)
        assert not torch.allclose(bottom.eval()(Batch(*changed)), bottom.eval()(batch))


def test_specs_survive_the_wire():
    bottom = BottomSpec(3, (5, 7), ((1, 8, 8),), (16, 8), 6, "whitened")
    assert BottomSpec.from_dict(wire.decode(wire.encode(bottom.to_dict()))) == bottom
    top = TopSpec((6, 6), (), 3)
    assert TopSpec.from_dict(wire.decode(wire.encode(top.to_dict()))) == top
    assert TopSpec.from_dict(top.to_dict() | {"dropout": 0.0}) == top  # of an earlier version
    with pytest.raises(ConfigError, match="trained with dropout. Mend: train it"):
        TopSpec.from_dict(top.to_dict() | {"dropout": 0.1})


def test_weights_come_from_the_generator_alone():
    def weights(seed: int) -> torch.Tensor:
        module = initialise(Bottom(BottomSpec(3, (5,))), generator(seed))
        return torch.cat([p.flatten() for p in module.parameters()])

    torch.manual_seed(1)
    first = weights(0)
    torch.manual_seed(2)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def test_weights_spread_as_torchs_own_and_unknown_codes_start_as_nothing():
    layer = torch.nn.Linear(400, 300)
    expected = layer.weight.std().item()
    initialise(layer, generator())
    assert layer.weight.std().item() == pytest.approx(expected, rel=0.02)
    bottom = initialise(Bottom(BottomSpec(0, (5,))), generator())
    table = next(iter(bottom.tables)).weight
    assert [bool(row.any()) for row in table] == [False, True, True, True, False]


def test_resnet8_has_the_published_number_of_parameters():
    # 1,227,594 with a linear layer to ten classes (256 x 10 + 10)
    count = sum(parameter.numel() for parameter in ResNet8(3).parameters())
    assert count == 1_227_594 - 2_570
    assert ResNet8(3)(torch.randn(2, 3, 32, 32)).shape == (2, 256)


class Strides(TorchDispatchMode):
    """Notes the strides of 1×1 convolutions, forwards and back."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        forward = func is torch.ops.aten.convolution.default
        if forward or func is torch.ops.aten.convolution_backward.default:
            weight, strides = (args[1], args[3]) if forward else (args[2], args[4])
            self.seen += strides if weight.shape[2:] == (1, 1) else []
        return func(*args, **(kwargs or {}))


def test_a_few_channels_that_are_last_are_halved_without_a_stride() -> None:
    """Which on some processors writes past its memory: wrong slopes, or the end of the process."""
    block, images = ResidualBlock(4, 8, 2), torch.randn(30, 4, 16, 15)
    plain = torch.nn.functional.conv2d(images, block.shortcut[0].weight, stride=2)
    assert torch.allclose(block.shortcut[0](images), plain, atol=1e-6)
    slopes = []
    for layout in (torch.contiguous_format, torch.channels_last):
        block.zero_grad()
        with Strides() as strides:
            block(images.contiguous(memory_format=layout)).square().sum().backward()
        assert strides.seen == [1] * 4
        slopes.append(block.shortcut[0].weight.grad.clone())
    assert torch.allclose(*slopes, rtol=1e-3, atol=1e-3)


def test_dropout_keeps_the_mean_and_rests_in_evaluation():
    dropout = SeededDropout(0.4)
    dropout.generator = generator()
    ones = torch.ones(20_000)
    dropped = dropout(ones)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.03)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.4, abs=0.02)
    dropout.generator = generator()
    assert torch.equal(dropout(ones), dropped)  # torch's common generator has no part in it
    assert torch.equal(dropout.eval()(ones), ones)


def test_linear_tops_and_bottoms_are_linear():
    top = Top(TopSpec((2, 2), (), 1))
    a, b = torch.randn(2, 5, 2)
    twice = top([2 * a, 2 * b]) - top([a, b])
    assert torch.allclose(twice, top([a, b]) - top([0 * a, 0 * b]), atol=1e-6)


def test_wrong_choices_are_named():
    with pytest.raises(ConfigError, match="conv='vgg'"):
        Bottom(BottomSpec(0, (), ((3, 8, 8),), conv="vgg"))
    with pytest.raises(ConfigError, match="needs a column"):
        Bottom(BottomSpec(0))
