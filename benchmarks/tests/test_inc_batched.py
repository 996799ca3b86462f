"""Batched runs: the same through a federation, and network by network in plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmend.data.crowds import annotators
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import Batch, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators.baselines import EM
from fedmend.methods.annotators.inc import InC
from fedmend_bench.inc.batched import (
    SPECS,
    BatchedMethods,
    Votes,
    count_groups,
    dawid_skene,
)
from fedmend_bench.inc.data import Problem, make_worlds
from fedmend_bench.inc.networks import BatchedNetworks, NetworkShape

SHAPES = [
    NetworkShape((2, 3), 4, (), 3, ()),
    NetworkShape((2, 3), 4, (), 3, (5,)),
    NetworkShape((2, 1, 2), 3, (4,), 2, (6, 5)),
]


def alone(
    shape: NetworkShape,
    x: torch.Tensor,
    t: torch.Tensor,
    orders: list[torch.Tensor],
    size: int,
    start: int,
    weight_decay: float,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Ordinary modules, autograd and torch's Adam."""
    modules: Any = nn.ModuleList(shape.modules())
    for module in modules:
        initialise(module, torch.Generator().manual_seed(start))
    modules.double()
    optimizer = torch.optim.Adam(modules.parameters(), 1e-2, weight_decay=weight_decay)

    def forward(rows: torch.Tensor) -> torch.Tensor:
        parts = x[rows].split(list(shape.columns), 1)
        codes = torch.zeros(len(rows), 0, dtype=torch.int64)
        pieces = [
            bottom(Batch(part, codes)) for bottom, part in zip(modules[:-1], parts, strict=True)
        ]
        return modules[-1](pieces)

    for order in orders:
        for rows in order.split(size):
            optimizer.zero_grad()
            loss = -(t[rows] * F.log_softmax(forward(rows), 1)).sum(1).mean()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        outputs = torch.softmax(forward(torch.arange(len(x))), 1)
    bottoms = [[m for m in b.modules() if isinstance(m, nn.Linear)] for b in modules[:-1]]
    weights = []
    for layers in zip(*bottoms, strict=True):
        weights.append(torch.block_diag(*[layer.weight.T for layer in layers]))
        weights.append(torch.cat([layer.bias for layer in layers])[None])
    for layer in (m for m in modules[-1].modules() if isinstance(m, nn.Linear)):
        weights += [layer.weight.T, layer.bias[None]]
    return [weight.detach() for weight in weights], outputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weight_decay", [pytest.param(0.0, marks=pytest.mark.slow), 1e-2])
