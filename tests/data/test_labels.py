"""Labels: task inference, classes, targets, and what cannot be a label."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import LabelEncoder as Reference

from fedmend.data import LabelEncoder, infer_column
from fedmend.errors import DataError, NotFitted


def fit(values, kind=None, **options):
    series = pd.Series(values, name="y")
    column = infer_column("y", series, kind)
    return LabelEncoder(**options).fit(series, column, party="bank"), series


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["no", "yes", "no"], "binary", ["no", "yes"]),
        ([True, False], "binary", [False, True]),
        ([1, 2, 1], "binary", [1, 2]),
        (["a", "b", "c"], "multiclass", ["a", "b", "c"]),
        ([0, 1, 2] * 5, "multiclass", [0, 1, 2]),
        (list(range(31)) * 2, "regression", []),
        ([3, 1, 4, 15, 9, 2], "regression", []),
        ([0.5, 1.5, 2.5], "regression", []),
        (
            pd.Categorical(["hi", "lo", "mid"], categories=["lo", "mid", "hi"], ordered=True),
            "multiclass",
            ["lo", "mid", "hi"],
        ),
        (pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"]), "binary", ["b", "a"]),
    ],
)
def test_task_and_classes(values, task, classes):
    encoder, series = fit(values)
    assert (encoder.task, encoder.classes_) == (task, classes)
    if task != "regression":
        assert encoder.inverse(encoder.transform(series)).tolist() == list(series)


def test_classes_are_numbered_as_scikit_learn_does():
    rng = np.random.default_rng(0)
    values = rng.choice(np.array(["x", "bb", "a", "Zz"], dtype=object), 50)
    encoder, series = fit(values)
    assert np.array_equal(encoder.transform(series), Reference().fit_transform(values))
    assert encoder.transform(series).dtype == np.int64


def test_regression_is_standardised_and_comes_back():
    encoder, series = fit([1.5, 2.0, 7.25, None])
    found = encoder.transform(series)
    assert found.dtype == np.float32 and np.isnan(found[3])
    np.testing.assert_allclose(np.nanmean(found), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(found), 1, atol=1e-6)
    np.testing.assert_allclose(encoder.inverse(found), series, rtol=1e-6)
    assert encoder.inverse(found).dtype == np.float64
    constant, series = fit([2.5, 2.5, 2.5], task="regression")
    assert constant.scale_ == 1 and constant.transform(series).tolist() == [0, 0, 0]


def test_task_can_be_said():
    assert fit([1, 2, 3, 4], task="multiclass")[0].classes_ == [1, 2, 3, 4]
    assert fit([0, 1, 2] * 5, task="regression")[0].mean_ == 1.0
    assert fit([0, 1, 0], task="regression")[0].task == "regression"
    assert fit(["a", "b"], task="multiclass")[0].task == "multiclass"


def test_missing_labels_are_minus_one_or_nan():
    encoder, series = fit(["no", None, "yes"])
    assert encoder.transform(series).tolist() == [0, -1, 1]
    assert encoder.inverse(np.array([1, -1])).tolist() == ["yes", None]
    numbers, series = fit(pd.array([1, None, 2, 1], dtype="Int64"))
    assert numbers.transform(series).tolist() == [0, -1, 1, 0]


def test_types_come_back():
    small, series = fit(np.array([3, 7, 3], dtype=np.int8))
    assert small.inverse(small.transform(series)).dtype == np.int8
    flags, series = fit([True, False])
    assert flags.inverse(np.array([1, 0])).dtype == bool
    nullable, _ = fit(pd.array([1, None, 2], dtype="Int64"))
    assert nullable.inverse(np.array([1, 0])).dtype == np.int64


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        (["no", "no", None], {}, r"one class only.*seen: 'no'"),
        ([1, 1, 1, 1], {}, r"one class only.*seen: 1"),
        ([None, None], {}, "all 2 labels are missing"),
        (["a", "b", "c"], {"task": "binary"}, "3 classes"),
        (["a", "b"], {"task": "regression"}, "cannot be a regression target"),
    ],
)
def test_what_cannot_be_a_label(values, options, says):
    with pytest.raises(DataError, match=f"party 'bank', column 'y': .*{says}") as caught:
        fit(values, **options)
    assert caught.value.mend


def test_labels_never_seen_or_of_another_type():
    encoder, _ = fit(["no", "yes"])
    with pytest.raises(DataError, match=r"party 'telco', column 'y'.*seen: 'maybe'.*known classes"):
        encoder.transform(pd.Series(["no", "maybe"]), party="telco")
    with pytest.raises(DataError, match="type changed"):
        encoder.transform(pd.Series([0, 1]))
    for wrong in ([2], [-2]):
        with pytest.raises(DataError, match="must lie in"):
            encoder.inverse(np.array(wrong))


def test_not_fitted_and_unknown_task():
    with pytest.raises(NotFitted):
        LabelEncoder().transform(pd.Series([1]))
    with pytest.raises(DataError, match="unknown task"):
        LabelEncoder("clustering")


@pytest.mark.parametrize(
    "values", [["b", "a", None], [1, 2, 3] * 3, [0.5, 2.5, 3.5], [True, False]]
)
def test_json_gives_an_equal_encoder(values):
    encoder, series = fit(values)
    copy = LabelEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(copy.transform(series), encoder.transform(series))
    assert (copy.task, copy.classes_, copy.scale_) == (
        encoder.task,
        encoder.classes_,
        encoder.scale_,
    )
