"""Conditions, matching, square networks and the games of the adversarial generators."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedmend.generate import Generator, convolutional
from fedmend.generate.adversarial import Conditions, Matcher, joint_gap
from fedmend.generate.convolutional import (
    SquareCritic,
    Target,
    information_loss,
    side_of,
    steepness,
)
from fedmend.generate.ctgan import PackedCritic
from fedmend.generate.encoder import Encoded, Encoder, Span

CPU = torch.device("cpu")
SPANS = [Span("a", 1, 4, "softmax"), Span("b", 5, 7, "softmax")]


def _rows(n: int, seed: int = 0) -> torch.Tensor:
    """Column a is 0, 1 or 2 with shares .9, .09, .01, column b is even; some cells are missing."""
    rng = np.random.default_rng(seed)
    values = np.zeros((n, 8), np.float32)
    values[:, [0, 4, 7]] = rng.normal(size=(n, 3))
    values[np.arange(n), 1 + rng.choice(3, n, p=[0.9, 0.09, 0.01])] = 1.0
    values[np.arange(n), 5 + rng.integers(0, 2, n)] = 1.0
    values[rng.random(n) < 0.1, 1:4] = 0.0
    return torch.from_numpy(values)


def _fitted(n: int = 3000, **how: str) -> tuple[Conditions, torch.Tensor]:
    conditions, rows = Conditions(SPANS, CPU), _rows(n)
    conditions.fit(rows, **how)
    return conditions, rows


@given(seed=st.integers(0, 1000), n=st.integers(20, 200))
def test_every_row_drawn_holds_the_category_it_was_drawn_for(seed, n):
    conditions, rows = Conditions(SPANS, CPU), _rows(n, seed)
    conditions.fit(rows)
    drawn, wanted = conditions.draw(300, torch.Generator().manual_seed(seed))
    assert wanted is not None
    assert (rows[drawn, conditions.positions[wanted]] == 1).all()
    assert (conditions.counts[wanted] > 0).all()


@pytest.mark.parametrize("sampling", ["log-frequency", "frequency"])
def test_columns_are_drawn_evenly_and_categories_as_asked(sampling):
    conditions, rows = _fitted(sampling=sampling)
    _, wanted = conditions.draw(60_000, torch.Generator().manual_seed(0))
    assert wanted is not None
    found = torch.bincount(wanted, minlength=5) / len(wanted)
    counts = rows[:, [1, 2, 3, 5, 6]].sum(0)
    masses = torch.log(counts + 1) if sampling == "log-frequency" else counts
    expected = torch.cat([masses[:3] / masses[:3].sum(), masses[3:] / masses[3:].sum()]) / 2
    assert torch.allclose(found, expected, atol=0.01)


def test_vector_and_cross_entropy():
    conditions, _ = _fitted()
    wanted = torch.tensor([0, 2, 4, 3])
    assert torch.equal(conditions.vector(wanted, 4), torch.eye(5)[wanted])
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    by_hand = torch.stack(
        [
            F.cross_entropy(logits[0, 1:4], torch.tensor(0)),
            F.cross_entropy(logits[1, 1:4], torch.tensor(2)),
            F.cross_entropy(logits[2, 5:7], torch.tensor(1)),
            F.cross_entropy(logits[3, 5:7], torch.tensor(0)),
        ]
    ).mean()
    assert torch.allclose(conditions.cross_entropy(logits, wanted), by_hand)


def test_rarest_known_category():
    conditions, rows = _fitted()
    known = Encoded(rows.numpy(), np.ones((len(rows), 2), bool))
    observed = np.zeros((len(rows), 8), bool)
    observed[::2, 1:4] = True
    observed[::3, 5:7] = True
    found = conditions.rarest(known, observed)
    counts = conditions.counts.numpy()
    for row in range(200):
        held = [
            category
            for category, position in enumerate([1, 2, 3, 5, 6])
            if observed[row, position] and rows[row, position] == 1
        ]
        assert found[row] == min(held, key=lambda category: counts[category], default=-1)


def test_without_columns_there_are_no_conditions():
    conditions = Conditions([], CPU)
    conditions.fit(_rows(50))
    drawn, wanted = conditions.draw(500, torch.Generator().manual_seed(0))
    assert wanted is None
    assert drawn.min() >= 0
    assert len(drawn.unique()) == 50
    assert conditions.natural(5, torch.Generator()) is None
    assert conditions.vector(None, 3).shape == (3, 0)
    assert conditions.cross_entropy(torch.ones(3, 8), None) == 0
    known = Encoded(np.zeros((4, 8), np.float32), np.ones((4, 2), bool))
    assert (conditions.rarest(known, np.ones((4, 8), bool)) == -1).all()


def test_a_plane_has_a_condition_where_a_row_has_the_category():
    conditions, rows = _fitted()
    drawn, wanted = conditions.draw(200, torch.Generator().manual_seed(0))
    assert wanted is not None
    plane = conditions.plane(wanted, 200, rows.shape[1])
    assert torch.equal(plane[:, conditions.positions], conditions.vector(wanted, 200))
    assert (plane.sum(1) == 1).all()
    assert ((plane * rows[drawn]).sum(1) == 1).all()
    assert not conditions.plane(None, 5, 8).any()


@pytest.fixture(scope="module")
def encoded(mixed):
    encoder = Encoder(numeric="mode").fit(mixed)
    return encoder, encoder.encode(encoder.raw(mixed.frame))


def test_distances_are_what_they_say(mixed, encoded):
    encoder, rows = encoded
    matcher = Matcher(torch.from_numpy(rows.values[40:]), encoder)
    observed = np.random.default_rng(0).random((40, len(encoder.columns))) < 0.5
    fast = matcher.distances(Encoded(rows.values[:40], observed)).numpy()
    raw = encoder.decode(rows.values)
    slow = np.zeros((40, 80))
    for place, name in enumerate(encoder.columns):
        wanted, there = raw[name][:40, None], raw[name][None, 40:]
        if mixed.schema[name].is_categorical:
            gap = (wanted != there).astype(float)
        else:
            gap = 0.5 * ((wanted - there) / raw[name][40:].std()) ** 2
        slow += gap * observed[:, place, None]
    # equal up to a constant for each row
    assert np.allclose(fast - fast[:, :1], slow - slow[:, :1], atol=1e-3)


def test_a_candidate_that_agrees_is_taken(encoded):
    encoder, rows = encoded
    matcher = Matcher(torch.from_numpy(rows.values), encoder, neighbours=1)
    drawn = matcher.draw(rows, torch.Generator().manual_seed(0))
    same = (drawn == torch.from_numpy(rows.values)).all(1)
    assert same.float().mean() > 0.95


def test_of_equally_good_candidates_all_are_taken(encoded):
    encoder, rows = encoded
    city = encoder.columns.index("city")
    observed = np.zeros((2000, len(encoder.columns)), bool)
    observed[:, city] = True
    known = Encoded(np.repeat(rows.values[:1], 2000, axis=0), observed)
    drawn = Matcher(torch.from_numpy(rows.values), encoder).draw(known, torch.Generator())
    codes = encoder.decode(drawn.numpy())["city"]
    wanted = encoder.decode(rows.values[:1])["city"][0]
    assert (codes == wanted).all()
    holding = (encoder.decode(rows.values)["city"] == wanted).sum()
    assert len(drawn.unique(dim=0)) == holding


def test_joint_gap_sees_means_and_relations():
    rng = np.random.default_rng(0)
    real = rng.multivariate_normal([1, 2, 3], [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 4]], 4000)
    rows = torch.from_numpy(real).float()
    assert joint_gap(rows, rows) == pytest.approx(0, abs=1e-3)
    fresh = torch.from_numpy(
        rng.multivariate_normal([1, 2, 3], [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 4]], 4000)
    ).float()
    shuffled = rows.clone()
    shuffled[:, 0] = rows[torch.randperm(4000, generator=torch.Generator().manual_seed(0)), 0]
    # two of nine products are off by 0.9
    assert joint_gap(rows, shuffled) == pytest.approx(np.sqrt(2 * 0.81 / 9), rel=0.1)
    assert joint_gap(rows, fresh) < 0.1
    assert joint_gap(rows, rows + torch.tensor([0.5, 0, 0])) > 0.2


@pytest.mark.parametrize("name", ["ctgan", "ctabgan", "tablegan"])
def test_made_rows_are_judged_with_the_gaps_of_real_ones(name, gappy, small, monkeypatch):
    seen: list[torch.Tensor] = []
    for net, method in ((PackedCritic, "forward"), (SquareCritic, "features")):
        judge = getattr(net, method)

        def spy(critic: nn.Module, rows: torch.Tensor, judge: Any = judge) -> torch.Tensor:
            seen.append(rows.detach().clone())
            return judge(critic, rows)

        monkeypatch.setattr(net, method, spy)
    fitted = small(name, epochs=1, **({"pac": 1} if name == "ctgan" else {})).fit(gappy)
    # CTGAN's critic judges both at once, made rows first
    judged = seen[0].chunk(2)[::-1] if name == "ctgan" else seen[:2]
    real, fake = (
        torch.stack([rows[:, span.start : span.stop].sum(1) for span in _categories(fitted)], 1)
        for rows in judged
    )
    missing = real == 0  # an observed category has a one
    assert 0.1 < missing.float().mean() < 0.5
    assert torch.equal(missing, fake == 0)
    assert torch.allclose(fake[~missing], torch.ones(1), atol=1e-4)


def _categories(fitted: Generator) -> list[Span]:
    return [span for span in fitted.encoder_.spans if span.activation == "softmax"]


# --- CTGAN's critic ------------------------------------------------------------------


def test_the_penaltys_gradient_is_autograds():
    critic = PackedCritic(12, 8, 0.0).double()
    packs = torch.randn(9, 12, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(critic(packs).sum(), packs, create_graph=True)
    assert torch.allclose(critic.gradient(packs), expected)
    # and so is what the penalty teaches the weights
    first = torch.autograd.grad((expected.norm(dim=1) - 1).square().mean(), _weights(critic))
    closed = (critic.gradient(packs).norm(dim=1) - 1).square().mean()
    second = torch.autograd.grad(closed, _weights(critic))
    for one, two in zip(first, second, strict=True):
        assert torch.allclose(one, two)


def _weights(critic: PackedCritic) -> list[torch.Tensor]:
    return [critic.first.weight, critic.second.weight, critic.last.weight]


def test_the_gradient_drops_what_dropout_drops():
    stream = torch.Generator().manual_seed(3)
    critic = PackedCritic(6, 50, 0.5, stream)
    packs = torch.randn(20, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(critic(packs).sum(), packs)
    stream.manual_seed(3)
    assert torch.allclose(critic.gradient(packs), expected, atol=1e-6)


# --- square networks and their game --------------------------------------------------


@given(width=st.integers(1, 5000))
@settings(max_examples=100)
def test_the_side_is_the_smallest_allowed_that_holds_the_row(width):
    allowed = sorted([8 * 2**k for k in range(5)] + [12 * 2**k for k in range(5)])
    assert side_of(width) == next(side for side in allowed if side * side >= width)


def test_planes_lie_upon_each_other():
    below, above = torch.randn(6, 30), torch.randn(6, 30)
    critic = SquareCritic(30, 4, planes=2)
    single = SquareCritic(30, 4)
    single.load_state_dict(
        critic.state_dict() | {"layers.0.weight": critic.layers[0].weight[:, :1]}
    )
    rows = torch.cat([below, torch.zeros_like(above)], dim=1)
    assert torch.allclose(critic(rows), single(below), atol=1e-6)
    assert not torch.allclose(critic(torch.cat([below, above], dim=1)), single(below), atol=1e-3)


def test_a_categorical_target_is_judged_by_cross_entropy(mixed, encoded):
    encoder, rows = encoded[0], torch.from_numpy(encoded[1].values)
    target = Target(encoder, "city", CPU)
    guesses = torch.randn(len(rows), target.width, generator=torch.Generator().manual_seed(0))
    codes = torch.from_numpy(encoder.raw(mixed.frame)["city"]).long()
    assert torch.allclose(target.loss(guesses, rows, None), F.cross_entropy(guesses, codes))
    gaps = torch.zeros_like(rows, dtype=torch.bool)
    gaps[:30] = True
    expected = F.cross_entropy(guesses[30:], codes[30:])
    assert torch.allclose(target.loss(guesses, rows, gaps), expected)


def test_a_number_is_judged_by_position_and_mode(encoded):
    encoder, rows = encoded[0], torch.from_numpy(encoded[1].values)
    target = Target(encoder, "gain", CPU)
    position, modes = encoder.of("gain")
    guesses = torch.randn(len(rows), target.width, generator=torch.Generator().manual_seed(0))
    expected = F.mse_loss(guesses[:, 0], rows[:, position.start]) + F.cross_entropy(
        guesses[:, 1:], rows[:, modes.start : modes.stop].argmax(1)
    )
    assert torch.allclose(target.loss(guesses, rows, None), expected)


def test_the_target_is_hidden_from_its_classifier(encoded):
    encoder, rows = encoded[0], torch.from_numpy(encoded[1].values)
    hidden = Target(encoder, "city", CPU).hidden(rows)
    (span,) = encoder.of("city")
    assert (hidden[:, span.start : span.stop] == 0).all()
    kept = np.delete(np.arange(encoder.width), np.arange(span.start, span.stop))
    assert torch.equal(hidden[:, kept], rows[:, kept])


@pytest.mark.parametrize("column", [None, "constant"])
def test_without_a_target_there_is_no_classifier(column, mixed):
    table = mixed.with_columns({"constant": np.ones(mixed.n_rows)})
    encoder = Encoder(numeric="mode").fit(table)
    assert not Target(encoder, column, CPU).is_used


def test_the_information_loss_is_norms_of_moments():
    real = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    means, deviations = (real.mean(0) + 1).norm(), real.std(0).norm()
    assert torch.allclose(information_loss(real, 2 * real + 1), means + deviations, atol=1e-5)
    assert information_loss(real, real) == 0


def test_the_classifier_teaches_the_generator(small, mixed, monkeypatch):
    plain = small("tablegan", epochs=1).fit(mixed)
    own = Target.loss

    def louder(target: Target, guesses: Any, rows: Any, gaps: Any) -> torch.Tensor:
        weight = 1000.0 if rows.requires_grad else 1.0  # of generated rows, not of real ones
        return weight * own(target, guesses, rows, gaps)

    monkeypatch.setattr(Target, "loss", louder)
    taught = small("tablegan", epochs=1).fit(mixed)
    before, after = (
        torch.cat([p.flatten() for p in g.modules_["generator"].parameters()])
        for g in (plain, taught)
    )
    assert not torch.allclose(before, after, atol=1e-4)


def test_steepness_is_the_mean_square_of_slopes():
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.tensor([[1.0], [2.0], [0.0], [-1.0]], requires_grad=True)
    cost = steepness((rows.square() @ weight), rows)
    expected = (2 * rows.detach() * weight.detach().T).square().sum(1).mean() / 2
    assert torch.allclose(cost, expected)
    cost.backward()  # the critic learns from it
    assert torch.allclose(weight.grad, 4 * (rows.detach().square().mean(0)[:, None] * weight))


@pytest.mark.slow
def test_a_penalty_makes_the_critic_flatter(small, mixed, monkeypatch):
    slopes: dict[float, float] = {}
    for penalty in (1e-9, 10.0):
        seen: list[float] = []

        def spy(scores: torch.Tensor, rows: torch.Tensor, seen: Any = seen) -> torch.Tensor:
            cost = steepness(scores, rows)
            seen.append(float(cost.detach()))
            return cost

        monkeypatch.setattr(convolutional, "steepness", spy)
        small("ctabgan", epochs=8, penalty=penalty).fit(mixed)
        assert len(seen) == 8 * (120 // 40) // 4  # at every fourth step
        slopes[penalty] = seen[-1]
    assert slopes[10.0] < 0.5 * slopes[1e-9]
