"""Exact inner products: against numpy in all modes, what each role gets to see, and refusals."""

import inspect
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import (
    AlignmentError,
    ConfigError,
    CryptoError,
    DataError,
    MissingExtra,
    PrivacyWarning,
    Refused,
)
from fedmend.federation import (
    COORDINATOR,
    KINDS,
    Alignment,
    Each,
    Federation,
    Party,
    Policy,
    Sealed,
)
from fedmend.secure import bfv
from fedmend.secure.bfv import DEGREE, Packing, choose_profile
from fedmend.secure.channel import introduce
from fedmend.secure.columns import Columns, IntegerColumns, column_provider, hold_columns
from fedmend.secure.dealer import DealerWorker
from fedmend.secure.exact import BLOCK_ROWS, LEAST_BITS, Blocked, wrapping_product
from fedmend.secure.inner_product import ProductSession, inner_products
from fedmend.secure.keys import MaskBlocks
from fedmend.secure.published import Paillier

from .parties import aligned, assert_uniform, leaves, overheard

BIG = 1 << 62
OPEN = Policy(allow=frozenset(KINDS), min_rows=1, min_intersection=1)


def make_federation(left, right, **how):
    return aligned(left, right, names=("ann", "bob"), **how)


def put(fed, party, values, key="matrix", bound=None, **sums):
    values = np.ascontiguousarray(np.asarray(values, dtype=np.int64).T)
    bound = bound if bound is not None else max(1, int(np.abs(values).max(initial=0)))
    hold_columns(fed.engine.sites[party], key, values, bound, **sums)
    return Columns(party, "state", {"key": key})


def assert_exact(left, right, **how):
    fed = make_federation(left, right)
    result = inner_products(fed, put(fed, "ann", left), put(fed, "bob", right), **how)
    np.testing.assert_array_equal(result.to_numpy(), left.T @ right)


@st.composite
def column_pairs(draw):
    n = draw(st.integers(2, 40))
    p, q = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    size = draw(st.sampled_from([1, 3, 1000, 1 << 20]))
    cells = st.integers(-size, size)
    constant = draw(st.booleans())
    left = np.array(draw(st.lists(st.lists(cells, min_size=p, max_size=p), min_size=n, max_size=n)))
    right = np.array(
        draw(st.lists(st.lists(cells, min_size=q, max_size=q), min_size=n, max_size=n))
    )
    if constant:
        left[:, 0], right[:, -1] = size, 0
    return left, right


# ---------------------------------------------------------------------------------- exactness


@settings(max_examples=8)
@given(column_pairs())
def test_products_are_exact(pair):
    for mode in ("dealer", "bfv"):
        assert_exact(*pair, mode=mode)


def test_named_integer_columns_through_the_alignment():
    rng = np.random.default_rng(1)
    left, right = rng.integers(-50, 50, (30, 3)), rng.integers(-50, 50, (30, 2))
    rows = rng.permutation(30)[:21]
    fed = make_federation(left, right, rows=rows)
    expected = left[rows].T @ right[rows]
    none = Columns("ann", "integers", {"names": []})
    assert inner_products(fed, none, Columns("bob")).shape == (0, 2)
    for mode in ("bfv", "dealer"):
        result = inner_products(fed, "ann", "bob", mode=mode)
        assert result.index.tolist() == ["x0", "x1", "x2"]
        assert result.columns.tolist() == ["y0", "y1"]
        np.testing.assert_array_equal(result.to_numpy(), expected)


@pytest.mark.parametrize("n", [DEGREE, DEGREE + 1])
def test_bfv_rows_around_the_packing(n):
    rng = np.random.default_rng(n)
    assert_exact(rng.integers(-n, n, (n, 2)), rng.integers(-n, n, (n, 1)))


