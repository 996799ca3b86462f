"""The house: imports point downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import fedmend

HOUSE = Path(fedmend.__file__).parent
FLOORS = ["data", "federation", "secure", "learn", "generate", "methods", "preflight"]
UPPER = {"report", "bench", "audit"}
GROUND = {"errors", "_suggest", "_parameters", "_json", "_version"}


def floor_of(module: str) -> int:
    """0 for what everything may use, then the floors, then what people look at, then the door."""
    room = module.split(".")[1] if "." in module else ""
    if room in GROUND:
        return 0
    if room in FLOORS:
        return 1 + FLOORS.index(room)
    return 1 + len(FLOORS) + (room not in UPPER)


def imports(path: Path) -> set[str]:
    """Every fedmend module a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "fedmend" and "." in name}


def test_imports_point_downwards() -> None:
    upwards = []
    for path in sorted(HOUSE.rglob("*.py")):
        module = ".".join(["fedmend", *path.relative_to(HOUSE).with_suffix("").parts])
        if path.parent == HOUSE and path.name == "__init__.py":
            continue  # the public face names every room
        for target in imports(path):
            known = (HOUSE / Path(*target.split(".")[1:2])).exists() or (
                HOUSE / f"{target.split('.')[1]}.py"
            ).exists()
            if known and floor_of(target) > floor_of(module):
                upwards.append(f"{module} imports {target}")
    assert not upwards


def test_the_check_would_notice() -> None:
    assert floor_of("fedmend.data.table") < floor_of("fedmend.methods.network")
    assert floor_of("fedmend.report.page") < floor_of("fedmend.cli")
    assert "fedmend.data.table" in imports(HOUSE / "federation" / "site.py")
