"""Sums and products that open a row: totals with a constant column, indicators of one row each.

The coordinator uses public functions under a default policy. Measured: whether labels or values of
single rows come out; before, all of them did, exactly, and the ledger's audit graded both "none".
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedmend.audit.statement import statement
from fedmend.data.table import Table
from fedmend.errors import PrivacyWarning, Refused
from fedmend.federation import KINDS, Federation, Party, Policy, Site
from fedmend.methods.boosting import histograms
from fedmend.methods.completion import linear
from fedmend.methods.completion.trees import TreeFeatures
from fedmend.secure import Columns, align, inner_products, rank_correlation, secure_sum
from fedmend.secure.columns import hold_columns, keep_products
from fedmend.secure.inner_product import ProductSession

ROWS = 150


def federation(policy: Policy | None = None, rows: int = ROWS) -> Federation:
    rng, ids = np.random.default_rng(0), np.arange(rows)
    bank = pd.DataFrame(
        {
            "income": rng.integers(1000, 9000, rows),
            "age": rng.integers(18, 90, rows),
            "default": rng.integers(0, 2, rows),
        }
    )
    telco = pd.DataFrame(
        {
            "calls": rng.integers(0, 500, rows),
            "country": np.full(rows, 47),
            "street": [f"street {number}" for number in range(rows)],
            "plan": rng.choice(list("abc"), rows),
            "minister": (ids == 77).astype(int),
        }
    )
    fed = Federation(
        Party("bank", Table(ids, bank, label="default"), policy=policy),
        Party("telco", Table(ids, telco, kinds={"street": "nominal"}), policy=policy),
        strict=True,
    )
    align(fed)
    return fed


def test_labels_by_a_sum_with_a_constant_column():
    fed = federation()
    for per in ("row", "total"):
        with pytest.raises(Refused, match="label column takes no part"):
            secure_sum(fed, {"bank": "default", "telco": "country"}, per=per)
    with pytest.raises(Refused, match="label column takes no part"):
        inner_products(fed, Columns("bank", "integers", {"names": ["default"]}), "telco")
    with pytest.raises(Refused, match="label column takes no part"):
        rank_correlation(fed, "bank", "telco", columns_a=["default"])


@pytest.mark.parametrize("mode", ["masks", "he"])
def test_rows_by_a_sum_with_a_constant_column(mode):
    fed = federation()
    with pytest.raises(Refused, match=r"the sum of .* of kind 'row'"):
        secure_sum(fed, {"bank": "income", "telco": "country"}, per="row", mode=mode)
    assert not {"masked", "ciphertext"} & fed.ledger.kinds(sender="bank")


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_a_table_by_indicators_of_one_row_each(mode):
    fed = federation()
    streets = Columns("telco", "indicators", {"names": ["street"]})
    found = inner_products(
        fed, streets, Columns("bank", "integers", {"names": ["income"]}), mode=mode
    )
    assert found.shape == (0, 1)


def test_a_row_by_a_column_in_which_it_alone_differs():
    fed = federation()
    with pytest.raises(Refused, match="'minister' says something of fewer than 10 rows"):
        inner_products(fed, "bank", Columns("telco", "integers", {"names": ["minister"]}))
    found = rank_correlation(fed, "bank", "telco", mode="dealer").matrix
    assert found["minister"].isna().all()


def test_what_is_left_of_a_total_is_no_small_group_either():
    """Two plans told and nine people in a third: all less both were the nine."""
    rng = np.random.default_rng(1)
    plan = np.array(["a"] * 80 + ["b"] * 61 + ["c"] * 9)
    tables = {
        "bank": Table(np.arange(ROWS), {"income": rng.integers(0, 99, ROWS)}),
        "telco": Table(np.arange(ROWS), {"plan": plan}),
    }
    fed = Federation(*(Party(name, each) for name, each in tables.items()))
    align(fed)
    found = inner_products(fed, Columns("telco", "indicators"), "bank", mode="dealer")
    assert found.index.tolist() == ["plan#0"]


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
@pytest.mark.parametrize("to", [None, "bank"])
def test_products_that_are_for_one_party_alone_open_to_nobody_else(mode, to):
    """A training's residuals or gradients at telco: the sums are for it, whoever asks for them."""
    fed = federation()
    for name in fed.names:
        hold_columns(fed.engine.sites[name], "numbers", np.ones((2, ROWS), np.int64), 1)
    keep_products(fed.engine.sites["telco"], "numbers")
    numbers = {name: Columns(name, "state", {"key": "numbers"}) for name in fed.names}
    with ProductSession(fed, numbers["bank"], "telco", mode=mode) as session:
        with pytest.raises(Refused, match="products of these columns are for it alone"):
            session.products(numbers["telco"], to=to)
        session.products(numbers["telco"], to="telco", store="found")
    assert (fed.engine.sites["telco"].state["found"] == ROWS).all()


