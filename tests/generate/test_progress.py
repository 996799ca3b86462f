"""The bar that a terminal shows, and the silence elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from fedmend.data.table import Table
from fedmend.generate import Generator
from fedmend.generate.training import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, small: Callable[..., Generator], mixed: Table
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    small("vae").fit(mixed)
    assert "vae: fit" in terminal.getvalue()


def test_elsewhere_nothing_is_written(
    capsys: pytest.CaptureFixture[str], small: Callable[..., Generator], mixed: Table
) -> None:
    small("vae").fit(mixed)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_a_callback_takes_the_bars_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    told: list[tuple[str, int, int]] = []
    with shown("title", lambda *step: told.append(step)) as tell:
        assert tell is not None
        tell("fit", 1, 2)
    assert told == [("fit", 1, 2)]
    assert terminal.getvalue() == ""
