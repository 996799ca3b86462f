"""Annotators and uneven clients: rates, matrices, shares."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import Table
from fedmend.data.crowds import (
    _share_chunk,
    client_rows,
    labelled_rows,
    split_clients,
    transitions,
)
from fedmend.data.scenario import annotators, dirichlet_clients
from fedmend.errors import DataError

N = 20_000
TRUTH = np.random.default_rng(0).integers(0, 4, N)


def confusion(said, annotator):
    """Observed P(said | true)."""
    counts = np.zeros((4, 4))
    np.add.at(counts, (TRUTH, said[:, annotator]), 1)
    return counts / counts.sum(axis=1, keepdims=True)


def test_symmetric():
    said = annotators(TRUTH, rates=[0.0, 0.3, 0.75], seed=1)
    assert said.shape == (N, 3) and said.dtype == np.int64
    assert np.array_equal(said[:, 0], TRUTH)
    expected = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    np.testing.assert_allclose(confusion(said, 1), expected, atol=0.02)
    np.testing.assert_allclose(confusion(said, 2), 0.25, atol=0.02)


def test_pair_flip():
    said = annotators(TRUTH, rates=[0.4], kind="pair-flip")[:, 0]
    wrong = said != TRUTH
    assert abs(wrong.mean() - 0.4) < 0.02
    assert np.array_equal(said[wrong], (TRUTH[wrong] + 1) % 4)


def test_asymmetric_rates_differ_by_class_around_the_rate():
    said = annotators(TRUTH, rates=[0.3, 0.3], kind="asymmetric", seed=2)
    right = np.stack([np.diag(confusion(said, k)) for k in range(2)])
    np.testing.assert_allclose(right.mean(axis=1), 0.7, atol=0.02)
    assert right.std(axis=1).min() > 0.02 and not np.allclose(right[0], right[1], atol=0.03)


def test_rates_per_class_are_kept():
    said = annotators(TRUTH, rates=[[0.0, 0.1, 0.5, 0.9]], kind="asymmetric")
    np.testing.assert_allclose(np.diag(confusion(said, 0)), [1.0, 0.9, 0.5, 0.1], atol=0.02)


def test_a_matrix_may_be_given():
    matrix = np.array([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0.9, 0.1]])
    said = annotators(TRUTH, transition=matrix, rates=[0, 0])
    assert said.shape == (N, 2)
    for annotator in range(2):
        np.testing.assert_allclose(confusion(said, annotator), matrix, atol=0.02)
    each = annotators(TRUTH, transition=np.stack([matrix, np.eye(4)]))
    assert np.array_equal(each[:, 1], TRUTH)


def test_missing_answers_and_unknown_truth():
    truth = TRUTH.copy()
    truth[:100] = -1
    said = annotators(truth, rates=[0.1] * 5, missing=0.4)
    assert (said[:100] == -1).all()
    assert abs((said[100:] == -1).mean() - 0.4) < 0.01
    assert (annotators(TRUTH, rates=[0.1], missing=1.0) == -1).all()


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(2, 6),
    st.sampled_from(["symmetric", "pair-flip", "asymmetric"]),
)
def test_transitions_are_probabilities(rates, n_classes, kind):
    matrices = transitions(rates, n_classes, kind=kind)
    assert matrices.shape == (len(rates), n_classes, n_classes)
    assert (matrices >= 0).all()
    np.testing.assert_allclose(matrices.sum(axis=2), 1.0)


@pytest.mark.parametrize(
    ("y", "options", "says"),
    [
        (["a", "b"], {"rates": [0.1]}, "class numbers are needed"),
        ([0.5, 1.5], {"rates": [0.1]}, "class numbers are needed"),
        ([0, 0], {"rates": [0.1]}, "at least two classes"),
        ([0, 5], {"rates": [0.1], "n_classes": 3}, "must lie in"),
        ([0, -2, 1], {"rates": [0.1]}, "must lie in"),
        ([0, 1], {}, "neither rates"),
        ([0, 1], {"rates": [1.5]}, "error rate"),
        ([0, 1], {"rates": [[0.1, 0.1, 0.1]]}, "error rate"),
        ([0, 1], {"rates": [0.1], "kind": "evil"}, "unknown kind of annotator"),
        ([0, 1], {"rates": [0.1], "missing": 2}, "missing must be a share"),
        ([0, 1], {"transition": [[1, 1], [0, 1]]}, "rows summing to 1"),
        ([0, 1], {"transition": np.eye(3)}, "2 x 2"),
    ],
)
def test_bad_annotators(y, options, says):
    with pytest.raises(DataError, match=says) as caught:
        annotators(y, **options)
    assert caught.value.mend


def unevenness(clients, y):
    shares = [np.bincount(y[rows], minlength=4) / len(rows) for rows in clients]
    return float(np.mean([np.abs(share - 0.25).sum() for share in shares]))


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 1.0]))
def test_of_a_pair_who_has_the_mean_size_gets_no_more(seed, alpha):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, 400)
    chunk = rng.permutation(400)[:200]
    sides = _share_chunk(labels, chunk, alpha, rng)
    assert sorted(np.concatenate(sides)) == sorted(chunk)
    assert min(map(len, sides)) >= 50
    for side in sides:
        counts = np.bincount(labels[side], minlength=10)
        before = counts.cumsum() - counts
        assert (counts[before >= 100] == 0).all()


def test_small_alpha_is_uneven_and_paired_is_milder():
    plain = {a: dirichlet_clients(TRUTH, 10, a, seed=1, min_rows=20) for a in (0.1, 100.0)}
    assert unevenness(plain[0.1], TRUTH) > 0.8 and unevenness(plain[100.0], TRUTH) < 0.2
    paired = dirichlet_clients(TRUTH, 10, 0.1, seed=1, style="paired")
    assert (
        unevenness(plain[100.0], TRUTH) < unevenness(paired, TRUTH) < unevenness(plain[0.1], TRUTH)
    )
    assert min(map(len, plain[0.1])) >= 20


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((TRUTH, 0, 1.0), {}, "cannot be dealt"),
        ((TRUTH, 5, 0.0), {}, "cannot be dealt"),
        ((TRUTH[:10], 5, 1.0), {"min_rows": 3}, "cannot be dealt"),
        ((TRUTH, 5, 1.0), {"style": "fancy"}, "unknown style"),
        ((TRUTH, 5, 1.0), {"style": "paired"}, "even number"),
        ((TRUTH[:100], 10, 0.01), {"min_rows": 10}, "no draw in"),
    ],
)
def test_bad_clients(arguments, options, says):
    with pytest.raises(DataError, match=says) as caught:
        dirichlet_clients(*arguments, **options)
    assert caught.value.mend


@pytest.mark.parametrize("rate", [float("nan"), -0.1, 1.1, [0.1, float("nan")]])
def test_an_error_rate_is_a_share(rate):
    with pytest.raises(DataError, match="an error rate must be a number between 0 and 1"):
        annotators(np.array([0, 1]), rates=[rate])


def test_rounding_in_a_transition_makes_no_further_class():
    almost = np.array([[0.5, 0.499991], [0.0, 0.999991]])  # rows of about 1, as thirds would be
    said = annotators(np.tile([0, 1], 50_000), transition=almost, seed=3)
    assert set(np.unique(said)) == {0, 1}


# --- clients with few labels --------------------------------------------------------

Y = np.random.default_rng(0).integers(0, 5, 2000)


def test_labelled_rows_are_even_over_the_classes() -> None:
    rows = labelled_rows(Y, 20, seed=1)
    assert np.bincount(Y[rows]).tolist() == [20] * 5
    assert len(set(rows.tolist())) == 100
    share = labelled_rows(Y, 0.1, seed=1)
    assert np.bincount(Y[share]).tolist() == [round(0.1 * n) for n in np.bincount(Y)]
    assert not np.array_equal(rows, labelled_rows(Y, 20, seed=2))


@settings(max_examples=15)
@given(
    st.integers(1, 6),
    st.sampled_from([None, 0.1, 0.5, 10.0]),
    st.sampled_from(["plain", "paired"]),
    st.integers(0, 99),
)
def test_every_row_goes_to_one_client(
    half: int, alpha: float | None, style: str, seed: int
) -> None:
    clients = client_rows(Y, 2 * half, alpha, labelled=40, style=style, seed=seed)
    everything = np.concatenate([client.all for client in clients])
    assert np.array_equal(np.sort(everything), np.arange(len(Y)))
    labelled = np.concatenate([client.labelled for client in clients])
    assert np.bincount(Y[labelled]).tolist() == [40] * 5
    again = client_rows(Y, 2 * half, alpha, labelled=40, style=style, seed=seed)
    assert all(np.array_equal(a.all, b.all) for a, b in zip(clients, again, strict=True))


def test_labelled_and_unlabelled_rows_of_a_client_differ_in_their_classes() -> None:
    y = np.repeat(np.arange(10), 500)
    for client in client_rows(y, 10, 0.1, labelled=50, style="paired", seed=3)[:3]:
        one = np.bincount(y[client.labelled], minlength=10) / len(client.labelled)
        two = np.bincount(y[client.unlabelled], minlength=10) / len(client.unlabelled)
        assert np.abs(one - two).sum() > 0.3


@pytest.mark.parametrize("values", [Y, np.array(list("abcde"))[Y], Y > 2, Y.astype(float) + 0.5])
def test_clients_of_a_table_keep_columns_and_lose_labels(values: np.ndarray) -> None:
    frame = pd.DataFrame({"a": np.arange(2000.0), "y": values})
    table = Table(np.arange(2000), frame, label="y", kinds={"y": "nominal"})
    tables = split_clients(table, 4, alpha=0.5, labelled=0.05, seed=0)
    assert list(tables) == ["client-01", "client-02", "client-03", "client-04"]
    assert sum(len(each) for each in tables.values()) == 2000
    labelled = 0
    for each in tables.values():
        assert each.names == table.names
        assert each.label == "y"
        known = each.y.notna().to_numpy()
        labelled += int(known.sum())
        whole = table.y.iloc[each.ids]
        assert (each.y[known].tolist()) == whole[known].tolist()
    assert labelled == len(labelled_rows(values, 0.05))


def test_bad_requests_say_what_to_do() -> None:
    with pytest.raises(DataError, match="whole number of rows per class"):
        labelled_rows(Y, 1.5)
    with pytest.raises(DataError, match="fewer than 9000"):
        labelled_rows(Y, 9000)
    table = Table(np.arange(4), {"a": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(DataError, match="no label"):
        split_clients(table, 2)
    with pytest.raises(DataError, match="different names"):
        split_clients(table, ["a", "a"])


def test_a_share_keeps_a_row_of_every_class_however_rare():
    y = np.array(["often"] * 97 + ["rare"] * 2 + ["once"])
    kept = labelled_rows(y, 0.1)
    assert sorted(y[kept].tolist()) == ["often"] * 10 + ["once", "rare"]
