from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.errors import ConfigError, DataError, FedmendError, FedmendWarning
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data, look
from fedmend.flow.config import load_config
from fedmend.flow.config.starter import starter_text
from fedmend.flow.doubts import doubtful_columns
from fedmend.flow.reading import split_by_id

BANK = '"bank.csv"\nid = "customer"\nlabel = "default"'


def later(workshop):
    """The bank's people, at another time."""
    return workshop.bank.assign(income=workshop.bank["income"] + 1)


def findings(workshop):
    return check_data(load_config(workshop.config))


def test_nothing_wrong(workshop):
    workshop.write()
    found = findings(workshop)
    assert (found.problems, found.notes) == ([], [])
    assert [len(table) for table in found.tables.values()] == [160, 160]


def test_one_bad_table_does_not_hide_the_other(workshop):
    workshop.write()
    (workshop.folder / "bank.csv").unlink()
    (workshop.folder / "telco.csv").write_text("")
    found = findings(workshop)
    assert len(found.problems) == 2
    assert "party 'bank'" in found.problems[0] and "party 'telco'" in found.problems[1]


def test_all_that_is_wrong_with_a_table_is_told_at_once(workshop):
    workshop.bank["opened"] = pd.date_range("2020-01-01", periods=160).strftime("%Y-%m-%d")
    workshop.bank["income"] = workshop.bank["income"].replace(workshop.bank["income"][4], np.inf)
    workshop.bank["customer"] = workshop.bank["customer"].astype(object)
    workshop.bank.loc[7, "customer"] = None
    workshop.bank.loc[8, "customer"] = workshop.bank.loc[9, "customer"]
    workshop.telco["called"] = workshop.bank["opened"]
    workshop.write("[party.kinds]\nminuets = 'nominal'\n", method="")
    first, *others = findings(workshop).problems
    assert first.startswith("party 'bank', column 'customer': missing id in 1 row (counted from 1")
    assert "1: 8), and 1 of the others have one that occurred before" in first
    told = [re.match("party '(.+?)', column '(.+?)'", each).groups() for each in others]
    assert sorted(told) == [
        ("bank", "income"), ("bank", "opened"), ("telco", "called"), ("telco", "minuets"),
    ]  # fmt: skip
    assert all("Mend: " in each for each in others)


@pytest.mark.parametrize("wrong", ["id", "label"])
def test_a_name_that_no_column_has_does_not_hide_the_rest(workshop, wrong):
    workshop.bank["opened"] = pd.date_range("2020-01-01", periods=160).strftime("%Y-%m-%d")
    workshop.write()
    name = {"id": "customer", "label": "default"}[wrong]
    workshop.edit((BANK, BANK.replace(name, f"{name}s")))
    found = findings(workshop).problems
    assert [f"column '{name}s'" in found[0], "column 'opened'" in found[1]] == [True, True]
    assert len(found) == 2


def test_a_query_is_read_without_the_columns_to_drop(workshop):
    workshop.write()
    workshop.ask_telco("select * from customers", workshop.telco.assign(called="2020-01-01"))
    workshop.edit(('"customer"\n\n[[m', '"customer"\ndrop = ["called"]\n\n[[m'))
    found = findings(workshop)
    assert found.problems == [] and found.tables["telco"].feature_names == ["calls", "minutes"]
    workshop.edit(('"called"', '"caled"'))
    (problem,) = findings(workshop).problems
    assert "column 'caled'" in problem and "did you mean 'called'" in problem


@pytest.mark.parametrize(("marks", "lost"), [(None, 3), (["-9"], 4), ([], 0)])
def test_marks_of_empty_cells_come_on_top_of_the_usual(workshop, marks, lost):
    workshop.bank["town"] = ["NA"] * 3 + ["-9"] + ["Ulm", "Bonn"] * 78
    workshop.write()
    if marks is not None:
        workshop.edit(('"bank.csv"', f'"bank.csv"\nmissing = {marks}'))
    assert findings(workshop).tables["bank"].missing()["town"] == lost


