"""Torn data of `fedmend bench risa` and `tabular`: two sides of the same rows, of which a share is
known to both.

Images of CIFAR-10 are cut into a left and a right half, the labels are on the left. Of tables the
label party has the numbers and its partner the categories; where there are none, or nothing else,
every other column. Of the rows that are not known to
overlap both parties keep their side, under ids that cannot be linked (the paper's setting); test
rows have both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedmend.data.scenario import split_image, tear_rows
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, Federation, Party
from fedmend_bench import datasets
from fedmend_bench.simulation import apart, know, together, without_cryptography

LABELS, PARTNER = "active", "passive"
PARTIES = (LABELS, PARTNER)
TABLES = ("adult", "bank", "credit", "criteo-tiny")
IMAGES = ("cifar10", "digits")
NAMES: tuple[str, ...] = (*IMAGES, *TABLES, "gmsc", "covertype", "letter", "sensorless")
NAMES += ("breast-cancer", *datasets.KEEL, *datasets.NUMBERS)
RARE = 10
ALONE = "alone"
"""The scope in which every party has its side of the test rows and nobody knows the other's."""


@dataclass(frozen=True)
class Sides:
    """Both parties' sides of the same training and test rows."""

    name: str
    train: Mapping[str, Table]
    test: Mapping[str, Table]

    @property
    def is_image(self) -> bool:
        return bool(self.train[LABELS].blocks)

    @property
    def metric(self) -> str:
        """What the paper reports: accuracy of images, AUC of tables (both in percent)."""
        return "accuracy" if self.is_image else "auc"


@dataclass(frozen=True)
class World:
    """A federation of two, and what only a simulation knows.

    partner_labels: of the partner's other rows. same: of each of the label party's rows, where the
    partner has the same person.
    """

    fed: Federation
    overlap: int
    same: np.ndarray
    partner_labels: np.ndarray
    test_labels: np.ndarray


@lru_cache(maxsize=2)
def load_sides(name: str, seed: int, rows: int | None, test: int | None, parties: int = 2) -> Sides:
    """A named data set cut in two; at most `rows` training and `test` test rows.

    parties: with more than two, the partner's columns of a table are dealt out to as many.
    """
    if name not in NAMES:
        raise ConfigError(f"there is no data set {name!r}. Mend: one of {', '.join(NAMES)}")
    rng = np.random.default_rng([seed, 17])
    if name == "cifar10":
        train, held_out = _cifar10()
        train, held_out = _some(train, rows, rng), _some(held_out, test, rng)
    else:
        table = _table(name)
        train, held_out = _split(table, rows, test, rng)
        if name.startswith("criteo"):
            train, held_out = pool_rare(train, held_out)
    if train.blocks:
        (block,) = train.blocks
        cut = [split_image(table, block, PARTIES) for table in (train, held_out)]
        return Sides(name, cut[0], cut[1])
    columns = columns_of(train)
    partners = {
        PARTNER if not place else f"{PARTNER}-{place + 1}": columns[PARTNER][place :: parties - 1]
        for place in range(parties - 1)
    }
    sides = [
        {LABELS: table.select([*columns[LABELS], str(train.label)])}
        | {partner: table.select(dealt) for partner, dealt in partners.items()}
        for table in (train, held_out)
    ]
    return Sides(name, sides[0], sides[1])


def _table(name: str) -> Table:
    if name in datasets.NUMBERS:
        return datasets.load_number(name)
    return _digit_images() if name == "digits" else datasets.load(name)


@lru_cache(maxsize=1)
def _cifar10() -> tuple[Table, Table]:
    """The same for all seeds, and slow to read."""
    return datasets.load("cifar10"), datasets.load("cifar10-test")


def _digit_images() -> Table:
    """Scikit-learn's digits as images, for a quick run without the data folder."""
    table = datasets.load("digits")
    pixels = table.frame[table.feature_names].to_numpy(np.uint8).reshape(-1, 1, 8, 8)
    label = str(table.label)
    return (
        table.select([label])
        .with_label(label)
        .with_columns(blocks={"image": pixels * 15}, kinds={"image": "image"})
    )


