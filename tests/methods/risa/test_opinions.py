"""Opinions, their fusion and their losses, against hand-computed numbers and as properties."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.methods.risa import opinions as ev

finite = st.floats(-60, 60, width=32)


def rows_of(classes: int = 4) -> st.SearchStrategy[list[float]]:
    return st.lists(finite, min_size=classes, max_size=classes)


def mass(given_: ev.Opinion) -> torch.Tensor:
    return given_.belief.sum(-1, keepdim=True) + given_.uncertainty


def test_yager_by_hand():
    one = ev.Opinion(torch.tensor([0.6, 0.2]), torch.tensor([0.2]))
    other = ev.Opinion(torch.tensor([0.1, 0.5]), torch.tensor([0.4]))
    found = ev.yager(one, other)
    # b1 = .06 + .24 + .02, b2 = .10 + .08 + .10; C = .6*.5 + .2*.1
    torch.testing.assert_close(found.belief, torch.tensor([0.32, 0.28]))
    torch.testing.assert_close(found.uncertainty, torch.tensor([0.2 * 0.4 + 0.32]))
    torch.testing.assert_close(ev.conflict(one, other), torch.tensor([0.32]))
    normalised = ev.dempster(one, other)
    torch.testing.assert_close(normalised.belief, torch.tensor([0.32, 0.28]) / 0.68)
    torch.testing.assert_close(normalised.uncertainty, torch.tensor([0.08]) / 0.68)


def test_dempster_against_sums_over_sets():
    """The general rule over subsets of classes, by brute force."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = (rng.dirichlet(np.ones(4)) for _ in range(2))
        sets = [frozenset({k}) for k in range(3)] + [frozenset(range(3))]
        combined: dict[frozenset[int], float] = {}
        for (s, x), (t, y) in itertools.product(
            zip(sets, a, strict=True), zip(sets, b, strict=True)
        ):
            combined[s & t] = combined.get(s & t, 0.0) + x * y
        kept = 1 - combined.pop(frozenset(), 0.0)
        one = ev.Opinion(torch.tensor(a[:3]), torch.tensor(a[3:]))
        other = ev.Opinion(torch.tensor(b[:3]), torch.tensor(b[3:]))
        found = ev.dempster(one, other)
        wanted = [combined[frozenset({k})] / kept for k in range(3)]
        np.testing.assert_allclose(found.belief, wanted, atol=1e-12)
        np.testing.assert_allclose(found.uncertainty, combined[frozenset(range(3))] / kept)


def test_yager_depends_on_the_order_of_three_and_dempster_does_not():
    three = [
        ev.Opinion(torch.tensor([0.8, 0.1]), torch.tensor([0.1])),
        ev.Opinion(torch.tensor([0.1, 0.8]), torch.tensor([0.1])),
        ev.Opinion(torch.tensor([0.6, 0.1]), torch.tensor([0.3])),
    ]
    beliefs = {
        rule: [ev.fuse([three[i] for i in order], rule).belief for order in ((0, 1, 2), (2, 1, 0))]
        for rule in ev.RULES
    }
    assert float((beliefs["yager"][0] - beliefs["yager"][1]).abs().max()) > 0.01
    for rule in ("dempster", "pool"):
        torch.testing.assert_close(*beliefs[rule])
    # Left to right: the last party's belief meets whatever doubt the others left.
    by_hand = ev.yager(ev.yager(three[0], three[1]), three[2])
    torch.testing.assert_close(ev.fuse(three, "yager").belief, by_hand.belief)


@given(
    st.lists(rows_of(), min_size=1, max_size=4),
    st.sampled_from(["softplus", "exp"]),
    st.sampled_from(ev.RULES),
)
def test_masses_sum_to_one_and_gradients_are_finite(sources, activation, rule):
    outputs = torch.tensor(sources, dtype=torch.float32, requires_grad=True)
    opinions = [ev.opinion(ev.evidence(row, activation)) for row in outputs]
    fused = ev.fuse(opinions, rule)
    for each in (*opinions, fused):
        assert float(mass(each).detach()) == pytest.approx(1.0, abs=2e-5)
        assert bool((each.belief >= 0).all())
        assert 0 <= float(each.uncertainty.detach()) <= 1 + 1e-6
    total = ev.loss(fused, torch.tensor(1)) + ev.loss(opinions[0], torch.tensor(2))
    assert bool(torch.isfinite(total))
    (slope,) = torch.autograd.grad(total, outputs)
    assert bool(torch.isfinite(slope).all())


@pytest.mark.parametrize("rule", ev.RULES)
@pytest.mark.parametrize(("u", "v"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (1e-30, 1e-30)])
def test_at_the_edges(rule, u, v):
    """Certain sources that contradict each other, and sources that know nothing."""
    one = torch.tensor([1 - u, 0.0], requires_grad=True)
    other = torch.tensor([0.0, 1 - v], requires_grad=True)
    fused = ev.fuse(
        [ev.Opinion(one, torch.tensor([u])), ev.Opinion(other, torch.tensor([v]))], rule
    )
    assert float(mass(fused).detach()) == pytest.approx(1.0, abs=1e-6)
    ev.loss(fused, torch.tensor(0)).backward()
    assert bool(torch.isfinite(one.grad).all())
    assert bool(torch.isfinite(other.grad).all())


