"""Nobody goes on from a checkpoint with other rows than it was made with."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmend.data.readers import read
from fedmend.data.table import Table
from fedmend.errors import ResumeError
from fedmend.federation import Alignment, Federation
from fedmend.methods import RISA, VFL
from fedmend.split.checkpoints import digest_of_rows
from fedmend.split.parts import read_file, write_file

QUICK: dict[str, Any] = {"bottom": (4,), "top": (4,), "embedding": 2, "epochs": 2, "patience": None}


def one_cell(frame: pd.DataFrame) -> None:
    frame.loc[7, "c"] += 1.0


def one_category(frame: pd.DataFrame) -> None:
    frame.loc[7, "city"] = "Ulm" if frame.loc[7, "city"] != "Ulm" else "Bonn"


def one_label(frame: pd.DataFrame) -> None:
    frame.loc[7, "y"] = "no" if frame.loc[7, "y"] == "yes" else "yes"


def two_rows(frame: pd.DataFrame) -> None:
    frame.loc[[7, 8], ["c", "d"]] = frame.loc[[8, 7], ["c", "d"]].to_numpy()


@pytest.mark.parametrize(
    ("change", "party"),
    [(one_cell, "telco"), (one_category, "shop"), (one_label, "bank"), (two_rows, "telco")],
)
def test_other_rows_of_the_same_shape_are_refused(make_fed, make_frame, tmp_path, change, party):
    VFL(**QUICK).fit(make_fed(), checkpoint=tmp_path)
    frame = make_frame()
    change(frame)
    longer = VFL(**QUICK | {"epochs": 3})
    with pytest.raises(ResumeError, match=rf"party '{party}': .* other rows .*Mend: .*begin anew"):
        longer.fit(make_fed(frame), checkpoint=tmp_path, resume=True)
    longer.fit(make_fed(), checkpoint=tmp_path, resume=True)
    assert len(longer.history_) == 3


def test_a_checkpoint_of_an_earlier_version_is_refused_in_words(make_fed, tmp_path):
    VFL(**QUICK).fit(make_fed(), checkpoint=tmp_path)
    for file in tmp_path.rglob("epoch-*.fmw"):
        saved = read_file(file)
        write_file(file, {key: value for key, value in saved.items() if key != "made of"})
    with pytest.raises(ResumeError, match="earlier version"):
        VFL(**QUICK).fit(make_fed(), checkpoint=tmp_path, resume=True)


def aligned_anew(fed: Federation) -> Federation:
    """The same rows in another common order."""
    for site in fed.engine.sites.values():
        before = site.alignments["train"]
        site.alignments["train"] = Alignment(before.aligned[::-1].copy(), before.unaligned)
    return fed


def test_an_order_is_part_of_a_checkpoint_where_that_numbers_rows(make_fed, tmp_path):
    """Between machines an alignment has a new order every time: what can go on, may."""
    VFL(**QUICK).fit(make_fed(aligned=200), checkpoint=tmp_path / "vfl")
    other = aligned_anew(make_fed(aligned=200))
    VFL(**QUICK | {"epochs": 3}).fit(other, checkpoint=tmp_path / "vfl", resume=True)
    how = QUICK | {"members": 2, "threshold": None}
    how.pop("patience")
    RISA(**how).fit(make_fed(aligned=200), checkpoint=tmp_path / "risa")
    with pytest.raises(ResumeError, match="other rows"):
        RISA(**how).fit(other, checkpoint=tmp_path / "risa", resume=True)


def test_a_table_that_was_kept_and_read_again_is_the_same(tmp_path):
    columns = {
        "whole": pd.array([1, None, 3, 9], dtype="Int64"),
        "flag": pd.array([True, None, False, True], dtype="boolean"),
        "text": ["a", None, "b", "a"],
        "number": [1.5, np.nan, 2.0, 3.0],
        "code": pd.Series([3, None, 4, 3], dtype=object),
        "class": pd.Categorical(["u", "v", None, "u"]),
    }
    image = np.arange(16.0, dtype=np.float32).reshape(4, 2, 2)
    kinds = {"code": "nominal", "image": "tensor"}
    table = Table(list("wxyz"), columns, kinds=kinds, label="flag", blocks={"image": image})
    table.to_parquet(tmp_path / "table.parquet", id="id")
    again = read(tmp_path / "table.parquet", id="id")
    assert digest_of_rows(again) == digest_of_rows(table)
    for other in (
        table.take([1, 0, 2, 3]),
        table.drop("text"),
        table.with_columns({"text": ["a", None, "a", "b"]}),
        table.with_columns({"text": ["c", None, "b", "c"]}),
        table.with_columns(blocks={"image": image + 1}, kinds={"image": "tensor"}),
    ):
        assert digest_of_rows(other) != digest_of_rows(table)
    places = np.arange(4)
    assert digest_of_rows(table, places) != digest_of_rows(table, places[::-1])
