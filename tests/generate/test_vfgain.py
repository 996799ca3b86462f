"""VF-GAIN over two parties: against a twin in one piece, and what crosses."""

import copy
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError, NotFitted, Refused
from fedmend.federation import Federation, Party, Policy
from fedmend.federation.federation import AlignmentCounts
from fedmend.federation.site import Alignment, Site
from fedmend.generate import vfgain
from fedmend.generate.gain import GAIN, Rows
from fedmend.generate.training import EMA, held_out
from fedmend.generate.vfgain import (
    VFGAIN,
    ContextWorker,
    ImputerWorker,
    give_rows,
    made_rows,
    numbered_rows,
)
from fedmend.split.features import BatchOrder
from fedmend.split.training import epoch_seed

SMALL: dict[str, Any] = {
    "hidden": 12,
    "bottom": (8,),
    "embedding": 4,
    "refine": 1,
    "batch_size": 16,
    "device": "cpu",
}
ALIGNED, ONLY_A, ONLY_B = 60, 30, 20


def people(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    level = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "age": 40 + 10 * level,
            "city": np.where(level > 0, "Rome", "Oslo"),
            "income": 1000 * level + 100 * rng.normal(size=rows),
            "member": np.where(level + 0.3 * rng.normal(size=rows) > 0, "yes", "no"),
            "visits": rng.poisson(np.exp(0.5 * level)),
        }
    )


def federation(sizes=(ALIGNED, ONLY_A, ONLY_B), *, seed=0, **options):
    """A knows age and city, B the rest; the aligned rows stand in different orders."""
    aligned, only_a, only_b = sizes
    everybody = people(sum(sizes))
    at_a = np.r_[np.arange(aligned)[::-1], aligned + np.arange(only_a)]
    at_b = np.r_[np.arange(aligned), aligned + only_a + np.arange(only_b)]
    frames = (
        everybody.iloc[at_a][["age", "city"]],
        everybody.iloc[at_b].drop(columns=["age", "city"]),
    )
    tables = [Table(np.arange(len(frame)), frame.reset_index(drop=True)) for frame in frames]
    gaps = tables[1].frame.astype({"income": float})
    gaps.loc[::5, "income"] = np.nan
    tables[1] = Table(tables[1].ids, gaps)
    fed = Federation(
        Party("a", tables[0]), Party("b", tables[1], **options), seed=seed, strict=True
    )
    own = np.arange(aligned)
    site(fed, "a").alignments["train"] = Alignment(own[::-1].copy(), aligned + np.arange(only_a))
    site(fed, "b").alignments["train"] = Alignment(own, aligned + np.arange(only_b))
    fed.note_alignment(AlignmentCounts(aligned, {"a": only_a, "b": only_b}))
    return fed


def site(fed: Federation, name: str) -> Site:
    return fed.engine.site(name)


def weights(fed: Federation, model: VFGAIN) -> dict[str, torch.Tensor]:
    bottom = site(fed, "a").state["parts"][model.model_].bottom.module
    generator = site(fed, "b").state["parts"][model.model_]
    named = {"bottom": bottom, "net": generator.net_, "critic": generator.critic_}
    return {
        f"{part}.{name}": value
        for part, module in named.items()
        for name, value in module.named_parameters()
    }


# --- the twin --------------------------------------------------------------------------------


def twin(fed: Federation, model: VFGAIN, steps: int) -> None:
    """Train the same two fresh parts as one network, in one graph, with torch's own Adam.

    The parts are those of a model that was only opened, in a federation of its own.
    """
    model.a_, model.b_, model.fed_, model.model_ = "a", "b", fed, "twin"
    with model._pair(fed) as (bottom, imputer):
        model._open(bottom, imputer, ALIGNED, None)
        kept, _ = held_out(ALIGNED, 0.1, np.random.default_rng(0))
        batches = imputer.set_order(kept)
        inner = site(fed, "a")._workers[bottom._workers._handles["a"]]
        worker = site(fed, "b")._workers[imputer._workers._handles["b"]]
        assert isinstance(worker, ImputerWorker)
        net, features = inner.trained.module, inner.trained.features
        adam = torch.optim.Adam(net.parameters(), model.lr)
        order, epoch = BatchOrder(kept, model.batch_size, torch.device("cpu")), 0
        for step in range(steps):
            if step % batches == 0:
                epoch += 1
                order.start(epoch_seed(fed.seed, model.seed, epoch))
            numbers = order.next()
            adam.zero_grad()
            context = net(features.batch(numbers))
            worker.duel.step(worker.training_rows(numbers, context))
            adam.step()


