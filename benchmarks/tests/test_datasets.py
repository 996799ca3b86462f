"""Data sets in a folder: what is said when one is absent, and the real files."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pandas as pd
import pytest

from fedmend.data import LabelEncoder
from fedmend.errors import DataError, ReadError
from fedmend_bench import datasets
from fedmend_bench.datasets import STORED, DatasetAbsent


@pytest.mark.parametrize("name", sorted(STORED))
def test_absent_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend_bench.datasets.SYSTEM_FOLDERS", (str(tmp_path / "system"),))
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    info = datasets.info(name)
    assert not datasets.present(name) and "FEDMEND_DATA" in info.how_to_get and info.licence
    with pytest.raises(DatasetAbsent) as caught:
        datasets.load(name)
    message = str(caught.value)
    assert name in message and str(tmp_path) in message and info.how_to_get in message
    assert STORED[name].files[0] in message


def test_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    assert datasets.data_folder() == tmp_path
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path / "nowhere"))
    assert datasets.data_folder() is None
    with pytest.raises(DatasetAbsent, match="nowhere', which is not a folder"):
        datasets.load("letter")
    monkeypatch.delenv("FEDMEND_DATA")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert datasets.data_folder() is None
    with pytest.raises(DatasetAbsent, match="FEDMEND_DATA is not set"):
        datasets.load("letter")
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert datasets.data_folder() == tmp_path / "shared" / "data"


def test_the_list_says_which_are_here_and_how_to_get_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend_bench.datasets.SYSTEM_FOLDERS", ())
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    (tmp_path / "adult.parquet").write_bytes(b"")
    rows = {row["name"]: row for row in datasets.run().rows}
    assert rows["adult"]["here"] == "yes" and rows["bank"]["here"] == "no"
    assert "FEDMEND_DATA" in rows["bank"]["how to get it"] and set(rows) == set(STORED)


def test_the_packages_own_are_found_under_their_names():
    assert datasets.load("iris").n_rows == datasets.info("iris").rows and datasets.present("iris")
    with pytest.raises(DataError, match="no data set 'adlt'.*mean 'adult'"):
        datasets.load("adlt")


# --- files of our own making, in the real formats ----------------------------------------


def write_idx(path, values):
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMEND_DATA", str(tmp_path))
    return tmp_path


def test_fashion_mnist_idx_files(home):
    folder = home / "fashion-mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = {stem: rng.integers(0, 256, (n, 28, 28)) for stem, n in (("train", 6), ("t10k", 3))}
    for stem, values in images.items():
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", values)
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", np.arange(len(values)))
    table, test = datasets.load("fashion-mnist"), datasets.load("fashion-mnist", split="test")
    assert np.array_equal(table.blocks["image"][:, 0], images["train"])
    assert table.schema["image"].kind == "image" and table.schema["image"].shape == (1, 28, 28)
    assert table.y.tolist() == list(range(6)) and table.schema["label"].kind == "nominal"
    assert not set(table.ids) & set(test.ids) and test.n_rows == 3
    with pytest.raises(DataError, match="unknown split"):
        datasets.load("fashion-mnist", split="dev")
    write_idx(folder / "train-images-idx3-ubyte.gz", np.zeros((6, 28)))
    with pytest.raises(ReadError, match="not an idx file of 3"):
        datasets.load("fashion-mnist")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(ReadError, match="not a whole gzip"):
        datasets.load("fashion-mnist")


def test_keel_lines_without_a_head(home):
    folder = home / "keel"
    folder.mkdir()
    wide = [", ".join([*(["x", "1"] * 4), "x", f" {label} "]) for label in ("positive", "negative")]
    (folder / "tic-tac-toe.dat").write_text("\n".join(wide) + "\n")
    table = datasets.load("keel-tic-tac-toe")
    assert table.y.tolist() == ["positive", "negative"] and len(table.feature_names) == 9
    assert table.schema["x0"].is_categorical and not table.schema["x1"].is_categorical
    (folder / "tic-tac-toe.dat").write_text("b, 1.5, u, w\n")
    with pytest.raises(ReadError, match="4 cells in a line, not 10"):
        datasets.load("keel-tic-tac-toe")


def test_adult_question_marks_are_missing_cells(home):
    frame = pd.DataFrame(
        {
            "age": [20, 30, 40, 50],
            "workclass": pd.Categorical(["?", "Private", "State-gov", "Private"]),
            "income": pd.Categorical(["<=50K", ">50K", "<=50K", ">50K"]),
            "split": pd.Categorical(["train", "train", "test", "test"]),
        }
    )
    frame.to_parquet(home / "adult.parquet")
    table = datasets.load("adult")
    assert table.missing()["workclass"] == 1 and table.names == ["age", "workclass", "income"]
    assert "?" not in table.schema["workclass"].categories
    test = datasets.load("adult", split="test")
    assert test.ids.tolist() == [2, 3]
    with pytest.raises(DataError, match="unknown split='dev'.*train, test"):
        datasets.load("adult", split="dev")


def test_labelme_and_cifar10n_arrays(home):
    rng = np.random.default_rng(0)
    np.savez(
        home / "labelme_crowd.npz",
        x_train=rng.normal(size=(5, 4)).astype(np.float32),
        z_train=np.arange(5, dtype=np.uint8),
        answers=rng.integers(-1, 5, (5, 3)).astype(np.int8),
    )
    block, columns = datasets.load("labelme"), datasets.load("labelme", columns=True)
    assert np.array_equal(block.blocks["features"], columns.frame[["f0", "f1", "f2", "f3"]])
    assert columns.y.tolist() == block.y.tolist() == [0, 1, 2, 3, 4]
    assert datasets.human_labels("labelme").shape == (5, 3)
    with pytest.raises(ReadError, match="x_test"):
        datasets.load("labelme", split="test")
    keys = ["clean_label", "aggre_label", "worse_label"]
    keys += [f"random_label{number}" for number in (1, 2, 3)]
    arrays = {f"c10_{key}": rng.integers(0, 10, 50).astype(np.uint8) for key in keys}
    np.savez(home / "cifar_n_human_labels.npz", **arrays)
    human = datasets.load("cifar10n", label="worse")
    assert human.label == "worse" and human.y.tolist() == arrays["c10_worse_label"].tolist()
    said = datasets.human_labels("cifar10n")
    assert said[:, 2].tolist() == arrays["c10_random_label3"].tolist()
    with pytest.raises(DataError, match="no labels called 'best'"):
        datasets.load("cifar10n", label="best")


def test_broken_files(home):
    for name, file in (("letter", "letter.parquet"), ("labelme", "labelme_crowd.npz")):
        (home / file).write_bytes(b"PK not really")
        with pytest.raises(ReadError, match=file):
            datasets.load(name)


# --- the real files ------------------------------------------------------------------------


def real(name, **options):
    if not datasets.present(name):
        pytest.skip(f"{name} is not on this machine: {datasets.info(name).how_to_get}")
    return datasets.load(name, **options)


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(STORED))
def test_sizes_are_those_promised(name):
    table, info = real(name), datasets.info(name)
    assert (table.n_rows, len(table.feature_names)) == (info.rows, info.columns)
    label = LabelEncoder().fit(table.y, table.schema[table.label])
    assert label.task == info.task


COUNTS = {
    "covertype": {1: 211840, 2: 283301, 3: 35754, 4: 2747, 5: 9493, 6: 17367, 7: 20510},
    "credit": {1: 6636, 0: 23364},
    "breast-hetero": {0: 212, 1: 357},
    "credit-hetero": {1: 6636, 0: 23364},
    "gmsc": {1: 10026, 0: 139974},
    "adult": {">50K": 7841 + 3846, "<=50K": 48842 - 7841 - 3846},
    "bank": {"yes": 4640, "no": 36548},
    "sensorless": dict.fromkeys(range(1, 12), 200),
    "cifar10": dict.fromkeys(range(10), 5000),
    "cifar10-test": dict.fromkeys(range(10), 1000),
}


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(COUNTS))
def test_class_counts_are_those_published(name):
    assert real(name).y.value_counts().to_dict() == COUNTS[name]


@pytest.mark.real
def test_covertype_two_classes_real():
    table = real("covertype", classes=(1, 2))
    assert table.n_rows == 211_840 + 283_301 and table.schema["Cover_Type"].categories == (1, 2)
    assert table.schema["Cover_Type"].kind == "binary"
    assert table.frame.filter(like="Wilderness").sum(axis=1).eq(1).all()
    with pytest.raises(DataError, match="at least two cover types"):
        datasets.load("covertype", classes=(1, 8))


@pytest.mark.real
def test_adult_and_bank_real():
    train, test = real("adult", split="train"), real("adult", split="test")
    assert (len(train), len(test)) == (32_561, 16_281)
    assert (train.y.eq(">50K").sum(), test.y.eq(">50K").sum()) == (7841, 3846)
    assert train.missing().sum() + test.missing().sum() == 6465
    first, second = real("bank", split="train"), real("bank", split="test")
    assert len(first) + len(second) == 41_188 and not set(first.ids) & set(second.ids)


@pytest.mark.real
def test_gmsc_and_criteo_real():
    missing = real("gmsc").missing()
    assert (missing["MonthlyIncome"], missing["NumberOfDependents"]) == (29_731, 3_924)
    raw = real("criteo-raw")
    assert abs(raw.y.mean() - 0.216) < 0.001 and raw.schema["C3"].kind == "nominal"
    assert [len(real("criteo-tiny", split=part)) for part in ("train", "test")] == [10_000] * 2


@pytest.mark.real
def test_hetero_sides_real():
    for name, guest, host in (("breast-hetero", 10, 20), ("credit-hetero", 13, 10)):
        left, right = real(name, party="guest"), real(name, party="host")
        assert (len(left.feature_names), len(right.feature_names)) == (guest, host)
        assert left.label == "y" and right.label is None
        assert np.array_equal(left.ids, right.ids)
    with pytest.raises(DataError, match="unknown party"):
        datasets.load("breast-hetero", party="arbiter")


@pytest.mark.real
def test_cifar_real():
    train = real("cifar10")
    scaled = train.blocks["image"][::10] / 255
    np.testing.assert_allclose(scaled.mean((0, 2, 3)), [0.4914, 0.4822, 0.4465], atol=0.005)
    np.testing.assert_allclose(scaled.std((0, 2, 3)), [0.2470, 0.2435, 0.2616], atol=0.005)
    human = real("cifar10n", images=True)
    assert np.array_equal(human.blocks["image"], train.blocks["image"])
    assert human.frame["clean"].tolist() == train.y.tolist()
    wrong = human.frame.ne(human.frame["clean"], axis=0).mean() * 100
    expected = {"aggre": 9.01, "worse": 40.21, "random1": 17.23, "random2": 18.12}
    for name, rate in {**expected, "random3": 17.64}.items():
        assert abs(wrong[name] - rate) < 0.01
    second = real("cifar10", batches=(2,))
    assert second.ids[0] == 10_000
    assert np.array_equal(second.blocks["image"], train.blocks["image"][10_000:20_000])
    with pytest.raises(DataError, match="unknown batches"):
        datasets.load("cifar10", batches=(6,))


@pytest.mark.real
def test_labelme_real():
    gold = real("labelme").y.to_numpy()
    said = datasets.human_labels("labelme")
    given = said >= 0
    assert said.shape == (1000, 59) and abs(given.sum() / 1000 - 2.547) < 1e-9
    assert abs((said == gold[:, None])[given].mean() - 0.740) < 0.001
    assert [len(real("labelme", split=part)) for part in ("valid", "test")] == [500, 1188]


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x08\x03\0", b"\0\0\x08\x01" + b"\xff" * 12]
)
def test_an_idx_file_that_is_cut_off_is_named(tmp_path, content):
    from fedmend_bench.datasets import _idx

    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ReadError, match="images.gz: not an idx file of 3 dimensions"):
        _idx(path, 3)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_a_cut_npz_file_is_named(home, part):
    path = home / "labelme_crowd.npz"
    np.savez_compressed(path, x_train=np.ones((50, 4)), z_train=np.zeros(50, np.uint8))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ReadError, match="labelme_crowd.npz: not the npz file"):
        datasets.load("labelme")


def test_a_sheet_that_is_none_is_named(home):
    from io import BytesIO

    from PIL import Image

    small = BytesIO()
    Image.new("RGB", (64, 64)).save(small, "PNG")
    for sheet in (b"no picture at all", small.getvalue()):
        labels = np.zeros(10_000, np.uint8)
        np.savez(home / "cifar10_test.npz", sheet=np.frombuffer(sheet, np.uint8), labels=labels)
        with pytest.raises(ReadError, match="cifar10_test.npz: not a picture of 100 x 100 tiles"):
            datasets.load("cifar10-test")
