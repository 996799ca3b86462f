"""Tear a perfect table on purpose, so that what is mended can be compared with the truth.

Columns go to parties, few people are known to all, the rest lose their other side or their
name, rows of a column block go missing, annotators disagree. Everything is drawn from one
``seed``: the same seed gives the same tear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedmend._suggest import one_of_these
from fedmend.data.crowds import annotators, client_rows, dirichlet_clients, split_clients
from fedmend.data.table import Table, blanked, require_name
from fedmend.errors import DataError

__all__ = [
    "annotators",
    "client_rows",
    "dirichlet_clients",
    "missing_block",
    "split_clients",
    "split_columns",
    "split_image",
    "split_rows",
    "tear",
    "tear_rows",
]


# --- columns ------------------------------------------------------------------------


def split_columns(
    table: Table,
    parties: Mapping[str, Sequence[str] | float] | Sequence[str],
    *,
    label_party: str | None = None,
    seed: int = 0,
    within_kinds: bool = True,
) -> dict[str, Table]:
    """Columns of one table dealt out to parties; all keep the ids, one keeps the label.

    ``parties`` maps a name to its columns, or to its share of them (shares are scaled to sum
    to 1); a plain list of names means equal shares. Dealt at random within numeric and
    within other columns, unless ``within_kinds`` is off. The label goes to ``label_party``,
    by default the first. A party that is given no columns is only allowed to hold the label.
    """
    names = list(parties)
    keeper = _label_party(table, names, label_party)
    if not isinstance(parties, Mapping):
        parties = dict.fromkeys(names, 1.0)
    if all(isinstance(given, (int, float)) for given in parties.values()):
        dealt = _deal_columns(table, {n: float(parties[n]) for n in names}, seed, within_kinds)  # type: ignore[arg-type]
    else:
        dealt = _given_columns(table, parties)
    result = {}
    for name in names:
        is_keeper = name == keeper
        if not dealt[name] and not is_keeper:
            raise DataError(
                "no column is left for this party",
                party=name,
                mend="give it a larger share, or name its columns",
            )
        columns = [column for column in table.feature_names if column in set(dealt[name])]
        label = [table.label] if is_keeper and table.label is not None else []
        result[name] = table.select([*columns, *label])
    return result


def _label_party(table: Table, names: list[str], asked: str | None) -> str | None:
    if not names:
        raise DataError("no parties are named", mend="name at least one")
    if len(set(names)) != len(names):
        raise DataError("a party is named twice", value=names, mend="give each its own name")
    if asked is not None:
        _require_party("label_party", asked, names)
    if table.label is None:
        return None
    return asked if asked is not None else names[0]


def _given_columns(
    table: Table, parties: Mapping[str, Sequence[str] | float]
) -> dict[str, list[str]]:
    dealt: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, given in parties.items():
        if isinstance(given, (int, float, str)):
            raise DataError(
                "columns must be given as lists for all parties, or as shares for all",
                party=party,
                value=given,
                mend="give a list of column names",
            )
        dealt[party] = [column for column in given if column != table.label]
        for column in dealt[party]:
            require_name(column, table.feature_names, "column")
            if column in owner:
                raise DataError(
                    f"given to {owner[column]!r} and to {party!r}",
                    party=party,
                    column=column,
                    mend="give each column to one party",
                )
            owner[column] = party
    return dealt


def _deal_columns(
    table: Table, shares: dict[str, float], seed: int, within_kinds: bool
) -> dict[str, list[str]]:
    total = sum(shares.values())
    if not (min(shares.values()) >= 0 and 0 < total < np.inf):
        raise DataError("shares must be positive", value=shares, mend="e.g. {'a': 0.7, 'b': 0.3}")
    rng = np.random.default_rng(seed)
    features = table.feature_names
    numeric = [name for name in features if table.schema[name].is_numeric]
    groups = [numeric, [name for name in features if name not in numeric]]
    dealt: dict[str, list[str]] = {party: [] for party in shares}
    owed = dict.fromkeys(shares, 0.0)
    for group in groups if within_kinds else [features]:
        shuffled = [group[index] for index in rng.permutation(len(group))]
        for party, share in shares.items():
            owed[party] += share / total * len(group)
        # whole columns first, then what is left over to whoever is owed most, over all groups
        counts = {
            p: min(int(share / total * len(group)), len(group)) for p, share in shares.items()
        }
        for _ in range(len(group) - sum(counts.values())):
            most = max(shares, key=lambda p: owed[p] - len(dealt[p]) - counts[p])
            counts[most] += 1
        start = 0
        for party in shares:
            dealt[party] += shuffled[start : start + counts[party]]
            start += counts[party]
    return dealt


def split_image(
    table: Table,
    block: str,
    parties: Sequence[str],
    *,
    axis: str = "width",
    label_party: str | None = None,
) -> dict[str, Table]:
    """An image block cut into equal strips, one per party; other columns stay with the label."""
    names = list(parties)
    keeper = _label_party(table, names, label_party)
    require_name(block, list(table.blocks), "block")
    along = {"height": 2, "width": 3}.get(axis)
    values = table.blocks[block]
    if along is None or values.ndim != 4 or values.shape[along] % len(names):
        raise DataError(
            f"images of shape {values.shape[1:]} cannot be cut into {len(names)} along {axis!r}",
            column=block,
            mend="use axis='width' or 'height' and a number of parties that divides it",
        )
    strips = np.split(values, len(names), axis=along)
    others = [name for name in table.names if name != block]
    result = {}
    for name, strip in zip(names, strips, strict=True):
        base = table.select(others if name == (keeper or names[0]) else [])
        kind = table.schema[block].kind
        result[name] = base.with_columns(
            blocks={block: np.ascontiguousarray(strip)}, kinds={block: kind}
        )
    return result


# --- rows ---------------------------------------------------------------------------


def tear_rows(
    n_rows: int,
    parties: Sequence[str],
    *,
    overlap: float,
    only: Mapping[str, float] | None = None,
    unlinkable: bool = True,
    seed: int = 0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which rows :func:`tear` makes common, and which each party keeps besides, as positions.

    The same arguments give the rows of the same tear: the key to the truth.
    """
    _check_share("overlap", overlap)
    rest_share = 1.0 - overlap
    names = list(parties)
    if only is not None:
        for name, share in only.items():
            _require_party("only", name, names)
            _check_share(f"only[{name!r}]", share)
        needed = max(only.values(), default=0.0) if unlinkable else sum(only.values())
        if needed > rest_share + 1e-9:
            raise DataError(
                f"overlap {overlap} and only {dict(only)} take more than all rows",
                mend="let them sum to at most 1",
            )
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(n_rows)
    n_common = round(overlap * n_rows)
    common, rest = order[:n_common], order[n_common:]
    if unlinkable and only is None:
        return common, {name: rest for name in names}
    if only is None:
        pieces = np.array_split(rest, len(names))
        return common, dict(zip(names, pieces, strict=True))
    kept: dict[str, np.ndarray] = {}
    start = 0
    for name in names:
        size = min(round(only.get(name, 0.0) * n_rows), len(rest))
        if unlinkable:
            kept[name] = rng.permutation(rest)[:size]
        else:
            kept[name] = rest[start : start + size]
            start += size
    return common, kept


