"""What the sections of a report say and draw, section by section."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report.conftest import CHOICE, CURVE, HISTORY, STAGES, round_of

from fedmend._json import plain
from fedmend.learn.calibration import describe
from fedmend.report import annotators, plots, rounds, uncertainty
from fedmend.report.annotators import AnnotatorSkills
from fedmend.report.mending import Mending, correlations, provenance
from fedmend.report.record import RunRecord, read_stages, stages_of
from fedmend.report.rounds import Rounds
from fedmend.report.uncertainty import Uncertainty


def texts(svg: str | None) -> list[str]:
    assert svg is not None
    return [each.strip() for each in ElementTree.fromstring(svg).itertext() if each.strip()]


def test_what_is_kept_is_read_again(mending, labelling, unsure):
    assert Mending.from_dict(plain(mending.to_dict())) == mending
    assert AnnotatorSkills(**labelling.to_dict()) == labelling
    assert Uncertainty(**unsure.to_dict()) == unsure


# ---------------------------------------------------------------- mends


def test_mended_columns_in_words(mending):
    (pair,) = mending.pairs
    assert pair.sentences() == [
        "60 of bank's rows that telco lacks were given telco's 4 columns.",
        "calls and plan <x> are strong: bank's columns speak of them above the threshold of 0.30 "
        "(as set), so they are predicted.",
        "noise is weak: bank knows next to nothing about it. The values are drawn by a generator: "
        "plausible, and no knowledge about a person.",
        "tower failed (one class only) and was generated instead.",
    ]
    assert mending.words == "The rows known to all grew from 30 to 90. It took 4 seconds."
    assert all(pair.trained_on(column) for column in pair.columns)
    calls, plan = replace(pair.columns[0], skill=0.7), replace(pair.columns[1], skill=0.05)
    told = replace(pair, columns=[calls, plan, *pair.columns[2:]], min_skill=0.1)
    assert [told.trained_on(column) for column in told.columns] == [True, False, False, False]
    assert told.sentences()[-1] == (
        "The completed cells of plan <x>, tower and noise are not trained on: they say too little "
        "about a person (skill below 0.10)."
    )


@pytest.mark.parametrize(
    ("names", "words"), [(["rate"], "rate of bank lies"), (["rate", "month"], "month of bank lie")]
)
def test_rows_of_another_kind_are_told(mending, names, words):
    told = replace(mending.pairs[0], left_out=names)
    unlike = told.sentences()[2]
    assert f"These rows are unlike those that both know: {', '.join(names)}" in unlike
    assert words in unlike
    also = replace(told, changed=["phone"]).sentences()
    assert also[:3] == told.sentences()[:3] and also[4:] == told.sentences()[3:]
    assert also[3].startswith("phone of bank changed there too, so what rate")
    assert also[3].endswith("explained before was not learnt in its place.")


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
    svg = correlations(many)
    text = " ".join(texts(svg))
    assert "c23" in text and "c24" not in text
    assert "a49" in text and "a25" not in text  # of A's 50 columns those that say most
    assert len(svg) < 75_000


def test_pictures_of_a_mend(mending):
    (pair,) = mending.pairs
    svg = correlations(pair)
    assert {".80", "−.60", "threshold 0.30"} <= set(texts(svg))
    assert "var(--s1)" in svg and "var(--s2)" in svg and "#0201" not in svg
    origins = set(texts(provenance(pair)))
    assert {"observed", "predicted", "filled", "generated", "70 %", "90 %"} <= origins
    assert "0 %" not in origins
    only = replace(pair, columns=pair.columns[1:2])
    assert "generated" not in texts(provenance(only))


# ---------------------------------------------------------------- annotators


def test_annotators_in_words_and_figures(labelling):
    lines = labelling.sentences()
    assert lines[0] == "3 parties gave 230 labels for the 100 rows that were learnt from."
    # Ward does not tell, so that its labels are not counted.
    assert lines[1].startswith("72 of 180 labels contradict")
    assert lines[2] == "Two labels of a row agree in 62 % of cases; by chance it would be 50 %."
    assert lines[3].startswith("archive's labels are right less often than by chance.")
    assert len(lines) == 4 and labelling.warning == ""
    assert labelling.table()[1:] == [
        ["clinic", "100", "8", "8.0 %", "92 %"],
        ["archive", "80", "64", "80 %", "18 %"],
        ["ward", "50", "not reported", "–", "not reported"],
    ]
    private = replace(labelling, epsilon=1.5, suspicious=dict.fromkeys(labelling.votes))
    assert "label_dp = 1.5" in private.sentences()[-1]
    assert not any("contradict" in line for line in private.sentences())
    assert "no better than chance" in replace(labelling, beats_chance=False).warning
    apart = replace(labelling, agreement=None, chance=None, beats_chance=False)
    assert "No row has two labels" in apart.warning


@pytest.mark.parametrize(
    ("believed", "below"), [(0.8, False), (0.55, False), (0.49, False), (0.4, True), (None, False)]
)
def test_labels_below_chance_are_told(labelling, believed, below):
    standing = {"clinic": {"believed": believed, "by_chance": 0.5}}
    told = " ".join(replace(labelling, standing=standing).sentences())
    assert ("clinic's labels are right less often than by chance" in told) == below


def test_heat_maps_of_those_who_tell(labelling):
    text = texts(annotators.expertise(labelling))
    assert {"clinic, 92 %", "archive, 18 %", "94"} <= set(text)
    assert not any("ward" in each for each in text)
    assert annotators.expertise(replace(labelling, expertise={})) is None
    # Many classes and parties stay small.
    names = [f"p{number}" for number in range(20)]
    crowd = replace(
        labelling,
        classes=[chr(65 + number) for number in range(26)],
        votes=dict.fromkeys(names, 10),
        expertise=dict.fromkeys(names, (0.73 * np.eye(26) + 0.01).tolist()),
        standing={},
    )
    svg = annotators.expertise(crowd)
    assert svg.count("<path") < 400 and len(svg) < 150_000
    assert re.findall(r">(p\d+)<", svg) == names[: annotators.MAX_PARTIES_DRAWN]


def test_corrected_labels_in_words(correction):
    told = " ".join(annotators.corrected(correction))
    assert "clinic, archive and ward label." in told
    assert "on 100 rows 8 labels of clinic became another one" in told
    assert "3 rows without a label" in told and "2 labels were too doubtful" in told
    assert "1 min 10 s and 5.0 kB crossed" in told
    plain = correction | {"filled": 0, "dropped": 0, "rows_of": "completed", "rows": 0}
    assert "Completed rows took part" in " ".join(annotators.corrected(plain))


# ---------------------------------------------------------------- uncertainty


def test_uncertainty_in_words_and_figures(unsure):
    text = " ".join(unsure.sentences())
    assert "Uncertainty tells wrong answers from right ones" in text
    assert "1,000 rows that only telco has, 300 were sure enough" in text
    assert "250 kept it to the end" in text and "listening to telco" in text
    certain = replace(unsure, worth=unsure.worth | {"auroc": None}, made_up={}, trust={})
    assert len(certain.sentences()) == 1
    voted = replace(unsure, against="the majority of the labels")
    assert voted.sentences()[0].startswith("Right and wrong are by the majority of the labels")
    assert unsure.table() == [
        ["party", "carried", "trusted"],
        ["bank", "70 %", "90 %"],
        ["telco", "30 %", "0 %"],
    ]
    assert replace(unsure, trust={}).table()[1] == ["bank", "70 %", "–"]
    columns = {"aligned": {"bank": 0.5, "telco columns": 1.2, "joint": 0.1}}
    assert [line[2] for line in replace(unsure, trust=columns).table()[1:]] == ["50 %", "100 %"]
    head, first = uncertainty.overall([("RISA", unsure)])
    assert head[0] == "method" and first[0] == "RISA"
    assert all(cell.endswith("%") for cell in first[1:])
    drawn = " ".join(texts(uncertainty.picture(unsure)))
    assert all(word in drawn for word in ("uncertainty", "how sure", "surest first", "wrong"))
    empty = describe(np.zeros((0, 2)), np.zeros(0), np.zeros(0, int))
    assert uncertainty.picture(replace(unsure, worth=empty)) is None


# ---------------------------------------------------------------- rounds


def test_rounds_in_words_and_figures():
    found = Rounds("SAGE", HISTORY)
    assert found.series("accuracy") == [(1, 0.5), (2, 0.8), (3, 0.75)]
    assert found.series("pseudo_accuracy") == []
    assert found.clients == ["a", "b", "c"]
    assert found.series("loss", "a") == [(1, 1.0), (3, pytest.approx(1 / 3))]
    assert found.series("pseudo_accuracy", "b") == []
    assert found.sentences() == [
        "3 rounds with 3 clients, 2 of them in each.",
        "Accuracy on the test rows: 75 % after the last round, best 80 % after round 2.",
        "Of the unlabelled rows 20 % had a pseudo-label in the first round and 60 % in the last.",
    ]
    assert found.table()[1:] == [
        ["a", "2", "0.667", "40 %", "0.100", "90 %"],
        ["b", "2", "0.750", "30 %", "0.100", "–"],
        ["c", "2", "0.417", "50 %", "0.100", "90 %"],
    ]
    warm = {"round": 1, "clients": ["a"], "per_client": [{"client": "a", "loss": 2.0}]}
    found = Rounds("SAGE", [warm, round_of(2, 0.8, ["a"]), round_of(3, 0.9, ["a"])])
    assert found.sentences()[-1] == (
        "Of the unlabelled rows 40 % had a pseudo-label in round 2 and 60 % in the last."
    )
    assert found.table()[1] == ["a", "3", "0.944", "50 %", "0.100"]
    # What no client tells has no column.
    assert Rounds("FedAvg", [warm]).table() == [["client", "rounds", "loss"], ["a", "1", "2.000"]]


def test_each_clients_accuracy_is_that_of_the_last_round_told():
    by = [{"a": 0.4, "b": 0.6}, {"a": 0.5, "b": 0.7}, {"a": 0.9}]
    found = Rounds("SAGE", [
        round_of(number, 0.5, ["a", "b"]) | {"accuracy_by_party": told}
        for number, told in enumerate(by, 1)
    ])  # fmt: skip
    assert found.series("accuracy", "b") == [(1, 0.6), (2, 0.7)]
    head, *lines = found.table()
    assert head[-1] == "accuracy at the end"
    assert [line[-1] for line in lines] == ["90 %", "70 %"]
    assert "accuracy on its own test rows" in texts(rounds.clients_picture([found]))


def test_pictures_of_rounds(record):
    sage, vfl = replace(record.methods[0], history=HISTORY), record.methods[2]
    runs = [sage, replace(sage, seed=1), replace(sage, title="FedAvg", history=HISTORY[:1]), vfl]
    record = RunRecord("three clinics", runs, "accuracy")
    found = rounds.rounds_of(record)
    assert [each.title for each in found] == ["Local", "FedAvg"]  # once each
    text = texts(rounds.picture(found, record.titles()))
    assert {"Local", "FedAvg", "unlabelled rows used"} <= set(text)
    assert "pseudo-labels that are right" not in text  # nobody knows
    assert rounds.picture([Rounds("FedAvg", [{"round": 1}])], ["FedAvg"]) is None
    shown = set(texts(rounds.clients_picture(found)))
    assert {"a", "b", "c", "loss of its steps", "unlabelled rows used"} <= shown
    assert rounds.clients_picture([Rounds("SAGE", [round_of(1, 0.5, ["a"])])]) is None
    # More lines than can be told apart: none is named, their mean is.
    many = Rounds("SAGE", [round_of(1, 0.5, [f"c{n}" for n in range(20)])])
    shown = set(texts(rounds.clients_picture([many])))
    assert "mean of 20 clients" in shown and "c3" not in shown


# ---------------------------------------------------------------- stages, choice, worth


def test_stages_are_added_up(tmp_path):
    found = {each.name: each for each in stages_of(STAGES)}
    assert list(found) == ["align", "diagnose", "train", "dream"]
    assert (found["train"].seconds, found["train"].bytes, found["train"].units) == (125.0, 8_000, 2)
    assert found["train"].words == "Training, 2 times"
    assert found["train"].note == "1 taken over from before"
    assert found["align"].note == "30 rows" and found["diagnose"].note == ""
    assert found["dream"].words == "dream"
    told = texts(plots.stages(stages_of(STAGES)))
    assert {"Training", "2 min 5 s", "8.0 kB", "dream"} <= set(told)
    assert plots.stages(stages_of(STAGES[:1])) is None
    assert read_stages(tmp_path) == []
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "stages": STAGES}))
    assert len(read_stages(tmp_path)) == 4
    for broken in ("{", "[]", '{"stages": [{}]}'):
        (tmp_path / "manifest.json").write_text(broken)
        assert read_stages(tmp_path) == []


def test_pictures_of_a_choice_and_of_what_overlap_is_worth():
    assert "VFL <1>" in texts(plots.choice(CHOICE))
    assert plots.choice(CHOICE | {"candidates": CHOICE["candidates"][:1]}) is None
    told = texts(plots.worth(CURVE))
    assert "estimate" in told and "label party, local-only" in told
    assert plots.worth(CURVE | {"points": CURVE["points"][:1]}) is None
    bare = {"metric": "rmse", "points": CURVE["points"], "twice": None, "alone": None}
    assert "estimate" not in texts(plots.worth(bare))


# ---------------------------------------------------------------- trees


def test_what_trees_use(record, entries):
    from fedmend.report.page import render

    gains = [("bank", "income", 0.6), ("telco", "column 1 of telco", 0.4), ("telco", "calls", 0.0)]
    told = [{"party": party, "column": name, "gain": gain} for party, name, gain in gains]
    first, *rest = record.methods
    trees = replace(first, importance=told, history=[{"epoch": 1.0}] * 7)
    page = render(replace(record, methods=[trees, *rest]), entries)
    text = re.sub(r"<[^>]+>|\s+", " ", page[page.index('<section id="trees">') :])
    text = re.sub(r" +", " ", text)
    assert "7 trees." in text and "bank: 60 %, telco: 40 %." in text
    assert "income bank 60.0 % column 1 of telco telco 40.0 % 1 column is not used." in text
    assert 'id="trees"' not in render(record, entries)
