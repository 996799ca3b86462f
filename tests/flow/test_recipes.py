"""Every recipe from its name to a report, on the files of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmend.cli import demo
from fedmend.flow import CONFIG_FILE, execute, plan_of, read_manifest
from fedmend.flow.config import load_config
from fedmend.methods.recipes import RECIPES

STAGE_OF = {"correct": "correct", "complete": "complete", "method": "train"}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_runs(name, tmp_path) -> None:
    demo.write_project(tmp_path, Path("demo-run"), *demo.demo_tables())
    path = tmp_path / CONFIG_FILE
    text = path.read_text()
    tables = RECIPES[name].tables
    # The demo's parties and evaluation; stages and methods are the recipe's.
    head, tail = text[: text.index("[complete]")], text[text.index("[evaluate]") :]
    head = head.replace("seeds = [0, 1, 2]", "seed = 0")
    if "correct" not in tables:  # for a single labeller
        head = head[: head.index('[[party]]\nname = "laboratory"')]
    path.write_text(head + tail)
    record = execute(plan_of(load_config(path, recipe=name)), tmp_path / "run")
    stages = {each.stage for each in read_manifest(tmp_path / "run").entries}
    assert stages >= {STAGE_OF[table] for table in tables if table in STAGE_OF}
    assert record.recipe == name
    assert record.best().mean["auc"] > 0.9
