"""The house in figures: how heavy it is, and whether every import points downwards.

    python tools/house.py             # prints; ends with 1 if an import points up or in a circle

Imports inside functions count as those at the top of a file do. Those for the type checker alone
count as knowledge of a floor, but close no circle: nothing is loaded by them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedmend"
GROUND = {"errors", "_suggest", "_parameters", "_json", "_files", "_html", "_version"}
FAMILIES = (
    "methods.vertical",
    "methods.completion",
    "methods.risa",
    "methods.annotators",
    "methods.horizontal",
)
"""They know not each other, though they are on one floor."""
FLOORS: tuple[tuple[str, ...], ...] = (
    ("data",),
    ("learn",),
    ("federation",),
    ("secure",),
    ("split",),
    ("generate",),
    ("methods.contract", "methods.network", "methods.threads", "methods.boosting"),
    FAMILIES,
    ("methods",),
    ("preflight",),
    ("audit", "report"),
    ("flow",),
    ("deploy",),
    ("serve",),
    ("console",),
    ("cli",),
)
"""Ground floor first."""


def name_of(path: Path) -> str:
    """The module that a file is, without the package's own name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(path: Path, known: dict[str, Path], typed: bool = True) -> set[str]:
    """Every module of the package that a file imports, at its top or inside a function.

    typed: also those for the type checker alone.
    """
    found = set()
    for module, names in _imported(path)[0 if typed else 1]:
        whole = {f"{module}.{name}" for name in names} if names else {module}
        of_files = {name for name in whole if name.removeprefix("fedmend.") in known}
        found |= of_files if of_files == whole else of_files | {module}
    inside = {name.removeprefix("fedmend.") for name in found if name.startswith("fedmend.")}
    return {name for name in inside if name in known}


@cache
def _imported(path: Path) -> tuple[list[tuple[str, list[str]]], ...]:
    """Modules, and which names of each; all of them, and those that are not for types alone."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    ways = (body, [node for node in body if not _is_for_types(node)])
    return tuple(list(_names(_statements(each))) for each in ways)


def _names(nodes: Iterator[ast.stmt]) -> Iterator[tuple[str, list[str]]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, [alias.name for alias in node.names]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those inside functions and blocks too; imports are nowhere else."""
    for node in body:
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, inside, []))


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def floor_of(module: str) -> tuple[int, str]:
    """The floor, from 0 for what everything may use, and the room on it."""
    if module.split(".")[0] in GROUND:
        return 0, module
    best = (len(FLOORS) + 1, "")  # the public face and the door
    matched = 0
    for number, rooms in enumerate(FLOORS, 1):
        for room in rooms:
            if (module == room or module.startswith(f"{room}.")) and len(room) > matched:
                best, matched = (number, room), len(room)
    return best


def upward(graph: dict[str, set[str]]) -> Iterator[str]:
    """Imports of a higher floor, and of a neighbour among the families of methods."""
    for module, targets in graph.items():
        floor, room = floor_of(module)
        for target in sorted(targets):
            above, other = floor_of(target)
            if above > floor or (room != other and {room, other} <= {*FAMILIES}):
                yield f"{module} imports {target}"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Files that import each other in a loop: strongly connected parts (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def lines(*folders: str) -> int:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> int:
    known = modules()
    graph = {name: imports(path, known) for name, path in known.items()}
    loaded = {name: imports(path, known, typed=False) for name, path in known.items()}
    print(f"installed   {lines('src'):>7,} lines in {len(known)} modules")
    print(f"benchmarks  {lines('benchmarks/fedmend_bench'):>7,} lines")
    print(f"tests       {lines('tests', 'benchmarks/tests'):>7,} lines")
    for room in sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()):
        if room != "__pycache__":
            print(f"  {room:<12}{lines(f'src/fedmend/{room}'):>7,}")
    wrong = [f"up: {each}" for each in upward(graph)]
    wrong += [f"circle: {', '.join(each)}" for each in circles(loaded)]
    print("\n".join(wrong) or "every import points downwards, and none in a circle")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
