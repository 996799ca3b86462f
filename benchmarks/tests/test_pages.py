"""`fedmend bench pages`: committed tables are those of the files; every page says how it came."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedmend.errors import ConfigError
from fedmend_bench.pages import RESULTS, TABLES, run
from fedmend_bench.sage.curves import Curve, read_curves
from fedmend_bench.sage.pages import CIFAR

PAGES = sorted(RESULTS.glob("*.md"))


def test_committed_tables_are_made_of_the_files_of_results(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "results"
    shutil.copytree(RESULTS, folder)
    (tmp_path / "docs").mkdir()
    summary = RESULTS.parents[1] / "docs" / "benchmarks.md"
    shutil.copy(summary, tmp_path / "docs")
    rows = run(results=str(folder)).rows
    assert {row[""] for row in rows} == {"as it was"}, "run `fedmend bench pages`, and look"
    told = ", ".join(row["tables"] for row in rows).split(", ")
    assert set(told) == {*TABLES, "all"}
    for page in [*folder.glob("*.md"), tmp_path / "docs" / "benchmarks.md"]:
        committed = summary if page.parent.name == "docs" else RESULTS / page.name
        assert page.read_bytes() == committed.read_bytes()


def test_a_longer_curve_takes_the_place_of_a_shorter_one(tmp_path: Path) -> None:
    (tmp_path / "sage.md").write_text("a\n<!-- made: sage-runs -->\nold\n<!-- made: end -->\nb\n")
    head = (RESULTS / CIFAR).read_text().splitlines()[0]
    (tmp_path / CIFAR).write_text(f"{head}\nSAGE,1,0,1,0.2000,,,,,,1.00,1\n")
    entry = {"accuracy": 0.5, "accuracy_averaged": {"5": 0.6}, "seconds": 2.0}
    rounds = [entry | {"round": number} for number in (1, 2)]
    for method in ("SAGE", "FedDB"):
        curve = Curve(method, "cifar10", 1.0, 0, {}, rounds=rounds)
        curve.write(tmp_path / "runs" / f"{curve.name}.json")
    (row,) = run(results=str(tmp_path), curves=str(tmp_path / "runs")).rows
    assert row == {"page": "sage.md", "tables": "sage-runs", "": "changed"}
    assert [(each.method, len(each.rounds)) for each in read_curves(tmp_path / CIFAR)] == [
        ("FedDB", 2),
        ("SAGE", 2),
    ]
    text = (tmp_path / "sage.md").read_text()
    assert "old" not in text and text.startswith("a\n") and text.endswith("b\n")
    assert "| SAGE (one seed) | 1 | 0 | 2 | 50.00 | 50.00 (1) | 50.00 | – | 60.00 |" in text
    (tmp_path / "sage.md").write_text("<!-- made: sages -->\n<!-- made: end -->\n")
    with pytest.raises(ConfigError, match="there is no table 'sages'. Mend: one of"):
        run(results=str(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_its_command_its_seeds_and_whether_measurements_were_kept(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "`fedmend bench " in text or "\nfedmend bench " in text
    assert re.search(r"\bseeds?\b", text), "say which seeds, or that none is drawn"
    made = "<!-- made: " in text or "<!-- tables: begin -->" in text
    assert made or "measurements were not kept" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_section_with_a_table_says_its_seeds_and_a_page_its_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for section in re.split(r"^(?=##? )", text, flags=re.MULTILINE):
        if "\n|---" in section:
            title = section.partition("\n")[0]
            assert re.search(r"\b(seeds?|draws?|drawn)\b", section), f"{title}: say which seeds"
    assert re.search(r"\b(cores?|x86[-_]64|GPU|H200|BLAS thread)\b", text), "say which machine"
    if re.search(r"^One seed", text, re.MULTILINE):
        assert text.partition("\n")[0].endswith("(one seed)"), "its title says so"


FEW = re.compile(r"\b(one|two|single) (seeds?|runs?)\b|\bseed \d+\b", re.IGNORECASE)
MANY = re.compile(r"\b(seeds|splits)\b")
SAID = re.compile(r"\b(one|two) (seeds?|runs?)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_table_of_one_seed_says_so_in_its_title(page: Path) -> None:
    """A title is that of the page or section, or what begins the paragraph above in bold."""
    titles, lead = ["", ""], ""
    for block in page.read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("#"):
            head, _, block = block.partition("\n")
            titles = [head, ""] if head.startswith("# ") else [titles[0], head]
        if block.startswith("|"):
            bold = re.match(r"\*+([^*]+)", lead)
            title = " ".join([*titles, bold[1] if bold else ""])
            assert not FEW.search(lead) or MANY.search(lead) or SAID.search(title), lead[:200]
        elif block and not block.startswith("<!--"):
            lead = block


def test_files_of_results_are_all_used() -> None:
    used = {file for file, _ in TABLES.values()} | {"tabular.jsonl"}
    assert {path.name for path in RESULTS.iterdir() if path.suffix != ".md"} == used
    for name in used:
        if name.endswith(".jsonl"):
            lines = (RESULTS / name).read_text(encoding="utf-8").splitlines()
            assert all({"cell", "found"} == set(json.loads(line)) for line in lines)


# ---------------------------------------------------------------- what the docs claim

ROOT = RESULTS.parents[1]
DOCS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs").glob("how-to/*.md"),
]
NO_FIGURES = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|\b3\.1\d\b|\*94% on CIFAR.*?\*", re.DOTALL
)
FIGURE = re.compile(r"(?<![\w.,])(?:\d[\d,]*)?\.\d+(?!\w|[.,]\d)")


def figures(text: str) -> set[str]:
    return {each.replace(",", "") for each in FIGURE.findall(NO_FIGURES.sub(" ", text))}


@pytest.fixture(scope="module")
def measured() -> set[tuple[int, float]]:
    """Every figure of the results, rounded to as many digits as a summary may have."""
    known = set[str]().union(*(figures(page.read_text(encoding="utf-8")) for page in PAGES))
    shares = [each for curve in read_curves(RESULTS / CIFAR) for each in curve.rounds]
    known |= {f"{100 * each['accuracy']:.2f}" for each in shares}
    return {
        (digits, round(float(each), digits))
        for each in known
        for digits in range(1, len(each.partition(".")[2]) + 1)
    }


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_figures_of_the_docs_stand_on_pages_of_results(page: Path, measured) -> None:
    """Figures with a point, which settings mostly have not: whoever adds one measures it."""
    told = {(len(each.partition(".")[2]), float(each)) for each in figures(page.read_text("utf-8"))}
    assert not told - measured
