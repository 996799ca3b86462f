"""The pages and files for contributors: what they name is there, and they agree with each other."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (ROOT, ROOT / "src" / "fedmend", ROOT / "src", ROOT / "src" / "fedmend" / "federation")


@pytest.fixture(scope="module")
def beside() -> Any:
    spec = importlib.util.spec_from_file_location("beside_docs", ROOT / "tools" / "beside_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md"])
def test_every_file_that_is_named_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md|toml|yml|yaml|lock)|/))`", text)
    made = {"federation.toml", "site/", "psi.py", "contract.py", "workers.py", "recipes.py"}
    assert len(named) > 5
    for path in set(named) - made:
        found = [place for place in PLACES if (place / path).exists()]
        assert found or path == "generate/NAME.py", f"{page}: {path}"


def test_every_room_is_on_the_plan() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in (ROOT / "src" / "fedmend").iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert f"`{path.name}/" in text, path.name


def test_benchmarks_and_their_results_are_listed() -> None:
    from fedmend_bench.harness import REGISTRY

    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    summary = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name in REGISTRY:
        assert f"`{name}`" in text, name
        if name in ("datasets", "pages"):  # nothing is measured
            continue
        page = ROOT / "benchmarks" / "results" / f"{name}.md"
        assert "fedmend bench " in page.read_text(encoding="utf-8"), name
        assert f"results/{name}.md" in text and f"results/{name}.md" in summary, name


def test_no_page_is_long() -> None:
    """Reference pages apart, what takes longer than ten minutes to read is not read."""
    reference = {"cli.md", "troubleshooting.md"}
    for page in (ROOT / "docs").rglob("*.md"):
        words = re.findall(r"[^\s|]*\w[^\s|]*", page.read_text(encoding="utf-8"))
        assert page.name in reference or len(words) <= 1_500, f"{page.name}: {len(words):,}"


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs/benchmarks.md", "../benchmarks/results/sage.md#digits", "results/sage.md#digits"),
        ("docs/how-to/look-first.md", "../../benchmarks/results/flow.md", "../results/flow.md"),
        ("benchmarks/results/leaks.md", "../../docs/audit.md", "../audit.md"),
        ("benchmarks/README.md", "../docs/alignment.md", "../alignment.md"),
        ("ARCHITECTURE.md", "CONTRIBUTING.md", "contributing.md"),
        ("docs/index.md", "cli.md#exit-codes", "cli.md#exit-codes"),
        ("docs/index.md", "api/index.md", "api/index.md"),
        ("docs/index.md", "https://example.org/x.md", "https://example.org/x.md"),
    ],
)
def test_links_work_in_the_repository_and_on_the_site(
    beside: Any, page: str, link: str, expected: str
) -> None:
    assert beside.for_site(f"see [it]({link}), `[x]({link})`", page) == (
        f"see [it]({expected}), `[x]({link})`"
    )


def test_the_linter_of_the_hooks_is_the_one_of_the_lock() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    (rev,) = re.findall(r"ruff-pre-commit\n +rev: v(\S+)", hooks)
    assert f"ruff=={rev}" in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_ci_runs_what_is_promised() -> None:
    flow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [
        each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each
    ]
    (listed,) = re.findall(r"python: \[(.*)\]", flow)
    assert re.findall(r"[\d.]+", listed) == promised
    assert "ubuntu-24.04-arm" in flow and "run: make test" in flow
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    (checked,) = re.findall(r"^test: setup .*\n((?:\t.*\n)+)", make, flags=re.MULTILINE)
    assert "tools/house.py" in make and "types lint docs" in checked and "$(PYTEST)" in checked
