"""Folds of a federation: the same people held out everywhere, and nobody twice."""

from __future__ import annotations

import numpy as np
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.federation import AlignmentCounts, Federation, Party
from fedmend.methods.auto.folds import fold, forget, number_folds
from fedmend.split.features import folds_of
from fedmend.split.labels import (
    LabelLikelihood,
    cell_confidence,
    keep_confidence,
    keep_likelihood,
    label_likelihood,
)


def aligned_ids(view, party):
    site = view.engine.site(party)
    table = site.tables[view.dataset]
    return table.ids[site.alignments[view.scope].aligned], set(table.ids.tolist())


def test_folds_hold_out_every_aligned_row_once_and_nowhere_else(make_fed) -> None:
    fed = make_fed(aligned=100)
    held_out = []
    for number in range(3):
        train, held = fold(fed, number, 3, seed=5)
        ids = {party: aligned_ids(held, party)[0].tolist() for party in fed.names}
        assert ids["bank"] == ids["telco"] == ids["shop"], "the same people in the same order"
        kept = {party: aligned_ids(train, party) for party in fed.names}
        assert kept["bank"][0].tolist() == kept["telco"][0].tolist()
        for party in fed.names:
            assert not kept[party][1] & set(ids["bank"]), "in no training table of any party"
        assert len(kept["bank"][1]) == 240 - len(ids["bank"]), "own rows stay"
        assert train.alignment.aligned + held.alignment.aligned == 100
        held_out += ids["bank"]
        forget(train, held)
        assert train.dataset not in fed.engine.site("bank").tables
    everyone = aligned_ids(fed, "bank")[0].tolist()
    assert sorted(held_out) == sorted(everyone)


def test_completed_rows_are_trained_on_and_never_held_out(make_fed) -> None:
    """They stand last in the common order, and their other sides are guesses."""
    fed = make_fed(aligned=100)
    people = aligned_ids(fed, "bank")[0].tolist()
    counts = fed.alignment
    fed.note_alignment(AlignmentCounts(counts.aligned, counts.unaligned, completed=30))
    held_out = []
    for number in range(2):
        train, held = fold(fed, number, 2, seed=1)
        held_out += aligned_ids(held, "telco")[0].tolist()
        assert (train.alignment.aligned, train.alignment.completed) == (65, 30)
        assert aligned_ids(train, "bank")[0].tolist()[-30:] == people[-30:]
        forget(train, held)
    assert sorted(held_out) == sorted(people[:70])


def test_folds_among_some_of_the_parties(make_fed) -> None:
    fed = make_fed(aligned=60)
    pair = fed.only("bank", "telco")
    fm.align(pair, order="seeded")
    train, held = fold(pair, 0, 3, seed=2)
    assert aligned_ids(held, "bank")[0].tolist() == aligned_ids(held, "telco")[0].tolist()
    assert fm.VFL(epochs=1).fit(train).evaluate(held)["accuracy"] >= 0
    forget(train, held)
    kept = fed.engine.site("bank")
    assert not [name for name in (*kept.tables, *kept.alignments) if "fold" in name]


def test_fold_equals_cross_validation_in_one_piece(make_fed, make_frame) -> None:
    """A linear model trained on a fold is the one trained on those people alone."""
    frame = make_frame(200)
    fed = make_fed(frame, columns={"bank": ["a", "b", "y"], "telco": ["c", "d"]})
    train, held = fold(fed, 0, 4, seed=1)
    model = fm.VFL(epochs=3, validation=0.0, patience=None).fit(train)
    people = aligned_ids(held, "bank")[0]
    truth = frame.loc[people, "y"].to_numpy()
    found = model.predict(held)
    assert model.evaluate(held)["accuracy"] == pytest.approx((found == truth).mean())


def test_horizontal_folds_are_each_partys_own() -> None:
    rng = np.random.default_rng(0)

    def table(first):
        ids = np.arange(first, first + 30)
        y = rng.permutation(np.repeat(np.array(["a", "b", None], object), (6, 3, 21)))
        return Table(ids, {"x": rng.normal(size=30), "y": y}, label="y")

    fed = Federation(Party("a", table(0)), Party("b", table(100)), strict=True)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for number in range(3):
        train, held = fold(fed, number, 3, 0, horizontal=True)
        for party in seen:
            site = fed.engine.site(party)
            out = site.tables[held.dataset].ids.tolist()
            # Labels are few: each fold has its share of each class.
            assert site.tables[held.dataset].y.value_counts().to_dict() == {"a": 2, "b": 1}
            assert not set(out) & set(site.tables[train.dataset].ids.tolist())
            seen[party] += out
    assert sorted(seen["a"]) == list(range(30)) and sorted(seen["b"]) == list(range(100, 130))


def test_rows_of_the_label_party_alone_are_held_out_too(make_fed) -> None:
    """Each once, each class in its share; and those of the fold before are judges of a training."""
    fed = make_fed(aligned=100)
    site = fed.engine.site("bank")
    number_folds(fed, "bank", 4, seed=2)
    alone, shares = [], []
    for number in range(4):
        train, held = fold(fed, number, 4, seed=2, own="bank")
        table = site.tables[held.dataset]
        at = site.alignments[held.scope].unaligned
        assert len(at) == held.alignment.unaligned["bank"] == 35
        assert held.alignment.unaligned["telco"] == 0
        assert train.alignment.unaligned["bank"] == 105
        alone += table.ids[at].tolist()
        shares.append((table.y.iloc[at] == "yes").mean())
        assert not set(table.ids.tolist()) & set(site.tables[train.dataset].ids.tolist())
        if number == 0:
            model = fm.Local(epochs=1).fit(train)
            with model.network_.session([["all", 105 + 75]]) as session:
                ids = site.tables[train.dataset].ids[session.validation]
            assert set(folds_of(site, ids)) == {1}, "one whole fold, not rows drawn anew"
        forget(train, held)
    assert sorted(alone) == sorted(site.tables["train"].ids[site.alignments["train"].unaligned])
    assert np.ptp(shares) < 0.05


def test_what_is_known_of_labels_and_cells_goes_with_the_rows(make_fed) -> None:
    fed = make_fed(aligned=60)
    site = fed.engine.site("bank")
    table = site.tables["train"]
    numbers = np.arange(len(table), dtype=float)
    keep_likelihood(site, "train", LabelLikelihood(("no", "yes"), np.stack([numbers] * 2, 1)))
    keep_confidence(site, "train", {"a": numbers})
    number_folds(fed, "bank", 3, seed=0)
    train, _ = fold(fed, 1, 3, seed=0, own="bank")
    place = {each: at for at, each in enumerate(table.ids.tolist())}
    expected = [place[each] for each in site.tables[train.dataset].ids.tolist()]
    assert label_likelihood(site, train.dataset).likelihood[:, 0].tolist() == expected
    assert cell_confidence(site, train.dataset)["a"].tolist() == expected


def test_the_only_fold_left_is_trained_on(make_fed) -> None:
    fed = make_fed(aligned=40)
    number_folds(fed, "bank", 2, seed=0)
    train, held = fold(fed, 0, 2, seed=0, own="bank")
    model = fm.VFL(epochs=2).fit(train)
    assert "val_auc" not in model.history_[-1]
    assert model.evaluate(held)["accuracy"] > 0.3
