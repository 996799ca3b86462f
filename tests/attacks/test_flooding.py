"""The key holder of `mode="bfv"` and what the noise of its answers tells about the other's values.

It knows its own encryption errors and all products; what it decrypts carries noise, the other
party's values times those errors, buried under uniform noise. Measured as the statistical distance
between what it sees and pure noise: its advantage over a guess is at most that, with any amount of
computing. The test adds the distance up over all coefficients of all answers of a run, from the
exact definition and not from the code's own figures.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.data import Table
from fedmend.errors import CryptoError
from fedmend.federation import Federation
from fedmend.secure import Columns, ProductSession, align, bfv
from fedmend.secure.bfv import DEGREE, PROFILES, choose_profile
from fedmend.secure.seal import _uniform_signed

ALLOWED = Fraction(1, 1 << 40)


def distance(noise: int, flood_bits: int) -> Fraction:
    """Between uniform on [-2^f, 2^f) and the same shifted by `noise`: what the two do not share."""
    return min(Fraction(1), Fraction(noise, 2 << flood_bits))


def test_the_distance_is_that_of_two_uniform_distributions() -> None:
    flood_bits, noise = 5, 7
    plain = dict.fromkeys(range(-32, 32), Fraction(1, 64))
    moved = {at + noise: share for at, share in plain.items()}
    either = plain.keys() | moved.keys()
    total = sum(abs(plain.get(at, Fraction(0)) - moved.get(at, Fraction(0))) for at in either) / 2
    assert total == distance(noise, flood_bits)


@pytest.mark.parametrize("rows", [100, 1000, 10_000, 100_000, 400_000])
def test_a_million_answers_of_ranks_stay_below_40_bits(rows: int) -> None:
    largest = rows * (rows**2 - 1) // 3
    facts = {"rows": rows, "max_abs": rows - 1, "square_sum": largest}
    ranks = facts | {"abs_sum": rows * (rows - 1)}
    profile, bits = choose_profile(largest, ranks)
    noise = math.ceil(2 ** bfv.noise_bits(ranks))
    told = distance(noise, profile.flood_bits(bits)) * DEGREE * (1 << 20)
    assert told <= ALLOWED
    # 40 bits a coefficient, as it was counted before, were 2^-23 over 400 products.
    assert distance(noise, math.ceil(math.log2(noise)) + 40) * DEGREE * 400 > ALLOWED * (1 << 15)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("plain_bits", [16, 40, 59])
def test_the_flooding_is_as_wide_as_it_says(name: str, plain_bits: int) -> None:
    """The residues belong to one integer, uniform on all of [-2^f, 2^f)."""
    bits = PROFILES[name].flood_bits(plain_bits)
    context = bfv.SealContext(bfv.BFVParameters(DEGREE, PROFILES[name].prime_bits, 1 << plain_bits))
    residues = _uniform_signed(bits, DEGREE, context.primes)
    whole = math.prod(context.primes)
    values = np.zeros(DEGREE, object)
    for row, prime in zip(residues.astype(object), context.primes, strict=True):
        rest = whole // prime
        values = values + row * (rest * pow(rest, -1, prime))
    values = (values + whole // 2) % whole - whole // 2
    assert -(1 << bits) <= min(values) and max(values) < 1 << bits
    shares = np.array([float(Fraction(int(each), 1 << bits)) for each in values])
    assert np.histogram(shares, 16, (-1, 1))[0].min() > DEGREE / 16 * 0.7
    # Every digit that the noise is put together from is there.
    some = [int(each) for each in values[:2000]]
    for at in range(bits):
        assert 0.4 < np.mean([(each >> at) & 1 for each in some]) < 0.6


def federation(n: int, values: np.ndarray | None = None) -> Federation:
    rng = np.random.default_rng(0)
    mine = pd.DataFrame({"a": rng.integers(0, 9, n)})
    theirs = pd.DataFrame({"b": rng.integers(-9, 9, n) if values is None else values})
    parties = (
        fm.Party("ann", Table(np.arange(n), mine)),
        fm.Party("bob", Table(np.arange(n), theirs)),
    )
    fed = fm.Federation(*parties)
    align(fed)
    return fed


def spent(fed: Federation) -> float:
    return float(fed.engine.sites["bob"].vault[bfv._ACCOUNT])


def test_answers_are_added_up_over_sessions_and_keys() -> None:
    fed = federation(40)
    told = []
    for _ in range(2):
        with ProductSession(fed, Columns("ann"), "bob") as session:
            for _ in range(2):
                session.products(Columns("bob"))
                told.append(spent(fed))
    assert np.allclose(told, np.arange(1, 5) * told[0], rtol=1e-12) and 0 < told[0] < 2.0**-60


def test_a_run_whose_room_is_used_up_gets_no_more_answers() -> None:
    fed = federation(40)
    with ProductSession(fed, Columns("ann"), "bob") as session:
        session.products(Columns("bob"))
        one = spent(fed)
        vault = fed.engine.sites["bob"].vault
        vault[bfv._ACCOUNT] = 2.0**-40 - 1.5 * one
        session.products(Columns("bob"))
        with pytest.raises(CryptoError, match="more than 2\\^-40 in this run"):
            session.products(Columns("bob"))
        assert vault[bfv._ACCOUNT] <= 2.0**-40
    # Another session with new keys is the same run.
    with (
        ProductSession(fed, Columns("ann"), "bob") as session,
        pytest.raises(CryptoError, match="more than 2\\^-40 in this run"),
    ):
        session.products(Columns("bob"))


def test_a_coordinator_cannot_choose_weak_parameters() -> None:
    """It picks profile and modulus; the party counts with what it was given."""
    n = 3000
    fed = federation(n, np.full(n, 1 << 19))
    with ProductSession(fed, Columns("ann"), "bob") as session:
        session.products(Columns("bob"))
        before = spent(fed)
        protocol = session.protocol
        workers, shape = session._workers, protocol.packing
        workers.agree("narrow", 59, {"rows": n, "columns": 1, "group": shape.group})
        workers["bob"].take_key(workers["ann"].public_parameters("bob"), "ann")
        workers["bob"].take_part(workers["ann"].encrypt_part("bob", 0, shape.count), "ann")
        with pytest.raises(CryptoError, match="does not hide"):
            workers["bob"].multiply_part("ann", 0, 1)
        assert spent(fed) == before
