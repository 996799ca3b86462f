"""Adam, AdamW and SGD on one flat vector per half.

Split training runs one optimizer per party, so what an optimizer costs besides arithmetic is paid
once per party and step. Here all parameters of a half are views of one vector and their gradients
views of another, and a step calls the kernel behind `torch.optim.Adam(fused=True)` directly: the
same numbers to the bit (the tests compare) at a fraction of the overhead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError
from fedmend.learn.nets import Spec

NAMES = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class OptimizerSpec(Spec):
    """Which optimizer, and its numbers."""

    name: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    betas: tuple[float, float] = field(default=(0.9, 0.999))
    eps: float = 1e-8
    nesterov: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.name not in NAMES:
            problems.append(f"optimizer must be one of {', '.join(NAMES)}, got {self.name!r}")
        if not self.lr > 0:
            problems.append(f"lr must be positive, got {self.lr}")
        if self.weight_decay < 0:
            problems.append(f"weight_decay must not be negative, got {self.weight_decay}")
        if problems:
            raise ConfigError(problems)


class FlatOptimizer:
    """Trains these parameters, which become views of one vector.

    On a GPU every parameter begins where all kernels can read it (see `_spans`), so that there are
    gaps in the vector.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], spec: OptimizerSpec) -> None:
        self.spec = spec
        self.scale = 1.0  # the schedule's factor on the learning rate
        self._parameters = list(parameters)
        first = self._parameters[0]
        sizes = [p.numel() for p in self._parameters]
        self._spans = _spans(sizes, 64 if first.is_cuda else 1)
        self.values = torch.zeros(self._spans[-1][1], dtype=first.dtype, device=first.device)
        self.gradient = torch.zeros_like(self.values)
        self._views = self._split(self.gradient)
        for parameter, view in zip(self._parameters, self._split(self.values), strict=True):
            view.copy_(parameter.detach().reshape(-1))
            parameter.data = view.view(parameter.shape)
            parameter.grad = None  # another optimizer's, if it had one before
        self.first = torch.zeros_like(self.values)
        self.second = torch.zeros_like(self.values[:0] if spec.name == "sgd" else self.values)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.values.device)
        # The kernel treats the end of each tensor apart; layer by layer, as torch.optim hands
        # them over, it rounds the same way.
        self._layers: tuple[list[Tensor], ...] = (
            self._split(self.values),
            self._views,
            self._split(self.first),
            self._split(self.second) if spec.name != "sgd" else [],
            [],
            [self.steps] * len(self._spans),
        )
        self.zero_grad()

    def _split(self, flat: Tensor) -> list[Tensor]:
        return [flat[start:end] for start, end in self._spans]

    @property
    def size(self) -> int:
        """How many numbers the parameters have, gaps not counted."""
        return sum(end - start for start, end in self._spans)

    def tight(self, flat: Tensor) -> Tensor:
        """A vector of this layout without its gaps."""
        return flat if len(flat) == self.size else torch.cat(self._split(flat))

    def spread(self, tight: Tensor, into: Tensor) -> None:
        """Copy a vector without gaps into one of this layout."""
        if len(into) == self.size:
            into.copy_(tight)
            return
        sizes = [end - start for start, end in self._spans]
        for own, part in zip(self._split(into), tight.split(sizes), strict=True):
            own.copy_(part)

    def tensors(self) -> list[Tensor]:
        """What a step changes besides the weights, itself and not a copy."""
        return [self.steps, self.first, self.second]

    def zero_grad(self) -> None:
        self.gradient.zero_()
        if self._parameters[0].grad is None:
            for parameter, view in zip(self._parameters, self._views, strict=True):
                parameter.grad = view.view(parameter.shape)

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients that backward added up."""
        spec = self.spec
        self.steps += 1
        if spec.name == "sgd":
            self._sgd()
            return
        # Not a public name of torch; torch.optim calls it just so, in every version we admit.
        kernel = torch._fused_adam_ if spec.name == "adam" else torch._fused_adamw_
        kernel(
            *self._layers,
            lr=spec.lr * self.scale,
            beta1=spec.betas[0],
            beta2=spec.betas[1],
            weight_decay=spec.weight_decay,
            eps=spec.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

    def _sgd(self) -> None:
        if self.spec.weight_decay:
            self.gradient.add_(self.values, alpha=self.spec.weight_decay)
        # Starting from zero momentum this is torch's rule, whose first step takes the gradient.
        self.first.mul_(self.spec.momentum).add_(self.gradient)
        lr = self.spec.lr * self.scale
        if self.spec.nesterov:
            self.values.add_(self.gradient, alpha=-lr)
            self.values.add_(self.first, alpha=-lr * self.spec.momentum)
        else:
            self.values.add_(self.first, alpha=-lr)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights, as wire values."""
        moments = {"first": self.first, "second": self.second}
        tight = {key: self.tight(value) if len(value) else value for key, value in moments.items()}
        return {"steps": self.steps} | tight

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.steps.copy_(saved["steps"])
        for name in ("first", "second"):
            if len(saved[name]):
                self.spread(saved[name], getattr(self, name))


def _spans(sizes: Sequence[int], unit: int) -> list[tuple[int, int]]:
    """Where each tensor begins, at a multiple of `unit` numbers, and ends in a flat vector.

    Kernels of a GPU read several numbers at once, and not all ask whether these lie at a multiple
    of 16 bytes: cuBLASLt takes it for granted of a bias ("misaligned address").

    >>> _spans([3, 10], 1), _spans([3, 10], 64)
    ([(0, 3), (3, 13)], [(0, 3), (64, 74)])
    """
    found, at = [], 0
    for size in sizes:
        at = -(-at // unit) * unit
        found.append((at, at + size))
        at += size
    return found