def test_same_order_needs_equally_long_tables(workshop):
    workshop.telco = workshop.telco.iloc[:100]
    workshop.write('[align]\nmode = "same-order"\n')
    (problem,) = findings(workshop).problems
    assert "bank 160, telco 100" in problem and 'Mend: mode = "ecdh"' in problem


def test_every_two_parties_may_share_ids_and_all_of_them_none(workshop):
    ids = [*range(1000, 1050), *range(1170, 1220)]  # of the bank alone, and of the telco alone
    shop = pd.DataFrame({"customer": ids, "baskets": np.arange(100.0)})
    shop.to_csv(workshop.folder / "shop.csv", index=False)
    workshop.write('[[party]]\nname = "shop"\ndata = "shop.csv"\nid = "customer"\n')
    (problem,) = findings(workshop).problems
    assert problem.startswith("every two of bank, telco, shop share ids, but no id is known to all")


@pytest.mark.parametrize("with_tables", [False, True])
def test_a_party_may_refuse_so_few_training_or_test_rows(workshop, with_tables):
    workshop.write("[party.policy]\nmin_intersection = 40\n", method="")
    if with_tables:
        frames = {"bank": later(workshop), "telco": workshop.telco}
        some = {name: each[each["customer"].between(1080, 1105)] for name, each in frames.items()}
        workshop.add_tests(**some)
    (problem,) = findings(workshop).problems
    assert re.match(
        r"2\d test rows are known to all, and party 'telco' takes part from 40", problem
    )
    with pytest.raises(fm.errors.Refused, match="the intersection has 2. rows"):
        execute(plan_of(load_config(workshop.config)), workshop.run)


def test_a_client_may_have_all_its_rows_set_aside(workshop):
    workshop.bank = workshop.bank.drop(columns="job")
    ids = split_by_id(fm.Table(np.arange(40), {"x": np.arange(40.0)}), 0.25, 0)[1].ids[:2]
    workshop.telco = workshop.bank.iloc[:2].assign(customer=ids)
    workshop.write(method='name = "fedavg"\nrounds = 1')
    workshop.edit(('"telco.csv"\n', '"telco.csv"\nlabel = "default"\n'))
    (problem,) = findings(workshop).problems
    assert problem.startswith("party 'telco': all of its 2 rows are set aside for tests. Mend: ")


def test_ids_are_compared_by_the_rule_of_the_file(workshop):
    workshop.bank["customer"] = [f"C{each}" for each in workshop.bank["customer"]]
    workshop.telco["customer"] = [f"c{each}" for each in workshop.telco["customer"]]
    workshop.write()
    (problem,) = findings(workshop).problems
    assert "share no id (text, with capital letters and text" in problem
    assert 'normalise = "text"' in problem
    workshop.write('[align]\nnormalise = "text"\n')
    assert findings(workshop).problems == []


def test_another_rule_that_would_find_many_more_people_is_noted(workshop):
    workshop.bank["customer"] = [f"{each - 1000:03d}" for each in workshop.bank["customer"]]
    workshop.telco["customer"] -= 1000  # 60 to 219: the bank writes 60 to 99 with a zero
    workshop.write('[align]\nnormalise = "text"\n')
    found = findings(workshop)
    assert found.problems == []
    (note,) = found.notes
    assert "'text': 60 ids are shared, and 100 if they are compared by 'number'" in note
    workshop.write('[align]\nnormalise = "number"\n')
    assert findings(workshop).notes == []
    files = [workshop.folder / "bank.csv", workshop.folder / "telco.csv"]
    text = starter_text(workshop.folder / "f.toml", files, id="customer", label="default")
    assert 'normalise = "number"' in text


