"""What could be inferred: audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fedmend.cli.shared import ConfigPath, app, escaped, terminal
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedmend.audit import Audit, AuditReport
    from fedmend.cli.terminal import TerminalListener
    from fedmend.flow.plan import Plan
    from fedmend.report.banner import Banner

REHEARSAL = (
    "A rehearsal: all tables are read here and the methods trained in this process. It is for a "
    "party's own or public data, or with the consent of all."
)
CAUTION = "No attack succeeding is no proof: better attacks than these may exist."


@app.command()
def audit(
    config: ConfigPath = Path("federation.toml"),
    ledger: Annotated[
        Path | None, Option(help="only read a run's ledger; needs no tables", metavar="RUN")
    ] = None,
    method: Annotated[
        list[str] | None, Option(help="only this of what the file trains", metavar="NAME")
    ] = None,
    compare: Annotated[
        list[str] | None,
        Option(help="audit again with this parameter of the method", metavar="KEY=VALUE"),
    ] = None,
    option: Annotated[
        list[str] | None,
        Option("--option", "-o", help="a setting of the audit, as looks=20", metavar="KEY=VALUE"),
    ] = None,
    run: Annotated[
        Path | None, Option(help="put it into this run's folder and report", metavar="RUN")
    ] = None,
    out: Annotated[
        Path | None, Option(help="the folder for audit.json and audit.html", metavar="DIR")
    ] = None,
) -> None:
    """Measure what curious roles can infer from what a method shows them."""
    console = terminal()
    if ledger is not None:
        _read_only(ledger, console, out)
        return
    from fedmend._parameters import parse_options
    from fedmend.audit import Audit
    from fedmend.audit.page import write_audit
    from fedmend.cli.terminal import TerminalListener
    from fedmend.flow import plan_of
    from fedmend.flow.config import load_config
    from fedmend.report.record import RECORD_FILE

    if run is not None and not (run / RECORD_FILE).is_file():
        raise ConfigError(f"{run} is no finished run. Mend: name the folder of one")
    settings = load_config(config)
    plan = plan_of(settings)
    subjects = _subjects(plan, method or [])
    audited = Audit().set_params(**_options(parse_options(option or [])))
    changed = _options(parse_options(compare or []))
    for subject in subjects.values():
        audited.compared(subject, changed)  # whatever is wrong, before anything is trained
    console.print(f"[bold]{escaped(REHEARSAL)}[/]")
    with TerminalListener(console) as listener:
        reports = _rehearse(plan, subjects, audited, changed, listener)
    folder = run or out or settings.folder.with_name(f"{settings.folder.name}-audit")
    written = write_audit(folder, settings.title, reports)
    for report in reports:
        _show(console, report)
    console.print(f"[dim]{CAUTION}[/]")
    for path in written:
        console.print(f"Written: {escaped(str(path))}")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples."""
    return {key: tuple(each) if isinstance(each, list) else each for key, each in given.items()}


def _subjects(plan: Plan, names: list[str]) -> dict[str, Any]:
    """What the file trains, by title: what completes and corrects first; `names` chooses."""
    from fedmend._suggest import did_you_mean
    from fedmend.flow.config.settings import AUTO
    from fedmend.methods.registry import ANNOTATED, make

    seed, found = plan.seeds[0], dict[str, Any]()
    called: dict[str, list[str]] = {}
    if plan.complete is not None:
        how = plan.complete
        found[how.name] = make(how.name, how.params, seed)
    if plan.correct is not None:
        found[plan.correct.name] = plan.correct.estimator(seed)
    for each in plan.methods:
        estimator = make(each.name, each.params, seed)
        if each.name not in ANNOTATED and plan.correct is not None:
            estimator.set_params(label_party=each.params.get("label_party") or plan.correct.to)
        found[each.title] = estimator
        called.setdefault(each.name, []).append(each.title)
    wrong = [name for name in names if name not in found and name not in called]
    if plan.choose is not None and (AUTO in wrong or not found):
        raise ConfigError(
            "'auto' is audited by what it chooses, which a run tells. Mend: put [[method]] with "
            'name = "vfl", say, into the file, or, after a run, fedmend audit --ledger RUN'
        )
    if wrong:
        known = [*found, *called]
        raise ConfigError(
            f"--method: the file has no {wrong[0]!r}: {did_you_mean(wrong[0], known)}"
        )
    if not found:
        raise ConfigError(
            'the file names no method to audit. Mend: add [[method]] with name = "vfl", say'
        )
    chosen = [title for name in names for title in called.get(name, [name])] or list(found)
    return {title: found[title] for title in chosen}


