"""The label party's half of InC: votes, expertise, and what it hears about its own labels.

Labels never leave. Votes and evidence go into secure sums; the expertise matrix T is estimated
here, from the posterior that the server sends (InC §3.4, Eq. 6), and leaves only if asked for and
if the party lets statistics out.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._files import write_whole
from fedmend.data.writers import write_frame
from fedmend.errors import DataError, NotFitted
from fedmend.federation import Site, exposed
from fedmend.federation.bound import but, declare
from fedmend.federation.rows import Asked, Scored
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.methods.annotators import aggregation as crowd
from fedmend.secure.sums import Summand, SumWorker
from fedmend.split.features import digest_of
from fedmend.split.labels import ReportedLabels, ask_for_noise

LOG_FLOOR = -15.0
MOST_BITS = 16
NARROW_RING = 1 << 16
NARROW_ERROR = 0.01
"""Evidence travels in 16-bit sums if they then are this close to the exact ones."""
MOST_CLASSES = 1000
REVIEW = "label_review.csv"
_SHELF = "methods.label_review"


class LabelWorker(SumWorker):
    """A party's labels for the aligned rows.

    rule: how a vote becomes evidence, "product", "contrast" (the same less that of the last class,
    all that a posterior needs) or "row". annotators: how many are summed.
    """

    def __init__(
        self, site: Site, scope: str = "train", *, rule: str = "product", annotators: int = 2
    ) -> None:
        super().__init__(site, scope)
        self.rule = rule
        self._form = EvidenceForm.of(rule, annotators)
        self._classes: list[Any] = []
        self._votes = np.zeros(0, np.int64)
        self._sayings = crowd.Sayings(self._votes)
        self._turn: np.ndarray | None = None
        self._room = np.empty((0, 0), self._form.dtype)
        self._matrix = np.zeros((0, 0))
        self._standing = {"believed": float("nan"), "by_chance": float("nan")}

    # ------------------------------------------------------------------ taking part

    @exposed(kind="control")
    def classes(self) -> list[Any]:
        """The different labels this party gives, in an order that says nothing of its rows."""
        name = self._label()
        given = self._true[name].dropna()  # which classes there are is known to all
        distinct = [_plain(value, self.site.name, name) for value in given.unique()]
        if len(distinct) > MOST_CLASSES:
            raise DataError(
                f"{len(distinct)} different labels are no classes",
                party=self.site.name,
                column=name,
                mend="name the column of class labels, or bin the numbers first",
            )
        return sorted(set(distinct), key=str)

    @exposed(kind="count")
    def attach(
        self, classes: list[Any], label_dp: float | None = None, keep: str | None = None
    ) -> int:
        """Number the classes, draw randomised responses; returns how many rows have a vote."""
        name = self._label()
        self._classes = list(classes)
        if label_dp is not None:
            by = self.worker_name()
            self._numbered(self._true[name], name)  # raises where a label is of no class
            ask_for_noise(self.site, self.scope, label_dp, by=by, classes=classes, folder=keep)
        votes = self._numbered(self.table.y, name)
        noise = self._noise()
        self._matrix = np.eye(len(classes)) if noise is None else noise
        self._votes = votes[self.alignment.aligned]
        self._sayings = crowd.Sayings(self._votes)
        return int((self._votes >= 0).sum())

    def take(self, given: np.ndarray) -> None:
        """Estimate this party's T from how likely each class is for each row: the M-step."""
        counts = self._sayings.when(given)
        self._matrix = crowd.in_shares(counts)
        total = counts.sum()
        if total:
            self._standing = {
                "believed": float(np.trace(counts) / total),
                "by_chance": float(counts.sum(0) @ counts.sum(1) / total**2),
            }

    @exposed(kind="control")
    def take_turns(self, turns: np.ndarray, number: int) -> None:
        """Vote only where it is annotator `number`'s turn (the baseline `Random`)."""
        self._turn = turns == number

    def summand(self, name: str) -> Summand:
        """What goes into the secure sums."""
        n_classes = len(self._classes)
        if name == "votes":
            return Summand(crowd.one_hot(self._votes, n_classes), "label", "votes")
        if name == "turns":
            assert self._turn is not None
            taken = np.where(self._turn, self._votes, -1)
            return Summand(crowd.one_hot(taken, n_classes), "label", "votes")
        if name == "evidence":
            return Summand(self._evidence(), "label", "votes")
        return super().summand(name)

    def _evidence(self) -> np.ndarray:
        """Whole numbers from 0, see `EvidenceForm`; a row without a vote says nothing."""
        # There are far fewer different rows than rows: what is rounded is the table.
        table = self._form.table(self._matrix, self.rule)
        shape = (len(self._votes), table.shape[1])
        if self._room.shape != shape:
            self._room = np.empty(shape, table.dtype)  # fresh memory costs more than filling it
        return np.take(table, self._votes, 0, out=self._room, mode="wrap")

    @exposed(kind="control")
    def order(self, count: int) -> str:
        """Of the first so many aligned rows: who they are and in which order, in a word.

        Made with a key of this party's: it can be compared with an earlier one, and no more. Of so
        few rows that somebody would be known by it again, there is none.
        """
        ids = self.table.ids[self.alignment.aligned[: max(count, self.site.rows.least)]]
        return digest_of(self.site.draws_of(ids).view(np.int64))

    # ------------------------------------------------------------------ what may be told
    # The server chooses how likely each class is for each row. Who chooses it for one row alone
    # reads that row's label off T, off how likely votes were and off how many are doubtful.

    @exposed(kind="statistic", opens="votes", over_rows=True)
    def expertise(self) -> np.ndarray:
        """T of what this party tells (randomised response included)."""
        return self._matrix

    @exposed(kind="statistic", opens="votes", over_rows=True)
    def standing(self) -> dict[str, float]:
        """How likely, on average, this party's votes were when T was estimated.

        Beside it, how far they would be if the party said the same things about random ones of
        the rows it labels.
        """
        return self._standing

    @exposed(kind="statistic")
    def epsilon_spent(self) -> dict[str, float]:
        """The account of randomised labels: what this run has added, and all runs together."""
        reported = ReportedLabels.of(self.site, self.scope)
        return {} if reported is None else reported.account

    @exposed(kind="statistic", takes={"probabilities": "prediction"})
    def metrics(
        self, probabilities: np.ndarray, classes: list[Any], alone: bool = False
    ) -> dict[str, float]:
        """Metrics of predictions against this party's own labels.

        Of the aligned rows or, if `alone`, of those that only this party has.
        """
        votes, told = self._against(probabilities, classes, alone)
        return metrics.classification(votes, told, self._noise())

    @exposed(kind="statistic", takes={"probabilities": "prediction"})
    def uncertainty_report(
        self, probabilities: np.ndarray, classes: list[Any], alone: bool = False
    ) -> dict[str, Any]:
        """What the uncertainty of such predictions is worth, against this party's own labels."""
        votes, told = self._against(probabilities, classes, alone)
        return describe(
            told,
            metrics.expected_error(told),
            votes,
            noise=self._noise(),
            least=self.site.rows.least,
        )

    def about_rows(self, method: str) -> str:
        return "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method in ("metrics", "uncertainty_report"):
            rows = self._asked_rows(kwargs)
            rows = rows[self.table.frame[self._label()].notna().to_numpy()[rows]]
            said = np.asarray(kwargs["probabilities"], np.float64)
            if said.shape != (len(self._asked_rows(kwargs)), len(kwargs["classes"])):
                return [rows]  # and `_against` says what is wrong
            return [rows, Scored(rows, said[np.isin(self._asked_rows(kwargs), rows)])]
        return [self.alignment.aligned]

    def _asked_rows(self, kwargs: Mapping[str, Any]) -> np.ndarray:
        return self.alignment.unaligned if kwargs.get("alone") else self.alignment.aligned

    def _against(
        self, probabilities: np.ndarray, classes: list[Any], alone: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """This party's votes, and what was predicted of the rows that have one."""
        name = self._label()
        self._classes = list(classes)
        rows = self.alignment.unaligned if alone else self.alignment.aligned
        votes = self._numbered(self.table.y, name)[rows]
        if len(probabilities) != len(votes):
            raise DataError(
                f"{len(probabilities):,} predictions came for {len(votes):,} rows",
                party=self.site.name,
                mend="evaluate the rows of the federation that the model predicts",
            )
        return votes[votes >= 0], probabilities[votes >= 0]

    # ------------------------------------------------------------------ what comes back

    @exposed(kind="control", takes={"posterior": "prediction"})
    def review(self, posterior: np.ndarray, classes: list[Any], doubt: float) -> None:
        """Compare this party's labels with the posterior, and keep the result here.

        A label is suspicious if the posterior gives it a probability below `doubt`.
        """
        name = self._label()
        self._classes = list(classes)
        rows = self.alignment.aligned
        # Stays here, so that it may be about the labels themselves.
        labels = self._true[name]
        votes = self._numbered(labels, name)[rows]
        own = np.where(votes >= 0, posterior[np.arange(len(votes)), votes], np.nan)
        pool = np.empty(len(classes), object)
        pool[:] = classes
        self.site.state.setdefault(_SHELF, {})[self.scope] = pd.DataFrame(
            {
                "id": self.table.ids[rows],
                "label": labels.to_numpy()[rows],
                "corrected": pool[posterior.argmax(1)],
                "probability": posterior.max(1),
                "label_probability": own,
                "suspicious": own < doubt,
            }
        )

    @exposed(kind="count", opens="votes", over_rows=True)
    def suspicious(self) -> int | None:
        """How many own labels are probably wrong; not told where labels are under label_dp."""
        if self._noise() is not None:
            return None
        return int(label_review(self.site, self.scope).suspicious.sum())

    @exposed(kind="control")
    def write_review(self, path: str) -> None:
        """Write the review as a CSV file into this party's own folder."""
        text = io.StringIO()
        write_frame(label_review(self.site, self.scope), text)
        write_whole(Path(self.site.folder(path)) / REVIEW, text.getvalue(), lasting=True)

    # ------------------------------------------------------------------ own columns

    @property
    def _true(self) -> pd.DataFrame:
        """The party's columns as they are, for what stays here and for the list of classes."""
        self.site.table_of(self.scope)  # raises where there is no such table
        return self.site.tables[self.scope.partition("@")[0]].frame

    def _noise(self) -> np.ndarray | None:
        """P(reported | label) in the order of the classes, under randomised response."""
        reported = ReportedLabels.of(self.site, self.scope)
        if reported is None:
            return None
        if set(reported.classes) == set(self._classes):
            return reported.response  # the same for all classes, so in any order
        raise DataError(
            f"labels are randomised among {list(reported.classes)[:10]}, not among "
            f"{self._classes[:10]}",
            party=self.site.name,
            column=self._label(),
            mend="give the model a label_dp, with which its classes are drawn",
        )

    def _label(self) -> str:
        if self.table.label is None:
            raise DataError(
                f"the table {self.scope!r} has no label column",
                party=self.site.name,
                mend="name it where the table is read, or leave the party out of label_parties",
            )
        return self.table.label

    def _numbered(self, series: pd.Series, name: str) -> np.ndarray:
        """Class numbers, -1 for a missing label."""
        number = {value: at for at, value in enumerate(self._classes)}
        codes, distinct = pd.factorize(series)
        lookup = np.full(len(distinct) + 1, -1, np.int64)
        for at, value in enumerate(distinct):
            plain = _plain(value, self.site.name, name)
            if plain not in number:
                raise DataError(
                    "a label that is none of the classes",
                    party=self.site.name,
                    column=name,
                    value=plain,
                    mend=f"the classes are {self._classes[:10]}; correct it or name it in classes=",
                )
            lookup[at] = number[plain]
        return lookup[codes]


@dataclass(frozen=True)
class EvidenceForm:
    """Evidence e travels as round(e · 2^bits) − low, a whole number in 0 … span.

    The sum over K annotators is within K · 2^-(bits + 1) of the exact one.
    """

    low: int
    span: int
    bits: int

    @classmethod
    def of(cls, rule: str, annotators: int) -> EvidenceForm:
        """As fine as 16-bit sums can be, where that is fine enough; otherwise 16 fraction bits.

        >>> EvidenceForm.of("product", 4).bits, EvidenceForm.of("product", 59).bits
        (10, 16)
        """
        logs = {"product": (LOG_FLOOR, 0.0), "contrast": (LOG_FLOOR, -LOG_FLOOR)}
        lowest, highest = logs.get(rule, (0.0, 1.0))
        room = (NARROW_RING - 1) / (annotators * (highest - lowest))
        bits = min(MOST_BITS, int(np.log2(room))) if room >= 1 else 0
        if annotators * 2.0 ** -(bits + 1) > NARROW_ERROR:
            bits = MOST_BITS
        scale = 1 << bits
        return cls(int(lowest * scale), int((highest - lowest) * scale), bits)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint16 if self.span < NARROW_RING else np.uint32)

    def table(self, matrix: np.ndarray, rule: str) -> np.ndarray:
        """What each vote is encoded as by a T, last that of none. **Shape** [C + 1, C or C - 1]"""
        if rule in ("product", "contrast"):
            rows = np.log(np.maximum(matrix, np.exp(LOG_FLOOR))).T
        else:
            rows = matrix  # published: row y of T
        said = np.vstack([rows, np.zeros(len(rows))])
        if rule == "contrast":  # of what is rounded, so that it is that of the sums
            said = np.ldexp(np.rint(np.ldexp(said, self.bits)), -self.bits)
            said = said[:, :-1] - said[:, -1:]
        return self.encode(said)

    def encode(self, evidence: np.ndarray) -> np.ndarray:
        return (np.rint(evidence * (1 << self.bits)) - self.low).astype(self.dtype)

    def decode(self, total: np.ndarray, annotators: int) -> np.ndarray:
        """The sum of so many annotators' evidence: float32 where that holds it exactly."""
        exact = annotators * self.span < 1 << 24
        evidence: np.ndarray = total.astype(np.float32 if exact else np.float64)
        evidence *= 2.0**-self.bits
        evidence += annotators * self.low * 2.0**-self.bits
        return evidence

    def error(self, annotators: int) -> float:
        return annotators * 2.0 ** -(self.bits + 1)


def label_review(site: Site, scope: str = "train") -> pd.DataFrame:
    """At the party: its labels beside the corrected ones, one row for each aligned row."""
    shelf = site.state.get(_SHELF, {})
    if scope not in shelf:
        raise NotFitted(
            f"party {site.name!r} has no review of the labels of {scope!r}. "
            "Mend: model.review_labels() after fit"
        )
    return shelf[scope]


def _plain(value: Any, party: str, column: str) -> str | int | bool:
    """A label as a Python scalar; whole floats (a column with gaps) are whole numbers."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    if isinstance(value, str):
        return value
    raise DataError(
        f"a label of type {type(value).__name__} is no class",
        party=party,
        column=column,
        value=str(value),
        mend="labels must be text, whole numbers or true/false; regression has no classes",
    )


NOT_TO_SCORE = ("expertise", "standing", "review", "suspicious", "write_review", "take_turns")
# Scores against the labels of a party that is not trained on.
declare("reference", but(LabelWorker, *NOT_TO_SCORE))
