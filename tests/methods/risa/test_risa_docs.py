"""The page on RISA: its example runs, its parameters exist."""

import re
from pathlib import Path
from typing import Any

from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.risa import RISA

PAGE = (Path(__file__).parents[3] / "docs" / "risa.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(compile(block, "docs/risa.md", "exec"), scope)
    model, fed = scope["model"], scope["fed"]
    assert model.score(fed) > 0.7
    carried = model.contributions(fed).mean()
    assert carried["telco"] > 0.3
    assert (tmp_path / "model" / "model.json").is_file()


def test_the_page_names_every_parameter_of_its_own():
    own = set(RISA.parameter_names()) - set(SplitEstimator.parameter_names())
    assert not [name for name in own if f"`{name}" not in PAGE]
