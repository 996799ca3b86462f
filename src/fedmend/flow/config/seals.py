"""What ``fedmend check`` says about split training in the open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedmend.methods.registry import ANNOTATED

if TYPE_CHECKING:
    from fedmend.flow.config.settings import Config

__all__ = ["seal_notes"]


def seal_notes(config: Config) -> Iterator[str]:
    """Methods whose embeddings and gradients the coordinator could read without need."""
    open_ = [
        each.shown_as
        for each in config.method
        if each.params.get("seal") is False and each.name not in ANNOTATED
    ]
    if open_:
        yield (
            f"{', '.join(open_)}: seal = false lets the coordinator read every embedding and "
            "gradient also between machines, where by default it only passes them on. Mend: leave "
            "seal out"
        )
