"""Rows, views, plans, local methods, and the trainer against plain torch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedmend.errors import ConfigError, DataError, FedmendWarning
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.local_methods import (
    Client,
    LocalMethod,
    PseudoMethod,
    StepBatch,
    Supervised,
    divergence,
)
from fedmend.methods.horizontal.networks import (
    FlatNet,
    NetSpec,
    build_net,
    compiled,
    initial_weights,
)
from fedmend.methods.horizontal.rounds import (
    Pool,
    RoundAverage,
    RoundSettings,
    Server,
    Trainer,
    draw_clients,
    make_plan,
    pick,
    round_generator,
)
from fedmend.methods.horizontal.rules import SageRule
from fedmend.methods.horizontal.views import ImageViews, TableViews

CPU = torch.device("cpu")
SMALL = RoundSettings(epochs=2, batch_size=8, optimizer=OptimizerSpec("sgd", 0.05, 1e-3, 0.9))


def table_pool(n: int = 60, classes: int = 3, seed: int = 0, name: str = "a") -> Pool:
    generator = torch.Generator().manual_seed(seed)
    numeric = torch.randn(n, 4, generator=generator)
    codes = torch.randint(0, 5, (n, 2), generator=generator)
    labels = numeric[:, :classes].argmax(1)
    labels = torch.where(torch.arange(n) < n // 3, labels, -1)
    return Pool(TableViews(numeric, codes), labels, name=name)


def image_pool(n: int = 48, name: str = "a") -> Pool:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Pool(ImageViews(images), torch.arange(n) % 4, labelled=torch.arange(12), name=name)


TABLE_NET = NetSpec("mlp", 3, numeric=4, cardinalities=(5, 5), hidden=(8,))
IMAGE_NET = NetSpec("resnet8", 4, channels=3, width=4)


# ---------------------------------------------------------------------------------- plans


@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_a_pass_takes_every_row_at_most_once(n, b, epochs, seed):
    pool = Pool(TableViews(torch.zeros(n, 1)), torch.zeros(n))
    rounds = RoundSettings(epochs=epochs, batch_size=b)
    plan = make_plan(pool, rounds, PseudoMethod(), round_generator(seed, "a", 1))
    steps = epochs * max(1, n // b)
    assert plan.shape == (steps, min(b, n), min(2 * b, n))
    for rows in (plan.labelled, plan.unlabelled):
        per_pass = n // rows.shape[1]
        for at in range(0, steps, per_pass):
            taken = rows[at : at + per_pass].flatten()
            assert len(taken.unique()) == len(taken)


def test_a_plan_depends_on_seed_client_and_round_only():
    pool = table_pool()

    def plan(seed: int, client: str, number: int) -> torch.Tensor:
        generator = round_generator(seed, client, number)
        return make_plan(pool, SMALL, PseudoMethod(), generator).unlabelled

    first = plan(0, "a", 1)
    assert torch.equal(first, plan(0, "a", 1))
    for other in (plan(1, "a", 1), plan(0, "b", 1), plan(0, "a", 2)):
        assert not torch.equal(first, other)


def test_clients_are_drawn_without_replacement():
    names = [f"c{number}" for number in range(20)]
    seen: set[str] = set()
    for number in range(30):
        drawn = draw_clients(names, 8, 0, number)
        assert len(set(drawn)) == 8
        seen |= set(drawn)
    assert seen == set(names)
    assert draw_clients(names, 8, 0, 1) != draw_clients(names, 8, 1, 1)


# ---------------------------------------------------------------------------------- views


def test_image_inputs_are_standardised_bytes():
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    (found,) = ImageViews(images, mean, std).plain(torch.tensor([1, 0]))
    shape = (1, 3, 1, 1)
    expected = (images[[1, 0]].double() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(
        std
    ).view(shape)
    assert torch.allclose(found.double(), expected, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_strong_table_views_lose_the_share_of_cells_they_should():
    numeric = torch.full((4000, 5), 3.0)
    codes = torch.full((4000, 2), 4)
    views = TableViews(numeric, codes)
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(4000)
    weak, same = views.weak(rows, views.draw_weak(4000, generator))
    assert torch.equal(same, codes)
    assert float((weak - numeric).std()) == pytest.approx(0.03, rel=0.05)
    strong, fewer = views.strong(rows, views.draw_strong(4000, generator))
    lost = strong == 0
    assert float(lost.float().mean()) == pytest.approx(0.4, abs=0.02)
    assert float((fewer == 0).float().mean()) == pytest.approx(0.4, abs=0.02)
    assert float((strong[~lost] - 3.0).std()) == pytest.approx(0.3, rel=0.05)


# ---------------------------------------------------------------------------------- networks


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_a_network_is_compiled_for_training_alone_and_runs_as_it_is_where_that_fails(monkeypatch):
    asked = []

    def refused(plain: Any, **_: Any) -> Any:
        def program(images: torch.Tensor) -> torch.Tensor:
            asked.append(len(images))
            raise RuntimeError("no compiler")

        return program

    monkeypatch.setattr(torch, "compile", refused)
    spec = NetSpec("resnet8", 3, channels=3, width=16)
    module, images = build_net(spec), torch.rand(4, 3, 8, 8)
    run = compiled(module, torch.device("cuda"))
    assert run is not None and compiled(module, torch.device("cpu")) is None
    module.eval()
    assert torch.equal(run(images), module(images)) and not asked
    module.train()
    with pytest.warns(FedmendWarning, match="cannot be compiled .* Mend: a C compiler"):
        first = run(images)
    assert torch.equal(first, module(images)) and torch.equal(run(images), first) and asked == [4]


@pytest.mark.parametrize("spec", [TABLE_NET, IMAGE_NET, NetSpec("cnn", 2, channels=1, width=4)])
def test_weights_go_in_and_out_as_one_vector(spec):
    flat = initial_weights(spec, 5)
    net = FlatNet(spec, OptimizerSpec("sgd"), CPU, torch.float32)
    net.load(flat)
    assert torch.equal(net.flat(), flat)
    plain = build_net(spec)
    pieces = [*plain.parameters(), *(b for b in plain.buffers() if b.is_floating_point())]
    assert len(flat) == sum(piece.numel() for piece in pieces)
    assert [p.shape for p in net.module.parameters()] == [p.shape for p in plain.parameters()]
    assert net.module.state_dict().keys() == plain.state_dict().keys()


def test_the_published_size_and_start_of_resnet8():
    spec = NetSpec("resnet8", 10, channels=3)
    net = build_net(spec)
    assert sum(p.numel() for p in net.parameters()) == 1_227_594
    wider = build_net(NetSpec("resnet8", 100, channels=3))
    assert sum(p.numel() for p in wider.parameters()) == 1_250_724
    flat = FlatNet(spec, OptimizerSpec("sgd"), CPU, torch.float32)
    flat.load(initial_weights(spec, 0))
    for layer in flat.module.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 10_000:
            expected = (2 / (layer.kernel_size[0] ** 2 * layer.out_channels)) ** 0.5
            assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.05)


# ---------------------------------------------------------------------------------- training


def by_hand(pool, spec, rounds, tau):
    """A round of SAGE in plain torch: modules, torch.optim.SGD, the formulas of the paper."""
    flat = FlatNet(spec, rounds.optimizer, CPU, torch.float64)
    flat.load(initial_weights(spec, 1).double())
    local, common = build_net(spec).double(), build_net(spec).double()
    for net in (local, common):
        net.load_state_dict(flat.module.state_dict())
    common.eval()
    start = [p.detach().clone() for p in local.parameters()]
    chosen = rounds.optimizer
    optimizer = torch.optim.SGD(
        local.parameters(), chosen.lr, chosen.momentum, weight_decay=chosen.weight_decay
    )
    plan = make_plan(pool, rounds, PseudoMethod("sage"), round_generator(0, pool.name, 1))
    _, b, u = plan.shape
    local.train()
    for step in range(plan.steps):
        rows = pool.labelled[plan.labelled[step]]
        labelled = pool.views.weak(rows, plan.labelled_draws[step * b : (step + 1) * b])
        others = pool.unlabelled[plan.unlabelled[step]]
        drawn = slice(step * u, (step + 1) * u)
        weak = pool.views.weak(others, plan.weak_draws[drawn])
        strong = pool.views.strong(others, plan.strong_draws[drawn])
        joined = [torch.cat(parts) for parts in zip(labelled, weak, strong, strict=True)]
        logits = local(*joined)
        p_local = torch.softmax(logits[b : b + u].detach(), 1)
        with torch.no_grad():
            p_global = torch.softmax(common(*weak), 1)
        loss = F.cross_entropy(logits[:b], pool.labels[rows])
        for row in range(u):
            c_l, c_g = float(p_local[row].max()), float(p_global[row].max())
            if max(c_l, c_g) <= tau:
                continue
            mix = np.exp(-SageRule().kappa * abs(c_l - c_g)) if c_l > tau else 0.0
            target = torch.zeros(spec.classes, dtype=torch.float64)
            target[p_local[row].argmax()] += mix
            target[p_global[row].argmax()] += 1 - mix
            log_p = torch.log_softmax(logits[b + u + row], 0)
            loss = loss + (target * ((target + 1e-10).log() - log_p)).sum() / u
        for parameter, before in zip(local.parameters(), start, strict=True):
            loss = loss + rounds.prox / 2 * ((parameter - before) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return local.state_dict()


@pytest.mark.parametrize(
    ("pool", "spec"),
    [(table_pool(), TABLE_NET), (image_pool(), IMAGE_NET)],
    ids=["table", "images"],
)
def test_a_round_is_the_papers_in_plain_torch(pool, spec):
    rounds = replace(SMALL, precision="float64", prox=0.1)
    method = PseudoMethod({"name": "sage", "tau": 0.4})
    pool = pool.to(CPU, rounds)
    trainer = Trainer(spec, method, rounds, CPU)
    update = trainer.train(
        pool, initial_weights(spec, 1).double(), round_generator(0, pool.name, 1)
    )
    expected = by_hand(pool, spec, rounds, 0.4)
    for name, value in trainer.net.module.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(value, expected[name], atol=1e-9), name
    assert float(update.measures[2]) > 0.2  # pseudo-labels took part


def test_clients_start_with_a_clean_optimizer_unless_momentum_is_carried():
    start = initial_weights(TABLE_NET, 0)
    first, second = table_pool(seed=1, name="x"), table_pool(seed=2, name="y")

    def after(carry: bool, before: bool) -> torch.Tensor:
        trainer = Trainer(TABLE_NET, Supervised(), SMALL, CPU, carry_momentum=carry)
        if before:
            trainer.train(first, start, round_generator(0, "x", 1))
        return trainer.train(second, start, round_generator(0, "y", 1)).weights

    assert torch.equal(after(False, True), after(False, False))
    assert not torch.equal(after(True, True), after(True, False))


def test_measures_are_those_of_the_rows():
    """Pseudo-label accuracy and utilisation of one step, counted by hand."""
    pool = table_pool(n=40)
    pool = Pool(pool.views, pool.labels, truth=torch.arange(40) % 3, name="a")
    rounds = RoundSettings(epochs=1, batch_size=40)
    trainer = Trainer(TABLE_NET, PseudoMethod({"name": "local", "tau": 0.5}), rounds, CPU)
    start = initial_weights(TABLE_NET, 2) * 3
    generator = round_generator(0, "a", 1)
    update = trainer.train(pool, start, generator)
    plan = make_plan(pool, rounds, trainer.method, round_generator(0, "a", 1))
    batch = pick(trainer.inputs(pool, plan, start, 0, 1), 0)
    net = FlatNet(TABLE_NET, rounds.optimizer, CPU, torch.float32)
    net.load(start)
    probabilities = torch.softmax(net.module(*batch.weak), 1)
    sure, label = probabilities.max(1)
    counted = sure > 0.5
    measured = dict(
        zip(("utilisation", "right", "known"), update.measures[2:5].tolist(), strict=True)
    )
    assert measured["utilisation"] == pytest.approx(float(counted.float().mean()))
    right = counted & (label == plan.unlabelled[0] % 3)
    assert measured["right"] == pytest.approx(float(right.float().mean()))
    assert measured["known"] == measured["utilisation"]


@given(st.integers(2, 6), st.integers(0, 1000))
def test_divergence_is_zero_at_the_target_and_never_below(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.softmax(torch.randn(7, classes, generator=generator).double(), 1)
    logits = torch.randn(7, classes, generator=generator).double()
    assert torch.allclose(divergence(target, target.log()), torch.zeros(7).double(), atol=1e-8)
    assert bool((divergence(target, logits) > -1e-8).all())
    hard = target.argmax(1)
    one_hot = F.one_hot(hard, classes).double()
    assert torch.allclose(divergence(one_hot, logits), divergence(hard, logits), atol=1e-8)


def test_fedavg_is_the_mean_by_rows():
    weights = torch.tensor([[0.0, 2.0], [3.0, 8.0]])
    assert Server()(weights, [1, 2], [{}, {}], weights[0]).tolist() == [2.0, 6.0]
    assert torch.equal(Server()(weights, [0, 0], [{}, {}], weights[1]), weights[1])


# ---------------------------------------------------------------------------------- mean of rounds


def plain_mean(models: list[torch.Tensor], rounds: int) -> torch.Tensor:
    """Every model's share, worked out from the last round backwards."""
    shares, left = [], 1.0
    for number in range(len(models), 0, -1):
        share = 2 / (1 + min(number, rounds))
        shares.insert(0, left * share)
        left *= 1 - share
    assert sum(shares) == pytest.approx(1.0)
    return sum(share * model.double() for share, model in zip(shares, models, strict=True))


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 99))
def test_it_is_the_mean_by_shares(rounds, count, seed):
    models = list(torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)))
    mean = RoundAverage(rounds)
    for model in models:
        told = mean.add(model)
    np.testing.assert_allclose(told, plain_mean(models, rounds), atol=1e-5)


