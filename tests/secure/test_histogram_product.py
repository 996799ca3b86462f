"""Sums over zeros and ones by masks: exact, and nothing but uniform numbers at the helper."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fedmend.secure.histogram_product import (
    BinsSide,
    Helper,
    Limbs,
    MaskKey,
    NumbersSide,
    indicator_product,
    packed,
    ring_product,
    unpacked,
    wrap,
)
from fedmend.secure.keys import derive_key

HALF = 2**45


def roles(secret: bytes = b"k" * 32) -> tuple[BinsSide, NumbersSide]:
    def key_of(me: str, other: str) -> MaskKey:
        return lambda stream, number, shape, own: derive_key(
            secret, me if own else other, stream, *map(str, (number, *shape))
        )

    return BinsSide(key_of("bank", "telco")), NumbersSide(key_of("telco", "bank"))


def residue(numbers: np.ndarray) -> np.ndarray:
    return np.array([[(int(x) + HALF) % 2**46 - HALF for x in row] for row in numbers])


def test_products_in_the_ring_are_exact() -> None:
    rng = np.random.default_rng(0)
    fixed = rng.integers(-HALF, HALF, (1500, 7))
    changing = rng.integers(-HALF, HALF, (5, 1500))
    fixed[0], changing[:, 0] = HALF - 1, -HALF
    exact = changing.astype(object) @ fixed.astype(object)
    assert (ring_product(Limbs(fixed), changing) == residue(exact)).all()
    ones = rng.integers(0, 2, (1500, 7))
    exact = changing.astype(object) @ ones.astype(object)
    assert (indicator_product(ones.astype(float), changing) == residue(exact)).all()
    assert wrap(np.array([HALF, -HALF, 2**46 + 3])).tolist() == [-HALF, -HALF, 3]


@given(st.lists(st.integers(-HALF, HALF - 1), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_six_bytes_hold_every_residue(numbers: list[int]) -> None:
    values = np.array(numbers).reshape(1, -1)
    octets = packed(values)
    assert octets.shape == (1, len(numbers), 6)
    assert unpacked(octets).tolist() == [numbers]
    # what lies above the ring is left behind
    assert (unpacked(packed(values + 2**46)) == values).all()
    assert (packed(values + 2**46) == octets).all()


@given(
    rows=st.integers(1, 40),
    bins=st.integers(1, 6),
    count=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    sampled=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_b_learns_the_sums(rows: int, bins: int, count: int, seed: int, sampled: bool) -> None:
    rng = np.random.default_rng(seed)
    indicators = rng.integers(0, 2, (rows, bins)).astype(np.float64)
    a, b = roles()
    helper = Helper(a.mask(indicators, 1))
    b.prepare(1, (rows, bins))
    chosen = np.flatnonzero(rng.random(rows) < 0.5) if sampled else None
    for side in (a, b, helper):
        side.sample(chosen)
    part = indicators if chosen is None else indicators[chosen]
    for number in (2, 3):
        numbers = rng.integers(-(2**40), 2**40, (count, len(part)))
        told = helper.combine(b.mask(numbers, number), a.share(number, count))
        expected = numbers.astype(object) @ part.astype(int).astype(object)
        assert (b.sums(told, number) == residue(expected).reshape(count, bins)).all()


def test_the_helper_sees_uniform_numbers() -> None:
    a, b = roles(np.random.default_rng(1).bytes(32))
    seen = {
        "bins": a.mask(np.ones((2000, 3)), 1),
        "numbers": b.mask(np.full((3, 2000), 7), 2),
    }
    a.sample(np.arange(5))
    seen["share"] = a.share(3, 2000)
    for octets in seen.values():
        shares = unpacked(octets).ravel() / 2.0**46 + 0.5
        assert kstest(shares, "uniform").pvalue > 1e-4
        # every byte on the wire too, and no bit above the ring's 46
        counts = np.bincount(octets[..., :5].ravel(), minlength=256)
        assert abs(counts / counts.sum() - 1 / 256).max() < 2e-3
        assert octets[..., 5].max() < 64


def test_what_leaves_a_side_is_under_a_stream_of_its_own() -> None:
    """Streams of one's own are those whose numbers are counted (`SealingWorker.mask_key`)."""
    asked: list[tuple[str, bool]] = []

    def key_of(stream: str, number: int, shape: tuple[int, ...], own: bool) -> bytes:
        asked.append((stream, own))
        return bytes(32)

    a, b = BinsSide(key_of), NumbersSide(key_of)
    a.mask(np.ones((4, 2)), 1)
    a.share(2, 1)
    b.mask(np.zeros((1, 4), np.int64), 2)
    assert {stream for stream, own in asked if own} == {"bins", "blind", "numbers"}
    assert [each for each in asked if not each[1]] == [("numbers", False)]
