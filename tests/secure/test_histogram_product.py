"""Sums over zeros and ones by masks: exact, and nothing but uniform numbers at the helper."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import chisquare, kstest

from fedmend.secure.histogram_product import (
    BinsSide,
    Helper,
    MaskKey,
    NumbersSide,
    halves,
    indicator_product,
    joined,
    packed,
    ring_product,
    unpacked,
    wrap,
)
from fedmend.secure.keys import derive_key

TOP = 2**22


def roles(secret: bytes = b"k" * 32) -> tuple[BinsSide, NumbersSide]:
    def key_of(me: str, other: str) -> MaskKey:
        return lambda stream, number, shape, own: derive_key(
            secret, me if own else other, stream, *map(str, (number, *shape))
        )

    return BinsSide(key_of("bank", "telco")), NumbersSide(key_of("telco", "bank"))


def residue(numbers: np.ndarray) -> np.ndarray:
    return np.array([[(int(x) + TOP) % 2**23 - TOP for x in row] for row in numbers])


def test_products_in_the_ring_are_exact():
    rng = np.random.default_rng(0)
    fixed = rng.integers(-TOP, TOP, (1500, 7))
    changing = rng.integers(-TOP, TOP, (5, 1500))
    fixed[0], changing[:, 0] = TOP - 1, -TOP
    exact = changing.astype(object) @ fixed.astype(object)
    assert (ring_product(fixed.astype(np.float32), changing) == residue(exact)).all()
    ones = rng.integers(0, 2, (1500, 7))
    exact = changing.astype(object) @ ones.astype(object)
    found = indicator_product(csr_array(ones.astype(np.uint32)).T, changing)
    assert (found == residue(exact)).all()
    assert wrap(np.array([TOP, -TOP, 2**23 + 3])).tolist() == [-TOP, -TOP, 3]


@given(st.lists(st.integers(-TOP, TOP - 1), min_size=1, max_size=20))
def test_three_bytes_hold_every_residue(numbers):
    values = np.array(numbers).reshape(1, -1)
    octets = packed(values)
    assert octets.shape == (3, 1, len(numbers))
    assert unpacked(octets).tolist() == [numbers]
    # what lies above the ring is left behind
    assert (unpacked(packed(values + 2**23)) == values).all()
    assert (packed(values + 2**23) == octets).all()


@given(
    rows=st.integers(1, 40),
    bins=st.integers(1, 6),
    count=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_b_learns_the_sums(rows, bins, count, seed):
    rng = np.random.default_rng(seed)
    indicators = csr_array(rng.integers(0, 2, (rows, bins)).astype(np.uint32))
    a, b = roles()
    helper = Helper(a.mask(indicators, 1))
    b.prepare(1, (rows, bins))
    for number in (2, 3):
        upper = rng.integers(-(2**16), 2**16, (count, rows))
        numbers = (upper << 23) + rng.integers(0, 2**17, upper.shape)
        told = helper.combine(b.mask(numbers, number), a.share(number, count))
        assert (b.sums(told, number) == numbers @ indicators.toarray().astype(np.int64)).all()


def test_a_number_carries_two():
    numbers = np.array([[(-3 << 23) + 5, (TOP - 1 << 23) + 2**23 - 1, -TOP << 23]])
    assert halves(numbers).tolist() == [[-3, TOP - 1, -TOP], [5, -1, 0]]
    assert (joined(halves(numbers)) == numbers).all()


def test_the_helper_sees_uniform_numbers():
    a, b = roles(np.random.default_rng(1).bytes(32))
    seen = {
        "bins": a.mask(csr_array(np.ones((2000, 3), np.uint32)), 1),
        "numbers": b.mask(np.full((3, 2000), 7), 2),
    }
    a.mask(csr_array(np.ones((5, 3), np.uint32)), 1)
    seen["share"] = a.share(3, 2000)
    for octets in seen.values():
        shares = unpacked(octets).ravel() / 2.0**23 + 0.5
        assert kstest(shares, "uniform").pvalue > 1e-4
        # every byte on the wire too, and no bit above the ring's 23
        assert chisquare(np.bincount(octets[:2].ravel(), minlength=256)).pvalue > 1e-4
        assert octets[2].max() < 128


def test_what_leaves_a_side_is_under_a_stream_of_its_own():
    """Streams of one's own are those whose numbers are counted (`SealingWorker.mask_key`)."""
    asked: list[tuple[str, bool]] = []

    def key_of(stream: str, number: int, shape: tuple[int, ...], own: bool) -> bytes:
        asked.append((stream, own))
        return bytes(32)

    a, b = BinsSide(key_of), NumbersSide(key_of)
    a.mask(csr_array(np.ones((4, 2), np.uint32)), 1)
    a.share(2, 1)
    b.mask(np.zeros((1, 4), np.int64), 2)
    assert {stream for stream, own in asked if own} == {"bins", "blind", "numbers"}
    assert [each for each in asked if not each[1]] == [("numbers", False)]
