"""The wheel: what `pip install fedmend` brings is the whole package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent.parent


def test_the_wheel_holds_what_the_package_reads(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HERE / name, source)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(HERE / "src", source / "src", ignore=skipped)
    told = "from setuptools import build_meta as b; b.build_wheel('..')"
    subprocess.run([sys.executable, "-c", told], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("fedmend/")}
        archive.extractall(tmp_path / "installed")
    package = source / "src" / "fedmend"
    there = {
        f"fedmend/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()
    }
    assert packed == there
    # By itself: neither the checkout nor its benchmarks are on the path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n" + (
        "import fedmend; print(fedmend.__file__)\nfrom fedmend.cli import main; main(['init'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(str(tmp_path / "installed"))
    assert (tmp_path / "federation.toml").is_file()
