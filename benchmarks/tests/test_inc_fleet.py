"""The same run through a federation and inside a fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedmend.data.crowds import annotators
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import initialise
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators.baselines import EM
from fedmend.methods.annotators.inc import InC
from fedmend_bench.inc.data import Problem, draw_votes, make_worlds, paper_table
from fedmend_bench.inc.fleet import RECIPES, MethodFleet, Recipe, Votes, count_groups, dawid_skene
from fedmend_bench.inc.networks import Fleet, FleetShape

ROWS, CLASSES, LABELLERS = 150, 3, 3
EPOCHS = 8


def federation(seed: int) -> tuple[Federation, np.ndarray, np.ndarray]:
    """Three parties with two columns and a label each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, ROWS)
    x = rng.normal(size=(CLASSES, 6))[y] + rng.normal(size=(ROWS, 6))
    votes = annotators(y, rates=[0.2, 0.3, 0.4], missing=0.1, n_classes=CLASSES, seed=seed)
    parties = []
    for k in range(LABELLERS):
        frame = pd.DataFrame(x[:, 2 * k : 2 * k + 2], columns=["u", "v"])
        frame["y"] = np.array(["a", "b", "c", None], object)[votes[:, k]]
        parties.append(Party(f"p{k}", Table(np.arange(ROWS), frame, label="y")))
    fed = Federation(*parties, seed=seed)
    for site in fed.engine.sites.values():  # type: ignore[attr-defined]
        site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(ROWS, dict.fromkeys(fed.names, 0)))
    return fed, votes, y


def fleet_of(feds: list[Federation], shape: FleetShape, groups: int) -> Fleet:
    """A fleet with the features and the first weights that these federations have."""
    features = []
    for fed in feds:
        tables = [site.tables["train"] for site in fed.engine.sites.values()]  # type: ignore[attr-defined]
        parts = [Encoder().fit(t.features).transform(t.features).numeric for t in tables]
        features.append(torch.from_numpy(np.concatenate(parts, 1)))
    fleet = Fleet(
        shape, torch.stack(features), groups, batch_size=20, seeds=[(fed.seed, 0) for fed in feds]
    )
    for world, fed in enumerate(feds):
        bottoms: list[Any] = shape.bottoms()
        for bottom, site in zip(bottoms, fed.engine.sites.values(), strict=True):  # type: ignore[attr-defined]
            initialise(bottom, site.torch_generator("bottom 0", "cpu"))
        start = int(np.random.SeedSequence([fed.seed, 0, 7]).generate_state(1)[0])
        top = initialise(shape.make_top(), torch.Generator().manual_seed(start))
        fleet.load(world, bottoms, top)
    return fleet


@pytest.mark.parametrize("top", [(), (6,)])
def test_a_run_in_a_fleet_is_the_run_over_a_federation(top: tuple[int, ...]) -> None:
    names = ["InC product", "InC row", "InC bayes", "EM"]
    options: dict[str, dict[str, Any]] = {
        "InC product": {},
        "InC row": {"posterior": "row"},
        "InC bayes": {"posterior": "bayes"},
    }
    net: dict[str, Any] = {
        "bottom": (),
        "embedding": 4,
        "top": top,
        "missing_indicator": False,
        "epochs": EPOCHS,
        "batch_size": 20,
        "weight_decay": 0.0,
        "secure": "masks",
    }
    drawn = [federation(seed) for seed in (0, 1)]
    recipes = {name: RECIPES[name] for name in names}
    shape = FleetShape((2, 2, 2), CLASSES, (), 4, top)
    fleet = fleet_of([fed for fed, _, _ in drawn], shape, count_groups(recipes, 1))
    votes = np.stack([votes for _, votes, _ in drawn])[:, None]
    runs = MethodFleet(fleet, votes, np.stack([y for *_, y in drawn]), ["one"], recipes)
    runs.train(EPOCHS)
    predicted = fleet.outputs()
    for world, (fed, _, _) in enumerate(drawn):
        for method in runs.methods:
            if method.name == "EM":
                model: Any = EM(**net).fit(fed)
            else:
                model = InC(**net, **options[method.name]).fit(fed)
            inside = predicted[world, method.groups[0]].numpy()
            # sums over a federation are in fixed point, within 3 · 2^-17
            np.testing.assert_allclose(model.predict_proba(fed), inside, atol=2e-3)
            assert method.posterior is not None
            np.testing.assert_allclose(model.posterior_, method.posterior[world], atol=2e-3)


