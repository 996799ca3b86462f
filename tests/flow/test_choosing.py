"""`method = "auto"`: cross-validation inside the federation, and the choice in words."""

from __future__ import annotations

import pytest

import fedmend as fm
from fedmend.errors import ConfigError
from fedmend.flow import execute, plan_of
from fedmend.flow.choosing import Contest, candidates_of
from fedmend.flow.config import load_config
from fedmend.flow.config.settings import AutoSettings
from fedmend.flow.live import Listener
from fedmend.flow.scoring import Reference
from fedmend.methods.auto.folds import simplest
from fedmend.report.record import main_metric

from .conftest import Stopping

AUTO = '[[method]]\nname = "auto"\nepochs = 3\nfolds = 2\nbudget = 60\n'


def run(workshop, text, **options):
    workshop.write(text, method="")
    return execute(plan_of(load_config(workshop.config)), workshop.run, **options)


def contest(fed, how, metrics) -> Contest:
    own = Reference(("bank",), own=True)
    return Contest({False: fed}, how, own, metrics, False, 0, Listener())


def test_candidates_fit_the_shape(make_fed) -> None:
    def names(**options):
        flags = {"horizontal": False, "completed": False} | options
        return [each.title for each in candidates_of(make_fed(), AutoSettings(), **flags)]

    assert names(horizontal=True) == ["FedAvg", "FixMatch", "SAGE"]
    assert names() == ["majority vote", "Dawid–Skene", "InC"]
    assert names(completed=True)[:3] == [
        "majority vote",
        "majority vote + completed rows",
        "Dawid–Skene",
    ]


@pytest.mark.parametrize(("apart", "chosen"), [(0.001, "majority vote"), (0.2, "InC")])
def test_the_simplest_within_a_standard_error_is_chosen(
    make_fed, monkeypatch, apart, chosen
) -> None:
    other = [0.71 + apart, 0.72 + apart, 0.7 + apart]
    values = {"majority": iter([0.7, 0.72, 0.71]), "inc": iter(other)}

    def score(self, candidate, train, held):
        return {"auc": next(values[candidate.name])}

    monkeypatch.setattr(Contest, "_score", score)
    how = AutoSettings(candidates=["majority", "inc"], folds=3)
    fed = make_fed(aligned=120)
    found = contest(fed, how, ["auc"]).run(
        candidates_of(fed, how, horizontal=False, completed=False)
    )
    assert found["chosen"] == chosen and found["folds"] == 3 and found["metric"] == "auc"
    assert f"{chosen} was chosen" in found["why"][0]
    assert [each["weights"]["held-out rows"] for each in found["candidates"]] == [
        float(chosen == "majority vote"),
        float(chosen == "InC"),
    ]


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        ([0.71, 0.74, 0.70, 0.73], 1),
        ([0.70, 0.70, 0.72, 0.71], 0),  # ahead in one fold, behind in another
        ([0.69, 0.70, 0.69, 0.71], 0),
        ([0.75], 1),
    ],
)
def test_ahead_is_by_more_than_folds_differ(other, chosen) -> None:
    assert simplest([[0.70, 0.71, 0.70, 0.72][: len(other)], other]) == chosen


@pytest.mark.parametrize("asked", ["log_loss", "accuracy"])
@pytest.mark.parametrize(
    ("judges", "chosen"),
    [(("bank", "lab"), "InC"), (("bank",), "majority vote")],
    ids=["majority", "party"],
)
def test_what_repeats_the_majority_is_not_chosen_for_agreeing_with_it(
    make_fed, monkeypatch, asked, judges, chosen
) -> None:
    """Against the majority a copy of it is never wrong; a party's labels are taken as true."""
    told = {
        "majority": {"auc": 0.8, "accuracy": 0.95, "log_loss": 0.2},
        "inc": {"auc": 0.9, "accuracy": 0.9, "log_loss": 0.4},
    }
    monkeypatch.setattr(Contest, "_score", lambda self, each, train, held: told[each.name])
    how = AutoSettings(candidates=["majority", "inc"], folds=2)
    fed = make_fed(aligned=120)
    found = Contest({False: fed}, how, Reference(judges), [asked], False, 0, Listener()).run(
        candidates_of(fed, how, horizontal=False, completed=False)
    )
    assert found["chosen"] == chosen
    assert found["metric"] == ("auc" if chosen == "InC" else asked)
    assert any("AUC decided" in line for line in found["why"]) == (chosen == "InC")


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