@pytest.mark.parametrize("group", [1, 3, 7])
def test_bfv_any_grouping_is_exact(group, monkeypatch):
    rng = np.random.default_rng(group)
    monkeypatch.setattr(Packing, "best", classmethod(lambda cls, n, p, q: cls(n, p, group)))
    assert_exact(rng.integers(-9, 9, (3000, 5)), rng.integers(-9, 9, (3000, 2)))


def test_extremes_reach_the_stated_limits():
    top = np.full((4, 1), 1 << 28)
    fed = make_federation(top, top)
    one, other = put(fed, "ann", top), put(fed, "bob", -top)
    # 4 * 2^56 = 2^58 is one too many for bfv, fine for dealer
    with pytest.raises(DataError, match="exact below 2\\^58"):
        inner_products(fed, one, other)
    assert inner_products(fed, one, other, mode="dealer").to_numpy()[0, 0] == -(1 << 58)
    less = np.array([[(1 << 28)], [(1 << 28)], [(1 << 28)], [(1 << 28) - 1]])
    fed = make_federation(less, less)
    squares = int((less**2).sum())
    one, other = (put(fed, party, less, square_sum=squares) for party in ("ann", "bob"))
    assert inner_products(fed, one, other).to_numpy()[0, 0] == int((less**2).sum())
    huge = np.full((2, 1), 1 << 31)
    fed = make_federation(huge, huge)
    with pytest.raises(DataError, match="exact below 2\\^63"):
        inner_products(fed, put(fed, "ann", huge), put(fed, "bob", huge), mode="dealer")


def test_a_sum_of_magnitudes_makes_room_for_large_values():
    few = np.array([[1 << 45], [0], [1 << 44], [0]])
    ones = np.ones((4, 1), np.int64)
    fed = make_federation(ones, few)
    told = put(fed, "bob", few, bound=1 << 46, abs_sum=1 << 46)
    assert inner_products(fed, put(fed, "ann", ones), told).to_numpy()[0, 0] == 3 << 44
    with pytest.raises(DataError, match="sum of magnitudes is larger than the bound"):
        put(fed, "bob", few, bound=1 << 46, abs_sum=1 << 45)


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_the_largest_products_that_ranks_can_have(mode):
    """Equal and opposite orders reach the bound from which the modulus is chosen."""
    for n in (2, 3, 1000, 4097):
        up = np.arange(-(n - 1), n, 2)
        fed = make_federation(up[:, None], up[:, None])
        largest = n * (n * n - 1) // 3
        sides = []
        for party, values in (("ann", [up]), ("bob", [up, -up])):
            hold_columns(fed.engine.sites[party], "ranks", np.stack(values), n - 1, largest)
            sides.append(Columns(party, "state", {"key": "ranks"}))
        result = inner_products(fed, *sides, mode=mode).to_numpy()
        np.testing.assert_array_equal(result, [[largest, -largest]])


def test_two_of_three_parties_and_progress():
    rng = np.random.default_rng(8)
    columns = {name: rng.integers(-99, 99, (40, 2)) for name in ("ann", "bob", "cleo")}
    ids = np.arange(40)
    fed = Federation(
        *(
            Party(name, Table(ids, pd.DataFrame(v, columns=["x", "y"])))
            for name, v in columns.items()
        ),
        strict=True,
    )
    told = []
    for view in (fed, fed.only("cleo", "ann")):
        for name in view.names:
            fed.engine.sites[name].alignments[view.scope] = Alignment(ids, ids[:0])
        result = inner_products(view, "cleo", "ann", progress=lambda *step: told.append(step))
        np.testing.assert_array_equal(result, columns["cleo"].T @ columns["ann"])
    assert fed.ledger.kinds(sender="bob") == set()
    assert ("encrypting", 1, 1) in told
    assert ("multiplying under encryption", 2, 2) in told


