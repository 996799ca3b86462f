"""Steps of a training on a GPU, recorded once and replayed (CUDA graphs).

A step on images launches hundreds of small kernels, and launching them one by one takes longer than
running them. Here a step runs a few times as it is, is then recorded together with its backward
pass, and from then on replayed: the same kernels on the same numbers. On a CPU, for tables, and
where anything in a step draws random numbers, nothing is recorded.

`FEDMEND_CUDA_GRAPHS=0` in the environment switches recording off.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.learn.nets import Batch

logger = logging.getLogger(__name__)

SWITCH = "FEDMEND_CUDA_GRAPHS"
STEPS_BEFORE = 3
"""Steps that run as they are before one is recorded: the first ones choose kernels."""
_MAX_SHAPES = 6


def can_record(device: torch.device, *modules: nn.Module | None) -> bool:
    """Whether steps of these modules may be recorded: convolutions on a GPU."""
    if device.type != "cuda" or os.environ.get(SWITCH, "1") == "0":
        return False
    layers = [layer for module in modules if module is not None for layer in module.modules()]
    return any(isinstance(layer, nn.Conv2d) for layer in layers)


class Recorded:
    """Calls what `make` makes, a module of tensors, recorded once for each shape of its inputs."""

    def __init__(self, make: Callable[[], nn.Module], on: bool) -> None:
        self._make = make
        self._on = on
        self._steps: dict[tuple[Any, ...], nn.Module] = {}
        self._calls: Counter[tuple[Any, ...]] = Counter()

    def __call__(self, *inputs: Tensor) -> Any:
        key = tuple((tuple(each.shape), each.dtype, each.requires_grad) for each in inputs)
        if key not in self._steps:
            if len(self._steps) >= _MAX_SHAPES:
                self.forget()
            self._steps[key] = self._make()
        self._calls[key] += 1
        if self._on and self._calls[key] == STEPS_BEFORE:
            self._record(self._steps[key], inputs)
        return self._steps[key](*inputs)

    def forget(self) -> None:
        """Record anew: what a step looks up has moved."""
        recorded = self._on and any(calls >= STEPS_BEFORE for calls in self._calls.values())
        self._steps.clear()
        self._calls.clear()
        if recorded:
            gc.collect()  # a recorded module refers to itself, and holds memory of the GPU

    def _record(self, step: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        samples = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in inputs)
        kept = [buffer.clone() for buffer in step.buffers()]
        device = inputs[0].device
        try:
            # Autocast is the step's own affair: weights cast before would not be cast in a replay.
            with (
                warnings.catch_warnings(),
                torch.autocast(device.type, enabled=False, cache_enabled=False),
            ):
                # Earlier steps ran on another stream; gradients of a recording go nowhere.
                warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
                torch.cuda.make_graphed_callables(step, samples, allow_unused_input=True)
        except (RuntimeError, AssertionError) as error:
            # Nothing that anybody could mend: the same steps, launched one by one.
            logger.info("steps on %s are launched one by one: %s", device, error)
            self._on = False
        finally:
            # Trying a step out has moved the averages of batch norm.
            with torch.no_grad():
                for buffer, before in zip(step.buffers(), kept, strict=True):
                    buffer.copy_(before)


class EmbedStep(nn.Module):
    """A bottom's embeddings of a batch that comes as loose tensors."""

    def __init__(
        self,
        bottom: nn.Module,
        settings: Any,
        device: torch.device,
        embed: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.bottom = bottom
        self._settings = settings
        self._device = device
        self._embed = embed or bottom

    def forward(self, numeric: Tensor, codes: Tensor, *blocks: Tensor) -> Tensor:
        with self._settings.autocast(self._device, cache=False):
            return self._embed(Batch(numeric, codes, blocks)).to(self._settings.dtype)
