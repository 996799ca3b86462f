"""A run in stages: stopped anywhere and gone on with, it ends as if never stopped."""

from __future__ import annotations

import json
import shutil

import pytest

from fedmend.errors import ConfigError, DataError, FedmendError
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.flow.mending import COMPLETING, CORRECTING
from fedmend.report.record import RunRecord

from .conftest import ALL, COMPLETE, CORRECT, EVALUATE, RUN, VFL, Stopping

ENDS = ["align", "diagnose", "complete", "correct", "train", "evaluate"]


def same_scores(one: RunRecord, other: RunRecord) -> None:
    assert [each.title for each in one.methods] == [each.title for each in other.methods]
    for ours, theirs in zip(one.methods, other.methods, strict=True):
        # Completed cells come from fixed point with fresh masks: alike to many digits.
        assert ours.scores == pytest.approx(theirs.scores, abs=1e-4)
        assert len(ours.history) == len(theirs.history)


def test_every_stage_has_an_entry_with_files_that_are_there(finished) -> None:
    world, record = finished
    manifest = world.manifest
    assert [(each.stage, each.unit) for each in manifest.entries] == [
        ("align", ""), ("diagnose", ""), ("complete", ""), ("correct", ""),
        *((stage, f"vfl-corrected-labels-completed-rows-{seed}") for seed in (0, 1)
          for stage in ("train", "evaluate")),
        ("report", ""),
    ]  # fmt: skip
    for entry in manifest.entries:
        assert entry.outputs and entry.inputs and entry.fingerprint and entry.started
        for path in entry.outputs:
            name, _, party = path.partition("@")
            assert (world.run_folder / name / party).exists(), path
    by_stage = {each.stage: each for each in manifest.entries}
    assert set(by_stage["align"].inputs) == {
        f"tables/{party}/{table}" for party in ("bank", "telco") for table in ("train", "test")
    }
    assert by_stage["correct"].says == record.correction["says"]
    assert by_stage["train"].inputs == {"correct": by_stage["correct"].product}
    assert record.seconds == pytest.approx(manifest.seconds, abs=by_stage["report"].seconds + 0.1)


def test_corrected_labels_reach_the_trainings(finished) -> None:
    _, record = finished
    assert [each.title for each in record.methods] == [
        "VFL + corrected labels + completed rows"
    ] * 2
    found = record.correction
    assert found["to"] == "bank" and found["parties"] == ["bank", "telco"]
    assert 0 < found["changed"] < found["rows"] == record.overview["aligned"]
    assert set(found["labelling"]["expertise"]) == {"bank", "telco"}
    assert record.methods[0].about.endswith("labels corrected before; completed rows included")
    assert record.methods[0].params["label_party"] == "bank"


def test_killed_after_every_stage_and_resumed(world, finished) -> None:
    for stage in ENDS:
        listener = Stopping(after=stage)
        done = {(each.stage, each.unit) for each in world.entries_so_far()}
        with pytest.raises(KeyboardInterrupt):
            world.run(ALL, resume=bool(done), listener=listener)
        assert world.part.is_dir() and not world.run_folder.exists()
        assert world.entries_so_far()[-1].stage == stage
        assert done == set(listener.reused) and not done & set(listener.made)
    same_scores(world.run(resume=True), finished[1])


def test_killed_inside_stages_and_resumed(world, finished) -> None:
    for words in (COMPLETING, CORRECTING, "Training"):
        with pytest.raises(KeyboardInterrupt):
            world.run(ALL, resume=words != COMPLETING, listener=Stopping(inside=words))
        assert words == COMPLETING or any((world.part / "checkpoints").iterdir())
    same_scores(world.run(resume=True), finished[1])
    assert not (world.run_folder / "checkpoints").exists()


# ---------------------------------------------------------------- other settings


def changed(world, finished, text, *, resume=True, **options) -> tuple[RunRecord, Stopping]:
    """The finished run, gone on with under other settings."""
    if not world.run_folder.exists():
        shutil.copytree(finished[0].run_folder, world.run_folder)
    listener = Stopping()
    return world.run(text, resume=resume, listener=listener, **options), listener


def test_nothing_changed_nothing_done(world, finished) -> None:
    record, listener = changed(world, finished, ALL)
    assert listener.made == []
    assert [each.scores for each in record.methods] == [each.scores for each in finished[1].methods]
    assert all(each.reused for each in world.manifest.entries if each.stage != "report")
    assert world.workshop.leftovers() == ["federation"]


LATER = [(stage, "vfl-corrected-labels-completed-rows-2") for stage in ("train", "evaluate")]


