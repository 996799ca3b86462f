"""Uncertainty is the error rate to expect, also where the partner is absent."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.federation.labels import response_matrix
from fedmend.learn.calibration import calibration_error
from fedmend.learn.metrics import area, expected_error
from fedmend.methods.risa.opinions import pool, probability, weighed
from fedmend.split.parts import part_of
from fedmend.split.scaling import Scaling
from fedmend.split.training import SplitNetwork

CLASSES = np.array(["high", "low", "mid"])


def drawn(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and classes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    p = (1.5 * torch.randn(rows, 3, generator=generator)).softmax(1)
    return p, torch.multinomial(p, 1, generator=generator)[:, 0]


def sharpened(p: torch.Tensor, power: float) -> torch.Tensor:
    return (p.log() * power).softmax(1)


# ---------------------------------------------------------------------------------- fitting


def test_a_temperature_is_found_again_and_nothing_else():
    p, y = drawn(2000, 1)
    found = Scaling.fit(sharpened(p, 3.0), y)
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    assert found.bias == ()  # constants do no better
    new, truth = drawn(4000, 2)
    assert calibration_error(sharpened(new, 3.0).numpy(), truth.numpy()) > 0.12
    assert calibration_error(found.of(sharpened(new, 3.0)).numpy(), truth.numpy()) < 0.03
    assert Scaling.from_wire(found.to_wire()) == found


def test_classes_that_are_too_likely_get_constants():
    p, y = drawn(1500, 3)
    shifted = (p.log() + torch.tensor([1.5, 0.0, 0.0])).softmax(1)
    found = Scaling.fit(shifted, y)
    assert len(found.bias) == 3
    new, truth = drawn(4000, 4)
    scaled = found.of((new.log() + torch.tensor([1.5, 0.0, 0.0])).softmax(1))
    assert calibration_error(scaled.numpy(), truth.numpy()) < 0.03


def test_labels_told_at_random_give_the_scaling_of_true_ones():
    p, y = drawn(4000, 5)
    response = response_matrix(1.5, 3)
    rng = np.random.default_rng(0)
    shares = response.cumsum(1)[y.numpy()]
    reported = (rng.random((4000, 1)) > shares).sum(1)
    told = Scaling.fit(sharpened(p, 3.0), torch.from_numpy(response.T[reported]))
    blind = Scaling.fit(sharpened(p, 3.0), torch.from_numpy(reported))
    assert told.temperature == pytest.approx(3.0, rel=0.25)
    assert blind.temperature > 5  # takes the noise for the model's errors


def test_few_rows_move_it_little():
    p, y = drawn(20, 6)
    assert 0.6 < Scaling.fit(p, y).temperature < 1.7


# ---------------------------------------------------------------------------------- in models


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 8)), columns=list("abcdefgh"))
    signal = frame["a"] + frame["e"] + 0.9 * rng.normal(size=rows)
    return frame.assign(y=CLASSES[np.digitize(signal, [-0.7, 0.7])])


@pytest.fixture(scope="module")
def fed():
    """600 people known to both, 200 to each alone; of the tests 1500 to both and 1500 to one."""
    train, test = people(1000, 1), people(3000, 2)

    def table(frame: pd.DataFrame, rows: np.ndarray, columns: list[str]) -> Table:
        label = "y" if "y" in columns else None
        return Table(rows, frame.loc[rows, columns].reset_index(drop=True), label=label)

    bank, telco = [*"abcd", "y"], [*"efgh"]
    rows = {"bank": (np.r_[0:800], np.arange(3000), bank)}
    rows["telco"] = (np.r_[0:600, 800:1000], np.arange(1500), telco)
    made = fm.Federation(
        *(
            fm.Party(name, table(train, own, columns), test=table(test, new, columns))
            for name, (own, new, columns) in rows.items()
        )
    )
    fm.align(made)
    fm.align(made.on("test"))
    return made


def judged(model: Any, fed: fm.Federation, rows: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and class numbers of test rows."""
    test = fed.on("test")
    site: Any = test.engine.site("bank")
    alignment = site.alignments["test"]
    places = alignment.aligned if rows == "aligned" else alignment.unaligned
    y = site.tables["test"].y.to_numpy()[places]
    return model.predict_proba(test, rows=rows), np.searchsorted(CLASSES, y.astype(str))