def tear(
    tables: Mapping[str, Table],
    *,
    overlap: float,
    only: Mapping[str, float] | None = None,
    unlinkable: bool = True,
    label_party: str | None = None,
    seed: int = 0,
) -> dict[str, Table]:
    """Leave a share ``overlap`` of the people known to all parties and tear the others apart.

    ``unlinkable`` (the papers' setting): every party keeps its side of the others, under fresh
    ids of its own, so that nobody can tell which rows belong together. Otherwise the others are
    dealt out: one party keeps a row under its id, all the others lose it.

    ``only`` says which share of all rows a party keeps besides the common ones (nothing where
    it is not named); without it, all of the rest, or equal parts of it when dealt out.
    Common people keep their id. Every party's rows are shuffled on their own.
    ``label_party``: all others lose their label column.
    """
    names = list(tables)
    if label_party is not None:
        _require_party("label_party", label_party, names)
    perfect = _aligned(tables)
    first = perfect[names[0]]
    common, kept = tear_rows(
        first.n_rows, names, overlap=overlap, only=only, unlinkable=unlinkable, seed=seed
    )
    fresh = _fresh_ids(first.ids, sum(map(len, kept.values())), np.random.default_rng([seed, 1]))
    result, start = {}, 0
    for number, name in enumerate(names):
        table = perfect[name]
        if label_party is not None and name != label_party and table.label is not None:
            table = table.features
        own = kept[name]
        ids = np.concatenate([first.ids[common], first.ids[own]])
        if unlinkable:
            ids[len(common) :] = fresh[start : start + len(own)]
            start += len(own)
        torn = table.take(np.concatenate([common, own])).with_ids(ids)
        shuffle = np.random.default_rng([seed, 2, number]).permutation(torn.n_rows)
        result[name] = torn.take(shuffle)
    return result


