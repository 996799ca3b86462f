"""Data sets that lie as files in a folder. Every loader gets that folder first.

Ids are row numbers of the whole set, so that parts of it never share one.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.arrow import to_frame
from fedmend.data.readers import file_bytes, parquet_table
from fedmend.data.schema import KindSpec
from fedmend.data.table import Table
from fedmend.errors import DataError, ReadError

SYSTEM_FOLDERS = ("/usr/share/datasets", "/usr/local/share/datasets")

_HUMAN = {
    "random1": "c10_random_label1",
    "random2": "c10_random_label2",
    "random3": "c10_random_label3",
    "worse": "c10_worse_label",
    "aggre": "c10_aggre_label",
    "clean": "c10_clean_label",
}


def letter(home: Path, *, split: str | None = None) -> Table:
    """Capital letters by 16 counts; the usual split is the first 16,000 and the last 4,000."""
    table = _table(home / "letter.parquet", label="lettr")
    number = np.arange(table.n_rows)
    return _part(table, np.where(number < 16_000, "train", "test"), "split", split)


def covertype(home: Path, *, classes: Sequence[int] | None = None) -> Table:
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


def bank(home: Path, *, split: str | None = None) -> Table:
    """Term deposits sold by phone. The source has no split: train is a fixed random 80 %."""
    table = _table(home / "bank_additional_full.parquet", label="y")
    parts = np.full(table.n_rows, "train", dtype=object)
    shuffled = np.random.default_rng(0).permutation(table.n_rows)
    parts[shuffled[: table.n_rows // 5]] = "test"
    return _part(table, parts, "split", split)


def adult(home: Path, *, split: str | None = None) -> Table:
    """Income above 50K; ``?`` is a missing cell."""
    frame = _frame(home / "adult.parquet")
    parts = frame.pop("split").to_numpy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.CategoricalDtype) and "?" in frame[name].cat.categories:
            frame[name] = frame[name].cat.remove_categories("?")
    return _part(Table(np.arange(len(frame)), frame, label="income"), parts, "split", split)


def credit(home: Path) -> Table:
    """Default of credit card clients in Taiwan, original units."""
    return _table(
        home / "credit_default_raw.parquet",
        id="ID",
        label="default.payment.next.month",
        kinds={"EDUCATION": "nominal", "MARRIAGE": "nominal"},
    )


def breast_hetero(home: Path, *, party: str | None = None) -> Table:
    """Standardised, columns of guest (who has the label) and host; ``party`` picks one side."""
    return _side(_table(home / "fate_breast_hetero.parquet", id="id", label="y"), party)


def credit_hetero(home: Path, *, party: str | None = None) -> Table:
    """Standardised, columns of guest (who has the label) and host; ``party`` picks one side."""
    return _side(_table(home / "fate_default_credit_hetero.parquet", id="id", label="y"), party)


def gmsc(home: Path) -> Table:
    """Serious delinquency within two years; income and dependents have missing cells."""
    return _table(home / "give_me_some_credit.parquet", label="SeriousDlqin2yrs")


def criteo_raw(home: Path, *, split: str | None = None) -> Table:
    """Clicks by 13 counts and 26 hashed categories; ``split`` train, dev or test."""
    return _criteo(home / "criteo_raw8k.parquet", split)


def criteo_tiny(home: Path, *, split: str | None = None) -> Table:
    """Clicks by 13 bucketed counts and 26 index-coded categories; ``split`` train or test."""
    return _criteo(home / "criteo_tiny20k_encoded.parquet", split)


def sensorless(home: Path, *, part: str | None = "balanced200") -> Table:
    """Drive conditions 1..11; part ``head`` holds classes 1 and 2 only."""
    frame = _frame(home / "sensorless_subset.parquet")
    parts = frame.pop("part").to_numpy()
    table = Table(np.arange(len(frame)), frame, kinds={"y": "nominal"}, label="y")
    return _part(table, parts, "part", part)


def cifar10(home: Path, *, batches: Sequence[int] = (1, 2, 3, 4, 5)) -> Table:
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


def cifar10_test(home: Path) -> Table:
    """Test images as block ``image``; ids go on from those of the training images."""
    images, labels = _sheet(home / "cifar10_test.npz")
    return _pictures(np.arange(len(labels)) + 50_000, images, labels)


def cifar10n(home: Path, *, images: bool = False, label: str = "clean") -> Table:
    """Six labels of each training image; ``images=True`` adds the images themselves."""
    if label not in _HUMAN:
        raise DataError(f"no labels called {label!r}", mend=f"use one of {', '.join(_HUMAN)}")
    arrays = _npz(home / "cifar_n_human_labels.npz", _HUMAN.values())
    frame = pd.DataFrame({name: arrays[key] for name, key in _HUMAN.items()})
    kinds = dict.fromkeys(frame.columns, "nominal")
    if not images:
        return Table(np.arange(len(frame)), frame, kinds=kinds, label=label)
    pictures = cifar10(home).blocks
    return Table(np.arange(len(frame)), frame, kinds=kinds, label=label, blocks=pictures)


def cifar10n_answers(home: Path) -> np.ndarray:
    """The three independent answers, random1..3."""
    keys = [_HUMAN[f"random{number}"] for number in (1, 2, 3)]
    arrays = _npz(home / "cifar_n_human_labels.npz", keys)
    return np.stack([arrays[key] for key in keys], axis=1).astype(np.int64)


def labelme(home: Path, *, split: str = "train", columns: bool = False) -> Table:
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


def labelme_answers(home: Path) -> np.ndarray:
    """59 annotators' answers to the training images, -1 for none."""
    return _npz(home / "labelme_crowd.npz", ("answers",))["answers"].astype(np.int64)


def fashion_mnist(home: Path, *, split: str = "train") -> Table:
    """Clothes as block ``image`` [n, 1, 28, 28]; ids of test go on from those of train."""
    stems = {"train": ("train", 0), "test": ("t10k", 60_000)}
    if split not in stems:
        raise DataError(f"unknown split={split!r}", mend="use 'train' or 'test'")
    stem, start = stems[split]
    images = _idx(home / f"{stem}-images-idx3-ubyte.gz", 3)
    labels = _idx(home / f"{stem}-labels-idx1-ubyte.gz", 1)
    return _pictures(np.arange(len(labels)) + start, images[:, None], labels)


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
            mend="make it again as `fedmend datasets` describes",
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
            mend="make it again as `fedmend datasets` describes",
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
