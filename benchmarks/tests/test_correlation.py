"""The benchmark of rank correlation, at a size that shows its form and nothing else."""

import numpy as np
import pytest

from fedmend_bench.foundations import correlation
from fedmend_bench.harness import available, run_bench


@pytest.fixture(scope="module")
def result():
    return run_bench("correlation", options={"rows": 600, "columns": 4, "repeats": 1, "cells": 1})


def test_it_is_registered():
    assert available()["correlation"] == correlation.HELP


def test_every_mode_is_exact_and_equal_to_scipy(result):
    measured = [row for row in result.rows if row["what"] != "published"]
    assert {row["what"] for row in measured} == {"numpy", "plain", "dealer", "bfv"}
    assert len(measured) == 3 * 4
    assert all(row["exact"] for row in measured)
    assert all(row["max |rho - scipy|"] <= 1e-12 for row in measured if row["what"] != "numpy")
    assert all(row["MB sent"] > 0 for row in measured if row["what"] != "numpy")


def test_what_is_extrapolated_says_so(result):
    published = [row for row in result.rows if row["what"] == "published"]
    assert published
    assert all("extrapolated from 1 cells" in row["note"] for row in published)
    assert all(row["CPU s, products"] > 0 for row in published)


def test_the_bars(result):
    names = [bar.name for bar in result.bars]
    assert names[0].startswith("max |rho - scipy|")
    assert result.bars[0].holds
    # stated for the full size only
    assert not any("dealer, times" in name for name in names)
    assert result.to_dict()["bench"] == "correlation"


def test_columns_have_ties_and_relations():
    values = correlation.make_columns(500, 6, 0)
    assert len(np.unique(values[:, 0])) < 40
    assert len(np.unique(values[:, 2])) == 500
