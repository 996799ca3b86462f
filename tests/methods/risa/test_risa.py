"""RISA through strict federations: what crosses, what is learnt, every kind of row, keeping."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.data.scenario import split_columns, split_rows, tear
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, Refused, ResumeError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy
from fedmend.methods.risa.columns import RIDGES
from fedmend.methods.risa.network import MemberLinear
from fedmend.methods.risa.risa import OBJECTIVES, RISA
from fedmend.methods.risa.workers import EvidenceTopWorker
from fedmend.methods.vertical.vfl import Local
from fedmend.secure import align
from fedmend.split.parts import part_of
from fedmend.split.training import STATE

QUICK: dict[str, Any] = {
    "bottom": (16,),
    "embedding": 8,
    "top": (16,),
    "batch_size": 64,
    "lr": 1e-2,
    "epochs": 6,
}


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 5)), columns=list("abcde"))
    frame["city"] = rng.choice(["Ulm", "Bonn", "Kiel"], rows)
    signal = frame["a"] + 1.5 * frame["d"] + (frame["city"] == "Ulm") * 1.5
    frame["y"] = np.array(["low", "mid", "high"])[np.digitize(signal, [-0.5, 1.0])]
    return frame


def torn(overlap=0.3, rows=600, *, columns=None, policies=None, **options):
    """Rows known to all, and every party's side of the rest under ids of its own."""
    columns = columns or {"bank": ["a", "b"], "telco": ["c", "d", "city"], "shop": ["e"]}
    whole = Table.from_frame(frame_of(rows + 200), label="y", kinds={"y": "nominal"})
    sides = split_columns(whole, columns, label_party="bank")
    train, test = split_rows(sides, 200 / (rows + 200), seed=1)
    tables = tear(train, overlap=overlap, label_party="bank", seed=2)
    parties = [
        Party(name, tables[name], test=test[name], policy=(policies or {}).get(name))
        for name in columns
    ]
    fed = Federation(*parties, **{"strict": True} | options)
    for dataset, by_party in (("train", tables), ("test", test)):
        common = sorted(set.intersection(*(set(t.ids.tolist()) for t in by_party.values())))
        counts = {}
        for name, table in by_party.items():
            place = {each: position for position, each in enumerate(table.ids.tolist())}
            aligned = np.array([place[each] for each in common], np.int64)
            others = np.setdiff1d(np.arange(len(table)), aligned)
            fed.engine.site(name).alignments[dataset] = Alignment(aligned, others)
            counts[name] = len(others)
        fed.on(dataset).note_alignment(AlignmentCounts(len(common), counts))
    return fed


@pytest.fixture(scope="module")
def fed():
    return torn()


@pytest.fixture(scope="module")
def small():
    return torn(rows=300, strict=False)


@pytest.fixture(scope="module")
def model(fed):
    return RISA(**QUICK, threshold=0.45).fit(fed)


# ---------------------------------------------------------------------------------- learning


def test_it_learns_what_no_party_knows_alone(fed, model):
    scores = model.evaluate(fed.on("test"))
    alone = Local(**QUICK | {"epochs": 20}).fit(fed).evaluate(fed.on("test"), rows="all")
    assert scores["accuracy"] > alone["accuracy"] + 0.05
    p = model.predict_proba(fed.on("test"))
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-4)
    assert model.classes_.tolist() == ["high", "low", "mid"]
    assert model.score(fed.on("test")) == pytest.approx(scores["accuracy"])
    assert (model.classes_[p.argmax(1)] == model.predict(fed.on("test"))).all()


@pytest.fixture(scope="module")
def paper(fed):
    how = {"threshold": 0.3, "final_threshold": 0.05, "select_every": 1}
    return RISA.paper(**QUICK, **how).fit(fed)


def test_the_paper_trains_as_published(fed, paper):
    published = asdict(OBJECTIVES["fused"].objective) | {"selects": True}
    assert paper.network_.config.options["objective"] == published
    assert paper.calibration_ == {}
    assert paper.evaluate(fed.on("test"))["accuracy"] > 0.4
    heads = part_of(fed.engine.site("bank"), paper.network_.model).top
    assert heads is not None and heads.module.joint is None


