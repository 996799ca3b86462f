"""What an attack is given, the truth it is judged by, and the one form that all attacks have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmend.audit.learner import BOOTSTRAP_DRAWS, Scores, r2, standardised
from fedmend.audit.recorder import Observations, Observed
from fedmend.audit.result import Finding
from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.federation import Federation, Site

if TYPE_CHECKING:
    from fedmend.audit.running import Audit

MAX_OWN_PIXELS = 3072
MAX_SECRET_PIXELS = 1024
FEWEST_ROWS = 20
"""On which anything is scored, or a role is said to know something."""


class NotApplicable(Exception):
    """An attack has nothing to work on; says why."""


@dataclass
class Context:
    """A rehearsal when it is over.

    fed: the rehearsed federation. model: the fitted method. budget: what attackers are granted.
    facts: sentences for the report that are no figures.
    """

    fed: Federation
    model: Any
    budget: Audit
    facts: list[str] = field(default_factory=list)

    def rng(self, purpose: str) -> np.random.Generator:
        """Reproducible; the same for an attack under every setting that is compared."""
        return np.random.default_rng([self.budget.seed, *purpose.encode()])

    # ------------------------------------------------------------------ the truth

    def site(self, party: str) -> Site:
        site: Site = self.fed.engine.site(party)  # type: ignore[attr-defined]  # of one process
        return site

    def table(self, party: str) -> Table:
        """A party's rows: the aligned ones in the common order where there is an alignment."""
        site = self.site(party)
        # As it is, whatever a method's label_dp lets workers see of its labels.
        table = site.tables[self.fed.dataset]
        alignment = site.alignments.get(self.fed.scope)
        return table if alignment is None else table.take(alignment.aligned)

    @cached_property
    def annotators(self) -> list[str]:
        """Whose labels the model learnt: one party's, or several's together."""
        return list(self.model.learnt_from(self.fed))

    @property
    def label_party(self) -> str | None:
        """The one party whose labels the model learnt."""
        return self.annotators[0] if len(self.annotators) == 1 else None

    @cached_property
    def labels(self) -> np.ndarray:
        """Class numbers of the aligned rows, -1 where there is none; of several, most votes'."""
        lines = np.eye(self.classes + 1)[:, : self.classes]
        counts = sum(lines[self.votes(party)] for party in self.annotators)
        return np.where(counts.any(1), counts.argmax(1), -1)

    def votes(self, party: str) -> np.ndarray:
        """What a party says of each aligned row, by class number; -1 where it says nothing."""
        table = self.table(party)
        found = np.full(len(table), -1)
        for number, value in enumerate(self.class_names):
            found[(table.y == value).to_numpy(dtype=bool, na_value=False)] = number
        return found

    @cached_property
    def class_names(self) -> list[Any]:
        found = self.model.classes_
        if found is None:
            raise NotApplicable("the label is a number, and this attack infers classes")
        return list(found)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def label_metric(self) -> str:
        return "AUC" if self.classes == 2 else "balanced accuracy"

    def columns(self, party: str) -> np.ndarray:
        """A party's own columns of the aligned rows as an attacker uses them. **Shape** [n, p]"""
        table = self.table(party)
        if not table.feature_names:
            return np.zeros((len(table), 0))
        encoded = Encoder(missing_indicator=True, dtype="float64").fit(table).transform(table)
        pieces = [encoded.onehot()]
        for block in encoded.blocks.values():
            pieces.append(block.reshape(len(block), -1)[:, :MAX_OWN_PIXELS])
        return standardised(np.concatenate(pieces, 1).astype(np.float64))


class Attack:
    """One published attack: hears what crosses while a method is trained, then infers.

    name: in reports. paper: whose it is. mend: what lowers what it finds.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    mend: ClassVar[str]

    def __init__(self, seen: Observations) -> None:
        self.seen = seen

    def hear(self, call: Observed) -> None:
        """For most attacks the observations of split training are all they need."""

    def run(self, context: Context) -> list[Finding]:
        raise NotImplementedError

    def finding(
        self,
        role: str,
        from_: str,
        about: str,
        what: str,
        metric: str,
        scores: Scores,
        *,
        rows: int,
        known: int = 0,
        mend: str = "",
    ) -> Finding:
        """What `role` infers of `about`; the fields are those of `Finding`."""
        ends = (self.paper, mend or self.mend)
        return Finding(self.name, role, from_, about, what, metric, *scores, known, rows, *ends)


# ---------------------------------------------------------------- columns as targets


@dataclass(frozen=True)
class Secret:
    """A column as the target of a guess: a number as it is, categories as indicators.

    **Shape** values [n, t], present [n]; metric: "R²" or "accuracy".
    """

    name: str
    values: np.ndarray
    present: np.ndarray
    metric: str

    def scores(
        self, rows: np.ndarray, attack: np.ndarray, guess: np.ndarray, rng: np.random.Generator
    ) -> Scores | None:
        """Both guesses of these rows, scored; None where there is nothing to tell apart."""
        truth = self.values[rows]
        if len(truth) < FEWEST_ROWS or not truth.std(0).any():
            return None
        drawn = []
        for _ in range(BOOTSTRAP_DRAWS):
            some = rng.integers(len(truth), size=len(truth))
            drawn.append([self._score(truth[some], each[some]) for each in (attack, guess)])
        points = [self._score(truth, each) for each in (attack, guess)]
        return Scores.paired(points, np.array(drawn))

    def _score(self, truth: np.ndarray, guess: np.ndarray) -> float:
        if self.metric == "accuracy":
            return float((truth.argmax(1) == guess.argmax(1)).mean())
        return r2(truth, guess)


def secrets_of(table: Table, learnt: np.ndarray) -> list[Secret]:
    """Every feature column that varies over the rows an attacker learns from.

    Empty cells are filled with the mean for learning, and are no part of any score. Of a block
    (an image) so many of its numbers count, and R² is over all of them together.
    """
    encoder = Encoder(binary="codes", dtype="float64").fit(table)
    encoded = encoder.transform(table)
    found = []
    for at, name in enumerate(encoder.numeric_names):
        values = encoded.numeric[:, [at]]
        found.append(Secret(name, values, ~encoded.missing[:, at].astype(bool), "R²"))
    sizes = zip(encoder.code_names, encoder.cardinalities, strict=True)
    for at, (name, cardinality) in enumerate(sizes):
        codes = encoded.codes[:, at]
        found.append(Secret(name, np.eye(cardinality)[codes], codes > 0, "accuracy"))
    for name, block in encoded.blocks.items():
        flat = block.reshape(len(block), -1)
        some = np.linspace(0, flat.shape[1] - 1, min(MAX_SECRET_PIXELS, flat.shape[1])).astype(int)
        found.append(Secret(name, flat[:, some], np.ones(len(flat), dtype=bool), "R²"))
    return [each for each in found if each.values[learnt].std(0).any()]