def test_batched_steps_are_the_steps() -> None:
    y = np.random.default_rng(0).integers(0, 4, 80)
    votes = np.stack([annotators(y, rates=[0.2, 0.4, 0.5], missing=0.3, seed=s) for s in (1, 2)])
    batched = Votes(votes, 4, torch.device("cpu"))
    weights = np.random.default_rng(1).dirichlet(np.ones(4), (2, 80))
    matrices = batched.m_step(torch.from_numpy(weights).float()).numpy()
    for e in range(2):
        for k in range(3):
            expected = crowds.expertise(weights[e], votes[e, :, k])
            np.testing.assert_allclose(matrices[e, k], expected, atol=1e-5)
    posterior = dawid_skene(batched).numpy()
    for e in range(2):
        known = (votes[e] >= 0).any(1)

        def evidence(weights: np.ndarray, said: np.ndarray = votes[e].T) -> np.ndarray:
            spoken = [crowds.log_evidence(crowds.expertise(weights, each), each) for each in said]
            return np.sum(spoken, 0)

        alone, _ = crowds.dawid_skene(crowds.count_votes(votes[e], 4), evidence)
        np.testing.assert_allclose(posterior[e][known], alone[known], atol=1e-3)


def test_random_turns_and_crossfit_halves() -> None:
    rng = np.random.default_rng(0)
    problem = Problem(
        "toy", rng.normal(size=(125, 6)).astype(np.float32), rng.integers(0, 3, 125), 3
    )
    worlds = make_worlds(problem, [0, 1])
    settings = ["low-small", "high-large"]
    votes = np.stack(
        [
            np.stack([draw_votes(y, 3, s, "symmetric", seed)[0] for s in settings])
            for seed, y in enumerate(worlds.y_train)
        ]
    )
    recipes = {"Random": RECIPES["Random"], "InC crossfit": RECIPES["InC crossfit"]}
    shape = FleetShape(worlds.columns, 3, (), 2, ())
    fleet = Fleet(shape, worlds.train, count_groups(recipes, 2), batch_size=10)
    runs = MethodFleet(fleet, votes, worlds.y_train, settings, recipes)
    turns = runs._turns(1).argmax(-1).numpy().reshape(2, 2, 100)
    order = fleet.order(1).numpy()
    for world in range(2):
        for setting in range(2):
            for batch in np.split(order[world], 10):
                said = votes[world, setting, batch]
                assert (turns[world, setting, batch][:, None] == said).all(0).any()
    main, one, two = (m for m in runs.methods if m.name == "InC crossfit")
    halves = fleet.targets[:, one.groups].sum(-1) > 0
    assert torch.equal(halves, fleet.targets[:, two.groups].sum(-1) == 0)
    assert (fleet.targets[:, main.groups].sum(-1) > 0).all()
    runs.train(4)
    found = runs.outcomes(worlds.test, worlds.y_test)
    assert {o.method for o in found} == {"Clean", "Random", "InC crossfit"}
    random = next(o for o in found if o.method == "Random" and o.setting == "low-small")
    np.testing.assert_allclose(
        random.correction, (votes[:, 0] == worlds.y_train[..., None]).mean((1, 2)), atol=1e-6
    )


def test_draws_that_cannot_tell_are_drawn_again() -> None:
    y = np.random.default_rng(0).integers(0, 2, 4000)
    redrawn = 0
    for seed in range(40):
        votes, again = draw_votes(y, 2, "high-large", "symmetric", seed)
        redrawn += again
        assert (votes == y[:, None]).mean() > 0.5
    assert redrawn > 0
    flips, _ = draw_votes(np.arange(26).repeat(200), 26, "median-large", "pair-flip", 0)
    moved = (flips - np.arange(26).repeat(200)[:, None]) % 26
    assert set(np.unique(moved)) == {0, 1}
    errors = (moved[:, 0] == 1).reshape(26, 200).mean(1)
    assert (errors < 0.12).sum() == 13


def test_the_papers_numbers() -> None:
    table = paper_table("accuracy", "letter", "lr")
    assert table["InC", "high-large"] == 0.7667
    assert paper_table("correction", "covertype", "lr")["InC", "low-small"] == 0.9172
    assert paper_table("correction", "letter", "mlp") == {}
    assert paper_table("accuracy", "digits", "lr") == {}


def test_recipes_count() -> None:
    assert count_groups({"a": Recipe("mj"), "b": RECIPES["InC crossfit"]}, 4) == 17