def test_selection_drops_rows_and_never_overlapping_ones(paper):
    limits = [entry["limit"] for entry in paper.selection_ if entry["party"] == "bank"]
    assert limits == sorted(limits, reverse=True)
    assert all(entry["after"] <= entry["before"] for entry in paper.selection_)
    assert any(entry["after"] < entry["before"] for entry in paper.selection_)
    # none of the rows known to all was completed
    assert {entry["party"] for entry in paper.selection_} <= {"bank", "telco", "shop"}
    kept = {entry["party"]: entry["after"] for entry in paper.selection_}
    counts = paper.made_up()["telco"]
    assert counts["kept"] == kept["telco"] <= counts["chosen"]


def test_imputation_without_evidence_has_a_joint_head_alone(small):
    model = RISA.paper(**QUICK | {"epochs": 2}, objective="joint", threshold=None).fit(small)
    heads = part_of(small.engine.site("bank"), model.network_.model).top
    assert heads is not None and len(heads.module.heads) == 0
    for rows in ("aligned", "bank", "telco"):
        assert np.isfinite(model.predict_proba(small, rows=rows)).all()


def test_which_rows_the_model_is_sure_of_leave_as_predictions():
    fed = torn(rows=200)
    selects: Any = {"final_threshold": 0.5, "select_every": 1}
    how = selects | {"threshold": 0.4}
    RISA(**QUICK | {"epochs": 2}, **how).fit(fed)
    for call in ("make_labels", "keep_sure"):
        told = [each for each in fed.ledger.entries() if each.call.endswith(f".{call}")]
        kinds = {each.kind for each in told if each.sender == "bank"}
        assert kinds == {"prediction"}, call
    wary = torn(rows=200, policies={"bank": Policy(refuse=frozenset({"prediction"}))})
    for asked in ({"threshold": 0.95}, selects):
        with pytest.raises(Refused, match=r"'bank' refused.*'prediction'"):
            RISA(**QUICK | {"epochs": 2}, **asked).fit(wary)
    RISA(**QUICK | {"epochs": 1}).fit(wary)


@pytest.mark.slow
def test_a_tiny_overlap_never_hurts_much_and_no_mean_is_a_single_row():
    tiny = torn(overlap=0.02, strict=False)
    assert tiny.alignment.aligned < 15
    model = RISA(**QUICK).fit(tiny)
    alone = Local(**QUICK | {"epochs": 20}).fit(tiny)
    ours = model.evaluate(tiny.on("test"))["accuracy"]
    theirs = alone.evaluate(tiny.on("test"), rows="all")["accuracy"]
    assert ours > theirs - 0.08


def test_columns_add_up_to_evidence_where_overlapping_rows_are_few():
    few = torn(overlap=0.1, strict=False)
    quick = QUICK | {"epochs": 3}
    added = RISA(**quick).fit(few)
    trust = added.calibration_["aligned"]["trust"]
    assert trust["telco columns"] > 0.5
    assert "telco" not in trust  # its columns speak for it
    assert added.calibration_["telco"]["trust"]["telco columns"] > 0.5
    assert added.calibration_["aligned"]["ridge"] in RIDGES
    plain = RISA(**quick, fusion="dempster").fit(few)
    for model, learnt in ((added, True), (plain, False)):
        part = part_of(few.engine.site("telco"), model.network_.model)
        assert part.bottom.module.spec.members == 5
        assert (part.scores is not None) == learnt
    assert "telco columns" not in plain.calibration_["aligned"]["trust"]
    ours, theirs = (m.evaluate(few.on("test"))["log_loss"] for m in (added, plain))
    assert ours < theirs - 0.02
    shares = added.contributions(few.on("test")).mean()
    assert shares["telco"] > shares["shop"]


def test_trust_rests_on_rows_that_nothing_was_learnt_from(small, monkeypatch, tmp_path):
    judged_by: list[np.ndarray] = []
    known_of = EvidenceTopWorker._known_of

    def spied(self: EvidenceTopWorker, rows: np.ndarray) -> np.ndarray:
        judged_by.append(rows)
        return known_of(self, rows)

    monkeypatch.setattr(EvidenceTopWorker, "_known_of", spied)
    RISA(**QUICK | {"epochs": 1, "members": 1}).fit(small, checkpoint=tmp_path)
    state = json.loads((tmp_path / "train" / STATE).read_text(encoding="utf-8"))
    learnt, (held_out,) = set(state["pools"][0]), judged_by
    assert len(held_out) == 30  # a third of the 90 overlapping rows, no more
    assert not learnt & set(held_out.tolist())
    assert learnt | set(held_out.tolist()) == set(range(90))


