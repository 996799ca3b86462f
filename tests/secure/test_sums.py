import threading
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedmend.data.table import Table
from fedmend.errors import (
    AlignmentError,
    ConfigError,
    CryptoError,
    DataError,
    FedmendWarning,
    PartyAbsent,
    PartyFailed,
    PrivacyWarning,
    Refused,
)
from fedmend.federation import KINDS, Alignment, Each, Federation, Party, Policy
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure.sums import (
    LITTLE,
    NEIGHBOURS,
    SumSession,
    SumWorker,
    neighbours,
    offer_summand,
    secure_sum,
)

OPEN = Policy(allow=frozenset(KINDS), min_rows=1, label_sums=True)
MOST = (1 << 63) - 1


def federation(arrays, *, policy=OPEN, name="x", kind="row"):
    names = [f"p{number}" for number in range(len(arrays))]
    table = Table([0], {"v": [0.0]})
    fed = Federation(*(Party(each, table, policy=policy) for each in names), strict=True)
    for each, array in zip(names, arrays, strict=True):
        offer_summand(fed.engine.site(each), name, array, kind=kind, opens="statistic")
    return fed


def session(fed, mode="masks", worker=SumWorker, worker_params=None, **params):
    workers = fed.workers(worker, **(worker_params or {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return SumSession(workers, mode=mode, **params)


def exact(arrays):
    return sum(array.astype(object) for array in arrays)


# ---------------------------------------------------------------------------------- exactness


@st.composite
def integer_arrays(draw):
    count = draw(st.integers(2, 5))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7))
    bound = draw(st.sampled_from([1, 200, 1 << 20, 1 << 40, MOST // count]))
    element = st.one_of(st.integers(-bound, bound), st.sampled_from([-bound, bound, 0]))
    arrays = [draw(hnp.arrays(np.int64, shape, elements=element)) for _ in range(count)]
    return arrays, bound, draw(st.booleans())


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(integer_arrays())
def test_masks_and_none_give_the_exact_sum(case):
    arrays, bound, declared = case
    fed = federation(arrays)
    between = (-bound, bound) if declared else None
    for mode, on_absent in (("masks", "stop"), ("masks", "continue"), ("none", "stop")):
        result = session(fed, mode, on_absent=on_absent).sum("x", between=between)
        assert result.values.dtype == np.int64 and result.values.shape == arrays[0].shape
        assert np.array_equal(result.values.astype(object), exact(arrays))
        assert (result.error_bound, result.absent) == (0.0, ())


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(integer_arrays())
def test_encryption_gives_the_exact_sum(case):
    arrays, bound, declared = case
    result = session(federation(arrays), "he").sum(
        "x", between=(-bound, bound) if declared else None
    )
    assert result.values.dtype == np.int64 and result.values.shape == arrays[0].shape
    assert np.array_equal(result.values.astype(object), exact(arrays))


@pytest.mark.parametrize("bits", [None, 16])
def test_all_modes_agree_bit_for_bit_on_many_ciphertexts(bits):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 3, (9000, 2)) for _ in range(4)]
    if bits is None:
        arrays = [np.rint(array).astype(np.int32) for array in arrays]
    fed = federation(arrays)
    results = {
        mode: session(fed, mode).sum("x", between=(-30, 30), fraction_bits=bits)
        for mode in ("masks", "he", "none")
    }
    assert np.array_equal(results["masks"].values, results["he"].values)
    assert np.array_equal(results["masks"].values, results["none"].values)
    error = np.abs(results["masks"].values - sum(arrays)).max()
    assert error <= results["masks"].error_bound == (0 if bits is None else 4 * 2.0**-17)


def test_one_session_sums_again_and_again_and_two_share_a_crew():
    votes = [np.eye(3, dtype=np.uint8)[[0, 1, 2, label]] for label in (0, 1, 2)]
    fed = federation(votes)
    first = session(fed)
    second = SumSession(first.workers, mode="he", key_holder="p2")
    for _ in range(3):
        for each in (first, second):
            assert np.array_equal(each.sum("x", between=(0, 1)).values, sum(votes))
    offer_summand(fed.engine.site("p1"), "x", np.zeros((4, 3), np.uint8))
    assert np.array_equal(first.sum("x", between=(0, 1)).values, votes[0] + votes[2])


def test_only_the_named_parties_are_summed_and_another_may_hold_the_key():
    arrays = [np.arange(5) + 10 * number for number in range(4)]
    fed = federation(arrays)
    for mode in ("masks", "he"):
        result = session(fed, mode, parties=["p0", "p1", "p3"], key_holder="p2").sum("x")
        assert result.parties == ("p0", "p1", "p3")
        assert np.array_equal(result.values, arrays[0] + arrays[1] + arrays[3])


def test_a_worker_may_give_its_own_summand():
    class DoublingSumWorker(SumWorker):
        def summand(self, name):
            found = super().summand(name)
            return found._replace(values=2 * found.values)

    arrays = [np.arange(6).reshape(2, 3), np.ones((2, 3), int)]
    result = session(federation(arrays), worker=DoublingSumWorker).sum("x")
    assert np.array_equal(result.values, 2 * (arrays[0] + arrays[1]))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("size", [LITTLE, LITTLE + 1])
def test_few_values_of_one_process_are_summed_in_turn_others_by_threads(size, apart, monkeypatch):
    asked = []

    class WatchedSumWorker(SumWorker):
        def summand(self, name):
            asked.append(threading.current_thread().name.rpartition("_")[0])
            return super().summand(name)

    monkeypatch.setattr(LocalEngine, "apart", apart)
    arrays = [np.full(size, number, np.uint8) for number in range(3)]
    one = session(federation(arrays), worker=WatchedSumWorker)
    for _ in range(2):  # how many values there are is known after the first time
        asked.clear()
        assert (one.sum("x", between=(0, 2)).values == 3).all()
    threads = size > LITTLE or apart
    assert asked == 3 * ["fedmend-sum" if threads else ""]


# ---------------------------------------------------------------------------------- wrong use


def test_a_value_out_of_range_names_party_and_value_before_anything_leaves():
    arrays = [np.zeros(4, int), np.array([0, 1, 999, 0]), np.zeros(4, int)]
    for mode in ("masks", "he"):
        fed = federation(arrays)
        with pytest.raises(DataError, match=r"'p1', column 'x'.* \[0, 5\].*\(seen: 999\).* Mend"):
            session(fed, mode).sum("x", between=(0, 5))
        assert not {"masked", "ciphertext", "row"} & fed.ledger.kinds(receiver="coordinator")


def test_wrong_use_is_named():
    with pytest.raises(DataError, match=r"p0 \(4,\), p1 \(2, 2\)"):
        session(federation([np.zeros(4, int), np.zeros((2, 2), int)])).sum("x")
    fed = federation([np.zeros(4, int)] * 2)
    with pytest.raises(DataError, match="nothing is offered for the sum 'y'; there is 'x'"):
        session(fed).sum("y")
    with pytest.raises(ConfigError, match="kind must be 'row' or 'label'"):
        offer_summand(fed.engine.site("p0"), "y", np.zeros(2), kind="statistic")
    workers = fed.workers(SumWorker)
    with pytest.raises(ConfigError) as caught:
        SumSession(workers, mode="mask", on_absent="go", parties=["p0"], key_holder="p7")
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError, match="at least 2 different parties"):
        SumSession(workers, parties=["p0", "p0"])


def test_in_the_clear_is_loud_and_refused_by_default_policies():
    arrays = [np.arange(3), np.arange(3)]
    for kind in ("row", "label"):
        fed = federation(arrays, policy=Policy(), kind=kind)
        with pytest.warns(PrivacyWarning, match="in the clear"):
            one = SumSession(fed.workers(SumWorker), mode="none")
        with pytest.raises(Refused, match=f"a value of kind '{kind}'"):
            one.sum("x")
        assert [entry.note for entry in fed.ledger if entry.kind == kind] == ["refused"] * 2


# ---------------------------------------------------------------------------------- drop-out


class LeavingSumWorker(SumWorker):
    """Loses its connection in one of its methods."""

    def __init__(self, site, scope="train", *, leaves):
        super().__init__(site, scope)
        self.leaves = leaves

    def incoming(self, exposure, kwargs):
        if exposure.method == self.leaves:
            raise ConnectionError("connection lost")
        return super().incoming(exposure, kwargs)


def leaving(arrays, mode, leaves, who="p1", **params):
    fed = federation(arrays)
    worker_params = {"leaves": Each({name: leaves * (name == who) for name in fed.names})}
    return session(fed, mode, LeavingSumWorker, worker_params, **params)


STEPS = [("masks", step) for step in ("public_key", "prepare_round", "masked")]
STEPS += [("he", step) for step in ("public_key", "prepare_round", "encrypted")]


@pytest.mark.parametrize(
    ("mode", "step", "apart"), [(*each, False) for each in STEPS] + [("masks", "masked", True)]
)
def test_a_party_that_leaves_stops_the_sum_or_is_left_out(mode, step, apart, monkeypatch):
    monkeypatch.setattr(LocalEngine, "apart", apart)  # who is, is asked by threads
    arrays = [np.arange(4) + 100 * number for number in range(4)]
    with pytest.raises(PartyFailed, match="'p1' .*'x'.*connection lost.* Mend: bring it back"):
        leaving(arrays[:3], mode, step).sum("x")
    one = leaving(arrays, mode, step, on_absent="continue")
    with pytest.warns(FedmendWarning, match="'x' goes on without 'p1'"):
        result = one.sum("x")
    assert (result.parties, result.absent) == (("p0", "p2", "p3"), ("p1",))
    assert np.array_equal(result.values, arrays[0] + arrays[2] + arrays[3])
    again = one.sum("x", between=(0, 400))
    assert np.array_equal(again.values, result.values) and again.absent == ("p1",)
    # one party alone is never summed
    one = leaving(arrays[:2], mode, step, on_absent="continue")
    with pytest.raises(CryptoError, match="without 'p1': p0 is left, .* its own array"):
        one.sum("x")


def cut_off(one, step, monkeypatch, who="p1"):
    """As on machines: whoever calls a party that is gone is told so by the engine."""
    call = LocalEngine.call

    def gone(engine, asked):
        if asked.party == who and asked.method == step:
            raise PartyAbsent(who, "its job ended", asked.name)
        return call(engine, asked)

    monkeypatch.setattr(LocalEngine, "call", gone)
    return one


@pytest.mark.parametrize(("mode", "step"), STEPS[1:5:3])
def test_a_party_of_another_machine_that_is_gone_is_left_out_too(mode, step, monkeypatch):
    arrays = [np.arange(4) + 100 * number for number in range(3)]
    one = cut_off(session(federation(arrays), mode, on_absent="continue"), step, monkeypatch)
    with pytest.warns(FedmendWarning, match="'x' goes on without 'p1': .*its job ended"):
        result = one.sum("x")
    assert (result.parties, result.absent) == (("p0", "p2"), ("p1",))
    assert np.array_equal(result.values, arrays[0] + arrays[2])


def test_a_party_of_another_machine_that_is_gone_stops_the_sum_as_absent(monkeypatch):
    one = cut_off(session(federation([np.arange(4)] * 3), "masks"), "masked", monkeypatch)
    with pytest.raises(PartyAbsent, match="'p1' is absent during SumWorker.masked") as caught:
        one.sum("x")
    assert "in the secure sum of 'x'" in caught.value.__notes__[0]


@pytest.mark.parametrize("mode", ["masks", "he"])
def test_among_many_parties_each_shares_masks_with_its_neighbours(mode):
    arrays = [np.arange(4) + 7 * number for number in range(25)]
    fed = federation(arrays)
    one = session(fed, mode)
    assert np.array_equal(one.sum("x", between=(0, 200)).values, sum(arrays))
    workers = [next(iter(site._workers.values())) for site in fed.engine.sites.values()]
    holder = {"p0"} if mode == "he" else set()
    for name, worker in list(zip(fed.names, workers, strict=True))[len(holder) :]:
        assert set(worker.met) == {*neighbours(name, fed.names), *holder}


def test_neighbours_hold_together_until_so_many_are_taken_out():
    names = [f"p{number}" for number in range(60)]
    rng = np.random.default_rng(0)
    around = {name: set(neighbours(name, names)) for name in names}
    assert all(name in around[other] for name in names for other in around[name])
    assert {len(each) for each in around.values()} == {NEIGHBOURS}
    for _ in range(30):
        start = int(rng.integers(60))
        near = neighbours(names[start], names)
        gone = set(rng.permutation(near)[: NEIGHBOURS - 1])
        left, reached = set(names) - gone, {names[start]}
        while grown := {each for name in reached for each in around[name] & left} - reached:
            reached |= grown
        assert reached == left


def test_new_neighbours_meet_when_one_of_many_drops_out():
    arrays = [np.arange(4) + 7 * number for number in range(25)]
    one = leaving(arrays, "masks", "masked", on_absent="continue")
    with pytest.warns(FedmendWarning, match="'x' goes on without 'p1'"):
        result = one.sum("x")
    assert np.array_equal(result.values, sum(arrays) - arrays[1])


def test_no_rerun_once_masks_were_opened():
    one = leaving([np.arange(4)] * 3, "masks", "open_own_mask", on_absent="continue")
    with pytest.raises(PartyFailed, match="'p1'.* left after the masks were opened"):
        one.sum("x")


@pytest.mark.parametrize("step", ["prepare_round", "encrypted", "decrypt_blinded"])
def test_a_lost_key_holder_stops_the_sum(step):
    one = leaving([np.arange(4)] * 4, "he", step, key_holder="p1", on_absent="continue")
    with pytest.raises(PartyFailed, match="'p1'.*holds the key. Mend"):
        one.sum("x")


# ---------------------------------------------------------------------------------- columns


@pytest.fixture
def shops():
    rng = np.random.default_rng(3)
    tables = {
        name: Table(
            np.arange(6),
            {
                "sold": rng.integers(0, 50, 6),
                "price": rng.normal(10, 2, 6).round(3),
                "city": list("abcabc"),
                "gap": [1.0, None, 2, 3, 4, 5],
            },
            label="sold" if name == "n" else None,
        )
        for name in ("n", "s", "w")
    }
    fed = Federation(
        *(Party(name, table, policy=OPEN) for name, table in tables.items()), strict=True
    )
    return fed, tables


@pytest.mark.parametrize("mode", ["masks", "he"])
def test_totals_of_columns(shops, mode):
    fed, tables = shops
    result = secure_sum(fed, ["sold", "price"], per="total", mode=mode, fraction_bits=20)
    expected = sum(table.frame[["sold", "price"]].to_numpy().sum(0) for table in tables.values())
    assert result.values.shape == (2,) and np.abs(result.values - expected).max() <= 3 * 2.0**-21
    assert fed.ledger.kinds(receiver="coordinator") <= {"control", "count", "masked", "ciphertext"}


def test_rows_of_aligned_columns(shops):
    fed, tables = shops
    with pytest.raises(AlignmentError, match="not aligned yet"):
        secure_sum(fed, "sold", per="row")
    orders = {"n": [3, 0, 5], "s": [1, 2, 4], "w": [0, 1, 2]}
    for name, rows in orders.items():
        rest = np.setdiff1d(np.arange(6), rows)
        fed.engine.site(name).alignments["train"] = Alignment(np.array(rows), rest)
    result = secure_sum(fed, {"n": "sold", "s": "sold"}, per="row", between=(0, 49))
    expected = sum(tables[name].frame["sold"].to_numpy()[orders[name]] for name in ("n", "s"))
    assert result.values.dtype == np.int64 and np.array_equal(result.values, expected[:, None])
    held = secure_sum(fed, "sold", per="row", parties=["n", "s"], mode="he", key_holder="w")
    assert np.array_equal(held.values, result.values)


@pytest.mark.parametrize(
    ("columns", "how", "message"),
    [
        ("gap", {"per": "total"}, "column 'gap': cells are missing.*seen: 1.* Mend"),
        ("city", {"per": "total"}, "column 'city': .* not numeric"),
        ("prize", {"per": "total"}, "column 'prize': there is no such column"),
        ("price", {"per": "total"}, "not whole"),
        ({"n": "sold", "s": ["sold", "price"]}, {}, "as many columns as the others"),
        ("sold", {"per": "column"}, "per must be"),
    ],
)
def test_wrong_columns_are_named(shops, columns, how, message):
    with pytest.raises((DataError, ConfigError), match=message):
        secure_sum(shops[0], columns, **how)


def test_totals_of_integers_do_not_overflow():
    tables = [Table([0, 1, 2], {"v": np.array([1 << 61, 1 << 61, -(1 << 62)])}) for _ in range(2)]
    fed = Federation(*(Party(f"p{at}", table) for at, table in enumerate(tables)), strict=True)
    assert secure_sum(fed, "v", per="total").values.tolist() == [0]
