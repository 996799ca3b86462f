import sys
import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, PrivacyWarning, Refused
from fedmend.federation import AlignmentCounts, Federation, Party, Policy
from fedmend.secure import psi
from fedmend.secure.align import align
from fedmend.secure.keys import keyring
from tests.conftest import texts

from .parties import NAMES, people
from .parties import with_ids as federation

words = texts(min_size=1, max_size=15)


def table(ids) -> Table:
    return Table(np.asarray(ids, object), {"x": range(len(ids))})


def aligned_ids(fed: Federation, scope: str = "train") -> list[list]:
    """The ids of every party's aligned rows, in the common order."""
    found = []
    for name in fed.names:
        site = fed.engine.site(name)
        found.append(site.table_of(scope).ids[site.alignments[scope].aligned].tolist())
    return found


def quiet(fed: Federation, **options) -> AlignmentCounts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return align(fed, **options)


# ---------------------------------------------------------------------------- it is right


@given(st.data(), st.integers(2, 4))
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_the_result_is_the_intersection_of_all_sets(data, parties):
    pool = data.draw(st.lists(words, min_size=2, max_size=25, unique=True))
    some = st.lists(st.sampled_from(pool), min_size=1, unique=True)
    lists = [data.draw(some) for _ in range(parties)]
    expected = set.intersection(*map(set, lists))
    fed = federation(*lists, policies={name: Policy(min_intersection=1) for name in NAMES})
    if not expected:
        with pytest.raises(AlignmentError, match="no id in common"):
            quiet(fed)
        assert not fed.is_aligned
        assert not any(fed.engine.site(name).alignments for name in fed.names)
        return
    counts = quiet(fed)
    found = aligned_ids(fed)
    assert set(found[0]) == expected and len(found[0]) == len(expected)
    assert all(each == found[0] for each in found)
    assert counts.aligned == len(expected) == fed.alignment.aligned
    for name, ids in zip(NAMES, lists, strict=False):
        alignment = fed.engine.site(name).alignments["train"]
        rest = [ids[row] for row in alignment.unaligned]
        assert set(rest) == set(ids) - expected
        assert counts.unaligned[name] == len(rest)
        assert alignment.aligned.dtype == alignment.unaligned.dtype == np.int64


def distinct_as_text(ids: list[str]) -> list[str]:
    first: dict[str, str] = {}
    for each in ids:
        key = unicodedata.normalize("NFD", each).casefold()
        key = " ".join(unicodedata.normalize("NFC", key).split())
        if key:
            first.setdefault(key, each)
    return list(first.values())


@given(st.lists(words.filter(str.strip), min_size=1, max_size=12, unique=True), st.data())
@settings(max_examples=15)
def test_text_ids_are_found_however_they_are_typed(ids, data):
    ids = distinct_as_text(ids)
    typed = [
        data.draw(
            st.sampled_from(
                [each, f" {each}\t", unicodedata.normalize("NFD", each), each.casefold()]
            )
        )
        for each in ids
    ]
    fed = federation(
        ids, typed[::-1], policies={name: Policy(min_intersection=1) for name in NAMES}
    )
    assert quiet(fed, normalise="text").aligned == len(ids)
    rows = [fed.engine.site(name).alignments["train"].aligned for name in fed.names]
    assert np.array_equal(rows[0], len(ids) - 1 - rows[1])


def test_values_passed_by_reference_give_the_same_as_the_wire():
    lists = [people(0, 60), people(20, 80), people(10, 70)]
    tables = {name: table(ids) for name, ids in zip(NAMES, lists, strict=False)}
    fed = Federation(*(Party(name, each) for name, each in tables.items()))
    assert align(fed).aligned == 40
    found = aligned_ids(fed)
    assert found[0] == found[1] == found[2] and set(found[0]) == set(people(20, 60))


@pytest.mark.parametrize("parties", [2, 3])
def test_integer_ids_and_sets_larger_than_a_chunk(parties, monkeypatch):
    monkeypatch.setattr(sys.modules["fedmend.secure.align"], "IDS_AT_ONCE", 64)
    rng = np.random.default_rng(0)
    lists = [rng.choice(400, size, replace=False) for size in (300, 173, 129)[:parties]]
    fed = federation(*(Table(ids, {"x": range(len(ids))}) for ids in lists))
    seen = []
    counts = align(fed, progress=lambda stage, done, total: seen.append((stage, done, total)))
    expected = set(lists[0]).intersection(*lists[1:])
    assert counts.aligned == len(expected)
    found = aligned_ids(fed)
    assert set(found[0]) == expected and all(each == found[0] for each in found)
    assert all(0 < done <= total for _, done, total in seen)
    for stage in {stage for stage, _, _ in seen}:
        done = [each[1] for each in seen if each[0] == stage]
        assert done == sorted(done) and done[-1] == next(t for s, _, t in seen if s == stage)