@settings(max_examples=12)
@given(st.integers(0, 1 << 32), st.integers(1, 1300))
def test_wrapping_product_is_exact_modulo_two_to_64(seed, n):
    rng = np.random.default_rng(seed)
    left = rng.integers(0, 1 << 64, (3, n), dtype=np.uint64)
    right = rng.integers(0, 1 << 64, (2, n), dtype=np.uint64)
    small = rng.integers(-(1 << 18), (1 << 18) + 1, (2, n))
    medium = rng.integers(-(1 << 22), (1 << 22) + 1, (2, n))
    wide = rng.integers(-BIG, BIG, (2, n))
    pairs = [(left, right), (left, small), (small, right), (small, wide), (wide, wide)]
    pairs += [(small, small), (medium, left), (left, medium), (medium, medium), (small, medium)]
    for one, other in pairs:
        expected = one.astype(object) @ other.T.astype(object)
        for bits in (40, 47, 50, 51, 52, 64):
            found = wrapping_product(one, other, bits).astype(object)
            np.testing.assert_array_equal(found, expected % (1 << bits))


@given(st.integers(1, 3000), st.integers(1, 4), st.integers(40, 52))
def test_blocks_of_masks_are_a_factor(rows, columns, bits):
    masks = MaskBlocks(bytes(32), (columns, rows), BLOCK_ROWS)
    whole = np.concatenate([block.copy() for block in masks], axis=1)
    assert whole.shape == (columns, rows)
    other = np.arange(2 * rows).reshape(2, rows) - rows
    expected = wrapping_product(whole, other, bits)
    np.testing.assert_array_equal(wrapping_product(masks, other, bits), expected)
    np.testing.assert_array_equal(wrapping_product(other, masks, bits), expected.T)
    np.testing.assert_array_equal(wrapping_product(other, masks, bits, 2 * rows), expected.T)
    flat = Blocked(np.concatenate([block.ravel().copy() for block in masks]), (columns, rows))
    np.testing.assert_array_equal(wrapping_product(flat, other, bits), expected)
    with pytest.raises(ValueError, match="words"):
        Blocked(flat.words[1:], (columns, rows))


def test_wrapping_product_at_its_edges():
    full = np.full((1, 5000), (1 << 64) - 1, dtype=np.uint64)
    assert wrapping_product(full, full)[0, 0] == 5000
    edge = np.full((1, 5000), 1 << 22)
    assert wrapping_product(edge, full)[0, 0] == (-5000 * (1 << 22)) % (1 << 64)
    most = np.full((1, 5000), -(1 << 18))
    assert wrapping_product(most, full, 52)[0, 0] == 5000 * (1 << 18)
    assert wrapping_product(full, most, 52)[0, 0] == 5000 * (1 << 18)
    assert wrapping_product(full, full, 52)[0, 0] == 5000
    with pytest.raises(ValueError, match="bits"):
        wrapping_product(full, full, 32)
    assert wrapping_product(np.zeros((2, 0), np.int64), np.zeros((3, 0), np.int64)).shape == (2, 3)
    with pytest.raises(ValueError, match="rows"):
        wrapping_product(full, full[:, :3])
    with pytest.raises(ValueError, match="float64"):
        wrapping_product(full.astype(float), full)


# ---------------------------------------------------------------------------------- sessions


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_the_fixed_side_travels_once(mode):
    rng = np.random.default_rng(0)
    left = rng.integers(-9, 9, (100, 4))
    fed = make_federation(left, left)
    with ProductSession(fed, put(fed, "ann", left), "bob", mode=mode) as session:
        for step in range(3):
            right = rng.integers(-9, 9, (100, 2 + step))
            result = session.products(put(fed, "bob", right, f"step{step}", bound=9))
            np.testing.assert_array_equal(result, left.T @ right)
    method = {"bfv": "BfvWorker.encrypt_part", "dealer": "DealerWorker.mask"}[mode]
    sent = [e for e in fed.ledger if e.call == method and e.sender == "ann"]
    assert sum(e.count for e in sent) == 1


