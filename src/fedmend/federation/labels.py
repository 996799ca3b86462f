"""A party's labels as anybody outside may know them: as they are, or through randomised response.

Once a run asks for `label_dp`, every worker of the party sees tables whose labels were drawn at
random (Warner 1965), and none sees another one: `Site.table_of` asks here. With C classes a label
stays as it is with probability e^ε / (e^ε + C − 1) and becomes any other one with equal
probability, so that each is ε-locally differentially private.

A label is drawn once for each id, column, set of classes and ε, and kept with the party, not with
a run: asked again, in whichever run, the party says the same and nothing more is spent. Another ε
is a draw of its own, and the two add up. All of it is in one file, `labels.json` in the party's
folder of records, with an account of every spending.

A draw is for an id, not for its label: where a label is corrected later, what was drawn of the old
one is said. If changed labels were drawn anew, whoever sees an answer change would know that the
label did; and a coordinator that can propose labels (`correct_labels`) could ask of each whether it
is the true one.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from os import urandom
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._files import write_whole
from fedmend._json import typed
from fedmend.data.encode import as_written
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation.policy import Policy

FILE = "labels.json"
FIRST = "train"
"""The table that further ones of a party are made of."""
_FORMAT = "fedmend labels 1"
_ROUNDING = 1e-9


# ---------------------------------------------------------------------------------- the noise


def keep_probability(epsilon: float, n_classes: int) -> float:
    """How likely a label is told as it is.

    >>> round(keep_probability(math.log(3), 2), 3)
    0.75
    """
    if not epsilon > 0 or not math.isfinite(epsilon):
        raise ConfigError(f"label_dp must be a positive epsilon or None, got {epsilon}")
    return 1 / (1 + (n_classes - 1) * math.exp(-epsilon))


def response_matrix(epsilon: float, n_classes: int) -> np.ndarray:
    """P(told | label): what randomised response adds to a party's own errors."""
    keep = keep_probability(epsilon, n_classes)
    matrix = np.full((n_classes, n_classes), (1 - keep) / (n_classes - 1))
    np.fill_diagonal(matrix, keep)
    return matrix


def respond(votes: np.ndarray, epsilon: float, n_classes: int) -> np.ndarray:
    """Votes through randomised response; a missing one (-1) stays missing."""
    keep = keep_probability(epsilon, n_classes)
    # Drawn from the operating system: this randomness hides something.
    draws = np.frombuffer(urandom(16 * len(votes)), np.uint64).reshape(2, -1) >> np.uint64(11)
    chance, shift = draws * 2.0**-53
    other = (votes + 1 + np.floor(shift * (n_classes - 1)).astype(np.int64)) % n_classes
    told = np.where(chance < keep, votes, other)
    return np.where(votes >= 0, told, -1)


@dataclass(frozen=True)
class Noise:
    """What stands between labels and what is known of them."""

    classes: tuple[Any, ...]
    epsilon: float

    @property
    def response(self) -> np.ndarray:
        """P(told | label) [C, C]."""
        return response_matrix(self.epsilon, len(self.classes))

    def numbers(self, labels: pd.Series) -> np.ndarray:
        """Class numbers; -1 where there is no label, or one of no class."""
        place = {value: at for at, value in enumerate(self.classes)}
        # Not by pandas, to which True is not the 1 of another party.
        return np.array([place.get(each, -1) for each in labels.astype(object)], dtype=np.int64)


def relabelled(table: Table, column: str, classes: Sequence[Any], numbers: np.ndarray) -> Table:
    """The table with these class numbers in a column, -1 for none."""
    # An object array first: it takes classes of any type, and the column gives them its own.
    values = np.array([*classes, None], dtype=object)
    own = table.frame[column]
    series = pd.Series(values[numbers], index=own.index, name=column)
    if (numbers < 0).all():  # of no values no kind can be inferred: it stays what it was
        frame = table.frame.assign(**{column: series})
        return Table._trusted(table.ids, table.schema, table.label, frame, table.blocks)
    return table.with_columns({column: series.astype(own.dtype)})


# ---------------------------------------------------------------------------------- kept draws