def test_a_test_table_needs_the_columns_of_training(workshop):
    workshop.write()
    workshop.add_tests(bank=later(workshop), telco=workshop.telco.drop(columns="calls"))
    (problem,) = findings(workshop).problems
    assert "party 'telco', column 'calls': the test table lacks this column" in problem
    # A run says so, too, before anything is trained.
    with pytest.raises(DataError, match=re.escape(problem)):
        execute(plan_of(load_config(workshop.config)), workshop.run)
    assert workshop.leftovers() == []


def test_a_test_table_has_the_types_of_training(workshop):
    """One cell that is no number makes a column of text, which a model trained before it saw."""
    workshop.write()
    tested = later(workshop).assign(job="clerk", customer=range(160)).astype({"income": object})
    tested.loc[3, "income"] = "n. k."
    workshop.add_tests(bank=tested, telco=workshop.telco.assign(customer=range(160)))
    (problem,) = findings(workshop).problems
    assert problem.startswith("party 'bank', column 'income': the type changed: expected numbers")
    assert "in the test table (seen: 'n. k.'). Mend: correct this cell" in problem
    with pytest.raises(DataError, match=re.escape(problem)):
        execute(plan_of(load_config(workshop.config)), workshop.run)


@pytest.mark.filterwarnings("ignore:only 6 rows are common:fedmend.errors.PrivacyWarning")
def test_rows_too_few_for_auto_to_compare_methods_by(workshop):
    workshop.telco["customer"] += 94
    workshop.write('[run]\nleave_out = ["evaluate"]\n', method='name = "auto"')
    (problem,) = findings(workshop).problems
    assert problem.startswith("6 rows known to all are too few to compare methods")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        execute(plan_of(load_config(workshop.config)), workshop.run)
    workshop.edit(('"auto"', '"local-trees"'))
    assert findings(workshop).problems == []
    assert execute(plan_of(load_config(workshop.config)), workshop.run).methods


def _clients(workshop, people=160):
    client = workshop.bank.assign(customer=range(160))
    workshop.bank, workshop.telco = client[:80], client[80:people]


CLIENTS = {"text": '[run]\nshape = "horizontal"\n', "method": 'name = "fedavg"\nrounds = 1'}
LABELLED = ('"telco.csv"\n', '"telco.csv"\nlabel = "default"\n')


def test_a_client_with_fewer_rows_than_it_tells_of(workshop):
    _clients(workshop, 88)
    workshop.write(**CLIENTS)
    workshop.edit(LABELLED)
    (problem,) = findings(workshop).problems
    assert re.match(r"party 'telco' trains on \d rows, and tells nothing of fewer than 10", problem)


def test_a_class_that_no_client_can_learn(workshop):
    """Its one row is set aside for tests, or trains."""
    _clients(workshop)
    here = workshop.bank["customer"].to_numpy()
    tested = split_by_id(fm.Table(here, {"x": here * 1.0}), 0.25, 0)[1].ids
    label = workshop.bank["default"]
    for alone in (True, False):
        mine = workshop.bank["customer"].isin(tested) == alone
        workshop.bank["default"] = label.where(~(mine & (mine.cumsum() == 1)), "perhaps")
        workshop.write(**CLIENTS)
        workshop.edit(LABELLED)
        told = findings(workshop).problems
        if not alone:
            assert told == []
            continue
        (problem,) = told
        assert "all labels of this class are among the test rows, so that no client" in problem
        with pytest.raises(DataError, match=re.escape(problem)):
            execute(plan_of(load_config(workshop.config)), workshop.run)


def test_training_rows_are_no_test_rows(workshop):
    workshop.write()
    workshop.add_tests(bank=workshop.bank[20:80], telco=workshop.telco)
    (problem,) = findings(workshop).problems
    assert problem.startswith("party 'bank': 60 of its 60 labelled test rows are its training rows")
    assert "Mend: give the test table rows that are not in the training table" in problem
    with pytest.raises(DataError, match=re.escape(problem)):
        execute(plan_of(load_config(workshop.config)), workshop.run)
    workshop.edit(("[[method]]", '[run]\nleave_out = ["evaluate"]\n\n[[method]]'))
    assert findings(workshop).problems == []


