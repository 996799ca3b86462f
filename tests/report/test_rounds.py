"""The rounds of a horizontal federation in the report."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fedmend.report.page import render
from fedmend.report.record import MethodRun, RunRecord
from fedmend.report.rounds import Rounds, clients_picture, picture, rounds_of


def entry(number: int, accuracy: float | None, clients: list[str], **more: object) -> dict:
    part = {"loss": 1.0 / number, "utilisation": 0.2 * number, "confidence_gap": 0.1}
    return {
        "round": number,
        "clients": clients,
        "accuracy": accuracy,
        "loss": 1.0 / number,
        "utilisation": 0.2 * number,
        "pseudo_accuracy": None,
        "confidence_gap": 0.1,
        "per_client": [{"client": name, **part, **more} for name in clients],
    }


HISTORY = [
    entry(1, 0.5, ["a", "b"]),
    entry(2, 0.8, ["b", "c"]),
    entry(3, 0.75, ["a", "c"], pseudo_accuracy=0.9),
]


def run_of(title: str, history: list[dict], seed: int = 0) -> MethodRun:
    return MethodRun("sage", title, seed, {}, history, {"accuracy": 0.75}, 1.0)


@pytest.fixture
def record() -> RunRecord:
    runs = [run_of("SAGE", HISTORY), run_of("SAGE", HISTORY, 1), run_of("FedAvg", HISTORY[:1])]
    runs.append(MethodRun("vfl", "VFL", 0, {}, [{"epoch": 1, "loss": 2.0}], {"accuracy": 0.6}, 1.0))
    return RunRecord("three clinics", runs, "accuracy", seeds=[0, 1])


def test_rounds_in_words_and_figures() -> None:
    rounds = Rounds("SAGE", HISTORY)
    assert rounds.series("accuracy") == [(1, 0.5), (2, 0.8), (3, 0.75)]
    assert rounds.series("pseudo_accuracy") == []
    assert rounds.sentences() == [
        "3 rounds with 3 clients, 2 of them in each.",
        "Accuracy on the test rows: 75 % after the last round, best 80 % after round 2.",
        "Of the unlabelled rows 20 % had a pseudo-label in the first round and 60 % in the last.",
    ]


def test_rounds_of_a_warm_up_have_no_pseudo_labels() -> None:
    warm = {"round": 1, "clients": ["a"], "per_client": [{"client": "a", "loss": 2.0}]}
    rounds = Rounds("SAGE", [warm, entry(2, 0.8, ["a"]), entry(3, 0.9, ["a"])])
    assert rounds.sentences()[-1] == (
        "Of the unlabelled rows 40 % had a pseudo-label in round 2 and 60 % in the last."
    )
    assert rounds.table()[1] == ["a", "3", "0.944", "50 %", "0.100"]


def test_each_client_has_its_line() -> None:
    assert Rounds("SAGE", HISTORY).table()[1:] == [
        ["a", "2", "0.667", "40 %", "0.100", "90 %"],
        ["b", "2", "0.750", "30 %", "0.100", "–"],
        ["c", "2", "0.417", "50 %", "0.100", "90 %"],
    ]


def test_each_clients_accuracy_is_that_of_the_last_round_told() -> None:
    by = [{"a": 0.4, "b": 0.6}, {"a": 0.5, "b": 0.7}, {"a": 0.9}]
    history = [
        entry(number, 0.5, ["a", "b"]) | {"accuracy_by_party": told}
        for number, told in enumerate(by, 1)
    ]
    rounds = Rounds("SAGE", history)
    assert rounds.series("accuracy", "b") == [(1, 0.6), (2, 0.7)]
    head, *lines = rounds.table()
    assert head[-1] == "accuracy at the end"
    assert [line[-1] for line in lines] == ["90 %", "70 %"]
    svg = clients_picture([rounds])
    assert svg is not None
    assert "accuracy on its own test rows" in list(ElementTree.fromstring(svg).itertext())


def test_what_no_client_tells_has_no_column() -> None:
    plain = [
        {"round": 1, "clients": ["a"], "per_client": [{"client": "a", "loss": 0.5}]},
    ]
    assert Rounds("FedAvg", plain).table() == [["client", "rounds", "loss"], ["a", "1", "0.500"]]


def test_only_methods_in_rounds_are_drawn_once_each(record: RunRecord) -> None:
    found = rounds_of(record)
    assert [each.title for each in found] == ["SAGE", "FedAvg"]
    svg = picture(found, record.titles())
    assert svg is not None
    text = list(ElementTree.fromstring(svg).itertext())
    assert "SAGE" in text and "FedAvg" in text
    assert any("unlabelled rows used" in each for each in text)
    assert not any("pseudo-labels that are right" in each for each in text)  # nobody knows
    assert picture([Rounds("FedAvg", [{"round": 1}])]) is None


def test_clients_have_curves_of_their_own(record: RunRecord) -> None:
    rounds = Rounds("SAGE", HISTORY)
    assert rounds.clients == ["a", "b", "c"]
    assert rounds.series("loss", "a") == [(1, 1.0), (3, pytest.approx(1 / 3))]
    assert rounds.series("pseudo_accuracy", "b") == []
    svg = clients_picture(rounds_of(record))
    assert svg is not None
    text = [each.strip() for each in ElementTree.fromstring(svg).itertext()]
    assert {"a", "b", "c", "loss of its steps", "unlabelled rows used"} <= set(text)
    assert svg in render(record, [])
    assert clients_picture([Rounds("SAGE", [entry(1, 0.5, ["a"])])]) is None  # nothing to compare
    # More lines than can be told apart: none is named, their mean is.
    many = clients_picture([Rounds("SAGE", [entry(1, 0.5, [f"c{n}" for n in range(20)])])])
    text = [each.strip() for each in ElementTree.fromstring(many).itertext()]
    assert "mean of 20 clients" in text and "c3" not in text


def test_the_page_has_the_section_only_with_rounds(record: RunRecord) -> None:
    page = render(record, [])
    assert 'id="rounds"' in page and "Round by round" in page
    assert "3 rounds with 3 clients, 2 of them in each." in page
    record.methods = record.methods[-1:]
    assert 'id="rounds"' not in render(record, [])