def test_bfv_session_renews_its_keys_when_the_numbers_outgrow_them():
    left = np.arange(-50, 50).reshape(50, 2)
    fed = make_federation(left, left)
    with ProductSession(fed, put(fed, "ann", left), "bob") as session:
        for size in (1, 1 << 10, 1 << 30, 5):
            right = left * size
            result = session.products(put(fed, "bob", right, bound=50 * size))
            np.testing.assert_array_equal(result, left.T @ right)
    renewals = [e for e in fed.ledger if e.call == "BfvWorker.agree" and e.receiver == "bob"]
    assert sum(e.count for e in renewals) == 3


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
@pytest.mark.parametrize("to", ["ann", "bob"])
def test_one_party_alone_learns_the_products(mode, to):
    rng = np.random.default_rng(5)
    left, right = rng.integers(-99, 99, (60, 3)), rng.integers(-99, 99, (60, 2))
    fed = make_federation(left, right)
    with ProductSession(fed, put(fed, "ann", left), "bob", mode=mode) as session:
        for _ in range(2):
            assert session.products(put(fed, "bob", right), to=to, store="sums") is None
            np.testing.assert_array_equal(fed.engine.sites[to].state["sums"], left.T @ right)
    other = "bob" if to == "ann" else "ann"
    assert "sums" not in fed.engine.sites[other].state
    messages = [
        e for e in fed.ledger if e.call.endswith(".share_for") and e.receiver == COORDINATOR
    ]
    assert {e.sealed_for for e in messages} == {to}
    assert not [e for e in fed.ledger if e.call.endswith(".share")]


def test_what_a_session_refuses():
    left = np.ones((5, 1), int)
    fed = make_federation(left, left)
    with pytest.raises(ConfigError, match="unknown mode 'rot13'"):
        ProductSession(fed, Columns("ann"), "bob", mode="rot13")
    with pytest.raises(ConfigError, match="two parties"):
        ProductSession(fed, Columns("ann"), "ann")
    with ProductSession(fed, Columns("ann"), "bob", mode="dealer") as session:
        with pytest.raises(ConfigError, match="'bob', not 'ann'"):
            session.products(Columns("ann"))
        with pytest.raises(ConfigError, match="to= one of"):
            session.products(Columns("bob"), to="coordinator")
        with pytest.raises(ConfigError, match="no column provider 'nonsense'"):
            session.products(Columns("bob", "nonsense"))
    fed.engine.sites["bob"].alignments["train"] = Alignment(np.arange(4), np.array([4]))
    with pytest.raises(AlignmentError, match="5 aligned rows and 'bob' 4"):
        inner_products(fed, "ann", "bob", mode="dealer")
    fed = make_federation(left, left, policy=Policy(min_intersection=6))
    with pytest.raises(AlignmentError, match="from 6 aligned rows on, here are 5"):
        inner_products(fed, "ann", "bob")


# ---------------------------------------------------------------------------------- columns


def test_bounds_are_enforced_at_the_party_without_telling_the_value():
    left = np.array([[1], [2], [987654]])
    fed = make_federation(left, left)
    with pytest.raises(DataError, match="larger than the bound 1000") as caught:
        inner_products(fed, Columns("ann", "integers", {"bound": 1000}), "bob", mode="dealer")
    assert "987654" not in str(caught.value)
    assert (caught.value.party, caught.value.column) == ("ann", "x0")
    with pytest.raises(DataError, match="sum of squares"):
        IntegerColumns(np.full((1, 10), 10, dtype=np.int64), ("x",), 10, 900)
    with pytest.raises(DataError, match="int64"):
        IntegerColumns(np.ones((1, 3)), ("x",), 10, 900)


def test_indicator_columns_count_categories_together():
    colours = pd.DataFrame({"colour": ["red", "blue", None, "red", "green"]})
    sizes = pd.DataFrame({"size": ["s", "m", "m", "s", "s"]})
    fed = make_federation(colours, sizes)
    result = inner_products(
        fed, Columns("ann", "indicators"), Columns("bob", "indicators"), mode="dealer"
    )
    # categories are sorted: blue, green, red against m, s; which is which is not told
    assert result.index.tolist() == ["colour#0", "colour#1", "colour#2"]
    np.testing.assert_array_equal(result.to_numpy(), [[1, 0], [0, 1], [0, 2]])


