"""Split training against the same network in one piece, and everything around the loop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, FedmendWarning, ResumeError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import CONVOLUTIONS, Batch, Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.parts import part_of
from fedmend.split.training import SplitNetwork, epoch_seed
from fedmend.split.workers import ServerTop, TopWorker
from fedmend_bench.foundations.split import Size, weight_difference

QUICK = SplitConfig(
    bottom=(8,), embedding=4, top=(8,), epochs=3, validation=0.0, settings=Settings(32)
)


def network(fed: Federation, config: SplitConfig = QUICK, **options: Any) -> SplitNetwork:
    if "server" not in options:
        options["label_party"] = "bank"
    return SplitNetwork(fed, parties=list(fed.names), config=config, **options)


def weights(fed: Federation, model: SplitNetwork) -> torch.Tensor:
    pieces = []
    for site in fed.engine.sites.values():
        part = part_of(site, model.model)
        for half in (part.bottom, part.top):
            if half is not None:
                pieces += [value.detach().flatten() for value in half.module.state_dict().values()]
    return torch.cat(pieces).double()


def segments(fed: Federation) -> list[list[object]]:
    return [["aligned", fed.alignment.aligned]]


# ------------------------------------------------------------------ the same arithmetic


@pytest.mark.parametrize("parties", [2, 4])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_split_equals_one_piece(parties, precision, tolerance):
    size = Size(rows=600, columns=9, batch=64, limit=0)
    assert weight_difference(size, parties, precision) <= tolerance


def test_regression_with_codes_and_missing_cells_equals_one_piece(make_fed, make_frame):
    """Hand-made twin: two bottoms with an embedding table, MSE on the standardised target."""
    frame = make_frame(task="regression")
    frame.loc[::7, "d"] = np.nan
    columns = {"bank": ["a", "b", "y"], "telco": ["d", "city"]}
    config = replace(QUICK, settings=Settings(32, OptimizerSpec(), "float64"))
    fed = make_fed(frame, columns=columns)
    model = network(fed, config).fit([["aligned", len(frame)]])

    bank = fed.engine.site("bank")
    telco = fed.engine.site("telco")
    one = initialise(Bottom(BottomSpec(2, (), (), (8,), 4)), bank.torch_generator("bottom 0"))
    # d, missing(d), and three cities + missing + unseen
    other = initialise(Bottom(BottomSpec(2, (5,), (), (8,), 4)), telco.torch_generator("bottom 0"))
    top = initialise(Top(TopSpec((4, 4), (8,), 1)), bank.torch_generator("top 0"))
    twin = nn.ModuleList([one, other, top]).double()

    def standard(values: pd.Series) -> torch.Tensor:
        return torch.tensor(((values - values.mean()) / values.std(ddof=0)).to_numpy())

    d = standard(frame["d"]).nan_to_num(0.0)
    x1 = torch.stack([standard(frame["a"]), standard(frame["b"])], 1)
    x2 = torch.stack([d, torch.tensor(frame["d"].isna().to_numpy(float))], 1)
    codes = torch.tensor(frame["city"].map({"Bonn": 1, "Kiel": 2, "Ulm": 3}).to_numpy())[:, None]
    y = standard(frame["y"])
    optimizer = torch.optim.Adam(twin.parameters(), 1e-3)

    for epoch in (1, 2, 3):
        generator = torch.Generator().manual_seed(epoch_seed(0, 0, epoch))
        for rows in torch.randperm(len(frame), generator=generator).split(32):
            optimizer.zero_grad()
            left = one(Batch(x1[rows], codes[rows][:, :0]))
            right = other(Batch(x2[rows], codes[rows]))
            ((top([left, right])[:, 0] - y[rows]) ** 2).mean().backward()
            optimizer.step()
    expected = [value.detach().flatten() for value in one.state_dict().values()]
    expected += [value.detach().flatten() for value in top.state_dict().values()]
    expected += [value.detach().flatten() for value in other.state_dict().values()]
    torch.testing.assert_close(weights(fed, model), torch.cat(expected), rtol=0, atol=1e-10)


def test_values_by_reference_and_over_the_wire_give_the_same_model(make_fed):
    results = []
    for strict in (False, True):
        fed = make_fed(strict=strict)
        model = network(fed).fit(segments(fed))
        results.append((weights(fed, model), model.predict(fed, segments(fed))))
    assert torch.equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_the_seed_decides(make_fed):
    def trained(run_seed: int, seed: int) -> torch.Tensor:
        fed, config = make_fed(seed=run_seed), replace(QUICK, seed=seed, epochs=1)
        return weights(fed, network(fed, config).fit(segments(fed)))

    first = trained(0, 0)
    assert torch.equal(first, trained(0, 0))
    assert not torch.equal(first, trained(1, 0))
    assert not torch.equal(first, trained(0, 1))


# ------------------------------------------------------------------ what crosses


def test_only_embeddings_go_up_and_only_gradients_come_down_once_a_step(make_fed):
    fed = make_fed()
    network(fed).fit(segments(fed))
    up = fed.ledger.kinds(receiver="coordinator")
    assert up == {"control", "embedding", "gradient", "statistic"}
    assert fed.ledger.kinds(sender="telco") == {"control", "embedding"}
    assert fed.ledger.kinds(receiver="telco") == {"control", "gradient"}
    assert fed.ledger.kinds(sender="bank") == {"control", "gradient", "statistic"}
    batches = -(-240 // 32) * QUICK.epochs
    sent = [entry for entry in fed.ledger if entry.call == "BottomWorker.step"]
    for party in ("telco", "shop"):
        assert sum(entry.count for entry in sent if entry.sender == party) == batches
    # every gradient but an epoch's last travels with the request for the next embedding
    down = [each for each in sent if each.receiver == "telco" and each.kind == "gradient"]
    assert sum(entry.count for entry in down) == batches - QUICK.epochs


# ------------------------------------------------------------------ learning


@pytest.mark.daily("regression")
@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_it_learns(make_fed, make_frame, task):
    frame = make_frame(300, task=task)
    fed = make_fed(frame, test=make_frame(300, seed=1, task=task))
    config = replace(QUICK, bottom=(16,), top=(16,), epochs=20, validation=0.15, patience=15,
                     settings=Settings(32, OptimizerSpec(lr=1e-2)))  # fmt: skip
    model = network(fed, config).fit(segments(fed))
    scores = model.evaluate(fed.on("test"), [["aligned", 300]])
    assert model.task == task
    if task == "regression":
        assert scores["r2"] > 0.9
        assert scores["rmse"] < 2
    else:
        assert scores["accuracy"] > 0.85
        assert scores["auc"] > 0.93


def test_soft_labels_at_the_server(make_fed, make_frame):
    frame = make_frame(300)
    columns = {"bank": ["a", "b"], "telco": ["c", "d"], "shop": ["e", "city"]}
    fed = make_fed(frame, columns=columns)
    truth = (frame["y"] == "yes").to_numpy()
    soft = np.where(truth[:, None], [0.2, 0.8], [0.7, 0.3])
    soft[:50] = 0.0  # nobody voted on these
    config = replace(QUICK, epochs=20, settings=Settings(32, OptimizerSpec(lr=1e-2)))
    server = ServerTop(["no", "yes"], targets=soft)
    model = network(fed, config, server=server).fit(segments(fed))
    probabilities = model.predict(fed, segments(fed))
    assert ((probabilities[:, 1] > 0.5) == truth).mean() > 0.85
    assert probabilities[truth, 1].mean() == pytest.approx(0.8, abs=0.1)
    assert model.classes == ["no", "yes"]
    assert fed.ledger.kinds(receiver="telco") == {"control", "gradient"}


def test_soft_labels_must_fit(make_fed):
    with pytest.raises(DataError, match="2 classes"):
        ServerTop(["a", "b"], targets=np.ones((3, 3)))
    columns = {"bank": ["a"], "telco": ["c"]}
    fed = make_fed(columns=columns)
    with pytest.raises(DataError, match="5 soft labels for 240 training rows"):
        network(fed, server=ServerTop(["a", "b"], targets=np.ones((5, 2)))).fit(segments(fed))


def test_images_train_beside_tables():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    images = rng.integers(0, 60, (120, 1, 8, 8), dtype=np.uint8)
    images[y == 1, :, 2:6, 2:6] += 150
    clinic = Table(np.arange(120), {"age": rng.normal(size=120), "ill": y}, label="ill")
    scans = Table(np.arange(120), blocks={"scan": images})
    fed = Federation(Party("bank", clinic), Party("scans", scans), strict=True)
    for site in fed.engine.sites.values():
        site.alignments["train"] = Alignment(np.arange(120), np.arange(0))
    fed.note_alignment(AlignmentCounts(120, {"bank": 0, "scans": 0}))
    for conv in CONVOLUTIONS:
        config = replace(QUICK, conv=conv, epochs=4, settings=Settings(30, OptimizerSpec(lr=1e-2)))
        model = network(fed, config).fit(segments(fed))
        assert model.history[-1]["loss"] < 0.7 * model.history[0]["loss"]


@pytest.mark.slow
def test_bf16_still_learns(make_fed):
    fed = make_fed()
    settings = Settings(32, OptimizerSpec(lr=1e-2), precision="bf16")
    model = network(fed, replace(QUICK, epochs=8, settings=settings)).fit(segments(fed))
    assert model.evaluate(fed, segments(fed))["accuracy"] > 0.8


# ------------------------------------------------------------------ stopping and going on


def test_early_stopping_keeps_the_best_epoch(make_fed, make_frame):
    frame = make_frame(120)
    frame["y"] = np.random.default_rng(1).choice(["no", "yes"], len(frame))  # nothing to learn
    fed = make_fed(frame)
    config = replace(QUICK, bottom=(64,), top=(64,), epochs=200, validation=0.3, patience=5,
                     settings=Settings(16, OptimizerSpec(lr=1e-2)))  # fmt: skip
    model = network(fed, config).fit(segments(fed))
    losses = [entry["val_calibrated_loss"] for entry in model.history]
    assert len(losses) == model.best_epoch + 5 < 200
    assert model.best_epoch == int(np.argmin(losses)) + 1
    shorter = make_fed(frame)
    until_best = network(shorter, replace(config, epochs=model.best_epoch)).fit(segments(shorter))
    assert torch.equal(weights(fed, model), weights(shorter, until_best))


def test_a_loss_that_is_no_number_is_never_the_best(make_fed, monkeypatch):
    told, real = iter([np.nan, 0.5, np.nan, 0.4, 0.6]), TopWorker._losses
    monkeypatch.setattr(TopWorker, "_losses", lambda *given: real(*given) * 0 + loss)
    fed = make_fed()
    config = replace(QUICK, epochs=5, validation=0.2, patience=None)
    loss = 0.0

    def next_loss(*given: object) -> None:
        nonlocal loss
        loss = next(told, 0.0)

    next_loss()
    model = network(fed, config).fit(segments(fed), progress=next_loss)
    assert model.best_epoch == 4


class Killed(Exception):
    """Stands for a process that is ended between two epochs."""


def test_a_resumed_training_equals_an_undisturbed_one(make_fed, tmp_path):
    config = replace(QUICK, epochs=6, validation=0.2)
    whole = make_fed()
    undisturbed = network(whole, config).fit(segments(whole))

    def kill_at_4(stage: str, done: int, total: int, scores: dict[str, float]) -> None:
        if done == 4:
            raise Killed

    fed = make_fed()
    with pytest.raises(Killed):
        network(fed, config).fit(segments(fed), checkpoint=tmp_path, progress=kill_at_4)
    fresh = make_fed()
    resumed = network(fresh, config).fit(segments(fresh), checkpoint=tmp_path, resume=True)
    assert torch.equal(weights(fresh, resumed), weights(whole, undisturbed))
    assert resumed.history == undisturbed.history
    assert resumed.best_epoch == undisturbed.best_epoch
    assert not list(tmp_path.rglob("*.part"))


def test_a_foreign_checkpoint_is_refused(make_fed, tmp_path):
    fed = make_fed()
    network(fed).fit(segments(fed), checkpoint=tmp_path)
    other = make_fed()
    with pytest.raises(ResumeError, match="other settings"):
        network(other, replace(QUICK, embedding=5)).fit(
            segments(other), checkpoint=tmp_path, resume=True
        )
    (tmp_path / "telco" / f"epoch-{QUICK.epochs}.fmw").write_bytes(b"FMW\x01broken")
    again = make_fed()
    with pytest.raises(DataError, match=r"'telco'.*damaged"):
        network(again).fit(segments(again), checkpoint=tmp_path, resume=True)


# ------------------------------------------------------------------ designed paths


def test_rows_without_a_label_are_left_out_of_training(make_fed, make_frame):
    frame = make_frame()
    frame["y"] = frame["y"].astype(object)
    frame.loc[frame.index >= 150, "y"] = None
    fed = make_fed(frame)
    model = network(fed).fit(segments(fed))
    full = make_fed(frame[:150])
    shorter = network(full).fit(segments(full))
    assert model.history[0]["loss"] == pytest.approx(shorter.history[0]["loss"], abs=0.2)
    order = next(e for e in fed.ledger if e.call == "TopWorker.set_order" and e.receiver == "bank")
    assert order.shape == "150"
    assert model.evaluate(fed, segments(fed))["accuracy"] > 0  # labelled rows only


@pytest.mark.parametrize(
    ("classes", "aligned", "message"),
    [
        (["no"] * 240, 240, r"party 'bank', column 'y'.*one class.*'no'"),
        ([2.5] * 239 + [None], 240, r"party 'bank', column 'y'.*one value only.*2\.5.*Mend"),
        (["no", "yes", *[None] * 238], 1, "rows to train on"),
    ],
)
def test_too_few_classes_or_labels_are_named(make_fed, make_frame, classes, aligned, message):
    fed = make_fed(make_frame().assign(y=pd.Series(classes, dtype=object)), aligned=aligned)
    with pytest.raises(DataError, match=message):
        network(fed).fit(segments(fed))


def test_of_few_rows_none_are_held_out(make_fed, make_frame):
    frame = make_frame()
    frame.loc[:1, "y"] = ["no", "yes"]
    fed = make_fed(frame, aligned=12)
    model = network(fed, replace(QUICK, validation=0.9)).fit(segments(fed))
    assert "val_log_loss" not in model.history[0]


def test_a_training_that_diverges_says_so(make_fed):
    fed = make_fed()
    wild = replace(QUICK, settings=replace(QUICK.settings, optimizer=OptimizerSpec(lr=1e30)))
    with (
        pytest.warns(FedmendWarning, match=r"the loss of epoch 1 is nan.*smaller lr than 1e\+30"),
        pytest.raises(DataError, match=r"party 'bank': the training has diverged.*smaller lr"),
    ):
        network(fed, wild).fit(segments(fed))
    alone = SplitNetwork(fed, parties=["bank"], label_party="bank", config=wild)
    with pytest.warns(FedmendWarning, match="diverged") as told:
        alone.fit([["all", 240]])
    assert len(told) == 1


def test_all_wrong_settings_are_told_together():
    with pytest.raises(ConfigError) as caught:
        SplitConfig(epochs=0, validation=1.5, patience=0, bottom=(0,),
                    embedding=0)  # fmt: skip
    assert len(caught.value.problems) == 5
    with pytest.raises(ConfigError) as caught:
        Settings(0, precision="f32")
    assert len(caught.value.problems) == 2


def test_what_cannot_be_trained_says_what_to_do(make_fed):
    with pytest.raises(AlignmentError, match=r"fm\.align"):
        network(make_fed(align=False)).fit([["aligned", 240]])
    fed = make_fed()
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device='auto'"):
            network(make_fed(device="cuda")).fit(segments(fed))
