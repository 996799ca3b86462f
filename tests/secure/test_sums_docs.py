"""The pages on sums and on what every role learns: examples run, nothing is left out."""

import re
from pathlib import Path
from typing import get_args

import numpy as np

from fedmend.federation import KINDS
from fedmend.secure import inner_product, sums
from fedmend.secure.channel import SealingWorker
from fedmend.secure.sums import SumWorker

DOCS = Path(__file__).parents[2] / "docs"
SUMS = (DOCS / "sums.md").read_text(encoding="utf-8")
ROLES = (DOCS / "what-every-role-learns.md").read_text(encoding="utf-8")


def test_the_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", SUMS, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    scope = {}
    for block in blocks:
        exec(compile(block, "docs/sums.md", "exec"), scope)
    for line in blocks[0].splitlines():
        if line.startswith("secure_sum("):
            code, promised = line.split("#")
            assert repr(eval(code, scope)) == repr(eval(promised, {"array": np.array}))
    votes = scope["votes"]
    assert votes.shape == (3, 4) and votes.sum(axis=1).tolist() == [3, 3, 3]


def test_every_call_of_a_sum_is_in_the_ledger_table():
    ledger = SUMS[SUMS.index("## In the ledger") :]
    for method in SumWorker.exposures.keys() - SealingWorker.exposures.keys():
        assert f"`{method}`" in ledger


def test_every_kind_and_every_mode_has_its_place():
    for kind in KINDS:
        assert f"`{kind}`" in ROLES
    for mode in (*sums.MODES, *get_args(inner_product.Mode)):
        assert f"`{mode}`" in ROLES
