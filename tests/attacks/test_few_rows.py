"""Answers over few rows: metrics of one row, folds of one row, sets that differ in one row.

The coordinator asks whatever the workers expose, through a site in one process and through a host
behind messages. Measured: whether any answer, or any combination of answers, rests on fewer than
`min_rows` rows, and how many labels a coordinator that goes on until it is refused can tell from
what it got, beside always saying the commonest class. Before, it told all of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers
from fedmend.errors import FedmendError, Refused
from fedmend.federation import Alignment, Policy, Site
from fedmend.split.config import Settings, SplitConfig

from .reached import ENGINES, AtHost, AtSite, Reached, party

ROWS = 120


def table(rows: int = ROWS, unlabelled: int = 0) -> Table:
    rng = np.random.default_rng(3)
    said = rng.choice(["no", "yes"], rows).astype(object)
    said[:unlabelled] = None
    frame = pd.DataFrame({"income": rng.normal(5000, 900, rows), "default": said})
    return Table(np.arange(rows), frame, label="default")


@pytest.fixture(params=ENGINES)
def bank(request, tmp_path):
    made = party(request.param, tmp_path / "bank", table())
    made.site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    yield made
    made.close()


class Model:
    """A model of the label party's own columns that the coordinator made up, never trained."""

    def __init__(self, at: Reached, rows: int, batch_size: int = 256) -> None:
        settings = Settings(batch_size=batch_size)
        config = SplitConfig(bottom=(4,), embedding=1, top=(4,), settings=settings)
        self.rows, self.how = rows, config.to_wire()
        self.top = at.worker("TopWorker", model="made up")
        self.top.create(config=self.how, names=["bank"], widths=[0])
        self.top.attach(segments=[["aligned", rows]], config=self.how, train=True)

    def accuracy(self, rows: Any) -> float:
        """Over these rows, as the coordinator is told."""
        rows = np.asarray(rows)
        self.top.predict_chunk(rows=rows)
        return float(self.top.metrics(rows=rows)["accuracy"])

    def loss(self, order: Any, batches: int | None = None) -> float:
        """Of some batches of an epoch in this order."""
        count = self.top.set_order(rows=np.asarray(order))
        self.top.start_epoch(epoch=1)
        for _ in range(count if batches is None else batches):
            self.top.step(embeddings={})
        told = self.top.loss()
        if told is None:
            raise Refused("bank", "no loss is told", "")
        return float(told)


def test_metrics_of_one_row(bank):
    model = Model(bank, ROWS)
    for rows in ([7], [7] * 20, range(9), np.arange(9)):
        with pytest.raises(Refused, match=r"fewer than 10 of its rows.*Mend"):
            model.accuracy(rows)


def test_metrics_of_two_nearly_equal_sets(bank):
    model = Model(bank, ROWS)
    model.accuracy(range(ROWS))
    for rows in (range(1, ROWS), range(9, ROWS)):
        with pytest.raises(Refused, match="together with what was answered before"):
            Model(bank, ROWS).accuracy(rows)
    Model(bank, ROWS).accuracy(range(20, ROWS))


def test_one_row_that_counts_a_thousand_times(bank):
    with pytest.raises(Refused, match="together with"):
        Model(bank, ROWS).accuracy([*range(ROWS), *[7] * 1000])


def test_sets_that_tell_a_row_only_all_together(bank):
    """A tracker: no two of these four sets differ in few rows, and their sums tell row 0."""
    a, b, c = (list(range(start, start + 30)) for start in (1, 31, 61))
    model = Model(bank, ROWS)
    model.accuracy(a + b)
    model.accuracy(b + c)
    model.accuracy(a + c)
    with pytest.raises(Refused, match="together with"):
        model.accuracy([0, *a, *b, *c])


def test_the_loss_of_one_row(bank):
    with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
        Model(bank, ROWS).loss([7])
    with pytest.raises(Refused, match="a step on the labels of fewer than 10"):
        Model(bank, ROWS, batch_size=1).loss(range(ROWS), batches=1)


def test_the_loss_of_all_rows_but_one_beside_the_log_loss_of_all(bank):
    model = Model(bank, ROWS)
    model.accuracy(range(ROWS))
    with pytest.raises(Refused, match="no loss is told"):
        model.loss(range(1, ROWS))


def test_one_labelled_row_among_rows_without_label():
    site = Site("bank", {"train": table(60, unlabelled=40)})
    site.alignments["train"] = Alignment(np.arange(60), np.zeros(0, np.int64))
    with pytest.raises(Refused, match="fewer than 10"):
        Model(AtSite(site), 60).accuracy([*range(40), 50])


