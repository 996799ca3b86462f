from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedmend.cli.running import tell
from fedmend.cli.terminal import TerminalListener, bullets, comparison_table, plain_table
from fedmend.report.mending import MendedColumn, MendedPair, Mending
from fedmend.report.overview import Overview
from fedmend.report.record import MethodRun, RunRecord
from fedmend.serve.predicting import Predicted


def method(title, seed, auc):
    history = [{"epoch": 1, "loss": 0.5}]
    return MethodRun(title.lower(), title, seed, {}, history, {"auc": auc}, 1.0, 3, 2_000)


def drawn(thing, width=100):
    stream = io.StringIO()
    Console(file=stream, width=width).print(thing)
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_on_terminals_only(terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, highlight=False)
    with TerminalListener(console) as listener:
        listener.stage("Training VFL [bold]")
        for epoch in (1, 2, 3):
            listener.progress("epochs", epoch, 3, {"loss": 0.25})
            listener._bar.refresh()
        listener.scored(method("VFL", 0, 0.9))
    text = stream.getvalue()
    assert "Training VFL [bold]" in text and "AUC 0.900" in text
    assert ("3 of 3" in text) is terminal and ("\x1b[" in text) is terminal


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"epoch": 1, "loss": 0.5}, "2 epochs"),
        ({"epoch": 1}, "2 trees"),
        ({"round": 1}, "2 rounds"),
    ],
)
def test_how_long_a_training_was_is_said_in_its_own_unit(entry, said):
    stream = io.StringIO()
    run = replace(method("VFL", 0, 0.9), history=[entry, entry])
    TerminalListener(Console(file=stream, width=100)).scored(run)
    assert f"(1.0 s, {said})" in stream.getvalue()


def test_comparison_over_seeds_and_with_a_score_that_is_missing():
    runs = [method("VFL", 0, 0.9), method("VFL", 1, 0.94), method("Local", 0, None)]
    text = drawn(comparison_table(RunRecord("t", runs, "auc", seeds=[0, 1]), 100))
    assert "0.920 ± 0.028" in text and "–" in text and "2.0 kB" in text


def test_cells_take_text_as_it_is():
    assert "[red]a[/red]" in drawn(plain_table(["party"], [["[red]a[/red]"]]))


def test_bullets_wrap_under_themselves_and_take_text_as_it_is():
    stream = io.StringIO()
    bullets(Console(file=stream, width=30), ["[red] a sentence that is longer than the line"])
    first, second, *_ = stream.getvalue().splitlines()
    assert first.startswith("  • [red] a sentence") and second.startswith("    ")


def test_scores_stay_in_one_line_beside_long_titles():
    long = MethodRun(
        "vfl",
        "VFL + completed rows",
        0,
        {},
        [],
        {"auc": 0.9, "accuracy": 0.8, "log_loss": 0.3},
        1.0,
    )
    text = drawn(comparison_table(RunRecord("t", [long], "auc"), 60), width=60)
    assert "accuracy" in text and "log loss" in text


def test_four_scores_fit_a_terminal_of_80_columns_whole():
    scores = {"auc": 0.998, "accuracy": 0.959, "f1": 0.948, "log_loss": 0.072}
    run = MethodRun("risa", "RISA + completed rows", 0, {}, [], scores, 4.5, 3, 20_100_000)
    text = drawn(comparison_table(RunRecord("t", [run], "auc"), 80), width=80)
    for word in ("AUC", "accuracy", "F1", "log loss", "training", "crossed", "4.5 s", "20.1 MB"):
        assert word in text, word


def test_seeds_leave_no_figure_without_its_last_letter():
    scores = {"auc": 0.998, "accuracy": 0.959, "f1": 0.948, "log_loss": 0.072}
    runs = [
        MethodRun("risa", "RISA + completed rows", seed, {}, [], scores, 4.5, 3, 20_100_000)
        for seed in (0, 1)
    ]
    text = drawn(comparison_table(RunRecord("t", runs, "auc", seeds=[0, 1]), 80), width=80)
    assert text.count("20.1 MB") == 1 and "crossed" in text and text.count("± 0.000") == 4


def test_rows_that_some_of_several_others_know_are_told_so(capsys):
    tell([Predicted("bank", "VFL", 124, 6, path=Path("p/bank/predictions.csv"))])
    told = "p/bank/predictions.csv: 130 rows by VFL, 124 of them known to other parties too\n"
    assert capsys.readouterr().out == told


def test_what_was_mended_is_told_in_words():
    column = MendedColumn("calls", "continuous", "strong", 0.8, 15, 45, 0, 0.7)
    pair = MendedPair("bank", "telco", 60, 40, 0.3, "as set", ["age"], ["calls"], [[0.8]], [column])
    stream = io.StringIO()
    with TerminalListener(Console(file=stream, width=120)) as listener:
        listener.progress("correlation", 1, 2)
        listener.found("mending", Mending("fedpsg-pum", [pair], 30, 90, seconds=2.0).to_dict())
    text = stream.getvalue()
    assert "• 60 of bank's rows that telco lacks were given telco's 1 column." in text
    assert "• calls is strong" in text and "grew from 30 to 90" in text


def test_long_names_leave_room_for_the_figures():
    rows = [["Regional-Hospital-No.-7-of-the-Northern-Highlands", "84", "300 continuous", "none"]]
    text = drawn(plain_table(["party", "rows", "columns", "missing cells"], rows), width=80)
    assert "300 continuous" in text and "missing cells" in text
    assert "".join(line[:29].strip() for line in text.splitlines()[3:]) == rows[0][0]


def test_what_is_torn_is_told_once_though_a_run_begins_again():
    stream = io.StringIO()
    nothing, everything = (
        Overview([], None, None, [word]).to_dict() for word in ("Nothing.", "Everything.")
    )
    with TerminalListener(Console(file=stream, width=80)) as listener:
        for found in (nothing, dict(nothing), everything):
            listener.found("overview", found)
    assert stream.getvalue().count("Nothing.") == stream.getvalue().count("Everything.") == 1
