"""Networks: bottoms for tables and images, tops, and their reproducible initialisation.

A *bottom* maps a party's own columns to an embedding; a *top* maps the joined embeddings to
outputs. Every random number comes from a generator that is handed in: modules built in several
sites of one process must not share torch's global one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.errors import ConfigError

PATCH = 2
FLOOR = 5e-4
"""Added to the variance of patches in every direction before it is divided by."""


class Batch(NamedTuple):
    """Some rows of a party, as a bottom takes them. **Shape** numeric [b, p], codes [b, q]."""

    numeric: Tensor
    codes: Tensor
    blocks: tuple[Tensor, ...] = ()


class Spec:
    """A dataclass whose fields are numbers, words and tuples, as plain values and back."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        given = {key: _hashable(value) for key, value in values.items()}
        if given.pop("dropout", 0.0):  # which networks of earlier versions could have
            raise ConfigError("the model was trained with dropout. Mend: train it without, anew")
        return cls(**given)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class BottomSpec(Spec):
    """Everything that fixes a bottom's layers.

    hidden: widths of the hidden layers; () makes the bottom linear.
    conv: "cnn" or "whitened", for image blocks.
    """

    numeric: int
    cardinalities: tuple[int, ...] = ()
    block_shapes: tuple[tuple[int, ...], ...] = ()
    hidden: tuple[int, ...] = (64,)
    out: int = 32
    conv: str = "cnn"


@dataclass(frozen=True)
class TopSpec(Spec):
    """A top over embeddings of the given widths (party order), with `out` outputs."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...] = (64,)
    out: int = 2


class SeededDropout(nn.Module):
    """Dropout that draws from a generator of its own (see the module's docstring)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or self.share == 0.0:
            return values
        assert self.generator is not None, "torch's common one begins alike in every process"
        kept = torch.rand(values.shape, generator=self.generator, device=values.device)
        return values * (kept >= self.share) / (1.0 - self.share)


def mlp(width: int, hidden: Sequence[int], out: int) -> nn.Sequential:
    """Linear layers with ReLU between them; plain linear without hidden ones."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers)


class Bottom(nn.Module):
    """Numeric columns, embedded nominal codes and convolved images, joined into one embedding."""

    def __init__(self, spec: BottomSpec) -> None:
        super().__init__()
        self.spec = spec
        widths = [embedding_width(cardinality) for cardinality in spec.cardinalities]
        self.tables = nn.ModuleList(
            nn.Embedding(cardinality, width)
            for cardinality, width in zip(spec.cardinalities, widths, strict=True)
        )
        nets = [_block_net(shape, spec) for shape in spec.block_shapes]
        self.convolutions = nn.ModuleList(nets)
        joined = spec.numeric + sum(widths) + sum(net.width for net in nets)
        if joined == 0:
            raise ConfigError("a bottom model needs a column. Mend: give the party a feature")
        self.body = mlp(joined, spec.hidden, spec.out)

    @property
    def learns_from_images(self) -> bool:
        """Whether `fit_images` has something to do."""
        return any(isinstance(net, WhitenedNet) for net in self.convolutions)

    def fit_images(self, blocks: Sequence[Tensor]) -> None:
        """Layers that are not trained learn what images look like, from some of the party's."""
        for net, block in zip(self.convolutions, blocks, strict=True):
            if isinstance(net, WhitenedNet):
                net.fit(block)

    def forward(self, batch: Batch) -> Tensor:
        pieces = [batch.numeric] if batch.numeric.shape[1] else []
        if self.tables:
            columns = batch.codes.unbind(1)
            pieces += [table(codes) for table, codes in zip(self.tables, columns, strict=True)]
        pieces += [net(block) for net, block in zip(self.convolutions, batch.blocks, strict=True)]
        return self.body(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1))


class Top(nn.Module):
    """Joined embeddings to outputs; non-linear tops start with a ReLU on the embeddings."""

    def __init__(self, spec: TopSpec) -> None:
        super().__init__()
        self.spec = spec
        self.body = mlp(sum(spec.widths), spec.hidden, spec.out)

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        joined = embeddings[0] if len(embeddings) == 1 else torch.cat(tuple(embeddings), 1)
        return self.body(torch.relu(joined) if self.spec.hidden else joined)


def embedding_width(cardinality: int) -> int:
    """A common rule of thumb: grows a little faster than the square root, between 2 and 32."""
    return max(2, min(32, round(1.6 * cardinality**0.56)))


# ---------------------------------------------------------------------------------- images


