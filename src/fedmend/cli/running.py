"""A run, looking on while it goes, and what it is for: run, watch, predict, serve."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedmend.cli.shared import (
    ConfigPath,
    Engine,
    Force,
    KeyValues,
    Method,
    OutFolder,
    Port,
    RunPath,
    Stage,
    app,
    escaped,
    terminal,
)
from fedmend.errors import ConfigError, FedmendError

if TYPE_CHECKING:
    from fedmend.serve.predicting import Predicted


@app.command()
def run(
    config: ConfigPath = Path("federation.toml"),
    folder: Annotated[Path | None, Option(help="the run folder, instead of the file's")] = None,
    resume: Annotated[
        bool, Option("--resume", help="go on with a run: do what is unfinished or has changed")
    ] = False,
    start: Annotated[
        Stage | None, Option("--from", help="go on with a run, from this stage on", metavar="STAGE")
    ] = None,
    recipe: Annotated[str | None, Option(help="stages by name, instead of the file's")] = None,
    force: Force = False,
    keep_failed: Annotated[
        bool, Option("--keep-failed", help="keep FOLDER.part when the run fails")
    ] = False,
    engine: Annotated[
        Engine | None, Option(help="local: all here; flare: each party on its own machine")
    ] = None,
    mlflow: Annotated[
        str | None, Option(help="log the finished run in this store or server", metavar="URI")
    ] = None,
) -> None:
    """Align, diagnose, complete, correct labels, train, evaluate and report, into a run folder."""
    from fedmend.cli.terminal import TerminalListener, comparison_table, show_banner
    from fedmend.flow import execute, plan_of
    from fedmend.flow.config import load_config
    from fedmend.report.page import run_banner

    settings = load_config(config, recipe=recipe)
    target = folder or settings.folder
    console = terminal()
    tracker = None
    if mlflow is not None:
        from fedmend.report.tracking import Tracker

        tracker = Tracker(mlflow, settings.title)
    how: dict[str, Any] = {"resume": resume, "force": force, "start": start}
    try:
        with TerminalListener(console) as how["listener"]:
            if (engine or settings.run.engine) == "flare":
                from fedmend.deploy.flare_run import execute_flare

                record = execute_flare(settings, target, **how)
            else:
                record = execute(plan_of(settings), target, keep_failed=keep_failed, **how)
    except KeyboardInterrupt:
        given = {"--folder": folder, "--recipe": recipe, "--engine": engine}
        options = [str(word) for pair in given.items() if pair[1] for word in pair]
        again = shlex.join([str(config), *options])
        typer.echo(f"interrupted. Go on with: fedmend run {again} --resume", err=True)
        raise typer.Exit(130) from None
    if record.methods:
        console.print(comparison_table(record, console.width))
        for note in record.cautions():
            console.print(f"[bold]note[/] {escaped(note)}")
    show_banner(console, run_banner(target))
    if (target / "report.html").is_file():
        console.print(f"Report: {escaped(str(target / 'report.html'))}")
    if tracker is not None:
        console.print(f"MLflow: run {tracker.log(record, target)} at {escaped(tracker.uri)}")


@app.command()
def watch(
    run: Annotated[Path, Argument(help="a run's folder, going on or done", metavar="RUN")],
    port: Port = 0,
) -> None:
    """Show a run's report in the browser while it trains; Ctrl-C ends it."""
    from fedmend.serve.loopback import serve_until_told
    from fedmend.serve.watching import WatchServer

    with WatchServer(run, port) as server:
        serve_until_told(server, lambda: typer.echo(f"{server.address} (Ctrl-C ends it)"))


