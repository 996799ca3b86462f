"""Every command and every example of the documentation is run, or says why not and what tests it.

A page's blocks are run in their order, in one folder, as a reader would: `sh` line by line,
`python` in one scope. A how-to's `toml` block is its federation.toml. What is not run stands in
not_run.toml, with a reason and with the test that looks at it; an entry that no longer fits fails.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.cli import main
from fedmend.flow.config import load_config

ROOT = Path(__file__).parents[2]
NOT_RUN = tomllib.loads((Path(__file__).parent / "not_run.toml").read_text(encoding="utf-8"))
DOCS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if "decisions" not in path.parts and "api" not in path.parts
)
BESIDE = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    if path.name != "CHANGELOG.md"
)
PAGES = [*BESIDE, *DOCS]
SHELL, PYTHON, SHOWN = {"sh", "bash", "console", "shell"}, {"python", "py"}, {"text", "json"}
FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block without comments."""
        lines = [re.sub(r"\s+#.*$", "", line).strip() for line in self.text.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, found[2], found[3]) for found in FENCE.finditer(text)]


EVERY = [block for page in PAGES for block in blocks(page)]


def why_not(page: str, what: str) -> dict[str, str] | None:
    """The entry that excuses a command, or a Python block by its beginning."""
    for entry in NOT_RUN["entry"]:
        if page in entry["pages"] and any(what.startswith(each) for each in entry["begins"]):
            return dict(entry)
    return None


# ---------------------------------------------------------------- nothing slips through


def test_every_block_says_what_it_is() -> None:
    known = SHELL | PYTHON | SHOWN | {"toml", ""}
    for block in EVERY:
        assert block.language in known, f"{block.page}: ```{block.language}"
        if block.language == "":
            looks_like_a_command = re.match(r"\s*(\$|fedmend|make|pip|python\S* -m)\s", block.text)
            assert not looks_like_a_command, f"{block.page}: mark it as sh: {block.text[:60]!r}"


def whats(page: str, languages: set[str] | None = None) -> list[str]:
    """A page's commands and blocks, of these languages or of all."""
    return [
        what
        for block in blocks(page)
        if languages is None or block.language in languages
        for what in (block.commands if block.language in SHELL else [block.text])
    ]


def test_every_excuse_is_needed_and_names_a_test() -> None:
    folders = (ROOT / "tests", ROOT / "benchmarks" / "tests")
    tests = {path.name for folder in folders for path in folder.rglob("test_*.py")}
    for entry in NOT_RUN["entry"]:
        assert len(entry["reason"]) > 10
        assert set(entry.get("tested", [])) <= tests, entry
        found = {page: whats(page) for page in entry["pages"]}
        for page, there in found.items():
            used = any(what.startswith(tuple(entry["begins"])) for what in there)
            assert used, f"{page}: nothing begins with {entry['begins']}"
        for begin in entry["begins"]:
            used = any(what.startswith(begin) for there in found.values() for what in there)
            assert used, f"no page of {entry['pages']} has {begin!r}"


def test_most_of_it_is_run() -> None:
    """The excuses stay the exception on the pages for people who begin."""
    for page in PAGES:
        if page.startswith("docs/how-to/") and page != "docs/how-to/across-machines.md":
            assert all(why_not(page, what) is None for what in whats(page)), page


# ---------------------------------------------------------------- what the pages assume is there


def customers(folder: Path, *_: Path) -> dict[str, Any]:
    """The bank and the telco of the short examples: tables, new rows, and a federation of them."""
    import fedmend as fm

    rng = np.random.default_rng(7)
    n, ids = 150, np.arange(1000, 1150)
    income, calls = rng.normal(size=(2, n))
    frame = pd.DataFrame({"customer": ids, "income": income, "age": rng.integers(20, 70, n)})
    frame["default"] = np.where(income + calls > 0, "yes", "no")
    telco = pd.DataFrame({"customer": ids, "calls": calls, "minutes": rng.normal(size=n)})
    frame["tenure"], telco["tenure"] = rng.integers(0, 20, (2, n))
    tables = {"bank": frame.iloc[:110], "telco": telco.iloc[30:130]}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        table.to_parquet(folder / f"{name}.parquet", index=False)
    later = {"bank": frame.iloc[120:].drop(columns="default"), "telco": telco.iloc[120:]}
    for name, table in later.items():
        table.to_csv(folder / f"new_{name}.csv", index=False)
    later["bank"].to_csv(folder / "new.csv", index=False)
    frame.iloc[120:].to_csv(folder / "bank-test.csv", index=False)
    later["telco"].to_csv(folder / "telco-test.csv", index=False)
    kept = {
        name: fm.Table.from_frame(
            table.reset_index(drop=True), id="customer", label="default" if name == "bank" else None
        )
        for name, table in tables.items()
    }
    test = {
        "bank": fm.Table.from_frame(
            frame.iloc[120:].reset_index(drop=True), id="customer", label="default"
        ),
        "telco": fm.Table.from_frame(telco.iloc[120:].reset_index(drop=True), id="customer"),
    }
    fed = fm.Federation(*(fm.Party(name, kept[name], test=test[name]) for name in kept))
    fm.align(fed)
    fm.align(fed.on("test"))
    return {"fm": fm, "fed": fed}


