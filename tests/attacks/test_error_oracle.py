"""A coordinator bisects a party's largest value through what works and what does not.

`load(bound=mid)` failed where a value was larger than `mid`: twenty questions gave the largest
value of a column to the last digit, at a party whose policy refused nearly every kind, and 13 of
the 20 answers were in no ledger. The attacker here is the coordinator: it sends whatever messages
it likes to the real host of a party and sees its replies, nothing else.

Measured in bits: of a value that is uniform over 2^20 the attacker's last interval [lo, hi] is
compared with what was there before. With b bounds allowed, it can have at most 2^20 / (b + 1)
on average (b yes-or-no answers about a threshold have b + 1 outcomes), however it asks, in
however many sessions.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from fedmend.errors import DataError, FedmendError, PartyFailed, Refused
from fedmend.federation.engines.flare.host import MAX_ERRORS, MAX_ERRORS_PER_COLUMN
from fedmend.federation.ledger import COORDINATOR, read_ledger
from fedmend.federation.site import Alignment
from fedmend.secure.bounds import MOST_BOUNDS

from .reached import AtHost

ROWS, RANGE = 400, 1 << 20
# The party lets the workers be started at all; by default it does not.
METHODS = ["vfl", "fedpsg-pum", "products", "sums", "correlation"]
SUMS = '[policy]\nallow = ["control", "count", "statistic", "masked", "row"]\n'
SUMS += f"methods = {METHODS}\n"
REFUSES = '[policy]\nrefuse = ["statistic", "weights", "prediction", "embedding", "gradient"]\n'
REFUSES += f"methods = {METHODS}\n"


class Coordinator(AtHost):
    """Sends messages to a host and counts the answers. Aligned rows are put there beforehand."""

    def __init__(self, folder, run="r"):
        super().__init__(folder, methods=tuple(METHODS), run=run)
        self.answers = 0  # the hello is answered before there is a session to write about
        rows = np.arange(len(self.site.tables["train"]))
        self.site.alignments["train"] = Alignment(rows, rows[:0])

    def reply(self, op, **content):
        self.answers = getattr(self, "answers", 0) + 1
        return super().reply(op, **content)

    def start(self, worker, **params):
        return super().start(worker, params)

    def call(self, handle, method, **kwargs):
        return super().call(handle, method, kwargs)

    def ledger(self):
        self.host._ledger.flush()
        return read_ledger(self.host._ledger.path)

    def answered(self):
        """How many answers the party's own ledger has."""
        return sum(
            entry.count
            for entry in self.ledger()
            if entry.is_crossing and entry.receiver == COORDINATOR
        )


@pytest.fixture
def kit(tmp_path):
    def make(largest=None, seed=0, place="bank", policy=REFUSES):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        rng = np.random.default_rng(seed)
        debt = rng.integers(0, RANGE if largest is None else max(1, largest), ROWS)
        if largest is not None:
            debt[:] = largest  # the rows set aside for testing must not hold it alone
        frame = pd.DataFrame({"customer": range(ROWS), "debt": debt, "default": debt % 2})
        frame["rate"] = rng.normal(size=ROWS)
        frame.loc[:50, "rate"] = np.nan
        frame["age"] = rng.integers(18, 90, ROWS)
        frame.to_csv(folder / "bank.csv", index=False)
        text = 'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n'
        (folder / "party.toml").write_text(text + policy)
        return folder

    return make


@pytest.fixture
def coordinator(kit):
    made = []

    def make(run="r", **table):
        made.append(Coordinator(kit(**table), run))
        return made[-1]

    yield make
    for each in made:
        each.close()


def bisected(within, low=0, high=RANGE):
    """The interval in which an attacker knows the largest value to be, after 20 questions."""
    asked = 0
    while low < high and asked < 20:
        middle = (low + high) // 2
        asked += 1
        try:
            within(middle)
            high = middle
        except DataError:
            low = middle + 1
        except Refused:
            break
    return low, high, asked


def load(coordinator, handle, bound, **more):
    settings = {"names": ["debt"], "bound": bound, **more}
    return coordinator.call(handle, "load", provider="integers", settings=settings)


def prepare(coordinator, handle, number, bound):
    form = {"low": 0, "high": bound, "fraction_bits": None}
    parties = ["bank", "telco"]
    return coordinator.call(
        handle, "prepare_round", number=number, name=f"n{number}", form=form, parties=parties
    )


def test_twenty_questions_about_a_product_s_bound_get_no_further_than_three(coordinator):
    bank = coordinator(largest=777_777)
    worker = bank.start("BfvWorker")
    low, high, asked = bisected(lambda bound: load(bank, worker, bound))
    assert asked == MOST_BOUNDS + 1
    assert low <= 777_777 <= high
    assert high - low + 1 >= RANGE >> MOST_BOUNDS
    assert bank.answered() == bank.answers  # every one of them is in the party's own ledger
    notes = [entry.note for entry in bank.ledger() if entry.call == "BfvWorker.load"]
    assert notes.count("error") + notes.count("refused") >= 2


def test_many_ways_to_name_a_column_are_one_column(coordinator):
    """Other workers, lists of names and orders: the bound is counted for the column."""
    bank = coordinator(largest=777_777)
    turns = [["debt"], ["debt", "age"], ["age", "debt"], ["debt", "debt"]]
    asked = 0

    def within(bound):
        nonlocal asked
        worker = bank.start("DealerWorker", role="fixed") if asked % 2 else bank.start("BfvWorker")
        asked += 1
        return load(bank, worker, bound, names=turns[asked % len(turns)])

    low, high, _ = bisected(within)
    assert high - low + 1 >= RANGE >> MOST_BOUNDS


