from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError
from fedmend.federation import read_ledger
from fedmend.flow import Listener, execute, plan_of
from fedmend.flow.config import load_config
from fedmend.flow.reading import read_parties, split_by_id
from fedmend.report.record import RunRecord

STRICT = "[run]\nstrict = true\n"
THREE = (
    '[[method]]\nname = "local"\nepochs = 2\n[[method]]\nname = "local-vfl"\nepochs = 2\n'
    "[run]\nseeds = [0, 1]\nstrict = true\n"
)


def run(workshop, **options):
    return execute(plan_of(load_config(workshop.config)), workshop.run, **options)


class Interrupting(Listener):
    """Stops a run like a user would, at the second epoch of the second training."""

    def __init__(self):
        self.stages = []

    def stage(self, words):
        self.stages.append(words)

    def progress(self, title, done, total, facts=None):
        if sum(words.startswith("Training") for words in self.stages) == 2 and done == 2:
            raise KeyboardInterrupt


def test_a_run_folder_is_whole(workshop):
    workshop.write(THREE)
    record = run(workshop, resume=True)  # there is none: it starts one
    assert workshop.leftovers() == ["federation"]
    assert sorted(each.name for each in workshop.run.iterdir()) == [
        "federation.toml", "ledger.jsonl", "manifest.json", "metrics.json", "model", "report.html",
        "seeds", "stages",
    ]  # fmt: skip
    assert (workshop.run / "federation.toml").read_text() == workshop.config.read_text()
    assert RunRecord.load(workshop.run).to_dict() == record.to_dict()
    assert [(each.title, each.seed) for each in record.methods] == [
        (title, seed) for title in ("VFL", "Local", "LocalVFL") for seed in (0, 1)
    ]
    assert "The models have not seen 25 % of the rows, which were set aside" in record.notes[-1]
    assert all(0 <= each.scores["auc"] <= 1 for each in record.methods)
    assert all(len(each.history) == 2 and each.bytes > 0 for each in record.methods)
    assert sorted(each.name for each in (workshop.run / "model").iterdir()) == [
        "local", "localvfl", "vfl",
    ]  # fmt: skip
    found = record.overview
    assert found["aligned"] + found["parties"][0]["unaligned"] == found["parties"][0]["rows"]
    entries = read_ledger(workshop.run / "ledger.jsonl")
    everything = sum(entry.total_bytes for entry in entries)
    assert 0 < sum(each.bytes for each in record.methods) < everything
    kinds = {entry.kind for entry in entries if entry.receiver == "coordinator"}
    assert not kinds & {"label", "row"}


def test_saved_model_predicts_what_was_scored(workshop):
    workshop.write(STRICT)
    record = run(workshop)
    parties = read_parties(load_config(workshop.config))
    fed = fm.Federation(*parties, strict=True)
    fm.align(fed)
    fm.align(fed.on("test"))
    model = fm.VFL.load(workshop.run / "model" / "vfl", fed)
    again = model.evaluate(fed.on("test"))
    assert again["auc"] == pytest.approx(record.methods[0].scores["auc"], abs=1e-9)


def test_an_error_leaves_nothing_unless_asked_to(workshop):
    workshop.telco["customer"] += 10_000
    workshop.write(STRICT)
    with pytest.raises(AlignmentError):
        run(workshop)
    assert workshop.leftovers() == []
    with pytest.raises(AlignmentError):
        run(workshop, keep_failed=True)
    assert workshop.leftovers() == ["federation.part"]


def test_a_run_that_is_refused_before_it_begins_leaves_nothing(workshop):
    workshop.write(STRICT)

    def refused(work):
        raise ConfigError("another run uses these kits now")

    plan = replace(plan_of(load_config(workshop.config)), federation=refused)
    with pytest.raises(ConfigError, match="another run"):
        execute(plan, workshop.run, keep_failed=True)
    assert workshop.leftovers() == []


def test_a_folder_that_is_deleted_under_a_run_ends_it(workshop):
    class Deleting(Listener):
        def progress(self, *_):
            shutil.rmtree(workshop.run.with_name("federation.part"), ignore_errors=True)

    workshop.write(STRICT)
    with pytest.raises(DataError, match="was deleted or replaced") as caught:
        run(workshop, listener=Deleting())
    assert "kept in" not in str(getattr(caught.value, "__notes__", ""))
    assert workshop.leftovers() == []


