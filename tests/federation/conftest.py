"""Small federations with workers whose crossings can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.federation import Federation, Party


@pytest.fixture(scope="module", autouse=True)
def _toys(toy_tables: None) -> None:
    """Tables here have six rows."""


def small_table(offset: float = 0.0, label: bool = False) -> Table:
    columns = {"x": np.arange(6) + offset, "z": [1.0, 2.0, 2.0, 3.0, 9.0, 4.0]}
    if label:
        columns["y"] = [0, 1, 0, 1, 0, 1]
    return Table(np.arange(6), columns, label="y" if label else None)


@pytest.fixture(params=[False, True], ids=["by-reference", "strict"])
def fed(request: pytest.FixtureRequest) -> Federation:
    return Federation(
        Party("bank", small_table(label=True)),
        Party("telco", small_table(10.0), test=small_table(20.0)),
        strict=request.param,
    )
