"""InC and RISA over real processes: two labellers, and rows that one side alone knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.config import load_config

from . import conftest

pytestmark = [pytest.mark.xdist_group("machines"), pytest.mark.slow]

TOML = """
[[party]]
name = "bank"
data = "bank.csv"
id = "id"
label = "y"

[[party]]
name = "telco"
data = "telco.csv"
id = "id"
label = "y"

[align]
order = "seeded"

[[method]]
name = "inc"
epochs = 3
secure = "masks"

[[method]]
name = "risa"
label_party = "bank"
epochs = 3

[evaluate]
reference = "bank"

[flare]
port = {port}
wait_seconds = 60
"""


def write_labels(folder: Path) -> None:
    conftest_tables(folder)
    bank, telco = (pd.read_csv(folder / f"{name}.csv") for name in ("bank", "telco"))
    known = bank.set_index("id")["y"]
    said = telco["id"].map(known).fillna("no").to_numpy(dtype=object)
    wrong = np.random.default_rng(1).random(len(said)) < 0.2
    telco["y"] = np.where(wrong, np.where(said == "yes", "no", "yes"), said)
    telco.to_csv(folder / "telco.csv", index=False)


conftest_tables = conftest.write_tables


class Labellers(conftest.World):
    """The same machines, with a label column at both."""

    def config(self, **options):
        path = self.folder / "federation.toml"
        path.write_text(TOML.format(port=self.port))
        return load_config(path)


@pytest.fixture(scope="module")
def labellers(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(conftest, "write_tables", write_labels)
    made = Labellers(tmp_path_factory.mktemp("labellers"), probe=False)
    try:
        made.up()
        yield made
    finally:
        made.down()
        patch.undo()


def test_both_methods_give_the_numbers_of_one_process(labellers):
    over, here = labellers.run("over"), labellers.run_here("here")
    assert [run.title for run in over.methods] == ["InC", "RISA"]
    for ours, theirs in zip(over.methods, here.methods, strict=True):
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-6)
    assert over.methods[0].labelling["expertise"] == here.methods[0].labelling["expertise"]