def test_a_few_training_rows_among_the_test_rows_are_told(workshop):
    held, rest = workshop.bank["customer"] % 4 == 0, workshop.telco["customer"] % 4 == 0
    some = workshop.bank[held | (workshop.bank["customer"] == 1101)]
    workshop.bank, tested = workshop.bank[~held], workshop.telco[rest]
    workshop.write()
    workshop.add_tests(bank=some, telco=tested)
    found = findings(workshop)
    told = "Party 'bank': 1 of its 41 labelled test rows have the ids of labelled training rows"
    assert found.problems == [] and [told in each for each in found.notes] == [True]
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    assert record.seen == {"bank": [1, 41]} and told in record.notes[0]


def test_rows_of_clients_may_be_numbered_from_one_on(workshop):
    """Ids of clients with the same columns name nobody; the same rows are still found."""
    client = workshop.bank.assign(customer=range(160))
    workshop.bank, tested = client[:100], client[100:].assign(customer=range(60))
    workshop.telco = workshop.bank.assign(income=workshop.bank["income"] + 1, default=None)
    workshop.write('[run]\nshape = "horizontal"\n', method='name = "fedavg"\nrounds = 1')
    workshop.edit(('"telco.csv"\n', '"telco.csv"\nlabel = "default"\n'))
    workshop.add_tests(bank=tested, telco=tested)
    found = findings(workshop)
    assert found.problems == []
    # Its label is no column to be dropped.
    (note,) = found.notes
    assert note.startswith(
        "party 'telco', label 'default': all 100 cells are empty, so that this party has no labels"
    )
    workshop.bank.to_csv(workshop.folder / "bank-test.csv", index=False)
    (problem,) = findings(workshop).problems
    assert "100 of its 100 labelled test rows are its training rows" in problem


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "there are no test labels: none of the 60 rows of the test table has one"),
        (
            {"yes": True, "no": False},
            "labels of the test table that no training row has; those have 'no', 'yes' (seen: [",
        ),
    ],
)
def test_test_labels_that_nothing_can_be_measured_by(workshop, said, told):
    tested = workshop.bank[100:].copy()
    tested["default"] = tested["default"].map(said or {})
    workshop.bank = workshop.bank[:100]
    workshop.write()
    workshop.add_tests(bank=tested, telco=workshop.telco)
    (problem,) = findings(workshop).problems
    assert problem.startswith(f"party 'bank', column 'default': {told}")
    with pytest.raises(DataError, match=re.escape(problem)):
        execute(plan_of(load_config(workshop.config)), workshop.run)


def test_a_policy_that_lets_nothing_be_trained_is_noted(workshop):
    workshop.write()
    workshop.edit(('label = "default"', 'label = "default"\npolicy = {min_rows = 400}'))
    (note,) = findings(workshop).notes
    assert re.match(r"party 'bank' has \d+ labelled training rows, and no answer of its may ", note)
    assert "fewer than 400 (policy.min_rows): methods will be refused. Mend: more" in note


@pytest.mark.parametrize(("method", "parties"), [("vfl", ["bank"]), ("fedavg", ["bank", "telco"])])
def test_batches_of_few_rows_are_named_before_they_are_refused(workshop, method, parties):
    workshop.write(method=f'name = "{method}"\nbatch_size = 4')
    if method == "fedavg":
        others = workshop.bank.assign(customer=workshop.bank["customer"] + 500)
        others.to_csv(workshop.folder / "telco.csv", index=False)
        workshop.edit(
            ('"telco.csv"\nid = "customer"', '"telco.csv"\nid = "customer"\nlabel = "default"')
        )
    problems = findings(workshop).problems
    assert [each.lower().partition(" rows (")[0] for each in problems] == [
        f"method '{method}': batch_size = 4, and party '{party}' lets no step rest on fewer than 10"
        for party in parties
    ]
    with pytest.raises(FedmendError, match=r"Mend: a (larger )?batch_size"):
        execute(plan_of(load_config(workshop.config)), workshop.run)
    workshop.edit(("batch_size = 4", "batch_size = 10"))
    assert findings(workshop).problems == []