def test_folds_of_one_row(bank):
    folds = bank.worker("FoldWorker")
    with pytest.raises(Refused, match="fewer than 10"):
        folds.split_own(train="rest", held="one", number=0, folds=ROWS)
    with pytest.raises(FedmendError, match="there is no table 'one'"):
        asked(bank, "OverviewWorker", "one").sizes()
    with pytest.raises(Refused, match="fewer than 10"):
        folds.split(train="rest", held="one", rows=np.array([3]), number=0, pairs={})


def test_folds_across_folds(bank):
    """Rows of a fold of one number that are not in one of another are few."""
    folds = bank.worker("FoldWorker")
    folds.split_own(train="rest", held="one", number=0, folds=6)
    refused = 0
    for count in (2, 3, 4, 5, 7, 8, 9, 10):
        for number in range(count):
            try:
                folds.split_own(train="rest", held="one", number=number, folds=count)
            except Refused:
                refused += 1
    assert refused
    assert weakest(bank.site, "columns") >= 10


def test_folds_of_a_fold(bank):
    folds = bank.worker("FoldWorker")
    folds.split_own(train="rest", held="one", number=0, folds=6)
    with pytest.raises(Refused, match="fewer than 10"):
        bank_fold = asked(bank, "FoldWorker", "one")
        bank_fold.split_own(train="a", held="b", number=0, folds=4)


def test_classes_of_few_rows_are_not_counted(tmp_path):
    said = ["no"] * 60 + ["yes"] * 51 + ["maybe"] * 9
    rows = Table(np.arange(ROWS), {"x": np.arange(ROWS) * 1.0, "y": said}, label="y")
    at = AtSite(Site("bank", {"train": rows}))
    # "yes" is left out too: all rows less "no" and "yes" would be nine
    assert at.worker("OverviewWorker").label_counts()["counts"] == {"no": 60}
    assert at.site.rows.leverage(rows, "labels").any(), "an answer about labels, not about columns"
    assert not at.site.rows.leverage(rows, "columns").any()
    counted = at.worker("ClassWorker")
    counted.attach(classes=["maybe", "no", "yes"])
    assert counted.counts().tolist() == [0, 60, 0]


