"""The page on InC: its parameters exist."""

import re
from pathlib import Path

from fedmend.methods.annotators.inc import InC
from fedmend.methods.network import SplitEstimator

PAGE = (Path(__file__).parents[3] / "docs" / "inc.md").read_text(encoding="utf-8")


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
