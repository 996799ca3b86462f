from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedmend.errors import DataError
from fedmend.federation.ledger import COORDINATOR, Ledger
from fedmend.federation.wire import Measure
from fedmend.report import plots
from fedmend.report.overlap import overlap
from fedmend.report.overview import Overview
from fedmend.report.page import render, write_report

SECTIONS = ["summary", "overview", "comparison", "curves", "ledger", "settings"]
VOID = {"meta", "link", "br"}


class Balanced(HTMLParser):
    """Fails on a tag closed out of order; collects ids and anchors."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.anchors, self.text = [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.anchors += [found["href"]] if tag == "a" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html):
    page = Balanced()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def test_page_is_whole_with_every_section_and_unique_ids(record, entries):
    page = parsed(render(record, entries))
    assert [each for each in page.ids if each in SECTIONS] == SECTIONS
    assert len(page.ids) == len(set(page.ids))
    assert all(anchor[1:] in page.ids for anchor in page.anchors)


def test_page_shows_the_figures(record, entries):
    text = " ".join(" ".join(parsed(render(record, entries)).text).split())
    assert "Bank & telco <test>" in text
    assert "0.905 ± 0.007" in text
    assert "No row and no label left a party in the clear." in text
    assert "The coordinator saw 421 messages, 5.1 MB in all." in text
    assert "6 of bank's 10 rows (60 %) are not linked to telco" in text
    assert "method[vfl].epochs 5" in text
    assert "VFL did best, with AUC 0.905. The label party by itself (Local) reaches 0.805." in text
    assert "AUC: of two rows of different classes" in text and "RMSE: how far" not in text


def test_in_short_when_nothing_is_gained(record, entries):
    for run in record.methods:
        if run.title == "VFL":
            run.scores["auc"] = 0.6
    assert "No method did better than Local" in render(record, entries)
    for run in record.methods:
        run.scores["auc"] = 0.8
    assert "No method did better than Local" in render(record, entries)  # as good is no better
    record.methods = [run for run in record.methods if run.title == "VFL"]
    assert "did best" not in render(record, entries)


def test_page_loads_nothing_from_anywhere(record, entries):
    html = render(record, entries)
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)
    assert "http" not in without_namespaces.replace("http-equiv", "")
    assert "<script" not in html and "@import" not in html
    assert len(html) < 400_000


def test_pictures_follow_the_page_colours(record):
    for svg in (plots.comparison(record), plots.curves(record)):
        assert svg is not None
        ElementTree.fromstring(svg)
        assert "var(--s3)" in svg and "#0201" not in svg and "#0102" not in svg
    alone = plots.standalone(overlap(Overview.from_dict(record.overview)))
    ElementTree.fromstring(alone)
    assert "var(" not in alone


def test_values_of_the_parties_cannot_break_the_page(record, entries):
    record.overview["label"]["name"] = "<script>alert(1)</script>"
    record.methods[0].title = record.methods[1].title = 'A "<b>" & $x$ method'
    html = render(record, entries)
    assert "<script>" not in html
    parsed(html)


def test_run_without_curves_overview_or_scores_still_renders(record, entries):
    record.overview = None
    for run in record.methods:
        run.history, run.scores = [], {}
    page = parsed(render(record, []))
    assert set(SECTIONS) <= set(page.ids)
    assert "no epochs to draw" in "".join(page.text)


def test_report_of_a_run_folder(record, tmp_path):
    record.save(tmp_path)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record("bank", COORDINATOR, "Some.call", "label", Measure("3", "int64", 44, ""))
    ledger.close()
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    assert "Values left in the clear: bank gave 1 batch of labels" in path.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "ledger.jsonl", "metrics.json", "report.html",
    ]  # fmt: skip


def test_report_of_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a run folder"):
        write_report(tmp_path)


def test_sections_of_what_happened_only_when_it_did(record, entries):
    page = parsed(render(record, entries))
    assert not {"mended", "labellers"} & set(page.ids)
    assert "against" not in "".join(page.text)


def test_mending_and_labellers_are_shown(full_record, entries):
    page = parsed(render(full_record, entries))
    everything = [*SECTIONS[:2], "mended", "comparison", "labellers", *SECTIONS[3:]]
    assert [each for each in page.ids if each in everything] == everything
    assert {"#mended", "#labellers"} <= set(page.anchors)
    assert len(page.ids) == len(set(page.ids))
    text = " ".join(" ".join(page.text).split())
    assert "Rows completed 60" in text
    assert "The rows known to all grew from 30 to 90." in text
    assert "plan <x> nominal 0.60 strong 100 % 0 % 0 % 90 %" in text
    assert "72 of 180 labels contradict" in text
    assert "which no method was trained on, against the labels of clinic." in text


def test_several_pairs_and_methods_have_ids_of_their_own(full_record, entries, mending):
    full_record.mending["pairs"] *= 2
    full_record.methods[2].labelling = full_record.methods[0].labelling
    page = parsed(render(full_record, entries))
    assert len(page.ids) == len(set(page.ids))
    text = " ".join(page.text)
    assert "telco's columns for bank's rows" in text and "By VFL" in text
