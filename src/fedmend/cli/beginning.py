"""The commands one begins with: demo, init, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedmend.cli.shared import ConfigPath, Force, app, escaped, terminal
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedmend.flow.checks import Findings
    from fedmend.flow.config import Config


@app.command()
def demo(
    out: Annotated[Path, Option(help="folder for the run", metavar="DIR")] = Path("demo-run"),
) -> None:
    """Two hospitals, few shared patients: the whole story on real data, with a report."""
    from fedmend.cli.demo import run_demo

    run_demo(out, terminal())


@app.command()
def init(
    tables: Annotated[
        list[Path] | None,
        Argument(help="one table for each party (.csv, .csv.gz, .parquet, .xlsx)", metavar="TABLE"),
    ] = None,
    id: Annotated[
        list[str] | None, Option(help="the id column; once for each name it has", metavar="COLUMN")
    ] = None,
    label: Annotated[
        list[str] | None,
        Option(help="the column to predict; once for each name it has", metavar="COLUMN"),
    ] = None,
    out: Annotated[Path, Option(help="the file to write", metavar="FILE")] = Path(
        "federation.toml"
    ),
    force: Force = False,
) -> None:
    """Write a commented federation.toml, from given tables or as an example."""
    from fedmend.flow.config.starter import write_starter

    path = write_starter(out, tables or [], id=id, label=label, force=force)
    for line in dict.fromkeys(path.read_text(encoding="utf-8").splitlines()):
        key, _, why = line.partition("# guessed")
        if why:
            typer.echo(f"guessed: {key.strip()} ({why.lstrip(' :')})")
    typer.echo(f"wrote {path}. Next: fedmend check {path}")


@app.command()
def check(
    config: ConfigPath = Path("federation.toml"),
    curve: Annotated[
        bool, Option("--curve", help="train on parts of the shared rows: what are more worth")
    ] = False,
    problems: Annotated[
        bool, Option("--problems", help="list problems only, without looking further")
    ] = False,
    write: Annotated[
        Path | None, Option(help="write the file that follows the advice", metavar="FILE")
    ] = None,
    as_json: Annotated[
        Path | None, Option("--json", help="write all that was found", metavar="FILE")
    ] = None,
    force: Force = False,
) -> None:
    """List every problem of a federation.toml and its tables, what is torn, and what mends it."""
    from fedmend.flow.checks import check_data
    from fedmend.flow.config import load_config

    if problems and (write or as_json or curve):
        raise ConfigError(
            "--problems looks no further, so that there is nothing to tell or to write. "
            "Mend: leave out --problems, or --write, --json and --curve"
        )
    settings = load_config(config)
    if write is not None and write.exists() and not force:
        raise ConfigError(f"{write} exists already. Mend: --force to overwrite it, or another name")
    found = check_data(settings)
    console = terminal()
    for note in found.notes:
        console.print(f"[yellow]note[/] {escaped(note)}")
    if found.problems:
        raise ConfigError(found.problems, source=str(config))
    if not problems:
        _look(settings, found, console, curve, write, as_json)
    following = _following(settings, found, write or config)
    console.print(f"[green]no problems[/]. Next: {escaped(following)}")


def _following(settings: Config, found: Findings, file: Path) -> str:
    """What comes after a file without problems; parties elsewhere need kits first."""
    if len(found.tables) == len(settings.party):
        return f"fedmend run {file}"
    kits = settings.at(settings.flare.kits)
    return f"fedmend run {file} --engine flare" if kits.is_dir() else f"fedmend provision {file}"


def _look(
    settings: Config,
    found: Findings,
    console: Console,
    curve: bool,
    write: Path | None,
    as_json: Path | None,
) -> None:
    """What is torn, and what would mend it; on the terminal and as files."""
    from fedmend._json import write_json
    from fedmend.cli.terminal import TerminalListener, show_overview
    from fedmend.flow.checks import look
    from fedmend.flow.config.rewriting import write_mended

    with TerminalListener(console) as listener:
        seen = look(settings, found, curve=curve, progress=listener.progress)
    if seen is None and (write or as_json):
        elsewhere = next(each.name for each in settings.party if each.name not in found.tables)
        raise ConfigError(
            f"party {elsewhere!r} has its table elsewhere, so what is torn is not known. "
            "Mend: leave out --write and --json, or name its table",
            source=str(settings.source),
        )
    if seen is None:
        for party, table in found.tables.items():
            facts = f"{len(table):,} rows, {len(table.feature_names)} columns"
            console.print(f"{escaped(party)}: {facts}")
        return
    show_overview(console, seen)
    if as_json is not None:
        write_json(as_json, seen.to_dict())
    if write is not None:
        path = write_mended(settings, seen.advice or {}, write)
        console.print(f"wrote {escaped(str(path))}")
