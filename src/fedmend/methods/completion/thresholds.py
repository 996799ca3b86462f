"""Where strong columns end and weak ones begin: the threshold tau of FedPSG-PUM's Process I."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

__all__ = ["critical_rho", "cv_threshold"]


def critical_rho(rho: np.ndarray, rows: int, level: float) -> float:
    """The |rho| that separates significant from other pairs, after Holm's correction.

    Holm goes through the pairs from the largest |rho| down and compares the p-value of the i-th
    with level / (pairs - i); the critical value is that of the first that fails.
    """
    from scipy.stats import t as student

    sizes = np.sort(np.abs(rho[~np.isnan(rho)]))[::-1]
    freedom = rows - 2
    if not len(sizes) or freedom < 1:
        return 1.0
    quantiles = student.isf(level / (2 * np.arange(len(sizes), 0, -1)), freedom)
    critical = quantiles / np.sqrt(freedom + quantiles**2)
    failing = np.flatnonzero(sizes < critical)
    return float(critical[failing[0]] if len(failing) else critical[-1])


def cv_threshold(strengths: pd.Series, errors: Mapping[str, Mapping[str, float]]) -> float:
    """The tau with the least summed error: predicted above it, the mean or mode below.

    Errors are in units of what the mean or the mode does wrong, so that columns are comparable.
    """
    gains = {}
    for name in strengths.index:
        found = dict(errors.get(name, {}))
        mean = found.pop("mean", 0.0)
        gains[name] = 1.0 - min(found.values()) / mean if found and mean > 0 else 0.0
    order = strengths.dropna().sort_values(ascending=False)
    sums = np.cumsum([gains[name] for name in order.index])
    if not len(sums) or sums.max() <= 0:
        return 1.0
    last = int(sums.argmax())
    below = float(order.iloc[last + 1]) if last + 1 < len(order) else -1.0
    # Halfway to the next one, so that rounding decides nothing.
    return (float(order.iloc[last]) + below) / 2
