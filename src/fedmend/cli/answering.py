"""What a finished run is for: predict, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli.shared import Engine, RunPath
from fedmend.errors import ConfigError

__all__ = ["add"]


def predict(
    run: RunPath,
    rows: Annotated[
        list[str] | None,
        typer.Option("--with", help="new rows of a party", metavar="PARTY=FILE"),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="a method of the run; the best by default")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="a folder for the predictions", metavar="DIR")
    ] = Path("predictions"),
    alone: Annotated[
        str | None,
        typer.Option("--alone", help="this party's part of the model only", metavar="PARTY"),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="a part that a party keeps in its kit", metavar="PARTY=KIT"),
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="local: rows here; flare: rows at the parties")
    ] = "local",
    kits: Annotated[
        Path, typer.Option("--kits", help="with flare: the folder of all kits", metavar="DIR")
    ] = Path("kits"),
) -> None:
    """Predict new rows with a run's model: rows all parties know, and rows one of them knows."""
    from fedmend.serve.commands import predict_command

    predict_command(
        run,
        _files_by_party(rows or []),
        out,
        method=method,
        alone=alone,
        parts=_files_by_party(part or [], "--part"),
        kits=kits if engine == "flare" else None,
    )


def serve(
    run: RunPath,
    method: Annotated[
        str | None, typer.Option("--method", help="a method of the run; the best by default")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="on 127.0.0.1; any free one by default")] = 0,
) -> None:
    """Answer questions about new rows as JSON over HTTP, on this machine; Ctrl-C ends it."""
    from fedmend.serve.serving import serve_run

    serve_run(run, method, port)


def _files_by_party(pairs: list[str], option: str = "--with") -> dict[str, Path]:
    found: dict[str, Path] = {}
    for pair in pairs:
        party, equals, file = pair.partition("=")
        if not equals or not file:
            raise ConfigError(f"{option} {pair!r} names no file. Mend: {option} bank=rows.csv")
        if party in found:
            raise ConfigError(f"{option} names {party!r} twice. Mend: one for each party")
        found[party] = Path(file)
    return found


def add(app: typer.Typer) -> None:
    """Put these commands among the others."""
    for command in (predict, serve):
        app.command()(command)
