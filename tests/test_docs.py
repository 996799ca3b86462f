"""The documentation says what the program does: commands, options, examples and exit codes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import typer

from fedmend import errors
from fedmend.cli import app
from fedmend.flow.config import load_config
from fedmend.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def commands():
    """Every command by its full name; those of a group as "party start"."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        below = getattr(command, "commands", None)
        found |= (
            {f"{name} {each}": one for each, one in below.items()} if below else {name: command}
        )
    return found


def section(text, title):
    start = text.index(f"## {title}\n")
    return text[start : text.find("\n## ", start + 1) % (len(text) + 1)]


def test_every_method_is_listed():
    text = section((DOCS / "cli.md").read_text(), "federation.toml")
    for name, record in METHODS.items():
        assert f"`{name}`" in text and f"`{record.class_name}`" in text, name


def test_every_command_and_option_is_described():
    text = (DOCS / "cli.md").read_text()
    for name, command in commands().items():
        part = section(text, f"fedmend {name.split()[0]}")
        assert f"fedmend {name}" in part
        for parameter in command.params:
            for option in [each for each in parameter.opts if each.startswith("--")]:
                assert option == "--help" or option in part, f"{name} {option}"


def test_no_command_or_option_is_invented():
    known = commands()
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        shown = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL))
        for line in re.findall(r"^fedmend ([a-z].*)$", shown, flags=re.MULTILINE):
            word, _, rest = line.partition(" ")
            name = word if word in known else " ".join(line.split()[:2])
            assert name in known, f"{page.name}: fedmend {name}"
            options = {option for parameter in known[name].params for option in parameter.opts}
            for used in re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest.split("#")[0]):
                assert used in options, f"{page.name}: fedmend {name} {used}"


def test_the_example_file_is_valid(tmp_path):
    text = (DOCS / "cli.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "federation.toml"
    path.write_text(example)
    config = load_config(path)
    assert config.method[0].name == "auto"
    assert config.method[1].params == {"embedding": 64, "epochs": 50}
    path.write_text(example.replace("seed = 0\n# seeds", "seeds"))
    assert load_config(path).run.all_seeds == [0, 1, 2]


def test_every_exit_code_is_listed():
    table = section((DOCS / "troubleshooting.md").read_text(), "Exit codes")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}
    raised = {
        each.exit_code
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.FedmendError)
    }
    assert listed == raised | {0, 130}


def test_links_and_pictures_of_the_readme_are_there():
    # Those of docs/ are checked by the strict build.
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_version_stands_in_one_place():
    from fedmend._version import __version__

    assert f'"{__version__}"' not in (ROOT / "pyproject.toml").read_text()
    assert __version__ in (ROOT / "CHANGELOG.md").read_text()
