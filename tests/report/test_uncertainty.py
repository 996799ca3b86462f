"""The section on uncertainty: words, table, picture, and its place in the page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from fedmend.learn.calibration import describe
from fedmend.report.page import render
from fedmend.report.record import MethodRun, RunRecord
from fedmend.report.uncertainty import Uncertainty, picture


@pytest.fixture
def found() -> Uncertainty:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5, 0.5], 400)
    y = (rng.random(400) < p[:, 1]).astype(int)
    return Uncertainty(
        worth=describe(p, 2 * (1 - p.max(1)), y),
        carried={"bank": 0.7, "telco": 0.3},
        trust={"aligned": {"bank": 0.9, "telco": 0.0, "joint": 0.95}},
        made_up={"telco": {"rows": 1000, "chosen": 300, "kept": 250}},
    )


def test_round_trip(found: Uncertainty) -> None:
    assert Uncertainty(**found.to_dict()) == found


def test_in_words(found: Uncertainty) -> None:
    text = " ".join(found.sentences())
    assert "Uncertainty tells wrong answers from right ones" in text
    assert "1,000 rows that only telco has, 300 were sure enough" in text
    assert "250 kept it to the end" in text
    assert "listening to telco" in text
    certain = replace(found, worth=found.worth | {"auroc": None}, made_up={}, trust={})
    assert len(certain.sentences()) == 1


def test_a_line_for_each_party(found: Uncertainty) -> None:
    assert found.table() == [
        ["party", "carried", "trusted"],
        ["bank", "70 %", "90 %"],
        ["telco", "30 %", "0 %"],
    ]
    assert replace(found, trust={}).table()[1] == ["bank", "70 %", "–"]
    columns = {"aligned": {"bank": 0.5, "telco columns": 1.2, "joint": 0.1}}
    assert replace(found, trust=columns).table()[1:] == [
        ["bank", "70 %", "50 %"],
        ["telco", "30 %", "100 %"],
    ]


def test_picture(found: Uncertainty) -> None:
    svg = picture(found)
    assert svg is not None
    text = " ".join(ElementTree.fromstring(svg).itertext())
    assert all(word in text for word in ("uncertainty", "how sure", "surest first", "wrong"))
    empty = describe(np.zeros((0, 2)), np.zeros(0), np.zeros(0, int))
    assert picture(replace(found, worth=empty)) is None


def test_in_the_page(found: Uncertainty) -> None:
    run = MethodRun("risa", "RISA", 0, {}, [], {"auc": 0.8}, 1.0, uncertainty=found.to_dict())
    page = render(RunRecord("t", [run], "auc"), [])
    assert 'id="uncertainty"' in page
    assert "How sure, and do unsure rows err more" in page
    without = render(RunRecord("t", [replace(run, uncertainty=None)], "auc"), [])
    assert 'id="uncertainty"' not in without