def test_without_overlap_it_says_so():
    with pytest.raises(DataError, match=r"0 overlapping rows.*bank.*Local|bank.*0 overlapping"):
        RISA(**QUICK).fit(torn(overlap=0.0, rows=100))


def test_rows_completed_by_another_method_are_imputed_rows():
    """They are never held out to judge by; selection may drop them, but no others known to all."""
    fed = torn(rows=300, strict=False)
    counts = fed.alignment
    completed = counts.aligned // 2
    fed.note_alignment(AlignmentCounts(counts.aligned, counts.unaligned, completed))
    model = RISA(**QUICK | {"epochs": 4}, final_threshold=0.01, select_every=1).fit(fed)
    dropped = [entry for entry in model.selection_ if entry["party"] == "aligned"]
    assert dropped[0]["before"] == completed
    assert all(entry["before"] <= completed for entry in dropped)
    assert dropped[-1]["after"] < completed


def test_pseudo_labels_are_made_only_above_the_threshold(fed, model):
    made = model.pseudo_labels("telco")
    assert len(made["label"]) == fed.alignment.unaligned["telco"]
    np.testing.assert_array_equal(made["chosen"], made["sure"] >= 0.45)
    assert 0 < made["chosen"].sum() < len(made["chosen"])
    np.testing.assert_array_equal(made["kept"], made["chosen"])  # nothing was selected
    with pytest.raises(ConfigError, match="bank"):
        model.pseudo_labels("bank")


def test_the_label_partys_own_head_is_what_it_would_be_without_partners():
    quick = QUICK | {"epochs": 2, "members": 2}
    weights = []
    for columns in (["c", "d"], ["c", "e"]):
        fed = torn(rows=200, columns={"bank": ["a", "b"], "telco": columns}, strict=False)
        site = fed.engine.site("bank")
        part = part_of(site, RISA(**quick).fit(fed).network_.model)
        assert part.bottom is not None
        assert part.top is not None
        assert part.top.module.spec.solo == 0
        weights.append((part.bottom.module.state_dict(), part.top.module.state_dict()))
    plain = part_of(site, RISA(**quick, fusion="dempster").fit(fed).network_.model)
    assert plain.bottom.module.spec.members == 2
    (bottoms, heads), (others, their_heads) = weights
    for key, value in bottoms.items():  # two members' for the joint head, then two solo ones
        assert not np.array_equal(value[:2], others[key][:2])
        np.testing.assert_array_equal(value[2:], others[key][2:])
    for key, value in heads.items():
        assert np.array_equal(value, their_heads[key]) == key.startswith("heads.0."), key


# ------------------------------------------------------------------------------ rows of all kinds


def test_every_kind_of_row_is_predicted(fed, model):
    counts = fed.alignment
    for rows, wanted in {
        "aligned": counts.aligned,
        "all": counts.aligned + counts.unaligned["bank"],
        "bank": counts.unaligned["bank"],
        "telco": counts.unaligned["telco"],
        "shop": counts.unaligned["shop"],
    }.items():
        p = model.predict_proba(fed, rows=rows)
        u = model.predict_uncertainty(fed, rows=rows)
        assert p.shape == (wanted, 3)
        assert u.shape == (wanted,)
        assert ((u > 0) & (u <= 1 + 1e-6)).all()
    with pytest.raises(ConfigError, match="rows='nobody'"):
        model.predict(fed, rows="nobody")
    with pytest.raises(DataError, match="telco"):
        model.evaluate(fed, rows="telco")


def test_all_rows_come_in_the_order_of_the_table(fed, model):
    everything = model.predict_proba(fed, rows="all")
    alignment = fed.engine.site("bank").alignments["train"]
    np.testing.assert_allclose(
        everything[alignment.aligned], model.predict_proba(fed, rows="aligned"), atol=1e-5
    )
    np.testing.assert_allclose(
        everything[alignment.unaligned], model.predict_proba(fed, rows="bank"), atol=1e-5
    )


def calls(fed: Federation, receiver: str) -> int:
    return sum(e.count for e in fed.ledger.entries() if e.receiver == receiver)


