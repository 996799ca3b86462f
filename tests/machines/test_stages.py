"""All stages of a run over real processes: complete, correct, train, and going on with it."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.flow import Listener, read_manifest

from .conftest import TWO_LABELLERS, running
from .test_methods import write_labels

pytestmark = pytest.mark.slow

TOML = (
    TWO_LABELLERS
    + """
[align]
order = "seeded"

[complete]
model = "linear"
correlation_mode = "dealer"
tau = 0.2
also_unmended = false
generator_params = {{epochs = 1}}

[correct]
epochs = 4
secure = "masks"

[[method]]
name = "vfl"
epochs = 2

[[method]]
name = "auto"
candidates = ["local", "vfl"]
folds = 2
epochs = 2

[evaluate]
reference = "bank"
metrics = ["auc"]

[flare]
port = {port}
wait_seconds = 60
"""
)
STAGES = ["align", "diagnose", "complete", "correct", "train", "evaluate", "report"]


class Hearing(Listener):
    def __init__(self, stop_after: str = "") -> None:
        self.stop_after, self.made = stop_after, []

    def done(self, entry):
        if not entry.reused:
            self.made.append(entry.stage)
            if entry.stage == self.stop_after:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("stages"), tables=write_labels, toml=TOML, probe=False
    ) as made:
        yield made


@pytest.fixture(scope="module")
def resumed(machines):
    """A run that was stopped and went on: what was made then, and its record."""
    with pytest.raises(KeyboardInterrupt):
        machines.run("over", listener=Hearing(stop_after="correct"))
    heard = Hearing()
    return heard, machines.run("over", resume=True, listener=heard)


def test_every_stage_over_machines_stopped_and_resumed(machines, resumed):
    heard, over = resumed
    assert set(heard.made) == {"train", "evaluate"}
    here = machines.run_here("here")
    assert [run.title for run in over.methods] == [run.title for run in here.methods]
    tried, known = ([each["name"] for each in run.choice["candidates"]] for run in (over, here))
    assert tried == known == ["local", "vfl", "vfl"], "the last one on completed rows"
    for corrected in (over.correction, here.correction):
        assert corrected["changed"] == 0 < corrected["rows"], "the bank's labels are the true ones"
    for ours, theirs in zip(over.methods, here.methods, strict=True):
        # Completed cells come from fixed point with fresh masks: a few pairs of rows may swap.
        assert ours.scores == pytest.approx(theirs.scores, abs=0.01)
    manifest = read_manifest(machines.folder / "over")
    assert manifest.engine == "flare"
    assert list(dict.fromkeys(each.stage for each in manifest.entries)) == STAGES
    assert {"stages/align@bank", "stages/align@telco"} <= set(manifest.find("align").outputs)
    assert not list((machines.folder / "over" / "stages").rglob("bank"))


def test_a_finished_run_goes_on_with_other_settings(machines, resumed, monkeypatch):
    other = TOML.replace('["auc"]', '["auc", "accuracy"]')
    monkeypatch.setattr(machines, "toml", other)
    heard = Hearing()
    record = machines.run("over", resume=True, listener=heard)
    assert set(heard.made) == {"evaluate"}
    assert all(list(run.scores) == ["auc", "accuracy"] for run in record.methods)
