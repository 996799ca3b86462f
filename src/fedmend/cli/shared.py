"""What the commands have in common: the app they hang in, options, and the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, Typer

if TYPE_CHECKING:
    from rich.console import Console

app = Typer(
    name="fedmend",
    help="Mends federated data: aligns parties, shows what is torn, trains across them, "
    "and writes down what each one saw.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[Path, Argument(help="the federation's file", metavar="FILE")]
RunPath = Annotated[Path, Argument(help="a finished run's folder", metavar="RUN")]
Engine = Literal["local", "flare"]
Stage = Literal["align", "diagnose", "complete", "correct", "choose", "train", "evaluate", "report"]
Force = Annotated[bool, Option("--force", help="replace what is there")]
Method = Annotated[str | None, Option(help="a method of the run; the best by default")]
Port = Annotated[int, Option(help="on 127.0.0.1; any free one by default")]
OutFolder = Annotated[Path, Option(help="a folder for the predictions", metavar="DIR")]
KeyValues = list[str] | None


def terminal(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """The terminal, or what is in its place."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=soft_wrap, highlight=False)


def escaped(text: object) -> str:
    """Text in which square brackets are no markup."""
    from rich.markup import escape

    return escape(str(text))
