"""The advice: which tears are seen, what is recommended, and that a file of it is valid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.federation import Federation, Party, Policy
from fedmend.methods.costs import Facts
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import COMPLETIONS, METHODS, estimate, record_of
from fedmend.report.advice import RECIPE_FOR, advise
from fedmend.report.amounts import about, in_bytes, in_time
from fedmend.report.overview import Overview, PartyOverview, overview

COLUMNS = {"continuous": 4}


def party(name, rows, labelled=0, columns=COLUMNS):
    return PartyOverview(
        name, rows, dict(columns), labelled=labelled > 0, labelled_rows=labelled, unaligned=0
    )


def advice_of(parties, aligned, **more):
    return advise(Overview(parties, aligned, None, ["…"], **more))


def names(advice):
    return [method["name"] for method in advice.methods]


def tears(advice):
    return [tear.name for tear in advice.tears]


def test_nothing_torn_needs_nothing_but_training():
    found = advice_of([party("bank", 500, 500), party("telco", 500)], 500)
    assert tears(found) == [] and names(found) == ["vfl", "local"]
    assert found.complete is None and found.correct is None
    assert found.words[-1].startswith("To begin with: VFL, Local; ")


def test_few_people_in_common():
    found = advice_of([party("bank", 1000, 1000), party("telco", 900)], 100)
    assert tears(found) == ["few-shared", "missing-block", "unlabelled-partner"]
    assert found.recipe == "complete-vfl" and names(found) == ["risa", "local-vfl", "local"]
    assert found.complete == {"source": "bank"}
    assert 'recipe = "complete-vfl" (FedPSG-PUM → VFL)' in found.words[3]
    assert "RISA, LocalVFL and Local beside it" in found.words[3]
    assert 'method = "auto"' in found.words[4] and "more)" in found.words[4]
    assert "100 of bank's 1,000 rows are shared" in found.words[0]
    assert "900 rows lack telco's 4 columns" in found.words[1]
    assert "telco has 800 rows that nobody labels" in found.words[2]


def test_parts_of_pictures_are_left_to_risa_for_images_and_not_completed():
    pictures = [party("left", 1000, 1000, {"image": 1}), party("right", 900, columns={"image": 1})]
    found = advice_of(pictures, 100)
    assert tears(found) == ["few-shared", "unlabelled-partner"]
    assert found.recipe is None and found.complete is None
    assert names(found) == ["risa-images", "vfl", "local"]
    assert "RISA for images trains on the other 900 too" in found.words[0]
    assert found.words[-2].startswith("To begin with: RISA for images, VFL, Local; ")
    # A picture at one party only has no like; columns beside pictures can be completed.
    beside = [pictures[0], party("right", 900, columns={"image": 1, "integer": 3})]
    assert "900 rows lack right's 3 columns" in advice_of(beside, 100).words[1]
    assert names(advice_of([pictures[0], party("right", 900)], 100))[0] == "risa"


def test_numbers_are_not_left_to_evidence():
    parties = [party("bank", 1000, 1000), party("telco", 900)]
    found = advise(Overview(parties, 100, {"name": "y", "mean": 3.0, "sd": 1.0}, ["…"]))
    assert found.recipe == "complete-vfl" and names(found) == ["local-vfl", "local"]
    assert tears(found) == ["few-shared", "missing-block"]
    assert not any("RISA" in sentence for sentence in found.words)


@pytest.mark.parametrize(
    ("values", "numeric"),
    [
        ([0.5, 1.5, 2.5, 2.0], True),
        (list(range(40)), True),
        ([0, 1] * 20, False),
        ([str(each) for each in range(90)], False),
    ],
)
def test_a_label_is_taken_as_methods_take_it(values, numeric):
    table = Table(np.arange(len(values)), pd.DataFrame({"y": values, "x": 0.5}), label="y")
    other = Table(np.arange(len(values)), pd.DataFrame({"z": np.arange(len(values)) / 2}))
    found = overview(Federation(Party("bank", table), Party("telco", other), strict=True))
    assert ("mean" in found.label) == numeric
    assert numeric or len(found.label["counts"]) <= 50


def test_too_few_shared_rows_to_complete_from():
    found = advice_of([party("bank", 1000, 1000), party("telco", 900)], 30)
    assert "missing-block" not in tears(found) and found.complete is None
    assert found.recipe is None and names(found)[0] == "risa"
    assert not any("auto" in sentence for sentence in found.words)  # too few to choose by


def test_whoever_has_labels_only_is_not_advised_to_train_alone():
    found = advice_of([party("bank", 1000, 1000, columns={}), party("telco", 900)], 100)
    assert found.recipe == "complete-vfl" and names(found) == ["risa", "local-vfl"]


def test_scarce_labels():
    found = advice_of([party("bank", 500, 60), party("telco", 500)], 500)
    assert tears(found) == ["scarce-labels"] and "ssl-vfl" in names(found)


def test_labellers_who_disagree():
    doctors = [party("a", 400, 400, {}), party("b", 400, 380, {}), party("lab", 400)]
    found = advice_of(doctors, 400, agreement={"lowest": 0.41})
    assert tears(found) == ["disagreement"] and names(found) == ["inc", "majority"]
    assert "kappa of 0.41" in found.words[0]
    agreed = advice_of(doctors, 400, agreement={"lowest": 0.97})
    assert tears(agreed) == [] and names(agreed)[0] == "majority"


def test_labellers_who_disagree_and_few_people_in_common():
    parties = [party("bank", 900, 900), party("agency", 900, 900, {}), party("telco", 700)]
    found = advice_of(parties, 90, agreement={"lowest": 0.5})
    assert found.recipe == "correct-complete-vfl"
    assert found.correct == {"to": "bank"} and found.complete == {"source": "bank"}
    assert {"disagreement", "few-shared", "unlabelled-partner"} <= set(tears(found))
    assert names(found) == ["risa", "local"]
    assert "InC → FedPSG-PUM → VFL" in found.words[-2]
    few = advice_of(parties, 40, agreement={"lowest": 0.5})
    assert few.recipe == "correct-local-vfl" and few.complete is None
    agreed = advice_of(parties, 90, agreement={"lowest": 0.95})
    assert agreed.recipe == "complete-vfl"
    assert agreed.correct == {"name": "majority", "to": "bank", "among": "labellers"}


def test_labels_are_corrected_on_the_rows_that_labellers_share():
    parties = [party("bank", 9000, 9000), party("agency", 9000, 9000, {}), party("telco", 7000)]
    few, many = (
        advice_of(parties, 90, agreement={"lowest": 0.5}, labellers_share=rows).whole
        for rows in (100, 9000)
    )
    facts = Facts({"bank": 9000, "agency": 9000, "telco": 7000}, {"bank": 4}, ("bank",), 9000)
    assert many.seconds - few.seconds == pytest.approx(
        estimate("inc", facts).seconds - estimate("inc", replace(facts, aligned=100)).seconds,
        rel=1.1,
    )
    assert many.bytes > few.bytes


def test_clients():
    clinics = [party(name, 100, 10) for name in ("north", "south", "west")]
    skew = {"notable": ["north"], "parties": {}, "pooled": {}}
    found = advice_of(clinics, None, shape="horizontal", skew=skew)
    assert tears(found) == ["scarce-labels", "skewed-clients"]
    assert names(found) == ["sage", "fixmatch", "fedprox", "fedavg"]
    assert [each.get("warmup") for each in found.methods] == [3, 3, None, None]
    labelled = [party(name, 100, 100) for name in ("north", "south")]
    assert names(advice_of(labelled, None, shape="horizontal")) == ["fedavg"]


@pytest.mark.parametrize(
    ("parties", "aligned"),
    [
        ([party("bank", 100), party("telco", 100)], 50),
        ([party("bank", 100, 100), party("telco", 100)], None),
        ([party("bank", 100, 100), party("telco", 100)], 0),
    ],
)
def test_without_labels_or_shared_rows_there_is_no_advice(parties, aligned):
    found = advice_of(parties, aligned)
    assert (found.tears, found.methods, found.words) == ([], [], [])


def test_one_party_trains_alone():
    found = advice_of([party("solo", 100, 100)], None)
    assert names(found) == ["local"]
    assert found.words == ["To begin with: Local; under 1 s and 30 kB in all."]


def test_everything_that_is_recommended_exists():
    advices = [
        advice_of([party("bank", 1000, 100), party("telco", 900)], 100),
        advice_of([party("a", 9, 9), party("b", 9, 9)], 9),
        advice_of([party("a", 99, 9)], None, shape="horizontal", skew={"notable": ["a"]}),
    ]
    for found in advices:
        assert set(names(found)) <= set(METHODS) & set(RATED)
    assert set(RECIPE_FOR.values()) <= set(RECIPES)
    for each in RECIPE_FOR.values():
        assert all(record_of(stage).shown for stage in RECIPES[each].stages)


# ---------------------------------------------------------------- costs

RATED = {name: each for name, each in (METHODS | COMPLETIONS).items() if each.rate is not None}


def test_costs_grow_with_rows_and_parties():
    few = Facts({"a": 100, "b": 100}, {"a": 3, "b": 3}, ("a",), 50)
    many = Facts({"a": 1000, "b": 1000}, {"a": 3, "b": 3}, ("a",), 500)
    three = Facts({"a": 100, "b": 100, "c": 100}, {"a": 3, "b": 3, "c": 3}, ("a",), 50)
    for method, record in RATED.items():
        assert record.amount(many) >= 10 * record.amount(few)
        assert estimate(method, many).seconds >= estimate(method, few).seconds
        assert estimate(method, three).bytes >= estimate(method, few).bytes
    assert few.completed().shared == 100
    # In rounds models travel, whose size is not that of the tables.
    for method in ("sage", "fedavg", "fedprox", "fixmatch"):
        assert estimate(method, many).bytes == estimate(method, few).bytes
        assert estimate(method, three).bytes == 3 * estimate(method, few).bytes / 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "under 1 s"), (14.6, "10 s"), (87, "90 s"), (200, "3 min"), (9000, "2 h")],
)
def test_time_in_words(seconds, text):
    assert in_time(seconds) == text


def test_an_estimate_is_about_something():
    assert about(14.6) == "about 10 s" and about(0.2) == "under 1 s"


@pytest.mark.parametrize(
    ("size", "text"), [(3000, "3 kB"), (48e6, "50 MB"), (2.2e9, "2 GB"), (5e12, "5 TB")]
)
def test_bytes_in_words(size, text):
    assert in_bytes(size) == text


# ---------------------------------------------------------------- from a federation


def doctors(policy=None, lab_rows=60):
    rng = np.random.default_rng(0)
    truth = rng.choice(["flu", "cold"], 60)
    parties = []
    for number, error in enumerate((0.0, 0.4, 0.4)):
        wrong = rng.random(60) < error
        said = np.where(wrong, np.where(truth == "flu", "cold", "flu"), truth)
        frame = pd.DataFrame({"y": said})
        table = Table(np.arange(60), frame, label="y")
        parties.append(Party(f"dr-{number}", table, policy=policy if number == 1 else None))
    fever = pd.DataFrame({"fever": rng.normal(size=lab_rows)})
    parties.append(Party("lab", Table(np.arange(lab_rows), fever)))
    return Federation(*parties, strict=True)


def test_overview_says_how_far_labellers_agree():
    from fedmend.secure.align import align

    fed = doctors()
    align(fed)
    found = overview(fed)
    assert found.agreement is not None and len(found.agreement["pairs"]) == 3
    assert found.agreement["lowest"] < 0.5
    assert sum(found.labels["dr-1"]["counts"].values()) == 60 and set(found.labels) == {
        "dr-0",
        "dr-1",
        "dr-2",
    }
    text = str(found)
    assert "Label dr-0, y: cold " in text
    assert "How far the labellers agree:" in text and "What would mend it:" in text
    assert "InC corrects the labels" in text
    assert Overview.from_dict(found.to_dict()) == found


def test_labellers_are_compared_on_all_rows_they_share():
    from fedmend.secure.align import align

    fed = doctors(lab_rows=20)
    align(fed)
    assert {pair["rows"] for pair in overview(fed).agreement["pairs"]} == {20}
    align(fed.only("dr-0", "dr-1", "dr-2"))
    found = overview(fed)
    assert found.aligned == 20 and found.labellers_share == 60
    assert {pair["rows"] for pair in found.agreement["pairs"]} == {60}
    assert "dr-0, dr-1 and dr-2, who label, share 60 rows with each other." in str(found)
    assert Overview.from_dict(found.to_dict()) == found


def test_parties_without_columns_are_not_said_to_be_lacked():
    from fedmend.report.tears import what_is_torn

    parties = [party("bank", 90, 90), party("agency", 80, 80, {}), party("telco", 70)]
    torn = what_is_torn(parties, 20, None)
    assert torn[:3] == [
        "70 of bank's 90 rows (78 %) are not known to all: they lack telco's 4 continuous columns.",
        "60 of agency's 80 rows (75 %) are not known to all.",
        "50 of telco's 70 rows (71 %) are not known to all: they lack bank's 4 continuous columns.",
    ]


def test_a_labeller_may_keep_its_agreement_to_itself():
    from fedmend.secure.align import align

    fed = doctors(Policy(refuse={"statistic"}))
    align(fed)
    found = overview(fed)
    assert found.agreement is None
    assert "whether they agree is not known" in str(found)


def test_overview_of_clients_has_their_skew():
    tables = []
    for number, share in enumerate((0.9, 0.1, 0.5)):
        labels = ["a"] * int(100 * share) + ["b"] * int(100 * (1 - share))
        frame = pd.DataFrame({"x": np.arange(len(labels)) * 0.5, "y": labels})
        tables.append(Table(np.arange(len(labels)) + 1000 * number, frame, label="y"))
    fed = Federation(*(Party(f"c{n}", table) for n, table in enumerate(tables)), strict=True)
    found = overview(fed, shape="horizontal")
    assert found.skew is not None and found.skew["notable"] == ["c0", "c1"]
    assert "The classes are shared unevenly" in str(found)
    assert [method["name"] for method in found.advice["settings"]["methods"]] == [
        "fedprox",
        "fedavg",
    ]


def test_a_curve_that_cannot_be_drawn_says_why(torn):
    found = overview(torn(), curve=True)
    assert found.curve is not None
    assert "4 aligned rows with a label are too few" in found.curve["words"][0]


def test_without_a_label_among_shared_rows_the_label_party_is_alone():
    bank = replace(party("bank", 1000, 300), labelled_aligned=0)
    found = advice_of([bank, party("telco", 900)], 100)
    assert names(found) == ["local"] and found.tears == [] and found.recipe is None
    assert names(advice_of([replace(bank, labelled_aligned=50), party("telco", 900)], 100)) != [
        "local"
    ]


def test_corrected_labels_go_to_the_labeller_with_columns_and_the_most_rows():
    parties = [
        party("registry", 5000, 5000, {}),
        party("bank", 1000, 1000),
        party("clinic", 2000, 2000),
        party("telco", 3000),
    ]
    found = advice_of(parties, 100, agreement={"lowest": 0.4}, labellers_share=800)
    assert found.correct is not None and found.correct["to"] == "clinic"