@pytest.mark.parametrize("steps", [1, 7])
def test_two_parties_equal_a_twin_in_one_piece(steps):
    options = SMALL | {"precision": "float64", "dropout": 0.2, "steps": steps}
    one, two = federation(), federation()
    model, other = VFGAIN(**options), VFGAIN(**options)
    # Averages are for use; what is compared are the trained weights themselves.
    seen: dict[str, torch.Tensor] = {}
    exchange = model._exchange

    def watched(*args: Any) -> None:
        exchange(*args)
        seen.update({name: value.clone() for name, value in weights(one, model).items()})

    model._exchange = watched
    model.fit(one, a="a", b="b")
    twin(two, other, steps)
    theirs, fresh = weights(two, other), federation()
    twin(fresh, untrained := VFGAIN(**options), 0)
    start = weights(fresh, untrained)
    assert set(seen) == set(theirs)
    assert not any(torch.equal(seen[name], start[name]) for name in seen)
    for name, value in theirs.items():
        assert seen[name].dtype == torch.float64
        torch.testing.assert_close(seen[name], value, rtol=0, atol=1e-10, msg=name)


# --- what crosses -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    fed = federation((240, 40, 20))
    return fed, VFGAIN(**SMALL | {"steps": 30}).fit(fed, a="a", b="b")


def test_only_embeddings_and_gradients_cross_one_of_each_a_step(fitted):
    fed, model = fitted
    steps = [entry for entry in fed.ledger.entries() if entry.call == "ImputerWorker.step"]
    sent = sum(entry.count for entry in steps if entry.sender == "b")
    assert sent == model.history_.steps == 30
    model.impute(fed)
    assert fed.ledger.kinds() == {"control", "embedding", "gradient"}
    assert fed.ledger.kinds(sender="a") == {"control", "embedding"}
    assert fed.ledger.kinds(receiver="a") == {"control", "gradient"}
    assert fed.ledger.kinds(sender="b") == {"control", "gradient"}
    # embeddings are as wide as agreed, and all that B says besides is small talk
    for entry in fed.ledger.entries():
        if entry.kind in ("embedding", "gradient"):
            assert entry.shape.endswith("4"), entry
        elif entry.sender == "b":
            assert entry.bytes < 200, entry


def test_sealing_changes_no_bit():
    made = []
    for seal in (False, True):
        fed = federation()
        model = VFGAIN(**SMALL, steps=3, seal=seal).fit(fed, a="a", b="b")
        rows = model.impute(fed, seed=1, order="seeded", keep="made")
        made.append((weights(fed, model), made_rows(site(fed, "b"), rows.name).frame, fed))
    for name, value in made[0][0].items():
        assert torch.equal(value, made[1][0][name]), name
    pd.testing.assert_frame_equal(made[0][1], made[1][1])
    for (_, _, fed), sealed in zip(made, (set(), {"a", "b"}), strict=True):
        told = [e.sealed_for for e in fed.ledger if e.kind in ("embedding", "gradient")]
        assert set(told) == (sealed or {""})


def test_a_party_that_lets_no_embeddings_out_is_not_trained_with():
    fed = federation()
    site(fed, "a").policy = Policy(refuse=frozenset({"embedding"}))
    with pytest.raises(Refused, match="embedding"):
        VFGAIN(**SMALL, steps=2).fit(fed, a="a", b="b")


# --- use ----------------------------------------------------------------------------------------


def test_rows_that_only_a_has_are_made_at_b(fitted):
    fed, model = fitted
    made = model.impute(fed, keep="new")
    assert (made.party, made.name, made.rows) == ("b", "new", 40)
    table, own = made_rows(site(fed, "b"), "new"), site(fed, "b").table_of("train")
    assert table.names == own.names
    assert table.schema == own.schema
    assert list(table.ids) == list(range(40))
    assert not table.frame.isna().to_numpy().any()
    assert (table.frame.dtypes == own.frame.dtypes).all()
    numbered = numbered_rows(site(fed, "a"), "new")
    assert sorted(numbered) == list(range(240, 280))
    assert list(numbered) != list(range(240, 280))
    with pytest.raises(NotFitted, match="'other'"):
        made_rows(site(fed, "b"), "other")


