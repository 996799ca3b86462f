from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedmend.report import maps
from fedmend.report.labelling import Labelling


def test_round_trip(labelling):
    assert Labelling(**labelling.to_dict()) == labelling


def test_found_in_words(labelling):
    lines = labelling.sentences()
    assert lines[0] == "3 parties gave 230 labels for 100 rows known to all."
    # Ward does not tell, so that its labels are not counted.
    assert lines[1].startswith("72 of 180 labels contradict")
    assert lines[2] == "Two labels of a row agree in 62 % of cases; by chance it would be 50 %."
    assert lines[3].startswith("archive's labels are right less often than by chance.")
    assert len(lines) == 4 and labelling.warning == ""


@pytest.mark.parametrize(
    ("believed", "below"), [(0.8, False), (0.55, False), (0.49, False), (0.4, True), (None, False)]
)
def test_labels_below_chance_are_told(labelling, believed, below):
    standing = {"clinic": {"believed": believed, "by_chance": 0.5}}
    told = " ".join(replace(labelling, standing=standing).sentences())
    assert ("clinic's labels are right less often than by chance" in told) == below


def test_a_line_for_each_party(labelling):
    assert labelling.table()[1:] == [
        ["clinic", "100", "8", "8.0 %", "92 %"],
        ["archive", "80", "64", "80 %", "18 %"],
        ["ward", "50", "not told", "–", "not told"],
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beats_chance": False}, "no better than chance"),
        ({"agreement": None, "chance": None, "beats_chance": False}, "No row has two labels"),
    ],
)
def test_agreement_is_warned_about(labelling, change, words):
    assert words in replace(labelling, **change).warning


def test_randomised_answers_are_told(labelling):
    private = replace(labelling, epsilon=1.5, suspicious=dict.fromkeys(labelling.votes))
    assert "label_dp = 1.5" in private.sentences()[-1]
    assert not any("contradict" in line for line in private.sentences())


def test_heat_maps_of_those_who_tell(labelling):
    svg = maps.expertise(labelling)
    text = list(ElementTree.fromstring(svg).itertext())
    assert "clinic, 92 %" in text and "archive, 18 %" in text and "94" in text
    assert not any("ward" in each for each in text)
    assert maps.expertise(replace(labelling, expertise={})) is None


def test_many_classes_and_parties_stay_small(labelling):
    classes = [chr(65 + number) for number in range(26)]
    matrix = [[0.74 if row == column else 0.26 / 25 for column in range(26)] for row in range(26)]
    names = [f"p{number}" for number in range(20)]
    crowd = replace(
        labelling,
        classes=classes,
        votes=dict.fromkeys(names, 10),
        expertise=dict.fromkeys(names, matrix),
        standing={},
    )
    svg = maps.expertise(crowd)
    assert svg.count("<path") < 400 and len(svg) < 150_000
    titles = re.findall(r">(p\d+)<", svg)
    assert titles == names[: maps.MOST_PARTIES]
