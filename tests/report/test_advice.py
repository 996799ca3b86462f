"""The advice: which tears are seen, what is recommended, and that all of it exists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedmend.methods.costs import Facts, cost_of_alignment
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import (
    BUDGET,
    COMPLETIONS,
    FOLDS,
    METHODS,
    estimate,
    method_class,
    record_of,
)
from fedmend.report.advice import RECIPE, advise
from fedmend.report.overview import Overview, PartyOverview

COLUMNS = {"continuous": 4}
RATED = {name: each for name, each in (METHODS | COMPLETIONS).items() if each.rate is not None}


def party(name, rows, labelled=0, columns=COLUMNS):
    return PartyOverview(
        name, rows, dict(columns), labelled=labelled > 0, labelled_rows=labelled, unaligned=0
    )


def advice_of(parties, aligned, label=None, **more):
    return advise(Overview(parties, aligned, label, ["…"], **more))


def names(advice):
    return [method["name"] for method in advice.methods]


def tears(advice):
    return [tear.name for tear in advice.tears]


BANK, TELCO = party("bank", 1000, 1000), party("telco", 900)
LEFT = party("left", 1000, 1000, {"image": 1})
DOCTORS = [party("a", 400, 400, {}), party("b", 400, 380, {}), party("lab", 400)]
CLINICS = [party(name, 100, 10) for name in ("north", "south", "west")]
FAR, NEAR = {"agreement": {"lowest": 0.41}}, {"agreement": {"lowest": 0.97}}
AGENCY = [party("bank", 900, 900), party("agency", 900, 900, {}), party("telco", 700)]
NUMBERS = {"label": {"name": "y", "mean": 3.0, "sd": 1.0}}
ACROSS = {"shape": "horizontal"}
FEW, BLOCK, PARTNER = "few-shared", "missing-block", "unlabelled-partner"
CASES = {
    # parties, aligned, more -> tears, recipe, methods
    "nothing torn": ([party("bank", 500, 500), party("telco", 500)], 500, {},
                     [], None, ["vfl", "local-trees"]),
    "few in common": ([BANK, TELCO], 100, {}, [FEW, BLOCK, PARTNER], None,
                      ["risa", "local-vfl", "local-trees"]),
    "parts of pictures": ([LEFT, party("right", 900, columns={"image": 1})], 100, {},
                          [FEW, PARTNER], None, ["risa-images", "local-vfl", "local"]),
    "a picture at one party": ([LEFT, TELCO], 100, {}, [FEW, BLOCK, PARTNER], None,
                               ["risa", "local-vfl", "local"]),
    "numbers": ([BANK, TELCO], 100, NUMBERS, [FEW, BLOCK], None,
                ["local-vfl", "local-trees"]),
    "too few to complete from": ([BANK, TELCO], 30, {}, [FEW, PARTNER], None,
                                 ["risa", "local-vfl", "local-trees"]),
    "labels only": ([party("bank", 1000, 1000, {}), TELCO], 100, {}, [FEW, BLOCK, PARTNER],
                    None, ["risa", "local-vfl"]),
    "scarce labels": ([party("bank", 500, 60), party("telco", 500)], 500, {}, ["scarce-labels"],
                      None, ["ssl-vfl", "risa", "vfl", "local-trees"]),
    "no shared label": ([replace(BANK, labelled_aligned=0), TELCO], 100, {}, [], None,
                        ["local-trees"]),
    "annotators": (DOCTORS, 400, FAR, ["disagreement"], None, ["inc", "majority"]),
    "who agree": (DOCTORS, 400, NEAR, [], None, ["majority", "inc"]),
    "and few in common": (AGENCY, 90, FAR, ["disagreement", FEW, BLOCK, PARTNER],
                          "correct-auto", ["risa", "local-vfl", "local-trees"]),
    "too few to choose by": (AGENCY, 30, FAR, ["disagreement", FEW, PARTNER], None,
                             ["risa", "local-vfl", "local-trees"]),
    "who agree on few": (AGENCY, 90, NEAR, [FEW, BLOCK, PARTNER], None,
                         ["risa", "local-vfl", "local-trees"]),
    "clients": (CLINICS, None, {**ACROSS, "skew": {"notable": ["north"]}},
                ["scarce-labels", "skewed-clients"], None,
                ["sage", "fixmatch", "fedprox", "fedavg"]),
    "labelled clients": ([party("n", 100, 100), party("s", 100, 100)], None, ACROSS,
                         [], None, ["fedavg"]),
    "one party": ([party("solo", 100, 100)], None, {}, [], None, ["local-trees"]),
    "no label": ([party("bank", 100), TELCO], 50, {}, [], None, []),
    "not aligned": ([BANK, TELCO], None, {}, [], None, []),
    "nobody in common": ([BANK, TELCO], 0, {}, [], None, []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_seen_and_recommended(case):
    parties, aligned, more, torn, recipe, methods = CASES[case]
    found = advice_of(parties, aligned, **more)
    assert tears(found) == torn and found.recipe == recipe and names(found) == methods
    assert set(methods) <= set(METHODS) & set(RATED)
    assert bool(found.words) == bool(methods)
    written = found.to_dict()["settings"]["methods"]
    chosen = [] if recipe else [{"name": "auto"}]
    assert written == (found.methods if found.choosing is None else chosen)


def test_what_pictures_take_is_not_told_by_the_rates_of_tables():
    clinics = [party(name, 300, 100, {"image": 1}) for name in ("north", "south")]
    for found in (
        advice_of(clinics, None, shape="horizontal"),
        advice_of([LEFT, party("right", 900, columns={"integer": 3})], 100),
    ):
        assert found.whole is None and found.to_dict()["seconds"] is None
        assert not any(" s" in line and " MB" in line for line in found.words)
        assert all(tear.seconds is None for tear in found.tears)


def test_advice_in_words():
    few, block, partner, choose, begin = advice_of([BANK, TELCO], 100).words
    assert "100 of bank's 1,000 rows are shared" in few
    assert "900 rows lack telco's 4 columns" in block
    assert "telco has 800 rows that nobody labels" in partner
    assert begin.startswith("To compare by name: RISA, LocalVFL, LocalTrees; about")
    assert choose.startswith('To begin with: method = "auto"')
    too_few = advice_of([BANK, TELCO], 30).words
    assert not any("auto" in sentence for sentence in too_few)  # too few to choose by
    assert not any("RISA" in line for line in advice_of([BANK, TELCO], 100, **NUMBERS).words)
    beside = [LEFT, party("right", 900, columns={"image": 1, "integer": 3})]
    pictures = advice_of(beside, 100).words
    assert "RISA for images trains on the other 900 too, each trusted by evidence (" in pictures[0]
    assert "900 rows lack right's 3 columns" in pictures[1]
    kappa, choose, _ = advice_of(DOCTORS, 400, **FAR).words
    assert "kappa of 0.41" in kappa
    assert "trains the best" in choose and "federation pays" not in choose
    assert not any("auto" in sentence for sentence in pictures)  # whose trees see none
    corrected = advice_of(AGENCY, 90, **FAR)
    assert 'begin with: recipe = "correct-auto" (InC → Auto), which lets' in corrected.words[-2]
    assert corrected.correct == {"to": "bank"}
    assert advice_of(AGENCY, 90, **NEAR).correct["name"] == "majority"
    assert advice_of(AGENCY, 30, **FAR).correct["name"] == "inc"
    # Of the rows that are not known to all, most lack no column, but a label of the agency's.
    unsure = advice_of(AGENCY, 90, **FAR).words
    assert "Up to 810 rows lack telco's 4 columns." in unsure[2]
    assert "telco has up to 610 rows that nobody labels" in unsure[3]
    sure = advice_of(AGENCY, 90, columns_share=600, **FAR)
    assert "600 of bank's 900 rows are shared" in sure.words[1]
    assert "A missing column block: 300 rows lack telco's 4 columns." in sure.words[2]
    assert sure.whole != corrected.whole
    bare = [replace(AGENCY[0], columns={}), AGENCY[1], AGENCY[2], party("shop", 800)]
    assert (
        "90 of bank's 900 rows are shared" in advice_of(bare, 90, columns_share=600, **FAR).words[1]
    )
    three = advice_of([BANK, TELCO, party("shop", 500)], 100).words
    assert (
        "A missing column block: 900 rows lack telco's 4 columns or shop's 4 columns." in three[1]
    )
    solo = advice_of([party("solo", 100, 100)], None).words
    assert solo == ["To begin with: LocalTrees; under 1 s and 10 kB in all."]


def test_votes_alone_are_for_methods_that_need_no_column():
    found = advice_of([party(name, 400, 400, {}) for name in ("ann", "ben", "eve")], 400, **FAR)
    assert [each["name"] for each in found.methods] == ["dawid-skene", "majority"]
    (tear,) = found.tears
    assert tear.methods == ["dawid-skene"] and 'leave_out = ["evaluate"]' in tear.sentence
    assert found.choosing is None  # rows set aside could judge nobody


def test_where_corrected_labels_go():
    assert advice_of(AGENCY, 90, **FAR).correct == {"to": "bank"}
    agreed = advice_of(AGENCY, 90, **NEAR).correct
    assert agreed == {"name": "majority", "to": "bank", "among": "labellers"}
    # To the annotator with columns and the most rows.
    more = [party("registry", 5000, 5000, {}), party("clinic", 2000, 2000), *AGENCY]
    found = advice_of(more, 100, labellers_share=800, **FAR)
    assert found.correct is not None and found.correct["to"] == "clinic"


def test_pseudo_labels_wait_for_a_model():
    found = advice_of(CLINICS, None, shape="horizontal", skew={"notable": ["north"]})
    assert [each.get("warmup") for each in found.methods] == [3, 3, None, None]


def test_among_clients_too_auto_comes_first_and_is_foretold():
    found = advice_of(CLINICS, None, shape="horizontal")
    auto, by_name = found.words[-2:]
    assert auto.startswith('To begin with: method = "auto", which tries the methods that fit')
    assert by_name.startswith("To compare by name: SAGE, FixMatch, FedAvg")
    # Three candidates in several folds take longer than each of them once.
    assert found.choosing is not None and found.choosing.seconds > 2 * found.whole.seconds


def test_labels_are_corrected_on_the_rows_that_annotators_share():
    parties = [party("bank", 9000, 9000), party("agency", 9000, 9000, {}), party("telco", 7000)]
    few, many = (advice_of(parties, 90, labellers_share=rows, **FAR).whole for rows in (100, 9000))
    facts = Facts({"bank": 9000, "agency": 9000, "telco": 7000}, {"bank": 4}, ("bank",), 9000)
    apart = estimate("inc", facts).seconds - estimate("inc", replace(facts, aligned=100)).seconds
    assert many.seconds - few.seconds == pytest.approx(apart, rel=1.1)
    assert many.bytes > few.bytes


def test_the_recipe_exists():
    assert all(record_of(stage).shown for stage in RECIPES[RECIPE].stages)


def test_costs_grow_with_rows_and_parties():
    few = Facts({"a": 100, "b": 100}, {"a": 3, "b": 3}, ("a",), 50)
    many = Facts({"a": 9000, "b": 9000}, {"a": 3, "b": 3}, ("a",), 6000)
    three = Facts({"a": 100, "b": 100, "c": 100}, {"a": 3, "b": 3, "c": 3}, ("a",), 50)
    for method, record in RATED.items():
        assert record.rate.units(many) > record.rate.units(few)
        assert estimate(method, many).seconds >= estimate(method, few).seconds
        assert estimate(method, three).bytes >= estimate(method, few).bytes
    assert few.completed().shared == 100
    # In rounds models travel, whose size is not that of the tables.
    for method in ("sage", "fedavg", "fedprox", "fixmatch"):
        assert estimate(method, many).bytes == estimate(method, few).bytes
        assert estimate(method, three).bytes == 3 * estimate(method, few).bytes / 2


def test_rounds_take_steps_in_proportion_to_the_rows():
    """Measured: means of Adult, Bank and Credit at 600 rows, of Bank and Credit at 2,400."""
    for name, rows, seconds in (
        ("fedavg", 600, 2.3),
        ("fedavg", 2400, 5.2),
        ("sage", 600, 4.2),
        ("sage", 2400, 45.2),
        ("fixmatch", 2400, 33.1),
    ):
        sizes = {f"clinic-{at}": rows // 5 for at in range(5)}
        facts = Facts(sizes, dict.fromkeys(sizes, 14), tuple(sizes))
        assert 0.5 < estimate(name, facts).seconds / seconds < 2
    of_classes = replace(facts, classes=10)
    assert estimate("fedavg", of_classes).seconds > 3 * estimate("fedavg", facts).seconds


def test_a_small_table_is_foretold_within_a_factor_of_two():
    """Measured: all of `auto` on a newcomer's credit table took 17.7 s, one run."""
    sizes = Facts({"bank": 600, "telco": 400}, {"bank": 7, "telco": 7}, ("bank",), 200)
    assert 17.7 / 2 < estimate("auto", sizes).seconds < 17.7 * 2
    grown = replace(sizes, rows={"bank": 1000, "telco": 400})
    assert estimate("risa", grown).seconds > 1.6 * estimate("risa", sizes).seconds, "more epochs"