def test_rows_of_one_party_are_predicted_without_the_others(fed, model):
    before = {e.receiver: calls(fed, e.receiver) for e in fed.ledger.entries()}
    model.predict_proba(fed, rows="bank")
    assert {name for name in fed.names if calls(fed, name) > before[name]} == {"bank"}
    alone = fed.only("bank").on("test")
    assert model.predict_proba(alone, rows="all").shape == (200, 3)
    assert model.evaluate(alone, rows="all")["accuracy"] > 0.3


def test_who_carried_a_decision(fed, model):
    found = model.contributions(fed.on("test"))
    assert list(found.columns) == ["bank", "telco", "shop"]
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-4)
    assert found.mean()["telco"] > found.mean()["shop"]  # shop's column says nothing
    only = model.contributions(fed, rows="telco")
    np.testing.assert_allclose(only["telco"], 1.0, atol=1e-4)


def test_uncertainty_is_worth_something(fed, model):
    found = model.uncertainty_report(fed.on("test"))
    assert found["rows"] == 200
    assert found["auroc"] > 0.55
    assert found["calibration_error"] < 0.25
    assert set(model.calibration_) == {"aligned", "bank", "telco", "shop"}


# ---------------------------------------------------------------------------------- what crosses


def test_labels_and_pseudo_labels_stay_with_the_label_party(fed, model):
    kinds = {entry.kind for entry in fed.ledger.entries() if entry.sender in ("telco", "shop")}
    assert kinds <= {"control", "embedding", "count", "statistic"}
    shown = {entry.kind for entry in fed.ledger.entries() if entry.receiver in ("telco", "shop")}
    assert shown <= {"control", "gradient"}
    sent = {entry.kind for entry in fed.ledger.entries() if entry.sender == "bank"}
    assert not sent & {"label", "row"}


def test_a_party_that_lets_no_embedding_out_stops_it():
    shy = torn(rows=120, policies={"telco": Policy(refuse=frozenset({"embedding"}))})
    with pytest.raises(Refused, match="telco"):
        RISA(**QUICK).fit(shy)


# ---------------------------------------------------------------------------------- keeping


def test_save_and_load(fed, model, tmp_path):
    model.save(tmp_path / "model")
    other = torn()
    again = RISA.load(tmp_path / "model", other)
    for rows in ("aligned", "all", "bank", "telco", "shop"):
        for found, wanted in zip(
            (again.predict_proba(other, rows=rows), again.predict_uncertainty(other, rows=rows)),
            (model.predict_proba(fed, rows=rows), model.predict_uncertainty(fed, rows=rows)),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert again.get_params() == model.get_params()
    assert again.calibration_ == model.calibration_
    assert repr(again) == repr(model)
    with pytest.raises(ConfigError, match="another federation"):
        model.predict(other)
    with pytest.raises(ConfigError, match="RISA"):
        Local.load(tmp_path / "model", other)


BROKEN_OFF = QUICK | {"epochs": 4, "threshold": 0.4}
BROKEN_OFF |= {"final_threshold": 0.5, "select_every": 2}


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:  # selection tells ever fewer rows apart
        patch.setattr("fedmend.federation.policy.MIN_ROWS", 1)
        return RISA(**BROKEN_OFF).fit(torn(rows=200, strict=False))


@pytest.mark.daily("stop0")
@pytest.mark.parametrize("stop", [("self-train", 2), ("train", 3)])
def test_a_run_that_broke_off_goes_on_as_if_nothing_had_happened(tmp_path, whole, stop, toys):
    def progress(stage: str, done: int, total: int, facts: dict[str, float]) -> None:
        if (stage, done) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RISA(**BROKEN_OFF).fit(
            torn(rows=200, strict=False), progress=progress, checkpoint=tmp_path / "c"
        )
    fresh = torn(rows=200, strict=False)
    again = RISA(**BROKEN_OFF).fit(fresh, checkpoint=tmp_path / "c", resume=True)
    wanted = whole.predict_proba(whole.fed_.on("test"))
    np.testing.assert_allclose(again.predict_proba(fresh.on("test")), wanted, atol=1e-5)
    losses = [entry["loss"] for entry in whole.history_]
    assert [entry["loss"] for entry in again.history_] == pytest.approx(losses)
    with pytest.raises(ResumeError):
        RISA(**BROKEN_OFF | {"lr": 1e-3}).fit(fresh, checkpoint=tmp_path / "c", resume=True)


def test_a_member_learns_nothing_from_the_rows_it_must_not_see():
    fed = torn(rows=200, strict=False)
    model = RISA(**QUICK, members=2, weight_decay=0.0)
    parties = model._parties(fed, "bank")
    network = model._make_network(fed, parties, "bank", model._config())
    counts = fed.alignment
    segments = [["aligned", counts.aligned], *([name, counts.unaligned[name]] for name in parties)]
    aligned = np.arange(counts.aligned)
    with network.session(segments) as session:
        none = np.zeros(0, np.int64)
        session.top.set_unseen(aligned, np.zeros(len(aligned), np.int64))
        session.set_pools([aligned, *[none] * len(parties)])
        heads = part_of(fed.engine.site("bank"), network.model).top
        bottom = part_of(fed.engine.site("telco"), network.model).bottom
        layers = [
            layer
            for module in (heads.module, bottom.module)
            for layer in module.modules()
            if isinstance(layer, MemberLinear)
        ]
        before = [layer.weight.detach().clone() for layer in layers]
        session.epoch(1)
        for layer, was in zip(layers, before, strict=True):
            np.testing.assert_array_equal(layer.weight[0].detach(), was[0])
        pairs = zip(layers, before, strict=True)
        assert any((layer.weight[1] != was[1]).any() for layer, was in pairs)


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"objective": "vote"}, "objective must be one of heads, views, fused, joint, got 'vote'"),
        ({"threshold": 0.0}, r"threshold must be in \(0, 1\] or None, got 0.0"),
        ({"final_threshold": 2.0}, "final_threshold"),
        ({"share_every": -1}, "share_every"),
        ({"label_party": "post"}, "post"),
        ({"members": 0, "embedding": 0}, "members must be at least 1, got 0(.|\n)*embedding"),
    ],
)
def test_wrong_parameters_are_named(wrong, word):
    with pytest.raises(ConfigError, match=word):
        RISA(**QUICK | wrong).fit(torn(rows=60))