@app.command()
def predict(
    run: RunPath,
    rows: Annotated[
        KeyValues, Option("--with", help="new rows of a party", metavar="PARTY=FILE")
    ] = None,
    method: Method = None,
    out: OutFolder = Path("predictions"),
    alone: Annotated[
        str | None, Option(help="this party's part of the model only", metavar="PARTY")
    ] = None,
    part: Annotated[
        KeyValues, Option(help="a part that a party keeps in its kit", metavar="PARTY=KIT")
    ] = None,
    engine: Annotated[
        Engine, Option(help="local: rows here; flare: rows at the parties")
    ] = "local",
    kits: Annotated[Path, Option(help="with flare: the folder of all kits", metavar="DIR")] = Path(
        "kits"
    ),
) -> None:
    """Predict new rows with a run's model: rows all parties know, and rows one of them knows."""
    from fedmend.serve import running as ways
    from fedmend.serve.models import chosen, part_in_kit

    given, parts = _files_by_party(rows or []), _files_by_party(part or [], "--part")
    if engine == "flare":
        if given or parts or alone is not None:
            raise ConfigError(
                "over machines the rows and parts are at the parties. Mend: leave out --with, "
                '--part and --alone; every party says new = "rows.csv" in its party.toml'
            )
        tell(ways.predict_over_machines(run, kits, out, method=method, waiting=_waiting))
        return
    if alone is None:
        tell(ways.predict_run(run, given, out, method=method, parts=parts))
        return
    if set(given) != {alone}:
        raise ConfigError(f"--alone {alone} predicts its rows only. Mend: --with {alone}=rows.csv")
    settings = ways.party_settings(ways.run_config(run), given)[alone]
    model = chosen(run, method)
    ways.check_out(out)
    own = model.folder / alone
    if model.horizontal and not own.is_dir():
        own = model.folder  # the common model is every party's
    folder = part_in_kit(parts[alone], model) if alone in parts else own
    tell([ways.predict_alone(folder, settings, given[alone], out)])


def _waiting(missing: list[str]) -> None:
    typer.echo(f"waiting for {', '.join(missing)} ('fedmend party start KIT' there)", err=True)


def tell(found: list[Predicted]) -> None:
    """What was predicted, and where it is."""
    for done in found:
        where = done.path or f"{done.party} ({done.kept})"
        if done.rows:
            known = f", {done.shared:,} of them known to other parties too" if done.shared else ""
            typer.echo(f"{where}: {done.rows:,} rows by {done.method}{known}")
        if done.skipped:
            typer.echo(
                f"{done.party}: {done.skipped:,} rows not predicted, since {done.method} uses "
                f"no column of {done.party}"
            )


@app.command()
def serve(
    place: Annotated[
        Path, Argument(help="a run's folder, or the kit of the label party", metavar="RUN|KIT")
    ],
    method: Method = None,
    port: Port = 0,
    run: Annotated[str | None, Option(help="in a kit: which run's model")] = None,
    partner: Annotated[
        KeyValues, Option(help="where a partner listens", metavar="PARTY=HOST:PORT")
    ] = None,
    also: Annotated[
        list[str] | None, Option(help="in a kit: a further model", metavar="RUN/METHOD")
    ] = None,
    shadow: Annotated[
        str | None, Option(help="in a kit: a model on trial, unseen", metavar="RUN/METHOD")
    ] = None,
    log: Annotated[Path | None, Option(help="a line of JSON for each request")] = None,
) -> None:
    """Answer questions about people as JSON over HTTP, on this machine; Ctrl-C ends it."""
    from fedmend.serve.loopback import serve_until_told
    from fedmend.serve.serving import PredictServer

    partners = {name: str(at) for name, at in _files_by_party(partner or [], "--partner").items()}

    def choose() -> None:
        """At SIGHUP: party.toml says which model answers."""
        try:
            typer.echo(f"{server.choose_again()} answers")
        except FedmendError as error:  # the one before goes on
            typer.echo(f"{server.service.name} goes on answering: {error}", err=True)

    with PredictServer(
        place, method, port, run=run, partners=partners, also=also or (), shadow=shadow, log=log
    ) as server:
        words = f"{server.address} answers with {server.title} (Ctrl-C ends it)"
        before = signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=choose).start())
        try:
            serve_until_told(server, lambda: typer.echo(words))
        finally:
            signal.signal(signal.SIGHUP, before)
        typer.echo("ended")


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