@pytest.mark.parametrize(
    ("old", "new", "made"),
    [
        ('"auc", "accuracy"', '"f1"', ["evaluate"]),
        ("epochs = 3", "epochs = 2", ["train", "evaluate"]),
        ("[0, 1]", "[0, 1, 2]", ["train", "evaluate"]),
        ("epochs = 4", "epochs = 5", ["correct", "train", "evaluate"]),
    ],
)
def test_what_other_settings_touch_is_done_again(world, finished, old, new, made) -> None:
    record, listener = changed(world, finished, ALL.replace(old, new))
    assert listener.made_stages() == made
    assert (listener.made == LATER) == (new == "[0, 1, 2]"), "another seed trains only that"
    metrics = ["f1"] if new == '"f1"' else ["auc", "accuracy"]
    assert all(list(each.scores) == metrics for each in record.methods)
    assert all(len(each.history) == (2 if old == "epochs = 3" else 3) for each in record.methods)


def test_without_correction_its_entries_go(world, finished) -> None:
    text = ALL.replace(CORRECT, "").replace("patience = 3", 'patience = 3\nlabel_party = "bank"')
    record, listener = changed(world, finished, text)
    assert listener.made_stages() == ["train", "evaluate"]
    assert "correct" not in {each.stage for each in world.manifest.entries}
    assert record.correction is None
    assert [each.title for each in record.methods] == ["VFL + completed rows"] * 2
    left = world.run_folder
    assert [each.name for each in (left / "model").iterdir()] == ["vfl-completed-rows"]
    assert [each.name for each in (left / "seeds").iterdir()] == ["vfl-completed-rows-seed-1"]
    assert not (left / "stages" / "correct").exists() and (left / "stages" / "complete").is_dir()
    assert len(list((left / "stages" / "train").iterdir())) == 2


def test_other_tables_start_from_the_alignment(world, finished) -> None:
    world.workshop.telco = world.workshop.telco.iloc[:-5]
    _, listener = changed(world, finished, ALL)
    assert listener.made_stages() == ENDS


def test_from_a_stage_everything_later_is_done_again(world, finished) -> None:
    record, listener = changed(world, finished, ALL, resume=False, start="train")
    assert listener.made_stages() == ["train", "evaluate"]
    same_scores(record, finished[1])