def test_columns_that_are_not_integers():
    frame = pd.DataFrame({"x": [0.5, 1, 2, 3], "gap": [1.0, np.nan, 2.0, 3.0], "t": list("abca")})
    fed = make_federation(frame, frame, kinds=({"gap": "integer"}, None))
    for provider, how, words in (
        ("integers", {"names": ["x"]}, "fraction"),
        ("integers", {"names": ["gap"]}, "missing"),
        ("integers", {"names": ["no"]}, "no such column"),
        ("indicators", {"names": ["x"]}, "no categories"),
        ("state", {"key": "?"}, "holds no columns under '[?]'"),
    ):
        with pytest.raises(DataError, match=words):
            inner_products(fed, Columns("ann", provider, how), "bob", mode="dealer")


def test_a_provider_that_gives_other_rows_than_are_aligned_is_named():
    """The sums would be over rows that do not belong together."""
    fed = make_federation(np.ones((6, 1), int), np.ones((6, 1), int), rows=[0, 2, 4])
    hold_columns(fed.engine.sites["ann"], "left", np.ones((1, 6), np.int64), 1)
    whole = Columns("ann", "state", {"key": "left"})
    with pytest.raises(DataError, match="'ann': the provider 'state' gave 6 rows for 3 aligned"):
        inner_products(fed, whole, "bob", mode="dealer")


def test_a_provider_of_ones_own():
    @column_provider("test-ones")
    def ones(worker, times):
        n = len(worker.alignment.aligned)
        return IntegerColumns(np.full((1, n), times), ("one",), times, n * times * times)

    left = np.arange(6)[:, None]
    fed = make_federation(left, left)
    result = inner_products(fed, Columns("ann", "test-ones", {"times": 3}), "bob", mode="dealer")
    assert result.loc["one", "y0"] == 3 * left.sum()
    with pytest.raises(ConfigError, match="two column providers"):
        column_provider("test-ones")(lambda worker: None)


# ---------------------------------------------------------------------------------- who sees what


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_kinds_that_leave_each_party(mode):
    rng = np.random.default_rng(2)
    left, right = rng.integers(-9, 9, (50, 3)), rng.integers(-9, 9, (50, 2))
    fed = make_federation(left, right)
    seen = overheard(fed)
    inner_products(fed, put(fed, "ann", left), put(fed, "bob", right), mode=mode)
    hidden = {"ciphertext", "masked"} if mode == "bfv" else {"masked"}
    for party in ("ann", "bob"):
        assert fed.ledger.kinds(sender=party) == hidden | {"control", "count"}
        # nothing of the other party arrives in the clear
        assert fed.ledger.kinds(receiver=party) <= {"ciphertext", "control"}
    for sender, receiver, _, kind, value in seen:
        if kind == "ciphertext":
            sealed = value if isinstance(value, Sealed) else value["sealed"]
            assert isinstance(sealed, Sealed)
            assert {sender, receiver} != {sealed.sender, sealed.recipient}
        if kind in ("control", "count"):
            assert not any(isinstance(each, np.ndarray) for each in leaves(value))


def test_dealer_messages_are_uniform():
    left, right = np.full((4000, 3), 7), np.full((4000, 3), -2)
    fed = make_federation(left, right)
    seen = overheard(fed)
    with ProductSession(fed, put(fed, "ann", left), "bob", mode="dealer") as session:
        first = session.products(put(fed, "bob", right))
        second = session.products(put(fed, "bob", right))
    np.testing.assert_array_equal(first, second)
    masked = [value for *_, kind, value in seen if kind == "masked"]
    columns = [value for value in masked if value.shape == (3 * 4000,)]
    shares = [value for value in masked if value.shape == (3, 3)]
    assert (len(columns), len(shares)) == (3, 4)
    for value in columns:
        assert_uniform(value, 64)
    # the same values are masked afresh
    assert not (columns[1] == columns[2]).any()
    assert not (shares[0] == shares[2]).any()


