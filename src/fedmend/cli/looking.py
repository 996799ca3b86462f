"""What was seen, what there is, how good it is: ledger, datasets, bench."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import fedmend
from fedmend.cli.shared import Force, app, terminal
from fedmend.errors import ConfigError


@app.command()
def ledger(
    run: Annotated[Path, Argument(help="a run folder, or its ledger.jsonl")],
    as_json: Annotated[bool, Option("--json", help="totals as JSON")] = False,
    party: Annotated[str | None, Option(help="only what this role received")] = None,
    reconcile: Annotated[
        bool, Option("--reconcile", help="compare with the parties' own ledgers")
    ] = False,
    own: Annotated[
        list[str] | None,
        Option("--with", help="a party's own ledger to compare with", metavar="PARTY=FILE"),
    ] = None,
    verify: Annotated[
        bool, Option("--verify", help="name every line that is not as it was written")
    ] = False,
    export: Annotated[
        Path | None, Option(help="write a kit's ledger as a signed file", metavar="FILE")
    ] = None,
    force: Force = False,
) -> None:
    """Say in words what each role of a run got to see."""
    if reconcile or verify:
        from fedmend.deploy.ledgers import reconcile_run, verify_run

        for line in (verify_run if verify else reconcile_run)(run, own or []):
            typer.echo(line)
        return
    if export is not None:
        from fedmend.deploy.ledgers import export_ledger

        key = export_ledger(run, export, force=force)
        typer.echo(f"wrote {export}, signed by the key {key}")
        return
    from fedmend._suggest import did_you_mean
    from fedmend.federation.ledger import COORDINATOR, read_ledger
    from fedmend.report.page import LEDGER_FILE, run_banner
    from fedmend.report.record import RECORD_FILE
    from fedmend.report.words import flows

    entries = read_ledger(run / LEDGER_FILE if run.is_dir() else run)
    crossings = [each for each in entries if each.is_crossing]
    roles = {COORDINATOR, *(role for each in crossings for role in (each.sender, each.receiver))}
    if party is not None and party not in roles:
        raise ConfigError(f"there is no role {party!r} in {run}: {did_you_mean(party, roles)}")
    if as_json:
        totals = [asdict(flow) for flow in flows(entries) if party in (None, flow.receiver)]
        typer.echo(json.dumps(totals, indent=2, ensure_ascii=False))
        return
    from fedmend.cli.terminal import show_ledger

    banner = run_banner(run) if (run / RECORD_FILE).is_file() else None
    show_ledger(terminal(), entries, party=party, banner=banner)


@app.command()
def datasets() -> None:
    """List the named data sets to try things on."""
    from fedmend.cli.terminal import plain_table
    from fedmend.data.datasets import CATALOGUE

    heads = ["name", "rows", "columns", "task", "licence"]
    rows = [[e.name, f"{e.rows:,}", e.columns, e.task, e.licence] for e in CATALOGUE.values()]
    terminal().print(plain_table(heads, rows))


@app.command()
def bench(
    name: Annotated[str | None, Argument(help="which one; without it, what there is")] = None,
    quick: Annotated[
        bool, Option("--quick", help="a small version with bars of its own, in minutes")
    ] = False,
    resume: Annotated[
        bool, Option("--resume", help="keep measurements in runs/bench, and go on from those there")
    ] = False,
    json_file: Annotated[
        Path | None, Option("--json", help="write the result here too", metavar="FILE")
    ] = None,
    option: Annotated[
        list[str] | None,
        Option("--option", "-o", help="an option of the benchmark", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Run a benchmark: ours beside the reference, and whether the promises hold."""
    from fedmend._parameters import parse_options

    harness = _benchmarks()
    if name is None:
        for each, words in harness.available().items():
            typer.echo(f"{each:<14} {words}")
        return
    options = parse_options(option or [])
    result = harness.run_bench(name, quick=quick, resume=resume, options=options)
    harness.show(result)
    if json_file is not None:
        result.write_json(json_file)


def _benchmarks() -> Any:
    """The benchmarks are a project beside the package, found in a checkout or where installed."""
    beside = Path(fedmend.__file__).parents[2] / "benchmarks"
    if importlib.util.find_spec("fedmend_bench") is None and (beside / "fedmend_bench").is_dir():
        sys.path.append(str(beside))
        # Benchmarks measure in processes of their own, which are to find it too.
        paths = [os.environ.get("PYTHONPATH", ""), str(beside)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        return importlib.import_module("fedmend_bench.harness")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the benchmarks are not part of the installed package. Mend: get a checkout of "
            "fedmend, and run 'fedmend bench' from it or 'pip install -e benchmarks' in it"
        ) from error