QUICK = (
    '[[party]]\nname = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n\n'
    '[[party]]\nname = "telco"\ndata = "telco.csv"\nid = "customer"\n\n'
    '[[method]]\nname = "vfl"\nepochs = 2\n'
)


def with_a_run(folder: Path, kept: Path) -> dict[str, Any]:
    """The same, with a federation.toml and a finished run of it, which is made once."""
    scope = customers(folder)
    (folder / "federation.toml").write_text(QUICK)
    if kept.is_dir():
        shutil.copytree(kept, folder / "runs")
    else:
        assert command("fedmend run", scope) == 0
        shutil.copytree(folder / "runs", kept)
    return scope


def cities(*_: Path) -> dict[str, Any]:
    """A table with a column of cities, further rows of it, and one with gaps."""
    from fedmend import Table

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.normal(40, 9, 60), "city": rng.choice(["Rome", "Oslo"], 60)})
    gaps = frame.mask(rng.random(frame.shape) < 0.2)
    made = {name: Table.from_frame(each) for name, each in (("table", frame), ("gaps", gaps))}
    return {
        "table": made["table"],
        "other_table": Table.from_frame(frame[["city"]].iloc[:5]),
        "table_with_gaps": made["gaps"],
    }


PREPARED = {
    "README.md": customers,
    "docs/index.md": customers,
    "docs/alignment.md": customers,
    "docs/federation.md": customers,
    "docs/generators.md": cities,
    "docs/cli.md": with_a_run,
    "docs/predict.md": with_a_run,
    "docs/fedpsg-pum.md": customers,
    "docs/report.md": with_a_run,
    "docs/split-training.md": customers,
    "docs/boosting.md": customers,
    "docs/auto.md": customers,
    "docs/vfl-baselines.md": customers,
}
# Where the commands of a page are alternatives and not a story: what one of them made, the next
# must not find.
REPLACED = {"docs/cli.md": ("federation.toml", "mended.toml", "predictions", "runs/recipe")}


def undecided(folder: str) -> float:
    found = pd.read_csv(Path(folder) / "looks" / "predictions.csv")
    return float(found["uncertainty"].mean())


# What a page promises to leave behind, once all of it has run.
PROMISED: dict[str, Callable[[], bool]] = {
    "docs/how-to/absent-partner.md": lambda: (
        undecided("together") + 0.1 < undecided("without-sizes")
    ),
    "docs/how-to/annotators-disagree.md": lambda: Path("runs/federation/labels/inc/ada").is_dir(),
    "docs/how-to/missing-column-block.md": lambda: any(
        Path("runs/federation/completed/laboratory").rglob("*.csv")
    ),
    "docs/how-to/look-first.md": lambda: (
        [each.name for each in load_config("mended.toml").method] == ["auto"]
    ),
    "docs/how-to/same-columns-different-people.md": lambda: load_config("mended.toml").horizontal,
}


# ---------------------------------------------------------------- running


def command(line: str, scope: dict[str, Any]) -> int:
    words = shlex.split(line)
    assert words[0] == "fedmend", f"only fedmend's own commands are run: {line}"
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            main(words[1:])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    else:
        code = 0
    scope["printed"] = printed.getvalue()
    return code


def runnable(page: str) -> bool:
    return any(why_not(page, what) is None for what in whats(page, SHELL | PYTHON))


SHORT = {
    "epochs": 2, "pretrain_epochs": 1, "trees": 4, "rounds": 4, "folds": 2, "members": 2,
    "local_updates": 5, "repeats": 1, "looks": 3,
}  # fmt: skip


# Half of a data set would be too few rows for a learning curve or for scores.
WHOLE = {
    f"docs/how-to/{name}.md"
    for name in ("look-first", "same-columns-different-people", "scarce-labels")
}


