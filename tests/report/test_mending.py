from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedmend._json import plain
from fedmend.report import maps
from fedmend.report.mending import Mending
from fedmend.report.page import render


def test_round_trip(mending):
    assert Mending.from_dict(plain(mending.to_dict())) == mending


def test_groups_in_words(mending):
    lines = mending.pairs[0].sentences()
    assert lines == [
        "60 of bank's rows that telco lacks were given telco's 4 columns.",
        "calls and plan <x> are strong: bank's columns speak of them above the threshold of 0.30 "
        "(as set), so they are predicted.",
        "noise is weak: bank knows next to nothing about it. The values are drawn by a generator: "
        "plausible, and no knowledge about a person.",
        "tower failed (one class only) and was generated instead.",
    ]
    assert mending.words == "The rows known to all grew from 30 to 90. It took 4 seconds."


@pytest.mark.parametrize(
    ("names", "words"), [(["rate"], "rate of bank lies"), (["rate", "month"], "month of bank lie")]
)
def test_rows_of_another_kind_are_told(mending, full_record, entries, names, words):
    told = replace(mending.pairs[0], left_out=names)
    assert f"These rows are unlike those that both know: {', '.join(names)}" in told.sentences()[2]
    found = replace(mending, pairs=[told])
    assert Mending.from_dict(plain(found.to_dict())) == found
    full_record.mending = found.to_dict()
    assert words in render(full_record, entries)
    also = replace(told, changed=["phone"]).sentences()
    assert also[:3] == told.sentences()[:3] and also[4:] == told.sentences()[3:]
    assert also[3].startswith("phone of bank changed there too, so what rate")
    assert also[3].endswith("explained before was not learnt in its place.")


def test_columns_that_are_not_trained_on_are_named(mending, full_record, entries):
    (pair,) = mending.pairs
    calls = replace(pair.columns[0], skill=0.7)
    plan = replace(pair.columns[1], skill=0.05)
    told = replace(pair, columns=[calls, plan, *pair.columns[2:]], min_skill=0.1)
    assert [told.trained_on(column) for column in told.columns] == [True, False, False, False]
    assert told.sentences()[-1] == (
        "The completed cells of plan <x>, tower and noise are not trained on: they say too little "
        "about a person (skill below 0.10)."
    )
    full_record.mending = replace(mending, pairs=[told]).to_dict()
    page = render(full_record, entries)
    assert "<td>0.70</td><td>yes</td>" in page and "<td>0.05</td><td>no</td>" in page
    assert all(pair.trained_on(column) for column in pair.columns)


def test_no_strong_column_and_very_many(mending):
    (pair,) = mending.pairs
    weak = [replace(pair.columns[3], name=f"c{number}") for number in range(40)]
    many = replace(
        pair,
        columns=weak,
        of_b=[column.name for column in weak],
        of_a=[f"a{number}" for number in range(50)],
        rho=[[0.01 * row] * 40 for row in range(50)],
    )
    lines = many.sentences()
    assert lines[1] == "No column of telco is above the threshold of 0.30 (as set)."
    assert "c11 and 28 more are weak" in lines[2]
    svg = maps.correlations(many)
    shown = ElementTree.fromstring(svg).itertext()
    text = " ".join(shown)
    assert "c23" in text and "c24" not in text
    # Of A's 50 columns those that say most.
    assert "a49" in text and "a25" not in text
    assert len(svg) < 75_000


def test_correlations_show_the_figures_and_the_line(mending):
    svg = maps.correlations(mending.pairs[0])
    text = list(ElementTree.fromstring(svg).itertext())
    assert ".80" in text and "−.60" in text and " threshold 0.30" in text
    assert "var(--s1)" in svg and "var(--s2)" in svg and "#0201" not in svg


def test_provenance_shows_every_origin_that_occurs(mending):
    svg = maps.provenance(mending.pairs[0])
    text = list(ElementTree.fromstring(svg).itertext())
    assert {"observed", "predicted", "filled", "generated", "70 %", "90 %"} <= set(text)
    assert "0 %" not in text
    (pair,) = mending.pairs
    only = replace(pair, columns=pair.columns[1:2])
    assert "generated" not in list(ElementTree.fromstring(maps.provenance(only)).itertext())


@pytest.mark.parametrize("observed", [1, 40, 100_000])
def test_bands_stay_visible_whatever_the_sizes(mending, observed):
    top, below = maps._heights(replace(mending.pairs[0], observed=observed))
    assert top + below == pytest.approx(1) and top >= 0.18 and below >= 0.4