def test_gaps_of_aligned_rows_are_filled_and_the_rest_stays(fitted):
    fed, model = fitted
    model.impute(fed, rows="aligned", keep="whole")
    whole = made_rows(site(fed, "b"), "whole").frame
    own = site(fed, "b").table_of("train").frame.iloc[:240]
    assert own["income"].isna().sum() == 48
    assert not whole.isna().to_numpy().any()
    for name in own:
        there = own[name].notna()
        assert whole[name][there].equals(own[name][there]), name


def test_given_cells_are_kept(fitted, quiet_table):
    fed, model = fitted
    known = pd.DataFrame({"member": ["yes", "no"] * 20, "income": np.nan, "visits": np.nan})
    own = site(fed, "b").table_of("train")
    given = quiet_table(np.arange(100, 140), known[own.names], schema=own.schema)
    give_rows(site(fed, "b"), "known", given)
    model.impute(fed, given="known", keep="done", order="kept")
    done = made_rows(site(fed, "b"), "done")
    assert list(done.ids) == list(given.ids)
    assert list(done.frame["member"]) == ["yes", "no"] * 20
    assert not done.frame.isna().to_numpy().any()
    give_rows(site(fed, "b"), "few", given.take(np.arange(3)))
    with pytest.raises(DataError, match="3 rows are given, 40"):
        model.impute(fed, given="few")


def test_the_same_seed_gives_the_same_rows():
    made = []
    for seed in (0, 0, 1):
        fed = federation()
        model = VFGAIN(**SMALL, steps=6, seed=seed).fit(fed, a="a", b="b")
        model.impute(fed, keep="mean", order="seeded")
        model.impute(fed, keep="drawn", order="seeded", draws=1)
        made.append([made_rows(site(fed, "b"), name) for name in ("mean", "drawn")])
    for first, second, third in zip(*made, strict=True):
        assert first.equals(second)
        assert not first.equals(third)


def test_a_fit_that_was_stopped_is_none():
    def stop(*_):
        raise KeyboardInterrupt

    fed, model = federation(), VFGAIN(**SMALL, steps=6)
    with pytest.raises(KeyboardInterrupt):
        model.fit(fed, a="a", b="b", progress=stop)
    with pytest.raises(NotFitted):
        model.impute(fed)


def test_b_draws_rows_of_its_own(fitted):
    fed, model = fitted
    drawn = model.sample(fed)
    assert made_rows(site(fed, "b"), drawn.name).n_rows == 40
    with pytest.raises(NotFitted, match="impute\\(fed\\)"):
        model.sample(5)
    alone = site(fed, "b").state["parts"][model.model_]
    assert alone.sample(7, given={"member": "yes"}, seed=0).frame["member"].eq("yes").all()


@pytest.mark.slow
def test_the_context_is_learnt_from():
    fed = federation((300, 80, 0))
    options = SMALL | {"hidden": 32, "embedding": 8, "lr": 5e-3, "batch_size": 64, "steps": 180}
    model = VFGAIN(**options).fit(fed, a="a", b="b")
    made = model.impute(fed, order="kept")
    truth = people(380).iloc[300:].reset_index(drop=True)
    filled = made_rows(site(fed, "b"), made.name).frame
    error = np.sqrt(np.mean((filled["income"] - truth["income"]) ** 2))
    assert error < 0.3 * truth["income"].std()
    assert (filled["member"] == truth["member"]).mean() > 0.8


