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

__all__ = ["SharesBottom", "Sharing", "run_steps", "same_shapes"]

Weights = dict[str, Tensor]


class SharesBottom:
    """A worker's part: its bottom goes out and comes back."""

    def _shared_bottom(self) -> nn.Module | None:
        raise NotImplementedError

    @exposed(kind="control")
    def bottom_shapes(self) -> list[list[Any]]:
        """Name and shape of everything in this party's bottom."""
        module = self._shared_bottom()
        return [] if module is None else _shapes(module.state_dict())

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
        self._told = False

    def share(self, rows: Mapping[str, int]) -> None:
        """Join the bottoms; `rows`: how many rows each party trains on."""
        found = {name: worker.bottom_weights() for name, worker in self._workers.items()}
        groups = same_shapes({name: _shapes(weights) for name, weights in found.items()})
        alike = [names for names in groups if len(names) > 1]
        if not alike and not self._told:
            self._told = True
            warnings.warn(
                f"share_every joins bottoms of one shape, but those of {', '.join(found)} all "
                "differ: none is shared. Mend: share_every=0",
                FedmendWarning,
                stacklevel=2,
            )
        for names in alike:
            joined = self._joined({name: found[name] for name in names}, rows)
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


def _shapes(weights: Mapping[str, Tensor]) -> list[list[Any]]:
    return [[key, list(value.shape)] for key, value in weights.items()]


def same_shapes(shapes: Mapping[str, list[list[Any]]]) -> list[list[str]]:
    """The parties whose bottoms have the same shapes, in groups; who has none is in no group.

    >>> same_shapes({"a": [["w", [2]]], "b": [["w", [3]]], "c": [["w", [2]]], "d": []})
    [['a', 'c'], ['b']]
    """
    groups: dict[str, list[str]] = {}
    for name, found in shapes.items():
        if found:
            groups.setdefault(str(found), []).append(name)
    return list(groups.values())


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