def _aligned(tables: Mapping[str, Table]) -> dict[str, Table]:
    """All tables in the row order of the first; raises where they are not of the same people."""
    names = list(tables)
    if not names:
        raise DataError("no tables are given", mend="give a table per party")
    first = tables[names[0]]
    result = {}
    for name in names:
        table = tables[name]
        place = pd.Index(table.ids).get_indexer(pd.Index(first.ids))
        if table.n_rows != first.n_rows or (place < 0).any():
            raise DataError(
                f"only tables of the same people can be torn; it shares "
                f"{int((place >= 0).sum())} of the {first.n_rows} ids of {names[0]!r}",
                party=name,
                mend="start from one table: tear(split_columns(table, ...), ...)",
            )
        in_order = np.array_equal(place, np.arange(first.n_rows))
        result[name] = table if in_order else table.take(place)
    return result


def _fresh_ids(ids: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Ids that nobody has, in random order, of the type of the others."""
    numbers = rng.permutation(count)
    if ids.dtype != object:
        highest = int(ids.max(initial=-1))
        fits = highest + count <= np.iinfo(np.int64).max
        return numbers + (highest + 1 if fits else int(ids.min()) - count)
    width = len(str(max(count, 1)))
    prefix = "new-"
    while any(str(known).startswith(prefix) for known in ids):
        prefix = f"new{prefix}"
    return np.array([f"{prefix}{number:0{width}d}" for number in numbers], dtype=object)


def split_rows(
    tables: Mapping[str, Table], share: float, seed: int = 0, stratify: str | None = None
) -> tuple[dict[str, Table], dict[str, Table]]:
    """People split in two, the same at all parties: ``(train, test)``, ``share`` of them in test.

    Works on torn tables too: whoever is known to several parties falls on the same side at
    all of them. ``stratify`` names a party whose label keeps its proportions.
    """
    _check_share("share", share)
    if not tables:
        raise DataError("no tables are given", mend="give a table per party")
    everybody = pd.Index(pd.unique(np.concatenate([t.ids.astype(object) for t in tables.values()])))
    strata = np.full(len(everybody), -1, dtype=np.int64)
    if stratify is not None:
        _require_party("stratify", stratify, list(tables))
        keeper = tables[stratify]
        codes = pd.factorize(keeper.y)[0]
        strata[everybody.get_indexer(pd.Index(keeper.ids.astype(object)))] = codes
    rng = np.random.default_rng([seed, 3])
    in_test = np.zeros(len(everybody), dtype=bool)
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        in_test[members[: round(share * len(members))]] = True
    train, test = {}, {}
    for name, table in tables.items():
        chosen = in_test[everybody.get_indexer(pd.Index(table.ids.astype(object)))]
        train[name], test[name] = table.take(~chosen), table.take(chosen)
    return train, test


def missing_block(
    table: Table,
    columns: Sequence[str],
    share: float,
    *,
    where: str = "last",
    seed: int = 0,
) -> tuple[Table, np.ndarray]:
    """The table with these columns missing in a share of its rows, and those rows' positions."""
    _check_share("share", share)
    for name in columns:
        require_name(name, list(table.frame.columns), "column")
    size = round(share * table.n_rows)
    if where == "last":
        rows = np.arange(table.n_rows - size, table.n_rows)
    elif where == "random":
        rows = np.sort(np.random.default_rng([seed, 4]).permutation(table.n_rows)[:size])
    else:
        raise DataError(f"unknown where={where!r}", mend="use 'last' or 'random'")
    lost = np.zeros(table.n_rows, dtype=bool)
    lost[rows] = True
    return blanked(table, columns, lost), rows


def _require_party(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise DataError(
            f"{option}={name!r} is not one of the parties",
            mend=one_of_these(name, known, "parties"),
        )


def _check_share(name: str, share: Any) -> None:
    if not isinstance(share, (int, float, np.floating)) or not 0 <= share <= 1:
        raise DataError(f"{name} must be a share between 0 and 1", value=share, mend="e.g. 0.2")
