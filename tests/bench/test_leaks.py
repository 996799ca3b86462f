"""`fedmend bench leaks`: a line for each setting, of which the first shows what is to be shown."""

from __future__ import annotations

import pytest

from fedmend.bench.foundations import leaks
from fedmend.bench.harness import available


def test_a_line_for_each_setting_with_its_price() -> None:
    settings = ["VFL", "VFL, labels told with ε = 1"]
    found = leaks.run(quick=True, settings=settings, rows=240, epochs=3)
    plain, told = found.rows
    assert [plain["method"], told["method"]] == settings
    assert plain["labels by direction"] > 0.95
    assert told["labels by direction"] < 0.9
    assert plain["columns, coordinator"].endswith(" of 15")
    assert plain["mean, coordinator"] > 0.6 > plain["without, coordinator"]
    assert plain["known"] == 80
    assert 0.5 < plain["model AUC"] <= 1
    (bar,) = found.bars
    assert bar.holds
    assert "leaks" in available()


@pytest.mark.slow
def test_labellers_and_rounds() -> None:
    found = leaks.run(part="others", epochs=4)
    by_method = {(line["method"], line["from"]): line for line in found.rows}
    assert by_method["InC", "sums of votes and evidence, and T"]["score"] > 0.95
    assert by_method["InC", "sums of votes"]["score"] < 0.9
    masked = [source for method, source in by_method if method.endswith("masks")]
    assert masked == ["the common model"]
