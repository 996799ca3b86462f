"""A federation on disk with every tear: few people in common, and annotators who disagree."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.flow import Listener, execute, plan_of, read_manifest
from fedmend.flow.config import load_config

from ..conftest import empty_reports

RUN = "[run]\nseeds = [0, 1]\n"
COMPLETE = (
    '[complete]\nmodel = "linear"\ncorrelation_mode = "dealer"\ntau = 0.2\n'
    "generator_params = {epochs = 1}\nalso_unmended = false\n"
)
CORRECT = '[correct]\nepochs = 4\nlr = 0.02\nsecure = "masks"\n'
VFL = '[[method]]\nname = "vfl"\nepochs = 3\npatience = 3\n'
EVALUATE = '[evaluate]\nreference = "bank"\nmetrics = ["auc", "accuracy"]\n'
ALL = RUN + COMPLETE + CORRECT + VFL + EVALUATE


class Stopping(Listener):
    """Hears a run, and stops it like a user would: in a stage, or as soon as one is done."""

    def __init__(self, inside: str = "", after: str = "") -> None:
        self.inside, self.after = inside, after
        self.words: list[str] = []
        self.bars: set[str] = set()
        self.made: list[tuple[str, str]] = []
        self.reused: list[tuple[str, str]] = []

    def stage(self, words):
        self.words.append(words)

    def progress(self, title, done, total, facts=None):
        self.bars.add(title)
        if self.inside and self.words[-1].startswith(self.inside) and done >= 2:
            raise KeyboardInterrupt

    def done(self, entry):
        (self.reused if entry.reused else self.made).append((entry.stage, entry.unit))
        if entry.stage == self.after and not entry.reused:
            raise KeyboardInterrupt

    def made_stages(self) -> list[str]:
        return list(dict.fromkeys(stage for stage, _ in self.made))


class World:
    """The workshop with a second annotator, and its runs."""

    def __init__(self, workshop) -> None:
        self.workshop = workshop
        self.folder, self.config, self.run_folder = workshop.folder, workshop.config, workshop.run
        rng = np.random.default_rng(3)
        truth = workshop.bank.set_index("customer")["default"]
        wrong = rng.random(len(truth)) < 0.3
        said = np.where(wrong, np.where(truth == "yes", "no", "yes"), truth)
        workshop.telco["y"] = pd.Series(said, truth.index).reindex(workshop.telco["customer"]).array

    def write(self, text: str) -> None:
        self.workshop.write(text, method="")
        self.workshop.edit(('"telco.csv"', '"telco.csv"\nlabel = "y"'))

    def run(self, text: str | None = None, **options):
        if text is not None:
            self.write(text)
        return execute(plan_of(load_config(self.config)), self.run_folder, **options)

    @property
    def manifest(self):
        return read_manifest(self.run_folder)

    @property
    def part(self):
        return self.run_folder.with_name("federation.part")

    def entries_so_far(self):
        return read_manifest(self.part).entries if self.part.is_dir() else []


@pytest.fixture
def world(workshop):
    return World(workshop)


@pytest.fixture(autouse=True)
def _quick(bare_report):
    """All runs here."""


@pytest.fixture(scope="session")
def finished(make_workshop, tmp_path_factory):
    """A whole run that nobody stopped: its world and its record. Not to be changed."""
    world = World(make_workshop(tmp_path_factory.mktemp("finished")))
    with pytest.MonkeyPatch.context() as patch:
        empty_reports(patch)
        return world, world.run(ALL)
