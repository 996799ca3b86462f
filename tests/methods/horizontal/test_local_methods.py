"""Local methods with more than one set of weights: FedMatch, FedLoKe, FedDure."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.baselines import MatchServer
from fedmend.methods.horizontal.local_methods import (
    HIDDEN,
    DureMethod,
    InputBatch,
    LocalMethod,
    LoKeMethod,
    MatchMethod,
    row_weights,
)
from fedmend.methods.horizontal.networks import NetSpec, initial_weights
from fedmend.methods.horizontal.rounds import (
    Pool,
    RoundSettings,
    Trainer,
    make_plan,
    pick,
    round_generator,
)
from fedmend.methods.horizontal.views import ImageViews, TableViews

SPEC = NetSpec("mlp", classes=3, numeric=4, hidden=(16,))
CENTRES = np.random.default_rng(1).normal(size=(3, 4)) * 4.0


def pool_of(n: int = 120, labelled: int = 12, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    x = torch.from_numpy(CENTRES[truth] + rng.normal(size=(n, 4))).float()
    labels = np.where(np.arange(n) < labelled, truth, -1)
    return Pool(TableViews(x), labels, truth=truth, name=f"client-{seed}")


def trainer_of(method, lr=0.05, optimizer="sgd", **settings):
    spec = OptimizerSpec(optimizer, lr, 0.0, 0.9)
    given = RoundSettings(2, 12, spec, **settings)
    return Trainer(SPEC, method, given, torch.device("cpu"))


def train(trainer, start, state, number=1, extras=None, seed=0):
    generator = round_generator(0, f"client-{seed}", number)
    return trainer.train(pool_of(seed=seed), start, generator, state=state, extras=extras)


def accuracy(trainer: Trainer, weights: torch.Tensor) -> float:
    pool = pool_of(400, seed=99)
    said = trainer.probabilities(pool.views, weights).argmax(1)
    return float((said == pool.truth).float().mean())


@pytest.fixture
def start():
    return initial_weights(SPEC, 0)


@pytest.mark.daily("method0", "method1", "method3")
@pytest.mark.parametrize(
    "method", [MatchMethod(), LoKeMethod(), DureMethod(), DureMethod(sage=True)]
)
def test_rounds_learn_and_repeat(method, start):
    lr = 0.01 if method.name == "fedmatch" else 0.05

    def three_rounds() -> tuple[torch.Tensor, float]:
        trainer, state, weights = trainer_of(LocalMethod.of(method.to_dict()), lr), {}, start
        for number in (1, 2, 3):
            update = train(trainer, weights, state, number)
            weights = update.weights
        used, right, known = update.measures[2:5].tolist()
        # Every truth is known here, so all labels that are used are judged.
        assert known == pytest.approx(used) and 0.8 * known < right <= known
        return weights, accuracy(trainer, weights)

    weights, score = three_rounds()
    assert score > 0.8
    assert torch.equal(three_rounds()[0], weights)


# ---------------------------------------------------------------------------------- FedMatch


def test_the_server_sends_the_nearest_models(start):
    server = MatchServer()
    assert server.send(start) == {}
    models = torch.stack([start + 3.0, start + 0.1, start - 0.2])
    psi = [{"psi": torch.full((3,), float(value))} for value in (0, 2, 4)]
    mean = server(models, [1, 1, 2], psi, start)
    torch.testing.assert_close(mean, 0.25 * models[0] + 0.25 * models[1] + 0.5 * models[2])
    sent = server.send(start)
    assert sent["psi"].tolist() == [2.5, 2.5, 2.5]
    assert torch.equal(sent["helpers"], models[[1, 2]])
    other = MatchServer()
    other.restore(server.state())
    assert torch.equal(other.send(start)["helpers"], sent["helpers"])


def logits_of(flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The network of SPEC by hand, from its weights as one vector."""
    first, bias, second, last = flat.split([64, 16, 48, 3])
    return torch.relu(x @ first.view(16, 4).T + bias) @ second.view(3, 16).T + last


def batches_of(trainer: Trainer, start: torch.Tensor, pool: Pool) -> list[InputBatch]:
    plan = make_plan(pool, trainer.settings, trainer.method, round_generator(0, pool.name, 1))
    many = trainer.inputs(pool, plan, start, 0, plan.steps)
    return [pick(many, step) for step in range(plan.steps)]