@pytest.mark.parametrize(
    ("rows", "shared", "columns", "classes", "seconds", "megabytes"),
    [
        (600, 180, [7, 7], 2, 26.8, 111),  # Adult
        (2400, 720, [7, 7], 2, 33.0, 450),
        (600, 180, [12, 11], 2, 11.9, 123),  # Credit
        (2400, 1200, [12, 11], 2, 28.8, 680),
        (600, 180, [27, 27], 7, 27.0, 446),  # Covertype
    ],
)
def test_a_model_of_models_is_foretold_as_measured(
    rows, shared, columns, classes, seconds, megabytes
):
    features = dict(zip(("a", "b"), columns, strict=True))
    numeric = {"a": 5, "b": 5} if classes > 2 else {}
    sizes = {"a": rows, "b": rows}
    found = estimate("auto", Facts(sizes, features, ("a",), shared, 1.0, classes, False, numeric))
    assert 0.5 < found.seconds / seconds < 2 and 0.5 < found.bytes / 1e6 / megabytes < 2


def test_costs_of_trees_and_networks_follow_what_they_look_at():
    """Measured: an epoch has a least length, classes and columns cost trees, parties networks."""
    sizes = Facts({"a": 600, "b": 600}, {"a": 3, "b": 3}, ("a",), 200)
    wide = replace(sizes, features={"a": 30, "b": 30})
    for method in ("local-trees", "boosting"):
        dear = estimate(method, replace(wide, classes=10)).seconds
        assert dear > 5 * estimate(method, wide).seconds > 5 * estimate(method, sizes).seconds
    assert estimate("vfl", wide) == estimate("vfl", sizes)
    assert estimate("local", replace(sizes, rows={"a": 1200, "b": 600})).seconds < 1.6 * (
        estimate("local", sizes).seconds
    )
    for method in ("local", "vfl", "local-vfl"):
        many = estimate(method, replace(sizes, classes=10)).seconds
        assert 1.5 < many / estimate(method, sizes).seconds < 3


