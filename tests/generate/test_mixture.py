from __future__ import annotations

import numpy as np
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from fedmend.generate.codecs import Mixture, fit_mixture


def test_log_joint_equals_scipy() -> None:
    mixture = Mixture(np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 1.5]))
    values = np.linspace(-4, 6, 31)
    expected = np.log([0.3, 0.7]) + norm.logpdf(values[:, None], [-1, 2], [0.5, 1.5])
    assert np.allclose(mixture.log_joint(values), expected)


def test_a_known_mixture_is_found() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(-5, 0.5, 3000), rng.normal(4, 1.0, 7000)])
    found = fit_mixture(values, 10)
    heavy = found.weights > 0.05
    assert np.allclose(np.sort(found.means[heavy])[[0, -1]], [-5, 4], atol=0.6)
    left = found.means < -2
    assert abs(found.weights[left].sum() - 0.3) < 0.01


def test_one_gaussian_is_one_mode() -> None:
    found = fit_mixture(np.random.default_rng(1).normal(3, 2, 5000), 10)
    assert len(found.means) == 1
    assert abs(found.means[0] - 3) < 0.1
    assert abs(found.deviations[0] - 2) < 0.1


def test_as_likely_as_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(m, s, 1500) for m, s in [(-6, 1), (0, 0.5), (5, 2)]])
    ours = fit_mixture(values, 3)
    joint = ours.log_joint(values)
    likelihood = np.log(np.exp(joint).sum(1)).mean()
    theirs = GaussianMixture(3, random_state=0).fit(values[:, None]).score(values[:, None])
    assert likelihood > theirs - 0.02


def test_two_values_and_many_rows() -> None:
    found = fit_mixture(np.array([1.0] * 40 + [2.0] * 60), 10)
    assert np.isfinite(found.means).all()
    assert (found.deviations > 0).all()
