"""VFL: one split network over all parties, trained on the rows that all of them know."""

from __future__ import annotations

from fedmend.methods.network import SplitEstimator


class VFL(SplitEstimator):
    """Plain vertical federated learning on aligned rows only."""
