"""Named data sets that come with scikit-learn."""

from __future__ import annotations

import pytest

from fedmend.data import Encoder, LabelEncoder, datasets
from fedmend.errors import DataError


@pytest.mark.parametrize("name", datasets.names())
def test_a_data_set_is_what_is_said_of_it(name):
    info, table = datasets.info(name), datasets.load(name)
    assert (table.n_rows, len(table.feature_names)) == (info.rows, info.columns)
    label = LabelEncoder().fit(table.y, table.schema[table.label])
    assert label.task == info.task and info.licence
    encoder = Encoder().fit(table)
    back = encoder.inverse(encoder.transform(table), ids=table.ids)
    whole = table.schema.select(table.feature_names).of_kind("integer", "binary")
    assert back.frame[whole].equals(table.frame[whole])


def test_unknown_names():
    with pytest.raises(DataError, match="no data set 'brest-cancer'.*mean 'breast-cancer'"):
        datasets.load("brest-cancer")
    with pytest.raises(DataError, match="no data set"):
        datasets.info("nothing like it")