def test_a_finished_run_is_not_overwritten_by_accident(workshop):
    workshop.write(STRICT)
    run(workshop)
    before = (workshop.run / "metrics.json").read_text()
    with pytest.raises(ConfigError, match="exists already. Mend: .*--force"):
        run(workshop)
    labels, workshop.bank["default"] = workshop.bank["default"], "yes"
    workshop.write(STRICT)
    with pytest.raises(DataError):
        run(workshop, force=True)
    assert (workshop.run / "metrics.json").read_text() == before
    workshop.bank["default"] = labels
    workshop.write(STRICT)
    run(workshop, force=True)
    assert (workshop.run / "metrics.json").read_text() != before
    assert workshop.leftovers() == ["federation"]


def test_force_replaces_runs_only(workshop):
    workshop.write(STRICT)
    workshop.run.mkdir(parents=True)
    (workshop.run / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is no run, and --force replaces runs only"):
        run(workshop, force=True)
    assert (workshop.run / "thesis.txt").read_text() == "years of work"


def test_an_interrupted_run_goes_on_where_it_stopped(workshop):
    text = STRICT + "seeds = [0, 1]\n"
    method = 'name = "vfl"\nepochs = 4\npatience = 4'
    workshop.write(text, method=method)
    with pytest.raises(KeyboardInterrupt):
        run(workshop, listener=Interrupting())
    assert workshop.leftovers() == ["federation.part"]
    with pytest.raises(ConfigError, match="unfinished run .* --resume"):
        run(workshop)
    part = workshop.run.with_name("federation.part")
    first = json.loads((part / "stages" / "train" / "vfl-0.json").read_text())
    kept = {each.name: each.read_bytes() for each in part.glob("stages/align/*/*.fmw")}
    assert kept

    listener = Interrupting()
    listener.progress = lambda *_: None
    record = run(workshop, resume=True, listener=listener)
    assert record.methods[0].history == first["history"]
    assert [each["epoch"] for each in record.methods[1].history] == [1, 2, 3, 4]
    assert sum(words.startswith("Training") for words in listener.stages) == 1
    assert workshop.leftovers() == ["federation"]


def test_a_run_that_is_going_on_is_left_alone(workshop):
    """Not every unfinished run is a dead one."""

    class Looking(Listener):
        def stage(self, words):
            for options in ({}, {"resume": True}, {"force": True}):
                with pytest.raises(ConfigError, match="another process is running in .*part. Mend"):
                    run(workshop, **options)

    workshop.write(STRICT)
    assert run(workshop, listener=Looking()).methods
    assert workshop.leftovers() == ["federation"]


def test_interrupted_and_resumed_equals_never_interrupted(workshop):
    # In the same order at both parties, so that no fresh secret shuffles the rows.
    shared = sorted(set(workshop.bank["customer"]) & set(workshop.telco["customer"]))
    for name in ("bank", "telco"):
        frame = getattr(workshop, name)
        setattr(workshop, name, frame[frame["customer"].isin(shared)].sort_values("customer"))
    text = STRICT + 'seeds = [0, 1]\n[align]\nmode = "same-order"\n'
    workshop.write(text, method='name = "vfl"\nepochs = 5')
    with pytest.raises(KeyboardInterrupt):
        run(workshop, listener=Interrupting())
    resumed = run(workshop, resume=True)
    straight = run(workshop, force=True)
    # Nothing had to be found, and that is known where an alignment is taken up too.
    for record in (straight, run(workshop, start="diagnose")):
        assert record.overview["same_order"] and record.overview["advice"]["seconds"] < 10
    for one, other in zip(resumed.methods, straight.methods, strict=True):
        assert one.history == other.history
        assert one.scores == other.scores


def test_regression_is_judged_by_its_error(workshop):
    workshop.bank["default"] = workshop.bank["income"] * 3 + 1
    workshop.write(STRICT)
    record = run(workshop)
    assert record.metric == "rmse" and "auc" not in record.methods[0].scores


def test_a_single_party_with_local(workshop):
    workshop.write(STRICT, method='name = "local"\nepochs = 2')
    text = workshop.config.read_text()
    start, end = text.index('[[party]]\nname = "telco"'), text.index("[[method]]")
    workshop.config.write_text(text[:start] + text[end:])
    record = run(workshop)
    assert record.evaluated_on.endswith("test rows")
    assert record.overview["aligned"] is None


def test_a_party_that_is_a_database(workshop):
    workshop.write(STRICT)
    workshop.ask_telco("select * from customers", workshop.telco)
    record = run(workshop)
    assert record.overview["parties"][1]["columns"] == {"continuous": 2}


def test_test_tables_of_their_own(workshop):
    workshop.write(STRICT)
    later = workshop.bank.assign(income=workshop.bank["income"] + 1)
    frames = {"bank": later, "telco": workshop.telco}
    workshop.add_tests(**{name: each[each["customer"] < 1100] for name, each in frames.items()})
    record = run(workshop)
    assert record.evaluated_on == "40 test rows known to all"


def test_split_by_id_takes_the_same_people_everywhere():
    ids = np.arange(2000)
    frame = pd.DataFrame({"x": ids * 1.5})
    numbers = Table(ids, frame)
    train, test = split_by_id(numbers, 0.25, seed=3)
    for written in (" {}", "{:05}"):  # as align.normalise = "text" and "number" compare them
        texts = np.array([written.format(each) for each in ids[::-1]], dtype=object)
        _, other = split_by_id(Table(texts, frame), 0.25, seed=3)
        assert sorted(test.ids.tolist()) == sorted(int(each) for each in other.ids)
    assert len(train) + len(test) == 2000 and 430 < len(test) < 570
    assert set(split_by_id(numbers, 0.25, seed=4)[1].ids) != set(test.ids)


def test_small_tables_train_on_one_thread(workshop, monkeypatch):
    import torch
    from threadpoolctl import threadpool_info, threadpool_limits

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = []

    class Threads(Listener):
        def stage(self, words):
            pools = (
                each["num_threads"] for each in threadpool_info() if "numpy" in each["filepath"]
            )
            seen.append((words.split()[0], torch.get_num_threads(), *pools))

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        workshop.write(STRICT)
        with threadpool_limits(2, "blas"):
            run(workshop, listener=Threads())
        assert ("Training", 1, 1) in seen and ("Writing", 2, 2) in seen
    finally:
        torch.set_num_threads(before)


def test_beside_the_scores_stands_what_the_label_party_has_alone(workshop):
    """Of methods that ask partners, where no policy forbids it and trees are not there already."""
    workshop.write(method='name = "vfl"\nepochs = 1')
    record = run(workshop)
    own = record.alone["scores"]["auc"]
    assert record.alone["party"] == "bank" and [each.title for each in record.methods] == ["VFL"]
    (said,) = [each for each in record.cautions() if each.startswith("bank alone")]
    assert "by boosted trees of its own columns (LocalTrees), has AUC" in said
    assert ("partners do not pay" in said) == (record.methods[0].scores["auc"] <= own)
    again = run(workshop, resume=True)
    assert again.alone == record.alone
    for method, policy in (
        ('name = "vfl"\nepochs = 1', '[party.policy]\nmethods = ["vfl"]\n'),
        ('name = "local"\nepochs = 1', ""),
        ('name = "vfl"\nepochs = 1\n[[method]]\nname = "local-trees"', ""),
    ):
        workshop.write(method=method)
        workshop.edit(('id = "customer"\n\n[[method]]', f'id = "customer"\n{policy}\n[[method]]'))
        assert run(workshop, force=True).alone is None


@pytest.mark.parametrize("numbers", [False, True])
def test_scores_are_of_the_rows_that_have_a_label(workshop, numbers):
    """Half of the test rows have none: neither they nor their certainty may be counted."""
    client = workshop.bank.merge(workshop.telco, on="customer")
    held = client["customer"].isin(client["customer"].iloc[:60])
    if numbers:
        workshop.bank["default"] = workshop.bank["income"].round(3)
    tested = workshop.bank[workshop.bank["customer"].isin(client["customer"][held])].copy()
    tested.loc[tested.index[::2], "default"] = None
    workshop.write(method='name = "local-trees"')
    workshop.add_tests(
        bank=tested, telco=workshop.telco[workshop.telco["customer"].isin(tested["customer"])]
    )
    workshop.bank = workshop.bank[~workshop.bank["customer"].isin(tested["customer"])]
    workshop.bank.to_csv(workshop.folder / "bank.csv", index=False)
    record = run(workshop)
    assert record.tested == 30
    assert record.evaluated_on == "30 labelled test rows known to all"
