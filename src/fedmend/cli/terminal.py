"""What the command line shows: stages, progress bars, tables. Bars only on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedmend.federation import Entry
from fedmend.flow.live import Listener
from fedmend.flow.manifest import StageEntry
from fedmend.report.amounts import pretty, score_text
from fedmend.report.banner import Banner, banner_of
from fedmend.report.mending import Mending
from fedmend.report.overview import Overview
from fedmend.report.record import MethodRun, RunRecord, turns_of
from fedmend.report.words import what_was_seen

WIDEST_NAME, NARROWEST_TITLE = 28, 12


class TerminalListener(Listener):
    """Draws a run as it goes on. Use it as a context: the bar must not outlive the run."""

    def __init__(self, console: Console, *, show_the_overview: bool = True) -> None:
        self.console = console
        self.show_the_overview = show_the_overview
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f} of {task.total:.0f}"),
            TextColumn("[dim]{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._shown: dict[str, Any] | None = None

    def __enter__(self) -> TerminalListener:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def stage(self, words: str) -> None:
        self._end_bar()
        self.console.print(f"[bold]›[/] {escape(words)}")

    def progress(
        self, title: str, done: int, total: int, facts: dict[str, float] | None = None
    ) -> None:
        if self._task is None:
            self._task = self._bar.add_task(title, total=total, facts="")
        told = f"loss {facts['loss']:.3f}" if facts and "loss" in facts else ""
        self._bar.update(self._task, description=title, completed=done, total=total, facts=told)

    def found(self, what: str, value: dict[str, Any]) -> None:
        self._end_bar()
        if what == "overview":
            # A run that goes on after somebody was absent has nothing new to tell.
            if self.show_the_overview and value != self._shown:
                self._shown = value
                show_overview(self.console, Overview.from_dict(value))
        elif what == "mending":
            mended = Mending.from_dict(value)
            bullets(self.console, [line for pair in mended.pairs for line in pair.sentences()])
            self.console.print(f"  {mended.words}")
        elif what == "correction":
            self.console.print(f"  {escape(value['says'])}")
        elif what == "choice":
            bullets(self.console, value["why"])

    def done(self, entry: StageEntry) -> None:
        if entry.reused:
            self._end_bar()
            what = f"{entry.stage} {entry.title}".rstrip()
            self.console.print(f"[dim]· {escape(what)}: as before[/]")

    def scored(self, run: MethodRun) -> None:
        self._end_bar()
        scores = ", ".join(
            f"{pretty(name)} {score_text(value)}"
            for name, value in run.scores.items()
            if value is not None
        )
        took = ", ".join(filter(None, [f"{run.seconds:.1f} s", turns_of(run.history)]))
        self.console.print(f"  {escape(scores)} [dim]({took})[/]", highlight=False)

    def _end_bar(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def plain_table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: int = 99) -> Table:
    """A calm table; columns from ``right`` on are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    rows = list(rows)
    # A long name may be folded; without a floor it would leave the other columns a letter each.
    folded = any(len(str(row[0])) > WIDEST_NAME for row in rows if row)
    for number, name in enumerate(head):
        justify: Any = "right" if number >= right else "left"
        table.add_column(
            name,
            justify=justify,
            overflow="fold",
            no_wrap=number == 0 and not folded,
            max_width=WIDEST_NAME if number == 0 and folded else None,
        )
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def bullets(console: Console, lines: Iterable[str]) -> None:
    """Lines behind dots, wrapped under themselves."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("•", escape(line))
    console.print(grid)


def show_overview(console: Console, found: Overview) -> None:
    """The overview, with its table drawn and its sentences wrapped."""
    head, *rows = found.rows()
    console.print(plain_table(head, rows))
    told = found.label_in_words().splitlines()
    if told:
        console.print("\n".join(f"Label {escape(line)}" for line in told) + "\n")
    for title, sentences in found.sections():
        console.print(f"[bold]{title}[/]")
        bullets(console, sentences)
        console.print()


def show_banner(console: Console, banner: Banner) -> None:
    """What left the parties, what it can tell, what would lower it."""
    first, *others = banner.lines
    console.print(f"[bold]{escape(first)}[/]")
    for line in filter(None, others):
        console.print(escape(line))


def show_ledger(
    console: Console,
    entries: Sequence[Entry],
    roles: Sequence[str] = (),
    party: str | None = None,
    banner: Banner | None = None,
) -> None:
    """The ledger in words, role by role; banner: of the run, which knows its methods."""
    show_banner(console, banner or banner_of(entries))
    for saw in what_was_seen(entries, roles, party=party):
        console.print(f"\n{escape(saw.headline)}")
        bullets(console, saw.sentences())


def comparison_table(record: RunRecord, width: int) -> Table:
    """Every method over its seeds, the best one bold; width: of the terminal."""
    head, lines = record.comparison()
    figures = [line[1:] for line in (head, *lines)]
    widest = sum(max(map(len, column)) for column in zip(*figures, strict=True))
    if NARROWEST_TITLE + widest + 3 * len(head) > width:  # how far seeds differ goes below
        lines = [[line[0], *(each.replace(" ± ", "\n± ") for each in line[1:])] for line in lines]
    best = record.best()
    table = plain_table(head, [], right=1)
    # A title may be folded; a figure or a heading that lost a letter would be another one.
    for number, column in enumerate(table.columns):
        column.no_wrap = number > 0
        column.min_width = 7 if number else NARROWEST_TITLE
    for title, *rest in lines:
        style = "bold" if best is not None and title == best.title else None
        table.add_row(escape(title), *rest, style=style)
    return table
