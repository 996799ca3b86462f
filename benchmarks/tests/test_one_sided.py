"""The benchmark of rows that one party alone knows: what it measures, and on whom."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend.methods import VFL
from fedmend_bench.flow import one_sided


def test_quick_run_has_every_kind_of_row():
    found = one_sided.run(quick=True, methods="VFL")
    assert {(each["known to"], each["absent side"]) for each in found.rows} == {
        ("both", "–"), ("labels only", "fill"), ("labels only", "guess"),
        ("other only", "fill"), ("other only", "guess"),
    }  # fmt: skip
    assert all(each["seeds"] == 2 and 0 <= each["auc"] <= 1 for each in found.rows)
    assert len(found.bars) == 4


def test_promises_are_those_of_vfl():
    assert not [*one_sided._bars("x", [{"known to": "both", "method": "Local"}])]
    with pytest.raises(ConfigError, match="no 'VLF': did you mean 'VFL'"):
        one_sided.run(quick=True, methods="Local,VLF")


def test_fill_is_the_mean_row_and_guess_is_not():
    fed, truth = one_sided.torn("breast-cancer", 300, 0.4, 0)
    model = VFL(epochs=2, seed=0).fit(fed)
    fill, guess = one_sided._scored(model, fed, one_sided.LABELS, truth)
    assert (fill["absent side"], guess["absent side"]) == ("fill", "guess")
    assert fill["log_loss"] != guess["log_loss"] and model.network_.has_imputed
    # all test people are at both parties in one order, so that the same rows are compared
    tables = {name: site.tables["test"] for name, site in fed.engine.sites.items()}
    assert np.array_equal(tables["labels"].ids, tables["other"].ids)
