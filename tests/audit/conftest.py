"""Attack contexts without a training: a real federation, and a model with classes and no more."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedmend.audit import Audit
from fedmend.audit.context import Context
from fedmend.audit.learner import bootstrap


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Intervals rest on 50 bootstrap draws: how wide they are is asked of the bootstrap alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bootstrap.__kwdefaults__, "draws", 50)
        for module in ("context", "labels_from_bottom"):
            patch.setattr(f"fedmend.audit.{module}.BOOTSTRAP_DRAWS", 50)
        yield


@pytest.fixture
def make_context(make_fed, make_frame):
    def context_of(n: int = 400, task: str = "binary", **budget) -> Context:
        frame = make_frame(n, task=task)
        fed = make_fed(frame)
        model = SimpleNamespace(learnt_from=lambda _: ["bank"], classes_=np.unique(frame["y"]))
        return Context(fed, model, Audit(**budget))

    return context_of
