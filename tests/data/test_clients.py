"""Rows dealt to clients with few labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data import Table, datasets, scenario
from fedmend.data.clients import client_names, client_rows, labelled_rows, split_clients
from fedmend.errors import DataError

Y = np.random.default_rng(0).integers(0, 5, 2000)


def test_labelled_rows_are_even_over_the_classes() -> None:
    rows = labelled_rows(Y, 20, seed=1)
    assert np.bincount(Y[rows]).tolist() == [20] * 5
    assert len(set(rows.tolist())) == 100
    share = labelled_rows(Y, 0.1, seed=1)
    assert np.bincount(Y[share]).tolist() == [round(0.1 * n) for n in np.bincount(Y)]
    assert not np.array_equal(rows, labelled_rows(Y, 20, seed=2))


@settings(max_examples=25, deadline=None)
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


def test_the_authors_split_is_milder_than_the_plain_one() -> None:
    # Of CIFAR-10's size; at alpha .1 a client of the authors' split holds about 6.5 classes.
    y = np.repeat(np.arange(10), 5000)
    paired = client_rows(y, 20, 0.1, labelled=500, style="paired", seed=0)
    sizes = [len(client.unlabelled) for client in paired]
    assert max(sizes) - min(sizes) <= 1
    held = [(np.bincount(y[c.unlabelled], minlength=10) > 0).sum() for c in paired]
    assert 5.0 <= np.mean(held) <= 8.0
    plain = client_rows(y, 20, 0.1, labelled=500, style="plain", seed=0)

    def largest(parts: list) -> float:
        return float(np.mean([np.bincount(y[c.all]).max() / len(c.all) for c in parts]))

    assert largest(plain) > largest(paired) + 0.1


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


def test_images_travel_with_their_rows() -> None:
    digits = datasets.load("digits")
    tables = scenario.split_clients(digits, ["a", "b"], labelled=5, alpha=None)
    assert sum(int(each.y.notna().sum()) for each in tables.values()) == 50
    assert set(tables["a"].ids).isdisjoint(tables["b"].ids)


def test_names_are_as_wide_as_needed() -> None:
    assert client_names(3) == ["client-01", "client-02", "client-03"]
    assert client_names(120)[0] == "client-001"


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
