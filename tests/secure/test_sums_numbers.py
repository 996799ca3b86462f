from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError, CryptoError, DataError
from fedmend.secure.sums import LARGEST_SUM as MOST
from fedmend.secure.sums import SumForm, ring_of
from fedmend.secure.sums_he import PLAIN_BITS, Packing


def test_ring_is_the_narrowest_that_holds_every_possible_sum():
    assert ring_of(SumForm(0, 1), 255) == np.uint8
    assert ring_of(SumForm(0, 1), 256) == np.uint16
    assert ring_of(SumForm(-1, 1), 127) == np.uint8
    assert ring_of(SumForm(-1, 1), 128) == np.uint16
    assert ring_of(SumForm(0, 1 << 30), 3) == np.uint32
    assert ring_of(SumForm(0, 1 << 30), 4) == np.uint64
    assert ring_of(SumForm(-(MOST // 2), MOST // 2), 2) == np.uint64


def test_more_than_64_bits_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"3 parties .* 2\^63. Mend: keep \|value\| within"):
        SumForm.of((-MOST, MOST), fraction_bits=None, parties=3)
    with pytest.raises(ConfigError, match="40 fraction bits"):
        SumForm.of((0, 1e9), fraction_bits=40, parties=2)


@pytest.mark.parametrize(
    ("between", "bits", "problem"),
    [
        ((1, 0), None, "lowest, highest"),
        ((0, float("nan")), None, "finite"),
        ((0, float("inf")), 4, "finite"),
        ((0, 1), 0, "fraction_bits must lie in"),
        ((0, 1), 53, "fraction_bits must lie in"),
    ],
)
def test_wrong_ranges_are_named(between, bits, problem):
    with pytest.raises(ConfigError, match=problem):
        SumForm.of(between, fraction_bits=bits, parties=2)


def test_form_crosses_the_wire_whole_or_not_at_all():
    form = SumForm(-5, 9, 3)
    assert SumForm.from_wire(asdict(form)) == form
    for broken in (
        {},
        {"low": 1, "high": 0},
        {"low": 0.5, "high": 1},
        asdict(form) | {"high": "9"},
    ):
        with pytest.raises(CryptoError, match="not the form"):
            SumForm.from_wire(broken)


@given(values=st.lists(st.floats(-1000, 1000), min_size=1, max_size=40), bits=st.integers(1, 40))
def test_fixed_point_is_within_its_bound_of_every_value(values, bits):
    form = SumForm.of((-1000, 1000), fraction_bits=bits, parties=2)
    array = np.array(values)
    encoded = form.encode(array, party="a", name="x", dtype=ring_of(form, 2))
    back = form.decode(encoded, array.shape, 1)
    assert np.abs(back - array).max() <= form.error_bound(1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "float32", "float64"])
def test_every_numeric_type_is_admitted(dtype):
    form = SumForm(-3, 100)
    array = np.array([0, 1, 1, 0]).astype(dtype)
    encoded = form.encode(array, party="a", name="x", dtype=np.uint8)
    assert encoded.tolist() == [3, 4, 4, 3]


@pytest.mark.parametrize(
    ("array", "form", "problem"),
    [
        (np.array([0, 7, 2]), SumForm(0, 5), r"range \[0, 5\] \(seen: 7\)"),
        (np.array([0, -9, 7]), SumForm(0, 5), r"\(seen: -9\)"),
        (np.array([1 << 63], np.uint64), SumForm(-MOST // 2, MOST // 2), "9223372036854775808"),
        (np.array([-(1 << 63)]), SumForm(-MOST // 2, MOST // 2), "-9223372036854775808"),
        (np.array([1e300]), SumForm(-1, 1, 50), "1e\\+300"),
        (np.array([0.5, np.nan]), SumForm(0, 5, 2), "has values that are missing or infinite"),
        (np.array([np.inf, 1.0]), SumForm(0, 5), "missing or infinite"),
        (np.array([1.0, 2.5]), SumForm(0, 5), r"not whole \(seen: 2.5\). Mend: give fraction_bits"),
        (np.array(["a"]), SumForm(0, 5), "not numeric"),
        (np.array([1 << 80], object), SumForm(0, 5), "type object, not numeric"),
    ],
)
def test_values_that_do_not_fit_are_named_with_their_party(array, form, problem):
    with pytest.raises(DataError, match=problem) as caught:
        form.encode(array, party="bank", name="x", dtype=np.uint64)
    assert "party 'bank'" in str(caught.value) and "'x'" in str(caught.value)


@given(data=st.data(), parties=st.integers(2, 200), size=st.integers(0, 300))
def test_packed_digits_and_limbs_add_up(data, parties, size):
    span = data.draw(st.integers(0, 64).map(lambda bits: (1 << bits) - 1)) % (2 * MOST // parties)
    form = SumForm(0, span) if span * parties <= MOST else SumForm(-(span // 2), span - span // 2)
    packing = Packing.of(form.span, parties)
    count = min(parties, 5)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = rng.integers(0, form.span, (count, size), np.uint64, endpoint=True)
    arrays[0, : size // 2] = form.span
    packed = sum(packing.pack(array).astype(object) for array in arrays)
    # what the other parties could add at most still stays below the modulus
    full = packing.pack(np.full(size, form.span, np.uint64)).astype(object)
    assert not size or (full * parties).max() < 1 << PLAIN_BITS
    total = packing.unpack(packed.astype(np.uint64), size)
    assert total.tolist() == arrays.astype(object).sum(axis=0).tolist()


def test_a_coefficient_holds_21_votes_of_four_parties():
    packing = Packing.of(1, 4)
    assert (packing.base, packing.digits) == (5, 21)
    assert packing.ciphertexts(21 * 4096) == 1 and packing.ciphertexts(21 * 4096 + 1) == 2


def test_a_sum_that_cannot_be_is_refused():
    packing = Packing.of(1, 4)
    with pytest.raises(CryptoError, match="out of range"):
        packing.unpack(np.full((1, 4096), (1 << PLAIN_BITS) - 1, np.uint64), 4)


def test_a_bound_that_the_type_of_the_values_cannot_hold_is_kept_to():
    """16777219 would be rounded up to 16777220 as float32, and let that value in."""
    form = SumForm.of((0, 16_777_219), fraction_bits=None, parties=2)
    inside = np.array([16_777_218], dtype=np.float32)
    assert form.encode(inside, party="a", name="x", dtype=np.uint32).tolist() == [16_777_218]
    with pytest.raises(DataError, match="leaves the agreed range"):
        form.encode(inside + np.float32(2), party="a", name="x", dtype=np.uint32)


@pytest.mark.parametrize("between", [(0.0, 1e300), (-1e308, 1e308), (0, 10**300)])
def test_a_range_beyond_all_numbers_is_refused_in_words(between):
    for fraction_bits in (None, 52):
        with pytest.raises(ConfigError, match="could sum up to more than"):
            SumForm.of(between, fraction_bits=fraction_bits, parties=2)