def test_each_run_is_the_run_alone(shape: NetworkShape, weight_decay: float) -> None:
    torch.manual_seed(0)
    worlds, groups, rows, size = 2, 3, 23, 5  # four batches of five and one of three
    x = torch.randn(worlds, rows, 5, dtype=torch.float64)
    networks = BatchedNetworks(
        shape,
        x,
        groups,
        batch_size=size,
        optimizer=OptimizerSpec("adam", 1e-2, weight_decay),
        seeds=[(7, 0), (7, 1)],
    )
    networks.targets.copy_(torch.rand(networks.targets.shape).softmax(-1))
    networks.targets[0, 1, ::4] = 0.0  # rows without a target
    for world in range(worlds):
        for group in range(groups):
            modules = shape.modules()
            for module in modules:
                initialise(module, torch.Generator().manual_seed(10 * world + group))
            networks.load(world, modules, group)
    orders = [networks.order(1), networks.order(2)]
    networks.epoch(1)
    networks.epoch(2)
    outputs = networks.outputs()
    for world in range(worlds):
        for group in range(groups):
            weights, expected = alone(
                shape,
                x[world],
                networks.targets[world, group],
                [order[world] for order in orders],
                size,
                10 * world + group,
                weight_decay,
            )
            for ours, theirs in zip(networks.run_weights(world, group), weights, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(outputs[world, group], expected, rtol=1e-8, atol=1e-9)


def test_some_groups_in_chunks_and_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = BatchedNetworks(SHAPES[1], torch.randn(2, 20, 5), 3, batch_size=4)
    every = networks.outputs()
    monkeypatch.setattr("fedmend_bench.inc.networks.CHUNK_BYTES", {"cpu": 1})
    torch.testing.assert_close(networks.outputs(groups=[2, 0]), every[:, [2, 0]])
    more = torch.randn(2, 150, 5)
    assert networks.outputs(more).shape == (2, 3, 150, 4)
    torch.testing.assert_close(networks.outputs(more)[:, :, :70], networks.outputs(more[:, :70]))


def test_runs_of_a_world_start_alike_and_worlds_do_not() -> None:
    networks = BatchedNetworks(SHAPES[0], torch.randn(2, 20, 5), 2, batch_size=4)
    torch.testing.assert_close(networks.run_weights(0, 0), networks.run_weights(0, 1))
    assert not torch.equal(networks.run_weights(0, 0)[0], networks.run_weights(1, 0)[0])
    assert not torch.equal(networks.order(1)[0], networks.order(1)[1])
    assert not torch.equal(networks.order(1)[0], networks.order(2)[0])
    with pytest.raises(ConfigError, match="5 columns"):
        BatchedNetworks(SHAPES[0], torch.randn(1, 4, 6), 1, batch_size=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_on_a_gpu_are_the_same_steps() -> None:
    x = torch.randn(2, 23, 5)
    results = []
    for device in ("cpu", "cuda"):
        networks = BatchedNetworks(SHAPES[2], x.to(device), 2, batch_size=5)
        networks.targets.fill_(1 / 3)
        networks.targets[..., 0] += 0.1
        networks.epoch(1)
        networks.epoch(2)
        results.append(networks.outputs().cpu())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- methods

ROWS, CLASSES, ANNOTATORS = 150, 3, 3
EPOCHS = 8


def federation(seed: int) -> tuple[Federation, np.ndarray, np.ndarray]:
    """Three parties with two columns and a label each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, ROWS)
    x = rng.normal(size=(CLASSES, 6))[y] + rng.normal(size=(ROWS, 6))
    votes = annotators(y, rates=[0.2, 0.3, 0.4], missing=0.1, n_classes=CLASSES, seed=seed)
    parties = []
    for k in range(ANNOTATORS):
        frame = pd.DataFrame(x[:, 2 * k : 2 * k + 2], columns=["u", "v"])
        frame["y"] = np.array(["a", "b", "c", None], object)[votes[:, k]]
        parties.append(Party(f"p{k}", Table(np.arange(ROWS), frame, label="y")))
    fed = Federation(*parties, seed=seed)
    for site in fed.engine.sites.values():  # type: ignore[attr-defined]
        site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(ROWS, dict.fromkeys(fed.names, 0)))
    return fed, votes, y


def networks_of(feds: list[Federation], shape: NetworkShape, groups: int) -> BatchedNetworks:
    """Networks with the features and the first weights that these federations have."""
    features = []
    for fed in feds:
        tables = [site.tables["train"] for site in fed.engine.sites.values()]  # type: ignore[attr-defined]
        parts = [Encoder().fit(t.features).transform(t.features).numeric for t in tables]
        features.append(torch.from_numpy(np.concatenate(parts, 1)))
    networks = BatchedNetworks(
        shape, torch.stack(features), groups, batch_size=20, seeds=[(fed.seed, 0) for fed in feds]
    )
    for world, fed in enumerate(feds):
        *bottoms, top = shape.modules()
        for bottom, site in zip(bottoms, fed.engine.sites.values(), strict=True):  # type: ignore[attr-defined]
            initialise(bottom, site.torch_generator("bottom 0", "cpu"))
        start = int(np.random.SeedSequence([fed.seed, 0, 7]).generate_state(1)[0])
        initialise(top, torch.Generator().manual_seed(start))
        networks.load(world, [*bottoms, top])
    return networks


@pytest.mark.slow
@pytest.mark.parametrize("top", [(), (6,)])
def test_a_batched_run_is_the_run_over_a_federation(top: tuple[int, ...]) -> None:
    names = ["InC product", "InC row", "EM"]
    options: dict[str, dict[str, Any]] = {
        "InC product": {},
        "InC row": {"posterior": "row"},
    }
    net: dict[str, Any] = {
        "bottom": (),
        "embedding": 4,
        "top": top,
        "epochs": EPOCHS,
        "batch_size": 20,
        "weight_decay": 0.0,
        "secure": "masks",
        "patience": None,
    }
    drawn = [federation(seed) for seed in (0, 1)]
    specs = {name: SPECS[name] for name in names}
    shape = NetworkShape((2, 2, 2), CLASSES, (), 4, top)
    networks = networks_of([fed for fed, _, _ in drawn], shape, count_groups(specs, 1))
    votes = np.stack([votes for _, votes, _ in drawn])[:, None]
    runs = BatchedMethods(networks, votes, np.stack([y for *_, y in drawn]), ["one"], specs)
    runs.train(EPOCHS)
    predicted = networks.outputs()
    for world, (fed, _, _) in enumerate(drawn):
        for method in runs.methods:
            if method.name == "EM":
                model: Any = EM(**net).fit(fed)
            else:
                model = InC(**net, **options[method.name], crossfit=False).fit(fed)
            inside = predicted[world, method.groups[0]].numpy()
            # sums over a federation are in fixed point, within 3 · 2^-17; Dawid–Skene's iterations
            # end there once rows hardly move on average, here once none moves
            near = 2e-2 if method.name == "EM" else 2e-3
            np.testing.assert_allclose(model.predict_proba(fed), inside, atol=near)
            assert method.posterior is not None
            np.testing.assert_allclose(model.posterior_, method.posterior[world], atol=near)


def estimated(weights: np.ndarray, votes: np.ndarray) -> np.ndarray:
    return crowds.in_shares(crowds.Sayings(votes).when(weights))


def test_batched_steps_are_the_steps() -> None:
    y = np.random.default_rng(0).integers(0, 4, 80)
    votes = np.stack([annotators(y, rates=[0.2, 0.4, 0.5], missing=0.3, seed=s) for s in (1, 2)])
    batched = Votes(votes, 4, torch.device("cpu"))
    weights = np.random.default_rng(1).dirichlet(np.ones(4), (2, 80))
    matrices = batched.m_step(torch.from_numpy(weights).float()).numpy()
    for e in range(2):
        for k in range(3):
            expected = estimated(weights[e], votes[e, :, k])
            np.testing.assert_allclose(matrices[e, k], expected, atol=1e-5)
    posterior = dawid_skene(batched).numpy()
    for e in range(2):
        known = (votes[e] >= 0).any(1)

        def evidence(weights: np.ndarray, said: np.ndarray = votes[e].T) -> np.ndarray:
            logs = [np.log(estimated(weights, each)).T[each] for each in said]
            return np.sum(
                [np.where(each[:, None] < 0, 0, log) for each, log in zip(said, logs, strict=True)],
                0,
            )

        counts = np.sum([crowds.one_hot(each, 4) for each in votes[e].T], 0)
        alone, _, _ = crowds.dawid_skene(counts, evidence, tolerance=1e-7)
        np.testing.assert_allclose(posterior[e][known], alone[known], atol=1e-3)


def test_random_turns_and_crossfit_halves() -> None:
    rng = np.random.default_rng(0)
    problem = Problem(
        "toy", rng.normal(size=(125, 6)).astype(np.float32), rng.integers(0, 3, 125), 3
    )
    settings = ["low-small", "high-large"]
    worlds = make_worlds(problem, [0, 1], settings)
    votes = worlds.votes
    specs = {"Random": SPECS["Random"], "InC crossfit": SPECS["InC crossfit"]}
    shape = NetworkShape(worlds.columns, 3, (), 2, ())
    networks = BatchedNetworks(shape, worlds.train, count_groups(specs, 2), batch_size=10)
    runs = BatchedMethods(networks, votes, worlds.y_train, settings, specs)
    turns = runs._turns(1).argmax(-1).numpy().reshape(2, 2, 100)
    order = networks.order(1).numpy()
    for world in range(2):
        for setting in range(2):
            for batch in np.split(order[world], 10):
                said = votes[world, setting, batch]
                assert (turns[world, setting, batch][:, None] == said).all(0).any()
    main, one, two = (m for m in runs.methods if m.name == "InC crossfit")
    halves = networks.targets[:, one.groups].sum(-1) > 0
    assert torch.equal(halves, networks.targets[:, two.groups].sum(-1) == 0)
    assert (networks.targets[:, main.groups].sum(-1) > 0).all()
    runs.train(4)
    found = runs.outcomes(worlds.test, worlds.y_test)
    assert {o.method for o in found} == {"Clean", "Random", "InC crossfit"}
    random = next(o for o in found if o.method == "Random" and o.setting == "low-small")
    np.testing.assert_allclose(
        random.correction, (votes[:, 0] == worlds.y_train[..., None]).mean((1, 2)), atol=1e-6
    )
