"""Corrected labels as the labels of a federation, so that any method can learn from them.

InC (and every method for several annotators) leaves for each aligned row how likely each class
is. Sent back to one label party, these become its label column in a further table of the
federation: the likeliest class where rows are known to all, its own label elsewhere. The other
annotators' columns are not in that table, so that one party labels, as most methods need it. Beside
the labels it is kept how likely the votes are under each class: that is what is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, ConfigError, DataError
from fedmend.federation import Alignment, Federation, Worker, exposed
from fedmend.federation.bound import declare
from fedmend.methods.annotators.aggregation import hardened, in_shares, likelihood_of, one_hot
from fedmend.methods.annotators.estimator import Annotators, CrowdEstimator
from fedmend.methods.annotators.inc import InC
from fedmend.split.labels import (
    LabelLikelihood,
    cell_confidence,
    keep_confidence,
    keep_likelihood,
)
from fedmend.split.parts import Part, TopPart, keep_own_model, part_of


class CorrectedLabelWorker(Worker):
    """Stores a party's table of the federation whose labels are corrected."""

    # Who chooses the likeliest class of one row alone reads its label off what is told.
    @exposed(
        kind="count",
        opens="votes",
        over_rows=True,
        takes={"posterior": "prediction", "likelihood": "prediction"},
    )
    def adopt(
        self,
        dataset: str,
        scope: str,
        learnt_in: str,
        posterior: np.ndarray,
        likelihood: np.ndarray,
        classes: list[Any],
        least: float,
        doubting: bool,
    ) -> dict[str, int]:
        """This party's labels give way to the likeliest classes of the rows they were learnt for.

        learnt_in: the scope whose aligned rows these are. likelihood: of what all annotators said
        of a row, under each class; what methods are trained on (`split.labels`). doubting: this
        party's labels of other rows count as far as those of these rows deserve it. A row
        whose likeliest class has a probability below `least` loses its label. Told is how many
        labels are others than before, were missing before, and are missing now.
        """
        name, table = self._label(), self.table
        rows = self._rows_of(learnt_in)[: len(posterior)]
        if posterior.shape != (len(rows), len(classes)):
            raise DataError(
                f"{len(posterior):,} corrected labels came for {len(rows):,} aligned rows",
                party=self.site.name,
                column=name,
                mend="correct the labels of the federation they were learnt from",
            )
        values = table.frame[name].to_numpy(dtype=object, copy=True)
        values[pd.isna(values)] = None
        before = values[rows].copy()
        likeliest, trust = posterior.argmax(1), posterior.max(1)
        pool = np.empty(len(classes), object)
        pool[:] = classes
        kept = (trust >= least) & (trust > 0)  # of a row without votes nothing is known
        values[rows] = np.where(kept, pool[likeliest], None)
        self.site.tables[dataset] = relabelled = _relabelled(table, name, values)
        if self.site.labels.protects(name):  # made of drawn labels, and of what others sent
            self.site.labels.settle(dataset, relabelled)
        often = _says(before, posterior, classes) if doubting else np.eye(len(classes))
        keep_likelihood(self.site, dataset, _likelihood(values, rows, likelihood, classes, often))
        self._store(dataset, scope)
        after = values[rows]
        known = np.array([value is not None for value in before], dtype=bool)
        kept = np.array([value is not None for value in after], dtype=bool)
        same = np.array([a == b for a, b in zip(before, after, strict=True)], dtype=bool)
        return {
            "rows": len(rows),
            "changed": int((known & kept & ~same).sum()),
            "filled": int((~known & kept).sum()),
            "dropped": int((known & ~kept).sum()),
        }

    @exposed(kind="control", takes={"top": "weights"})
    def keep_model(self, dataset: str, model: str, top: dict[str, Any]) -> None:
        """The network that corrected the labels, where this party has its only bottom.

        With its top it answers for rows that nobody but this party knows (`split.parts.own_model`).
        """
        whole = Part(part_of(self.site, model).bottom, TopPart.from_wire(top))
        keep_own_model(self.site, dataset, whole)

    @exposed(kind="control")
    def release(self, dataset: str, scope: str) -> None:
        """This party's table without its label column, if it has one."""
        table = self.table
        self.site.tables[dataset] = table if table.label is None else table.drop(table.label)
        self._store(dataset, scope)

    def _rows_of(self, scope: str) -> np.ndarray:
        """The aligned rows of another scope, whose table must begin with the same rows."""
        theirs = self.site.table_of(scope)
        # Completed rows stand below a party's own.
        if not np.array_equal(theirs.ids, self.table.ids[: len(theirs)]):
            raise DataError(
                f"the tables {scope!r} and {self.scope!r} do not list the same rows",
                party=self.site.name,
                mend="correct the labels of the rows they were learnt for",
            )
        return self.site.alignments[scope].aligned

    def _store(self, dataset: str, scope: str) -> None:
        """What else belongs to a table: its alignment, and how far completed cells are trusted."""
        own = self.alignment
        self.site.alignments[scope] = Alignment(own.aligned, own.unaligned)
        cells = cell_confidence(self.site, self.scope.partition("@")[0])
        if cells is not None:
            keep_confidence(self.site, dataset, cells)

    def _label(self) -> str:
        if self.table.label is None:
            raise DataError(
                f"the table {self.scope!r} has no label column to correct",
                party=self.site.name,
                mend="send the corrected labels to a party that labels",
            )
        return self.table.label


def _relabelled(table: Table, name: str, values: np.ndarray) -> Table:
    series = pd.Series(values, name=name, dtype=object)
    return table.with_columns({name: series}, kinds={name: "nominal"})