def test_other_tables_and_smaller_federations_have_alignments_of_their_own():
    train, later = people(0, 60), people(100, 140)
    fed = Federation(
        *(
            Party(name, table(train[at * 10 :]), test=table(later[: 40 - at]))
            for at, name in enumerate(NAMES[:3])
        ),
        strict=True,
    )
    assert align(fed).aligned == 40
    assert align(fed.on("test")).aligned == 38
    assert align(fed.only("bank", "telco")).aligned == 50
    assert fed.alignment.aligned == 40 and fed.on("test").alignment.aligned == 38
    assert set(fed.engine.site("bank").alignments) == {"train", "test", "train@bank+telco"}
    assert set(fed.engine.site("shop").alignments) == {"train", "test"}
    assert len(set(map(tuple, aligned_ids(fed, "test")))) == 1


# ---------------------------------------------------------------------------- the common order


@pytest.mark.parametrize("parties", [2, 3])
def test_the_order_is_unrelated_to_ids_and_files_and_new_in_every_run(parties):
    ids = people(0, 250)
    orders = []
    for _ in range(2):
        fed = federation(*([ids] * parties))
        align(fed, order="secret")
        orders.append(fed.engine.site("bank").alignments["train"].aligned)
        # |rho| of a random permutation of 250 has a standard error of .063
        assert abs(stats.spearmanr(np.arange(250), orders[-1])[0]) < 0.33
    assert not np.array_equal(orders[0], orders[1])
    assert abs(stats.spearmanr(orders[0], orders[1])[0]) < 0.33


@pytest.mark.parametrize("parties", [2, 3])
def test_a_seeded_order_can_be_repeated(parties):
    ids = people(0, 60)

    def order(seed: int, flip: int) -> list[list]:
        fed = federation(*([ids[::flip]] * parties), seed=seed)
        align(fed)  # in one process, "auto" is "seeded"
        return aligned_ids(fed)

    first = order(1, 1)
    assert first == order(1, -1)  # whatever the order of the file
    assert first != order(2, 1) and first[0] != ids
    assert all(each == first[0] for each in first)


# ---------------------------------------------------------------------------- how ids are written


def test_numbers_and_text_match_as_text_and_are_an_error_exactly():
    numbers = Table(np.arange(50), {"x": range(50)})
    text = table([f" {number} " for number in range(20, 80)])
    fed = federation(numbers, text)
    with pytest.raises(AlignmentError, match="'bank' has integers, 'telco' has text") as caught:
        align(fed)
    assert "normalise='text'" in str(caught.value)
    assert not fed.ledger.kinds() & {"hashed-id"}
    assert align(fed, normalise="text").aligned == 30


def test_no_common_id_says_how_the_ids_are_written_and_shows_none():
    fed = federation(people(0, 30), [each.upper() + " " for each in people(0, 30)])
    with pytest.raises(AlignmentError, match="no id in common") as caught:
        align(fed)
    message = str(caught.value)
    assert (
        "'bank' has 30 ids: text" in message and "'telco' has 30 ids: text, with capital" in message
    )
    assert "normalise='text'" in message and "person 0" not in message.lower()
    assert not fed.is_aligned
    assert align(fed, normalise="text").aligned == 30
    fed = federation(
        people(0, 30), people(50, 80), policies={"telco": Policy(refuse={"statistic"})}
    )
    for rule, hint in {
        "exact": "try normalise='text'",
        "text": "try normalise='number' if leading zeros differ",
        "number": "punctuation counts under every rule",
    }.items():
        with pytest.raises(AlignmentError, match=f"'telco' has 30 ids: text.*Mend: .*{hint}"):
            align(fed, normalise=rule)


def test_ids_that_become_one_under_the_rule_are_named_by_party_and_row():
    fed = federation(people(0, 30), ["Ann", *people(0, 30), "ANN"])
    with pytest.raises(DataError, match="party 'telco': the ids of rows 0 and 31"):
        align(fed, normalise="text")


@pytest.mark.parametrize("parties", [2, 3])
def test_a_party_with_another_rule_is_refused(parties, monkeypatch):
    fed = federation(*([people(0, 30)] * parties))
    original = psi.MatchWorker.__init__

    def other_rule(self, site, scope="train", **params):
        if site.name == "telco":
            params["normalise"] = "text"
        original(self, site, scope, **params)

    monkeypatch.setattr(psi.MatchWorker, "__init__", other_rule)
    with pytest.raises(AlignmentError, match="compares ids by normalise='(exact|text)'"):
        align(fed)


