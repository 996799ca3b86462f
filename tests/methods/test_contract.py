"""Every method keeps the contract and has a record that is true."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import fedmend as fm
from fedmend.errors import ConfigError, NotFitted
from fedmend.federation.bound import declared
from fedmend.methods.contract import Estimator, frame_of
from fedmend.methods.registry import (
    ANNOTATED,
    COMPLETIONS,
    HORIZONTAL,
    METHODS,
    contestants,
    make,
    record_of,
)

RECORDS = METHODS | COMPLETIONS
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_the_class_is(name):
    record, kind = RECORDS[name], RECORDS[name].load()
    assert issubclass(kind, Estimator)
    assert getattr(fm, record.class_name) is kind, "part of the public face"
    assert kind.__module__.startswith(f"fedmend.methods.{record.family}.")
    assert kind.horizontal == record.horizontal
    assert kind.takes_reference == record.annotators
    assert kind.predicts == (name in METHODS)
    assert (DOCS / f"{record.page}.md").is_file()
    assert record.words and len(record.words) <= 80
    assert declared()[name].calls, "a party knows which workers it may use"


@pytest.mark.parametrize("name", RECORDS)
def test_parameters_are_checked_before_anything_is_trained(name):
    made = make(name, {}, seed=5)
    made.check_params()
    assert made.get_params()["seed"] == 5
    for preset in type(made).PRESETS:
        assert type(made).preset(preset, seed=3).get_params()["seed"] == 3
        make(name, {"preset": preset}).check_params()
    with pytest.raises(ConfigError, match="has no preset 'papr'"):
        make(name, {"preset": "papr"})


@pytest.mark.parametrize("name", RECORDS)
def test_scikit_learns_conventions(name):
    kind = RECORDS[name].load()
    model = kind(seed=4)
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == f"{kind.__name__}(seed=4)" or name == "risa-images"
    assert model.set_params(seed=5).seed == 5
    for wrong in (model.set_params, kind):
        with pytest.raises(ConfigError, match=r"no parameter 'sed': did you mean 'seed'"):
            wrong(sed=4)
    if model.predicts:
        with pytest.raises(NotFitted, match=r"call fit\(fed\) first"):
            model.save("nowhere")


def test_lists_are_made_of_the_records():
    assert ANNOTATED == ("majority", "dawid-skene", "random-labeller", "inc")
    assert set(HORIZONTAL) == {name for name in METHODS if METHODS[name].family == "horizontal"}
    assert contestants(horizontal=False, annotators=False, torn=False) == (
        "local",
        "local-trees",
        "vfl",
        "boosting",
    )
    torn = {"horizontal": False, "annotators": False, "torn": True}
    assert contestants(**torn, numbers=False) == ("local", "local-trees", "boosting", "risa")
    assert contestants(**torn, numbers=True) == ("local", "local-trees", "boosting", "local-vfl")
    either = contestants(horizontal=False, annotators=False)
    assert either == ("local", "local-trees", "vfl", "boosting", "local-vfl", "risa")
    several = contestants(horizontal=False, annotators=True, torn=True)
    assert several == ("majority", "dawid-skene", "inc")
    assert contestants(horizontal=True, annotators=False, torn=True) == (
        "fedavg",
        "fixmatch",
        "sage",
    )
    assert record_of("majority").shown == "majority vote"
    assert record_of("vfl").shown == "VFL"
    with pytest.raises(ConfigError, match="did you mean 'risa'"):
        record_of("rsia")


def test_a_fitted_model_says_how_it_is_kept_in_place_of_a_pickle():
    for name in ("vfl", "fedpsg-pum"):
        kind = RECORDS[name].load()
        model = copy.deepcopy(kind(seed=4))
        assert pickle.dumps(model) and model.get_params() == kind(seed=4).get_params()
        model.fed_ = fm.Federation(fm.Party("bank", fm.Table([1, 2], {"a": [0.1, 0.2]})))
        how = rf"save\(folder\), and {kind.__name__}.load" if model.predicts else r"export\(name\)"
        for keep in (pickle.dumps, copy.deepcopy):
            with pytest.raises(ConfigError, match=how):
                keep(model)
        assert clone(model).get_params() == model.get_params()


# ------------------------------------------------------------------ predictions as a table

OUTPUTS = np.array([[0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("classes", "names", "predicted"),
    [
        ([0.0, 1.0], ["p(0)", "p(1)"], [0, 1]),
        ([0.5, 1.0], ["p(0.5)", "p(1)"], [0.5, 1]),
        (["no", "yes"], ["p(no)", "p(yes)"], ["no", "yes"]),
        ([False, True], ["p(False)", "p(True)"], [False, True]),
    ],
)
def test_classes_are_shown_as_they_were_written(classes, names, predicted):
    table = frame_of(classes, OUTPUTS, np.array([0.5, 0.7]), {"bank": np.ones(2)})
    assert list(table) == ["prediction", *names, "uncertainty", "share(bank)"]
    assert table["prediction"].tolist() == predicted
    assert table[names].to_numpy().tolist() == OUTPUTS.tolist()


def test_numbers_have_no_probabilities():
    table = frame_of(None, np.array([3.5, 4.0]), None, {})
    assert list(table) == ["prediction"] and table["prediction"].tolist() == [3.5, 4.0]
