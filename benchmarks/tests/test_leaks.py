"""`fedmend bench leaks`: a line for each setting, of which the first shows what is to be shown."""

from __future__ import annotations

import pytest

from fedmend_bench.foundations import leaks
from fedmend_bench.harness import available


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


@pytest.mark.parametrize("part", ["width", "labels"])
def test_a_line_for_each_width_and_for_each_way_to_know_labels(part: str) -> None:
    found = leaks.run(quick=True, part=part, settings=["VFL"], rows=240, epochs=2, seeds=1)
    assert {line["method"] for line in found.rows} == {"VFL"}
    if part == "width":
        narrow, wider = found.rows
        assert (narrow["width"], wider["width"]) == (2, 4)
        assert narrow["mean, coordinator"] < wider["mean, coordinator"]
    else:
        ways = [(line["epsilon"], line["loss"]) for line in found.rows]
        assert ways == [(None, "plain"), (2.0, "plain"), (2.0, "corrected")]
        assert all(0.5 < line["auc"] <= 1 for line in found.rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:two labels of a row:fedmend.errors.FedmendWarning")  # ε = 1
def test_labellers_and_rounds() -> None:
    found = leaks.run(part="others", epochs=4)
    by_method = {(line["method"], line["from"]): line for line in found.rows}
    assert by_method["InC", "sums of votes and evidence, and T"]["score"] > 0.95
    assert by_method["InC", "sums of votes"]["score"] < 0.9
    masked = [source for method, source in by_method if method.endswith("masks")]
    assert masked == ["the common model"]
