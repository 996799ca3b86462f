"""`fedmend bench` finds the benchmarks in a checkout, and says where to get them otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def bench(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user would, in a process that has nothing but the package on its path."""
    return subprocess.run(
        [sys.executable, "-m", "fedmend", "bench"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_in_a_checkout_they_are_listed(tmp_path: Path) -> None:
    found = bench(ROOT / "src", tmp_path)
    assert found.returncode == 0
    assert found.stdout.startswith("split ")
    assert "flow " in found.stdout


def test_without_one_it_says_where_to_get_them(tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "fedmend").symlink_to(ROOT / "src" / "fedmend")
    found = bench(installed, tmp_path)
    assert found.returncode == 2
    said = " ".join(found.stderr.split())
    assert "not part of the installed package" in said
    assert "get a checkout of fedmend" in said