@pytest.mark.parametrize("to", ["ann", "bob"])
def test_what_the_dealer_lets_a_party_add_up_has_no_carry_either(to, monkeypatch):
    left, right = np.full((3, 60), 7), np.full((3, 60), -2)
    fed = make_federation(left, right)
    added = []
    open_sealed = DealerWorker.open

    def spy(worker, sealed, **how):
        added.append(open_sealed(worker, sealed, **how))
        return added[-1]

    monkeypatch.setattr(DealerWorker, "open", spy)
    seen = overheard(fed)
    with ProductSession(fed, put(fed, "ann", left), "bob", mode="dealer") as session:
        session.products(put(fed, "bob", right), to=to, store="sums")
    rest = next(v["rest"] for _, _, call, _, v in seen if call.endswith("add_up") and "rest" in v)
    for words in (*added, rest):
        assert_uniform(words, LEAST_BITS)
        assert int(words.max()) < 1 << LEAST_BITS
    assert (fed.engine.sites[to].state["sums"] == -42).all()


@pytest.mark.parametrize(("mode", "bits"), [("bfv", bfv.LEAST_PLAIN_BITS), ("dealer", LEAST_BITS)])
def test_shares_are_uniform(mode, bits):
    left, right = np.full((3, 45), 7), np.full((3, 45), -2)
    fed = make_federation(left, right)
    seen = overheard(fed)
    inner_products(fed, put(fed, "ann", left), put(fed, "bob", right), mode=mode)
    shares = [v for _, _, call, _, v in seen if call.endswith("Worker.share") and len(v)]
    assert [share.shape for share in shares] == [(45, 45)] * 2
    for share in shares:
        assert_uniform(share, bits)
        # A carry into a further bit would say which of the parties' terms were large.
        assert int(share.max()) < 1 << bits


# ---------------------------------------------------------------------------------- hiding in bfv


def bfv_pair(left, right):
    """The two workers after everything but the multiplication, and what A can decrypt with."""
    fed = make_federation(left, right)
    session = ProductSession(fed, put(fed, "ann", left), "bob")
    one, other = put(fed, "ann", left), put(fed, "bob", right)
    facts = [session._load(side) for side in (one, other)]
    session.protocol._prepare(*facts, largest=int(np.abs(left.T @ right).max()))
    workers = [next(w for w in fed.engine.sites[name]._workers.values()) for name in ("ann", "bob")]
    return session, *workers


def opened_product(session, ann, bob):
    sealed = bob.multiply_part("ann", 0, 1)
    (data,) = ann.open(sealed, sender="bob", kind="ciphertext")
    return ann._context.load_ciphertext(data, level=1)


@pytest.mark.parametrize("value", [3, 0])
def test_what_the_key_holder_gets_is_uniform_flooded_and_afresh(value):
    """All N coefficients, not the answers alone: the others are partial sums of B's values.

    c1 of an unmasked product is A's c1 times B's polynomial; here it differs every time.
    """
    session, ann, bob = bfv_pair(np.arange(300)[:, None], np.full((300, 1), value))
    context, secret = ann._context, ann._keys.secret
    bits = context.plain_modulus.bit_length() - 1
    products = [opened_product(session, ann, bob) for _ in range(2)]
    polynomial = context.decrypt(secret, products[0])
    assert len(polynomial) == DEGREE
    assert_uniform(polynomial, bits)
    one, other = ({each[2 * DEGREE + at] for at in range(200)} for each in products)
    assert not one & other
    budget = context.noise_budget(secret, products[0])
    assert 2 <= budget <= 5  # whatever the modulus leaves is flooded
    assert bfv.PROFILES["narrow"].flood_bits(bits) == 130 - bits
    if value:  # without flooding there would be far more left
        bare = bob._products(bob.columns.values[0])[0]
        context.evaluator.transform_from_ntt_inplace(bare)
        assert context.noise_budget(secret, bare) > budget + 35


