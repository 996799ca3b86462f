"""The house: every import points downwards, and none in a circle."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "house.py"
_spec = importlib.util.spec_from_file_location("house", TOOL)
assert _spec is not None
assert _spec.loader is not None
house = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(house)

KNOWN = house.modules()
GRAPH = {name: house.imports(path, KNOWN) for name, path in KNOWN.items()}
LOADED = {name: house.imports(path, KNOWN, typed=False) for name, path in KNOWN.items()}


def test_imports_point_downwards() -> None:
    assert not list(house.upward(GRAPH))


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert not house.circles(LOADED)


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("data.table", "federation.site"),
        ("split.training", "methods.network"),
        ("methods.risa.risa", "methods.vertical.vfl"),
        ("flow.plan", "cli.terminal"),
        ("methods.network", "methods.risa.risa"),
    ],
)
def test_the_check_would_notice(module: str, target: str) -> None:
    assert list(house.upward({module: {target}})) == [f"{module} imports {target}"]
    assert house.circles({module: {target}, target: {module}}) == [sorted([module, target])]


def test_imports_inside_functions_count() -> None:
    assert "audit" in GRAPH["cli.auditing"]
