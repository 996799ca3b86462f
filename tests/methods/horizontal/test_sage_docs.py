"""The example of docs/sage.md runs as it stands, and the file it shows is valid."""

import re
from pathlib import Path

import pytest

from fedmend.flow.config import load_config
from fedmend.methods.horizontal import baselines
from fedmend.methods.horizontal.length import UNJUDGED
from fedmend.methods.horizontal.sage import SAGE

PAGE = (Path(__file__).parents[3] / "docs" / "sage.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_converges():
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    scope: dict = {}
    exec(example, scope)
    model, fed = scope["model"], scope["fed"]
    assert model.score(fed.on("test")) > 0.8
    assert len(model.history_) == UNJUDGED, "ten labels a class are too few to set some aside"


def test_the_file_is_valid(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "federation.toml"
    path.write_text(example, encoding="utf-8")
    config = load_config(path)
    assert config.horizontal
    assert config.method[0].params == {"rounds": 50}


def test_parameters_and_classes_are_those_of_the_code():
    table = PAGE[PAGE.index("| parameter | default") : PAGE.index("## Baselines")]
    named = re.findall(
        r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    )
    assert set(named) <= set(SAGE().get_params())
    listed = PAGE[PAGE.index("| class |") : PAGE.index("SAGE as a plug-in")]
    classes = re.findall(r"^\| `(\w+)", listed, flags=re.MULTILINE)
    assert len(classes) >= 8
    for name in classes:
        assert hasattr(baselines, name), name
