from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score

import fedmend as fm
from fedmend.errors import DataError
from fedmend.federation import Federation, read_ledger
from fedmend.flow import execute, plan_of
from fedmend.flow.checks import check_data
from fedmend.flow.config import load_config
from fedmend.flow.reading import read_parties
from fedmend.flow.scoring import Reference, how_sure, measure, reference_of
from fedmend.learn.calibration import describe
from fedmend.learn.metrics import expected_error
from fedmend.report.annotators import AnnotatorSkills

NAMES = ("clinic", "lab", "ward")
RATES = (0.05, 0.2, 0.4)


class Crowd:
    """Three parties on disk that label the same people, each with errors of its own."""

    def __init__(self, folder):
        self.folder, self.config, self.run = (
            folder,
            folder / "crowd.toml",
            folder / "runs" / "crowd",
        )
        rng = np.random.default_rng(3)
        truth = rng.integers(0, 2, 240)
        self.tables = {}
        for number, (name, rate) in enumerate(zip(NAMES, RATES, strict=True)):
            wrong = rng.random(240) < rate
            self.tables[name] = pd.DataFrame(
                {
                    "patient": np.arange(240),
                    f"x{number}": 2.0 * truth + rng.normal(size=240),
                    "finding": np.where(truth ^ wrong, "ill", "well"),
                }
            )

    def write(self, text, *, party=""):
        for name, table in self.tables.items():
            table.to_csv(self.folder / f"{name}.csv", index=False)
        parties = "".join(
            f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\nid = "patient"\n'
            f'label = "finding"\n{party.format(name=name)}'
            for name in self.tables
        )
        self.config.write_text(parties + text)
        return load_config(self.config)

    def execute(self, text, **options):
        return execute(plan_of(self.write(text)), self.run, **options)


@pytest.fixture
def crowd(tmp_path):
    return Crowd(tmp_path)


FOUR = (
    '[[method]]\nname = "inc"\nepochs = 6\nsecure = "masks"\n'
    '[[method]]\nname = "majority"\nepochs = 2\nsecure = "masks"\n'
    '[[method]]\nname = "dawid-skene"\nepochs = 2\nsecure = "masks"\n'
    '[[method]]\nname = "vfl"\nepochs = 2\nlabel_party = "ward"\n'
)


def test_several_annotators_in_a_run(crowd, pages):
    record = crowd.execute(FOUR + "[run]\nstrict = true\n[report]\nlabel_review = true\n")
    assert [each.title for each in record.methods] == ["InC", "majority vote", "Dawid–Skene", "VFL"]
    assert record.measured_against == (
        "the majority of the labels of clinic, lab and ward, ties left out"
    )
    # Dawid–Skene tells how well each labels, too.
    assert [each.labelling is not None for each in record.methods] == [True, False, True, False]
    found = AnnotatorSkills(**record.methods[0].labelling)
    assert found.classes == ["ill", "well"] and list(found.votes) == list(NAMES)
    rows = record.overview["aligned"]
    assert found.votes == dict.fromkeys(NAMES, rows) and found.rows == rows
    # The better a party labels, the fewer of its labels are doubted and the higher its diagonal.
    doubted = [found.suspicious[name] for name in NAMES]
    assert doubted == sorted(doubted) and doubted[0] < doubted[2] < rows
    right = [np.trace(found.expertise[name]) for name in NAMES]
    assert right == sorted(right, reverse=True)

    for name, count in found.suspicious.items():
        review = pd.read_csv(crowd.run / "labels" / "inc" / name / "label_review.csv")
        assert len(review) == rows and review["suspicious"].sum() == count
    html = (crowd.run / "report.html").read_text()
    assert 'id="annotators"' in html and "against the majority of the labels of clinic" in html
    assert all(each.uncertainty["worth"]["rows"] for each in record.methods)
    assert 'id="uncertainty"' in html and "Where most annotators err together" in html
    entries = read_ledger(crowd.run / "ledger.jsonl")
    assert not {each.kind for each in entries if each.receiver == "coordinator"} & {"label", "row"}


def test_a_party_whose_labels_count(crowd):
    text = '[[method]]\nname = "random-labeller"\nepochs = 2\nsecure = "masks"\n'
    record = crowd.execute(text + '[evaluate]\nreference = "clinic"\nmetrics = ["accuracy"]\n')
    assert record.measured_against == "the labels of clinic"
    assert list(record.methods[0].scores) == ["accuracy"]
    assert not (crowd.run / "labels").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = Crowd(tmp_path_factory.mktemp("crowd")).write(
        '[[method]]\nname = "vfl"\nlabel_party = "lab"\n'
    )
    fed = Federation(*read_parties(config), strict=True)
    fm.align(fed)
    fm.align(fed.on("test"))
    return fed, fm.VFL(epochs=2, label_party="lab").fit(fed)


def labels_of(fed, party):
    """The test labels of a party in the common order, which only a simulation can look at."""
    site = fed.engine.site(party)
    return site.tables["test"].y.to_numpy()[site.alignments["test"].aligned]


