"""What the commands have in common: options they share, and how they write to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ConfigPath", "Engine", "Force", "RunPath", "Stage", "escaped", "terminal"]

ConfigPath = Annotated[Path, typer.Argument(help="the federation's file", metavar="FILE")]
RunPath = Annotated[Path, typer.Argument(help="a finished run's folder", metavar="RUN")]
Engine = Literal["local", "flare"]
Stage = Literal["align", "diagnose", "complete", "correct", "choose", "train", "evaluate", "report"]
Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


def terminal(*, stderr: bool = False) -> Console:
    """The terminal, or what stands in for it."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False)


def escaped(text: str) -> str:
    """Text in which square brackets are no markup."""
    from rich.markup import escape

    return escape(text)