@pytest.mark.parametrize(
    ("rows", "megabytes"), [(160, 15.0), (300, 18.8), (600, 25.1), (2400, 96.7)]
)
def test_bytes_of_risa_on_small_tables_are_those_measured(rows, megabytes):
    """Means of Credit and Adult, 30 % of the rows known to both."""
    facts = Facts({"a": rows, "b": rows}, {"a": 7, "b": 7}, ("a",), round(0.3 * rows))
    assert estimate("risa", facts).bytes == pytest.approx(1e6 * megabytes, rel=0.2)


@pytest.mark.parametrize(
    ("rows", "shared", "columns", "numbers", "classes", "seconds", "megabytes"),
    [
        (600, 180, [7, 7], [5, 1], 2, 0.9, 0.9),  # Adult
        (600, 600, [7, 7], [5, 1], 2, 2.2, 4.65),
        (9600, 2880, [7, 7], [5, 1], 2, 6.9, 48.4),
        (1200, 600, [7, 7, 6], [4, 4, 2], 2, 2.6, 7.3),  # Bank
        (600, 600, [2] * 10, [2, *[1] * 3, 0, *[1] * 5], 2, 5.4, 13.6),
        (2400, 720, [12, 11], [11, 9], 2, 5.6, 13.2),  # Credit
        (9600, 2880, [12, 11], [11, 9], 2, 3.6, 29.7),
        (20_000, 10_000, [12, 11], [11, 9], 2, 11.7, 137),
        (9600, 4800, [5, 5], [5, 5], 2, 4.2, 52.1),  # Give me some credit
        (9600, 2880, [27, 27], [5, 5], 7, 25.9, 173),  # Covertype
        (1200, 600, [8, 8], [8, 8], 26, 27, 116),  # Letter
        (1200, 600, [24, 24], [24, 24], 11, 41, 245),  # Sensorless
    ],
)
def test_trees_over_parties_are_foretold_as_measured(
    rows, shared, columns, numbers, classes, seconds, megabytes
):
    """Where early stopping came neither at once nor late: the number of trees no size tells."""
    names = [f"p{at}" for at in range(len(columns))]
    sizes = dict.fromkeys(names, shared) | {"p0": rows}
    features, numeric = (dict(zip(names, each, strict=True)) for each in (columns, numbers))
    facts = Facts(sizes, features, ("p0",), shared, classes=classes, numeric=numeric)
    found = estimate("boosting", facts)
    assert 0.5 < found.seconds / seconds < 2 and 0.5 < found.bytes / 1e6 / megabytes < 2


