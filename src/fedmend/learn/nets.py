"""Networks: bottoms for tables and images, tops, and their reproducible initialisation.

A *bottom* maps a party's own columns to an embedding; a *top* maps the joined embeddings to
outputs. Every random number comes from a generator that is handed in: modules built in several
sites of one process must not share torch's global one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError
from fedmend.learn.whitened import PassingConv, WhitenedNet


class Batch(NamedTuple):
    """Some rows of a party, as a bottom takes them. **Shape** numeric [b, p], codes [b, q]."""

    numeric: Tensor
    codes: Tensor
    blocks: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class BottomSpec:
    """Everything that fixes a bottom's layers.

    hidden: widths of the hidden layers; () makes the bottom linear.
    conv: "cnn", "resnet" (8 layers) or "whitened", for image blocks.
    """

    numeric: int
    cardinalities: tuple[int, ...] = ()
    block_shapes: tuple[tuple[int, ...], ...] = ()
    hidden: tuple[int, ...] = (64,)
    out: int = 32
    dropout: float = 0.0
    conv: str = "cnn"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BottomSpec:
        shapes = tuple(tuple(shape) for shape in values["block_shapes"])
        lists = {key: tuple(values[key]) for key in ("cardinalities", "hidden")}
        return cls(**{**values, **lists, "block_shapes": shapes})


@dataclass(frozen=True)
class TopSpec:
    """A top over embeddings of the given widths (party order), with `out` outputs."""

    widths: tuple[int, ...]
    hidden: tuple[int, ...] = (64,)
    out: int = 2
    dropout: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopSpec:
        lists = {key: tuple(values[key]) for key in ("widths", "hidden")}
        return cls(**{**values, **lists})


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


def mlp(width: int, hidden: Sequence[int], out: int, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU (and dropout) between them; plain linear without hidden ones."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout:
            layers.append(SeededDropout(dropout))
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
        self.body = mlp(joined, spec.hidden, spec.out, spec.dropout)

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
        self.body = mlp(sum(spec.widths), spec.hidden, spec.out, spec.dropout)

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
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

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


class FlatBlock(nn.Module):
    """A tensor block without image shape, flattened."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.width = math.prod(shape)

    def forward(self, block: Tensor) -> Tensor:
        return block.flatten(1)


CONVOLUTIONS: dict[str, type[SmallCNN | ResNet8 | WhitenedNet]] = {
    "cnn": SmallCNN,
    "resnet": ResNet8,
    "whitened": WhitenedNet,
}


def _block_net(
    shape: tuple[int, ...], spec: BottomSpec
) -> SmallCNN | ResNet8 | WhitenedNet | FlatBlock:
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
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
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