def test_measured_where_the_reference_is(trained):
    fed, model = trained
    test = fed.on("test")
    said = model.predict(test)
    for party in NAMES:
        scores = measure(model, test, Reference((party,)))
        assert scores["accuracy"] == pytest.approx(accuracy_score(labels_of(fed, party), said))
    votes = np.stack([labels_of(fed, party) == "ill" for party in NAMES])
    majority = np.where(votes.sum(0) >= 2, "ill", "well")
    scores = measure(model, test, Reference(NAMES))
    assert scores["accuracy"] == pytest.approx(accuracy_score(majority, said))
    own = measure(model, test, Reference(NAMES, own=True))
    assert own == measure(model, test, Reference(("lab",)))


def test_of_two_that_disagree_nobody_is_right(trained):
    fed, model = trained
    test = fed.on("test")
    two = ("lab", "ward")
    votes = np.stack([labels_of(fed, name) == "ill" for name in two])
    agreed = votes[0] == votes[1]
    assert 0 < agreed.sum() < len(agreed)
    said = model.predict(test)[agreed]
    expected = accuracy_score(np.where(votes[0][agreed], "ill", "well"), said)
    assert measure(model, test, Reference(two))["accuracy"] == pytest.approx(expected)


def test_how_sure_is_judged_by_the_same_labels(trained):
    fed, model = trained
    test = fed.on("test")
    p = model.predict_proba(test)
    classes = model.classes_.tolist()
    for party in NAMES:
        found = how_sure(model, test, Reference((party,)))
        codes = np.array([classes.index(each) for each in labels_of(fed, party)])
        expected = describe(p, expected_error(p), codes)
        assert found.worth["error"] == pytest.approx(expected["error"])
        assert found.worth["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)
        assert found.against == ""
    votes = np.stack([labels_of(fed, party) == "ill" for party in NAMES])
    majority = np.where(votes.sum(0) >= 2, classes.index("ill"), classes.index("well"))
    found = how_sure(model, test, Reference(NAMES))
    expected = describe(p, expected_error(p), majority)
    assert found.worth["histogram"] == expected["histogram"]
    assert found.worth["calibration_error"] == pytest.approx(expected["calibration_error"])
    assert "by the majority of the labels of clinic, lab and ward" in found.sentences()[0]
    assert how_sure(model, test, Reference(NAMES, own=True)) == how_sure(
        model, test, Reference(("lab",))
    )


def test_which_reference(trained):
    test = trained[0].on("test")
    assert reference_of(test, None, crowd=True) == Reference(NAMES)
    assert reference_of(test, "majority", crowd=False) == Reference(NAMES)
    assert reference_of(test, "lab", crowd=True) == Reference(("lab",))
    own = reference_of(test, None, crowd=False)
    assert own.own and own.words == ""
    with pytest.raises(DataError, match="no party has test labels"):
        reference_of(test, "nobody", crowd=True)


@pytest.mark.parametrize("several", [True, False])
def test_the_only_test_labels_count(make_fed, make_frame, several):
    test = make_fed(test=make_frame(40, seed=1)).on("test")
    found = reference_of(test, None, crowd=False, several=several)
    assert found == Reference(("bank",), own=not several)
    assert found.words == ("the labels of bank" if several else "")


def test_only_the_reference_labels_the_test_rows(crowd):
    text = '[[method]]\nname = "majority"\nepochs = 2\nsecure = "masks"\n'
    for name, table in crowd.tables.items():
        later = table.iloc[:60].assign(patient=np.arange(1000, 1060))
        kept = later if name == "lab" else later.drop(columns="finding")
        kept.to_csv(crowd.folder / f"{name}-test.csv", index=False)
    config = crowd.write(text, party='test = "{name}-test.csv"\n')
    assert check_data(config).problems == []
    record = execute(plan_of(config), crowd.run)
    assert record.measured_against == "the labels of lab"
    assert record.evaluated_on == "60 test rows known to all"
    reference = text + '[evaluate]\nreference = "ward"\n'
    config = crowd.write(reference, party='test = "{name}-test.csv"\n')
    (problem,) = check_data(config).problems
    assert "party 'ward' has no test labels" in problem and "Mend: " in problem
    with pytest.raises(DataError, match="party 'ward'.*has no test labels"):
        execute(plan_of(config), crowd.run, force=True)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (lambda n: [1, 2] * (n // 2), "and not at 'ward' (1). Mend: write the classes alike"),
        (lambda n: np.linspace(0.1, 0.9, n), "is a number, and methods for several"),
    ],
)
def test_check_looks_at_the_annotators(crowd, labels, words):
    crowd.tables["ward"]["finding"] = labels(240)
    problems = check_data(crowd.write('[[method]]\nname = "inc"\n')).problems
    assert any(words in problem for problem in problems), problems


def test_check_wants_two_classes_among_all(crowd):
    for table in crowd.tables.values():
        table["finding"] = "well"
    (problem,) = check_data(crowd.write('[[method]]\nname = "inc"\n')).problems
    assert "clinic, lab, ward have one class only: ['well']" in problem


def test_check_says_when_there_is_nothing_to_complete(crowd):
    (problem,) = check_data(crowd.write('[complete]\n[[method]]\nname = "inc"\n')).problems
    assert "no party has rows that the others lack" in problem
