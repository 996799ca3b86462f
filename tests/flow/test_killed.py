"""The process of a run killed by the system, again and again: it ends as if never killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fedmend.report.record import RunRecord

from .conftest import ALL, World

pytestmark = pytest.mark.slow
FEW_MODES = False  # processes of their own have as many as users


def stages_done(part) -> list[str]:
    try:
        stored = json.loads((part / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [each["stage"] for each in stored["stages"]]


def run_until(world, stage: str, *options: str) -> int | None:
    """Start a run and kill it once a stage is done; its exit code if it ends before."""
    command = [sys.executable, "-m", "fedmend", "run", str(world.config), *options]
    told = world.folder / "told.txt"
    deadline = time.monotonic() + 300
    with (
        told.open("w") as stream,
        subprocess.Popen(command, stdout=stream, stderr=stream) as process,
    ):
        while process.poll() is None:
            assert time.monotonic() < deadline
            if stage in stages_done(world.part):
                process.kill()
                process.wait()
                return None
            time.sleep(0.01)
    assert process.returncode == 0, told.read_text()
    return process.returncode


def test_killed_again_and_again(world, make_workshop, tmp_path_factory, whole_training) -> None:
    undisturbed = World(make_workshop(tmp_path_factory.mktemp("undisturbed")))
    expected = undisturbed.run(ALL)
    world.write(ALL)
    killed = 0
    options: list[str] = []
    for stage in ("align", "complete", "correct", "train", "evaluate"):
        if run_until(world, stage, *options) is None:
            killed += 1
            assert not world.run_folder.exists()
        options = ["--resume"]
    run_until(world, "never", *options)
    assert killed >= 4
    record = RunRecord.load(world.run_folder)
    for ours, theirs in zip(record.methods, expected.methods, strict=True):
        assert ours.title == theirs.title
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-4)
    assert [each.stage for each in world.manifest.entries] == [
        each.stage for each in undisturbed.manifest.entries
    ]
    assert world.workshop.leftovers() == ["federation"]