def test_it_keeps_its_own_copy_in_the_precision_that_is_trained_in():
    mean, model = RoundAverage(3), torch.ones(4)
    mean.add(model)
    model += 5  # training goes on in place
    assert torch.equal(mean.add(torch.ones(4)), torch.ones(4))
    again = RoundAverage(3)
    again.restore(mean.state(), torch.zeros(4, dtype=torch.float64))
    assert again.added == 2
    assert again.add(torch.ones(4, dtype=torch.float64)).dtype == torch.float64


# ---------------------------------------------------------------------------------- methods


def test_methods_are_rebuilt_from_plain_values():
    method = PseudoMethod({"name": "sage", "tau": 0.8})
    again = LocalMethod.of(method.to_dict())
    assert isinstance(again, PseudoMethod)
    assert again.to_dict() == method.to_dict()
    assert again.rule.tau == 0.8
    assert isinstance(LocalMethod.of({"name": "supervised"}), Supervised)


def test_a_method_of_ones_own_takes_the_whole_step():
    """Two updates a step, something kept with the client, something told to the server."""

    class Twice(LocalMethod):
        name = "test-twice"

        def start(self, client) -> None:
            client.state.setdefault("steps", torch.zeros(()))

        def step(self, client, batch) -> None:
            for _ in range(2):
                (logits,) = client.forward(batch.labelled)
                client.update(F.cross_entropy(logits, batch.labels) + client.extras["bonus"])
            client.state["steps"] += 1

        def finish(self, client):
            return {"steps": client.state["steps"]}

    trainer = Trainer(TABLE_NET, Twice(), SMALL, CPU)
    kept: dict[str, torch.Tensor] = {}
    extras = {"bonus": torch.ones(())}
    pool, start = table_pool(), initial_weights(TABLE_NET, 0)
    for number in (1, 2):
        update = trainer.train(
            pool, start, round_generator(0, "a", number), state=kept, extras=extras
        )
    assert float(update.extras["steps"]) == 2 * update.steps == float(kept["steps"])
    assert not torch.equal(update.weights, start)


