"""The fedmend command. Heavy parts load inside the commands that use them."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedmend.deploy.commands import add_commands, reconcile_run
from fedmend.errors import ConfigError, FedmendError, FedmendWarning

if TYPE_CHECKING:
    from rich.console import Console

    from fedmend.checks import Findings
    from fedmend.config import Config

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedmend",
    help="Mends federated data: aligns parties, shows what is torn, trains across them, "
    "and writes down what each one saw.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[Path, typer.Argument(help="the federation's file", metavar="FILE")]
Engine = Literal["local", "flare"]
Stage = Literal["align", "diagnose", "complete", "correct", "choose", "train", "evaluate", "report"]
Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


_LOG = logging.getLogger("fedmend")


class _State:
    """What the options before the command have set, for as long as it runs."""

    debug = False
    handler: logging.Handler | None = None


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False)


def _version(asked: bool) -> None:
    if asked:
        from fedmend._version import __version__

        typer.echo(f"fedmend {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks and the log")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    _State.debug = debug
    if debug:
        from rich.logging import RichHandler

        _State.handler = RichHandler(console=_console(stderr=True), show_path=False)
        _LOG.addHandler(_State.handler)
        _LOG.setLevel(logging.DEBUG)


# ---------------------------------------------------------------- commands


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the run", metavar="DIR")] = Path(
        "demo-run"
    ),
) -> None:
    """Two hospitals, few shared patients: the whole story on real data, with a report."""
    from fedmend.demo import run_demo

    run_demo(out, _console())


@app.command()
def init(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(help="one table for each party (.csv, .csv.gz, .parquet)", metavar="TABLE"),
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option("--id", help="the id column; once for each name it has", metavar="COLUMN"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", help="the column to predict; once for each name it has", metavar="COLUMN"
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="the file to write", metavar="FILE")] = Path(
        "federation.toml"
    ),
    force: Force = False,
) -> None:
    """Write a commented federation.toml, from given tables or as an example."""
    from fedmend.config.starter import write_starter

    path = write_starter(out, tables or [], id=id, label=label, force=force)
    typer.echo(f"wrote {path}. Next: fedmend check {path}")


@app.command()
def check(
    config: ConfigPath = Path("federation.toml"),
    curve: Annotated[
        bool, typer.Option("--curve", help="train on parts of the shared rows: what are more worth")
    ] = False,
    problems: Annotated[
        bool, typer.Option("--problems", help="list problems only, without looking further")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="write the file that follows the advice", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="write all that was found", metavar="FILE")
    ] = None,
    force: Force = False,
) -> None:
    """List every problem of a federation.toml and its tables, what is torn, and what mends it."""
    from fedmend.checks import check_data
    from fedmend.config import load_config

    settings = load_config(config)
    found = check_data(settings)
    console = _console()
    for note in found.notes:
        console.print(f"[yellow]note[/] {_escaped(note)}", highlight=False)
    if found.problems:
        raise ConfigError(found.problems, source=str(config))
    if not problems:
        _look(settings, found, console, curve=curve, write=write, as_json=as_json, force=force)
    following = write or config
    console.print(f"[green]no problems[/]. Next: fedmend run {_escaped(str(following))}")


def _look(
    settings: Config,
    found: Findings,
    console: Console,
    *,
    curve: bool,
    write: Path | None,
    as_json: Path | None,
    force: bool,
) -> None:
    """What is torn, and what would mend it; on the terminal and as files."""
    from fedmend._json import write_json
    from fedmend.checks import look
    from fedmend.config.mended import write_mended
    from fedmend.terminal import TerminalListener, show_overview

    with TerminalListener(console) as listener:
        seen = look(settings, found, curve=curve, progress=listener.progress)
    if seen is None:
        for party, table in found.tables.items():
            facts = f"{len(table):,} rows, {len(table.feature_names)} columns"
            console.print(f"{_escaped(party)}: {facts}", highlight=False)
        return
    show_overview(console, seen)
    if as_json is not None:
        write_json(as_json, seen.to_dict())
    if write is not None:
        path = write_mended(settings, seen.advice or {}, write, force=force)
        console.print(f"wrote {_escaped(str(path))}", highlight=False)


@app.command()
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
    from fedmend.config import load_config
    from fedmend.flow import execute, plan_of
    from fedmend.terminal import TerminalListener, comparison_table

    settings = load_config(config, recipe=recipe)
    target = folder or settings.folder
    console = _console()
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
        typer.echo(f"interrupted. Go on with: fedmend run {config} --resume", err=True)
        raise typer.Exit(130) from None
    if record.methods:
        console.print(comparison_table(record))
    if (target / "report.html").is_file():
        console.print(f"Report: {_escaped(str(target / 'report.html'))}", highlight=False)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="a run's folder, going on or done", metavar="RUN")],
    port: Annotated[int, typer.Option("--port", help="on 127.0.0.1; any free one by default")] = 0,
) -> None:
    """Show a run's report in the browser while it trains; Ctrl-C ends it."""
    from fedmend.live import WatchServer
    from fedmend.live.loopback import serve_until_told

    with WatchServer(run, port) as server:
        serve_until_told(server, lambda: typer.echo(f"{server.address} (Ctrl-C ends it)"))


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="a finished run's folder", metavar="RUN")],
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
    from fedmend.predict.commands import predict_command

    predict_command(
        run,
        _files_by_party(rows or []),
        out,
        method=method,
        alone=alone,
        parts=_files_by_party(part or [], "--part"),
        kits=kits if engine == "flare" else None,
    )


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="a finished run's folder", metavar="RUN")],
    method: Annotated[
        str | None, typer.Option("--method", help="a method of the run; the best by default")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="on 127.0.0.1; any free one by default")] = 0,
) -> None:
    """Answer questions about new rows as JSON over HTTP, on this machine; Ctrl-C ends it."""
    from fedmend.predict.serving import serve_run

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


