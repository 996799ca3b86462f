"""Against which test labels methods are measured, when one party labels and when several do.

Scores and what a method's uncertainty is worth are measured by the same labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend._json import plain
from fedmend.errors import DataError
from fedmend.federation import Federation
from fedmend.flow.config.settings import MAJORITY
from fedmend.learn import metrics
from fedmend.learn.calibration import describe
from fedmend.methods.annotators.estimator import Annotators
from fedmend.methods.annotators.worker import LabelWorker
from fedmend.report.uncertainty import Uncertainty


@dataclass(frozen=True)
class Reference:
    """Whose test labels count.

    parties: one, or several whose majority counts. own: every method's own label party, as in a
    federation in which only one has labels.
    """

    parties: tuple[str, ...]
    own: bool = False

    @property
    def words(self) -> str:
        """How the report says it; nothing where there was no choice."""
        if self.own:
            return ""
        if len(self.parties) == 1:
            return f"the labels of {self.parties[0]}"
        names = f"{', '.join(self.parties[:-1])} and {self.parties[-1]}"
        return f"the majority of the labels of {names}, ties left out"


def reference_of(
    test: Federation, asked: str | None, *, crowd: bool, several: bool = True
) -> Reference:
    """Whose labels the test rows are measured against.

    asked: a party or ``majority``. crowd: some method learns from several annotators. several: the
    training rows have several, be it that each method learns from one of them.
    """
    holders = tuple(test.label_parties)
    if not holders or (asked not in (None, MAJORITY) and asked not in holders):
        raise DataError(
            "has no test labels" if asked in test.names else "no party has test labels",
            party=asked if asked in test.names else None,
            mend="give the test table the label column, or name another evaluate.reference",
        )
    if asked == MAJORITY or (asked is None and crowd):
        return Reference(holders)
    if asked is not None:
        return Reference((asked,))
    if several and len(holders) == 1:
        return Reference(holders)
    return Reference(holders, own=True)


def measure(estimator: Any, test: Federation, reference: Reference) -> dict[str, float]:
    """All metrics of a fitted method on the test rows, computed where the labels are."""
    against = reference.parties[0] if len(reference.parties) == 1 else None
    if estimator.takes_reference and not reference.own:
        return dict(estimator.evaluate(test, against=against))
    if reference.own or estimator.learnt_from(test) == [against]:
        return dict(estimator.evaluate(test))
    return _elsewhere(estimator, test, reference)


def _elsewhere(estimator: Any, test: Federation, reference: Reference) -> dict[str, float]:
    """A method of one label party against the labels of others: its predictions go there."""
    probabilities = estimator.predict_proba(test)
    if len(reference.parties) == 1:
        return _asked("metrics", probabilities, estimator, test, reference)
    said, clear = _majority(test, reference.parties, estimator.classes_.tolist())
    return metrics.classification(said[clear], probabilities[clear])


def _asked(
    question: str, probabilities: Any, estimator: Any, test: Federation, reference: Reference
) -> dict[str, Any]:
    """What the one party that holds the labels computes of a method's predictions."""
    (party,) = reference.parties
    with test.workers(LabelWorker, parties=[party]) as group:
        return dict(getattr(group[party], question)(probabilities, estimator.classes_.tolist()))


def _majority(
    test: Federation, parties: tuple[str, ...], classes: list[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """What most of the parties say of each test row, and where it is not a tie."""
    with Annotators(test, parties) as annotators:
        annotators.attach(classes)
        counts = annotators.votes()
    return counts.argmax(1), (counts == counts.max(1, keepdims=True)).sum(1) == 1


# ---------------------------------------------------------------- how sure


def how_sure(estimator: Any, test: Federation, reference: Reference) -> Uncertainty | None:
    """What a method's uncertainty is worth, against the labels that its scores are measured by.

    None for numbers, which have none.
    """
    if estimator.task_ == "regression":
        return None
    if estimator.horizontal:
        return Uncertainty(**plain({"worth": estimator.uncertainty_report(test)}))
    several = len(reference.parties) > 1 and not reference.own
    against = reference.parties[0] if len(reference.parties) == 1 else None
    worth: dict[str, Any]
    if estimator.takes_reference and not several:
        worth = estimator.uncertainty_report(test, against=against)
    elif reference.own or estimator.learnt_from(test) == [against]:
        rows = "aligned" if test.is_aligned else None
        worth = estimator.uncertainty_report(test, rows=rows)
    else:
        worth = _judged_elsewhere(estimator, test, reference)
    content: dict[str, Any] = {"worth": worth, "against": reference.words if several else ""}
    content |= estimator.evidence_report(test)
    return Uncertainty(**plain(content))


def _judged_elsewhere(estimator: Any, test: Federation, reference: Reference) -> dict[str, Any]:
    """Against one other party's labels, computed there; or against the majority of several."""
    probabilities = estimator.predict_proba(test)
    if len(reference.parties) == 1:
        return _asked("uncertainty_report", probabilities, estimator, test, reference)
    undecided = estimator.predict_uncertainty(test)
    said, clear = _majority(test, reference.parties, estimator.classes_.tolist())
    return describe(probabilities[clear], undecided[clear], said[clear])
