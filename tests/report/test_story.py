"""Sections about a run's stages: advice, corrected labels, the chosen method, what it took."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from fedmend.report import choosing, correcting, stages, uncertainty, worth
from fedmend.report.amounts import human_seconds
from fedmend.report.page import CHAPTERS, chapters, render, write_report
from fedmend.report.stages import read_stages, stages_of
from fedmend.report.uncertainty import Uncertainty
from fedmend.report.words import what_was_seen


def texts(svg: str) -> list[str]:
    return [each.strip() for each in ElementTree.fromstring(svg).itertext() if each.strip()]


ENTRIES = [
    {"stage": "align", "unit": "", "seconds": 1.5, "crossings": 4, "bytes": 900, "says": "30 rows"},
    {"stage": "diagnose", "unit": "", "seconds": 0.1, "says": "much is torn"},
    {"stage": "train", "unit": "vfl-0", "seconds": 60.0, "crossings": 10, "bytes": 4_000},
    {"stage": "train", "unit": "vfl-1", "seconds": 65.0, "crossings": 10, "bytes": 4_000,
     "reused": True},
    {"stage": "dream", "unit": "", "seconds": 1.0, "says": "of a later version"},
]  # fmt: skip


# ---------------------------------------------------------------- stages


def test_stages_are_added_up():
    found = {each.name: each for each in stages_of(ENTRIES)}
    assert list(found) == ["align", "diagnose", "train", "dream"]
    assert (found["train"].seconds, found["train"].bytes, found["train"].units) == (125.0, 8_000, 2)
    assert found["train"].words == "Training, 2 times"
    assert found["train"].note == "1 taken over from before"
    assert found["align"].note == "30 rows" and found["diagnose"].note == ""
    assert found["dream"].words == "dream"


def test_stages_of_a_folder(tmp_path):
    assert read_stages(tmp_path) == []
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "stages": ENTRIES}))
    assert len(read_stages(tmp_path)) == 4
    for broken in ("{", "[]", '{"stages": [{}]}'):
        (tmp_path / "manifest.json").write_text(broken)
        assert read_stages(tmp_path) == []


def test_picture_of_stages():
    told = texts(stages.picture(stages_of(ENTRIES)))
    assert {"Training", "2 min 5 s", "8.0 kB", "dream"} <= set(told)
    assert stages.picture(stages_of(ENTRIES[:1])) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (60, "1 min"), (200, "3 min 20 s"),
     (7500, "2 h 5 min")],
)  # fmt: skip
def test_seconds_in_words(seconds, words):
    assert human_seconds(seconds) == words


# ---------------------------------------------------------------- labels, choice, worth


def test_corrected_labels_in_words(correction):
    told = " ".join(correcting.sentences(correction))
    assert "clinic, archive and ward label." in told
    assert "8 of 100 labels of clinic (8.0 %) became another one" in told
    assert "3 rows without a label" in told and "2 labels were too doubtful" in told
    assert "1 min 10 s and 5.0 kB crossed" in told
    assert correcting.skills_of(correction).right("clinic") == 0.92
    assert correcting.skills_of(correction | {"labelling": None}) is None
    plain = correction | {"filled": 0, "dropped": 0, "rows_of": "completed", "rows": 0}
    assert "Completed rows took part" in " ".join(correcting.sentences(plain))


def test_the_choice(choice):
    head, *lines = choosing.table(choice)
    assert head[1] == "AUC, held-out rows"
    assert lines[1] == ["VFL <1>", "0.800 ± 0.020", "2.0 s", "chosen"]
    assert lines[2] == ["RISA", "–", "0.0 s", "no time left"]
    assert "VFL <1>" in texts(choosing.picture(choice))
    assert choosing.picture(choice | {"candidates": choice["candidates"][:1]}) is None


def test_what_overlap_is_worth(curve):
    told = texts(worth.picture(curve))
    assert "estimate" in told and "the label party alone" in told
    assert worth.picture(curve | {"points": curve["points"][:1]}) is None
    bare = {"metric": "rmse", "points": curve["points"], "twice": None, "alone": None}
    assert "estimate" not in texts(worth.picture(bare))


def test_uncertainty_of_all_methods(whole):
    told = [(run.title, Uncertainty(**run.uncertainty)) for run in whole.methods[:2]]
    head, first, _ = uncertainty.overall(told)
    assert head[0] == "method" and first[0] == "Local"
    assert all(cell.endswith("%") for cell in first[1:])


# ---------------------------------------------------------------- who saw what


def test_what_was_seen_by_what_it_tells(entries):
    coordinator, bank, telco = what_was_seen(entries)
    assert coordinator.graded() == [
        ("signals", "420 batches of embeddings from bank (5.0 MB)."),
        ("nothing", "1 sealed value passed on unread (20.0 kB)."),
    ]
    assert [exposure for exposure, _ in bank.graded()] == ["signals", "nothing"]
    assert telco.graded() == [("nothing", "1 list of blinded ids (20.0 kB).")]


# ---------------------------------------------------------------- the page


def test_every_section_that_has_something(whole, entries, record):
    page = render(whole, entries, stages_of(ENTRIES))
    for name in CHAPTERS:
        there = name not in ("rounds", "audit")  # of neither is there any in this run
        assert (f'<section id="{name}"' in page) == there, name
        assert (f'<a href="#{name}"' in page) == there, name
    assert "Few people &lt;in&gt; common" in page and "Few people <in>" not in page
    assert "VFL &lt;1&gt;" in page and "To begin with: risa." in page
    assert "Training, 2 times" in page and "about 4.0 s, 2.0 MB" in page
    # ids must be one of a kind, or links and clip paths go astray
    ids = [part.partition('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_a_bare_record_has_the_plain_sections(entries):
    from fedmend.report.record import MethodRun, RunRecord

    bare = RunRecord("t", [MethodRun("vfl", "VFL", 0, {}, [], {"auc": 0.8}, 1.0)], "auc")
    names = [name for name, _ in chapters(bare)]
    assert names == ["overview", "comparison", "curves", "costs", "ledger", "settings"]
    page = render(bare, entries)
    assert all(f'<section id="{name}"' in page for name in names)


def test_a_variant_is_told_by_what_is_different(record, entries):
    for run in record.methods:
        run.about = "all parties together"
        if run.title == "VFL":
            run.about += "; completed rows included"
    page = render(record, entries)
    assert page.count("all parties together") == 1 and "completed rows included" in page


def test_a_run_folder_brings_its_manifest(record, entries, tmp_path):
    from fedmend.federation import Ledger

    record.save(tmp_path)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger._write(list(entries))
    ledger.close()
    (tmp_path / "manifest.json").write_text(json.dumps({"stages": ENTRIES}))
    assert "2 min 5 s" in write_report(tmp_path).read_text()