@pytest.fixture(scope="module")
def fitted(fed):
    """Each method once."""
    return cache(lambda method: method(seed=2).fit(fed))


LATER = [pytest.param(each, marks=pytest.mark.slow) for each in (fm.LocalVFL, fm.AbsentPartner)]


@pytest.mark.daily("RISA")
@pytest.mark.parametrize("method", [fm.VFL, fm.RISA, *LATER])
def test_one_minus_confidence_is_the_error_rate_for_every_kind_of_row(method, fed, fitted):
    model = fitted(method)
    for rows in ("aligned", "bank"):
        p, y = judged(model, fed, rows)
        wrong = p.argmax(1) != y
        u = expected_error(p)
        assert abs(u.mean() - wrong.mean()) < 0.08  # of 180 held-out rows: two standard errors
        assert calibration_error(p, y) < 0.09
        assert area(u, wrong) > 0.6
    told = model.predict_table(fed.on("test"), rows="bank")
    largest = told[[name for name in told if name.startswith("p(")]].max(axis=1)
    np.testing.assert_allclose(told["uncertainty"], 1 - largest, atol=1e-6)


def test_networks_that_are_too_sure_are_put_right_and_stay_so(fed, tmp_path, monkeypatch):
    def too_long(self: SplitNetwork, epoch: int, session: Any) -> None:
        self.best_epoch = epoch

    monkeypatch.setattr(SplitNetwork, "_judge", too_long)
    model = fm.VFL(seed=1, lr=0.01, epochs=30).fit(fed)
    site: Any = fed.engine.site("bank")
    top = part_of(site, model.network_.model).top
    assert set(top.scaling) == {"aligned", "bank", "telco"}
    assert top.scaling["aligned"].temperature > 1.5
    # of the same rows, but as if one party alone knew them
    assert len({each.temperature for each in top.scaling.values()}) == 3
    scaled, (p, y) = top.scaling, judged(model, fed, "aligned")
    top.scaling = {}
    raw, _ = judged(model, fed, "aligned")
    top.scaling = scaled
    assert calibration_error(p, y) < min(0.08, calibration_error(raw, y) - 0.05)
    model.save(tmp_path / "model")
    again = fm.VFL.load(tmp_path / "model", fed)
    np.testing.assert_array_equal(judged(again, fed, "bank")[0], judged(model, fed, "bank")[0])


def test_the_mass_of_opinions_is_told_beside_the_uncertainty(fed, fitted):
    model = fitted(fm.RISA)
    p, y = judged(model, fed, "aligned")
    u = model.predict_uncertainty(fed.on("test"))
    np.testing.assert_allclose(u, 1 - p.max(1), atol=1e-6)
    mass = model.opinion_mass(fed.on("test"))
    report = model.uncertainty_report(fed.on("test"))
    assert report["auroc"] == pytest.approx(area(u, p.argmax(1) != y), abs=1e-6)
    assert model.evidence_report(fed.on("test"))["mass"] == pytest.approx(mass.mean(), abs=1e-4)


def test_a_toss_up_between_two_of_several_classes_has_little_mass():
    """Why the mass ranks errors badly: beside a class that is out of the question it must be small,
    however undecided the rest (beliefs are not negative)."""
    scores = torch.tensor([[4.0, 4.0, -6.0], [1.5, 0.0, 0.0]])
    pooled = pool([weighed(scores), weighed(scores)], [0.5, 0.5])
    mass, error = pooled.uncertainty[:, 0], expected_error(probability(pooled).numpy())
    assert mass[0] < 0.01 < mass[1]
    assert error[0] == pytest.approx(0.5, abs=1e-3) and error[0] > error[1]
