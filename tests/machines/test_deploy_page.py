"""docs/deploy.md word by word: from nothing to a consent in the browser and a served answer.

Every command of the page is a process in an empty folder, in the page's order; those that stay
until Ctrl-C get one at the end. What the page says once for the bank and means for each party is
done at the telco too. Only the ports are others: free ones.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.docs.test_blocks import blocks, customers

from .conftest import Page, free_port, told_what_it_costs, wait_until

pytestmark = pytest.mark.slow

PAGE = "docs/deploy.md"
PORTS = ("8102", "8443", "8400")
EACH_PARTY = ("fedmend party check", "fedmend party start")
STAYING = ("fedmend party start", "fedmend console", "fedmend party serve", "fedmend serve ")
DONE = ["provision", "party confirm", "server start", "party check", "party start", "console"]
DONE += ["run", "ledger", "party serve", "serve", "curl"]


class Staying:
    """A command that stays until Ctrl-C, and what it has said."""

    def __init__(self, words, folder, number):
        self._said = folder / f"said-{number}.txt"
        with self._said.open("w") as out:
            self.process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=out)

    def says(self, words):
        """Wait until it has said something of this form."""
        wait_until(lambda: re.search(words, self.said) or self.process.poll() is not None, 90)
        found = re.search(words, self.said)
        assert found, self.said
        return found

    @property
    def said(self):
        return self._said.read_text()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Reader:
    """Does what the page says."""

    def __init__(self, folder):
        self.folder, self.ports = folder, {port: str(free_port()) for port in PORTS}
        self.staying: dict[str, Staying] = {}
        self.ran: list[str] = []

    def with_ports(self, text):
        for port, free in self.ports.items():
            text = text.replace(port, free)
        return text

    def words(self, line):
        return ["/bin/sh", "-c", line.replace("fedmend", f"{sys.executable} -m fedmend", 1)]

    def stay(self, line):
        self.staying[line] = made = Staying(
            self.words("exec " + line), self.folder, len(self.staying)
        )
        return made

    def do(self, line):
        done = subprocess.run(self.words(line), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def end(self):
        for each in reversed(self.staying.values()):
            each.end()


@pytest.fixture
def reader(tmp_path):
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        try:
            made.end()
        finally:
            made.do("fedmend server stop kits")


def test_the_page_from_nothing_to_a_consent_and_an_answer(reader, browser, monkeypatch):
    folder = reader.folder
    scope = customers(folder)
    page, told = Page(browser, 240.0), {}  # processes may take their time to start
    for block in blocks(PAGE):
        text = reader.with_ports(block.text)
        if block.language == "":
            _written(reader, text, told)
        elif block.language == "json":
            _as_shown(told["answer"], json.loads(block.text))
        elif block.language == "python":
            monkeypatch.chdir(folder)
            with told_what_it_costs(), ThreadPoolExecutor() as beside:
                clicked = beside.submit(_say_yes, page)
                exec(compile(text, PAGE, "exec"), scope)
                clicked.result()
            assert scope["model"].predict_proba(scope["fed"]) is not None
            scope["fed"].close()
        for line in block.commands if block.language == "sh" else ():
            if line.startswith("pip install"):
                continue
            _done(reader, reader.with_ports(line), page, told)
    assert reader.ran == DONE
    left = reader.staying["fedmend party start kits/bank"].said
    for words in told["screen"]:
        assert re.search(words, left), f"{words}\n{left}"


def _written(reader, text, told):
    """A block that is a file, or what a screen shows."""
    if "[[party]]" in text:
        (reader.folder / "federation.toml").write_text(text)
    elif text.startswith('name = "bank"'):
        shutil.copy(reader.folder / "bank.csv", reader.folder / "kits" / "bank")
        (reader.folder / "kits" / "bank" / "party.toml").write_text(text)
    else:  # times, sizes and counts are those of other tables
        lines = [re.escape(line.split("  ", 1)[1]) for line in text.splitlines()]
        told["screen"] = [re.sub(r"(\d+(,|x)?)+|×\d+", r"[\\d,x×]+", each) for each in lines]


def _done(reader, line, page, told):
    reader.ran.append(re.match(r"fedmend ((?:party |server )?[a-z]+)|curl", line)[1] or "curl")
    lines = [line]
    if line.startswith(EACH_PARTY):
        lines.append(line.replace("kits/bank", "kits/telco"))
    for each in lines:
        if not each.startswith(STAYING):
            continue
        reader.stay(each)
    if line.startswith("fedmend console"):
        link = reader.staying[line].says(r"http://127\.0\.0\.1:\d+/\?token=\S+")[0]
        page.browser.get(link)
        page.says("Nothing waits for an answer")
    elif line.startswith("fedmend run"):
        running = reader.stay(line)
        _say_yes(page)
        assert running.process.wait(300) == 0, running.said
    elif line.startswith("curl"):
        told["answer"] = json.loads(reader.do(line))
    elif line.startswith("fedmend party serve"):
        reader.staying[line].says("telco answers at")
    elif line.startswith("fedmend serve "):
        reader.staying[line].says("answers with VFL")
    elif not line.startswith(STAYING):
        for each in lines:
            reader.do(each)


def _say_yes(page):
    page.says("May the coordinator run")
    page.click("Yes, this run")
    page.says("yes: run '")


def _as_shown(answer, shown):
    """The same but for the numbers."""
    (rows,), (expected,) = answer["predictions"].values(), shown["predictions"].values()
    assert [[*row] for row in rows] == [[*row] for row in expected]
    for key in ("id", "used", "absent"):
        assert [row[key] for row in rows] == [row[key] for row in expected]
    assert (answer["method"], answer["notes"]) == (shown["method"], shown["notes"])
