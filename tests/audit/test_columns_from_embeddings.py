"""Columns from embeddings: all of them from a bottom of full rank, none from noise."""

import numpy as np
import pytest

from fedmend.audit.columns_from_embeddings import ColumnsFromEmbeddings
from fedmend.audit.context import NotApplicable, secrets_of
from fedmend.audit.recorder import BOTTOM, Look, Observations
from fedmend.data.table import Table


def attack_on(values, party, looks=()):
    seen = Observations("train", len(values), max(1, len(looks)))
    everything = np.arange(len(values))
    seen.final[party].append(Look(everything, values))
    seen.embeddings[party, BOTTOM] += [Look(everything, each) for each in looks]
    return ColumnsFromEmbeddings(seen)


def test_a_linear_bottom_of_full_rank_hides_nothing_and_noise_all(make_context):
    context = make_context(known_rows=60)
    columns = context.columns("shop")  # a number, and three cities
    mixed = columns @ np.random.default_rng(0).normal(size=(columns.shape[1], 6))
    found = attack_on(mixed, "shop").run(context)
    assert {(each.role, each.what) for each in found} == {
        (role, what) for role in ("coordinator", "bank") for what in ("e", "city")
    }
    for each in found:
        assert each.score > 0.99
        assert each.grade == "strong"
        assert each.known == 60
        assert each.metric == ("R²" if each.what == "e" else "accuracy")
        assert each.guess < 0.5
    noise = np.random.default_rng(0).normal(size=(400, 6))
    assert {each.grade for each in attack_on(noise, "shop").run(context)} == {"not shown"}
    # Of several parties with labels none is taken for the label party.
    context = make_context(known_rows=60)
    context.model.learnt_from = lambda _: ["bank", "telco"]
    assert {each.role for each in attack_on(mixed, "shop").run(context)} == {"coordinator"}


def test_one_number_a_row_cannot_tell_two_but_looks_add_up(make_context):
    context = make_context(known_rows=60)
    columns = context.columns("telco")
    rng = np.random.default_rng(0)
    once = columns @ rng.normal(size=(2, 1))
    (c, d) = attack_on(once, "telco").run(context)[:2]
    assert min(c.score, d.score) < 0.9
    again = [columns @ rng.normal(size=(2, 1)) for _ in range(3)]
    (c, d) = attack_on(once, "telco", again).run(context)[:2]
    assert min(c.score, d.score) > 0.99


def test_what_the_label_party_could_guess_anyway_is_no_leak(make_context):
    context = make_context(known_rows=100)
    context.table("telco")  # the column b of the bank, which telco has as well:
    site = context.fed.engine.site("telco")
    bank = context.fed.engine.site("bank")
    twin = bank.tables["train"].frame["b"].to_numpy()[bank.alignments["train"].aligned]
    own = np.empty(len(twin))
    own[site.alignments["train"].aligned] = twin
    site.tables["train"] = Table(np.arange(len(own)), {"twin": own})
    found = attack_on(context.columns("telco"), "telco").run(context)
    by_role = {each.role: each for each in found}
    assert by_role["coordinator"].grade == "strong"
    assert by_role["bank"].guess > 0.99
    assert by_role["bank"].gain < 0.01


def test_too_few_rows_are_said(make_context):
    context = make_context(n=30)
    with pytest.raises(NotApplicable, match="too few"):
        attack_on(np.ones((30, 2)), "telco").run(context)
    with pytest.raises(NotApplicable, match="no embedding"):
        ColumnsFromEmbeddings(Observations("train", 30, 1)).run(context)


def test_secrets_leave_out_what_never_varies_and_empty_cells():
    columns = {"x": [1.0, 2.0, None, 4.0, 5.0, 6.0], "k": ["a", "b", "a", None, "b", "a"]}
    table = Table(np.arange(6), columns | {"same": [1.0] * 6})
    found = {each.name: each for each in secrets_of(table, np.arange(6))}
    assert set(found) == {"x", "k"}
    assert found["x"].present.tolist() == [True, True, False, True, True, True]
    assert found["k"].present.tolist() == [True, True, True, False, True, True]
    assert found["k"].metric == "accuracy"


def test_looks_are_used_only_where_every_row_was_looked_at():
    rng = np.random.default_rng(0)
    values, look = rng.normal(size=(2, 50, 3))
    assert [view.shape[1] for view in attack_on(values, "telco", [look])._views("telco")] == [3, 6]
    some = attack_on(values, "telco")
    some.seen.embeddings["telco", BOTTOM].append(Look(np.arange(49), look[:49]))
    assert [view.shape[1] for view in some._views("telco")] == [3]


def test_the_label_party_puts_its_own_columns_beside_what_it_sees(make_context):
    """A sum of two columns tells one of them to whoever has the other."""
    context = make_context(known_rows=60)
    both = context.columns("telco")[:, :1] + context.columns("bank")[:, 1:2]
    by_role = {
        each.role: each.score for each in attack_on(both, "telco").run(context) if each.what == "c"
    }
    assert by_role["coordinator"] < 0.8 < 0.99 < by_role["bank"]


def test_cells_that_are_empty_or_all_alike_are_not_scored(make_context):
    context = make_context(known_rows=60)
    learnt = context.rng("columns telco").permutation(400)[:60]
    rng = np.random.default_rng(0)
    gaps, few, alike = rng.normal(size=(3, 400))
    gaps[::2] = np.nan
    others = np.setdiff1d(np.arange(400), learnt)
    few[others[19:]] = np.nan
    alike[others] = 1.0
    site = context.fed.engine.site("telco")
    aligned = site.alignments["train"].aligned
    columns = {}
    for name, values in (("gaps", gaps), ("few", few), ("alike", alike)):
        columns[name] = np.empty(400)
        columns[name][aligned] = values
    site.tables["train"] = Table(np.arange(400), columns)
    found = attack_on(rng.normal(size=(400, 3)), "telco").run(context)
    assert {each.what for each in found} == {"gaps"}
    assert {each.rows for each in found} == {int((~np.isnan(gaps[others])).sum())}
