"""A run, and looking on while it goes: run, watch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedmend.cli.shared import ConfigPath, Engine, Force, Stage, escaped, terminal

__all__ = ["add"]


def run(
    config: ConfigPath = Path("federation.toml"),
    folder: Annotated[
        Path | None, typer.Option("--folder", help="the run folder, instead of the file's")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="go on with a run: do what is unfinished or has changed"),
    ] = False,
    start: Annotated[
        Stage | None,
        typer.Option("--from", help="go on with a run, from this stage on", metavar="STAGE"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="stages by name, instead of the file's")
    ] = None,
    force: Force = False,
    keep_failed: Annotated[
        bool, typer.Option("--keep-failed", help="keep FOLDER.part when the run fails")
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", help="local: all here; flare: each party on its own machine"),
    ] = None,
) -> None:
    """Align, diagnose, complete, correct labels, train, evaluate and report, into a run folder."""
    from fedmend.cli.terminal import TerminalListener, comparison_table
    from fedmend.flow import execute, plan_of
    from fedmend.flow.config import load_config

    settings = load_config(config, recipe=recipe)
    target = folder or settings.folder
    console = terminal()
    try:
        with TerminalListener(console) as listener:
            if (engine or settings.run.engine) == "flare":
                from fedmend.deploy.flare_run import execute_flare

                record = execute_flare(
                    settings, target, resume=resume, force=force, start=start, listener=listener
                )
            else:
                record = execute(
                    plan_of(settings),
                    target,
                    resume=resume,
                    force=force,
                    keep_failed=keep_failed,
                    start=start,
                    listener=listener,
                )
    except KeyboardInterrupt:
        given = {"--folder": folder, "--recipe": recipe, "--engine": engine}
        options = [str(word) for pair in given.items() if pair[1] for word in pair]
        again = shlex.join([str(config), *options])
        typer.echo(f"interrupted. Go on with: fedmend run {again} --resume", err=True)
        raise typer.Exit(130) from None
    if record.methods:
        console.print(comparison_table(record))
        for note in record.cautions():
            console.print(f"[bold]note[/] {escaped(note)}", highlight=False)
    if (target / "report.html").is_file():
        console.print(f"Report: {escaped(str(target / 'report.html'))}", highlight=False)


def watch(
    run: Annotated[Path, typer.Argument(help="a run's folder, going on or done", metavar="RUN")],
    port: Annotated[int, typer.Option("--port", help="on 127.0.0.1; any free one by default")] = 0,
) -> None:
    """Show a run's report in the browser while it trains; Ctrl-C ends it."""
    from fedmend.serve.loopback import serve_until_told
    from fedmend.serve.watching import WatchServer

    with WatchServer(run, port) as server:
        serve_until_told(server, lambda: typer.echo(f"{server.address} (Ctrl-C ends it)"))


def add(app: typer.Typer) -> None:
    """Put these commands among the others."""
    for command in (run, watch):
        app.command()(command)
