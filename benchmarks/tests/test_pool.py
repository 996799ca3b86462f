"""Measurements side by side, and the names that options take."""

from __future__ import annotations

import math
import os

import pytest

from fedmend.errors import ConfigError
from fedmend_bench.options import chosen, listed
from fedmend_bench.pool import side_by_side

THREADS = ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]


def test_processes_have_a_thread_each_and_leave_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(THREADS[0], "3")
    monkeypatch.delenv(THREADS[1], raising=False)
    assert dict(side_by_side(os.getenv, THREADS, 2)) == dict.fromkeys(THREADS, "1")
    assert [os.getenv(name) for name in THREADS] == ["3", None]


def test_one_process_is_this_one() -> None:
    assert list(side_by_side(math.sqrt, [4.0, 9.0], 1)) == [(4.0, 2.0), (9.0, 3.0)]
    assert list(side_by_side(lambda each: os.getpid(), [0], 8)) == [(0, os.getpid())]


def test_values_of_an_option() -> None:
    assert listed(" bank,, credit ") == ["bank", "credit"]
    assert listed("") == []
    assert listed(0.5) == [0.5]
    assert listed(range(2)) == [0, 1]


def test_names_of_an_option() -> None:
    known = {"VFL": 1, "RISA": 2}
    assert chosen("methods", "all", known) == ["VFL", "RISA"]
    assert chosen("methods", ["none"], known) == []
    assert chosen("methods", "RISA", known) == ["RISA"]
    with pytest.raises(ConfigError) as caught:
        chosen("methods", "VLF,RISA,9", known)
    assert caught.value.problems == [
        "methods: there is no 'VLF': did you mean 'VFL'?",
        "methods: there is no '9': choose from: RISA, VFL",
    ]