def _rehearse(
    plan: Plan,
    subjects: dict[str, Any],
    audited: Audit,
    compare: dict[str, Any],
    listener: TerminalListener,
) -> list[AuditReport]:
    """Each of them on its own copy of the federation that the file describes."""
    from fedmend.flow.stages import local_federation
    from fedmend.methods.threads import few_threads
    from fedmend.secure.align import align

    listener.stage("Reading the tables")
    fed = local_federation(plan, reproducible=plan.config.run.reproducible)
    reports = []
    with fed, few_threads(fed):
        if len(fed.names) > 1 and not plan.config.horizontal:
            listener.stage("Finding the rows the parties share")
            for view in (fed,) if plan.leaves_out("evaluate") else (fed, fed.on("test")):
                align(view, progress=listener.progress, **plan.align)
        for title, estimator in subjects.items():
            listener.stage(f"Auditing {title}")
            report = audited.run(fed, estimator, compare=compare, progress=listener.progress)
            report.method = title  # one method may stand in a file with several settings
            reports.append(report)
    return reports


# ---------------------------------------------------------------- what is shown


def _read_only(place: Path, console: Console, out: Path | None) -> None:
    """What a run's ledger says by itself."""
    from fedmend.audit import AuditReport, statement
    from fedmend.audit.page import write_audit
    from fedmend.federation.ledger import read_ledger
    from fedmend.report.page import LEDGER_FILE, run_banner
    from fedmend.report.record import RECORD_FILE, RunRecord

    whole = place.is_dir()
    entries = read_ledger(place / LEDGER_FILE if whole else place)
    rows, banner = None, None
    if whole and (place / RECORD_FILE).is_file():
        told = (RunRecord.load(place).overview or {}).get("aligned")
        rows, banner = told if isinstance(told, int) else None, run_banner(place)
    report = AuditReport(method="", readings=statement(entries, rows=rows), rows=rows or 0)
    _show(console, report, banner)
    if out is not None:
        for path in write_audit(out, str(place), [report]):
            console.print(f"Written: {escaped(str(path))}")


def _show(console: Console, report: AuditReport, banner: Banner | None = None) -> None:
    """banner: of the run that was read, which knows its methods."""
    from fedmend.cli.terminal import bullets, plain_table, show_banner
    from fedmend.report.banner import banner_of_audit

    console.print()
    for line in report.head():
        console.print(f"[bold]{escaped(line)}[/]")
    show_banner(console, banner or banner_of_audit(report))
    if report.findings:
        bullets(console, report.in_short())
        head, *rows = report.lines()
        console.print(plain_table(head, rows))
    bullets(console, [*report.facts, *(f"{a}: not run: {w}" for a, w in report.left_out.items())])
    if report.other is not None:
        console.print(f"[bold]With {escaped(report.other.option)}[/]")
        head, *rows = report.beside()
        console.print(plain_table(head, rows))
    if report.mends():
        console.print("[bold]What lowers it[/]")
        bullets(console, report.mends())
    head, *rows = report.readings_table()
    if rows:
        console.print("[bold]What was received, and what such values can tell[/]")
        # A sentence in a column of a narrow terminal would be a word a line.
        console.print(plain_table(head[:-1], [row[:-1] for row in rows]))
        bullets(console, dict.fromkeys(f"{row[1]}: {row[-1]}" for row in rows))