def test_another_session_does_not_begin_anew(coordinator):
    lowest, highest = 0, RANGE
    for number in range(5):
        bank = coordinator(run=f"r{number}", largest=777_777)
        worker = bank.start("BfvWorker")

        lowest, highest, _ = bisected(partial(load, bank, worker), lowest, highest)
        bank.close()
    assert highest - lowest + 1 >= RANGE >> MOST_BOUNDS


@pytest.mark.parametrize("per", ["row", "total"])
def test_twenty_questions_about_a_sum_s_range_get_no_further_than_three(coordinator, per):
    # Sums over many parties are let out here; the bits are for whoever may ask for them at all.
    bank = coordinator(largest=900 if per == "total" else 777_777, policy=SUMS)
    worker = bank.start("ColumnSumWorker", columns=["debt"], per=per)
    number = 0

    def within(bound):
        nonlocal number
        number += 1
        return prepare(bank, worker, number, bound)

    low, high, asked = bisected(within)
    assert asked == MOST_BOUNDS + 1
    assert high - low + 1 >= RANGE >> MOST_BOUNDS
    assert bank.answered() == bank.answers


def test_what_is_learnt_is_no_more_than_the_bounds_allow(coordinator):
    """Whatever the value: three yes-or-no answers of about 20 bits."""
    for number, true in enumerate(np.random.default_rng(1).integers(1, RANGE, 8).tolist()):
        bank = coordinator(place=f"bank-{number}", largest=true)
        low, high, _ = bisected(partial(load, bank, bank.start("BfvWorker")))
        assert low <= true <= high
        assert math.log2(RANGE / (high - low + 1)) <= MOST_BOUNDS


def test_columns_that_a_worker_left_have_the_bounds_of_public_facts(coordinator):
    """Nobody names a bound for them, nor an array of the state that was not left for products."""
    bank = coordinator()
    worker = bank.start("BfvWorker")
    bank.site.state["secrets"] = np.arange(2 * len(bank.site.tables["train"])).reshape(2, -1)
    for settings in ({"key": "secrets"}, {"key": "ranks", "bound": 7}):
        with pytest.raises((DataError, PartyFailed)):
            bank.call(worker, "load", provider="state", settings=settings)


def test_errors_of_a_column_are_stopped_and_then_nothing_is_done(coordinator):
    bank = coordinator()
    worker = bank.start("BfvWorker")
    for _ in range(MAX_ERRORS_PER_COLUMN):
        with pytest.raises(DataError, match="missing"):
            load(bank, worker, 5, names=["rate"])
    # Also what would have worked tells nothing any more: the answer is the same.
    answers = set()
    for names in (["age"], ["rate"], ["nothing"]):
        with pytest.raises(Refused, match="too many errors in this session") as refused:
            load(bank, worker, 1000, names=names)
        answers.add(str(refused.value))
    with pytest.raises(Refused, match="too many errors"):
        bank.start("BfvWorker")
    assert len(answers) == 1
    assert bank.answered() == bank.answers


def test_errors_that_name_no_column_are_stopped_too(coordinator):
    bank = coordinator()
    worker = bank.start("BfvWorker")
    errors = 0
    for number in range(3 * MAX_ERRORS):
        try:
            bank.call(worker, "load", provider="state", settings={"key": f"k{number}"})
        except Refused:
            break
        except FedmendError:
            errors += 1
    assert errors == MAX_ERRORS
    assert bank.answered() == bank.answers


def test_an_error_does_not_say_how_many_cells_or_which_value(coordinator):
    bank = coordinator(largest=777_777)
    sums = bank.start("ColumnSumWorker", columns=["rate"], per="total")
    products = bank.start("BfvWorker")
    said = []
    for ask in (
        lambda: prepare(bank, sums, 1, 10),
        lambda: load(bank, products, 3),
        lambda: bank.call(
            products, "load", provider="fixed-point", settings={"bits": 8, "names": ["rate"]}
        ),
    ):
        with pytest.raises(DataError) as error:
            ask()
        said.append(str(error.value))
    told = " ".join(said)
    assert "777777" not in told and "777,777" not in told
    missing = int(bank.site.tables["train"].frame["rate"].isna().sum())
    assert str(missing) not in told and "withheld" in told


def test_an_error_before_the_session_is_in_the_ledger(kit):
    folder = kit()
    (folder / "bank.csv").write_text("customer,debt\n1,2\n1,3\n")
    with pytest.raises(FedmendError):
        Coordinator(folder)
    (entry,) = read_ledger(folder / "ledgers" / "r.jsonl")
    assert (entry.sender, entry.call, entry.note) == ("bank", "hello", "error")
    assert entry.bytes > 50


def test_a_message_sent_twice_or_malformed_is_answered_and_written_down(coordinator):
    bank = coordinator()
    bank.start("BfvWorker")
    bank._number -= 1
    with pytest.raises(Refused, match="came before"):
        bank.start("BfvWorker")
    for content in ({"handle": 3}, {"handle": "x", "method": "y"}):
        with pytest.raises(FedmendError):
            bank.ask("call", **content)
    assert bank.host.answer(b"no message")
    assert bank.answered() == bank.answers + 1