@pytest.fixture
def in_a_hurry(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows, epochs, trees and repeats than a page says or leaves at their defaults."""
    from fedmend.audit import Audit
    from fedmend.audit.learner import bootstrap
    from fedmend.data import datasets
    from fedmend.generate.tabddpm import TabDDPM
    from fedmend.methods.auto.auto import Auto
    from fedmend.methods.completion.fedpsg_pum import FedPSGPUM
    from fedmend.methods.registry import METHODS
    from fedmend.preflight.curve import learning_curve

    less: list[tuple[Any, dict[str, Any]]] = [
        (FedPSGPUM.__init__, {"generator_params": {"epochs": 2}, "model": "linear"}),
        (learning_curve, {"sizes": 3, "repeats": 2}),
        (bootstrap, {"draws": 20}),
        (TabDDPM.__init__, {"steps": 100, "sampling_steps": 5}),
    ]
    quick = {"folds": 2, "settings": {"epochs": 2, "trees": 4, "members": 2}}

    def hurry(owner: type, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        begin = owner.__init__  # type: ignore[misc]

        @wraps(begin)
        def quickly(self: Any, *args: Any, **given: Any) -> None:
            begin(self, *args, **given | changes(given))

        monkeypatch.setattr(owner, "__init__", quickly)

    def shorter(given: dict[str, Any]) -> dict[str, Any]:
        return {name: min(given[name], SHORT[name]) for name in SHORT.keys() & given.keys()}

    hurry(Auto, lambda _: quick)
    for kind in {Audit, *(record.load() for record in METHODS.values())} - {Auto}:
        less.append((kind.__init__, SHORT))
        if "__init__" in vars(kind):
            hurry(kind, shorter)
    for function, defaults in less:
        for name in defaults.keys() & (function.__kwdefaults__ or {}).keys():
            monkeypatch.setitem(function.__kwdefaults__, name, defaults[name])
    monkeypatch.setattr("fedmend.preflight.curve._EPOCHS", 2)
    for module in ("context", "labels_from_bottom"):
        monkeypatch.setattr(f"fedmend.audit.{module}.BOOTSTRAP_DRAWS", 20)
    monkeypatch.setattr("fedmend.audit.learner.WIDTHS", (1.0,))
    monkeypatch.setattr("fedmend.audit.known_weights.STARTS", 1)
    monkeypatch.setattr("fedmend.audit.known_weights.STEPS", 10)
    if page not in WHOLE:
        load, apart = datasets.load, 4 if "fedmend audit --method" in "".join(whats(page)) else 2
        monkeypatch.setattr(
            datasets,
            "load",
            lambda name: (whole := load(name)).take(np.arange(0, len(whole), apart)),
        )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a finished run is kept for the pages that begin with one."""
    return tmp_path_factory.mktemp("kept") / "runs"


# Run every week: what they show, a page or a test that is run every time shows too.
WEEKLY = {
    "docs/generators.md", "docs/index.md", "docs/split-training.md",
    *(f"docs/how-to/{name}.md" for name in (
        "annotators-disagree", "few-people-in-common", "look-first", "lower-what-leaks",
        "missing-column-block", "same-columns-different-people", "scarce-labels",
    )),
}  # fmt: skip


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page in WEEKLY))
        for page in PAGES
        if runnable(page)
    ],
)
@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_page(
    page: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if page != "docs/report.md":
        # What a report shows is tested elsewhere; a page's runs need not draw theirs.
        monkeypatch.setattr("fedmend.report.page.render", lambda *_: "<!doctype html>")
    scope: dict[str, Any] = PREPARED[page](tmp_path, kept) if page in PREPARED else {}
    ran = 0
    for block in blocks(page):
        if block.language == "toml" and "how-to" in page:
            Path("federation.toml").write_text(block.text, encoding="utf-8")
            load_config("federation.toml")
        elif block.language in PYTHON and why_not(page, block.text) is None:
            exec(compile(block.text, page, "exec"), scope)
            ran += 1
        elif block.language in SHELL:
            for line in block.commands:
                if why_not(page, line) is not None:
                    continue
                clear_the_way(page, line)
                code = command(line, scope)
                assert code == 0, f"{line}\n{scope['printed']}\n{capsys.readouterr().err}"
                ran += 1
    assert ran
    assert PROMISED.get(page, lambda: True)(), page


def clear_the_way(page: str, line: str) -> None:
    """Remove what an alternative before this one has made, where this one makes it too."""
    for name in REPLACED.get(page, ()):
        if name == "federation.toml" and not line.startswith("fedmend init"):
            continue
        path = Path(name)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if page in REPLACED and not line.startswith("fedmend init"):
        Path("federation.toml").write_text(QUICK)
    if page in REPLACED and line == "fedmend run":
        shutil.rmtree("runs/federation")
