"""The simulator: a federation's numbers, checkpoints, digits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

from fedmend.data.table import Table
from fedmend.errors import ConfigError, FedmendWarning, ResumeError
from fedmend.federation import Federation, Party
from fedmend.learn import optim
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.baselines import FedAvg, FedDB, FedMatch, FlexMatch, MatchServer
from fedmend.methods.horizontal.encoding import pool_of
from fedmend.methods.horizontal.estimator import HorizontalEstimator
from fedmend.methods.horizontal.local_methods import LocalMethod, PseudoMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec, build_net
from fedmend.methods.horizontal.rounds import Pool, RoundSettings, Trainer
from fedmend.methods.horizontal.sage import SAGE
from fedmend.methods.horizontal.views import ImageViews, TableViews
from fedmend_bench.sage.kernels import fast_path
from fedmend_bench.sage.simulator import Simulator, simulator_of

weekly = partial(pytest.param, marks=pytest.mark.slow)
NET = NetSpec("mlp", 3, numeric=4, cardinalities=(5, 6), hidden=(8, 6))
MARK = "37b83329ec3cc37728813c5cb48df68018cb7911e3d4c633b611e74a0f512b36"
SMALL = RoundSettings(epochs=1, batch_size=8, optimizer=OptimizerSpec("sgd", 0.05, 1e-3))


def pools(sizes=(60, 60, 90, 60), seed: int = 0) -> list[Pool]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number, n in enumerate(sizes):
        numeric = torch.randn(n, 4, generator=generator)
        codes = torch.randint(0, 5, (n, 2), generator=generator)
        truth = numeric[:, :3].argmax(1)
        labels = torch.where(torch.arange(n) < n // 3, truth, -1)
        made.append(Pool(TableViews(numeric, codes), labels, truth=truth, name=f"c{number}"))
    return made


def simulate(method, settings=SMALL, rounds: int = 3, **options) -> tuple[Simulator, list]:
    simulator = Simulator(pools(), NET, method, settings, device="cpu", **options)
    return simulator, [simulator.run_round() for _ in range(rounds)]


@pytest.mark.parametrize(
    ("method", "carry"),
    [(PseudoMethod("sage"), True), weekly(PseudoMethod("flexmatch"), False)],
)
def test_a_run_goes_on_as_if_it_had_never_stopped(method, carry) -> None:
    options = {"per_round": 2, "carry_momentum": carry}
    whole, _ = simulate(method, rounds=4, **options)
    first, _ = simulate(method, rounds=2, **options)
    second, _ = simulate(method, rounds=0, **options)
    second.restore(first.checkpoint())
    assert second.round == 2
    second.run_round()
    second.run_round()
    assert torch.equal(whole.weights, second.weights)
    other, _ = simulate(method, rounds=0, seed=4, **options)
    with pytest.raises(ResumeError, match="another run"):
        other.restore(first.checkpoint())


def test_checkpoints_of_the_published_runs_are_still_of_these_runs() -> None:
    """300 rounds take several sittings, and options come and go between them."""
    simulator, _ = simulate(PseudoMethod("sage"), rounds=0, per_round=2, carry_momentum=True)
    assert simulator.fingerprint() == MARK


def test_a_momentum_is_not_carried_out_of_a_warm_up() -> None:
    with pytest.raises(ConfigError, match="warmup and carry_momentum"):
        simulate(PseudoMethod("sage"), replace(SMALL, warmup=1), carry_momentum=True)


def test_shared_views_are_moved_once() -> None:
    views = ImageViews(torch.zeros(40, 3, 8, 8, dtype=torch.uint8))
    shared = [
        Pool(views, torch.arange(40) % 4, unlabelled=torch.arange(at, at + 20), name=f"c{at}")
        for at in (0, 20)
    ]
    settings = RoundSettings(precision="bf16")  # other inputs than float32, so views must change
    net = NetSpec("cnn", 4, channels=3, width=4)
    pools = Simulator(shared, net, Supervised(), settings, device="cpu").pools
    assert pools["c0"].views is pools["c20"].views is not views


def test_clients_have_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="two clients have one name"):
        Simulator([*pools(), *pools()], NET, Supervised(), device="cpu")


# ---------------------------------------------------------------------------------- federation

QUICK = {"rounds": 2, "epochs": 2, "hidden": (16,), "batch_size": 16}


@pytest.fixture(scope="module")
def clinics() -> Federation:
    rng = np.random.default_rng(0)
    parties = []
    for number in range(3):
        frame = pd.DataFrame(rng.normal(size=(90 + 16 * number, 3)), columns=list("abc"))
        frame["job"] = rng.choice(["clerk", "nurse", "smith"], len(frame))
        frame["y"] = np.where(frame["a"] > 0, "ill", "well")
        frame.loc[40:, "y"] = None
        parties.append(Party(f"clinic-{number}", Table.from_frame(frame, label="y")))
    return Federation(*parties, strict=True)


def pools_of(fed: Federation, model: HorizontalEstimator) -> list[Pool]:
    tables = {name: fed.engine.site(name).tables["train"] for name in fed.names}
    return [pool_of(table, model.clients_.common, name) for name, table in tables.items()]


@pytest.mark.parametrize(
    "model",
    [
        SAGE(per_round=2, **QUICK),
        weekly(SAGE(warmup=1, **QUICK)),
        FedAvg(**QUICK),
        weekly(FlexMatch(**QUICK)),
        weekly(FedDB(**QUICK)),
        FedMatch(warmup=1, **QUICK),
    ],
    ids=repr,
)
def test_the_simulator_gives_a_federations_numbers(
    model: HorizontalEstimator, clinics: Federation
) -> None:
    """To the bit."""
    model.fit(clinics)
    simulator = simulator_of(model, pools_of(clinics, model), model.clients_.net, device="cpu")
    for entry in model.history_:
        report = simulator.run_round()
        assert report.clients == entry["clients"] and report.loss == entry["loss"]
    assert torch.equal(simulator.weights, model.clients_.weights)


# ---------------------------------------------------------------------------------- digits


def digit_pools(clients: int = 5, labelled: int = 40) -> tuple[list[Pool], TableViews, np.ndarray]:
    digits = load_digits()
    pixels = torch.from_numpy(digits.data / 16.0).float()
    pixels = (pixels - pixels.mean(0)) / (pixels.std(0) + 1e-3)
    order = np.random.default_rng(0).permutation(len(pixels))
    test, train = order[:400], order[400:]
    made = []
    for number, rows in enumerate(np.array_split(train, clients)):
        truth = digits.target[rows]
        labels = np.where(np.arange(len(rows)) < labelled, truth, -1)
        made.append(Pool(TableViews(pixels[rows]), labels, truth=truth, name=f"clinic-{number}"))
    return made, TableViews(pixels[test]), digits.target[test]


@pytest.mark.slow
def test_five_clients_of_digits_converge() -> None:
    """And unlabelled rows help: 40 labels a client, 20 rounds."""
    clients, test, truth = digit_pools()
    net = NetSpec("mlp", 10, numeric=64)
    settings = RoundSettings(epochs=2, batch_size=32, optimizer=OptimizerSpec("sgd", 0.1, 1e-4))
    sage = Simulator(clients, net, PseudoMethod("sage"), settings, device="cpu")
    reports = [sage.run_round() for _ in range(20)]
    alone = Simulator(clients, net, Supervised(), settings, device="cpu")
    for _ in range(20):
        alone.run_round()
    accuracy = sage.accuracy(test, truth)
    assert accuracy > 0.93
    assert accuracy > alone.accuracy(test, truth)
    assert reports[-1].utilisation > reports[0].utilisation
    assert reports[-1].pseudo_accuracy > 0.97


# ---------------------------------------------------------------------------------- fast passes


def test_fast_passes_are_for_resnets_on_a_gpu() -> None:
    net = build_net(NetSpec("resnet8", 10, channels=3, width=4))
    for device in ("cpu", "cuda"):  # of a width that is too small
        assert fast_path(net, torch.device(device)) is None
    assert fast_path(build_net(NET), torch.device("cuda")) is None


# ---------------------------------------------------------------------------------- gaps


@pytest.mark.parametrize("name", ["fedmatch", weekly("fedloke"), weekly("feddure"), "pseudo"])
@pytest.mark.parametrize("optimizer", ["sgd", weekly("adam")])
def test_gaps_between_layers_change_nothing(monkeypatch, name, optimizer) -> None:
    """On a GPU parameters begin at multiples of 256 bytes; here a CPU does it too."""
    spec = OptimizerSpec(optimizer, 0.02, 1e-3)
    settings = replace(SMALL, optimizer=spec, prox=0.1)

    def make() -> Simulator:
        return Simulator(
            *(pools((40, 40, 40)), NET, LocalMethod.of({"name": name}), settings),
            carry_momentum=True,
            device="cpu",
            server=MatchServer() if name == "fedmatch" else None,
        )

    plain = make()
    for _ in range(3):
        plain.run_round()
    real = optim._spans
    monkeypatch.setattr(optim, "_spans", lambda sizes, unit: real(sizes, 64))
    gapped = make()
    for _ in range(2):
        gapped.run_round()
    kept, gapped = gapped.checkpoint(), make()
    gapped.restore(kept)
    gapped.run_round()
    net = gapped.trainer.net
    assert len(net.values) > net.optimizer.size == plain.trainer.net.optimizer.size
    assert torch.equal(plain.weights, gapped.weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pseudo", "feddure"])
def test_a_step_that_cannot_be_captured_is_run_plainly(monkeypatch, name) -> None:
    """What was tried for the capture leaves no trace."""
    plain, _ = simulate(LocalMethod.of({"name": name}))

    def fails(self, step) -> None:
        step()
        step()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Trainer, "_record", fails)
    tried = Simulator(pools(), NET, LocalMethod.of({"name": name}), SMALL, device="cpu")
    tried.trainer.capture = True
    with pytest.warns(FedmendWarning, match="cannot be captured .*not permitted"):
        tried.run_round()
    assert not tried.trainer.capture
    tried.run_round()
    tried.run_round()
    assert torch.equal(plain.weights, tried.weights)
