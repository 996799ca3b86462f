"""The wheel: what `pip install fedmend` brings is the whole package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent


def test_every_file_beside_the_code_is_declared():
    declared = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = HERE / "src" / "fedmend"
    patterns = declared["package-data"]["fedmend"]
    packed = {path for each in patterns for path in package.glob(each) if path.is_file()}
    code = (".py", ".pyc")
    assert packed == {
        path for path in package.rglob("*") if path.is_file() and path.suffix not in code
    }


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_clean_clone_is_built_and_installed_where_nothing_is(workshop):
    """Sources and wheel by `python -m build`, `pip install` into an empty environment, a run."""
    folder = workshop.folder
    workshop.write()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def do(*words, where=folder):
        done = subprocess.run(
            [*map(str, words)], cwd=where, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    do("git", "clone", "--quiet", "--no-hardlinks", HERE, "clone")
    venv.create(folder / "bare", with_pip=True)
    bare, clone = folder / "bare" / "bin", folder / "clone"
    do(bare / "pip", "install", "--quiet", "build")
    do(bare / "python", "-m", "build", where=clone)
    (wheel,) = clone.glob("dist/*.whl")
    assert len([*clone.glob("dist/*.tar.gz")]) == 1
    do(bare / "pip", "install", "--quiet", wheel, "--constraint", clone / "requirements.lock")
    shutil.rmtree(clone)
    do(bare / "pip", "check")
    (version,) = do(bare / "fedmend", "--version").splitlines()
    assert version.split()[-1] in wheel.name
    assert "serve" in do(bare / "fedmend", "--help")
    do(bare / "fedmend", "run", workshop.config)
    assert (workshop.run / "report.html").stat().st_size > 10_000
    told = do(bare / "python", "-c", "import fedmend; print(fedmend.__file__)")
    assert told.startswith(str(folder / "bare"))
