"""`method = "risa"` from a file to a report."""

from __future__ import annotations

import json

import pytest

from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.config import load_config


def test_a_run_with_risa(workshop, pages) -> None:
    workshop.write(method='name = "risa"\nepochs = 2\nthreshold = 0.5')
    execute(plan_of(load_config(workshop.config)), workshop.run)
    stored = json.loads((workshop.run / "metrics.json").read_text(encoding="utf-8"))
    (method,) = stored["methods"]
    assert method["title"] == "RISA"
    assert set(method["uncertainty"]["carried"]) == {"bank", "telco"}
    assert abs(sum(method["uncertainty"]["carried"].values()) - 1) < 1e-3
    page = (workshop.run / "report.html").read_text(encoding="utf-8")
    assert "How sure, and do unsure rows err more" in page


def test_wrong_parameters_are_found_before_anything_starts(workshop) -> None:
    workshop.write(method='name = "risa"\nfusion = "vote"\nthreshold = 2.0\nmembers = "x"')
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    assert all(word in str(caught.value) for word in ("fusion", "threshold", "members"))
