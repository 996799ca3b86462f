"""Pseudo-label rules of a client's step, on tables made by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.learn.pseudo import PseudoLabels
from fedmend.methods.horizontal.rules import (
    KAPPA,
    FedDBRule,
    FedLabelRule,
    FlexMatchRule,
    GlobalRule,
    LocalRule,
    Rule,
    SageRule,
    by_entropy,
    debias,
    flexible_thresholds,
    helpers_agree,
)

# Rows: both sure and agreed; only local; only global; neither; both sure, differing.
LOCAL = torch.tensor([[0.97, 0.02, 0.01], [0.98, 0.01, 0.01], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3],
                      [0.99, 0.005, 0.005]])  # fmt: skip
COMMON = torch.tensor([[0.96, 0.03, 0.01], [0.2, 0.7, 0.1], [0.01, 0.01, 0.98], [0.3, 0.4, 0.3],
                       [0.01, 0.96, 0.03]])  # fmt: skip
ROWS = torch.arange(5)


def ask(rule: Rule, local: torch.Tensor = LOCAL, common: torch.Tensor = COMMON) -> PseudoLabels:
    return rule(local, common, ROWS[: len(local)], rule.start(5, 3))


def test_local_and_global_rules_look_at_their_own_model():
    local, common = ask(LocalRule()), ask(GlobalRule())
    assert local.mask.tolist() == [True, True, False, False, True]
    assert local.target.argmax(1).tolist() == [0, 0, 0, 0, 0]
    assert common.mask.tolist() == [True, False, True, False, True]
    assert common.target.argmax(1).tolist() == [0, 1, 2, 1, 1]
    assert not LocalRule().needs_global
    assert GlobalRule().needs_global
    assert [FlexMatchRule(sage=sage).needs_global for sage in (False, True)] == [False, True]


@pytest.mark.parametrize(
    "rule", [LocalRule(0.5), GlobalRule(0.5), SageRule(0.5), FedLabelRule(0.5)]
)
def test_a_confidence_of_just_tau_is_not_enough(rule):
    even = torch.tensor([[0.5, 0.25, 0.25]])
    more = torch.tensor([[0.5 + 2**-20, 0.25, 0.25 - 2**-20]])
    assert not ask(rule, even, even).mask.any()
    assert ask(rule, more, more).mask.all()


def test_sage_by_hand():
    labels = ask(SageRule())
    assert labels.mask.tolist() == [True, True, True, False, True]
    # Row 1: gap .28, so the local class keeps 2^(-.28/.05); row 4: gap .03.
    kept = 2 ** (-0.28 / 0.05)
    torch.testing.assert_close(labels.target[1], torch.tensor([kept, 1 - kept, 0.0]))
    kept = 2 ** (-0.03 / 0.05)
    torch.testing.assert_close(labels.target[4], torch.tensor([kept, 1 - kept, 0.0]))
    assert labels.target[2].tolist() == [0.0, 0.0, 1.0]
    assert labels.target[0].tolist() == [1.0, 0.0, 0.0]


def test_kappa_halves_the_local_label_at_a_gap_of_a_twentieth():
    assert math.exp(-KAPPA * 0.05) == pytest.approx(0.5)
    assert pytest.approx(13.863, abs=1e-3) == KAPPA


def test_switches_of_sage():
    neither = ask(SageRule(cpg=False, cdsc=False))
    lpl = ask(LocalRule())
    assert torch.equal(neither.mask, lpl.mask)
    assert torch.equal(neither.target[lpl.mask], lpl.target[lpl.mask])
    only_cdsc = ask(SageRule(cpg=False))
    assert torch.equal(only_cdsc.mask, lpl.mask)
    assert torch.equal(only_cdsc.target, ask(SageRule()).target)
    only_cpg = ask(SageRule(cdsc=False))
    assert torch.equal(only_cpg.mask, ask(SageRule()).mask)
    assert only_cpg.target.argmax(1)[only_cpg.mask].tolist() == [0, 0, 2, 0]
    assert set(only_cpg.target.flatten().tolist()) == {0.0, 1.0}


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 0.99), st.floats(0, 40))
def test_sage_is_its_equations_row_by_row(seed, tau, kappa):
    rng = np.random.default_rng(seed)
    local = torch.from_numpy(rng.dirichlet(np.full(4, 0.2), 30))
    common = torch.from_numpy(rng.dirichlet(np.full(4, 0.2), 30))
    labels = SageRule(tau=tau, kappa=kappa)(local, common, torch.arange(30), {})
    for row, (own, other) in enumerate(zip(local, common, strict=True)):
        # Eqs. 3-7: the local class where the local model is sure, else the global one's.
        mixture = torch.exp(-kappa * (own.max() - other.max()).abs()) if own.max() > tau else 0.0
        target = mixture * torch.eye(4)[own.argmax()] + (1 - mixture) * torch.eye(4)[other.argmax()]
        torch.testing.assert_close(labels.target[row], target.double())
        assert labels.mask[row] == (max(own.max(), other.max()) > tau)
        assert labels.score[row] == (own if own.max() > tau else other).max()
    torch.testing.assert_close(labels.target.sum(1), torch.ones(30, dtype=torch.float64))


def test_flexible_thresholds_by_hand():
    # 3 rows of class 0, 1 of class 1, none of class 2, 4 rows unlabelled: 4 is the largest.
    passed = torch.tensor([1, 1, 1, 2, 0, 0, 0, 0])
    expected = [(3 / 4) / (2 - 3 / 4), (1 / 4) / (2 - 1 / 4), 0.0]
    np.testing.assert_allclose(flexible_thresholds(passed, 3).numpy(), expected, rtol=1e-6)


def test_flexmatch_learns_its_thresholds_in_place():
    rule = FlexMatchRule()
    state = rule.start(5, 3)
    first = rule(LOCAL, COMMON, ROWS, state)
    assert first.mask.all()  # nothing has passed yet, so every threshold is zero
    assert state["passed"].tolist() == [1, 1, 0, 0, 1]
    again = rule(LOCAL, COMMON, ROWS, state)
    # Class 0 is the largest: its threshold is tau itself.
    assert again.mask.tolist() == [True, True, False, False, True]
    other = torch.tensor([[0.1, 0.6, 0.3]])
    assert rule(other, other, torch.tensor([3]), state).mask.tolist() == [True]
    assert state["passed"].tolist() == [1, 1, 0, 0, 1]


def test_flexmatch_with_sage_takes_global_labels_under_the_same_thresholds():
    rule = FlexMatchRule(sage=True)
    state = rule.start(5, 3)
    state["passed"].copy_(torch.tensor([1, 1, 2, 3, 1]))  # thresholds .95, .19, .19
    labels = rule(LOCAL, COMMON, ROWS, state)
    assert labels.mask.tolist() == [True] * 5
    assert labels.target[3].tolist() == [0.0, 1.0, 0.0]  # local .4 < .95, global .4 > .19
    torch.testing.assert_close(labels.target[4], ask(SageRule()).target[4])


def test_fedlabel_takes_the_surer_model():
    labels = ask(FedLabelRule(consistency=1.0))
    assert labels.mask.tolist() == [True, True, True, False, True]
    assert labels.target.argmax(1)[labels.mask].tolist() == [0, 0, 2, 0]
    # Only row 0 has both models sure of one class: the label and the global distribution.
    assert labels.weight.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0]
    torch.testing.assert_close(labels.target[0], torch.tensor([0.98, 0.015, 0.005]))
    assert ask(FedLabelRule(consistency=0.0)).weight.tolist() == [1.0] * 5


def test_feddb_frees_predictions_from_the_prior():
    skewed = torch.tensor([[0.96, 0.04, 0.0], [0.90, 0.10, 0.0], [0.5, 0.5, 0.0]])
    rule = FedDBRule(momentum=0.0)
    state = rule.start(3, 3)
    labels = rule(skewed, skewed, torch.arange(3), state)
    np.testing.assert_allclose(state["prior"], skewed.mean(0), rtol=1e-6)
    # The model says class 0 of everything; what it says less often of row 2 is news.
    fair = debias(skewed, skewed.mean(0))
    assert fair[2].argmax() == 1
    assert labels.target.argmax(1).tolist() == fair.argmax(1).tolist()
    assert labels.mask.tolist() == (fair.amax(1) > 0.95).tolist()
    plain = FedDBRule(momentum=0.999999)  # the even prior it starts with changes nothing
    assert torch.equal(plain(LOCAL, COMMON, ROWS, plain.start(5, 3)).mask, ask(GlobalRule()).mask)


def test_feddb_with_sage_debiases_both_models():
    rule = FedDBRule(momentum=0.0, sage=True)
    labels = rule(LOCAL, COMMON, ROWS, rule.start(5, 3))
    expected = SageRule()(debias(LOCAL, LOCAL.mean(0)), debias(COMMON, COMMON.mean(0)), ROWS, {})
    torch.testing.assert_close(labels.target, expected.target)
    assert torch.equal(labels.mask, expected.mask)


def test_helpers_vote_and_ties_go_to_the_surer_class():
    local = torch.tensor([[0.8, 0.1, 0.1], [0.9, 0.05, 0.05], [0.6, 0.2, 0.2]])
    helpers = torch.tensor(
        [[[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.1, 0.9, 0.0]],
         [[0.2, 0.7, 0.1], [0.1, 0.5, 0.4], [0.0, 0.9, 0.1]]]
    )  # fmt: skip
    labels = helpers_agree(local, helpers, 0.75)
    assert labels.target.argmax(1).tolist() == [1, 2, 1]  # row 1: one vote each, class 2 is surest
    assert labels.mask.tolist() == [True, True, False]


def test_entropy_decides_for_soft_labels():
    table = torch.tensor([[0.99, 0.01], [0.5, 0.5]])
    labels = by_entropy(table, 0.1)
    assert labels.mask.tolist() == [True, False]
    assert torch.equal(labels.target, table)
    assert labels.score[1].item() == pytest.approx(-math.log(2), abs=1e-5)


@pytest.mark.parametrize("name", Rule.known)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_rule_gives_distributions_and_survives_the_wire(name, seed):
    rng = np.random.default_rng(seed)
    local = torch.from_numpy(rng.dirichlet(np.full(5, 0.2), 12)).float()
    common = torch.from_numpy(rng.dirichlet(np.full(5, 0.2), 12)).float()
    rule = Rule.of(name)
    assert Rule.of(rule.to_dict()) == rule
    state = rule.start(20, 5)
    rows = torch.from_numpy(rng.choice(20, 12, replace=False))
    for _ in range(2):
        labels = rule(local, common, rows, state)
    torch.testing.assert_close(labels.target.sum(1), torch.ones(12))
    assert labels.mask.dtype == torch.bool
    assert (labels.weight >= 0).all()
    assert all(each.isfinite().all() for each in state.values())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Rule.of("sages"), "did you mean 'sage'"),
        (lambda: Rule.of({"name": "sage", "kapa": 3}), "'kapa'.*'kappa'"),
        (lambda: SageRule(tau=1.2, kappa=-1.0), "2 problems"),
        (lambda: FedDBRule(momentum=1.0), "momentum"),
        (lambda: FedLabelRule(consistency=-1.0), "consistency"),
    ],
)
def test_mistakes_are_named(made, message):
    with pytest.raises(ConfigError, match=message):
        made()
