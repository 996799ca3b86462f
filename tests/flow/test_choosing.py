"""`method = "auto"`: cross-validation inside the federation, and the choice in words."""

from __future__ import annotations

import numpy as np
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import AlignmentCounts, Federation, Party
from fedmend.flow import execute, plan_of
from fedmend.flow.choosing import Contest, FoldWorker, candidates_of, fold, main_metric
from fedmend.flow.config import load_config
from fedmend.flow.config.settings import AutoSettings
from fedmend.flow.live import Listener
from fedmend.flow.scoring import Reference

from .conftest import Stopping

AUTO = '[[method]]\nname = "auto"\nepochs = 3\nfolds = 2\nbudget = 60\n'


def run(workshop, text, **options):
    workshop.write(text, method="")
    return execute(plan_of(load_config(workshop.config)), workshop.run, **options)


def forget(train: Federation, held: Federation) -> None:
    with train.workers(FoldWorker) as group:
        group.forget([train.dataset, held.dataset])


def contest(fed, how, metrics) -> Contest:
    own = Reference(("bank",), own=True)
    return Contest({(False, False): fed}, how, own, metrics, False, 0, Listener())


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
        return Table(ids, {"x": rng.normal(size=30), "y": rng.choice(["a", "b"], 30)}, label="y")

    fed = Federation(Party("a", table(0)), Party("b", table(100)), strict=True)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for number in range(3):
        train, held = fold(fed, number, 3, 0, horizontal=True)
        for party in seen:
            site = fed.engine.site(party)
            out = site.tables[held.dataset].ids.tolist()
            assert not set(out) & set(site.tables[train.dataset].ids.tolist())
            seen[party] += out
    assert sorted(seen["a"]) == list(range(30)) and sorted(seen["b"]) == list(range(100, 130))


def test_candidates_fit_the_tears(make_fed) -> None:
    def names(fed, **options):
        flags = {"horizontal": False, "completed": False, "corrected": False} | options
        return [each.title for each in candidates_of(fed, AutoSettings(), **flags)]

    whole = ["Local", "LocalTrees", "VFL", "SecureBoost"]
    assert names(make_fed(aligned=100)) == [*whole, "LocalVFL", "RISA"]
    assert names(make_fed()) == whole, "nobody is unaligned"
    assert names(make_fed(), horizontal=True) == ["FedAvg", "FixMatch", "SAGE"]
    assert names(make_fed(aligned=100), completed=True, corrected=True) == [
        "Local + corrected labels",
        "LocalTrees + corrected labels",
        "VFL + corrected labels",
        "VFL + corrected labels + completed rows",
        "SecureBoost + corrected labels",
        "SecureBoost + corrected labels + completed rows",
        "LocalVFL + corrected labels",
        "LocalVFL + corrected labels + completed rows",
        "RISA + corrected labels",
        "RISA + corrected labels + completed rows",
    ]


def test_the_best_on_held_out_rows_is_chosen(make_fed, make_frame) -> None:
    """The label depends on the telco's column, so that the bank alone cannot win."""
    frame = make_frame(240)
    frame["y"] = np.where(frame["d"] > 0, "yes", "no")
    fed = make_fed(frame, columns={"bank": ["a", "b", "y"], "telco": ["c", "d"]})
    how = AutoSettings(candidates=["local", "vfl"], folds=3, epochs=15, bottom=[8])
    candidates = candidates_of(fed, how, horizontal=False, completed=False, corrected=False)
    choice = contest(fed, how, ["auc"]).run(candidates)
    assert choice["chosen"] == "VFL" and choice["folds"] == 3 and choice["metric"] == "auc"
    local, vfl = choice["candidates"]
    assert vfl["mean"] > 0.9 > local["mean"] and len(vfl["values"]) == 3
    assert "VFL was chosen: all parties together" in choice["why"][0]
    assert "Next came Local" in choice["why"][1]


@pytest.mark.parametrize(
    ("asked", "scores", "decides"),
    [
        ([], [{"accuracy": 0.5, "auc": 0.6}], "auc"),
        ([], [{"accuracy": 0.5, "auc": 0.6}, {"accuracy": 0.4, "auc": float("nan")}], "accuracy"),
        (["f1", "auc"], [{"f1": None, "auc": 0.6}], "auc"),
        (["auc"], [{"auc": None}], "auc"),
        (["auc"], [{"accuracy": 0.5, "auc": float("nan")}], "accuracy"),
        (["rmse"], [{"accuracy": 0.5, "auc": 0.6}], "auc"),
        ([], [{"rmse": 2.0, "mae": 1.0}], "rmse"),
        ([], [{"mae": 1.0}], "mae"),
    ],
)
def test_the_metric_that_decides_is_one_that_can_be_told(asked, scores, decides) -> None:
    assert main_metric(asked, scores) == decides


def test_the_budget_ends_it_after_a_whole_fold(make_fed) -> None:
    fed = make_fed(aligned=120)
    how = AutoSettings(candidates=["local", "vfl"], folds=5, budget=1e-6, epochs=1)
    candidates = candidates_of(fed, how, horizontal=False, completed=False, corrected=False)
    choice = contest(fed, how, []).run(candidates)
    assert choice["folds"] == 1
    assert any("time budget" in line for line in choice["why"])