def test_a_run_with_too_few_test_rows_has_a_model_and_no_scores(workshop):
    workshop.telco["customer"] += 70  # 30 are known to both, of whom a quarter is set aside
    workshop.write()
    (note,) = findings(workshop).notes
    assert re.match(
        r"only \d labelled test rows known to all, and party 'bank' tells no score of fewer "
        r"than 10 \(policy.min_rows\)",
        note,
    )
    assert (
        'Mend: a larger evaluate.test_share, test tables, or run.leave_out = ["evaluate"]' in note
    )
    with pytest.warns(FedmendWarning) as caught:
        record = execute(plan_of(load_config(workshop.config)), workshop.run)
    (told,) = (str(each.message) for each in caught if "no scores" in str(each.message))
    assert told in record.notes and "Mend: a larger evaluate.test_share" in told
    assert record.methods[0].scores == {} and record.evaluated_on.startswith("nothing")
    workshop.edit(("[[method]]", "[evaluate]\ntest_share = 0.7\n\n[[method]]"))
    assert findings(workshop).notes == []


def test_of_several_annotators_only_the_reference_needs_test_labels(workshop):
    workshop.telco["y"] = np.resize(["yes", "no"], 160)
    workshop.write('[evaluate]\nreference = "bank"\n', method='name = "majority"\nepochs = 1')
    workshop.edit(('"telco.csv"', '"telco.csv"\nlabel = "y"'))
    workshop.add_tests(bank=later(workshop), telco=workshop.telco.drop(columns="y"))
    assert findings(workshop).problems == []
    workshop.edit(('reference = "bank"', 'reference = "telco"'))
    (problem,) = findings(workshop).problems
    assert problem.startswith("evaluate.reference: party 'telco' has no test labels. Mend")


def test_a_party_with_labels_only_is_noted(workshop):
    workshop.bank = workshop.bank[["customer", "default"]]
    workshop.write()
    found = findings(workshop)
    assert found.problems == []
    assert found.notes == ["party 'bank' has no columns besides id and label"]
    telco, workshop.telco = workshop.telco, workshop.telco[["customer"]]
    workshop.write()
    notes = findings(workshop).notes
    assert notes[0] == "parties 'bank' and 'telco' have no columns besides id and label"
    workshop.telco = telco
    for method in ("local", "local-trees"):
        workshop.write(method=f'name = "{method}"')
        (problem,) = findings(workshop).problems
        assert f"method[{method}]: party 'bank' has no columns" in problem
        assert "Mend: remove" in problem


def test_notes_name_the_party(workshop):
    workshop.telco["fax"] = None
    workshop.telco["country"] = "DE"
    workshop.write()
    empty, constant = findings(workshop).notes[::-1]
    assert empty.startswith("party 'telco', column 'fax': all 160 cells are missing")
    assert constant.startswith("party 'telco', column 'country': 'DE' in all 160 cells")


def test_advice_goes_by_the_rows_that_are_trained_on(workshop):
    # 60 people are known to both, of whom a quarter is set aside.
    workshop.telco["customer"] += 40
    workshop.write()
    config = load_config(workshop.config)
    found = look(config, check_data(config))
    assert found.aligned == 60 and found.training == 0.75
    assert [each["name"] for each in found.advice["tears"]][:2] == [
        "few-shared",
        "unlabelled-partner",
    ]
    workshop.write("[evaluate]\ntest_share = 0.1\n")
    config = load_config(workshop.config)
    found = look(config, check_data(config))
    assert found.advice["tears"][1]["name"] == "missing-block", "54 rows are enough to learn it"