@app.command()
def ledger(
    run: Annotated[Path, typer.Argument(help="a run folder, or its ledger.jsonl")],
    as_json: Annotated[bool, typer.Option("--json", help="totals as JSON")] = False,
    party: Annotated[
        str | None, typer.Option("--party", help="only what this role received")
    ] = None,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="compare with the parties' own ledgers")
    ] = False,
    own: Annotated[
        list[str] | None,
        typer.Option("--with", help="a party's own ledger to compare with", metavar="PARTY=FILE"),
    ] = None,
) -> None:
    """Say in words what each role of a run got to see."""
    if reconcile:
        reconcile_run(run, own or [])
        return
    from fedmend._suggest import did_you_mean
    from fedmend.federation.ledger import COORDINATOR, read_ledger
    from fedmend.report.page import LEDGER_FILE
    from fedmend.report.words import flows

    entries = read_ledger(run / LEDGER_FILE if run.is_dir() else run)
    roles = {COORDINATOR, *(each.sender for each in entries), *(each.receiver for each in entries)}
    if party is not None and party not in roles:
        raise ConfigError(f"there is no role {party!r} in {run}: {did_you_mean(party, roles)}")
    if as_json:
        totals = [
            {
                "sender": flow.sender,
                "receiver": flow.receiver,
                "kind": flow.kind,
                "sealed_for": flow.sealed_for,
                "refused": flow.refused,
                "crossings": flow.crossings,
                "bytes": flow.bytes,
                "calls": list(flow.calls),
            }
            for flow in flows(entries)
            if party in (None, flow.receiver)
        ]
        typer.echo(json.dumps(totals, indent=2, ensure_ascii=False))
        return
    from fedmend.terminal import show_ledger

    show_ledger(_console(), entries, party=party)


@app.command()
def datasets() -> None:
    """List the named data sets, and how to get those that are not here."""
    from fedmend.data import datasets as known
    from fedmend.terminal import bullets, plain_table

    found = [known.info(name) for name in known.names()]
    rows = [
        [
            each.name,
            f"{each.rows:,}",
            each.columns,
            each.task,
            "yes" if each.present else "no",
            each.licence,
        ]
        for each in found
    ]
    console = _console()
    console.print(plain_table(["name", "rows", "columns", "task", "here", "licence"], rows))
    absent = [f"{each.name}: {each.how_to_get}" for each in found if not each.present]
    if absent:
        console.print("How to get those that are not here")
        bullets(console, absent)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="which one; without it, what there is")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="an honest small version, under a minute")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the result here too", metavar="FILE")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="an option of the benchmark", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Run a benchmark: ours beside the reference, and whether the promises hold."""
    from fedmend.bench.harness import available, parse_options, run_bench, show

    if name is None:
        for each, words in available().items():
            typer.echo(f"{each:<14} {words}")
        return
    result = run_bench(name, quick=quick, options=parse_options(option or []))
    show(result, _console())
    if json_file is not None:
        result.write_json(json_file)


add_commands(app)


# ---------------------------------------------------------------- errors


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show_warning(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    """Our own warnings as one line; others stay for the log."""
    if issubclass(category, FedmendWarning):
        sys.stderr.write(f"note: {message}\n")
    elif _State.debug:
        sys.stderr.write(f"{category.__name__}: {message}\n")


def main(arguments: list[str] | None = None) -> None:
    """The console script: runs a command, and turns errors into one message and an exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", FedmendWarning)
        warnings.showwarning = _show_warning
        try:
            app(args=arguments, prog_name="fedmend")
        except Exception as error:
            if _State.debug:
                raise
            sys.exit(_tell(error))
        finally:
            if _State.handler is not None:
                _LOG.removeHandler(_State.handler)
            _State.debug, _State.handler = False, None


def _tell(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    if isinstance(error, FedmendError):
        notes = "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
        sys.stderr.write(f"error: {error}\n{notes}")
        return error.exit_code
    sys.stderr.write(
        f"unexpected error: {type(error).__name__}: {error}\n"
        "This is a fault in fedmend. Mend: run again with 'fedmend --debug …' and report "
        "the traceback\n"
    )
    return 1