@pytest.mark.parametrize("failing", [("vfl",), ("local", "vfl")])
def test_a_candidate_that_fails_later_is_not_chosen(make_fed, monkeypatch, failing) -> None:
    """Were it the best on the first fold, it could still not be trained on all rows."""
    seen = []

    def score(self, candidate, train, held):
        seen.append(candidate.name)
        if seen.count(candidate.name) > 1 and candidate.name in failing:
            raise ConfigError("one class only")
        return {"auc": 0.9 if candidate.name == "vfl" else 0.6}

    monkeypatch.setattr(Contest, "_score", score)
    fed, how = make_fed(aligned=120), AutoSettings(candidates=["local", "vfl"], folds=3)
    candidates = candidates_of(fed, how, horizontal=False, completed=False, corrected=False)
    choice = contest(fed, how, []).run(candidates)
    assert (choice["name"], choice["folds"]) == (
        ("local", 3) if failing == ("vfl",) else ("vfl", 1)
    )
    assert choice["candidates"][1]["skipped"] == "one class only"
    assert not any("time budget" in line for line in choice["why"])
    assert any("Further folds could not" in line for line in choice["why"]) == (len(failing) == 2)


def test_from_the_file_to_the_record(workshop) -> None:
    listener = Stopping()
    record = run(workshop, AUTO, listener=listener)
    (trained,) = record.methods
    assert trained.title == f"{record.choice['chosen']} (auto)"
    # Parameters are given to all that have them, and are those of the training too.
    assert trained.params.get("epochs", 3) == 3
    assert [each["title"] for each in record.choice["candidates"]] == [
        "Local", "LocalTrees", "VFL", "SecureBoost", "LocalVFL", "RISA",
    ]  # fmt: skip
    assert ("choose", "") in listener.made
    again = Stopping()
    record = run(workshop, AUTO, resume=True, listener=again)
    assert again.made == []
    other = Stopping()
    fewer = AUTO.replace("folds = 2", 'folds = 2\ncandidates = ["local"]')
    run(workshop, fewer, resume=True, listener=other)
    assert other.made_stages()[0] == "choose"


def test_method_may_be_one_word(workshop) -> None:
    workshop.write("", method="")
    text = 'method = "auto"\n' + workshop.config.read_text()
    workshop.config.write_text(text)
    plan = plan_of(load_config(workshop.config))
    assert plan.choose == AutoSettings() and plan.methods == [] and plan.trainings == []


def test_several_annotators_without_correction(world) -> None:
    record = world.run('[[method]]\nname = "auto"\nepochs = 2\nfolds = 2\nsecure = "masks"\n')
    assert record.choice["chosen"] in ("MJ", "EM", "InC")
    assert record.measured_against.startswith("the majority")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('candidates = ["vlf"]', "'vlf' is not a method: did you mean 'vfl'"),
        ('candidates = ["sage"]', "'sage' is for the other shape"),
        ("candidates = []", "candidates is empty"),
        ("folds = 1", "folds must be greater than or equal to 2, got 1"),
        ("budget = 0", "budget must be greater than 0, got 0"),
        ("epoch = 3", "epoch = 3 is not known"),
        ('epochs = "three"', "epochs must be a whole number"),
    ],
)
def test_what_is_wrong_with_it_is_told(workshop, line, said) -> None:
    workshop.write(f'[[method]]\nname = "auto"\n{line}\n', method="")
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    told = str(caught.value)
    assert said in told and ("Mend" in told or "did you mean" in told)


def test_a_horizontal_federation(workshop, make_frame) -> None:
    frame = make_frame(400).drop(columns="city")
    frame.insert(0, "id", range(400))
    frame.loc[frame.index % 3 > 0, "y"] = None
    for number, name in enumerate(("north", "south")):
        frame.iloc[number * 200 : number * 200 + 200].to_csv(
            workshop.folder / f"{name}.csv", index=False
        )
    party = '[[party]]\nname = "{0}"\ndata = "{0}.csv"\nid = "id"\nlabel = "y"\n'
    workshop.config.write_text(
        '[run]\nshape = "horizontal"\n' + party.format("north") + party.format("south")
        + '[[method]]\nname = "auto"\ncandidates = ["fedavg", "fixmatch"]\nrounds = 3\nfolds = 2\n'
    )  # fmt: skip
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    assert record.choice["chosen"] in ("FedAvg", "FixMatch")
    assert record.choice["folds"] == 2 and "rows of all parties" in record.choice["why"][0]
    assert record.methods[0].params["rounds"] == 3


def test_corrected_labels_do_not_judge_their_own_pupils(world, monkeypatch) -> None:
    """Held-out rows are measured against the majority of the votes, which no model has made."""
    seen = []
    score = Contest._score

    def spying(self, candidate, train, held):
        site = held.engine.site("bank")
        table = site.tables[held.dataset]
        seen.append(dict(zip(table.ids.tolist(), table.y.tolist(), strict=True)))
        return score(self, candidate, train, held)

    monkeypatch.setattr(Contest, "_score", spying)
    auto = '[[method]]\nname = "auto"\ncandidates = ["local", "vfl"]\nepochs = 2\nfolds = 2\n'
    correct = '[correct]\nepochs = 4\nsecure = "masks"\n'
    record = world.run(correct + auto + '[[method]]\nname = "vfl"\nepochs = 2\n')
    chosen = record.choice["chosen"]
    assert chosen.endswith("+ corrected labels")
    assert [each.title for each in record.methods] == ["VFL + corrected labels", f"{chosen} (auto)"]
    bank = world.workshop.bank.set_index("customer")["default"]
    telco = world.workshop.telco.set_index("customer")["y"]
    judged = {person: label for held in seen for person, label in held.items()}
    assert len(judged) > 50
    for person, label in judged.items():
        votes = {bank[person], telco[person]}
        assert (label in votes) if len(votes) == 1 else label is None or label != label
