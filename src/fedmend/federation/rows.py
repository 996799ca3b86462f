"""How few rows an answer may rest on: an account of the sets of rows that were asked about.

An answer over a set of rows (a sum, a metric, a class count) is a number that others may add and
subtract. Refusing small sets is therefore not enough: two sets that differ in one row tell that
row. The account keeps the span of all sets asked so far and looks at the statistical leverage of
each row in it: how much of a weighting that could single the row out is already among the answers.

    S, T disjoint, |S| = |T| = k      every leverage is 1/k
    S and S without one row           the leverage of that row is 1: it could be computed

For `min_rows` = k a further set is admitted as long as no k - 1 rows have a leverage of more than
1 - 1/(2k) together. A combination of answers that rests on fewer than k rows would need a leverage
of 1 on them, so none can be formed, however many sets are combined, and none comes close to it.

Sets stand for ids, not for places: the folds, views and copies of a table share one account. What
was asked in a run is kept for the sessions of that run; sets that are whole tables (which rows are
set aside for tests is chosen by whoever starts a run) are kept for all runs to come.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedmend._json import reading
from fedmend.data.table import Table
from fedmend.errors import DataError, Refused, TooFewRows

_IN_SPAN = 1e-9
"""Share of a set's squared length below which what is new in it is rounding."""


MAX_SCORED = 20
"""Models of somebody else's that are scored in a run. Where two say the same of all rows but a few,
their accuracies tell how many of these few are right, and that cannot be refused: to compare models
is what scores are for."""


class Scored(NamedTuple):
    """Rows and what the asker has said of each: an answer that compares that with the party's own.

    Such an answer is a sum over the rows too, weighted by log scores that the asker has chosen: two
    that differ in few rows tell these, and so does one in which few rows have all the weight. What
    logs do not show (ties, probabilities next to nothing) can still decide an answer, so that
    whatever is not the same to the bit is one more model.

    said: probabilities, **Shape** [rows, K].
    """

    rows: np.ndarray
    said: np.ndarray

    @property
    def scores(self) -> np.ndarray:
        logs = np.log(np.clip(np.nan_to_num(self.said), 1e-9, 1.0))
        logs -= logs.mean(1, keepdims=True)  # what it says of a row whatever the label
        return logs


class Weighted(NamedTuple):
    """Rows, and how far each of them counts in an answer."""

    rows: np.ndarray
    weights: np.ndarray


Asked = np.ndarray | Scored | Weighted | None


