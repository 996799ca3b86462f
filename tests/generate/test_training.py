"""What the generators' training has in common, and its progress bar."""

import io
import itertools
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedmend.generate.training import EMA, batches, generator_for, held_out, shown, train

CPU = torch.device("cpu")


def test_streams_differ_by_seed_and_purpose():
    def draw(seed: int, purpose: str) -> torch.Tensor:
        return torch.rand(4, generator=generator_for(CPU, seed, purpose))

    assert torch.equal(draw(0, "a"), draw(0, "a"))
    assert not torch.equal(draw(0, "a"), draw(1, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))


def test_every_row_is_used_once_a_round():
    rows = batches(10, 4, generator_for(CPU, 0, "rows"), CPU)
    seen = torch.cat(list(itertools.islice(rows, 5)))
    assert len(seen) == 20
    assert sorted(seen[:10].tolist()) == list(range(10))
    assert sorted(seen[10:].tolist()) == list(range(10))
    assert len(next(batches(3, 500, generator_for(CPU, 0, "rows"), CPU))) == 3


def test_held_out_rows():
    rng = np.random.default_rng(0)
    fitted, scored = held_out(1000, 0.1, rng)
    assert len(scored) == 100
    assert sorted([*fitted, *scored]) == list(range(1000))
    fitted, scored = held_out(150, 0.1, rng)
    assert len(fitted) == 150
    assert len(scored) == 0


def test_average_follows_the_parameters():
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(0.0)
    average = EMA(net, 0.9)
    net.weight.data.fill_(1.0)
    expected = 0.0
    for step in range(1, 31):
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay)
    assert average.average.weight.item() == pytest.approx(expected, rel=1e-5)


class TestTrain:
    def run(self, scores: list[float], **options: object) -> tuple[nn.Module, object]:
        net = nn.Linear(1, 1, bias=False)

        def step(number: int, batch: torch.Tensor) -> None:
            net.weight.data.fill_(float(number + 1))

        given = iter(scores)
        rows = batches(5, 2, generator_for(CPU, 0, "rows"), CPU)
        history = train(
            step, rows, steps=len(scores), modules=[net], score=lambda: next(given), every=1,
            **options,
        )  # fmt: skip
        return net, history

    def test_goes_back_to_the_best(self):
        net, history = self.run([3.0, 1.0, 2.0, 5.0], patience=10)
        assert net.weight.item() == 2
        assert history.best_step == 2
        assert history.steps == 4
        assert not history.stopped_early

    def test_stops_when_nothing_gets_better(self):
        net, history = self.run([3.0, 1.0, 2.0, 5.0, 0.0], patience=2)
        assert history.stopped_early
        assert history.steps == 4
        assert net.weight.item() == 2

    def test_without_score_keeps_the_last(self):
        net = nn.Linear(1, 1)
        told: list[tuple[str, int, int]] = []
        rows = batches(5, 2, generator_for(CPU, 0, "rows"), CPU)
        told_of = {"stage": "try", "progress": lambda *step: told.append(step)}
        history = train(
            lambda number, batch: net.weight.data.fill_(float(number)),
            rows, steps=7, modules=[net], **told_of,
        )  # fmt: skip
        assert history.steps == 7
        assert net.weight.item() == 6
        assert told[-1] == ("try", 7, 7)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_and_elsewhere_nothing_is_written(monkeypatch, capsys, small, mixed):
    small("vae").fit(mixed)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    small("vae").fit(mixed)
    assert "vae: fit" in terminal.getvalue()


def test_a_callback_takes_the_bars_place(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    told: list[tuple[str, int, int]] = []
    with shown("title", lambda *step: told.append(step)) as tell:
        assert tell is not None
        tell("fit", 1, 2)
    assert told == [("fit", 1, 2)]
    assert terminal.getvalue() == ""
