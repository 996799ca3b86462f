"""The page on tables: its examples run, its table of data sets is complete."""

from __future__ import annotations

import re
from pathlib import Path

from fedmend.data import datasets

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        exec(compile(block, "docs/tables.md", "exec"), scope)
    printed = capsys.readouterr().out
    promised = re.findall(r"^print\(.*?\)\s+# (.*)$", PAGE, flags=re.MULTILINE)
    for line in promised:
        assert line.split(";")[0] in printed
    torn = scope["torn"]
    assert len(set(torn["clinic"].ids) & set(torn["laboratory"].ids)) == 91


def test_the_page_names_every_data_set():
    assert all(f"`{name}`" in PAGE for name in datasets.names())
