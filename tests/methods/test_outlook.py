"""What a model says of rows, as a table: classes as people wrote them."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.methods.outlook import frame_of

OUTPUTS = np.array([[0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("classes", "names", "predicted"),
    [
        ([0.0, 1.0], ["p(0)", "p(1)"], [0, 1]),
        ([0.5, 1.0], ["p(0.5)", "p(1)"], [0.5, 1]),
        (["no", "yes"], ["p(no)", "p(yes)"], ["no", "yes"]),
        ([False, True], ["p(False)", "p(True)"], [False, True]),
    ],
)
def test_classes_are_shown_as_they_were_written(
    classes: list[object], names: list[str], predicted: list[object]
) -> None:
    table = frame_of(classes, OUTPUTS, np.array([0.5, 0.7]), {"bank": np.ones(2)})
    assert list(table) == ["prediction", *names, "uncertainty", "share(bank)"]
    assert table["prediction"].tolist() == predicted
    assert table[names].to_numpy().tolist() == OUTPUTS.tolist()


def test_numbers_have_no_probabilities() -> None:
    table = frame_of(None, np.array([3.5, 4.0]), None, {})
    assert list(table) == ["prediction"] and table["prediction"].tolist() == [3.5, 4.0]
