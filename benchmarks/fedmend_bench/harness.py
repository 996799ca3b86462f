"""The registry of benchmarks, and the one form in which all of them give their results.

Needs the standard library only until something is printed (rich) or a device is named
(torch), so that a benchmark runs on a bare accelerator machine too.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import inspect
import json
import os
import platform
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedmend._json import plain, write_json
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "REGISTRY",
    "Bar",
    "BenchResult",
    "available",
    "device_name",
    "paper_rows",
    "run_bench",
    "show",
]

REGISTRY: dict[str, str] = {
    "split": "fedmend_bench.foundations.split",
    "psi": "fedmend_bench.foundations.psi",
    "engine": "fedmend_bench.foundations.engine",
    "serve": "fedmend_bench.foundations.serve",
    "correlation": "fedmend_bench.foundations.correlation",
    "sums": "fedmend_bench.foundations.sums",
    "leaks": "fedmend_bench.foundations.leaks",
    "generators": "fedmend_bench.generators.table",
    "inc": "fedmend_bench.inc.table",
    "fedpsg-pum": "fedmend_bench.completion.table",
    "sage": "fedmend_bench.sage.table",
    "sage-speed": "fedmend_bench.sage.speed",
    "sage-tables": "fedmend_bench.sage.tables",
    "risa": "fedmend_bench.risa.table",
    "tabular": "fedmend_bench.tabular.table",
    "flow": "fedmend_bench.flow.table",
    "preflight": "fedmend_bench.flow.preflight",
    "one-sided": "fedmend_bench.flow.one_sided",
    "pages": "fedmend_bench.pages",
    "datasets": "fedmend_bench.datasets",
}


WIDE = 220
KEPT = Path("runs") / "bench"

# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Bar:
    """One promise, what was measured, and whether it holds.

    >>> Bar.at_most("wall time, 4 parties", 1.12, 1.25)
    Bar(name='wall time, 4 parties', value=1.12, target='<= 1.25', holds=True)
    """

    name: str
    value: float | int | str | None
    target: float | int | str
    holds: bool

    @classmethod
    def at_most(cls, name: str, value: float, limit: float) -> Bar:
        """A bar that holds when the value does not exceed the limit."""
        return cls(name, value, f"<= {limit:g}", bool(value <= limit))

    @classmethod
    def at_least(cls, name: str, value: float, limit: float) -> Bar:
        """A bar that holds when the value reaches the limit."""
        return cls(name, value, f">= {limit:g}", bool(value >= limit))


@dataclass
class BenchResult:
    """What a benchmark measured: rows for the table, bars for the promises."""

    bench: str
    rows: list[dict[str, Any]]
    bars: list[Bar] = field(default_factory=list)
    command: str = ""
    device: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; numpy scalars become Python numbers, NaN and inf become None."""
        return dict(plain(asdict(self)))

    def write_json(self, path: str | Path) -> Path:
        """Write the JSON form whole or not at all."""
        return write_json(path, self.to_dict())


def paper_rows(name: str) -> list[dict[str, str]]:
    """A table of a paper, as it stands in ``paper/``."""
    path = resources.files("fedmend_bench") / "paper" / f"{name}.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


# ---------------------------------------------------------------- registry


def available() -> dict[str, str]:
    """Benchmarks whose module is there, with their one-line help; nothing is imported."""
    found = {}
    for name, module in REGISTRY.items():
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            found[name] = _help_line(Path(spec.origin))
    return found


def _help_line(source: Path) -> str:
    """The constant HELP of a module, read from its source: importing would load torch."""
    found = re.search(r'^HELP(?:: str)? = "(.*)"$', source.read_text(encoding="utf-8"), re.M)
    return found[1] if found else ""


def run_bench(
    name: str,
    *,
    quick: bool = False,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> BenchResult:
    """Import a benchmark, check the options against its ``run``, and run it.

    resume: every measurement is kept in a folder of the benchmark's own below `KEPT`, and what is
    there is not measured again. Of a finished one that gives the table again, in seconds.
    """
    known = available()
    if name not in known:
        raise ConfigError(f"there is no benchmark {name!r}: {did_you_mean(name, known)}")
    module = importlib.import_module(REGISTRY[name])
    options = dict(options or {})
    if resume:
        if "folder" not in inspect.signature(module.run).parameters:
            raise ConfigError(
                f"benchmark {name!r} keeps nothing to go on from. Mend: run it without --resume"
            )
        options.setdefault("folder", str(KEPT / (f"{name}-quick" if quick else name)))
    _check_options(name, module.run, options)
    with _ended_by_sigterm():
        result: BenchResult = module.run(quick=quick, **options)
    result.command = command or result.command or command_line(name, quick, options)
    result.device = result.device or device_name(options.get("device"))
    return result


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as an exception, once: what it started is stopped on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_options(name: str, run: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(run).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    known = [each for each in parameters if each != "quick"]
    problems = [
        f"benchmark {name!r} has no option {key!r} (value {value!r}): {did_you_mean(key, known)}"
        for key, value in options.items()
        if key not in known
    ]
    if problems:
        raise ConfigError(problems)


def command_line(name: str, quick: bool, options: Mapping[str, Any]) -> str:
    """The command that gives this result again."""
    words = ["fedmend", "bench", name]
    if quick:
        words.append("--quick")
    for key, value in options.items():
        words += ["-o", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def device_name(device: Any = None) -> str:
    """The device in words, such as ``cpu (aarch64, 2 cores)`` or the accelerator's own name."""
    if device is not None and str(device).startswith("cuda"):
        import torch

        return f"{torch.cuda.get_device_name(device)} (torch {torch.__version__})"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"cpu ({platform.machine()}, {cores} cores)"


# ---------------------------------------------------------------- terminal


def show(result: BenchResult, console: Console | None = None) -> None:
    """Print the table and the bars."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if console is None:
        # A file or a pipe has no width of its own; a table squeezed into 80 columns is unreadable.
        console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    columns = list(dict.fromkeys(key for row in result.rows for key in row))
    table = Table(
        title=f"{result.bench} · {result.device}", box=box.SIMPLE_HEAD, title_style="bold"
    )
    for column in columns:
        numeric = all(_is_number(row.get(column)) for row in result.rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in result.rows:
        table.add_row(*(escape(shown(row.get(column))) for column in columns))
    console.print(table)
    if result.bars:
        bars = Table(
            "promise", "measured", "target", "holds",
            title="bars", box=box.SIMPLE_HEAD, title_style="bold",
        )  # fmt: skip
        for numbers in bars.columns[1:3]:
            numbers.justify = "right"
        for bar in result.bars:
            verdict = "[green]yes[/]" if bar.holds else "[red]no[/]"
            bars.add_row(bar.name, escape(shown(bar.value)), escape(shown(bar.target)), verdict)
        console.print(bars)
    console.print(f"[dim]{result.command}[/]", highlight=False)


def _is_number(value: Any) -> bool:
    value = plain(value)
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def shown(value: Any) -> str:
    """A value as a table shows it."""
    value = plain(value)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return str(value)
