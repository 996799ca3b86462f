"""How far annotators agree, without anyone seeing another's labels.

Two annotators' one-hot votes on the aligned rows go into one secure matrix product
(`fedmend.secure.inner_product`). The coordinator learns how often one says c while the other says
d, counts over all rows that both label, and nothing of a single row. Before, the two annotators,
and they alone, learn how many rows both label: below the `min_rows` of either nothing is counted.

Cohen's kappa (Cohen 1960) for every two of them, its standard error after Fleiss, Cohen and
Everitt (1969), and Krippendorff's alpha for nominal values (Krippendorff 2011) over all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.errors import DataError
from fedmend.federation import Federation
from fedmend.federation.bound import but, declare
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.secure.columns import Columns, ColumnsWorker, IntegerColumns, column_provider
from fedmend.secure.dealer import DealerWorker
from fedmend.secure.inner_product import Mode, ProductSession

# Landis and Koch (1977): what kappas up to here are called.
_CALLED = (
    (0.0, "no better than chance"),
    (0.2, "slight"),
    (0.4, "fair"),
    (0.6, "moderate"),
    (0.8, "substantial"),
    (1.0, "almost perfect"),
)
_NORMAL_95 = 1.96
MOST_COMPARED, PAIRS_SHOWN = 12, 10
"""Of more annotators those with the most labels are compared: 203 would make 20,503 pairs. And so
many pairs, those that agree least, are put into words."""
# Whoever agrees in so many of enough rows has not looked for themselves.
A_COPY, FEWEST_COMPARED = 0.999, 50


@column_provider("labelled-rows")
def labelled_column(worker: ColumnsWorker) -> IntegerColumns:
    """A 0/1 column, whether this party labels the row; all 0 where it labels too few."""
    given = _labels(worker).notna().to_numpy()[None, :].astype(np.int64)
    return _columns(given * (given.sum() >= worker.site.rows.least), "labels it")


@column_provider("label-votes")
def vote_columns(worker: ColumnsWorker, classes: Sequence[Any], beside: str) -> IntegerColumns:
    """A 0/1 column for every class of this party's labels; a row without label is 0 in all.

    None where this party and `beside` label too few rows both, so that nothing comes of a product.
    """
    own, both = _labels(worker), worker.site.state.pop(_both_label(beside, worker.scope), None)
    position = {value: number for number, value in enumerate(classes)}
    said = np.array([position.get(value, -1) for value in own.tolist()], dtype=np.int64)
    votes = (said[None, :] == np.arange(len(classes))[:, None]).astype(np.int64)
    # A count serves once: by the next time other rows may be aligned.
    enough = both is not None and int(both.sum()) >= worker.site.rows.least
    return _columns(votes if enough else votes[:0], "says")


def _labels(worker: ColumnsWorker) -> pd.Series:
    """Of the aligned rows."""
    if worker.table.label is None:
        raise DataError(
            "has no label column", party=worker.site.name, mend="name parties that label"
        )
    # What comes of the product is a statistic about labels: who refuses those takes no part.
    worker.site.policy.admit_kind(worker.site.name, "label-votes", "statistic")
    return worker.table.y.iloc[worker.alignment.aligned]


def _columns(values: np.ndarray, named: str) -> IntegerColumns:
    names = tuple(f"{named} #{number}" for number in range(len(values)))
    return IntegerColumns(values, names, 1, values.shape[1])


def _both_label(party: str, scope: str) -> str:
    """Where a party keeps how many rows it labels that `party` labels, too."""
    return f"preflight.agreement {scope} {party}"


@dataclass(frozen=True)
class PairAgreement:
    """Two annotators: on how many rows both have a label, and how often it is the same.

    rows: None where they are too few for one of the two, by its `min_rows`: then nothing is known.
    kappa: agreement beyond chance, 1 at best, with `low` and `high` its 95 % interval. None where
    it has no value: one class only.
    """

    one: str
    two: str
    rows: int | None
    agree: float | None
    kappa: float | None
    low: float | None
    high: float | None

    @property
    def is_copy(self) -> bool:
        """Two people who look for themselves differ now and then."""
        return (self.agree or 0) >= A_COPY and (self.rows or 0) >= FEWEST_COMPARED

    @property
    def words(self) -> str:
        """``bank and telco give the same label to 78 % of 412 rows (kappa 0.55: moderate).``"""
        pair = f"{self.one} and {self.two}"
        if not self.rows or self.agree is None:
            return (
                f"{pair} label too few of the rows that all annotators know to be compared. Mend: "
                "let them label more of these, give each annotator's table the rows that others "
                "label (without a label), or lower min_rows in their policies"
            )
        same = f"{pair} give the same label to {100 * self.agree:.0f} % of {self.rows:,} rows"
        if self.is_copy and self.kappa is not None:
            return (
                f"{same}: one is a copy of the other and no second opinion. Mend: remove label at "
                "one of them, and drop that column there"
            )
        if self.kappa is None or self.low is None or self.high is None:
            return f"{same}; all these labels are of one class."
        return (
            f"{same}: kappa {self.kappa:.2f}, between {self.low:.2f} and {self.high:.2f}, "
            f"{called(self.kappa)}."
        )


@dataclass(frozen=True)
class Agreement:
    """Every two annotators, and alpha over all of them (None where it has no value).

    left_out: how many others, with fewer labels, were not compared.
    """

    pairs: list[PairAgreement]
    alpha: float | None
    left_out: int = 0

    @property
    def words(self) -> list[str]:
        """A sentence for a pair, the worst first, and one for all where there are more."""
        ordered = sorted(
            self.pairs, key=lambda pair: -math.inf if pair.kappa is None else pair.kappa
        )
        sentences = [pair.words for pair in ordered[:PAIRS_SHOWN]]
        if len(ordered) > PAIRS_SHOWN:
            sentences.append(f"The other {len(ordered) - PAIRS_SHOWN:,} pairs agree better.")
        if len(self.pairs) > 1 and self.alpha is not None:
            some = (
                f"The {MOST_COMPARED} with the most labels" if self.left_out else "All annotators"
            )
            sentences.append(f"{some} together: alpha {self.alpha:.2f}, {called(self.alpha)}.")
        return sentences

    @property
    def lowest(self) -> float | None:
        """The kappa of the two who agree least."""
        return min((pair.kappa for pair in self.pairs if pair.kappa is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "pairs": [asdict(pair) | {"words": pair.words} for pair in self.pairs],
            "alpha": self.alpha,
            "lowest": self.lowest,
            "words": self.words,
        }


def called(kappa: float) -> str:
    """The usual word for a kappa."""
    return next((word for limit, word in _CALLED if kappa <= limit), _CALLED[-1][1])


def label_agreement(
    fed: Federation,
    parties: Sequence[str] | None = None,
    *,
    mode: Mode = "dealer",
    classes: Sequence[Any] | None = None,
) -> Agreement:
    """How far the annotators agree on the aligned rows.

    parties: by default all that have a label; of more than `MOST_COMPARED` those that label most
    rows are compared. mode: of the inner products. classes: all labels
    there are; by default the parties tell which they use.
    """
    annotators = list(fed.label_parties if parties is None else parties)
    if len(annotators) < 2:
        raise DataError(
            f"{len(annotators)} of the parties label; agreement is between two or more",
            mend="name parties with a label column",
        )
    left_out = max(0, len(annotators) - MOST_COMPARED)
    if classes is None or left_out:
        with fed.workers(LabelWorker, parties=annotators) as group:
            if classes is None:
                used = group.classes()
                classes = list(dict.fromkeys(value for each in annotators for value in used[each]))
            if left_out:
                labels = group.attach(list(classes))
                most = sorted(annotators, key=lambda each: -labels[each])[:MOST_COMPARED]
                annotators = [each for each in annotators if each in most]
    tables: dict[tuple[str, str], np.ndarray] = {}
    pairs = []
    for one, two in itertools.combinations(annotators, 2):
        counts = _counts(fed, one, two, list(classes), mode)
        rows = int(counts.sum()) if counts.size else None
        if rows is not None:
            tables[one, two] = counts
        agree = float(np.trace(counts) / rows) if rows else None
        pairs.append(PairAgreement(one, two, rows, agree, *kappa_of(counts)))
    return Agreement(pairs, alpha_of(tables), left_out)


def _counts(fed: Federation, one: str, two: str, classes: list[Any], mode: Mode) -> np.ndarray:
    """How often one says c while two says d, [c, d]; [0, …] or […, 0] where that is not told."""
    with ProductSession(fed, Columns(one, "labelled-rows"), two, mode=mode) as session:
        for to, other in ((one, two), (two, one)):
            store = _both_label(other, fed.scope)
            session.products(Columns(two, "labelled-rows"), to=to, store=store)
    said = {
        party: Columns(party, "label-votes", {"classes": classes, "beside": other})
        for party, other in ((one, two), (two, one))
    }
    with ProductSession(fed, said[one], two, mode=mode) as session:
        counts = session.products(said[two])
    assert counts is not None
    return counts


def kappa_of(counts: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Cohen's kappa of a table of counts, and the ends of its 95 % interval.

    >>> [round(value, 2) for value in kappa_of(np.array([[20, 5], [10, 15]]))]
    [0.4, 0.15, 0.65]
    """
    rows = counts.sum()
    if not rows:
        return None, None, None
    shares = counts / rows
    said, heard = shares.sum(1), shares.sum(0)
    observed, chance = float(np.trace(shares)), float(said @ heard)
    if chance >= 1:
        return None, None, None
    kappa = (observed - chance) / (1 - chance)
    error = _standard_error(shares, said, heard, kappa, chance) / math.sqrt(rows)
    return kappa, max(-1.0, kappa - _NORMAL_95 * error), min(1.0, kappa + _NORMAL_95 * error)