def test_numbers_to_predict_are_refused(make_fed, make_frame):
    with pytest.raises(DataError, match=r"bank.*classes"):
        RISA(**QUICK).fit(make_fed(make_frame(task="regression"), aligned=100))


def test_a_label_party_without_features_and_rows_without_labels():
    frame = frame_of(300)
    frame.loc[frame.index[:60], "y"] = None
    ids = np.arange(300)
    fed = Federation(
        Party("clinic", Table(ids, frame[["y"]], label="y", kinds={"y": "nominal"})),
        Party("bank", Table(ids, frame[["a", "b"]])),
        Party("telco", Table(ids, frame[["d", "city"]])),
        strict=True,
    )
    for name in fed.names:
        fed.engine.site(name).alignments["train"] = Alignment(ids, np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(300, dict.fromkeys(fed.names, 0)))
    model = RISA(**QUICK | {"epochs": 10}).fit(fed)
    assert model.evaluate(fed)["accuracy"] > 0.5
    assert list(model.contributions(fed).columns) == ["bank", "telco"]


def test_a_federation_of_one_needs_local():
    table = Table.from_frame(frame_of(60), label="y", kinds={"y": "nominal"})
    fed = Federation(Party("bank", table))
    with pytest.raises(DataError, match="RISA needs a partner"):
        RISA().fit(fed)


@pytest.mark.parametrize("labelled", [12, 25])
def test_few_labels_beside_a_few_of_ones_own_are_enough(labelled):
    """A loss over both may be missed, what outputs are trusted by may not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 4))
    y = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no").astype(object)
    y[labelled:120] = y[120 + labelled // 4 :] = None
    bank = pd.DataFrame(x[:, :2], columns=["a", "b"]).assign(y=y)
    telco = pd.DataFrame(x[:, 2:], columns=["c", "d"])
    fed = Federation(
        Party("bank", Table(np.arange(160), bank, label="y")),
        Party("telco", Table(np.r_[np.arange(120), np.arange(160, 200)], telco)),
    )
    align(fed)
    model = RISA(epochs=2, label_party="bank").fit(fed)
    assert "ridge" in model.calibration_["aligned"]
    assert len(model.predict_proba(fed)) == 120
