"""Row numbering over segments, fill rows, and the order of batches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment
from fedmend.split.features import BatchOrder, Features, batch_sizes, check_names, own_rows

CPU = torch.device("cpu")


def test_every_party_numbers_the_same_rows():
    segments = [["aligned", 2], ["bank", 3]]
    bank = Alignment(np.array([4, 1]), np.array([0, 2, 3]))
    telco = Alignment(np.array([0, 5]), np.array([1]))
    assert own_rows("bank", segments, bank, 5).tolist() == [4, 1, 0, 2, 3]
    assert own_rows("telco", segments, telco, 6).tolist() == [0, 5, -1, -1, -1]
    assert own_rows("bank", [["all", 5]], None, 5).tolist() == [0, 1, 2, 3, 4]
    assert own_rows("bank", [], None, 5).tolist() == []


def test_a_name_that_begins_with_a_word_for_rows_is_a_name():
    own = Alignment(np.array([4, 1]), np.array([0, 2, 3]))
    segments = [["aligned", 2], ["alignedco", 3], ["aligned@alignedco+telco", 2]]
    assert own_rows("alignedco", segments, own, 5).tolist() == [4, 1, 0, 2, 3, 4, 1]


@pytest.mark.parametrize("word", ["aligned", "all"])
def test_a_word_for_rows_is_no_name(word):
    with pytest.raises(ConfigError, match=f"party '{word}'.*Mend: rename"):
        check_names(["bank", word])
    check_names(["bank", f"{word}-1"])


def test_absent_rows_are_the_fill_row():
    table = Table([1, 2, 3], {"x": [1.0, 2.0, 6.0], "c": ["u", "v", "w"]})
    encoded = Encoder().fit(table).transform(table)
    features = Features(encoded, np.array([2, -1, 0]), CPU, torch.float32)
    batch = features.batch(torch.tensor([0, 1, 2, 1]))
    assert batch.numeric[:, 0].tolist() == pytest.approx(
        [encoded.numeric[2, 0], 0.0, encoded.numeric[0, 0], 0.0]
    )
    assert batch.codes[:, 0].tolist() == [encoded.codes[2, 0], 0, encoded.codes[0, 0], 0]


@given(st.integers(1, 300), st.integers(1, 40))
def test_batches_cover_every_row_once_and_are_never_lonely(rows, batch):
    sizes = batch_sizes(rows, batch)
    assert sum(sizes) == rows
    assert max(sizes) <= batch + 1
    if batch > 1 and rows > 1:
        assert min(sizes) > 1


def test_halves_with_the_same_seed_walk_the_same_way():
    rows = np.array([3, 5, 7, 11, 13])
    one, other = BatchOrder(rows, 2, CPU), BatchOrder(rows, 2, CPU)
    one.start(7)
    other.start(7)
    walked = [one.next().tolist() for _ in one.sizes]
    assert walked == [other.next().tolist() for _ in other.sizes]
    assert sorted(row for rows_of_batch in walked for row in rows_of_batch) == rows.tolist()
    one.start(8)
    assert [one.next().tolist() for _ in one.sizes] != walked
