"""The tutorial works word by word: code and commands, in their order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pandas as pd
import pytest

from fedmend import Auto
from fedmend.cli import main

pytestmark = pytest.mark.usefixtures("bare_report")


TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.md"
# Stay until they are interrupted: tests/test_watching.py looks at the first, the second is below.
WATCH, SERVE, ASK = "fedmend watch", "fedmend serve", "curl"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(python|sh)\n(.*?)^```", TUTORIAL.read_text(), re.M | re.S)


class Reader:
    """Does what the page says, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.server: subprocess.Popen[str] | None = None
        self.answer: dict = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def run(self, words: list[str]) -> None:
        try:
            main(words)
        except SystemExit as stopped:
            assert not stopped.code, words

    def line(self, line: str) -> None:
        self.ran.append(" ".join(line.split()[:2]))
        line = line.replace("8400", str(self.port))
        if line.startswith(SERVE):
            self.server = subprocess.Popen(
                [sys.executable, "-m", *shlex.split(line)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self.server.stdout is not None
            assert str(self.port) in self.server.stdout.readline()
        elif line.startswith(ASK):
            self.ask(shlex.split(line))
        elif not line.startswith(WATCH):
            assert line.startswith("fedmend ")
            words = shlex.split(line)[1:]
            if words[0] == "run":
                self.change(self.folder / "federation.toml")
            self.run(words)

    def change(self, file: Path) -> None:
        """Fewer epochs, folds and candidates than a reader would wait for."""
        text, auto = file.read_text(encoding="utf-8"), '[[method]]\nname = "auto"'
        assert text.count(auto) == 1
        file.write_text(
            text.replace(auto, f'{auto}\nepochs = 3\nfolds = 2\ncandidates = ["local", "vfl"]'),
            encoding="utf-8",
        )

    def ask(self, words: list[str]) -> None:
        """What curl would send, without needing it."""
        url = next(word for word in words if word.startswith("http://"))
        content = words[words.index("-d") + 1]
        assert content.startswith("@")
        body = (self.folder / content[1:]).read_bytes()
        with urllib.request.urlopen(url, data=body, timeout=60) as reply:
            self.answer = json.load(reply)

    def end(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGTERM)
            self.server.communicate(timeout=30)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Reader(tmp_path)
    yield found
    found.end()


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_word_by_word(reader, tmp_path, monkeypatch):
    less = {"folds": 2, "settings": {"epochs": 3}, "candidates": ("local", "vfl")}
    for name, value in less.items():
        monkeypatch.setitem(Auto.__init__.__kwdefaults__, name, value)  # of the page's Python
    for language, text in blocks():
        if language == "python":
            exec(compile(text, "docs/tutorial.md", "exec"), {})
        else:
            for line in text.splitlines():
                reader.line(line)
    assert reader.ran == [
        "fedmend init", "fedmend check", "fedmend run", "fedmend watch", "fedmend ledger",
        "fedmend predict", "fedmend predict", "fedmend serve", "curl -s",
    ]  # fmt: skip
    assert (tmp_path / "runs" / "federation" / "report.html").is_file()
    later = pd.read_csv(tmp_path / "looks-later.csv")
    for folder, known_to in (("predictions", "looks sizes"), ("predictions-alone", "looks")):
        found = pd.read_csv(tmp_path / folder / "looks" / "predictions.csv")
        assert found["id"].tolist() == later["patient"].tolist()
        assert set(found["known_to"]) == {known_to}
        assert found["uncertainty"].between(0, 1).all()
    served = reader.answer["predictions"]["looks"]
    assert [row["id"] for row in served] == later["patient"].head(2).tolist()
    for row, alone in zip(served, found.to_dict("records"), strict=False):
        assert row["prediction"] == alone["prediction"]
        assert row["p(malignant)"] == pytest.approx(alone["p(malignant)"], abs=1e-4)
