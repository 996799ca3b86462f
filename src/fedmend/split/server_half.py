"""The top's half at the coordinator: soft labels, and no bottom beside it.

It does the arithmetic of `halves.TopHalf`, to the bit. With batches of a hundred rows a step there
costs more bookkeeping than arithmetic. Here every embedding comes from outside, the loss is
KL with soft labels and the top a chain of linear layers: the few lines of its backward pass are
written down instead of traced. With dropout, weights of rows or bf16 it is traced after all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmend.learn.nets import Top
from fedmend.split.halves import Settings, TopHalf

__all__ = ["ServerTopHalf", "soft_loss"]


class ServerTopHalf(TopHalf):
    """A top that joins embeddings side by side."""

    def __init__(
        self, top: Top, settings: Settings, device: torch.device, *, names: list[str]
    ) -> None:
        super().__init__(top, settings, device, names=names)
        self._widths = list(top.spec.widths)
        plain = settings.precision != "bf16" and not top.spec.dropout
        self._chain = [layer for layer in top.body if isinstance(layer, nn.Linear)] if plain else []

    def set_targets(self, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        if targets.dtype.kind != "f":  # whole numbers would be taken for classes
            targets = targets.astype(np.float64)
        super().set_targets(targets, weights)

    def step(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.weights is not None or not self._chain:
            return super().step(embeddings)
        assert self.order is not None
        assert self.targets is not None
        settings = self.settings
        numbers = self.order.next()
        pieces = [embeddings[name].to(self.device, settings.dtype) for name in self.names]
        inputs, outputs = self._forward(torch.cat(pieces, 1))
        loss, slope = soft_loss(outputs, self.targets.index_select(0, numbers))
        slope = self._backward(inputs, slope)
        self.update()
        self._loss += loss * len(numbers)
        self._rows += len(numbers)
        gradients = zip(self.names, slope.split(self._widths, 1), strict=True)
        return {name: settings.for_wire(gradient) for name, gradient in gradients}

    @torch.no_grad()
    def _forward(self, values: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into each layer, and what comes out of the last."""
        inputs = []
        for layer in self._chain:
            # A linear top takes the embeddings as they are.
            inputs.append(values if len(self._chain) == 1 else torch.relu(values))
            values = F.linear(inputs[-1], layer.weight, layer.bias)
        return inputs, values

    @torch.no_grad()
    def _backward(self, inputs: list[Tensor], slope: Tensor) -> Tensor:
        """Leave every layer's gradient where the optimizer looks; returns the embeddings'."""
        for layer, values in zip(reversed(self._chain), reversed(inputs), strict=True):
            torch.mm(slope.t(), values, out=layer.weight.grad)
            torch.sum(slope, 0, out=layer.bias.grad)
            slope = torch.mm(slope, layer.weight)
            if len(self._chain) > 1:
                slope = torch.ops.aten.threshold_backward(slope, values, 0)  # of the ReLU
        return slope


def soft_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy with soft labels, its mean over rows and its slope by the outputs.

    As `F.cross_entropy(outputs, targets)` and its backward pass. **Shape** [n, C] both.
    """
    logs = torch.log_softmax(outputs, 1)
    share = targets * (-1.0 / len(targets))
    # Not a public name of torch; autograd calls it just so for log_softmax.
    slope = torch._log_softmax_backward_data(share, logs, 1, outputs.dtype)
    return torch.dot(share.view(-1), logs.view(-1)), slope