def test_the_numbers_of_trees_and_residuals_are_for_who_trains(monkeypatch):
    kept = []
    for module in (histograms, linear):
        monkeypatch.setattr(module, "keep_products", lambda site, key: kept.append(key))
    worker = SimpleNamespace(site=Site("bank", {}), model="m", numbers=np.ones((1, 3), np.int64))
    worker.numbers_for = lambda other: worker.numbers
    histograms.SumsWorker.hold_numbers(worker, "telco")
    worker.keep_columns = lambda *given: None
    linear.LinearTargets._keep_own(worker, "residuals", worker.numbers, 1, 3)
    assert kept == ["m:numbers", "m:residuals"]


@pytest.mark.parametrize("mode", ["bfv", "dealer"])
def test_products_of_what_a_training_holds_of_some_rows_open_to_no_coordinator(mode):
    """Bins of both parties over 20 rows, and over 21: the difference is the cells of one row."""
    numbers = {name: np.random.default_rng(0).normal(size=ROWS) for name in ("bank", "telco")}
    fed = Federation(
        *(Party(name, Table(np.arange(ROWS), {"x": each})) for name, each in numbers.items())
    )
    align(fed)
    how = {"model": "m", "segments": [["aligned", ROWS]], "bins": 8, "least": 1, "disclose": 0}
    with (
        fed.workers(TreeFeatures, **how) as trees,
        fed.workers(
            linear.LinearFeatures, **{key: how[key] for key in ("model", "segments")}
        ) as lines,
    ):
        lines.start()
        for length in (20, 21):
            view = fed.on(f"train@m-{length}")
            trees.open_scope(view.scope, length)
            trees.load_bins(length)
            lines.load_columns(8, length)
            for key in ("m:bins", "m:columns"):
                kept = {name: Columns(name, "state", {"key": key}) for name in fed.names}
                with ProductSession(view, kept["bank"], "telco", mode=mode) as session:
                    with pytest.raises(Refused, match="for a party alone"):
                        session.products(kept["telco"])
                    session.products(kept["telco"], to="telco")


def test_the_published_correlation_shows_rows_and_says_so():
    fed = federation(rows=30)  # each costs an exponentiation
    with (
        pytest.warns(PrivacyWarning, match="difference of every row"),
        pytest.raises(Refused, match="'row'"),
    ):
        calls = Columns("telco", "integers", {"names": ["calls"]})
        inner_products(fed, "bank", calls, mode="published", key_bits=1024)


def test_a_ledger_is_graded_by_what_became_readable():
    fed = federation(Policy(allow=frozenset(KINDS), label_sums=True))
    secure_sum(fed, {"bank": "default", "telco": "country"}, per="row")
    entry = next(each for each in fed.ledger if each.kind == "masked" and each.sender == "bank")
    assert (entry.opens, entry.readable) == ("label", "label")
    read = {
        (each.sender, each.kind): each.severity
        for each in statement(fed.ledger.entries(), rows=ROWS)
        if each.role == "coordinator"
    }
    assert read["bank", "label"] == read["telco", "row"] == "high"


def test_a_statistic_with_a_number_for_every_row_is_read_as_rows():
    fed = federation(Policy(allow=frozenset(KINDS)))
    entry = next(iter(fed.ledger.entries()))
    by_row = type(entry)(
        0.0, 0.0, "bank", "coordinator", "X.y", "statistic", f"{ROWS}x2", "float64", 99
    )
    (found,) = statement([by_row], rows=ROWS)
    assert (found.kind, found.severity) == ("row", "high")
    (found,) = statement([by_row], rows=ROWS + 1)
    assert (found.kind, found.severity) == ("statistic", "low")
