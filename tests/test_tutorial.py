"""The tutorial works word by word: code and commands, in their order, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.md"
# Serves until it is interrupted; tests/test_watching.py looks at it.
STAYS = "fedmend watch"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(python|sh)\n(.*?)^```", TUTORIAL.read_text(), re.M | re.S)


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_word_by_word(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = []
    for language, text in blocks():
        if language == "python":
            commands = [[sys.executable, "-c", text]]
        else:
            commands = [
                [sys.executable, "-m", *shlex.split(line)]
                for line in text.splitlines()
                if not line.startswith(STAYS)
            ]
        for command in commands:
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            ran.append(command[2])
    assert ran.count("fedmend") == 6 and len(ran) == 8
    assert (tmp_path / "runs" / "federation" / "report.html").is_file()
    later = pd.read_csv(tmp_path / "looks-later.csv")
    for folder, known_to in (("predictions", "looks sizes"), ("predictions-alone", "looks")):
        found = pd.read_csv(tmp_path / folder / "looks" / "predictions.csv")
        assert found["id"].tolist() == later["patient"].tolist()
        assert set(found["known_to"]) == {known_to}
        assert found["uncertainty"].between(0, 1).all()
