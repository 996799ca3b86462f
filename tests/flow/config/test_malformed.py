"""Whatever stands in a federation.toml: one ConfigError with all of it, never a crash."""

from __future__ import annotations

import contextlib
import copy
import datetime
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.flow.config import load_config
from fedmend.flow.config.loading import _EXAMPLES
from fedmend.flow.config.rewriting import toml_text

FULL = {
    "recipe": "correct-auto",
    "run": {"seeds": [0, 1], "folder": "x", "device": "cpu", "leave_out": ["report"]},
    "party": [
        {
            "name": "bank",
            "data": "bank.csv",
            "id": "customer",
            "label": "default",
            "kinds": {"postcode": "nominal", "grade": ["a", "b"]},
            "missing": ["?"],
            "policy": {
                "allow": ["control", "count", "row"],
                "refuse": ["weights"],
                "min_intersection": 10,
            },
        },
        {"name": "telco", "sql": "select 1", "uri": "sqlite:///x.db", "id": "customer"},
    ],
    "align": {"mode": "ecdh", "minimum": 3},
    "complete": {"source": "bank", "rounds": 1},
    "correct": {"to": "bank", "labellers": ["bank", "telco"], "rows": "aligned", "epochs": 3},
    "method": [
        {"name": "vfl", "epochs": 3, "label_party": "bank"},
        {"name": "inc", "label_parties": ["bank"]},
        {"name": "auto", "candidates": ["vfl"], "folds": 3, "budget": 10},
    ],
    "evaluate": {"metrics": ["auc"], "test_share": 0.2, "reference": "bank"},
    "predict": {"alone": ["bank"]},
    "flare": {"host": "localhost", "port": 8102},
}
ODD = (
    *(True, 0, -1, 10**30, 1.5, float("inf"), float("nan"), "", "bank", "auto", "sage"),
    *([], ["bank"], [[]], [1], [{}], [{"name": ["x"]}], [{"name": "sage"}], ["a", {"b": 1}]),
    *({}, {"name": "x"}, {"a": {"b": [1]}}, datetime.date(2026, 1, 2)),
)


def places(value, path=()):
    """Where something stands in a file, table by table."""
    if path:
        yield path
    inside = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inside:
        yield from places(each, (*path, key))


def changed(content, path, value):
    content = copy.deepcopy(content)
    here = content
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = copy.deepcopy(value)
    return content


def load(content, monkeypatch):
    monkeypatch.setattr("fedmend.flow.config.loading._parse", lambda path: content)
    found = load_config("federation.toml")
    # What a run asks of a file first.
    return found.horizontal, found.labellers, found.folder, found.title, found.shown()


@pytest.mark.parametrize("without", [(), ("recipe",), ("recipe", "complete", "correct", "flare")])
@given(st.data())
def test_odd_values_anywhere_are_problems_and_no_crash(without, data):
    content = {key: value for key, value in FULL.items() if key not in without}
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(content))))
        content = changed(content, path, data.draw(st.sampled_from(ODD)))
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ConfigError):
        load(content, patch)


def test_examples_in_mends_are_valid_themselves():
    content = copy.deepcopy(FULL)
    del content["complete"], content["correct"], content["flare"]
    content["method"] = [{"name": "vfl"}]
    content["party"][1]["label"] = "default"  # a recipe is for several who label
    file = {
        **{("run", key): key for key in ("seed", "seeds", "device", "strict", "folder")},
        **{("run", key): key for key in ("leave_out", "keep_stages")},
        **{("evaluate", key): key for key in ("metrics", "test_share", "reference")},
        **{("party", 0, key): key for key in ("name", "data", "id", "label")},
        ("party", 0, "policy", "min_intersection"): "min_intersection",
        ("align", "minimum"): "minimum",
        ("predict", "alone"): "alone",
        ("recipe",): "recipe",
    }
    for path, key in file.items():
        content = changed(content, path, tomllib.loads(f"x = {_EXAMPLES[key]}")["x"])
    with pytest.MonkeyPatch.context() as patch:
        load(content, patch)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("party", 0, "name"), ["bank"], r"party\[1\].name must be text in quotes"),
        (("method", 0, "name"), ["vfl"], r"method\[1\].name must be text in quotes"),
        (("method", 0, "label_party"), ["bank"], r"method\[vfl\].label_party must be text"),
        (("method", 2, "candidates"), [["vfl"]], r"candidates\[1\] must be text in quotes"),
        (("party",), "bank", "party must be a list"),
        (("method",), [], "method is empty"),
    ],
)
def test_what_is_malformed_is_named(tmp_path, path, value, words):
    content = changed(FULL, path, value)
    del content["recipe"]
    file = tmp_path / "federation.toml"
    file.write_text(toml_text(content))
    with pytest.raises(ConfigError, match=words):
        load_config(file)
