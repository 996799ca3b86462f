"""What `make lint` says of the house: that an import points upwards, or in a circle."""

from __future__ import annotations

import ast
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
    assert "audit" in house.imports(KNOWN["cli.auditing"], KNOWN)


def test_no_optimizer_of_torchs_own_whose_first_loads_a_compiler_for_seconds() -> None:
    for path in KNOWN.values():
        if "torch.optim" in (text := path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(text)):
                assert not (isinstance(node, ast.Attribute) and node.attr == "optim"), path