def test_categories_of_few_rows_stay_with_their_owner():
    frame = {
        "city": ["Oslo"] * 70 + ["Rome"] * 40 + ["Hell"] * 3 + ["Wien"] * 7,
        "rare": [*np.random.default_rng(0).normal(size=9), *[np.nan] * (ROWS - 9)],
        "y": ["a", "b"] * (ROWS // 2),
    }
    at = AtSite(Site("bank", {"train": Table(np.arange(ROWS), frame, label="y")}))
    client = at.worker("ClientWorker", run="x")
    schema = client.columns()["schema"]
    assert "Hell" not in str(schema) and "Wien" not in str(schema)
    assert client.moments(schema=schema)["rare"] == [[0.0, 0.0, 0.0]]


def test_trees_of_few_rows_that_count():
    """Any column of the label party can be named for weights: few of its rows may have them all."""
    frame = table().frame.assign(
        sick=np.arange(ROWS) // (ROWS - 3) * 1.0,
        rich=np.where(np.arange(ROWS) < ROWS - 3, 1.0, 1e3),
        paid=np.arange(ROWS) // 60 * 1.0,
    )
    site = Site("bank", {"train": Table(np.arange(ROWS), frame, label="default")})
    site.alignments["train"] = Alignment(np.arange(50), np.arange(50, ROWS))
    install_workers()
    settings = {"task": "auto", "bins": 8, "own": True}
    growth = {"depth": 2, "learning_rate": 0.1, "l2": 1.0, "min_leaf": 0}
    how = {"trees": 1, "validation": 0.0, "patience": 1, "disclose": None, "search": 1, "seed": 0}

    def begin(column: str | None, segments: Any) -> Any:
        trees = AtSite(site).worker("ActiveTrees", model="trees")
        trees.create(settings=settings | {"weight_column": column}, layouts={})
        return trees.begin(segments=segments, growth=growth, settings=how, least=1, met={})

    everybody = [["aligned", 50], ["bank", ROWS - 50]]
    for few in ("sick", "rich"):
        with pytest.raises(Refused, match=rf"'bank'.*{few}.*fewer than 10 of its rows.*Mend"):
            begin(few, everybody)
    with pytest.raises(Refused, match="fewer than 10 of its rows"):
        begin(None, [["telco", 300]])  # rows of others stood for the last one here
    for column, segments in (("paid", everybody), ("paid", everybody[:1]), (None, everybody)):
        assert begin(column, segments) is None, "who subtracts two numbers has a small one"


def asked(at: Reached, worker: str, scope: str) -> Any:
    from .reached import Asked

    return Asked(at, at.start(worker, {}, scope))


# ---------------------------------------------------------------------------- labels, in the end


def test_a_coordinator_that_asks_until_it_is_refused_tells_no_label(bank):
    """Random halves; what is right of each row by least squares, and from that its label."""
    rng, model = np.random.default_rng(0), Model(bank, ROWS)
    sets, answers = [], []
    for _ in range(200):
        rows = np.sort(rng.permutation(ROWS)[: ROWS // 2])
        try:
            answers.append(model.accuracy(rows) * len(rows))
        except Refused:
            break
        sets.append(np.isin(np.arange(ROWS), rows))
    assert 1 <= len(sets) < ROWS // 5
    guess, *_ = np.linalg.lstsq(np.array(sets, float), np.array(answers), rcond=None)
    model.top.attach(segments=[["aligned", ROWS]], config=model.how, train=True)
    model.top.predict_chunk(rows=np.arange(ROWS))
    predicted = model.top.predictions().argmax(1)
    truth = (bank.site.tables["train"].y == "yes").to_numpy(int)
    right = predicted == truth
    told = np.where(guess > np.median(guess), predicted, 1 - predicted)
    commonest = max(truth.mean(), 1 - truth.mean(), right.mean(), 1 - right.mean())
    # three standard deviations above what the commonest answer gets
    assert (told == truth).mean() <= commonest + 3 * np.sqrt(0.25 / ROWS)


def test_two_runs_that_set_one_row_more_aside(tmp_path):
    """Which rows are test rows is chosen by whoever starts a run, and was different by one row."""
    folder = tmp_path / "bank"
    party("host", folder, table()).close()
    text = (folder / "party.toml").read_text().replace('test = "test.csv"\n', "")
    (folder / "party.toml").write_text(text)
    told = []
    for number, share in enumerate((0.3, 0.305, 0.31, 0.315, 0.32)):
        at = AtHost(folder, run=f"run {number}".replace(" ", "-"), test_share=share)
        try:
            told.append(at.worker("OverviewWorker").label_counts()["counts"])
        except Refused as refusal:
            assert "together with what was answered before" in str(refusal)
        finally:
            at.close()
    totals = [sum(each.values()) for each in told]
    assert all(abs(one - two) >= 10 or one == two for one, two in itertools.combinations(totals, 2))


# ---------------------------------------------------------------------------- any sequence of calls


def weakest(site: Site, about: str) -> float:
    """The fewest rows that a combination of all answers can rest on, by their leverages."""
    leverage = np.sort(site.rows.leverage(site.tables["train"], about))[::-1]
    return int(np.searchsorted(leverage.cumsum(), 1 - 1e-9) + 1)


FEW, LEAST = 16, 3
subsets = st.lists(st.integers(0, FEW - 1), min_size=1, max_size=FEW + 4)
calls = st.one_of(
    st.tuples(st.just("metrics"), subsets),
    st.tuples(st.just("loss"), subsets),
    st.tuples(st.just("batch"), st.integers(1, 5)),
    st.tuples(st.just("fold"), st.tuples(st.integers(0, 3), st.integers(2, 5))),
)


@given(st.lists(calls, min_size=1, max_size=12))
def test_no_sequence_of_calls_tells_of_fewer_rows(asked_for):
    """Whatever was answered: for every few rows, no combination of answers rests on them alone."""
    site = Site("bank", {"train": table(FEW)}, policy=Policy(min_rows=LEAST))
    site.alignments["train"] = Alignment(np.arange(FEW), np.zeros(0, np.int64))
    at = AtSite(site)
    answered: list[np.ndarray] = []
    for what, how in asked_for:
        try:
            rows = answer(at, what, how)
        except Refused:
            continue
        answered += [np.bincount(each, minlength=FEW).astype(float) for each in rows]
    if not answered:
        return
    sets = np.array(answered)
    rank = np.linalg.matrix_rank(sets)
    for few in itertools.combinations(range(FEW), LEAST - 1):
        others = np.delete(sets, few, axis=1)
        assert np.linalg.matrix_rank(others) == rank, f"the answers tell of rows {few}"


def answer(at: Reached, what: str, how: Any) -> list[np.ndarray]:
    """The sets of rows on which the answers that were given rest."""
    if what == "metrics":
        Model(at, FEW).accuracy(how)
        return [np.array(how)]
    if what == "loss":
        Model(at, FEW).loss(how)
        return [np.array(how)]
    if what == "batch":
        model = Model(at, FEW, batch_size=how)
        model.loss(range(FEW), batches=1)
        return [model_rows(at, how)]
    number, folds = how
    at.worker("FoldWorker").split_own(train="rest", held="one", number=number, folds=folds)
    asked(at, "OverviewWorker", "one").label_counts()
    return [at.site.tables["one"].ids.astype(int)]


def model_rows(at: Reached, size: int) -> np.ndarray:
    """The first batch of an epoch, which everybody can compute from its number."""
    from fedmend.split.features import BatchOrder

    order = BatchOrder(np.arange(FEW), size, "cpu")
    order.start(1)
    return order.next().numpy()