@pytest.mark.parametrize(
    ("rows", "columns", "classes", "seconds"),
    [
        (600, 7, 2, 0.2),  # Adult
        (9600, 7, 2, 1.8),
        (40_000, 7, 2, 7.9),
        (20_000, 12, 2, 2.2),  # Credit
        (600, 27, 7, 2.5),  # Covertype
        (9600, 27, 7, 11.6),
        (2400, 8, 26, 21),  # Letter
    ],
)
def test_trees_of_one_party_are_foretold_as_measured(rows, columns, classes, seconds):
    facts = Facts({"a": rows, "b": rows}, {"a": columns, "b": 7}, ("a",), 100, classes=classes)
    assert 0.5 < estimate("local-trees", facts).seconds / seconds < 2


@pytest.mark.parametrize(
    ("name", "seconds"), [("majority", 3.4), ("dawid-skene", 4.0), ("inc", 7.4)]
)
def test_hundreds_of_annotators_take_their_time(name, seconds):
    """Measured on Adult: 600 rows of two parties with columns and 203 who label all of them."""
    sizes = {f"p{at}": 600 for at in range(205)}
    features = dict.fromkeys(sizes, 0) | {"p0": 7, "p1": 7}
    facts = Facts(sizes, features, tuple(sizes)[2:], 600)
    assert 0.6 < estimate(name, facts).seconds / seconds < 1.6
    few = replace(facts, labellers=facts.labellers[:3])
    more = estimate(name, facts).bytes - estimate(name, few).bytes
    assert (more > 0) == (name == "dawid-skene"), "rounds of evidence"