def test_a_file_somebody_changed_is_made_again(world, finished) -> None:
    source = finished[0]
    shutil.copytree(source.run_folder, world.run_folder)
    path = next(world.run_folder.glob("stages/correct/bank/*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    record, listener = changed(world, finished, ALL)
    same_scores(record, finished[1])
    assert listener.made_stages()[0] == "correct"


def test_a_run_that_fails_on_the_way_leaves_the_finished_one(world, finished) -> None:
    source = finished[0]
    shutil.copytree(source.run_folder, world.run_folder)
    before = (world.run_folder / "metrics.json").read_text()
    with pytest.raises(ConfigError, match="'rmse' does not fit") as caught:
        world.run(ALL.replace('"auc", "accuracy"', '"rmse"'), resume=True)
    assert any("stage 'evaluate'" in note for note in caught.value.__notes__)
    assert any("--resume" in note for note in caught.value.__notes__)
    assert (world.run_folder / "metrics.json").read_text() == before


# ---------------------------------------------------------------- stages that are left out


def test_stages_may_be_left_out(world) -> None:
    out = 'seeds = [0]\nleave_out = ["diagnose", "complete", "correct", "evaluate", "report"]\n'
    method = '[[method]]\nname = "vfl"\nepochs = 2\nlabel_party = "bank"\n'
    record = world.run("[run]\n" + out + COMPLETE + CORRECT + method)
    assert [each.stage for each in world.manifest.entries] == ["align", "train"]
    assert record.overview is None and record.mending is None and record.methods[0].scores == {}
    assert not (world.run_folder / "report.html").exists()
    assert (world.run_folder / "model" / "vfl" / "model.json").is_file()
    # Later with evaluation and report: rows are set aside for it, so that it trains anew.
    listener = Stopping()
    text = RUN.replace("[0, 1]", "[0]") + method + EVALUATE
    record = world.run(text, resume=True, listener=listener)
    assert listener.made_stages() == ["align", "diagnose", "train", "evaluate"]
    assert record.methods[0].scores and (world.run_folder / "report.html").is_file()


def test_where_nothing_is_evaluated_every_row_trains(world, workshop) -> None:
    method = '[[method]]\nname = "local-trees"\nlabel_party = "bank"\n'
    world.write('[run]\nleave_out = ["evaluate", "report"]\n' + method)
    assert check_data(load_config(world.config)).problems == []
    record = world.run()
    assert {each["rows"] for each in record.overview["parties"]} == {
        len(workshop.bank),
        len(workshop.telco),
    }
    assert not any("have not seen" in note for note in record.notes)
    assert not (world.run_folder / "stages" / "align" / "test.kept").exists()


def test_clients_of_a_run_without_evaluation_train_on_every_row(workshop, make_frame) -> None:
    frame = make_frame(40).drop(columns="city")
    frame.insert(0, "id", range(40))
    party = '[[party]]\nname = "{0}"\ndata = "{0}.csv"\nid = "id"\nlabel = "y"\n'
    for name in ("north", "south"):
        frame.to_csv(workshop.folder / f"{name}.csv", index=False)
    workshop.config.write_text(
        '[run]\nleave_out = ["evaluate", "report"]\n' + party.format("north")
        + party.format("south") + '[[method]]\nname = "fedavg"\nrounds = 1\n'
    )  # fmt: skip
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    assert [each["rows"] for each in record.overview["parties"]] == [40, 40]
    assert record.methods[0].scores == {} and "val_accuracy" not in record.methods[0].history[0]


def test_a_run_may_end_before_the_trainings(world) -> None:
    record = world.run('[run]\nleave_out = ["train"]\n' + CORRECT)
    assert record.methods == [] and record.correction["rows"] > 0
    assert [each.stage for each in world.manifest.entries] == [
        "align", "diagnose", "correct", "report",
    ]  # fmt: skip


def test_stages_need_not_be_kept(world) -> None:
    method = '[[method]]\nname = "majority"\nepochs = 2\n'
    world.run("[run]\nkeep_stages = false\n" + method)
    assert not (world.run_folder / "stages").exists()
    listener = Stopping()
    world.run(resume=True, listener=listener)
    assert listener.made_stages() == ["align", "diagnose", "train", "evaluate"]


# ---------------------------------------------------------------- who labels, and where


@pytest.mark.slow
def test_annotators_by_themselves_and_labels_only_parties(world) -> None:
    """A registry that only labels: it takes part in the correction, and in nothing after it."""
    registry = world.workshop.bank[["customer", "default"]].rename(columns={"default": "said"})
    registry.to_csv(world.folder / "registry.csv", index=False)
    world.write(
        RUN.replace("[0, 1]", "[0]") + COMPLETE
        + CORRECT + 'labellers = ["bank", "registry"]\namong = "labellers"\n'
        + VFL + EVALUATE
        + '[[party]]\nname = "registry"\ndata = "registry.csv"\nid = "customer"\nlabel = "said"\n'
    )  # fmt: skip
    record = world.run()
    (run,) = record.methods
    bank = record.overview["parties"][0]
    assert record.correction["parties"] == ["bank", "registry"]
    assert record.correction["rows"] == bank["rows"], "the registry knows all of the bank's people"
    assert run.title == "VFL + corrected labels + completed rows"
    model = json.loads(next(world.run_folder.glob("model/*/model.json")).read_text())
    assert model["parties"] == ["bank", "telco"]
    listener = Stopping()
    again = world.run(resume=True, listener=listener)
    assert listener.made == [] and again.methods[0].scores == run.scores


@pytest.mark.slow
def test_labels_learnt_from_completed_rows(world) -> None:
    text = RUN.replace("[0, 1]", "[0]") + COMPLETE.replace("also_unmended = false\n", "")
    record = world.run(text + CORRECT + 'rows = "completed"\n' + VFL + EVALUATE)
    assert [each.title for each in record.methods] == [
        "VFL + corrected labels", "VFL + corrected labels + completed rows",
    ]  # fmt: skip
    assert record.correction["rows"] > record.overview["aligned"]


def test_a_party_that_takes_no_predictions_stops_the_stage(world) -> None:
    world.write(RUN + CORRECT + VFL + EVALUATE)
    policy = '[party.policy]\nrefuse = ["count"]\n\n[[party]]\nname = "telco"'
    world.workshop.edit(('[[party]]\nname = "telco"', policy))
    with pytest.raises(FedmendError, match="bank"):
        world.run()


def test_errors_name_the_stage(world) -> None:
    world.workshop.telco["customer"] += 10_000
    with pytest.raises(FedmendError) as caught:
        world.run(ALL)
    told = [note for note in caught.value.__notes__ if "This was in the stage 'align'" in note]
    assert told == ["This was in the stage 'align' (the table 'train')"]
    assert world.workshop.leftovers() == []
    world.workshop.telco["customer"] = world.workshop.bank["customer"]
    with pytest.raises(DataError, match="nothing to complete") as caught:
        world.run(ALL)
    assert any("This was in the stage 'complete'" in note for note in caught.value.__notes__)


def test_the_command_line_names_stage_and_way_on(world, monkeypatch, fedmend) -> None:

    world.write(RUN.replace("[0, 1]", "[0]") + VFL + '[evaluate]\nmetrics = ["rmse"]\n')
    world.workshop.edit(('name = "vfl"', 'name = "vfl"\nlabel_party = "bank"'))
    monkeypatch.chdir(world.folder)
    code, _, told = fedmend("run")
    assert code == ConfigError.exit_code
    assert "'rmse' does not fit this label. Mend: choose from" in told
    assert "This was in the stage 'evaluate' (VFL)" in told and "--resume goes on" in told
    world.workshop.edit(('"rmse"', '"auc"'))
    code, shown, _ = fedmend("run", "--resume")
    assert code == 0 and "train VFL: as before" in shown and "Report:" in shown
    code, shown, _ = fedmend("run", "--from", "train")
    assert code == 0 and "Training VFL" in shown
