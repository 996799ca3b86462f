"""One thread for what is small: handing out tiny products costs far more than it saves.

numpy's threads wait for work in a busy loop, and torch's get in each other's way: on two cores
`Auto` on 600 rows took 1.7 times the processor time, beside other work two to five times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from threadpoolctl import threadpool_limits

from fedmend.federation import Federation

SMALL_ROWS = 50_000
Fit = TypeVar("Fit", bound=Callable[..., Any])


@contextmanager
def few_threads(fed: Federation) -> Iterator[None]:
    """One thread where all tables are small, but for images: a convolution is no tiny product.

    Whoever sets OMP_NUM_THREADS has decided otherwise.
    """
    tables = fed.roster.values()
    small = all(each["rows"] <= SMALL_ROWS and not each["blocks"] for each in tables)
    if not small or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


def on_few_threads(fit: Fit) -> Fit:
    """`fit(self, fed, …)` of an estimator, on one thread where tables are small."""

    @wraps(fit)
    def fitted(model: Any, fed: Any, *given: Any, **how: Any) -> Any:
        if not isinstance(fed, Federation):  # it says so itself
            return fit(model, fed, *given, **how)
        model.require_types()  # wrong parameters are told before any party is asked for its rows
        model.check_params()
        with few_threads(fed):
            return fit(model, fed, *given, **how)

    return cast("Fit", fitted)