def test_evidence_of_annotators_is_sent_in_rounds():
    """Measured: Adult, 203 annotators, Letter, 20, and Covertype, 20; 600 rows of all."""
    for annotators, classes, megabytes in ((203, 2, 14.3), (20, 26, 22.3), (20, 7, 16.1)):
        sizes = {f"p{at}": 600 for at in range(annotators + 2)}
        features = dict.fromkeys(sizes, 0) | {"p0": 7, "p1": 7}
        facts = Facts(sizes, features, tuple(sizes)[2:], 600, classes=classes)
        assert 0.5 < estimate("dawid-skene", facts).bytes / 1e6 / megabytes < 2
    alone = replace(facts, features=dict.fromkeys(sizes, 0))
    assert alone.voted() == 0, "there is no network without a column"


@pytest.mark.parametrize(
    ("name", "rows", "seconds", "megabytes"),
    [
        ("majority", 600, 0.7, 8.1),
        ("majority", 2400, 2.4, 19.3),
        ("majority", 6000, 5.9, 64.3),
        ("dawid-skene", 600, 1.8, 17.1),
        ("dawid-skene", 2400, 3.4, 34.5),
        ("dawid-skene", 6000, 7.3, 93.4),
    ],
)
def test_learners_from_votes_are_foretold_as_measured(name, rows, seconds, megabytes):
    """Means of Adult, Credit and Bank, three annotators and two parties with columns."""
    sizes = dict.fromkeys(("a", "b", "c", "d", "e"), rows)
    features = dict.fromkeys(sizes, 0) | {"a": 7, "b": 7}
    found = estimate(name, Facts(sizes, features, ("c", "d", "e"), rows))
    assert 0.65 < found.bytes / 1e6 / megabytes < 1.6 and 0.5 < found.seconds / seconds < 2