def test_what_the_file_itself_asks_for_is_foretold(workshop):
    """The advice tells of what it advises; here it is the encryption that the file has."""
    takes = {}
    for mode in ("dealer", "bfv"):
        workshop.write(method=f'name = "boosting"\nmode = "{mode}"\n[[method]]\nname = "sfhtl"')
        config = load_config(workshop.config)
        found = look(config, check_data(config))
        takes[mode] = found.takes
        assert dict(found.sections())["What this file takes"] == found.takes["words"]
    assert takes["bfv"]["bytes"] > 50 * takes["dealer"]["bytes"]
    *parts, whole = takes["bfv"]["words"]
    assert [each.partition(":")[0] for each in parts] == [
        "start and report",
        "alignment",
        "SecureBoost",
        "LocalTrees",
    ]
    assert whole.startswith("All of it: about ") and "SFHTL takes, which was not measured" in whole


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_a_device_that_is_not_there(workshop):
    workshop.write('[run]\ndevice = "cuda"\n')
    (problem,) = findings(workshop).problems
    assert "run.device = 'cuda'" in problem and 'device = "cpu"' in problem


def test_a_class_that_only_test_rows_have(workshop):
    workshop.write()
    train, test = split_by_id(fm.read(workshop.folder / "bank.csv", id="customer"), 0.25, 0)
    rare = workshop.bank["customer"].isin(test.ids[:2])
    workshop.bank.loc[rare, "default"] = "disputed"
    workshop.write()
    (problem,) = findings(workshop).problems
    assert problem.startswith("party 'bank', column 'default': all labels of this class are among")
    assert "(seen: 'disputed'). Mend: leave the labels of rare classes empty" in problem
    with pytest.raises(DataError, match="all labels of this class are among the test rows"):
        execute(plan_of(load_config(workshop.config)), workshop.run)
    workshop.bank.loc[workshop.bank["customer"] == train.ids[0], "default"] = "disputed"
    workshop.write()
    assert findings(workshop).problems == []


@pytest.mark.parametrize(
    ("number", "metric", "words"),
    [
        (False, "rmse", "taken for classes. Mend: choose from accuracy, auc"),
        (True, "auc", "taken for a number. Mend: choose from"),
    ],
)
def test_metrics_that_do_not_fit_the_label(workshop, number, metric, words):
    if number:
        workshop.bank["default"] = workshop.bank["income"] * 3
    workshop.write(f'[evaluate]\nmetrics = ["{metric}"]\n')
    (problem,) = findings(workshop).problems
    assert problem.startswith(f"evaluate.metrics: {metric!r} does not fit this label")
    assert words in problem


def test_numbers_need_no_classes(workshop):
    workshop.bank["default"] = np.arange(160) // 8
    workshop.write(method='name = "vfl"\nepochs = 2\ntask = "regression"')
    assert findings(workshop).problems == []


def test_how_many_of_the_shared_rows_have_a_label(workshop):
    workshop.bank.loc[60:, "default"] = None  # from here on the telco knows them
    workshop.write()
    config = load_config(workshop.config)
    found = look(config, check_data(config))
    words = "bank has a label for 60 of its 160 rows, and for none of the 100 known to all"
    assert words in " ".join(found.torn)
    assert [each["name"] for each in found.advice["settings"]["methods"]] == ["local-trees"]


def test_label_dp_that_does_not_hold_for_the_file_is_noted(workshop) -> None:
    two = 'name = "vfl"\nlabel_dp = 1\n[[method]]\nname = "local-vfl"\nlabel_dp = 2.5'
    workshop.write(method=two)
    (note,) = findings(workshop).notes
    assert "label_dp is 1 and 2.5 in one file" in note
    assert "ε = 3.5. Mend: one label_dp" in note
    workshop.write(method='name = "vfl"\nlabel_dp = 1\n[[method]]\nname = "local-vfl"')
    (note,) = findings(workshop).notes
    assert "learns from labels as they are" in note
    for alone in ("local", "local-trees"):
        workshop.write(method=f'name = "vfl"\nlabel_dp = 1\n[[method]]\nname = "{alone}"')
        assert findings(workshop).notes == []
    workshop.bank["default"] = np.arange(160) * 0.5
    workshop.write(method='name = "vfl"\nlabel_dp = 1')
    assert any("label_dp is for classes" in each for each in findings(workshop).problems)