def pool_rare(train: Table, held_out: Table, least: int = RARE) -> tuple[Table, Table]:
    """Categories with fewer than `least` training rows become one, as is usual for clicks."""
    frames = [train.frame.copy(), held_out.frame.copy()]
    for name in train.schema.of_kind("nominal"):
        if name == train.label:
            continue
        counts = frames[0][name].value_counts()
        common = counts.index[counts >= least]
        for frame in frames:
            kept = frame[name].isin(common) | frame[name].isna()
            frame[name] = frame[name].astype(object).where(kept, "rare").map(_text)
    kinds = {name: train.schema[name].kind for name in train.names}
    first, second = (
        Table(table.ids, frame, kinds=kinds, label=train.label)
        for table, frame in zip((train, held_out), frames, strict=True)
    )
    return first, second


def _text(value: object) -> object:
    return value if value is None or value != value else str(value)


def columns_of(table: Table) -> dict[str, list[str]]:
    """Numbers to the label party, categories to its partner; every other column if all are alike.

    Of Credit also the monthly repayment states, which are codes written as numbers.
    """
    features = table.feature_names
    codes = [
        name
        for name in features
        if table.schema[name].is_categorical or (name.startswith("PAY_") and name[4:].isdigit())
    ]
    if not 0 < len(codes) < len(features):
        codes = features[1::2]
    return {LABELS: [name for name in features if name not in codes], PARTNER: codes}


def _some(table: Table, rows: int | None, rng: np.random.Generator) -> Table:
    if rows is None or rows >= len(table):
        return table
    return table.take(np.sort(rng.permutation(len(table))[:rows]))


def _split(
    table: Table, rows: int | None, test: int | None, rng: np.random.Generator
) -> tuple[Table, Table]:
    """A fifth for testing (at most `test`), the rest for training (at most `rows`)."""
    order = rng.permutation(len(table))
    fifth = len(table) // 5
    return (
        table.take(order[fifth:][: rows or None]),
        table.take(order[:fifth][: test or None]),
    )


def tear(sides: Sides, overlap: float, seed: int, device: str = "cpu") -> World:
    """The federation in which a share `overlap` of the training rows is known to both parties."""
    without_cryptography()
    n, parties = len(sides.train[LABELS]), tuple(sides.train)
    common, kept = tear_rows(n, parties, overlap=overlap, seed=seed)
    rng = np.random.default_rng([seed, 23])
    tables, alignments, places = {}, {}, {}
    # Nobody is in both training and test rows, and a party's account of rows goes by their ids.
    first = 1 + int(sides.test[LABELS].ids.max())
    for name in parties:
        # Every party's rows in an order of their own: positions must not link them either.
        rows = np.concatenate([common, rng.permutation(kept[name])])
        order = rng.permutation(len(rows))
        taken = sides.train[name].take(rows[order])
        place = np.argsort(order)
        tables[name] = Table(
            first + np.arange(len(rows)), taken.frame, schema=taken.schema, label=taken.label,
            blocks=taken.blocks,
        )  # fmt: skip
        alignments[name] = Alignment(place[: len(common)], np.sort(place[len(common) :]))
        places[name] = rows[order]
    fed = Federation(
        *(
            Party(name, tables[name], test=sides.test[name], alone=sides.test[name])
            for name in parties
        ),
        seed=seed,
        device=device,
    )
    know(fed, alignments)
    know(fed.on("test"), together(len(sides.test[LABELS])))
    know(fed.on(ALONE), apart(len(sides.test[LABELS])))
    same = np.argsort(places[PARTNER])[places[LABELS]]
    truth = sides.train[LABELS].y.to_numpy()[places[PARTNER][alignments[PARTNER].unaligned]]
    return World(fed, len(common), same, truth, sides.test[LABELS].y.to_numpy())
