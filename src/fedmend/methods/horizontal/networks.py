"""The clients' networks, and their weights as one vector.

What travels between clients and server is one vector: all parameters in order, then the running
statistics of batch norms. FedAvg is then a mean of vectors, and statistics are averaged as well.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError, FedmendWarning
from fedmend.learn.nets import Batch, Bottom, BottomSpec, ResNet8, SmallCNN, Spec, initialise
from fedmend.learn.optim import FlatOptimizer, OptimizerSpec

KINDS = ("mlp", "cnn", "resnet8")
Inputs = tuple[Tensor, ...]
"""What a network takes: (images,), or (numeric columns, codes of nominal columns)."""


@dataclass(frozen=True)
class NetSpec(Spec):
    """A client network: "mlp" for tables, "cnn" or "resnet8" for images.

    numeric, cardinalities, hidden: of a table's columns and of the layers between.
    channels, width: of the images, and of the first convolution.
    """

    kind: str
    classes: int
    numeric: int = 0
    cardinalities: tuple[int, ...] = ()
    hidden: tuple[int, ...] = (64,)
    channels: int = 0
    width: int = 64

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(f"net must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.classes < 2:
            problems.append(f"classes must be at least 2, got {self.classes}")
        if self.kind == "mlp" and self.numeric + len(self.cardinalities) == 0:
            problems.append("an mlp needs a column. Mend: give the clients a feature")
        if self.kind in KINDS[1:] and self.channels < 1:
            problems.append(f"channels must be at least 1, got {self.channels}")
        if problems:
            raise ConfigError(problems)


class TableNet(nn.Module):
    """Numbers and embedded codes through linear layers. **Shape** [b, p], [b, q] to [b, K]."""

    def __init__(self, spec: NetSpec) -> None:
        super().__init__()
        self.body = Bottom(
            BottomSpec(spec.numeric, spec.cardinalities, hidden=spec.hidden, out=spec.classes)
        )

    def forward(self, numeric: Tensor, codes: Tensor) -> Tensor:
        return self.body(Batch(numeric, codes))


class ImageNet(nn.Module):
    """Convolutions and a linear layer. **Shape** [b, C, H, W] to [b, K]."""

    def __init__(self, spec: NetSpec) -> None:
        super().__init__()
        body = ResNet8 if spec.kind == "resnet8" else SmallCNN
        self.body = body(spec.channels, spec.width)
        self.head = nn.Linear(self.body.width, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def build_net(spec: NetSpec) -> nn.Module:
    """The network without meaningful weights yet."""
    return TableNet(spec) if spec.kind == "mlp" else ImageNet(spec)


def initial_weights(spec: NetSpec, seed: int) -> Tensor:
    """Where training starts, as one float32 vector.

    Convolutions are normal with variance 2 / (k^2 out) (SAGE's authors), all else as torch has it.
    """
    generator = torch.Generator().manual_seed(seed)
    net = initialise(build_net(spec), generator)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d):
                fan_out = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels
                layer.weight.normal_(0.0, math.sqrt(2.0 / fan_out), generator=generator)
    pieces = [*net.parameters(), *_statistics(net)]
    return torch.cat([piece.detach().reshape(-1) for piece in pieces])


def compiled(module: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """The pass of a network of images in half precision, by `torch.compile` while it trains.

    Fused batch norms save a quarter of a step. Passes in eval mode come in many sizes, each of
    which would be compiled anew, and stay plain; so does everything where there is no compiler.
    """
    if device.type != "cuda" or not isinstance(module, ImageNet):
        return None

    def plain(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return module(images)

    fused: Callable[[Tensor], Tensor] | None = torch.compile(plain, dynamic=False)

    def run(images: Tensor) -> Tensor:
        nonlocal fused
        if fused is None or not module.training:
            return plain(images)
        try:
            return fused(images)
        except RuntimeError as error:
            warnings.warn(
                f"the network cannot be compiled ({type(error).__name__}), and runs as it is, "
                "which is slower. Mend: a C compiler, and the Triton that belongs to this torch",
                FedmendWarning,
                stacklevel=2,
            )
            fused = None
            return plain(images)

    return run


fast_path: Callable[[nn.Module, torch.device], Callable[[Tensor], Tensor] | None] = compiled
"""From a module on a device to its forward pass in half precision, in the mode it is in then, or
None for the plain one. Whoever has a faster program puts it here (`fedmend_bench.sage.kernels`)."""


class FlatNet:
    """A network whose weights are one vector, with an optimizer on it.

    `load` and `flat` copy in and out; the tensors in use never move, so that a captured program can
    be replayed with other weights. On a GPU `values` may have gaps between layers; what is loaded
    and given out has none. half: forward passes are in bfloat16.
    """

    def __init__(
        self,
        spec: NetSpec,
        optimizer: OptimizerSpec,
        device: torch.device,
        dtype: torch.dtype,
        half: bool = False,
    ) -> None:
        self.spec, self.device, self.half = spec, device, half
        self.module = build_net(spec).to(device, dtype)
        self._fast = fast_path(self.module, device) if half else None
        parameters = list(self.module.parameters())
        self.optimizer = FlatOptimizer(parameters, optimizer)
        self.values = self.optimizer.values
        statistics = _statistics(self.module)
        self.statistics = torch.cat([*(each.reshape(-1) for each in statistics), self.values[:0]])
        at = 0
        for owner in self.module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    owner._buffers[name] = self.statistics[at : at + buffer.numel()]
                    at += buffer.numel()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Logits, in the module's mode. **Shape** [n, …] each to [n, K]."""
        if not self.half:
            return self.module(*inputs)
        if self._fast is not None:
            return self._fast(*inputs).to(self.values.dtype)
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.module(*inputs).to(self.values.dtype)

    def each(self, *views: Inputs) -> tuple[Tensor, ...]:
        """Logits of each of these inputs, from one pass over all of them."""
        joined = views[0] if len(views) == 1 else tuple(map(torch.cat, zip(*views, strict=True)))
        return self(*joined).split([len(view[0]) for view in views])

    def update(self, loss: Tensor, start: Tensor | None = None, prox: float = 0.0) -> None:
        """One optimizer step down this loss and FedProx's pull, prox / 2 |w - start|^2."""
        self.optimizer.zero_grad()
        loss.backward()
        if prox and start is not None:
            self.optimizer.gradient.add_(self.values - start, alpha=prox)
        self.optimizer.step()

    def twin(self) -> FlatNet:
        """Another network of this shape, in training mode, with an optimizer of its own."""
        made = FlatNet(self.spec, self.optimizer.spec, self.device, self.values.dtype, self.half)
        made.module.train()
        return made

    def tensors(self) -> list[Tensor]:
        """All that a step may change."""
        return [self.values, self.statistics, *self.optimizer.tensors()]

    def forget_momentum(self) -> None:
        for moment in self.optimizer.tensors():
            moment.zero_()

    def __len__(self) -> int:
        return self.optimizer.size + len(self.statistics)

    @torch.no_grad()
    def load(self, flat: Tensor) -> None:
        if flat.shape != (len(self),):
            raise ConfigError(
                f"weights of shape {list(flat.shape)} for a network of {len(self)}. "
                "Mend: give every client the same network"
            )
        self.optimizer.spread(flat[: self.optimizer.size], self.values)
        self.statistics.copy_(flat[self.optimizer.size :])

    def flat(self) -> Tensor:
        """A copy of the weights, on the network's device, without the gaps there may be."""
        return torch.cat([self.optimizer.tight(self.values), self.statistics])


def _statistics(net: nn.Module) -> list[Tensor]:
    return [buffer for buffer in net.buffers() if buffer.is_floating_point()]
