"""What a plan makes of its methods: without and with each mend, on whose labels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedmend.flow import Plan, plan_of
from fedmend.flow.config import Config
from fedmend.flow.mending import completion_params
from fedmend.methods.costs import Facts
from fedmend.methods.registry import estimate

FILE = {
    "party": [
        {"name": "bank", "data": "bank.csv", "label": "y"},
        {"name": "telco", "data": "telco.csv", "label": "y"},
    ],
    "method": [
        {"name": "local"},
        {"name": "vfl", "label_party": "telco", "epochs": 2},
        {"name": "majority"},
    ],
}


def plan(**tables) -> Plan:
    return plan_of(Config.model_validate(FILE | tables))


def shown(of: Plan) -> dict[str, str | None]:
    return {each.title: each.params.get("label_party") for each in of.trainings}


def test_corrected_labels_are_at_one_party_whichever_a_method_names():
    """The labels as they were stay with whom the method asks, to compare."""
    both = plan(correct={"to": "bank", "also_uncorrected": True})
    assert shown(both) == {
        "Local": "bank",
        "Local + corrected labels": "bank",
        "VFL": "telco",
        "VFL + corrected labels": "bank",
        "majority vote": None,
    }
    assert all(each.params.get("epochs") == 2 for each in both.trainings if each.name == "vfl")
    corrected = plan(correct={"to": "bank"})
    assert shown(corrected) == {
        "Local + corrected labels": "bank",
        "VFL + corrected labels": "bank",
        "majority vote": None,
    }


@pytest.mark.parametrize("also", [True, False])
def test_completed_rows_are_for_methods_that_look_at_others(also):
    titles = list(shown(plan(complete={"also_unmended": also})))
    unmended = ["VFL", "majority vote"] if also else []
    completed = ["VFL + completed rows", "majority vote + completed rows"]
    assert sorted(titles) == sorted(["Local", *unmended, *completed])


@pytest.mark.parametrize("also", [True, False])
def test_trees_take_completed_cells_for_missing_ones_and_grow_once(also):
    file = {"complete": {"also_unmended": also}, "method": [{"name": "boosting"}]}
    (trees,) = plan(**file).trainings
    assert not trees.completed and trees.title == "SecureBoost"


def test_nothing_is_trained_where_that_is_left_out():
    assert plan(run={"leave_out": ["train"]}).trainings == []


@pytest.mark.parametrize(
    ("labellers", "params", "source"),
    [
        (["bank"], {}, "bank"),
        (["bank"], {"source": "telco"}, "telco"),
        (["bank"], {"direction": "both"}, None),
        (["bank", "telco"], {}, None),  # either would do: the method decides
        (["bank", "registry"], {}, "bank"),  # whoever has labels only has nothing to complete by
        (["archive"], {}, None),  # all of its rows are known to all
    ],
)
def test_rows_of_the_party_that_labels_are_completed(labellers, params, source):
    columns = {"bank": 3, "telco": 2, "registry": 0, "archive": 4}
    fed = SimpleNamespace(
        label_parties=labellers,
        roster={name: {"features": count} for name, count in columns.items()},
        alignment=SimpleNamespace(unaligned={"bank": 9, "telco": 9, "registry": 9, "archive": 0}),
    )
    assert completion_params(params, fed).get("source") == source


SIZES = Facts({"bank": 600, "telco": 500}, {"bank": 7, "telco": 7}, ("bank", "telco"), 200)


def test_what_a_file_takes_is_that_of_all_its_parts():
    """Seeds, methods with their own settings, and what comes before them."""
    once = plan().costs(SIZES)
    assert list(once) == ["start and report", "alignment", "Local", "VFL", "majority vote"]
    of_telco = replace(SIZES, labellers=("telco",))
    assert once["VFL"] == estimate("vfl", of_telco, {"epochs": 2})
    assert once["VFL"].seconds < 0.5 * estimate("vfl", of_telco).seconds
    often = plan(run={"seeds": [1, 2, 3]}).costs(SIZES)
    assert often["VFL"].seconds == pytest.approx(3 * once["VFL"].seconds)
    assert often["alignment"] == once["alignment"]
    mended = plan(complete={}, correct={"name": "dawid-skene", "to": "bank"}).costs(SIZES)
    assert list(mended)[2:4] == ["Dawid–Skene", "FedPSG-PUM"]
    # Labels are inferred, and no network learns them; completed rows are more rows.
    assert mended["Dawid–Skene"].seconds < 0.7 * estimate("dawid-skene", SIZES).seconds
    assert mended["VFL + corrected labels + completed rows"].bytes >= once["VFL"].bytes
    joined = plan(complete={}, correct={"to": "bank"}).costs(SIZES, joined=400)
    assert joined["majority vote"] == mended["majority vote"]
    known = Facts({"bank": 600, "telco": 500}, {"bank": 7, "telco": 7}, ("bank",), 400)
    assert joined["FedPSG-PUM"] == estimate("fedpsg-pum", known)
    vfl = plan().methods[1].params | {"label_party": "bank"}
    assert joined["VFL + corrected labels"] == estimate("vfl", known, vfl)
    few = plan(correct={"among": "labellers"}).costs(replace(SIZES, aligned=9000), among=100)
    assert few["InC"] == estimate("inc", replace(SIZES, aligned=100))


def test_what_nobody_measured_is_not_foretold():
    found = plan(method=[{"name": "sfhtl"}, {"name": "vfl"}]).costs(SIZES)
    assert found["SFHTL"] is None and found["VFL"] is not None


def test_a_choice_among_methods_is_foretold_with_what_the_file_says_of_it():
    parts = [{"name": "auto", "label_party": "bank", **more} for more in ({}, {"folds": 2})]
    usual, short = (plan(method=[each]).costs(SIZES)["Auto"].seconds for each in parts)
    assert short < 0.6 * usual
    one = {"name": "auto", "label_party": "bank", "candidates": ["boosting"]}
    dealer, bfv = (
        plan(method=[one | {"mode": mode}]).costs(SIZES)["Auto"] for mode in ("dealer", "bfv")
    )
    assert bfv.bytes > 50 * dealer.bytes
    completed = plan(method=parts[:1], complete={}).costs(SIZES)
    assert completed["Auto + completed rows"].seconds > 0


@pytest.mark.parametrize(
    ("task", "asked"),
    [("multiclass", {"risa"}), ("count", {"local-vfl"}), (None, {"risa", "local-vfl"})],
)
def test_parties_are_asked_to_take_part_in_what_may_be_tried(task, asked):
    """Whether rows are missing is not known before a run; what the label is may stand in a file."""
    parties = [{**FILE["party"][0], "task": task}, {"name": "telco", "data": "telco.csv"}]
    named = plan(party=parties, method=[{"name": "auto"}]).named_methods()
    assert {*named} == {"auto", "local", "local-trees", "vfl", "boosting", *asked}
