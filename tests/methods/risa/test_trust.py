"""How far sources are trusted: temperatures and discounts, powers of a pool, and when the label
party stands alone."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.network import JOINT, Objective
from fedmend.methods.risa.trust import COLUMNS, Calibration, fit_pool, fit_sources, loss_and_slope
from fedmend.split.labels import label_loss


@pytest.fixture
def judged():
    """A good source, one that is too sure, and one that knows nothing but is sure of it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    clear = torch.tensor(rng.normal(size=(400, 3)) + 2.5 * np.eye(3)[y])
    sure = torch.tensor(4 * (rng.normal(size=(400, 3)) + np.eye(3)[y]))
    noise = torch.tensor(4 * rng.normal(size=(400, 3)))
    return {"bank": clear, "telco": sure, JOINT: noise}, torch.from_numpy(y)


def test_calibration_cools_the_overconfident_and_distrusts_noise(judged):
    outputs, y = judged
    how = Objective(fusion="dempster", activation="exp")
    found = fit_sources(how, outputs, y, anchor="bank")
    raw = ev.loss(Calibration().fuse(how, "aligned", outputs), y).mean()
    made = Calibration({"aligned": found})
    fitted = ev.loss(made.fuse(how, "aligned", outputs), y).mean()
    alone = ev.loss(how.opinion(outputs["bank"]), y).mean()
    assert float(fitted) < float(raw)
    assert float(fitted) < float(alone)
    assert found.temperature["telco"] > 1.2
    again = Calibration.from_wire(made.to_wire())
    assert again == made


def test_few_rows_fit_one_temperature_for_all(judged):
    outputs, y = judged
    some = {"bank": outputs["bank"][:60], "telco": outputs["telco"][:60]}
    found = fit_sources(Objective(fusion="dempster", activation="exp"), some, y[:60], anchor="bank")
    used = [name for name, trust in found.trust.items() if trust > 0]
    assert len({found.temperature[name] for name in used}) == 1
    assert {round(found.trust[name], 6) for name in used} == {round(1 / (1 + np.exp(-3.0)), 6)}
    assert set(found.losses) == {"all", "bank"}