def test_hiding_has_no_switch():
    """No argument, setting or constructor option mentions it."""
    answers = [getattr(bfv.BfvWorker, name) for name in bfv.BfvWorker.exposures]
    for function in (ProductSession.__init__, inner_products, *answers):
        names = set(inspect.signature(function).parameters)
        assert not {name for name in names if "flood" in name or "mask" in name or "hid" in name}


@pytest.mark.parametrize(
    ("bits", "factor", "profile"),
    [(30, 8, "narrow"), (48, 8, "wide"), (59, 8, "wide"), (59, 24, "widest")],
)
def test_every_modulus_leaves_room_to_decrypt(bits, factor, profile):
    """The largest products under the modulus, with rows enough for the noise to grow."""
    n = 4096
    left = np.full((n, 1), (1 << (bits - 1 - 12 - factor)) - 1)
    right = np.full((n, 1), -(1 << factor))
    fed = make_federation(left, right)
    with ProductSession(fed, put(fed, "ann", left), "bob") as session:
        result = session.products(put(fed, "bob", right))
        assert (session.protocol._profile.name, session.protocol._bits) == (profile, bits)
    np.testing.assert_array_equal(result, left.T @ right)


def test_the_widest_primes_are_for_what_is_at_hand():
    n = 100_000
    loud = {"rows": n, "max_abs": 1 << 30, "square_sum": n << 60, "abs_sum": n << 30}
    assert choose_profile(1 << 50, loud | {"square_sum": n << 50})[0].name == "widest"
    # The widest primes take what is at hand, as long as the run has room for it.
    assert choose_profile(1 << 57, loud | {"square_sum": n << 50}, 64)[0].name == "widest"
    with pytest.raises(DataError, match="too large for mode 'bfv'"):
        choose_profile(1 << 57, loud | {"square_sum": n << 50}, 1 << 18)
    with pytest.raises(DataError, match="too large for mode 'bfv'"):
        choose_profile(1 << 57, loud | {"square_sum": n << 90}, 1)


# ---------------------------------------------------------------------------------- tampering


def test_a_share_leaves_once_and_whole():
    _session, ann, bob = bfv_pair(np.arange(300)[:, None], np.full((300, 1), 3))
    ann.decrypt_part(bob.seal([], to="ann", kind="ciphertext"), "bob")
    with pytest.raises(CryptoError, match="shares of 0 columns"):
        ann.finish(1)
    ann.decrypt_part(bob.multiply_part("ann", 0, 1), "bob")
    ann.finish(1)
    ann.share()
    with pytest.raises(CryptoError, match="has left"):
        ann.share_for("bob")
    with pytest.raises(CryptoError, match="0 of 1 ciphertexts"):
        bob._fixed.clear()
        bob.multiply_part("ann", 0, 1)


def test_steps_out_of_order():
    left = np.ones((5, 1), int)
    fed = make_federation(left, left)
    with fed.workers(bfv.BfvWorker) as workers:
        introduce(workers)
        with pytest.raises(CryptoError, match="agree first"):
            workers["ann"].encrypt_part("bob", 0, 1)
        with pytest.raises(ConfigError, match="call load first"):
            workers.agree("narrow", 20, {"rows": 5, "columns": 1, "group": 1})
            workers["ann"].public_parameters("bob")
            workers["ann"].encrypt_part("bob", 0, 1)
        with pytest.raises(CryptoError, match="no profile 'leaky'"):
            workers.agree("leaky", 20, {"rows": 5, "columns": 1, "group": 1})
        with pytest.raises(CryptoError, match="no plaintext modulus 2\\^60"):
            workers.agree("wide", 60, {"rows": 5, "columns": 1, "group": 1})