class RowAccount:
    """Which rows of a party were asked about, and whether an answer may rest on some more.

    given: the tables that a run begins with. file: where the party keeps the account.
    """

    def __init__(
        self,
        party: str,
        least: int,
        *,
        given: Iterable[Table] = (),
        run: str = "",
        file: Path | None = None,
    ) -> None:
        self.party = party
        self.least = least
        self.run = run
        self.file = file
        self._given = {id(table): table for table in given}
        self._ids: dict[str, int] = {}
        self._spans: dict[str, _Span] = {}
        self._asked: set[tuple[str, int, bytes]] = set()
        self._models: dict[str, set[str]] = {}
        self._last: dict[str, tuple[Table, np.ndarray]] = {}
        # A table is numbered once; held here, so that no other can take its address.
        self._numbered: dict[int, tuple[Table, np.ndarray]] = {}
        # The only table so far is numbered as it stands; its ids are learnt when another comes.
        self._only: Table | None = None
        self._lock = threading.Lock()
        if file is not None:
            self._replay(file)

    def admit(self, call: str, table: Table, rows: Asked, about: str = "columns") -> None:
        """Enter an answer over rows of a table (all of them if None), or raise `Refused`.

        rows: places in the table; one named twice counts twice, one outside of it is nobody.
        about: what is asked of them. Answers about different things cannot be subtracted.
        """
        with self._lock:
            if isinstance(rows, np.ndarray) and self._is_last(table, rows, about):
                return
            parts = [*rows] if isinstance(rows, tuple) else [rows]
            seen = b"" if rows is None else _digest(*(np.asarray(each) for each in parts))
            key = (about, id(table), seen)
            if key not in self._asked:
                self._admit(call, table, rows, about)
                self._asked.add(key)
            if isinstance(rows, np.ndarray):
                self._last[about] = (table, rows.copy())

    def admits(self, call: str, table: Table, rows: Asked, about: str = "columns") -> bool:
        """Whether an answer that can be missed may be given; if so, it is entered."""
        try:
            self.admit(call, table, rows, about)
        except Refused:
            return False
        return True

    def _is_last(self, table: Table, rows: np.ndarray, about: str) -> bool:
        """Whether the same was just asked, as in every round of sums: comparing takes no time."""
        last, before = self._last.get(about, (None, rows))
        return last is table and before.dtype == rows.dtype and np.array_equal(before, rows)

    def would_admit(self, table: Table, sets: Iterable[np.ndarray], about: str) -> bool:
        """Whether answers over these sets of rows could be given, one after the other."""
        with self._lock:
            numbers = self._numbers(table)
            span = self._span(about).copy()
            for rows in sets:
                found, counts = np.unique(numbers[rows[rows >= 0]], return_counts=True)
                if len(found) < self.least or not span.widen(found, counts * 1.0, self.least):
                    return False
            return True

    def require(self, call: str, table: Table, rows: np.ndarray, weights: np.ndarray) -> None:
        """Raise `TooFewRows` where few of these rows have nearly all the weight in an answer.

        Of what is told in one sum with other answers only, so that nothing is entered.
        """
        with self._lock:
            numbers = self._numbers(table)[rows]
        total = np.bincount(numbers, weights, minlength=self.least) ** 2
        if _is_of_few(total / max(total.sum(), 1e-300), self.least):
            raise self._too_few(call)

    def are_few(self, rows: np.ndarray, most: int | None = None) -> bool:
        """Whether few rows have nearly all the weight among these, by how often each is named.

        most: so many are not few, whatever the policy says.
        """
        least, ordered = min(self.least, most or self.least), np.sort(rows)
        if (ordered[1:] != ordered[:-1]).all():  # as in nearly every step of a training
            return len(rows) < least
        times = np.unique(rows, return_counts=True)[1] ** 2.0
        return len(times) < least or _is_of_few(times / times.sum(), least)

    def is_cut(self, table: Table) -> bool:
        """Whether rows are missing of the given table that it has most rows of."""
        found = [pd.Series(given.ids).isin(table.ids) for given in self._given.values()]
        most = max(found, key=pd.Series.sum, default=None)
        return most is not None and bool(most.any() and not most.all())

    def leverage(self, table: Table, about: str = "columns") -> np.ndarray:
        """For each row of a table the share of it that the answers so far determine, 0 to 1."""
        numbers = self._numbers(table)
        return self._span(about).leverage[numbers]

    def _admit(self, call: str, table: Table, rows: Asked, about: str) -> None:
        numbers = self._numbers(table)
        weights: np.ndarray
        model: dict[str, str] = {}
        if isinstance(rows, Scored):
            order = np.argsort(numbers[rows.rows])
            found, weights = numbers[rows.rows][order], rows.scores[order].astype(np.float64)
            depth = int(weights.shape[1])
            model = {"of": about, "model": _digest(found, rows.said[order]).hex()}
            about = f"{about}, {depth} scores"
        elif isinstance(rows, Weighted):
            total = np.bincount(numbers[rows.rows], rows.weights)
            found, depth = np.flatnonzero(total), 1
            weights = total[found]
        else:
            if rows is not None:
                rows = np.asarray(rows)
                if rows.dtype == bool:
                    rows = np.flatnonzero(rows)
                numbers = numbers[rows[(rows >= 0) & (rows < len(numbers))]]
            found, counts = np.unique(numbers, return_counts=True)
            weights, depth = counts.astype(np.float64), 1
        span = self._span(about, depth)
        models = self._models.setdefault(model.get("of", ""), set())
        known = model["model"] in models if model else span.knows(found, weights)
        if not len(found) or known:
            return
        if model and len(models) >= MAX_SCORED:
            raise Refused(
                self.party,
                f"{call} would be the score of one more model than the {MAX_SCORED} of a run",
                "another run",
            )
        if len(found) < self.least:
            raise self._too_few(call)
        if not span.widen(found, weights, self.least):
            raise Refused(
                self.party,
                f"{call}, together with what was answered before, would tell of fewer than "
                f"{self.least} rows",
                "ask about the same rows as before, or about rows that differ from them in more; "
                f"or lower min_rows in the policy of {self.party!r}",
            )
        if model:
            models.add(model["model"])
        if self.file is not None:
            lasts = id(table) in self._given
            self._keep({"about": about, "lasts": lasts, "rows": _packed(found, weights), **model})

    def _too_few(self, call: str) -> TooFewRows:
        return TooFewRows(
            self.party,
            f"{call} would rest on fewer than {self.least} of its rows",
            f"ask about more rows, or lower min_rows in the policy of {self.party!r}",
        )

    def _span(self, about: str, depth: int = 1) -> _Span:
        span = self._spans.setdefault(about, _Span(depth))
        span.grow(len(self._ids if self._only is None else self._only))
        return span

    def _numbers(self, table: Table) -> np.ndarray:
        """The account's own numbers of a table's rows, by their ids."""
        known = self._numbered.get(id(table))
        if known is not None and known[0] is table:
            return known[1]
        alone = self._only is None and not self._ids and self.file is None
        if alone and len(pd.unique(table.ids)) == len(table):
            self._only, numbers = table, np.arange(len(table))
        else:
            if self._only is not None:
                self._learn_ids(_words(self._only))
                self._only = None
            ids = _words(table)
            self._learn_ids(ids)
            numbers = np.fromiter(map(self._ids.__getitem__, ids), np.int64, len(ids))
        self._numbered[id(table)] = (table, numbers)
        return numbers

    def _learn_ids(self, ids: list[str]) -> None:
        fresh = [each for each in dict.fromkeys(ids) if each not in self._ids]
        if fresh:
            self._ids.update(zip(fresh, itertools.count(len(self._ids))))
            self._keep({"ids": fresh})

    # ------------------------------------------------------------------ kept with the party

    def _keep(self, entry: dict[str, Any]) -> None:
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": self.run, **entry}) + "\n")

    def _replay(self, file: Path) -> None:
        if not file.is_file():
            return
        whole, newline, cut_off = file.read_bytes().rpartition(b"\n")
        if cut_off:  # by a kill, before the answer left
            file.write_bytes(whole + newline)
        self.file = None
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._replay_entry(json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise DataError(
                    f"{file}, line {number} is not of an account of rows: {error}",
                    party=self.party,
                    mend="restore the file; without it nobody knows which rows were asked about",
                ) from error
        self.file = file

    def _replay_entry(self, entry: dict[str, Any]) -> None:
        if "ids" in entry:
            self._learn_ids([str(each) for each in entry["ids"]])
        elif entry["lasts"] or entry["run"] == self.run:
            # It was answered already: it is entered whatever the policy says by now.
            found, weights = _unpacked(entry["rows"])
            depth = 1 if weights.ndim == 1 else weights.shape[1]
            self._span(str(entry["about"]), depth).widen(found, weights, least=1)
            if "model" in entry:
                self._models.setdefault(str(entry["of"]), set()).add(str(entry["model"]))


class _Span:
    """What can be combined from the answers about one thing.

    leverage: of every row, the diagonal of the projection onto the span of the sets.
    depth: how many numbers a row has in a set, one or the scores of all classes.
    """

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth
        self.leverage = np.zeros(0)
        self._basis = np.zeros((0, 0), np.float32)  # orthonormal rows, the first `width` in use
        self.width = 0
        self._known: set[bytes] = set()

    def copy(self) -> _Span:
        """To try something: what is in use of the basis is shared, and never written to again."""
        other = _Span(self.depth)
        other.leverage, other._basis, other.width = self.leverage, self._basis, self.width
        other._known = set(self._known)
        return other

    def grow(self, rows: int) -> None:
        more = rows - len(self.leverage)
        if more:
            self.leverage = np.pad(self.leverage, (0, more))
            self._basis = np.pad(self._basis, ((0, 0), (0, more * self.depth)))

    def knows(self, found: np.ndarray, weights: np.ndarray) -> bool:
        return bool(self._known) and _digest(found, weights) in self._known

    def widen(self, found: np.ndarray, weights: np.ndarray, least: int) -> bool:
        """Take a set in, unless fewer than `least` rows could be told from it."""
        new = self._new_direction(found, weights.astype(np.float64))
        if new is not None:  # otherwise it follows from the answers given
            leverage = self.leverage + (new * new).reshape(-1, self.depth).sum(1)
            if _is_of_few(leverage, least):
                return False
            if self.width == len(self._basis):
                more = np.zeros((max(4, self.width), len(new)), np.float32)
                self._basis = np.concatenate([self._basis, more])
            self._basis[self.width] = new
            self.width += 1
            self.leverage = leverage
        self._known.add(_digest(found, weights))
        return True

    def _new_direction(self, found: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        """The unit vector that a set adds to the span, None where it lies in it."""
        new = np.zeros(len(self.leverage) * self.depth)
        new.reshape(-1, self.depth)[found] = weights.reshape(-1, self.depth)
        size, basis = float(new @ new), self._basis[: self.width]
        for _ in range(2):  # once more, for what rounding left
            new -= (basis @ new.astype(np.float32)) @ basis
        left = float(new @ new)
        return None if left <= _IN_SPAN * size else new / np.sqrt(left)


def _is_of_few(leverage: np.ndarray, least: int) -> bool:
    """Whether fewer than `least` rows could be told, by what the answers determine of each."""
    few = least - 1
    return bool(few and np.partition(leverage, -few)[-few:].sum() > 1 - 0.5 / least)


# ---------------------------------------------------------------- groups within an answer


def asked_about(file: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Of every set of rows in a kept account the run, what was asked, and the rows' numbers."""
    if not file.is_file():
        return
    with reading(file, "take it from a backup: without it nobody knows what was asked"):
        for line in file.read_bytes().splitlines():
            entry = json.loads(line)
            if "ids" not in entry:
                yield str(entry["run"]), str(entry["about"]), _unpacked(entry["rows"])[0]


def frequent(
    codes: np.ndarray, categories: int, least: int, *, names_only: bool = False
) -> list[int]:
    """The categories of at least so many rows, and none that the others would tell of by sums.

    What is in none of them is as many rows, or nothing: a total less the sums over the categories
    would otherwise be a sum over a few. names_only: nothing is summed, so that missing cells need
    no company; values that are not told do, since they share one code.

    >>> frequent(np.array([0, 0, 0, 1, 2, 2]), 3, 2), frequent(np.array([0, 0, 0, 1, 1]), 2, 2)
    ([0], [0, 1])
    >>> gap = np.array([0, 0, 0, 1, 1, -1])
    >>> frequent(gap, 2, 2), frequent(gap, 2, 2, names_only=True)
    ([0], [0, 1])
    """
    counts = np.bincount(codes[codes >= 0], minlength=categories)
    kept = [code for code in np.argsort(-counts, kind="stable").tolist() if counts[code] >= least]
    if names_only and counts[kept].sum() == counts.sum():
        return sorted(kept)
    while kept and 0 < len(codes) - counts[kept].sum() < least:
        kept.pop()
    return sorted(kept)


def varies_in_few(values: np.ndarray, least: int) -> bool:
    """Whether fewer than `least` rows, but some, differ from the commonest value."""
    if len(values) < 2 * least:
        _, counts = np.unique(values, return_counts=True)
        return len(counts) > 1 and len(values) - int(counts.max()) < least
    middle = len(values) // 2  # what more than half of the rows have is in the middle
    return 0 < int((values != np.partition(values, middle)[middle]).sum()) < least


def judges(drawn: np.ndarray, share: float, least: int) -> np.ndarray:
    """Which rows to hold out for a score: a share, more if these are too few, none if a third is.

    drawn: a number in [0, 1) for each row, by which sets that are held out lie in one another.

    >>> [int(judges(np.arange(rows) / rows, 0.1, 10).sum()) for rows in (1000, 60, 20)]
    [100, 12, 0]
    """
    while (drawn < share).sum() < least:
        if share > 1 / 3:
            return np.zeros(len(drawn), bool)
        share *= 2
    return drawn < share


# ---------------------------------------------------------------- parts


def _words(table: Table) -> list[str]:
    return list(map(str, table.ids.tolist()))


def _digest(*arrays: np.ndarray) -> bytes:
    parts = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.blake2b(parts, digest_size=16).digest()


def _packed(found: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """A set of numbers as text: one bit each; how often each is named only where that differs."""
    bits = np.zeros(int(found[-1]) + 1, bool)
    bits[found] = True
    text = base64.b64encode(np.packbits(bits).tobytes()).decode()
    return {"bits": text, **({} if (weights == 1).all() else {"weights": weights.tolist()})}


def _unpacked(entry: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    bits = np.frombuffer(base64.b64decode(entry["bits"], validate=True), np.uint8)
    found = np.flatnonzero(np.unpackbits(bits))
    weights = np.asarray(entry.get("weights", np.ones(len(found))), np.float64)
    if weights.shape[:1] != found.shape:
        raise ValueError(f"{len(weights)} weights for {len(found)} rows")
    return found, weights