@pytest.mark.parametrize(
    ("name", "rows", "shared", "classes", "seconds", "megabytes"),
    [
        ("vfl", 600, 600, 2, 1.8, 16.7),  # means of Adult, Bank, Credit and Give me some credit
        ("vfl", 2400, 2400, 2, 3.8, 33.3),
        ("vfl", 6000, 6000, 2, 8.6, 90.8),
        ("vfl", 2400, 720, 2, 1.7, 20.0),
        ("vfl", 2400, 2400, 26, 16.2, 241),  # Letter
        ("local-vfl", 2400, 720, 2, 2.6, 33.0),
        ("local", 600, 600, 2, 0.8, 0.09),
        ("local", 2400, 2400, 2, 2.5, 0.24),
        ("local", 6000, 6000, 2, 5.2, 0.56),
        ("local", 6000, 6000, 7, 7.6, 0.83),  # Covertype
    ],
)
def test_networks_are_foretold_as_measured(name, rows, shared, classes, seconds, megabytes):
    facts = Facts({"a": rows, "b": rows}, {"a": 7, "b": 7}, ("a",), shared, classes=classes)
    found = estimate(name, facts)
    assert 0.6 < found.seconds / seconds < 1.6 and 0.6 < found.bytes / 1e6 / megabytes < 1.6