# ---------------------------------------------------------------- what the label is


def _visits(workshop, text, *, task=""):
    rng = np.random.default_rng(2)
    workshop.bank["visits"] = rng.poisson(1.8, len(workshop.bank))
    workshop.write(text, method="")
    workshop.edit(('label = "default"', f'label = "visits"\n{task}'))
    return findings(workshop)


def test_counts_and_methods_for_classes(workshop):
    text = '[[method]]\nname = "risa"\n[evaluate]\nmetrics = ["auc"]\n'
    found = _visits(workshop, text)
    assert found.problems == []
    assert any("though they look like counts" in note for note in found.notes)
    found = _visits(workshop, text, task='task = "count"')
    assert found.notes == []
    assert [problem.split(". Mend")[0] for problem in found.problems] == [
        "evaluate.metrics: 'auc' does not fit this label, which is taken for a number",
        "method[risa] learns classes, and the label is taken for a number",
    ]


def test_methods_that_take_the_label_for_different_things(workshop):
    text = '[[method]]\nname = "local"\n[[method]]\nname = "vfl"\ntask = "regression"\n'
    (problem,) = _visits(workshop, text).problems
    assert problem.startswith("the label is a number to VFL and a class to Local")
    both = text.replace('"local"\n', '"local"\ntask = "regression"\n')
    assert _visits(workshop, both).problems == []


def test_a_partner_s_copy_of_the_label_is_named(workshop):
    truth = workshop.bank.set_index("customer")["default"]
    workshop.telco["flag"] = (
        truth.map({"yes": 1, "no": 0}).reindex(workshop.telco["customer"]).array
    )
    workshop.telco["again"] = truth.reindex(workshop.telco["customer"]).array
    workshop.write()
    notes = findings(workshop).notes
    assert "column 'flag': it tells the label 'default' of 'bank' by itself (AUC" in notes[0]
    assert "column 'again': the same as the label 'default' of 'bank'" in notes[1]


def test_a_run_of_counts(workshop):
    """`auto`, every method and `predict` take the label for the same thing."""
    text = '[[method]]\nname = "auto"\ncandidates = ["local-trees", "vfl"]\nepochs = 2\nfolds = 2\n'
    text += '[[method]]\nname = "local"\nepochs = 2\n'
    assert _visits(workshop, text, task='task = "count"').problems == []
    record = execute(plan_of(load_config(workshop.config)), workshop.run)
    assert record.metric == "rmse" and record.choice["metric"] == "rmse"
    assert {run.params["task"] for run in record.methods} == {"count"}
    assert record.overview["label"]["mean"] == pytest.approx(1.8, abs=0.4)


def test_a_weight_column_is_looked_for(workshop):
    workshop.write(method='name = "boosting"\nweight_column = "incom"')
    (problem,) = findings(workshop).problems
    assert "party 'bank', column 'incom': there is no such weight_column" in problem
    assert "did you mean 'income'" in problem


def test_classes_that_are_written_in_two_ways_are_told():
    """Left alone they are four classes, two of them too small to be learnt."""
    rows = {"x": range(40), "y": ["no", "yes"] * 18 + ["No ", "Yes "] * 2}
    (note,) = doubtful_columns(fm.Table(range(40), rows, label="y"), "bank")
    assert note == (
        "party 'bank', label 'y': 'no' and 'No ' are taken for different values. "
        "Mend: write them alike"
    )
