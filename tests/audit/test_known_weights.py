"""Rows from known weights: all of them where weights follow from the seed, none anywhere else."""

import numpy as np
import pytest
import torch

import fedmend as fm
from fedmend.audit import Audit
from fedmend.audit.context import NotApplicable
from fedmend.audit.known_weights import KnownWeights, explained_rows, rebuilt_bottom
from fedmend.audit.recorder import Observations
from fedmend.data.table import Table
from fedmend.split.config import SplitConfig
from fedmend.split.features import Features
from fedmend.split.workers import BottomWorker

CONFIG = SplitConfig(bottom=(24,), embedding=12)


VFL, RISA = fm.VFL(epochs=1), fm.RISA(epochs=1, members=2)


later = pytest.param(RISA, True, marks=pytest.mark.slow)


@pytest.mark.daily("method0-True")
@pytest.mark.parametrize(("method", "reproducible"), [(VFL, True), (VFL, False), later])
def test_an_audit_shows_it_where_weights_are_known(make_fed, make_frame, method, reproducible):
    fed = make_fed(make_frame(60), reproducible=reproducible)
    report = Audit(attacks=["weights"]).run(fed, method, compare={"seal": True})
    assert {each.what for each in report.findings} == {"c", "d", "e", "city"}
    assert {each.role for each in report.findings} == {"coordinator", "bank"}
    assert {each.role for each in report.other.findings} == {"bank"}  # the others cannot read
    for each in (*report.findings, *report.other.findings):
        assert each.known == 0
        if reproducible:
            assert each.score > 0.99
            assert each.grade == "strong"
        else:
            assert each.score == each.guess
            assert each.grade == "not shown"
    explained = [fact for fact in report.facts if "explain" in fact]
    assert len(explained) == 2
    assert all((" 0 of the first" in fact) is not reproducible for fact in explained)


def test_what_any_weights_explain_is_no_proof_of_them(make_fed, make_frame):
    """Two numbers a row for its many unknowns: some row has them, whatever the weights are."""
    fed = make_fed(make_frame(60), reproducible=False)
    report = Audit(attacks=["weights"]).run(fed, fm.VFL(epochs=1, embedding=2))
    assert report.findings and all(each.score == each.guess for each in report.findings)
    assert any("whatever the weights, some row explains 2 numbers" in fact for fact in report.facts)


def test_wrong_seeds_and_names_explain_nothing():
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=50), "z": rng.normal(size=50), "k": rng.choice(list("abc"), 50)}
    table = Table(np.arange(50), columns)
    given = {"config": CONFIG.to_wire()}
    part = rebuilt_bottom(BottomWorker, given, "telco", 3, table)
    encoded = part.encoder.transform(table)
    features = Features(encoded, np.arange(50), torch.device("cpu"), torch.float32)
    sent = part.module(features.batch(torch.arange(50))).detach().numpy()
    (numbers, shares), sure = explained_rows(part.module, sent, rng)
    assert sure.all()
    assert np.abs(numbers - encoded.numeric).max() < 1e-3
    assert (shares.argmax(1) == encoded.codes[:, 0]).all()
    for name, seed in (("telco", 4), ("shop", 3)):
        other = rebuilt_bottom(BottomWorker, given, name, seed, table)
        found, sure = explained_rows(other.module, sent, rng)
        assert not sure.any()
        assert not any(each.any() for each in found)


def test_nothing_to_work_on_is_said(make_context):
    with pytest.raises(NotApplicable, match="numbers and categories"):
        KnownWeights(Observations("train", 30, 1)).run(make_context(n=40))
