"""The recipes in deploy/: what they copy is there, and what they run is a command with its options.

The image itself is not built by any test.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import typer

from fedmend.cli import app

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "deploy"
UNITS = sorted((RECIPES / "systemd").glob("*.service"))


def require_command(words: list[str]) -> None:
    """As the command line reads them; nothing is done."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        name, *words = words
        assert name in command.commands, f"no command {name!r}"
        command = command.commands[name]
    command.make_context(str(command.name), list(words))


def test_the_container_recipe():
    text = (RECIPES / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    sources = [each for line in copied for each in line]
    assert all((ROOT / each).exists() for each in sources), sources
    kept = (RECIPES / "Dockerfile.dockerignore").read_text().splitlines()
    assert {each[1:] for each in kept if each.startswith("!")} == set(sources)
    assert "pip install --no-cache-dir --disable-pip-version-check -r requirements.lock" in text
    # without isolation and without dependencies: both come from the lock
    lock = (ROOT / "requirements.lock").read_text()
    assert "setuptools==" in lock and "nvflare==" in lock
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.search(r'ENTRYPOINT \["(\S+)"\]', text)[1] in project["scripts"]
    assert re.search(r"FROM python:3\.(\d+)-slim", text)[1] == "11" and "Python 3.11" in lock
    assert text.index("USER fedmend") < text.index("ENTRYPOINT")


def test_the_compose_file():
    services = yaml.safe_load((RECIPES / "compose.yaml").read_text())["services"]
    assert set(services) == {"coordinator", "bank", "telco", "telco-serve", "bank-serve"}
    for name, service in services.items():
        require_command(service["command"])
        build = service["build"]
        assert ((RECIPES / build["context"]) / build["dockerfile"]).is_file()
        ((_, inside),) = (each.split(":") for each in service["volumes"])
        if name != "coordinator":  # nobody has another one's kit
            assert inside == f"/federation/kits/{name.partition('-')[0]}"
    partner, port = services["bank-serve"]["command"][3].split("=")[1].split(":")
    assert services[partner]["command"][-1].endswith(f":{port}")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit(unit, tmp_path):
    text = unit.read_text()
    lines = re.findall(r"^Exec(?:Start|Stop)=\S+/bin/fedmend (.+)$", text, re.M)
    assert lines
    for line in lines:
        require_command(shlex.split(line.replace("%i", "bank")))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    # with a program and an instance that are there
    named = tmp_path / unit.name.replace("@", "@bank")
    named.write_text(text.replace("/opt/fedmend/bin/fedmend", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(named)], capture_output=True, text=True
    )
    assert done.returncode == 0 and named.name not in done.stderr, done.stderr