def test_a_mask_is_never_used_twice():
    left = np.ones((5, 1), int)
    fed = make_federation(left, left)
    with fed.workers(DealerWorker, role=Each({"ann": "fixed", "bob": "changing"})) as workers:
        introduce(workers)
        workers.load("integers", {})
        workers["bob"].mask("ann", 3)
        workers["bob"].multiply_changing("ann", 3, 1, 1, 64)
        with pytest.raises(CryptoError, match="has not masked"):
            workers["bob"].multiply_changing("ann", 3, 1, 1, 64)
        # The blind of a share too: two shares under one would show a difference of products.
        with pytest.raises(CryptoError, match="has not masked"):
            workers["ann"].multiply_fixed("bob", 4, 1, 64)
        workers["ann"].mask("bob", 1)
        workers["ann"].multiply_fixed("bob", 4, 1, 64)
        for number in (4, 3):
            with pytest.raises(CryptoError, match="used twice"):
                workers["ann"].multiply_fixed("bob", number, 1, 64)


# ---------------------------------------------------------------------------------- other modes


def test_plain_warns_and_needs_the_policy():
    left, right = np.arange(12).reshape(6, 2), np.arange(6)[:, None] - 3
    fed = make_federation(left, right)
    with (
        pytest.warns(PrivacyWarning, match="in the clear: for simulation only"),
        pytest.raises(Refused, match="kind 'row'"),
    ):
        inner_products(fed, "ann", "bob", mode="plain")
    fed = make_federation(left, right, policy=OPEN)
    with pytest.warns(PrivacyWarning):
        result = inner_products(fed, "ann", "bob", mode="plain")
    np.testing.assert_array_equal(result.to_numpy(), left.T @ right)
    with (
        pytest.warns(PrivacyWarning),
        ProductSession(fed, Columns("ann"), "bob", mode="plain") as session,
    ):
        session.products(Columns("bob"), to="bob", store="x")
    np.testing.assert_array_equal(fed.engine.sites["bob"].state["x"], left.T @ right)


def test_published_is_exact_and_warns():
    left, right = np.array([[3, -4], [1, 0], [-2, 9]]), np.array([[5], [-6], [7]])
    fed = make_federation(left, right)
    with (
        pytest.warns(PrivacyWarning, match="difference of every row"),
        pytest.raises(Refused, match="'row'"),
    ):
        inner_products(fed, "ann", "bob", mode="published", key_bits=1024)
    fed = make_federation(left, right, policy=OPEN)
    with pytest.warns(PrivacyWarning, match="difference of every row"):
        result = inner_products(fed, "ann", "bob", mode="published", key_bits=1024)
    np.testing.assert_array_equal(result.to_numpy(), left.T @ right)
    # A's ciphertexts pass the coordinator, which has the key, in encrypted messages only
    passed = [e for e in fed.ledger if e.call.endswith(".encrypt_column") and e.sender == "ann"]
    assert {e.sealed_for for e in passed} == {"bob"}


def test_paillier_refuses_what_is_not_its_ciphertext():
    key = Paillier.generate(1024)
    public = Paillier(key.modulus)
    cells = [public.encrypt(-5), public.encrypt(5)]
    data = public.to_bytes(cells)
    assert [key.decrypt(cell) for cell in key.from_bytes(data, 2)] == [-5, 5]
    for bad in (data[:-1], data + b"\0", b"", "text", bytes(len(data)), b"\xff" * len(data)):
        with pytest.raises(CryptoError):
            key.from_bytes(bad, 2)
    with pytest.raises(CryptoError, match="key holder"):
        public.decrypt(cells[0])
    with pytest.raises(CryptoError, match="1024 bits"):
        Paillier(15)
    with pytest.raises(ConfigError, match="key_bits"):
        Paillier.generate(512)


def test_published_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightphe.cryptosystems.Paillier", None)
    left = np.ones((5, 1), int)
    fed = make_federation(left, left)
    with pytest.raises(MissingExtra, match="fedmend\\[paillier\\]"):
        inner_products(fed, "ann", "bob", mode="published", key_bits=1024)
