"""The page on InC: its examples run, its parameters exist."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.methods.annotators.inc import InC
from fedmend.methods.network import SplitEstimator

PAGE = (Path(__file__).parents[3] / "docs" / "inc.md").read_text(encoding="utf-8")


def test_the_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/inc.md", "exec"), scope)
    model, fed = scope["model"], scope["fed"]
    site = fed.engine.site("clinic")
    truth = scope["truth"][site.tables["train"].ids[site.alignments["train"].aligned]]
    names = np.array(["flu", "cold", "cough"], object)
    assert (model.corrected_ == names[truth]).mean() > 0.9
    told = model.review_labels()
    assert told["clinic"] < told["lab"] < told["insurer"]
    assert model.expertise_["insurer"].shape == (3, 3)


def test_every_parameter_named_is_one():
    table = PAGE[PAGE.index("| parameter |") : PAGE.index("**How long.**")]
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert len(named) > 8
    assert named <= set(InC.parameter_names())
    own = {"batch_size", "label_dp", "epochs", "patience"}
    shared = set(SplitEstimator.parameter_names()) - own | {"posterior"}
    assert set(InC.parameter_names()) - shared == named