def test_a_pool_by_hand():
    one = ev.Opinion(torch.tensor([0.6, 0.2]), torch.tensor([0.2]))
    other = ev.Opinion(torch.tensor([0.1, 0.5]), torch.tensor([0.4]))
    # p is (.7, .3) and (.3, .7): they cancel out, and what is left contradicts itself.
    found = ev.pool([one, other], [1.0, 1.0])
    torch.testing.assert_close(ev.probability(found), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(found.uncertainty, ev.yager(one, other).uncertainty)
    half = ev.pool([one, other], [1.0, 0.5])
    odds = 7 / 3 * (3 / 7) ** 0.5
    torch.testing.assert_close(ev.probability(half)[0], torch.tensor(odds / (1 + odds)))
    # who has no power neither knows nor contradicts anything
    silent = ev.pool([one, other], [1.0, 0.0])
    torch.testing.assert_close(silent, ev.pool([one], [1.0]))
    assert found.uncertainty > half.uncertainty > silent.uncertainty
    shifted = ev.pool([one], [1.0], torch.tensor([0.0, np.log(7 / 3)], dtype=torch.float32))
    torch.testing.assert_close(ev.probability(shifted), torch.tensor([0.5, 0.5]))


@given(st.lists(rows_of(), min_size=1, max_size=4), st.lists(st.floats(0, 2), min_size=4))
def test_a_pool_needs_no_order_and_heeds_nobody_who_knows_nothing(sources, powers):
    outputs = torch.tensor(sources, dtype=torch.float64).clamp(-8, 8)
    given_ = [ev.opinion(ev.evidence(row, "exp")) for row in outputs]
    weights = powers[: len(given_)]
    found = ev.pool(given_, weights)
    assert float(mass(found)) == pytest.approx(1.0)
    assert float(found.belief.min()) >= -1e-12
    back = ev.pool(given_[::-1], weights[::-1])
    torch.testing.assert_close(back.belief, found.belief)
    torch.testing.assert_close(back.uncertainty, found.uncertainty)
    more = ev.pool([*given_, ev.discount(given_[0], 0.0)], [*weights, 1.0])
    torch.testing.assert_close(more.belief, found.belief)
    logs = sum(w * ev.probability(each).log() for w, each in zip(weights, given_, strict=True))
    torch.testing.assert_close(ev.probability(found), torch.as_tensor(logs).softmax(-1))


@given(rows_of())
def test_weights_of_evidence_are_the_least_that_explains_them(row):
    scores = torch.tensor(row, dtype=torch.float64).clamp(-10, 10)
    found = ev.weighed(scores)
    torch.testing.assert_close(ev.probability(found), scores.softmax(-1))
    assert float(found.belief.min()) == 0.0
    assert float(mass(found)) == pytest.approx(1.0)


def test_total_contradiction_is_not_knowing():
    sure = ev.Opinion(torch.tensor([1.0, 0.0]), torch.tensor([0.0]))
    contrary = ev.Opinion(torch.tensor([0.0, 1.0]), torch.tensor([0.0]))
    for rule in ("yager", "dempster"):
        found = ev.fuse([sure, contrary], rule)
        torch.testing.assert_close(found.uncertainty, torch.ones(1))
        torch.testing.assert_close(ev.probability(found), torch.tensor([0.5, 0.5]))


@given(rows_of(), st.floats(0, 1))
def test_a_discount_moves_belief_into_doubt(row, trust):
    before = ev.opinion(ev.evidence(torch.tensor(row, dtype=torch.float64), "exp"))
    after = ev.discount(before, trust)
    assert float(mass(after)) == pytest.approx(1.0)
    assert float(after.uncertainty) >= float(before.uncertainty) - 1e-12
    neutral = ev.dempster(before, ev.discount(before, 0.0))
    torch.testing.assert_close(neutral.belief, before.belief)


def test_the_loss_is_that_of_the_mean_of_the_dirichlet_distribution():
    alpha = torch.rand(5, 3, dtype=torch.float64) * 10 + 1
    y = torch.tensor([0, 1, 2, 1, 0])
    p = alpha / alpha.sum(1, keepdim=True)
    wanted = torch.nn.functional.nll_loss(p.log(), y, reduction="none")
    torch.testing.assert_close(ev.loss(ev.opinion(alpha - 1), y), wanted)


@pytest.mark.parametrize(("opinions", "rule"), [(1, "mean"), (0, "yager")])
def test_unknown_rules_and_no_opinions_are_refused(opinions, rule):
    with pytest.raises(ConfigError):
        ev.fuse([ev.opinion(torch.ones(1, 2))] * opinions, rule)
