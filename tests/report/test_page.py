"""The page: whole, escaped, loading nothing, and under a policy that it needs nothing beyond."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser

import pytest
from tests.report.conftest import CHOICE, STAGES

from fedmend.audit.page import PAGE_FILE, write_audit
from fedmend.errors import DataError
from fedmend.federation.ledger import COORDINATOR, Ledger
from fedmend.federation.wire import Measure
from fedmend.report import page as report_page
from fedmend.report.page import REPORT_FILE, SECTIONS, render, run_banner, write_report
from fedmend.report.record import MethodRun, RunRecord
from fedmend.serve.watching import WatchServer

ALWAYS = ["summary", "overview", "comparison", "curves", "costs", "ledger", "settings"]
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Fails on a tag closed out of order; collects ids, links, text, and what a policy judges."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.anchors, self.words = [], [], [], []
        self.policies, self.blocks, self.refused = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.anchors += [found["href"]] if tag == "a" else []
        if found.get("http-equiv", "").lower() == "content-security-policy":
            self.policies.append(directives(found["content"]))
        for name, value in found.items():
            link = name in ("src", "href", "xlink:href", "action", "formaction", "srcset")
            loads = link and not (value or "").startswith(("#", "data:"))
            if name == "style" or name.startswith("on") or loads:
                self.refused.append((tag, name, value))
        if tag in ("iframe", "object", "embed", "base", "form"):
            self.refused.append((tag, "", ""))
        if tag in ("style", "script"):
            self.blocks.append([tag, ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("style", "script"):
            self.blocks[-1][1] += data
        else:
            self.words.append(data)


def directives(policy):
    parts = (each.split() for each in policy.split(";"))
    return {name: sources for name, *sources in parts}


def sha(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def checked(text, *, scripts=0):
    """A page that works under its policy, judged as a browser would; its ids are one of a kind."""
    page = Page(text)
    (found,) = page.policies
    # Nothing that comes before a policy in the page stands under it.
    assert not re.search(r"<(style|script|svg|body)", text[: text.index("Content-Security-Policy")])
    assert found["default-src"] == ["'none'"]
    assert not {"'unsafe-inline'", "'unsafe-eval'", "'unsafe-hashes'", "*"} & {
        source for sources in found.values() for source in sources
    }
    assert found["base-uri"] == found["form-action"] == ["'none'"]
    assert found["img-src"] == ["data:"]
    assert page.refused == []
    for tag, content in page.blocks:
        assert sha(content) in found[f"{tag}-src"], tag
    assert sum(tag == "script" for tag, _ in page.blocks) == scripts
    assert ("script-src" in found) is bool(scripts)
    # Or links and clip paths go astray.
    assert len(page.ids) == len(set(page.ids))
    assert all(anchor[1:] in page.ids for anchor in page.anchors)
    return page


# ---------------------------------------------------------------- what it shows


def test_every_section_that_has_something(whole_page):
    page = checked(whole_page)
    there = [name for name in SECTIONS if name != "audit"]  # of which there is none in this run
    assert [each for each in page.ids if each in SECTIONS] == there
    links = [anchor[1:] for anchor in page.anchors]
    assert links == ["summary", *there[1:]]  # past the head with one step
    for words in (
        "Few people <in> common", "To begin with: risa.", "about 4.0 s, 2.0 MB",
        "Rows completed 60", "The rows known to all grew from 30 to 90.",
        "telco's columns for bank's rows", "plan <x> nominal 0.60 strong 100 % 0 % 0 % 90 %",
        "72 of 180 labels contradict", "By VFL", "against the labels of clinic.",
        "Held-out rows are judged by corrected labels.",
        "VFL <1> 0.800 100 % 1.0 s", "RISA – 0 % 1.0 s no time left",
        "Training, 2 times", "2 min 5 s", "How sure, and do unsure rows err more",
        "3 rounds with 3 clients, 2 of them in each.", "Two agree.", "age <y> bank 100.0 %",
    ):  # fmt: skip
        assert words in page.text, words


def test_a_run_without_these_has_the_plain_sections(plain_page):
    page = checked(plain_page)
    assert [each for each in page.ids if each in SECTIONS] == [*ALWAYS[:2], "advice", *ALWAYS[2:]]
    for words in (
        "Bank & telco <test>", "0.905 ± 0.007",
        "but values made of them did: gradients to bank; embeddings of bank to the coordinator.",
        "The coordinator saw 421 messages, 5.1 MB in all.",
        "6 of bank's 10 rows (60 %) are not linked to telco", "method[vfl].epochs 5",
        "VFL did best, with AUC 0.905. The label party by itself (Local) reaches 0.805.",
        "AUC: of two rows of different classes",
    ):  # fmt: skip
        assert words in page.text, words
    assert "RMSE: how far" not in page.text and "against" not in page.text
    assert len(plain_page) < 400_000


def test_a_run_with_hardly_anything(record):
    bare = RunRecord("t", [MethodRun("vfl", "VFL", 0, {}, [], {}, 1.0)], "auc")
    page = checked(render(bare, []))
    assert [each for each in page.ids if each in SECTIONS] == ALWAYS
    assert "no epochs to draw" in page.text and "No overview was taken" in page.text


def test_in_short_when_nothing_is_gained(record):
    record.overview = None
    for run in record.methods:
        run.history = []
        run.scores["auc"] = 0.6 if run.title == "VFL" else 0.8
    assert "No method did better than Local" in render(record, [])
    for run in record.methods:
        run.scores["auc"] = 0.8
    assert "No method did better than Local" in render(record, [])  # as good is no better
    for run in record.methods:
        run.scores["auc"] = 0.9 if run.title == "VFL" else 0.8
    assert "VFL did best" in render(record, [])
    # As the note below it says, that is not all the label party has by itself.
    record.alone = {"party": "bank", "title": "LocalTrees", "scores": {"auc": 0.95}}
    assert "No method did better than LocalTrees: the label party by itself" in render(record, [])
    record.methods = [run for run in record.methods if run.title == "VFL"]
    assert "did best" not in render(record, [])


def test_whether_federation_pays_comes_first(record):
    said = "Federation does not pay here: beside own models auc -0.001."
    record.choice = CHOICE | {"why": [said], "kinds": {"shared": {}}}
    page = render(record, [])
    assert page.index(said) < page.index('class="verdict')
    record.methods[0].name = "local-trees"
    record.choice = None
    assert "The label party by itself" in render(record, [])


def test_rows_that_were_trained_on_are_not_called_new(record):
    assert "which no method was trained on" in render(record, [])
    record.seen = {"bank": [3, 40]}
    text = render(record, [])
    assert "some of which are training rows, too" in text and "no method was trained" not in text
    assert "3 of its 40 labelled test rows" in record.cautions()[0]


def test_a_variant_is_told_by_what_is_different(record):
    for run in record.methods:
        run.history = []
        run.about = "all parties together" + "; completed rows included" * (run.title == "VFL")
    page = render(record, [])
    assert page.count("all parties together") == 1 and "completed rows included" in page


def test_values_of_the_parties_cannot_break_the_page(record, entries):
    record.overview["label"]["name"] = "<script>alert(1)</script>"
    record.methods[0].title = record.methods[1].title = 'A "<b>" & $x$ method'
    text = render(record, entries)
    checked(text)
    # The second line: what got in unescaped would not run, for the policy admits the sheet alone.
    bad = "<script>alert(1)</script><style>*{background:url(//x)}</style><img src=//x onerror=a()>"
    hostile = Page(text.replace("</main>", f"{bad}</main>"))
    (found,) = hostile.policies
    assert "script-src" not in found  # default-src 'none' holds
    assert sha("*{background:url(//x)}") not in found["style-src"]
    assert [each[1] for each in hostile.refused] == ["src", "onerror"]


# ---------------------------------------------------------------- files and servers


def test_report_of_a_run_folder(record, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="not a run folder"):
        write_report(tmp_path)
    begun, folder = tmp_path / "run.part", tmp_path / "run"
    begun.mkdir()
    record.save(begun)
    ledger = Ledger(begun / "ledger.jsonl")
    ledger.record("bank", COORDINATOR, "Some.call", "label", Measure("3", "int64", 44, ""))
    ledger.close()
    (begun / "manifest.json").write_text(json.dumps({"stages": STAGES}))
    assert write_report(begun) == begun / REPORT_FILE
    begun.rename(folder)  # as a run does that has ended
    page = checked((folder / REPORT_FILE).read_text(encoding="utf-8"))
    assert "Values left in the clear: labels in the clear of bank to the coordinator." in page.text
    assert "2 min 5 s" in page.text
    monkeypatch.setattr(report_page, "read_ledger", lambda _: pytest.fail("it was read before"))
    assert "labels in the clear of bank" in run_banner(folder).left
    monkeypatch.undo()
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.record("telco", COORDINATOR, "Some.call", "label", Measure("3", "int64", 44, ""))
    ledger.close()
    assert "telco" in run_banner(folder).left
    assert sorted(each.name for each in folder.iterdir()) == [
        "ledger.jsonl", "manifest.json", "metrics.json", "report.html",
    ]  # fmt: skip


def test_an_audit(tmp_path):
    write_audit(tmp_path, "bank </title><script>alert(1)</script>", [])
    checked((tmp_path / PAGE_FILE).read_text(encoding="utf-8"))


def test_the_live_page_and_its_header(record, plain_page, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            for finished in (False, True):
                if finished:
                    (folder / REPORT_FILE).write_text(plain_page, encoding="utf-8")
                    record.save(folder)
                with urllib.request.urlopen(server.address) as reply:
                    (found,) = checked(reply.read().decode(), scripts=1).policies
                header = directives(reply.headers["Content-Security-Policy"])
                assert found["connect-src"] == ["'self'"] and len(found["script-src"]) == 1
                assert header == found | {"frame-ancestors": ["'none'"]}
                assert reply.headers["X-Content-Type-Options"] == "nosniff"
            # Answers that are no pages have a policy too.
            with urllib.request.urlopen(f"{server.address}state") as reply:
                assert json.load(reply)["finished"] is True
                assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(f"{server.address}elsewhere")
            with error.value as reply:
                header = directives(reply.headers["Content-Security-Policy"])
            assert header["default-src"] == ["'none'"]
        finally:
            server.stop()
            thread.join()
