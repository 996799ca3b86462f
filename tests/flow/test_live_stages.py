"""What `fedmend watch` shows of a run with every stage, while rows are completed and labels are
corrected."""

from __future__ import annotations

import pytest

from fedmend.flow import Listener
from fedmend.flow.live import LiveState, read_live
from fedmend.serve.watching import live_page

from .conftest import COMPLETE, CORRECT, EVALUATE, VFL


class Looker(Listener):
    """Reads what a watcher would, when a stage tells something."""

    def __init__(self, part):
        self.part, self.words = part, ""
        self.states: dict[str, LiveState] = {}
        self.pages: dict[str, str] = {}

    def stage(self, words):
        self.words = words
        if words.startswith(("Correcting", "Training")) and words not in self.pages:
            found = read_live(self.part)
            self.pages[words] = live_page(found, self.part, "1")

    def progress(self, title, done, total, facts=None):
        self.states.setdefault(self.words, read_live(self.part))

    def found(self, what, value):
        self.states[what] = read_live(self.part)


@pytest.mark.slow
def test_every_stage_shows_as_soon_as_it_is_there(world):
    looker = Looker(world.part)
    world.run(COMPLETE + CORRECT + VFL + EVALUATE, listener=looker)
    completing = looker.states["Completing rows that another party lacks"]
    assert completing.record.overview and completing.record.mending is None
    page = looker.pages["Correcting labels that contradict each other"]
    assert "Correcting labels that contradict each other" in page.partition("</p>")[0]
    assert 'id="mended"' in page and 'id="corrected"' not in page
    assert "The rows known to all grew from" in page
    after = looker.states["correction"].record.correction
    assert after["to"] == "bank" and after["changed"] > 0
    (training,) = [page for words, page in looker.pages.items() if words.startswith("Training")]
    assert 'id="corrected"' in training and 'id="advice"' in training
    assert not (world.run_folder / "live.json").exists()