def test_both_parties_go_back_to_where_held_out_rows_were_met_best(monkeypatch):
    fed = federation((220, 10, 10))
    given = iter([3.0, 1.0, 2.0, 2.0])
    seen: list[dict[str, torch.Tensor]] = []

    def score(_: GAIN, average: EMA, rows: Rows, blank: float = 0.0) -> float:
        assert rows.side.abs().sum() > 0  # of the other party's embedding
        (bottom,) = (w for w in site(fed, "a")._workers.values() if isinstance(w, ContextWorker))
        assert bottom.average is not None
        parts = {"bottom": bottom.average.average, "net": average.average}
        named = [(f"{part}.{n}", v) for part, m in parts.items() for n, v in m.named_parameters()]
        seen.append({name: value.clone() for name, value in named})
        return next(given)

    monkeypatch.setattr(GAIN, "_score", score)
    monkeypatch.setattr(vfgain, "_EVERY", 1)
    model = VFGAIN(**SMALL | {"batch_size": 64}, steps=100, patience=2).fit(fed, b="b")
    assert model.history_.stopped_early
    assert model.history_.best_step == model.history_.steps // 2
    found = weights(fed, model)
    for name, value in seen[1].items():
        assert torch.equal(found[name], value), name
        assert not torch.equal(seen[3][name], value), name


def test_without_another_party_it_is_gain(mixed, gappy):
    plain = {"hidden": 16, "steps": 10, "batch_size": 40, "blank": 0.2, "device": "cpu"}
    ours, theirs = VFGAIN(**plain).fit(mixed), GAIN(**plain).fit(mixed)
    assert ours.impute(gappy).equals(theirs.impute(gappy))
    for name, value in theirs.net_.state_dict().items():
        assert torch.equal(ours.net_.state_dict()[name], value), name


# --- keeping, and bad input ---------------------------------------------------------------------


def test_both_parts_are_saved_and_loaded(fitted, tmp_path):
    fed, model = fitted
    folder = model.save(tmp_path / "model")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "model.json",
        "a/part.fmw",
        "b/generator.fmw",
    }
    model.impute(fed, keep="before", order="seeded")
    again = federation((240, 40, 20))
    loaded = VFGAIN.load(folder, again)
    assert loaded.get_params() == model.get_params()
    loaded.impute(again, keep="before", order="seeded")
    before, after = (made_rows(site(f, "b"), "before") for f in (fed, again))
    assert before.equals(after)
    with pytest.raises(ConfigError, match="another federation"):
        model.impute(again)
    (folder / "b" / "generator.fmw").unlink()
    with pytest.raises(DataError, match="party 'b'.*generator.fmw"):
        VFGAIN.load(folder, again)


def test_it_says_how_it_is_kept_in_place_of_a_pickle(fitted, gappy):
    """As estimators do; there is no other word for it than one about a lock of the federation."""
    fed, model = fitted
    for keep in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(ConfigError, match=r"save\(folder\), and VFGAIN.load\(folder, fed\)"):
            keep(model)
    assert clone(model).get_params() == model.get_params()
    alone = clone(model).set_params(steps=2).fit(fed, a="a", b="b").fit(gappy)
    assert not hasattr(alone, "fed_")
    again = copy.deepcopy(alone)
    assert again.impute(gappy, seed=1).equals(alone.impute(gappy, seed=1))


def test_bad_input_is_named():
    fed = federation()
    model = VFGAIN(**SMALL, steps=2)
    with pytest.raises(NotFitted, match="fit"):
        model.impute(fed)
    with pytest.raises(ConfigError, match="a='a', b='a'"):
        model.fit(fed, a="a", b="a")
    with pytest.raises(ConfigError, match="two of a, b"):
        model.fit(fed, a="a", b="c")
    with pytest.raises(DataError, match="party 'b'.*8 aligned rows"):
        model.fit(federation((8, 5, 5)), a="a", b="b")
    with pytest.raises(DataError, match="'b'.*wages"):
        model.fit(fed, b="b", columns=["wages"])
    with pytest.raises(ConfigError, match=r"(?s)embedding.*bf16"):
        VFGAIN(embedding=0, precision="bf16").fit(fed, a="a", b="b")
    with pytest.raises(AlignmentError, match="align"):
        model.fit(Federation(*(Party(n, Table([1], {"x": [1]})) for n in "ab")), a="a", b="b")
    model.fit(fed, b="b", columns=["member", "visits"])
    assert (model.a_, model.b_) == ("a", "b")
    with pytest.raises(ConfigError, match="rows='all'"):
        model.impute(fed, rows="all")
    model.impute(fed, keep="two")
    assert made_rows(site(fed, "b"), "two").names == ["member", "visits"]
