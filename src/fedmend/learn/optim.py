"""Adam, AdamW and SGD on one flat vector per half.

Split training runs one optimizer per party, so what an optimizer costs besides arithmetic is paid
once per party and step. Here all parameters of a half are views of one vector and their gradients
views of another: a step is a handful of vector operations, whatever the number of layers. The
numbers are those of `torch.optim` (the tests compare).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.errors import ConfigError

NAMES = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class OptimizerSpec:
    """Which optimizer, and its numbers."""

    name: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    betas: tuple[float, float] = field(default=(0.9, 0.999))
    eps: float = 1e-8

    def __post_init__(self) -> None:
        problems = []
        if self.name not in NAMES:
            problems.append(f"optimizer must be one of {', '.join(NAMES)}, however: {self.name!r}")
        if not self.lr > 0:
            problems.append(f"lr must be positive, however: {self.lr}")
        if self.weight_decay < 0:
            problems.append(f"weight_decay must not be negative, however: {self.weight_decay}")
        if problems:
            raise ConfigError(problems)


class FlatOptimizer:
    """Trains these parameters, which become views of one vector."""

    def __init__(self, parameters: Sequence[nn.Parameter], spec: OptimizerSpec) -> None:
        self.spec = spec
        self.steps = 0
        self._parameters = list(parameters)
        self.values = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(self.values)
        self._views = self.gradient.split([p.numel() for p in self._parameters])
        at = 0
        for parameter in self._parameters:
            end = at + parameter.numel()
            parameter.data = self.values[at:end].view(parameter.shape)
            at = end
        self.first = torch.zeros_like(self.values)
        self.second = torch.zeros_like(self.values) if spec.name != "sgd" else self.values[:0]
        self._spare = torch.empty_like(self.values) if spec.name != "sgd" else self.values[:0]
        self.zero_grad()

    def zero_grad(self) -> None:
        self.gradient.zero_()
        if self._parameters[0].grad is None:
            for parameter, view in zip(self._parameters, self._views, strict=True):
                parameter.grad = view.view(parameter.shape)

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients that backward added up."""
        self.steps += 1
        spec = self.spec
        if spec.weight_decay and spec.name == "adamw":
            self.values.mul_(1 - spec.lr * spec.weight_decay)
        elif spec.weight_decay:
            self.gradient.add_(self.values, alpha=spec.weight_decay)
        if spec.name == "sgd":
            if self.steps == 1:
                self.first.copy_(self.gradient)
            else:
                self.first.mul_(spec.momentum).add_(self.gradient)
            self.values.add_(self.first, alpha=-spec.lr)
            return
        beta1, beta2 = spec.betas
        self.first.lerp_(self.gradient, 1 - beta1)
        self.second.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        scale = math.sqrt(1 - beta2**self.steps)
        torch.sqrt(self.second, out=self._spare)
        self._spare.div_(scale).add_(spec.eps)
        self.values.addcdiv_(self.first, self._spare, value=-spec.lr / (1 - beta1**self.steps))

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights, as wire values."""
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.steps = int(saved["steps"])
        for name in ("first", "second"):
            own: Tensor = getattr(self, name)
            own.copy_(saved[name])
