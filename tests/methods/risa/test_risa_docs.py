"""The page on RISA: its parameters exist."""

from pathlib import Path

from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.risa import RISA

PAGE = (Path(__file__).parents[3] / "docs" / "risa.md").read_text(encoding="utf-8")


def test_the_page_names_every_parameter_of_its_own():
    own = set(RISA.parameter_names()) - set(SplitEstimator.parameter_names())
    assert not [name for name in own if f"`{name}" not in PAGE]