@dataclass
class _Draw:
    """What was drawn of the labels of a column with one ε, as the file has it.

    of: the column, or what a method made of it, whose labels are others. told: by id, a number
    among the classes, which are sorted: the same classes are the same draw in any order.
    """

    column: str
    of: str
    classes: list[Any]
    epsilon: float
    told: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps([self.of, self.classes, float(self.epsilon)])

    def missing(self, names: list[str], votes: np.ndarray) -> list[int]:
        """The places of ids of which nothing was drawn yet."""
        return [at for at, name in enumerate(names) if votes[at] >= 0 and name not in self.told]


class LabelRecords:
    """The draws a party has made and what they cost; in a folder, where there is one."""

    def __init__(self, party: str, folder: Path | None) -> None:
        self.party = party
        self.spendings: list[dict[str, Any]] = []
        self._draws: dict[str, _Draw] = {}
        self._paths: list[Path] = []
        if folder is not None:
            self.keep_in(folder)

    def keep_in(self, folder: Path) -> None:
        """Go by what is kept in a folder, and keep further draws there."""
        path = Path(folder) / FILE
        if path not in self._paths:
            known = bool(self._draws)
            self._paths.append(path)
            self._take(path)
            if known:  # by a process that had no folder before
                with self._alone():
                    self._write()

    def drawn(
        self,
        column: str,
        variable: str,
        noise: Noise,
        ids: np.ndarray,
        votes: np.ndarray,
        *,
        ceiling: float = math.inf,
        about: Mapping[str, str] | None = None,
    ) -> np.ndarray:
        """Class numbers drawn of these ids, now or before; -1 where the vote is.

        ceiling: for the sum over all draws of one label. about: what the account says of a draw.
        """
        plain = [_plain(each) for each in noise.classes]
        order = np.array(
            sorted(range(len(plain)), key=lambda at: (str(plain[at]), repr(plain[at])))
        )
        draw = _Draw(column, variable, [plain[at] for at in order], noise.epsilon)
        draw = self._draws.get(draw.key, draw)
        names = [str(each) for each in ids.tolist()]
        if draw.key not in self._draws or draw.missing(names, votes):
            sorted_votes = np.where(votes >= 0, np.argsort(order)[votes], -1)
            with self._alone():
                draw = self._draw(draw, names, sorted_votes, ceiling, about or {})
        found = np.array([draw.told.get(name, -1) for name in names], np.int64)
        return np.where(votes >= 0, order[found], -1)

    def _draw(
        self,
        draw: _Draw,
        names: list[str],
        votes: np.ndarray,
        ceiling: float,
        about: Mapping[str, str],
    ) -> _Draw:
        """A draw with all these names in it; votes are numbers among its classes."""
        draw = self._draws.get(draw.key, draw)
        column, epsilon = draw.column, draw.epsilon
        new = draw.missing(names, votes)
        if not new:  # drawn by another process in the meantime
            return draw
        totals = self.totals(column)
        before = max(totals.get(names[at], 0.0) for at in new)
        if before + epsilon > ceiling + _ROUNDING:
            raise Refused(
                self.party,
                f"the labels of {column!r} have been told with ε = {before:g} so far; "
                f"label_dp = {epsilon:g} would make that {before + epsilon:g}, and the ceiling is "
                f"{ceiling:g}",
                "a label_dp with which they were drawn before costs nothing"
                + (f" ({self._used(column)})" if before else "")
                + f"; or a higher label_epsilon in the policy of {self.party!r}",
            )
        drawn = respond(votes[new], epsilon, len(draw.classes)).tolist()
        fresh = {names[at]: number for at, number in zip(new, drawn, strict=True)}
        grown = replace(draw, told=draw.told | fresh)
        kept = self._draws, self.spendings
        self._draws = self._draws | {draw.key: grown}
        spending = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **about,
            "column": column,
            "of": draw.of,
            "epsilon": epsilon,
            "ids": len(new),
            "total": self.spent(column),
        }
        self.spendings = [*self.spendings, spending]
        try:
            self._write()
        except BaseException:
            self._draws, self.spendings = kept  # what is not kept must not be told
            raise
        return grown

    def totals(self, column: str) -> dict[str, float]:
        """By id, the ε of all that was told of its label."""
        totals: Counter[str] = Counter()
        for draw in self._draws.values():
            if draw.column == column:
                totals.update(dict.fromkeys(draw.told, draw.epsilon))
        return dict(totals)

    def ids(self, variable: str) -> set[str]:
        """Whose labels were ever drawn."""
        draws = [draw.told for draw in self._draws.values() if draw.of == variable]
        return set().union(*draws)

    def spent(self, column: str) -> float:
        """The ε of the label of which most was told."""
        return max(self.totals(column).values(), default=0.0)

    def columns(self) -> list[str]:
        return list(dict.fromkeys(draw.column for draw in self._draws.values()))

    def last(self, column: str) -> Noise | None:
        """How the labels of a column were drawn last, if ever."""
        for draw in reversed(self._draws.values()):
            if draw.of == column:
                return Noise(tuple(draw.classes), draw.epsilon)
        return None

    def _used(self, column: str) -> str:
        used = sorted({draw.epsilon for draw in self._draws.values() if draw.column == column})
        return ", ".join(f"{each:g}" for each in used)

    # ------------------------------------------------------------------ on disk

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process of this party draws meanwhile; what one has drawn is known here."""
        if not self._paths:
            yield
            return
        first = self._paths[0]
        first.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (first.parent / f".{FILE}.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._take(first)
            yield

    def _take(self, path: Path) -> None:
        """What a file has beside what is known; of the same id and ε, what is known goes first."""
        if not path.exists():
            return
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["format"] != _FORMAT:
                raise ValueError(f"format must be {_FORMAT!r}, got {kept['format']!r}")
            draws = {draw.key: draw for draw in (typed(_Draw, each) for each in kept["draws"])}
            spendings = [dict(each) for each in kept["account"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"the record of labels told at random, {path}, cannot be read: "
                f"{type(error).__name__}: {error}",
                party=self.party,
                mend="take it from a backup. Without one move it away: labels are then drawn anew, "
                "and what was told before adds to that without being on the account",
            ) from error
        for key, draw in draws.items():
            if key in self._draws:
                draw.told |= self._draws[key].told
        self._draws = self._draws | draws
        self.spendings += [each for each in spendings if each not in self.spendings]

    def _write(self) -> None:
        content = {
            "format": _FORMAT,
            "party": self.party,
            "account": self.spendings,
            "draws": [asdict(draw) for draw in self._draws.values()],
        }
        text = json.dumps(content, ensure_ascii=False)
        for path in self._paths:
            write_whole(path, text, private=True, lasting=True)


def _plain(value: Any) -> Any:
    """A class as JSON keeps it."""
    value = as_written(value.item() if isinstance(value, np.generic) else value)
    return value if isinstance(value, (str, int, float, bool)) else str(value)


# ---------------------------------------------------------------------------------- the guard


class LabelGuard:
    """Which labels the workers of a site see; see the module."""

    def __init__(
        self,
        party: str,
        tables: Mapping[str, Table],
        policy: Policy,
        records: Path | None,
        run: str,
    ) -> None:
        self.party = party
        self._tables = tables
        # Tables that the party itself gives; others are made of them, and may take their names.
        self._given = {name: table for name, table in tables.items() if name != FIRST}
        self.policy = policy
        self.run = run
        self._folder = records
        self._records: LabelRecords | None = None
        self._in_force: dict[str, Noise] = {}
        self._corrected: set[str] = set()
        # By dataset: the table it was made for, and what is seen of it.
        self._seen: dict[str, tuple[Table, Table]] = {}
        self._settled: dict[str, Table] = {}
        self._by = ""
        self._spent_before = 0

    @property
    def records(self) -> LabelRecords:
        if self._records is None:
            self._records = LabelRecords(self.party, self._folder)
            self._spent_before = len(self._records.spendings)
        return self._records

    def ask(
        self,
        dataset: str,
        noise: Noise,
        *,
        by: str,
        folder: Path | None = None,
    ) -> None:
        """From now on labels of this table's column are seen through this noise only.

        Refused where that would go beyond the party's ceiling, before anything is drawn.
        folder: where draws are kept besides, at a party without a folder of records.
        """
        keep_probability(noise.epsilon, len(noise.classes))
        tables = self._tables
        column = tables[dataset].label
        assert column is not None
        # The first table always: no part of it can then pass for rows that were never told of.
        asked = [each for each in dict.fromkeys((FIRST, dataset)) if each in tables]
        asked = [each for each in asked if tables[each].label == column]
        for name in asked:
            self._require_classes(tables[name].frame[column], noise)
        if self._folder is None and folder is not None:
            self.records.keep_in(folder)
        if self._in_force.get(column) == noise:
            return
        self._by = by
        before = dict(self._in_force)
        self._in_force[column] = noise
        self._seen.clear()
        try:
            for name in asked:
                self.seen(name, tables[name])
        except BaseException:
            self._in_force = before
            self._seen.clear()
            raise

    def _require_classes(self, labels: pd.Series, noise: Noise) -> None:
        """Of labels of no class nothing is drawn: which rows have them would be plain to see."""
        if (noise.numbers(labels[labels.notna()]) < 0).any():
            raise Refused(
                self.party,
                f"label_dp among {len(noise.classes)} classes that leave some of its labels out "
                "would show which rows these are",
                "name every class that a party's labels have",
            )

    def seen(self, dataset: str, table: Table) -> Table:
        """What workers see of a table."""
        kept = self._seen.get(dataset)
        if kept is not None and kept[0] is table:
            return kept[1]
        found = self._guarded(dataset, table)
        if found is not table or self._in_force:
            self._seen[dataset] = (table, found)
        return found

    def _guarded(self, dataset: str, table: Table) -> Table:
        label = table.label
        if label is not None and label not in self._in_force:
            last = None if self.policy.label_dp_only is False else self.records.last(label)
            if last is not None:
                self._in_force[label] = last
            elif self.policy.label_dp_only:
                return _Withheld.of(table, self.party)
        if self._settled.get(dataset) is table:
            return table
        found = table
        for column, noise in self._in_force.items():
            if column not in table.names:
                continue
            variable = f"{column} in {dataset}" if self._apart(dataset, table) else column
            if self._may_be_true(dataset, table, variable):
                continue
            numbers = self.records.drawn(
                column,
                variable,
                noise,
                table.ids,
                noise.numbers(table.frame[column]),
                ceiling=self.policy.label_epsilon,
                about={"run": self.run, "by": self._by},
            )
            found = relabelled(found, column, noise.classes, numbers)
        return found

    def _apart(self, dataset: str, table: Table) -> bool:
        """Whether these may be other labels of the same ids: a test table of a later year, say."""
        if dataset in self._corrected:
            return True
        first = self._tables.get(FIRST)
        if self._given.get(dataset) is not table or first is None:
            return False
        return bool(np.isin(table.ids, first.ids).any())

    def _may_be_true(self, dataset: str, table: Table, variable: str) -> bool:
        """Whether the party lets labels of which nothing was ever drawn be seen as they are."""
        if not self.policy.true_test_labels or self._given.get(dataset) is not table:
            return False
        drawn = self.records.ids(variable)
        return not any(str(each) in drawn for each in table.ids.tolist())

    def noise(self, dataset: str, table: Table) -> Noise | None:
        """The noise in what is seen of a table's labels; None where there is none to correct."""
        seen = self.seen(dataset, table)
        if seen is table or isinstance(seen, _Withheld) or table.label is None:
            return None
        return self._in_force.get(table.label)

    def corrected(self, dataset: str) -> None:
        """The labels of this table are not those of the column: a method made them."""
        self._corrected.add(dataset)

    def settle(self, dataset: str, table: Table) -> None:
        """A table whose labels were made of what is seen of others: nothing more to hide."""
        self._settled[dataset] = table

    def protects(self, column: str | None) -> bool:
        """Whether labels of a column are seen through randomised response only."""
        return column in self._in_force

    def is_settled(self, dataset: str, table: Table) -> bool:
        return self._settled.get(dataset) is table

    def spent(self, column: str) -> float:
        """The most that was ever told of a label of this column, over all runs."""
        return self.records.spent(column)

    def spent_now(self, column: str) -> float:
        """What this run has added to that, for labels that were not drawn before."""
        new = self.records.spendings[self._spent_before :]
        return sum(dict.fromkeys(each["epsilon"] for each in new if each["column"] == column))


class _Withheld(Table):
    """A table of a party that lets labels be seen through randomised response only."""

    party: str

    @classmethod
    def of(cls, table: Table, party: str) -> _Withheld:
        assert table.label is not None
        nothing = pd.Series(None, index=table.frame.index, dtype=object)
        frame = table.frame.assign(**{table.label: nothing})
        found = cls._trusted(table.ids, table.schema, table.label, frame, table.blocks)
        assert isinstance(found, _Withheld)
        found.party = party
        return found

    @property
    def y(self) -> pd.Series:
        raise Refused(
            self.party,
            f"labels of {self.label!r} are known through randomised response only (label_dp_only)",
            "give the method a label_dp; overviews of the label come after it",
        )
