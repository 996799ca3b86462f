"""Agreement of annotators: equal to what one computes with all labels in one place."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from fedmend.errors import AlignmentError, DataError, Refused
from fedmend.federation import COORDINATOR, Policy
from fedmend.federation.bound import Bound
from fedmend.preflight.agreement import alpha_of, called, kappa_of, label_agreement
from fedmend.secure.columns import Columns
from fedmend.secure.dealer import DealerWorker
from fedmend.secure.inner_product import ProductSession

CLASSES = ["cold", "cough", "flu"]


def said(rng, truth, error):
    wrong = rng.random(len(truth)) < error
    return [
        str(rng.choice(CLASSES)) if off else each for each, off in zip(truth, wrong, strict=True)
    ]


def crowd(n=200, errors=(0.1, 0.3, 0.6), seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.choice(CLASSES, n, p=[0.5, 0.3, 0.2]).tolist()
    return {f"doctor-{number}": said(rng, truth, error) for number, error in enumerate(errors)}


def krippendorff(votes):
    """Alpha as it is defined, over units [n][annotators] with None where one gave no label."""
    values = sorted({each for unit in votes for each in unit if each is not None})
    coincidences = np.zeros((len(values), len(values)))
    for unit in votes:
        given = [each for each in unit if each is not None]
        for one, two in itertools.permutations(range(len(given)), 2):
            at = values.index(given[one]), values.index(given[two])
            coincidences[at] += 1 / (len(given) - 1)
    each = coincidences.sum(1)
    total = each.sum()
    differ = total - np.trace(coincidences)
    return 1 - (total - 1) * differ / (total**2 - (each**2).sum())


@pytest.mark.parametrize("mode", ["dealer", "bfv"])
def test_equal_to_the_labels_in_one_place(annotators, mode):
    votes = crowd()
    found = label_agreement(annotators(votes), mode=mode)
    assert len(found.pairs) == 3
    for pair in found.pairs:
        one, two = votes[pair.one], votes[pair.two]
        assert pair.rows == 200
        assert pair.agree == pytest.approx(np.mean([a == b for a, b in zip(one, two, strict=True)]))
        assert pair.kappa == pytest.approx(cohen_kappa_score(one, two))
        assert pair.low < pair.kappa < pair.high
    units = list(zip(*votes.values(), strict=True))
    assert found.alpha == pytest.approx(krippendorff(units))
    assert found.lowest == min(pair.kappa for pair in found.pairs)
    worst = min(found.pairs, key=lambda pair: pair.kappa)
    assert found.words[0] == worst.words and f"kappa {worst.kappa:.2f}" in worst.words


def test_of_many_annotators_those_with_the_most_labels_are_compared(annotators):
    votes = crowd(n=120, errors=np.linspace(0.1, 0.6, 20))
    for number, each in enumerate(votes.values()):
        each[: 3 * number] = [None] * (3 * number)
    found = label_agreement(annotators(votes))
    assert {pair.one for pair in found.pairs} | {pair.two for pair in found.pairs} == {
        f"doctor-{number}" for number in range(12)
    }
    assert len(found.pairs) == 12 * 11 // 2 and found.left_out == 8
    assert len(found.words) == 12
    assert found.words[-2:-1] == ["The other 56 pairs agree better."]
    assert found.words[-1].startswith("The 12 with the most labels together: alpha")


def test_rows_that_only_one_labels_are_left_out(annotators):
    votes = crowd(errors=(0.1, 0.4))
    votes["doctor-0"][:50] = [None] * 50
    votes["doctor-1"][150:] = [None] * 50
    (pair,) = label_agreement(annotators(votes)).pairs
    one, two = votes["doctor-0"][50:150], votes["doctor-1"][50:150]
    assert pair.rows == 100
    assert pair.kappa == pytest.approx(cohen_kappa_score(one, two))


def test_nobody_in_common_and_one_class(annotators):
    apart = {"a": ["x"] * 10 + [None] * 10, "b": [None] * 10 + ["x"] * 10}
    found = label_agreement(annotators(apart), classes=["x", "y"])
    assert found.pairs[0].kappa is None and found.pairs[0].rows is None and found.alpha is None
    assert found.words[0].startswith(
        "a and b label too few of the rows that all annotators know to be compared. Mend:"
    )
    same = label_agreement(annotators({"a": ["x"] * 10, "b": ["x"] * 10}), classes=["x", "y"])
    assert same.words == [
        "a and b give the same label to 100 % of 10 rows; all these labels are of one class."
    ]


def few_in_common(rows):
    """Two that label 60 rows each, of which so many are the same."""
    labels = (["x", "y"] * 30)[:60]
    return {"a": labels + [None] * (60 - rows), "b": [None] * (60 - rows) + labels}


@pytest.mark.parametrize("mode", ["dealer", "bfv"])
@pytest.mark.parametrize(
    ("rows", "own", "told"),
    [(9, {}, None), (10, {}, 10), (10, {"a": 11}, None), (10, {"b": 11}, None)],
)
def test_rows_that_both_label_are_at_least_min_rows_of_either(annotators, mode, rows, own, told):
    policies = {party: Policy(min_rows=least) for party, least in own.items()}
    fed = annotators(few_in_common(rows), **policies)
    found = label_agreement(fed, mode=mode)
    assert found.pairs[0].rows == told and (found.alpha is None) == (told is None)
    # Of what is not told not even masked shares have left.
    shares = [each for each in fed.ledger.entries() if each.call.endswith(".share")]
    assert bool(shares) == (told is not None)


def test_who_labels_few_rows_is_not_told_which_of_them_another_labels(annotators):
    votes = {"a": ["x"] * 60, "b": ["x"] * 9 + [None] * 51}
    fed = annotators(votes)
    worker = DealerWorker(fed.engine.site("b"), role="fixed")
    assert worker.provide("labelled-rows", {}).values.sum() == 0
    assert label_agreement(fed, classes=["x", "y"]).pairs[0].rows is None


def test_a_count_serves_one_comparison(annotators):
    fed = annotators(crowd())
    label_agreement(fed)
    asked = {"classes": CLASSES, "beside": "doctor-1"}
    with ProductSession(fed, Columns("doctor-0", "label-votes", asked), "doctor-1") as session:
        assert not session.fixed_facts["names"]


def test_in_a_run_the_coordinator_does_not_say_how_many_rows_both_label(annotators):
    fed = annotators(few_in_common(10))
    for name in fed.names:
        site = fed.engine.site(name)
        site.bound = Bound.to(name, ["label-agreement"], site.policy)
    assert label_agreement(fed).pairs[0].rows == 10
    group = fed.workers(DealerWorker, parties=["a"], role="fixed")
    with group, pytest.raises(Refused, match="learn"):
        group["a"].learn(np.full((1, 1), 1000), "preflight.agreement train b")


def test_no_label_and_no_row_crosses(annotators):
    fed = annotators(crowd())
    label_agreement(fed)
    kinds = {entry.kind for entry in fed.ledger.entries()}
    assert not kinds & {"label", "row"}
    # nothing that one annotator sends to another can be read on the way
    to_parties = [
        entry
        for entry in fed.ledger.entries()
        if COORDINATOR not in (entry.sender, entry.receiver) and entry.kind != "control"
    ]
    assert all(entry.sealed_for for entry in to_parties)


@pytest.mark.parametrize(("party", "classes"), [("doctor-1", None), ("doctor-0", CLASSES)])
def test_who_refuses_statistics_takes_no_part(annotators, party, classes):
    """Also the one of a pair whose votes only go into what the other sends."""
    fed = annotators(crowd(), **{party: Policy(refuse={"statistic"})})
    with pytest.raises(Refused, match=f"{party}.*statistic"):
        label_agreement(fed, classes=classes)


def test_too_few_rows_for_a_party(annotators):
    fed = annotators(crowd(), **{"doctor-2": Policy(min_intersection=500)})
    with pytest.raises(AlignmentError, match="doctor-2.*500"):
        label_agreement(fed)


def test_one_annotator_is_told_so(annotators):
    with pytest.raises(DataError, match="1 of the parties label"):
        label_agreement(annotators(crowd()), ["doctor-0"])


def variance_by_delta(counts):
    """The variance of kappa from its derivatives, taken numerically."""
    rows = counts.sum()
    shares = (counts / rows).ravel()
    size = len(counts)

    def kappa(p):
        p = p.reshape(size, size)
        observed, chance = np.trace(p), p.sum(1) @ p.sum(0)
        return (observed - chance) / (1 - chance)

    step = 1e-6
    slope = np.array(
        [
            (kappa(shares + step * unit) - kappa(shares - step * unit)) / (2 * step)
            for unit in np.eye(size * size)
        ]
    )
    return (slope**2 @ shares - (slope @ shares) ** 2) / rows


@given(st.lists(st.integers(1, 40), min_size=9, max_size=9))
def test_standard_error_is_that_of_the_delta_method(cells):
    counts = np.array(cells).reshape(3, 3)
    kappa, low, high = kappa_of(counts)
    error = np.sqrt(variance_by_delta(counts))
    assert low == pytest.approx(max(-1, kappa - 1.96 * error), abs=1e-6)
    assert high == pytest.approx(min(1, kappa + 1.96 * error), abs=1e-6)


@given(st.integers(2, 5), st.integers(5, 40), st.integers(0, 10**6))
def test_alpha_from_pairs_is_alpha_where_all_label_all(many, n, seed):
    rng = np.random.default_rng(seed)
    votes = rng.integers(0, 3, (n, many))
    tables = {}
    for one, two in itertools.combinations(range(many), 2):
        counts = np.zeros((3, 3))
        np.add.at(counts, (votes[:, one], votes[:, two]), 1)
        tables[str(one), str(two)] = counts
    if len(np.unique(votes)) > 1:
        assert alpha_of(tables) == pytest.approx(krippendorff(votes.tolist()))


@pytest.mark.parametrize(
    ("kappa", "word"),
    [(-0.3, "no better than chance"), (0.55, "moderate"), (0.8, "substantial"), (1.0, "almost")],
)
def test_words(kappa, word):
    assert called(kappa).startswith(word)


def test_a_copy_is_no_second_opinion(annotators):
    said = ["x", "y", "y"] * 20
    (words,) = label_agreement(annotators({"a": said, "b": said})).words
    assert words.startswith("a and b give the same label to 100 % of 60 rows: one is a copy")
    (words,) = label_agreement(annotators({"a": said, "b": ["x", *said[1:-1], "x"]})).words
    assert "kappa 0.9" in words and "copy" not in words
