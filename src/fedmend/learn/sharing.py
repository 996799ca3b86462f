"""Bottoms of like shape that become one now and then, for sides of like shape (halves of images).

Every `share_every` steps the parties' bottoms are joined and all go on from the result, as in
federated averaging: weights cross, rows do not. What one party learns from its many labelled rows
thus serves the other's side of a row as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.errors import FedmendWarning
from fedmend.federation import Crew, Each, exposed

__all__ = ["SharesBottom", "Sharing", "run_steps"]

Weights = dict[str, Tensor]


class SharesBottom:
    """A worker's part: its bottom goes out and comes back."""

    def _shared_bottom(self) -> nn.Module | None:
        raise NotImplementedError

    @exposed(kind="weights")
    def bottom_weights(self) -> dict[str, Tensor]:
        """This party's bottom, to be joined with others of the same shape."""
        module = self._shared_bottom()
        if module is None:
            return {}
        return {key: value.detach().clone() for key, value in module.state_dict().items()}

    @exposed(kind="control", takes={"weights": "weights"})
    def take_bottom(self, weights: dict[str, Tensor]) -> None:
        module = self._shared_bottom()
        if module is not None:
            module.load_state_dict(weights)


class Sharing:
    """The coordinator's part, of one training.

    Bottoms that have the same shapes are joined; one that has no like goes on alone.
    """

    def __init__(self, bottoms: Crew, top: Any, label_party: str) -> None:
        self._workers = {name: bottoms[name] for name in bottoms} | {label_party: top}
        self._last: dict[str, Weights] = {}

    def share(self, rows: Mapping[str, int]) -> None:
        """Join the bottoms; `rows`: how many rows each party trains on."""
        found = {name: worker.bottom_weights() for name, worker in self._workers.items()}
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, weights in found.items():
            shapes = tuple((key, tuple(value.shape)) for key, value in weights.items())
            if shapes:
                groups.setdefault(shapes, []).append(name)
        alike = [names for names in groups.values() if len(names) > 1]
        if not alike and not self._last:
            warnings.warn(
                f"share_every joins bottoms of one shape, but those of {', '.join(found)} all "
                "differ: none is shared. Mend: share_every=0",
                FedmendWarning,
                stacklevel=2,
            )
        for names in alike:
            joined = self._joined({name: found[name] for name in names}, rows)
            self._last[names[0]] = joined
            for name in names:
                self._workers[name].take_bottom(joined)

    def _joined(self, found: Mapping[str, Weights], rows: Mapping[str, int]) -> Weights:
        """The mean of bottoms, each counted by its party's rows."""
        total = sum(rows[name] for name in found)
        first = next(iter(found.values()))
        joined = {}
        for key, value in first.items():
            joined[key] = value
            if value.is_floating_point():
                joined[key] = torch.zeros_like(value)
                for name, weights in found.items():
                    part = weights[key].to(value.device)
                    joined[key].add_(part, alpha=rows[name] / total)
        return joined


def run_steps(
    bottoms: Crew,
    top: Any,
    steps: int,
    embeddings: dict[str, Tensor],
    every: int = 0,
    share: Callable[[], None] | None = None,
) -> None:
    """An epoch's exchanges from the first batch's embeddings on; after `every` steps `share`."""
    for step in range(1, steps):
        gradients = Each(top.step(embeddings))
        if share is not None and step % every == 0:
            bottoms.finish(gradients)
            share()
            embeddings = bottoms.step()
        else:
            embeddings = bottoms.step(gradients)
    bottoms.finish(Each(top.step(embeddings)))
    if share is not None:
        share()
