"""Against which test labels methods are measured, when one party labels and when several do.

Scores and what a method's uncertainty is worth are measured by the same labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    def one(self) -> str | None:
        """The party whose labels count, where it is one."""
        return self.parties[0] if len(self.parties) == 1 else None

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
    if estimator.takes_reference and not reference.own:
        return dict(estimator.evaluate(test, against=reference.one))
    if _judges_itself(estimator, test, reference):
        return dict(estimator.evaluate(test))
    return _elsewhere("metrics", estimator, test, reference)


def how_sure(estimator: Any, test: Federation, reference: Reference) -> Uncertainty | None:
    """What a method's uncertainty is worth, against the labels that its scores are measured by.

    None for numbers, which have none.
    """
    if estimator.task_ == "regression":
        return None
    if estimator.horizontal:
        return Uncertainty(**plain({"worth": estimator.uncertainty_report(test)}))
    several = len(reference.parties) > 1 and not reference.own
    if estimator.takes_reference and not several:
        worth = estimator.uncertainty_report(test, against=reference.one)
    elif _judges_itself(estimator, test, reference):
        rows = "aligned" if test.is_aligned else None
        worth = estimator.uncertainty_report(test, rows=rows)
    else:
        worth = _elsewhere("uncertainty_report", estimator, test, reference)
    content: dict[str, Any] = {"worth": worth, "against": reference.words if several else ""}
    content |= estimator.evidence_report(test)
    return Uncertainty(**plain(content))


def _judges_itself(estimator: Any, test: Federation, reference: Reference) -> bool:
    """Whether the labels that count are those that the method learnt."""
    return reference.own or estimator.learnt_from(test) == [reference.one]


def _elsewhere(
    question: str, estimator: Any, test: Federation, reference: Reference
) -> dict[str, Any]:
    """A method of one label party against the labels of others: its predictions go there.

    Of several parties, what most say of a row is learnt by a sum; ties are left out.
    """
    probabilities, classes = estimator.predict_proba(test), estimator.classes_.tolist()
    if reference.one is not None:
        with test.workers(LabelWorker, parties=[reference.one]) as group:
            return dict(getattr(group[reference.one], question)(probabilities, classes))
    with Annotators(test, reference.parties) as annotators:
        annotators.attach(classes)
        counts = annotators.votes()
    clear = (counts == counts.max(1, keepdims=True)).sum(1) == 1
    said = counts.argmax(1)[clear]
    if question == "metrics":
        return metrics.classification(said, probabilities[clear])
    return describe(probabilities[clear], estimator.predict_uncertainty(test)[clear], said)