def test_the_budget_ends_it_after_two_folds(make_fed) -> None:
    fed = make_fed(aligned=120)
    how = AutoSettings(candidates=["local", "vfl"], folds=5, budget=1e-6, epochs=1)
    candidates = candidates_of(fed, how, horizontal=False, completed=False)
    choice = contest(fed, how, []).run(candidates)
    assert choice["folds"] == 2  # one could not tell a difference from chance
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
    candidates = candidates_of(fed, how, horizontal=False, completed=False)
    choice = contest(fed, how, []).run(candidates)
    assert (choice["name"], choice["folds"]) == (
        ("local", 3) if failing == ("vfl",) else ("vfl", 1)
    )
    assert choice["candidates"][1]["skipped"] == "one class only"
    assert not any("time budget" in line for line in choice["why"])
    assert any("Further folds could not" in line for line in choice["why"]) == (len(failing) == 2)


def test_from_the_file_to_the_record(workshop, monkeypatch) -> None:
    for trees in (fm.SecureBoost, fm.LocalTrees):
        monkeypatch.setitem(trees.__init__.__kwdefaults__, "trees", 5)
    listener = Stopping()
    record = run(workshop, AUTO, listener=listener)
    (trained,) = record.methods
    assert trained.title == "Auto" and trained.params["settings"] == {"epochs": 3}
    # Folds and trees are not called epochs, and those of several models are not added up.
    bars = listener.bars - {"blinding ids"}
    assert {"fold 1", "fold 2"} <= bars <= {"fold 1", "fold 2", "trees", "epochs"}
    assert " + " in record.choice["chosen"] and trained.history == []
    assert [each["title"] for each in record.choice["candidates"]] == [
        "Local", "LocalTrees", "SecureBoost", "RISA",
    ]  # fmt: skip
    assert "ederation" in record.choice["why"][0] and "auc" in trained.scores
    again = Stopping()
    record = run(workshop, AUTO, resume=True, listener=again)
    assert again.made == [] and record.choice["folds"] == 2
    other = Stopping()
    fewer = AUTO.replace("folds = 2", 'folds = 2\ncandidates = ["local", "vfl"]')
    run(workshop, fewer, resume=True, listener=other)
    assert other.made_stages()[0] == "train"


def test_method_may_be_one_word(workshop) -> None:
    workshop.write("", method="")
    text = 'method = "auto"\n' + workshop.config.read_text()
    workshop.config.write_text(text)
    plan = plan_of(load_config(workshop.config))
    assert plan.choose == AutoSettings() and plan.methods == [] and plan.trainings == []


@pytest.mark.slow
def test_several_annotators_without_correction(world) -> None:
    record = world.run('[[method]]\nname = "auto"\nepochs = 2\nfolds = 2\nsecure = "masks"\n')
    assert record.choice["chosen"] in ("majority vote", "Dawid–Skene", "InC")
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


@pytest.mark.parametrize("west", [70, 16], ids=["few labels", "a small party"])
def test_what_cannot_be_judged_is_no_reason_for_pseudo_labels(workshop, make_frame, west) -> None:
    """In a fold a party has six labelled rows, too few to tell of, or too few rows to be cut."""
    frame = make_frame(300).drop(columns="city")
    frame.insert(0, "id", range(300))
    party = (
        '[[party]]\nname = "{0}"\ndata = "{0}.csv"\ntest = "{0}-test.csv"\nid = "id"\nlabel = "y"\n'
    )
    names = ("north", "south", "west")
    for number, name in enumerate(names):
        rows, file = frame.iloc[number * 100 : number * 100 + 100], workshop.folder / f"{name}.csv"
        rows[70:].to_csv(file.with_name(f"{name}-test.csv"), index=False)
        known = rows.index % 6 == 0
        kept = rows[: west if name == "west" else 70]
        kept.assign(y=kept["y"].where(known[: len(kept)])).to_csv(file, index=False)
    workshop.config.write_text(
        '[run]\nshape = "horizontal"\n' + "".join(map(party.format, names))
        + '[[method]]\nname = "auto"\nrounds = 2\nfolds = 2\n'
    )  # fmt: skip
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    found = record.choice["candidates"]
    assert [each["name"] for each in found] == ["fedavg", "fixmatch", "sage"]
    assert not any(each["skipped"] or each["scores"] for each in found)
    assert record.choice["name"] == "fedavg"
    assert record.choice["why"][0].startswith("FedAvg was taken without a comparison")
    assert not any("set aside" in note for note in record.notes)  # there are test tables


@pytest.mark.slow
def test_corrected_labels_are_learnt_by_their_likelihood(world) -> None:
    auto = '[[method]]\nname = "auto"\ncandidates = ["local", "vfl"]\nepochs = 2\nfolds = 2\n'
    correct = '[correct]\nepochs = 4\nsecure = "masks"\n'
    record = world.run(correct + auto + '[[method]]\nname = "vfl"\nepochs = 2\n')
    titles = [each.title for each in record.methods]
    assert titles == ["Auto + corrected labels", "VFL + corrected labels"]
    assert [each["name"] for each in record.choice["candidates"]] == ["local", "vfl"]
