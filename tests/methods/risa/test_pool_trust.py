"""Powers of a pool: who is heard, and when the label party stands alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fedmend.methods.risa.top import Objective
from fedmend.methods.risa.trust import COLUMNS, Calibration, fit_pool

HOW = Objective(fusion="pool", activation="exp")
TELCO = "telco" + COLUMNS
HELD = {"bank": 1.0, TELCO: 1.0}


def judged(rows: int, helpful: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A bank that is mostly right, and columns of a telco that are sure: rightly or wrongly."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    bank = np.where(np.eye(2)[y] == 1, 1.0, -1.0) + rng.normal(size=(rows, 2))
    said = y if helpful else 1 - y
    telco = np.where(np.eye(2)[said] == 1, 3.0, 0.0) + 0.1 * rng.normal(size=(rows, 2))
    return {"bank": torch.tensor(bank).float(), TELCO: torch.tensor(telco).float()}, torch.tensor(y)


@pytest.mark.parametrize("rows", [8, 16])
def test_who_does_harm_is_not_heard(rows: int) -> None:
    outputs, y = judged(rows, helpful=False)
    found = fit_pool(HOW, outputs, y, held=HELD, anchor="bank")
    assert found.losses["all"] > found.losses["bank"]
    assert found.trust == {"bank": 1.0, TELCO: 0.0}
    assert not any(found.bias)
    # The pool then says what the bank says, row by row.
    calibrated = Calibration(trust={"aligned": found.trust}, bias={"aligned": found.bias})
    fused = calibrated.fuse(HOW, "aligned", outputs)
    alone = Calibration().fuse(HOW, "aligned", {"bank": outputs["bank"]})
    torch.testing.assert_close(
        fused.belief + fused.uncertainty / 2, alone.belief + alone.uncertainty / 2
    )


def test_harm_within_the_error_of_the_mean_shuts_nobody_out() -> None:
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


def test_without_an_anchor_the_harm_is_only_dampened() -> None:
    outputs, y = judged(16, helpful=False)
    found = fit_pool(HOW, outputs, y, held=HELD)
    assert found.losses == {}
    assert 0 < found.trust[TELCO] < 1


def test_who_helps_is_heard() -> None:
    outputs, y = judged(60, helpful=True)
    found = fit_pool(HOW, outputs, y, held=HELD, anchor="bank")
    assert found.losses["all"] < found.losses["bank"]
    assert found.trust[TELCO] > 0.5


def test_powers_are_those_of_a_penalised_likelihood() -> None:
    """Against scipy: log p adds up by powers held at 1, with a constant held at 0."""
    outputs, y = judged(60, helpful=True)
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