@pytest.mark.parametrize(
    ("rows", "columns", "numbers", "seconds", "megabytes"),
    [
        *((600, 7, 1, 13.3, 29.3), (2400, 7, 1, 28.2, 121)),  # Adult
        *((600, 10, 5, 8.5, 19.0), (2400, 10, 5, 25.3, 53.5)),  # Bank
        *((600, 11, 9, 7.2, 10.3), (2400, 11, 9, 12.2, 19.6)),  # Credit
        (600, 5, 5, 5.4, 7.8),  # Give me some credit
    ],
)
def test_completion_is_foretold_as_measured(rows, columns, numbers, seconds, megabytes):
    """30 % of the rows are shared; categories cost more than numbers."""
    features, numeric = {"a": 7, "b": columns}, {"a": 7, "b": numbers}
    facts = Facts({"a": rows, "b": rows}, features, ("a",), round(0.3 * rows), numeric=numeric)
    found = estimate("fedpsg-pum", facts)
    assert 0.5 < found.seconds / seconds < 2 and 0.5 < found.bytes / 1e6 / megabytes < 2


def test_partners_of_risa_each_send_their_rows():
    """Measured: 600 rows of which 180 are known to all, of 2, 3 and 10 parties; 1.1, 1.1, 3.9 s."""
    for parties, seconds, megabytes in ((2, 1.1, 20.6), (3, 1.6, 41.5), (10, 3.9, 191.8)):
        sizes = {f"p{at}": 360 for at in range(parties)} | {"p0": 600}
        facts = Facts(sizes, dict.fromkeys(sizes, 5), ("p0",), 180)
        found = estimate("risa", facts)
        assert 0.5 < found.seconds / seconds < 2 and 0.5 < found.bytes / 1e6 / megabytes < 2


@pytest.mark.parametrize(
    ("parties", "rows", "same_order", "seconds", "megabytes"),
    [
        *((2, 6000, False, 2.1, 1.16), (3, 6000, False, 3.7, 2.44), (10, 6000, False, 14.7, 11.0)),
        *((50, 600, False, 10.6, 7.28), (200, 60, False, 23.8, 19.5)),  # keys of all pairs
        *((2, 600, True, 0.03, 0.003), (50, 6000, True, 0.57, 0.09), (200, 60, True, 0.65, 0.37)),
    ],
)
def test_an_alignment_is_foretold_as_measured(parties, rows, same_order, seconds, megabytes):
    names = [f"p{at}" for at in range(parties)]
    facts = Facts(
        dict.fromkeys(names, rows),
        dict.fromkeys(names, 5),
        (names[0],),
        rows,
        same_order=same_order,
    )
    found = cost_of_alignment(facts)
    assert 0.5 < found.seconds / seconds < 2 and 0.5 < found.bytes / 1e6 / megabytes < 2


def test_auto_is_estimated_as_it_works():
    given = method_class("auto")().get_params()
    assert (given["folds"], given["budget"]) == (FOLDS, BUDGET)
    for rows, least, most in ((600, 3.0, 5.0), (60_000, 1.5, 3.0)):  # all folds, or two of them
        facts = Facts({"a": rows, "b": rows}, {"a": 4, "b": 4}, ("a",), rows // 2)
        once = sum(
            estimate(name, facts).seconds for name in ("local", "local-trees", "boosting", "risa")
        )
        assert least * once < estimate("auto", facts).seconds < most * once
    facts = Facts({"a": 600, "b": 600}, {"a": 4, "b": 4}, ("a",), 300)
    numbers = replace(facts, classes=1)
    assert estimate("auto", numbers).seconds < estimate("auto", facts).seconds  # no evidence
    crowd = replace(facts, labellers=("a", "b"))
    assert estimate("auto", crowd).seconds > 2 * estimate("inc", crowd).seconds
    advised = advice_of([party("left", 600, 600), party("right", 600, 0)], 300)
    sizes = Facts({"left": 600, "right": 600}, {"left": 4, "right": 4}, ("left",), 300)
    assert advised.choosing == estimate("auto", sizes)
    # One class that is told is no number: others are too small to be.
    told = {"label": {"name": "y", "counts": {"no": 276}, "others": 224}}
    parties = [party("left", 600, 600), party("right", 600, 0)]
    assert advice_of(parties, 300, **told).choosing == advised.choosing