# ---------------------------------------------------------------------------- few rows, refusals


def test_a_small_intersection_warns_and_is_stored():
    fed = federation(people(0, 30), people(25, 60))
    with pytest.warns(PrivacyWarning, match="only 5 rows are common to bank, telco"):
        align(fed)
    assert fed.alignment.aligned == 5
    align(fed, minimum=5)


@pytest.mark.parametrize("parties", [2, 3])
def test_one_party_that_refuses_keeps_all_from_storing(parties):
    lists = [people(0, 40), people(10, 60), people(5, 50)][:parties]
    fed = federation(*lists, policies={"telco": Policy(min_intersection=31)})
    with pytest.raises(Refused, match="party 'telco' refused: the intersection has 30 rows"):
        align(fed)
    assert not fed.is_aligned
    assert not any(fed.engine.site(name).alignments for name in fed.names)
    assert any(entry.note == "refused" for entry in fed.ledger)


def test_a_failed_alignment_leaves_the_earlier_one():
    fed = federation(people(0, 40), people(10, 60))
    align(fed, order="seeded")
    before = fed.engine.site("bank").alignments["train"].aligned
    fed.engine.site("telco").tables["train"] = table(people(70, 90))
    with pytest.raises(AlignmentError):
        align(fed)
    assert fed.engine.site("bank").alignments["train"].aligned is before


def test_a_policy_without_hashed_ids_stops_it_before_anything_leaves():
    fed = federation(people(0, 30), people(0, 30), policies={"bank": Policy(refuse={"hashed-id"})})
    with pytest.raises(Refused, match="party 'bank'"):
        align(fed)
    assert not [
        e for e in fed.ledger if e.kind == "hashed-id" and e.sender == "bank" and not e.note
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "edch"}, "did you mean 'ecdh'"),
        ({"order": "x"}, "there is no order 'x'"),
        ({"normalise": "lower"}, "normalise='lower'"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        align(federation(people(0, 30), people(0, 30)), **options)


def test_one_party_or_an_empty_table_is_named():
    with pytest.raises(AlignmentError, match="only 'bank' is here"):
        align(federation(people(0, 30)))
    for more in ([], [people(0, 30)]):
        with pytest.raises(AlignmentError, match="table of 'telco' has no rows"):
            align(federation(people(0, 30), [], *more))


# ---------------------------------------------------------------------------- same order


def test_same_order_keeps_the_order_of_the_tables():
    ids = people(0, 60)[::-1]
    fed = federation(ids, ids, ids)
    counts = align(fed, mode="same-order")
    assert counts == AlignmentCounts(60, {"bank": 0, "telco": 0, "shop": 0})
    for name in fed.names:
        alignment = fed.engine.site(name).alignments["train"]
        assert np.array_equal(alignment.aligned, np.arange(60)) and not len(alignment.unaligned)
    numbers = Table(np.arange(60), {"x": range(60)})
    assert align(federation(numbers, numbers), mode="same-order").aligned == 60
    text = table([str(number) for number in range(60)])
    assert align(federation(numbers, text), mode="same-order", normalise="text").aligned == 60


def test_same_order_of_a_crowd_needs_keys_with_the_first_party_only():
    fed = federation(*[people(0, 30)] * 4)
    assert align(fed, mode="same-order").aligned == 30
    first, *rest = fed.names
    known = {name: set(keyring(fed.engine.site(name)).fingerprints()) for name in fed.names}
    assert known[first] == set(fed.names)
    assert all(known[name] == {first, name} for name in rest)


def test_same_order_names_who_differs():
    ids = people(0, 50)
    fed = federation(ids, ids, [ids[1], ids[0], *ids[2:]])
    with pytest.raises(AlignmentError, match="the ids of 'shop' differ from those of 'bank'"):
        align(fed, mode="same-order")
    with pytest.raises(AlignmentError, match="'bank' has 50, 'telco' has 49 rows"):
        align(federation(ids, ids[1:]), mode="same-order")
    numbers = Table(np.arange(50), {"x": range(50)})
    with pytest.raises(AlignmentError, match="'bank' has integers, 'telco' has text"):
        align(federation(numbers, table([str(n) for n in range(50)])), mode="same-order")
    assert not fed.is_aligned
    fed = federation(ids, ids, policies={"bank": Policy(min_intersection=51)})
    with pytest.raises(Refused, match="party 'bank'"):
        align(fed, mode="same-order")
    with pytest.warns(PrivacyWarning, match="only 3 rows"):
        align(federation(people(0, 3), people(0, 3)), mode="same-order")