def _says(said: np.ndarray, posterior: np.ndarray, classes: list[Any]) -> np.ndarray:
    """How often a party says what of which class, by the corrected labels. **Shape** [C, C]."""
    place = {value: number for number, value in enumerate(classes)}
    votes = np.array([place.get(value, -1) for value in said], np.int64)
    if not (votes >= 0).any():
        return np.eye(len(classes))
    return in_shares(posterior.T @ one_hot(votes, len(classes)))


def _likelihood(
    values: np.ndarray,
    rows: np.ndarray,
    likelihood: np.ndarray,
    classes: list[Any],
    often: np.ndarray,
) -> LabelLikelihood:
    """Rows that were learnt as the annotators have them, others by what the party `often` says."""
    known = {value for value in values if value is not None}
    names = [*classes, *sorted(known.difference(classes), key=str)]
    place = {value: number for number, value in enumerate([*names, None])}
    # What each label says of every class; the last, no label, nothing.
    said = np.vstack([np.eye(len(names)), np.ones(len(names))])
    said[: len(classes), : len(classes)] = often.T
    found = said[[place[value] for value in values]]
    found[rows] = 0.0
    found[rows, : len(classes)] = likelihood
    return LabelLikelihood(tuple(names), found)


@dataclass(frozen=True)
class CorrectedLabels:
    """A federation with corrected labels, and what became of the old ones."""

    federation: Federation
    to: str
    rows: int
    changed: int
    filled: int
    dropped: int


def correct_labels(
    fed: Federation,
    model: CrowdEstimator,
    *,
    to: str | None = None,
    least: float = 0.0,
    name: str | None = None,
    into: Federation | None = None,
) -> CorrectedLabels:
    """The federation on which `to` alone labels, with the labels that `model` has corrected.

    fed: the federation `model` was fitted on, or the same without or with completed rows, which
    come last: completed rows of which the model knows nothing keep their labels.
    to: one of the model's label parties, the first by default. least: labels less probable than
    this are left out. name: of the further table; by default the present one with "-corrected".
    into: the federation whose labels these become, by default `fed`. Where annotators have more
    rows in common with each other than with everybody else, let the model learn from those:

        annotators = fed.only("bank", "registry")
        inc = InC().fit(annotators)
        correct_labels(annotators, inc, into=fed.only("bank", "telco")).federation
    """
    if not isinstance(model, CrowdEstimator):
        raise ConfigError(
            f"a {type(model).__name__} corrects no labels. Mend: fm.InC(), fm.EM() or fm.MJ(), "
            "fitted where several parties label"
        )
    model._require_fit()
    to = model.label_parties_[0] if to is None else to
    if to not in model.label_parties_:
        raise ConfigError(
            f"to={to!r} is no label party of the model. "
            f"Mend: one of {', '.join(model.label_parties_)}"
        )
    if not 0 <= least < 1:
        raise ConfigError(f"least must lie in 0 … 1, got {least}. Mend: 0 keeps all labels")
    aligned, known = fed.alignment.aligned, len(model.posterior_)
    real = aligned - fed.alignment.completed
    if known < real:
        raise AlignmentError(
            f"the model corrected {known:,} labels, and {real:,} rows of {fed.scope!r} are "
            "aligned. Mend: give the federation that the model was fitted on"
        )
    model.require_order(fed, [to])
    model.require_order(model.fed_, model.label_parties_)
    assert model.classes_ is not None
    into = fed if into is None else into
    if to not in into.names:
        raise ConfigError(
            f"to={to!r} takes no part in the federation that is to have the labels. "
            f"Mend: one of {', '.join(into.names)}"
        )
    dataset = name or f"{into.dataset}-corrected"
    corrected = into.on(dataset)
    posterior = model.posterior_[:aligned].astype(np.float32)
    likelihood = vote_likelihood(model)[:aligned].astype(np.float32)
    with into.workers(CorrectedLabelWorker) as workers:
        for party in into.names:
            if party != to:
                workers[party].release(dataset, corrected.scope)
        facts = workers[to].adopt(
            dataset,
            corrected.scope,
            fed.scope,
            posterior,
            likelihood,
            model.classes_.tolist(),
            least,
            model.knows_expertise,
        )
        if isinstance(model, InC) and model.network_.parties == [to]:
            assert model.network_.server is not None
            workers[to].keep_model(dataset, model.network_.model, model.network_.server.give_top())
    corrected.note_alignment(into.alignment)
    return CorrectedLabels(corrected, to, **facts)


def vote_likelihood(model: CrowdEstimator) -> np.ndarray:
    """How likely all votes on a row are under each class, the likeliest 1. **Shape** [n, C].

    Every annotator estimates once more, from the corrected labels, how often it says what of which
    class; what that makes of its votes is added up as in InC's E-step, so no vote is shown. Of a
    method that does not ask how good annotators are, the likeliest class is certain.
    """
    assert model.classes_ is not None
    if not model.knows_expertise:
        told = model.posterior_.sum(1, keepdims=True) > 0
        return np.where(told, hardened(model.posterior_), 1.0)
    how: dict[str, Any] = {"secure": model.secure, "key_holder": model.key_holder}
    with Annotators(model.fed_, model.label_parties_, **how, rule="contrast") as annotators:
        annotators.attach(model.classes_.tolist(), model.label_dp)
        evidence = annotators.evidence(model.posterior_)
    return likelihood_of(evidence)


declare("correct", CorrectedLabelWorker)
