"""VFL: one split network over all parties, trained on the rows that all of them know."""

from __future__ import annotations

from typing import Any

from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.learn.completed import WeighedNetwork
from fedmend.learn.training import SplitConfig, SplitNetwork
from fedmend.methods.base import SplitEstimator

COMPLETED = ("alike", "weighed")


class VFL(SplitEstimator):
    """Plain vertical federated learning on aligned rows only.

    completed: rows whose sides a method completed count as all others do ("alike"), or as far as
    their cells are believed ("weighed").
    """

    def __init__(self, *, completed: str = "alike", **params: Any) -> None:
        super().__init__(**params)
        self.completed = completed

    def _make_network(
        self, fed: Federation, parties: list[str], label_party: str, config: SplitConfig
    ) -> SplitNetwork:
        if self.completed not in COMPLETED:
            raise ConfigError(
                f"completed must be one of {', '.join(COMPLETED)}, however: {self.completed!r}"
            )
        kind = WeighedNetwork if self.completed == "weighed" else self._network_type
        return kind(fed, parties=parties, label_party=label_party, config=config)
