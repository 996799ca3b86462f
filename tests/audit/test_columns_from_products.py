"""Columns from products: counted equations, and ranks out of published differences."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import r2_score

import fedmend as fm
from fedmend.audit import Audit
from fedmend.audit.columns_from_products import ColumnsFromProducts, ranks_from_differences
from fedmend.audit.context import NotApplicable
from fedmend.audit.recorder import Observations, Observed, rehearsal
from fedmend.errors import PrivacyWarning
from fedmend.federation import KINDS
from fedmend.secure import rank_correlation
from fedmend.secure.columns import IntegerColumns
from fedmend.secure.correlation import centred_ranks

COLUMNS = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}


def test_many_differences_leave_little_of_the_ranks_open():
    rng = np.random.default_rng(0)
    ranks = np.stack([centred_ranks(rng.normal(size=200)) for _ in range(12)])
    found = {}
    for some in (2, 12):
        a, b = ranks[: some // 2], ranks[some // 2 : some]
        told = ranks_from_differences(a[:, None] - b[None], 199)
        found[some] = np.corrcoef(told.ravel(), np.concatenate([a, b]).ravel())[0, 1] ** 2
        assert (np.abs(told) <= 199 + 1e-9).all()
        # Differences are kept, whatever was guessed.
        assert np.allclose(told[0] - told[some // 2], a[0] - b[0])
    assert found[2] < 0.6 < 0.95 < found[12]


@pytest.fixture
def correlated(make_fed, make_frame):
    def run(rows=40, **options):
        attack = ColumnsFromProducts(Observations("train", 0, 1))
        open_ = fm.Policy(allow=frozenset(KINDS))
        fed = make_fed(make_frame(rows), columns=COLUMNS, policy_bank=open_, policy_telco=open_)
        copy = rehearsal(fed, [attack.hear])
        rank_correlation(copy, "bank", "telco", **options)
        return attack

    return run


@pytest.mark.slow
def test_the_published_protocol_gives_ranks_away(correlated, make_context):
    pytest.importorskip("lightphe")
    with pytest.warns(PrivacyWarning):
        attack = correlated(12, protocol="published", key_bits=1024)
    found = {each.what: each for each in attack.run(make_context())}
    assert set(found) == {f"ranks of {name}" for name in "abcd"}
    assert np.mean([each.score for each in found.values()]) > 0.4
    assert {each.about for each in found.values()} == {"bank", "telco"}


def test_differences_of_ranks_tell_ranks(make_context):
    rng = np.random.default_rng(1)
    ranks = np.stack([centred_ranks(rng.normal(size=60)) for _ in range(6)])
    attack = ColumnsFromProducts(Observations("train", 0, 1))
    sides = {"bank": ranks[:3], "telco": ranks[3:]}
    for party, values in sides.items():
        names = [f"{party}{at}" for at in range(3)]
        columns = IntegerColumns(values, tuple(names), 59, 60**3)
        at = SimpleNamespace(_columns=columns)
        heard = {"party": party, "handle": "", "scope": "train", "at": at, "kind": "count"}
        told = {"names": names}
        attack.hear(
            Observed(worker="RankWorker", method="describe", given={}, answer=told, **heard)
        )
        attack.hear(Observed(worker="", method="load", given={}, answer={}, **heard))
        method = {"bank": "encrypt_column", "telco": "differences"}[party]
        for number in range(3):
            given = {"at": number} if party == "bank" else {}
            attack.hear(Observed(worker="", method=method, given=given, answer=[], **heard))
    found = {each.what: each for each in attack.run(make_context())}
    told = ranks_from_differences(ranks[:3, None] - ranks[None, 3:], 59)  # of 60 rows
    assert [each.score for each in found.values()] == pytest.approx(
        [r2_score(real, guess) for real, guess in zip(ranks, told, strict=True)]
    )
    assert set(found) == {f"ranks of {party}{at}" for party in sides for at in range(3)}
    assert all(each.score > 0.6 and each.guess == 0 for each in found.values())
    assert all(each.rows == 60 and each.role == "coordinator" for each in found.values())


def test_the_default_protocol_shows_equations_only(correlated, make_context):
    context = make_context()
    assert correlated(mode="dealer").run(context) == []
    assert any("at most 2 linear equations in the 40 entries" in fact for fact in context.facts)
    assert any("nothing to attack row by row" in fact for fact in context.facts)


def test_as_many_vectors_as_rows_determine_a_column():
    attack, rng = ColumnsFromProducts(Observations("train", 0, 1)), np.random.default_rng(0)
    vectors = rng.integers(-9, 9, size=(30, 20))
    attack.brought["telco"] = {each.tobytes(): each for each in vectors}
    assert "20 linear equations in the 20 entries" in attack._count("telco")
    assert "DETERMINED" in attack._count("telco")
    flat = np.stack([vectors[0] * times for times in range(1, 31)])
    attack.brought["telco"] = {each.tobytes(): each for each in flat}
    assert "at most 1 linear" in attack._count("telco")
    assert "no column is determined" in attack._count("telco")


def test_a_vector_counts_once_and_who_learns_products_is_named():
    attack = ColumnsFromProducts(Observations("train", 0, 1))
    values = np.arange(20).reshape(2, 10)
    at = SimpleNamespace(_columns=IntegerColumns(values, ("c", "d"), 59, 60**3))
    heard = Observed("telco", "", "", "load", "train", {}, {}, "count", at=at)
    for _ in range(2):
        attack.hear(heard)
    assert "at most 2 linear equations in the 10 entries" in attack._count("telco")
    assert "the coordinator together with telco" in attack._count("telco")
    attack.hear(Observed("telco", "", "", "learn", "train", {}, {}, "count"))
    assert "telco, which learns products itself" in attack._count("telco")


def test_a_completion_is_audited(make_fed, make_frame):
    fed = make_fed(make_frame(80), aligned=40, columns=COLUMNS)
    method = fm.FedPSGPUM(
        model="linear", tau=0.0, rounds=1, generator_params={"epochs": 1},
        correlation_mode="dealer", mode="dealer",
    )  # fmt: skip
    report = Audit().run(fed, method)
    assert report.method == "FedPSGPUM"
    assert any("linear equations in the 40 entries" in fact for fact in report.facts)
    assert not report.scores


def test_where_there_are_no_products(make_context):
    with pytest.raises(NotApplicable, match="no inner products"):
        ColumnsFromProducts(Observations("train", 0, 1)).run(make_context(n=40))
