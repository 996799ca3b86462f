import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmend.errors import CryptoError
from fedmend.secure import okvs
from fedmend.secure.keys import uniform


@given(st.lists(st.binary(max_size=16), max_size=300, unique=True))
def test_every_key_gives_its_value_back(keys):
    values = uniform((len(keys), 2))
    seed, table = okvs.encode(keys, values)
    assert np.array_equal(okvs.decode(keys, seed, table, "x"), values)


def test_other_keys_give_noise():
    keys = [b"in %d" % number for number in range(2000)]
    seed, table = okvs.encode(keys, np.zeros((2000, 2), np.uint64))
    noise = okvs.decode([b"out %d" % number for number in range(2000)], seed, table, "x")
    # A key may share all three cells with one of the set: one in 200 runs, of 930^3 places.
    noise = noise[noise.any(axis=1)]
    assert len(noise) >= 1998
    counts = np.bincount(np.frombuffer(noise.tobytes(), np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_table_of_uniform_values_is_uniform_and_its_size_tells_the_count_only():
    tables = []
    for name in (b"a", b"b"):
        _, table = okvs.encode([name + b"%d" % k for k in range(3000)], uniform((3000, 2)))
        counts = np.bincount(np.frombuffer(table.tobytes(), np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
        tables.append(table)
    assert tables[0].shape == tables[1].shape
    assert len(tables[0]) < 1.4 * 3000


def test_a_key_that_stands_twice_is_an_error():
    with pytest.raises(CryptoError, match="not unique"):
        okvs.encode([b"a", b"a"], uniform((2, 2)))


@pytest.mark.parametrize(
    ("seed", "table"),
    [
        (bytes(16), np.zeros((10, 2), np.uint64)),
        (bytes(16), np.zeros((301, 2), np.uint64)),
        (bytes(16), np.zeros((300, 2), np.int64)),
        (bytes(16), np.zeros((300, 3), np.uint64)),
        (bytes(16), b"bytes"),
        (bytes(15), np.zeros((300, 2), np.uint64)),
        (None, np.zeros((300, 2), np.uint64)),
    ],
)
def test_a_malformed_table_is_refused(seed, table):
    with pytest.raises(CryptoError, match="'telco' sent a key–value table that is malformed"):
        okvs.decode([b"a"], seed, table, "telco")