def cross_entropy(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return -(target * torch.log_softmax(logits, 1)).sum(1)


def slope(loss: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, of)[0]


def test_a_round_of_fedmatch_is_the_papers_in_plain_torch():
    """Jeong et al., Eqs. 2-5: sigma down the labelled loss, psi down the other and its pulls."""
    lr, momentum, lambda_s, iccs, l1, l2 = 0.01, 0.9, 10.0, 0.01, 1e-4, 10.0
    begun = [initial_weights(SPEC, seed).double() for seed in (0, 1, 2)]
    start, helpers = begun[0], begun[1:]
    extras = {"psi": 0.1 * start, "helpers": torch.stack(helpers)}
    trainer = trainer_of(MatchMethod(tau=0.4), lr=lr, precision="float64")
    pool = pool_of().to(torch.device("cpu"), trainer.settings)
    update = trainer.train(
        pool, start, round_generator(0, pool.name, 1), state={}, extras=dict(extras)
    )
    psi, sigma = 0.1 * start, 0.9 * start
    moved_psi, moved_sigma = torch.zeros_like(psi), torch.zeros_like(sigma)
    for batch in batches_of(trainer, start, pool):
        whole = (sigma + psi).requires_grad_()
        seen, changed = logits_of(whole, batch.weak[0]), logits_of(whole, batch.strong[0])
        voters = [torch.softmax(logits_of(w, batch.weak[0]), 1) for w in (whole, *helpers)]
        voters = [each.detach() for each in voters]
        votes = sum(torch.eye(3).double()[each.argmax(1)] for each in voters)
        label = torch.eye(3).double()[(votes + 1e-3 * sum(voters)).argmax(1)]
        sure = voters[0].max(1).values > 0.4
        unlabelled = (cross_entropy(label, changed) * sure).mean()
        for other in voters[1:]:
            unlabelled = unlabelled + iccs / 2 * cross_entropy(other, seen).mean()
        truth = torch.eye(3).double()[batch.labels]
        labelled = lambda_s * cross_entropy(truth, logits_of(whole, batch.labelled[0])).mean()
        moved_psi = momentum * moved_psi + slope(unlabelled, whole)
        moved_sigma = momentum * moved_sigma + slope(labelled, whole)
        # The pulls l2 |psi - sigma|^2 and l1 |psi| in closed form.
        fresh = (psi - lr * moved_psi + 2 * lr * l2 * sigma) / (1 + 2 * lr * l2)
        psi = fresh.sign() * (fresh.abs() - lr * l1).clamp_min(0)
        sigma = sigma - lr * moved_sigma
    torch.testing.assert_close(update.extras["psi"], psi, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(update.weights, sigma + psi, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------- FedLoKe


def test_a_round_of_fedloke_is_the_papers_in_plain_torch():
    """Zhang et al.: each model learns from labels, and from the other where that one is sure."""
    lr, momentum, most, keep = 0.05, 0.9, 0.8, 0.75
    start, own = (initial_weights(SPEC, seed).double() for seed in (0, 1))
    trainer = trainer_of(LoKeMethod(entropy=most, keep=keep), lr=lr, precision="float64")
    pool = pool_of().to(torch.device("cpu"), trainer.settings)
    state = {"own": own.clone()}
    update = trainer.train(pool, start, round_generator(0, pool.name, 1), state=state)
    models = [start, keep * own + (1 - keep) * start]
    moved = [torch.zeros_like(start), torch.zeros_like(start)]
    taught = 0
    for batch in batches_of(trainer, start, pool):
        given = [torch.softmax(logits_of(each, batch.weak[0]), 1) for each in models]
        slopes = []
        for model, teacher in ((models[0], given[1]), (models[1], given[0])):
            weights = model.clone().requires_grad_()
            sure = -(teacher * teacher.log()).sum(1) < most
            taught += int(sure.sum())
            truth = torch.eye(3).double()[batch.labels]
            loss = cross_entropy(truth, logits_of(weights, batch.labelled[0])).mean()
            strong = logits_of(weights, batch.strong[0])
            loss = loss + (cross_entropy(teacher, strong) * sure).mean()
            slopes.append(slope(loss, weights))
        moved = [momentum * old + new for old, new in zip(moved, slopes, strict=True)]
        models = [each - lr * step for each, step in zip(models, moved, strict=True)]
    assert taught > 100
    torch.testing.assert_close(update.weights, models[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(state["own"], models[1], rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------- FedDure


def test_row_weights_are_a_small_network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1), nn.Sigmoid())
    flat = torch.cat(
        [net[0].weight.T.reshape(-1), net[0].bias, net[2].weight.reshape(-1), net[2].bias]
    )
    table = torch.softmax(torch.randn(7, 3), 1)
    torch.testing.assert_close(row_weights(flat, table), net(table)[:, 0])


def test_a_trial_that_ruins_the_twin_counts_once(start):
    pool = pool_of(60, labelled=60)
    trainer = trainer_of(DureMethod(), lr=20.0)
    trainer.net.load(start)
    method = DureMethod()
    method.start(trainer.client(pool, {}, {}))
    inputs = pool.views.plain(torch.arange(60))
    wrong = nn.functional.one_hot(pool.labels, 3).float().roll(1, 1)
    batch = InputBatch(inputs, pool.labels, inputs, inputs)
    worth, _ = method._try(batch, inputs, wrong, torch.ones(60))
    assert worth == -1  # and not by how much its loss rose


def test_rows_are_weighed_by_the_gradient_through_the_trial(start):
    """Beside autograd through the unrolled step: d labelled loss after it / d weight of a row."""
    trainer = trainer_of(DureMethod(), lr=0.5, precision="float64")
    trainer.net.load(start.double())
    pool = pool_of(40, labelled=40).to(trainer.device, trainer.settings, {})
    method = DureMethod()
    method.start(trainer.client(pool, {}, {}))
    labelled, weak = torch.arange(12), torch.arange(12, 40)
    inputs = pool.views.plain(labelled)
    batch = InputBatch(inputs, pool.labels[labelled], inputs, inputs)
    rows = pool.views.plain(weak)
    target = nn.functional.one_hot((pool.labels[weak] + weak) % 3, 3).double()
    weighed = torch.linspace(0.1, 0.9, 28, dtype=torch.float64)
    module = method._twin.module
    names = [name for name, _ in module.named_parameters()]
    first = [value.detach().clone().requires_grad_() for value in module.parameters()]

    def logits(values: list[torch.Tensor], given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), given)

    weights = weighed.clone().requires_grad_()
    each = nn.functional.cross_entropy(logits(first, rows), target.argmax(1), reduction="none")
    slopes = torch.autograd.grad((each * weights).mean(), first, create_graph=True)
    second = [value - 0.5 * slope for value, slope in zip(first, slopes, strict=True)]
    after = nn.functional.cross_entropy(logits(second, inputs), batch.labels)
    before = nn.functional.cross_entropy(logits(first, inputs), batch.labels)
    (exact,) = torch.autograd.grad(after, weights, retain_graph=True)
    steep = torch.cat([each.reshape(-1) for each in torch.autograd.grad(after, second)]).norm()

    worth, along = method._try(batch, rows, target, weighed)
    torch.testing.assert_close(worth, (before - after).detach())
    told = -0.5 / 28 * steep * along
    assert float((told - exact).norm() / exact.norm()) < 0.05
    assert exact.abs().max() > 1e-2
    # The trial leaves the twin where its step led.
    reached = torch.cat([value.detach().reshape(-1) for value in second])
    torch.testing.assert_close(method._twin.values, reached)


def test_a_round_of_feddure_is_the_papers_in_plain_torch():
    """Bai et al.: the twin's trial, rows weighed by F-reg, all of them by C-reg, Adam for F-reg."""
    lr, momentum, tau = 0.4, 0.9, 0.8
    start = initial_weights(SPEC, 0).double()
    trainer = trainer_of(DureMethod(tau=tau), lr=lr, precision="float64")
    pool = pool_of().to(torch.device("cpu"), trainer.settings)
    state: dict[str, torch.Tensor] = {}
    update = trainer.train(pool, start, round_generator(0, pool.name, 1), state=state)
    fresh = torch.randn(len(state["regulator"]), generator=torch.Generator().manual_seed(3))
    regulator = nn.Parameter(0.1 * fresh)
    adam = torch.optim.Adam([regulator], lr=6e-4)
    whole, twin = start, start
    moved, moved_twin = torch.zeros_like(start), torch.zeros_like(start)
    falls, masks = [], []
    for batch in batches_of(trainer, start, pool):
        local = torch.softmax(logits_of(whole, batch.weak[0]), 1)
        label = torch.eye(3).double()[local.argmax(1)]
        truth = torch.eye(3).double()[batch.labels]
        mask = local.max(1).values > tau
        weight = row_weights(regulator.double(), local)
        # The trial, and how each row's loss before it goes with the labelled loss after it.
        begun = twin.clone().requires_grad_()
        here = cross_entropy(label, logits_of(begun, batch.weak[0]))
        before = cross_entropy(truth, logits_of(begun, batch.labelled[0])).mean()
        step = slope((here * mask * weight.detach()).mean(), begun)
        moved_twin = momentum * moved_twin + step
        ended = (twin - lr * moved_twin).requires_grad_()
        after = cross_entropy(truth, logits_of(ended, batch.labelled[0])).mean()
        down = slope(after, ended)
        there = cross_entropy(
            label, logits_of(twin + 0.01 * down / (down.norm() + 1e-12), batch.weak[0])
        )
        along = ((there - here) / 0.01).detach()
        falls.append(float((before - after).detach()))
        masks.append(float(mask.double().mean()))
        # The client's step.
        weights = whole.clone().requires_grad_()
        strong = cross_entropy(label, logits_of(weights, batch.strong[0])) * mask
        loss = cross_entropy(truth, logits_of(weights, batch.labelled[0])).mean()
        loss = loss + (strong * (weight.detach() + falls[-1])).mean()
        moved = momentum * moved + slope(loss, weights)
        whole, twin = whole - lr * moved, ended.detach()
        adam.zero_grad()
        (-(along * mask * weight).mean()).backward()
        adam.step()
    assert max(map(abs, falls)) > 0.2 and 0.1 < np.mean(masks) < 0.98
    torch.testing.assert_close(update.weights, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["regulator"], regulator.detach(), rtol=1e-4, atol=1e-6)


def test_half_precision_weighs_rows_like_double_precision():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 4
    images = torch.randint(0, 256, (64, 3, 16, 16), generator=generator, dtype=torch.uint8)
    images[:, :, :6] = (60 * labels)[:, None, None, None].to(torch.uint8)
    net = NetSpec("resnet8", 4, channels=3, width=8)
    found = []
    for precision in ("float64", "bf16"):
        method = DureMethod()
        spec = OptimizerSpec("sgd", 0.05, 0.0, 0.0)
        given = RoundSettings(1, 64, spec, precision=precision)
        trainer = Trainer(net, method, given, torch.device("cpu"))
        pool = Pool(ImageViews(images), labels).to(trainer.device, given, {})
        trainer.net.load(initial_weights(net, 0).to(given.dtype))
        method.start(trainer.client(pool, {}, {}))
        known, weak = pool.views.plain(torch.arange(32)), pool.views.plain(torch.arange(32, 64))
        batch = InputBatch(known, labels[:32], weak, weak)
        target = nn.functional.one_hot((labels[32:] + torch.arange(32) // 24) % 4, 4)
        weighed = torch.ones(32, dtype=given.dtype)
        found.append(method._try(batch, weak, target.to(given.dtype), weighed)[1].double())
    exact, half = found
    assert float(torch.corrcoef(torch.stack(found))[0, 1]) > 0.99
    assert float((half - exact).norm() / exact.norm()) < 0.12


@pytest.mark.parametrize(
    ("method", "optimizer"), [(MatchMethod(), "sgd"), (LoKeMethod(), "adam"), (DureMethod(), "sgd")]
)
def test_networks_beside_the_clients_stay_where_they_are(method, optimizer, start):
    """A captured step is replayed for other clients: its tensors must not move."""
    trainer = trainer_of(method, optimizer=optimizer)
    extras = {"psi": start[: len(trainer.net.values)] * 0.2, "helpers": torch.stack([start, start])}
    sent = extras if method.name == "fedmatch" else None
    train(trainer, start, {}, extras=sent)
    before = [tensor.data_ptr() for tensor in method.tensors()]
    state: dict[str, torch.Tensor] = {}
    again = train(trainer, start, state, extras=sent, seed=1)
    assert [tensor.data_ptr() for tensor in method.tensors()] == before != []
    # Nor does anything of the client before remain in them.
    fresh = trainer_of(LocalMethod.of(method.to_dict()), optimizer=optimizer)
    alone = train(fresh, start, {}, extras=sent, seed=1)
    assert torch.equal(again.weights, alone.weights)
    # What every round makes anew is not kept with the client.
    assert not {"psi", "psi_momentum"} & set(state)
    # Another trainer has networks of its own.
    other = trainer_of(method)
    train(other, start, {}, extras=sent)
    assert method._beside is other.net
