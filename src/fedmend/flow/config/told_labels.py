"""What `check` says of label_dp: where its promise does not hold for the file as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmend.flow.config.settings import Config

__all__ = ["told_label_notes", "told_label_problems"]

ALONE = "local"
"""The one method of which nothing leaves the label party."""


def told_label_notes(config: Config) -> Iterator[str]:
    """Several ε add up; a method that knows labels as they are undoes what others promise."""
    told = {each.shown_as: each.params.get("label_dp") for each in config.method}
    asked = {title: float(each) for title, each in told.items() if each is not None}
    if not asked:
        return
    several = sorted(set(asked.values()))
    if len(several) > 1:
        yield (
            f"label_dp is {' and '.join(f'{each:g}' for each in several)} in one file: each is a "
            f"draw of its own, and together a label is told with ε = {sum(several):g}. Mend: one "
            "label_dp for all methods, which then share a draw"
        )
    alone = {each.shown_as for each in config.method if each.name == ALONE}
    plain = [title for title in told if title not in asked and title not in alone]
    if plain:
        yield (
            f"{', '.join(plain)} learns from labels as they are where it is trained before "
            f"{', '.join(asked)}, so that label_dp does not bound what this run tells of them; "
            "after it, from the same draws. Mend: label_dp for all methods of the file"
        )


def told_label_problems(config: Config, task: str) -> Iterator[str]:
    """Numbers cannot be told through randomised response."""
    asked = [each.shown_as for each in config.method if each.params.get("label_dp") is not None]
    if task == "regression" and asked:
        yield (
            f"{', '.join(asked)}: label_dp is for classes, and the label is taken for a number. "
            "Mend: cut the numbers into classes first, or leave label_dp out"
        )