def _standard_error(
    shares: np.ndarray, said: np.ndarray, heard: np.ndarray, kappa: float, chance: float
) -> float:
    """Fleiss, Cohen and Everitt (1969), eq. 13, without the factor 1 / sqrt(rows)."""
    rest = 1 - kappa
    own = np.diag(shares)
    at_diagonal = float((own * (1 - (said + heard) * rest) ** 2).sum())
    # [c, d]: the share that one says d and two c, as the formula pairs them
    off = shares * (heard[:, None] + said[None, :]) ** 2
    beside = rest**2 * float(off.sum() - np.trace(off))
    centre = (kappa - chance * rest) ** 2
    return math.sqrt(max(0.0, at_diagonal + beside - centre)) / (1 - chance)


def alpha_of(tables: Mapping[tuple[str, str], np.ndarray]) -> float | None:
    """Krippendorff's alpha for nominal labels, from the counts of every pair of annotators.

    Exact where all of them label the same rows. Where a row is labelled by some, every pair of
    labels counts alike here; alpha as defined weighs a row's pairs by 1 / (labels of it - 1),
    which pairs of annotators cannot tell.
    """
    annotators = len(set(itertools.chain.from_iterable(tables)))
    both_ways = sum((counts + counts.T for counts in tables.values()), start=np.zeros(()))
    if annotators < 2 or not np.any(both_ways):
        return None
    coincidences = both_ways / (annotators - 1)
    each = coincidences.sum(1)
    total = float(each.sum())
    differ = total - float(np.trace(coincidences))
    expected = total**2 - float((each**2).sum())
    if expected <= 0 or total <= 1:
        return None
    return 1 - (total - 1) * differ / expected


declare(
    "label-agreement",
    (LabelWorker, frozenset({"classes", "attach"})),
    but(DealerWorker, "learn"),  # how many rows both label is not what the coordinator says
    providers=["labelled-rows", "label-votes"],
)
