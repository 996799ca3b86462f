"""Every page says what a browser may do with it, and needs nothing that its policy refuses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fedmend.audit.page import PAGE_FILE, write_audit
from fedmend.federation.ledger import Ledger
from fedmend.report import plots
from fedmend.report.page import REPORT_FILE, render, write_report
from fedmend.serve.watching import WatchServer


class Page(HTMLParser):
    """What is in a page that a policy has a say in."""

    def __init__(self, text):
        super().__init__()
        self.policies, self.blocks, self.refused, self._in = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if found.get("http-equiv", "").lower() == "content-security-policy":
            self.policies.append(found["content"])
        for name, value in found.items():
            link = name in ("src", "href", "xlink:href", "action", "formaction", "srcset")
            loads = link and not (value or "").startswith(("#", "data:"))
            if name == "style" or name.startswith("on") or loads:
                self.refused.append((tag, name, value))
        if tag in ("iframe", "object", "embed", "base", "form"):
            self.refused.append((tag, "", ""))
        if tag in ("style", "script"):
            self._in = tag
            self.blocks.append([tag, ""])

    def handle_endtag(self, tag):
        if tag == self._in:
            self._in = None

    def handle_data(self, data):
        if self._in:
            self.blocks[-1][1] += data


def directives(policy):
    parts = (each.split() for each in policy.split(";"))
    return {name: sources for name, *sources in parts}


def sha(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def checked(text, *, scripts=0):
    """The policy of a page that works under it, judged as a browser would."""
    page = Page(text)
    assert len(page.policies) == 1
    # Nothing that comes before a policy in the page stands under it.
    assert not re.search(r"<(style|script|svg|body)", text[: text.index("Content-Security-Policy")])
    found = directives(page.policies[0])
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
    return found


def test_a_report(whole, full_record, record, entries, tmp_path):
    for each in (whole, full_record, record):
        checked(render(each, entries))
    record.save(tmp_path)
    Ledger(tmp_path / "ledger.jsonl").close()
    assert write_report(tmp_path).name == REPORT_FILE
    checked((tmp_path / REPORT_FILE).read_text(encoding="utf-8"))


def test_an_audit(tmp_path):
    write_audit(tmp_path, "bank </title><script>alert(1)</script>", [])
    checked((tmp_path / PAGE_FILE).read_text(encoding="utf-8"))


def test_a_value_that_got_in_unescaped_would_not_run(record, entries):
    """The second line: the policy admits the page's own sheet alone."""
    text = render(record, entries)
    bad = "<script>alert(1)</script><style>*{background:url(//x)}</style><img src=//x onerror=a()>"
    hostile = text.replace("</main>", f"{bad}</main>")
    page = Page(hostile)
    found = directives(page.policies[0])
    assert "script-src" not in found  # default-src 'none' holds
    assert sha("*{background:url(//x)}") not in found["style-src"]
    assert [each[1] for each in page.refused] == ["src", "onerror"]


@pytest.fixture
def served(tmp_path):
    (tmp_path / "run").mkdir()
    with WatchServer(tmp_path / "run") as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield tmp_path / "run", server.address
        server.stop()
        thread.join()


def test_the_live_page_and_its_header(served, record, entries):
    folder, address = served
    for finished in (False, True):
        if finished:
            (folder / REPORT_FILE).write_text(render(record, entries), encoding="utf-8")
            record.save(folder)
        with urllib.request.urlopen(address) as reply:
            found = checked(reply.read().decode(), scripts=1)
            header = directives(reply.headers["Content-Security-Policy"])
        assert found["connect-src"] == ["'self'"] and len(found["script-src"]) == 1
        assert header == found | {"frame-ancestors": ["'none'"]}
        assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_answers_that_are_no_pages_have_a_policy_too(served):
    _, address = served
    with urllib.request.urlopen(f"{address}state") as reply:
        assert json.load(reply)["finished"] is False
        assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"]
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{address}elsewhere")
    with error.value as reply:
        found = directives(reply.headers["Content-Security-Policy"])
    assert found["default-src"] == ["'none'"]


def test_pictures_keep_what_their_styles_said(record):
    """As attributes: the same colours and widths, no style, and still XML."""
    with plots.styled():
        figure, (axes,) = plots.new_figure(4, 3)
        axes.plot([1, 2], [3, 4], "--", color=plots.SERIES[0], alpha=0.5, linewidth=3)
        axes.bar([1, 2], [1, 2], color="#123456")
        drawn = plots.to_svg(figure, "some", "a <title>")
    root = ElementTree.fromstring(
        drawn.replace("xlink:href", "href").replace("<svg", '<svg xmlns:x="x"', 1)
    )
    nodes = list(root.iter())
    assert not any("style" in node.attrib or node.tag.endswith("style") for node in nodes)
    assert any(node.get("fill") == "#123456" for node in nodes)
    line = next(node for node in nodes if node.get("stroke-dasharray"))
    assert line.get("stroke") == "var(--s1)" and line.get("fill") == "none"
    assert (line.get("stroke-width"), line.get("stroke-opacity")) == ("3", "0.5")
    texts = [node for node in nodes if node.tag.endswith("text")]
    assert texts and all(node.get("font-size") and not node.get("font-family") for node in texts)
