"""What a plan makes of its methods: without and with each mend, on whose labels."""

from __future__ import annotations

import pytest

from fedmend.flow import Method, Plan
from fedmend.flow.completing import Completing
from fedmend.flow.correcting import Correcting

METHODS = [
    Method("local", "Local"),
    Method("vfl", "VFL", {"label_party": "telco", "epochs": 2}),
    Method("majority", "MJ"),
]


def plan(**stages) -> Plan:
    return Plan("t", list, METHODS, **stages)


def shown(of: Plan) -> dict[str, str | None]:
    return {each.title: each.params.get("label_party") for each in of.trainings}


def test_corrected_labels_are_at_one_party_whichever_a_method_names():
    """The labels as they were stay with whom the method asks, to compare."""
    both = plan(correct=Correcting("bank", also_uncorrected=True))
    assert shown(both) == {
        "Local": "bank",
        "Local + corrected labels": "bank",
        "VFL": "telco",
        "VFL + corrected labels": "bank",
        "MJ": None,
    }
    assert all(each.params.get("epochs") == 2 for each in both.trainings if each.name == "vfl")
    corrected = plan(correct=Correcting("bank"))
    assert shown(corrected) == {
        "Local + corrected labels": "bank",
        "VFL + corrected labels": "bank",
        "MJ": None,
    }


@pytest.mark.parametrize("also", [True, False])
def test_completed_rows_are_for_methods_that_look_at_others(also):
    titles = list(shown(plan(complete=Completing(also_unmended=also))))
    unmended = ["VFL", "MJ"] if also else []
    completed = ["VFL + completed rows", "MJ + completed rows"]
    assert sorted(titles) == sorted(["Local", *unmended, *completed])


def test_nothing_is_trained_where_that_is_left_out():
    assert plan(leave_out=["train"]).trainings == []