class SmallCNN(nn.Module):
    """Three 3×3 convolutions with batch norm and pooling, then a global average."""

    def __init__(self, channels: int, base: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for out in (base, 2 * base, 4 * base):
            layers += [
                nn.Conv2d(channels, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            ]
            channels = out
        self.body = nn.Sequential(*layers)
        self.width = channels

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).mean((2, 3))


class PixelConv(nn.Conv2d):
    """A 1×1 convolution of every `stride`th pixel, each way."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__(channels, out, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.is_cuda:
            return super().forward(images)
        # With a stride oneDNN's slope of the weights writes past its memory where few channels are
        # last in it (its issue 6035): wrong weights, a hang or the end of the process.
        rows, columns = self.stride
        return F.conv2d(images[:, :, ::rows, ::columns], self.weight)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to the input (projected where shapes differ)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(PixelConv(channels, out, stride), nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


class ResNet8(nn.Module):
    """A stem and one residual block each at 64, 128 and 256 channels, then a global average."""

    def __init__(self, channels: int, base: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, base, 3, 1, 1, bias=False), nn.BatchNorm2d(base), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            ResidualBlock(base, base, 1),
            ResidualBlock(base, 2 * base, 2),
            ResidualBlock(2 * base, 4 * base, 2),
        )
        self.width = 4 * base

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(self.stem(images)).mean((2, 3))


class PassingConv(nn.Conv2d):
    """A 3 x 3 convolution whose first filters pass the input on until they learn better."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 3, padding=1, bias=False)

    @torch.no_grad()
    def pass_on(self) -> None:
        passed = min(self.in_channels, self.out_channels)
        nn.init.dirac_(self.weight[:passed])


class ShiftNorm(nn.BatchNorm2d):
    """Batch norm with a learnt shift and no scale.

    The shift is FASTER times its parameter, so that it learns FASTER² times as fast.
    """

    FASTER = 8.0

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("ones", torch.ones(channels), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        assert isinstance(self.ones, Tensor)
        return F.batch_norm(
            images,
            self.running_mean,
            self.running_var,
            self.ones,
            self.shift * self.FASTER,
            self.training,
            0.1 if self.momentum is None else self.momentum,
            self.eps,
        )


class _Stage(nn.Module):
    """Two convolutions at half the resolution that comes in."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.first = PassingConv(channels, out)
        self.first_norm = ShiftNorm(out)
        self.second = PassingConv(out, out)
        self.second_norm = ShiftNorm(out)

    def forward(self, images: Tensor) -> Tensor:
        wide = self.first(images)
        # A side of one pixel cannot be halved.
        pooled = F.max_pool2d(wide, 2, ceil_mode=min(wide.shape[2:]) < 2)
        inner = F.gelu(self.first_norm(pooled))
        return F.gelu(self.second_norm(self.second(inner)))


class WhitenedNet(nn.Module):
    """A small, quickly trained network for photographs.

    After Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (2024): the first layer is not
    learnt, it whitens patches of 2 x 2 pixels; three stages of two convolutions begin by passing
    their input on; the shifts of batch norm, which has no scale, learn faster than the weights;
    last is the maximum over the image. A quarter of the arithmetic of the wide nine-layer nets of
    earlier records, and fewer epochs. What is predicted is the mean over an image and its mirror
    image: not for digits and letters.
    """

    def __init__(self, channels: int, widths: tuple[int, int, int] = (64, 256, 256)) -> None:
        super().__init__()
        self.channels = channels
        inputs = channels * PATCH * PATCH
        # Until `fit` has seen images, every filter passes one pixel on.
        alone = torch.eye(inputs).view(inputs, channels, PATCH, PATCH)
        self.register_buffer("filters", torch.cat([alone, -alone]))
        self.shift = nn.Parameter(torch.zeros(2 * inputs))
        before = (2 * inputs, *widths[:-1])
        self.stages = nn.Sequential(*(_Stage(a, b) for a, b in zip(before, widths, strict=True)))
        self.width = widths[-1]

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Let the first layer whiten patches of these images [n, C, H, W]."""
        patches = images.double().unfold(2, PATCH, 1).unfold(3, PATCH, 1)
        flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, self.channels * PATCH * PATCH)
        if not len(flat):
            return
        variances, directions = torch.linalg.eigh(flat.T @ flat / len(flat))
        # Directions are known up to their sign: the largest entry is positive at every party.
        largest = directions.abs().argmax(0)
        directions = directions * directions.gather(0, largest[None]).sign()
        scaled = (directions / (variances + FLOOR).sqrt()).T
        found = scaled.flip(0).reshape(-1, self.channels, PATCH, PATCH)
        self.filters.copy_(torch.cat([found, -found]))  # type: ignore[operator]

    def forward(self, images: Tensor) -> Tensor:
        if min(images.shape[2:]) < PATCH:
            raise ConfigError(
                f"conv='whitened' takes images of at least {PATCH} x {PATCH} pixels, got "
                f"{images.shape[2]} x {images.shape[3]}. Mend: conv='cnn'"
            )
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        if self.training:
            return self._features(images)
        return (self._features(images) + self._features(images.flip(3))) / 2

    def _features(self, images: Tensor) -> Tensor:
        assert isinstance(self.filters, Tensor)
        patches = F.conv2d(images, self.filters, self.shift * ShiftNorm.FASTER)
        return self.stages(F.gelu(patches)).amax((2, 3))


class FlatBlock(nn.Module):
    """A tensor block without image shape, flattened."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.width = math.prod(shape)

    def forward(self, block: Tensor) -> Tensor:
        return block.flatten(1)


CONVOLUTIONS: dict[str, type[SmallCNN | WhitenedNet]] = {"cnn": SmallCNN, "whitened": WhitenedNet}


def _block_net(shape: tuple[int, ...], spec: BottomSpec) -> SmallCNN | WhitenedNet | FlatBlock:
    if len(shape) != 3:
        return FlatBlock(shape)
    if spec.conv not in CONVOLUTIONS:
        raise ConfigError(f"conv must be one of {', '.join(CONVOLUTIONS)}, got conv={spec.conv!r}")
    return CONVOLUTIONS[spec.conv](shape[0])


# ---------------------------------------------------------------------------------- weights


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Torch's default initialisation, drawn from `generator` (on the CPU, whatever the device).

    Embedding rows for "missing" and "never seen" start at zero, so that an unseen category
    adds nothing instead of noise.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            layer.weight.uniform_(-bound, bound, generator=generator)
            if layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=generator)
            if isinstance(layer, PassingConv):
                layer.pass_on()
        elif isinstance(layer, nn.Embedding):
            layer.weight.normal_(0.0, 0.3, generator=generator)
            layer.weight[0] = 0.0
            layer.weight[-1] = 0.0
    return module


def seed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    for layer in module.modules():
        if isinstance(layer, SeededDropout):
            layer.generator = generator