@pytest.mark.parametrize(("good", "heard"), [(True, True), (False, False)])
def test_of_few_rows_sources_alike_are_all_heard_or_none_but_the_label_party(good, heard):
    """Two heads that are right on their own account; a joint one that is no better than either."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 2100)
    clear = [torch.tensor(rng.normal(size=(2100, 3)) + 1.5 * np.eye(3)[y]) for _ in range(3)]
    telco = clear[1] if good else torch.tensor(6 * rng.normal(size=(2100, 3)))
    outputs, targets = {"bank": clear[0], "telco": telco, JOINT: clear[2]}, torch.from_numpy(y)
    if not good:
        outputs[JOINT] = telco
    how = Objective(fusion="dempster", activation="exp")
    few = {name: values[:100] for name, values in outputs.items()}
    found = fit_sources(how, few, targets[:100], anchor="bank", alike=True)
    assert set(found.losses) == {"all", "bank"}
    assert [name for name, trust in found.trust.items() if trust > 0] == (
        ["bank", "telco", JOINT] if heard else ["bank"]
    )
    assert len({found.temperature[name] for name in found.trust if found.trust[name]}) == 1
    # Of sources that may differ the joint head stands for all.
    other = fit_sources(how, few, targets[:100], anchor="bank")
    assert set(other.losses) == {JOINT, "bank"}
    if good:
        rest = {name: values[100:] for name, values in outputs.items()}
        right = [
            (
                ev.probability(Calibration({"aligned": each}).fuse(how, "aligned", rest)).argmax(1)
                == targets[100:]
            )
            .float()
            .mean()
            for each in (found, other)
        ]
        assert right[0] > right[1] + 0.05


def test_a_temperature_draws_towards_what_is_usual():
    """Of a class nine rows in ten have, an overconfident source must not be cooled to evens."""
    rng = np.random.default_rng(1)
    y = torch.from_numpy((rng.random(600) < 0.1).astype(int))
    noise = rng.normal(size=600) * 3
    logits = torch.from_numpy(np.stack([2.2 + noise, -noise], 1))
    how = Objective(fusion="dempster", activation="exp")
    found = fit_sources(how, {"bank": logits}, y)
    p = ev.probability(Calibration({"a": found}).fuse(how, "a", {"bank": logits}))[:, 1]
    assert found.temperature["bank"] > 2
    assert float(p.mean()) < 0.3


# ---------------------------------------------------------------------------------- pools

HOW = Objective(fusion="pool", activation="exp")
TELCO = "telco" + COLUMNS
HELD = {"bank": 1.0, TELCO: 1.0}


def pooled(rows: int, helpful: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A bank that is mostly right, and columns of a telco that are sure: rightly or wrongly."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    bank = np.where(np.eye(2)[y] == 1, 1.0, -1.0) + rng.normal(size=(rows, 2))
    said = y if helpful else 1 - y
    telco = np.where(np.eye(2)[said] == 1, 3.0, 0.0) + 0.1 * rng.normal(size=(rows, 2))
    return {"bank": torch.tensor(bank).float(), TELCO: torch.tensor(telco).float()}, torch.tensor(y)


@pytest.mark.parametrize("rows", [8, 16])
def test_who_does_harm_is_not_heard(rows):
    outputs, y = pooled(rows, helpful=False)
    found = fit_pool(HOW, outputs, y, held=HELD, anchor="bank")
    assert found.losses["all"] > found.losses["bank"]
    assert found.trust == {"bank": 1.0, TELCO: 0.0}
    assert not any(found.bias)
    # The pool then says what the bank says, row by row.
    fused = Calibration({"aligned": found}).fuse(HOW, "aligned", outputs)
    alone = Calibration().fuse(HOW, "aligned", {"bank": outputs["bank"]})
    torch.testing.assert_close(
        fused.belief + fused.uncertainty / 2, alone.belief + alone.uncertainty / 2
    )


def test_harm_within_the_error_of_the_mean_shuts_nobody_out(whole_training):
    """Few rows tell little: columns that say next to nothing look harmful every other time."""
    heard = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, 30)
        bank = np.where(np.eye(2)[y] == 1, 1.0, -1.0) + rng.normal(size=(30, 2))
        outputs = {"bank": torch.tensor(bank).float()}
        outputs[TELCO] = torch.tensor(0.8 * rng.normal(size=(30, 2))).float()
        found = fit_pool(HOW, outputs, torch.tensor(y), held=HELD, anchor="bank")
        if found.losses["all"] > found.losses["bank"]:
            heard.append(found.trust[TELCO] > 0)
    assert len(heard) > 4
    assert np.mean(heard) > 0.7


def test_no_source_is_taken_at_its_opposite():
    """Telco's columns are wrong of every row: the likeliest power would be below zero."""
    outputs, y = pooled(400, helpful=False)
    found = fit_pool(HOW, outputs, y, held=HELD)
    assert found.trust[TELCO] == 0.0 < found.trust["bank"]


@pytest.mark.parametrize("likely", [False, True])
def test_the_slope_of_a_loss_is_the_one_that_is_traced(likely):
    rng = np.random.default_rng(3)
    scores = torch.tensor(3 * rng.normal(size=(50, 3)), requires_grad=True)
    said = rng.dirichlet(np.ones(3), 50) if likely else rng.integers(0, 3, 50)
    traced = label_loss(scores, torch.tensor(said)).sum()
    traced.backward()
    lost, slope = loss_and_slope(scores.detach().numpy(), said)
    assert scores.grad is not None
    assert lost == pytest.approx(float(traced.detach()), rel=1e-12)
    np.testing.assert_allclose(slope, scores.grad.numpy(), atol=1e-12)


def test_powers_are_those_of_a_penalised_likelihood():
    """Against scipy: log p adds up by powers held at 1, with a constant held at 0."""
    outputs, y = pooled(60, helpful=True)
    found = fit_pool(HOW, outputs, y, held=HELD)
    evidence = np.exp(outputs["bank"].numpy()) + 1
    scores = outputs[TELCO].numpy()
    logs = np.stack(
        [
            np.log(evidence / evidence.sum(1, keepdims=True)),
            scores - np.logaddexp.reduce(scores, axis=1, keepdims=True),
        ]
    )

    def lost(theta: np.ndarray) -> float:
        total = np.tensordot(theta[:2], logs, 1) + theta[2:]
        p = total - np.logaddexp.reduce(total, axis=1, keepdims=True)
        held = (((theta[:2] - 1) / 0.25) ** 2).sum() + (theta[2:] ** 2).sum()
        return float(-p[np.arange(60), y.numpy()].sum() + 0.5 * held)

    best = minimize(lost, np.array([1.0, 1.0, 0.0, 0.0])).x
    np.testing.assert_allclose([found.trust["bank"], found.trust[TELCO]], best[:2], atol=5e-3)
