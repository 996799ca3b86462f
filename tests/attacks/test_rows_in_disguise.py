"""Single rows in answers that look like something else: names, orders, tables of what is left over.

Which classes occur is told, how often each does over `min_rows` rows, and rows are held out by whom
the coordinator names. Measured: whether a class, the order of the classes, a count or a distance of
a class, a mean, or a model's temperature tells the label or the cell of a single row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedmend.data.schema import Column, Schema
from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers
from fedmend.errors import FedmendError, Refused
from fedmend.federation import Alignment, Site

from .reached import AtSite
from .test_few_rows import ROWS, Model, asked, table

EVERYBODY, ROW = np.arange(ROWS), 7


def site(rows: Table | None = None) -> Site:
    made = Site("bank", {"train": table() if rows is None else rows})
    made.alignments["train"] = Alignment(EVERYBODY, np.zeros(0, np.int64))
    install_workers()
    return made


def of(label: Any, **columns: Any) -> AtSite:
    frame = {"x": EVERYBODY * 1.0, **columns, "y": label}
    return AtSite(site(Table(EVERYBODY, frame, label="y")))


def test_a_table_of_the_one_row_that_is_not_held_out():
    """Its classes were one label; that few are left, or are held out alone, is refused."""
    at = AtSite(site())
    folds = at.worker("FoldWorker")
    with pytest.raises(Refused, match="fewer than 10"):
        folds.split(train="one", held="rest", rows=np.delete(EVERYBODY, ROW), number=0, pairs={})
    assert "one" not in at.site.tables


def test_a_fold_with_one_more_row_of_the_label_party_alone():
    at = AtSite(site())
    at.site.alignments["train"] = Alignment(EVERYBODY[:60], EVERYBODY[60:])
    folds = at.worker("FoldWorker")
    assert folds.number(aligned=np.arange(60) % 2, folds=100, alone=True, pairs=[])
    folds.split(train="rest", held="some", rows=EVERYBODY[:30], number=99, pairs={})
    with pytest.raises(Refused, match="together with"):
        folds.split(train="rest", held="more", rows=EVERYBODY[:30], number=1, pairs={})


@pytest.mark.parametrize("first", ["no", "yes"])
def test_the_order_of_classes_is_not_that_of_rows(first):
    labels = np.where(EVERYBODY % 2 == 0, first, "yes" if first == "no" else "no")
    at = of(labels)
    assert at.worker("LabelWorker").classes() == ["no", "yes"]
    assert at.worker("ClientWorker", run="x").columns()["classes"] == ["no", "yes"]


def test_a_class_of_few_rows_by_naming_it():
    labels = ["no"] * 60 + ["yes"] * 57 + ["maybe"] * 3
    counted = of(labels).worker("ClassWorker")
    assert counted.classes()["classes"] == ["no"], "all rows less two classes would be three"
    assert counted.attach(classes=["maybe"]) == ROWS
    assert counted.attach(classes=["maybe", "no", "yes"]) == ROWS
    assert counted.counts().tolist() == [0, 60, 0]
    for at, share in enumerate((0.0, 1.0, 0.0)):
        assert counted.distance(pooled=np.eye(3)[at]) == 1.0 - share
    told = 0
    for named in (["no"], ["yes"], ["maybe", "yes"]):
        counted.attach(classes=named)
        told += int(counted.counts().sum())
    assert told == 60


def test_numbers_as_classes():
    values = np.random.default_rng(0).normal(size=ROWS)
    assert of(values).worker("ClassWorker").classes()["classes"] == []


def test_the_mean_of_a_label():
    schema = Schema([Column("y", "continuous")]).to_dict()
    client = of([0] * 117 + [1] * 3).worker("ClientWorker", run="x")
    with pytest.raises(FedmendError):
        client.moments(schema=schema)


def test_the_mean_of_a_cell_that_one_of_many_further_rows_has():
    cells = np.where((EVERYBODY < 20) | (EVERYBODY == 27), 100.0 + EVERYBODY, np.nan)
    at = of(["a", "b"] * 60, cell=cells)
    folds = at.worker("FoldWorker")
    schema = Schema([Column("cell", "continuous")]).to_dict()
    found = []
    for name, count in (("some", 20), ("more", 30)):
        folds.split(train="-", held=name, rows=EVERYBODY[:count], number=0, pairs={})
        client = at.start("ClientWorker", {"run": "x"}, name)
        found.append(at.call(client, "moments", {"schema": schema})["cell"][0])
    assert found == [[20.0, 109.5, pytest.approx(33.25)], [0.0, 0.0, 0.0]], "less told: 127.0"


def test_a_temperature_by_one_label():
    at = AtSite(site())
    model = Model(at, ROWS)

    def probabilities() -> np.ndarray:
        model.top.attach(segments=[["aligned", ROWS]], config=model.how, train=False)
        model.top.predict_chunk(rows=EVERYBODY)
        return np.asarray(model.top.predictions())

    before = probabilities()
    for judged, shown in ((np.full(50, ROW), None), (EVERYBODY[:50], np.full(50, ROW))):
        model.top.attach(segments=[["aligned", ROWS]], config=model.how, train=True)
        model.top.predict_chunk(rows=judged if shown is None else shown)
        try:
            model.top.learn_scaling(rows=judged, kind="aligned")
        except Refused:
            assert shown is not None
        assert np.array_equal(probabilities(), before)


def test_temperatures_by_labels_that_differ_in_one():
    model, told = Model(AtSite(site()), ROWS), []
    for judged in (EVERYBODY, np.delete(EVERYBODY, ROW)):
        model.top.attach(segments=[["aligned", ROWS]], config=model.how, train=True)
        model.top.predict_chunk(rows=judged)
        model.top.learn_scaling(rows=judged, kind="aligned")
        model.top.attach(segments=[["aligned", ROWS]], config=model.how, train=False)
        model.top.predict_chunk(rows=EVERYBODY)
        told.append(np.asarray(model.top.predictions()))
    assert np.array_equal(*told)


def test_what_is_asked_of_a_fold_is_of_enough_rows():
    at = AtSite(site())
    at.worker("FoldWorker").split(
        train="rest", held="some", rows=EVERYBODY[:30], number=0, pairs={}
    )
    assert asked(at, "OverviewWorker", "some").sizes()["rows"] == 30


def test_a_row_that_is_alone_in_a_bin():
    """Of a report of how far probabilities are to be believed, which has a rate for every bin."""
    labels = np.array(["no", "yes"])[np.random.default_rng(0).integers(0, 2, ROWS)]
    at, sure = of(labels), np.full(ROWS, 0.999)
    sure[:4] = 0.55, 0.65, 0.75, 0.85
    asked_about = {"probabilities": np.stack([1 - sure, sure], 1), "classes": ["no", "yes"]}
    found = at.worker("LabelWorker").uncertainty_report(**asked_about)
    assert found["rows"] == ROWS and found["error"] == (labels == "no").mean()
    alone = [each["accuracy"] for each in found["reliability"] if each["rows"] == 1]
    assert len(alone) == 4 and len(set(alone)) == 1, "each is the share of ten rows that are right"
    right = np.array(found["histogram"]["right"])
    counts = right + found["histogram"]["wrong"]
    assert len(set(right[counts == 1])) == 1
    few = of(labels, other=EVERYBODY)
    few.site.alignments["train"] = Alignment(EVERYBODY[:24], EVERYBODY[24:])
    asked_about["probabilities"] = asked_about["probabilities"][:24]
    deciles = few.worker("LabelWorker").uncertainty_report(**asked_about)["deciles"]
    assert len({each["error"] for each in deciles if each["rows"] <= 2}) <= 3


def test_the_mean_of_a_column_that_few_rows_vary_in_or_have():
    columns = {
        "cell": np.where(EVERYBODY == ROW, 4242.0, np.nan),
        "few": np.where(EVERYBODY < 3, 7.0, 0.0),
    }
    told = of(["a", "b"] * 60, **columns).worker("CovarianceWorker", missing="mean").moments()
    means = dict(zip(told["names"], told["means"].tolist(), strict=True))
    assert means["cell"] == 0.0 and np.isnan(means["few"]) and means["x"] == EVERYBODY.mean()