# ---------------------------------------------------------------------------------- bad input


ROWS, IMAGES = TableViews(torch.zeros(4, 2)), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: RoundSettings(epochs=0, prox=-1.0, precision="half"), "3 problems"),
        (lambda: NetSpec("mlp", 1), "2 problems"),
        (lambda: NetSpec("vgg", 2), "net must be one of mlp, cnn, resnet8, got 'vgg'"),
        (lambda: NetSpec("cnn", 2), "channels must be at least 1"),
        (lambda: LocalMethod.of({"name": "supervise"}), "'supervise' is not a local.*supervised"),
        (lambda: Pool(ROWS, [0, 1, 0], name="b"), "party 'b': 3 labels for 4 rows"),
        (lambda: Pool(ROWS, [0, 1, -1, 0], labelled=[2]), "labelled that has no label"),
        (lambda: Pool(ROWS, [0, 1, -1, 0], unlabelled=[]), "no rows"),
        (lambda: ImageViews(IMAGES, (0.5,), (0.5,)), "mean and std must be 3 numbers"),
        (lambda: TableViews(torch.zeros(4, 2), torch.zeros(3, 1).long()), "as many rows"),
    ],
)
def test_bad_settings_and_pools_are_named(made, message):
    with pytest.raises((ConfigError, DataError), match=message):
        made()


def test_weights_of_another_network_are_refused():
    trainer = Trainer(TABLE_NET, Supervised(), SMALL, CPU)
    with pytest.raises(ConfigError, match="Mend: give every client the same network"):
        trainer.train(table_pool(), torch.zeros(3), round_generator(0, "a", 1))


# ---------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(("hidden", "threads"), [((16,), 1), ((2048, 2048), 2)])
def test_small_networks_train_in_one_thread_and_large_ones_in_all(hidden, threads):
    seen = []

    class Watching(Supervised):
        name = ""

        def loss(self, client: Client, batch: StepBatch) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return super().loss(client, batch)

    spec = replace(TABLE_NET, hidden=hidden)
    rounds = replace(SMALL, epochs=1, batch_size=60)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainer = Trainer(spec, Watching(), rounds, CPU)
        trainer.train(table_pool(), initial_weights(spec, 0), round_generator(0, "a", 1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]
