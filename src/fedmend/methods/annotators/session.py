"""The coordinator's half: who annotates, and secure sums over what annotators say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedmend.errors import ConfigError, DataError, FedmendWarning, Refused
from fedmend.federation import Crew, Federation
from fedmend.methods.annotators import aggregation as crowd
from fedmend.methods.annotators.worker import EvidenceForm, LabelWorker
from fedmend.secure.sums import SumSession

POSTERIORS = ("product", "row", "bayes")
SECURE = ("he", "masks", "none")


@dataclass(frozen=True)
class CrowdRoster:
    """Who holds features, and who labels."""

    features: list[str]
    annotators: list[str]


def crowd_roster(fed: Federation, label_parties: Sequence[str] | None) -> CrowdRoster:
    """From what all parties tell; `label_parties` chooses among those with labels."""
    facts = fed.roster
    features = [name for name, each in facts.items() if each["features"]]
    annotators = [name for name, each in facts.items() if each["labelled"]]
    if label_parties is not None:
        wrong = [name for name in label_parties if name not in annotators]
        if wrong:
            raise ConfigError(
                f"label_parties names {', '.join(map(repr, wrong))}, which have no labels. "
                f"Mend: name some of {', '.join(annotators) or '(nobody has labels)'}"
            )
        annotators = [name for name in annotators if name in set(label_parties)]
    if not features:
        raise DataError("no party has a feature column", mend="add a party with columns to use")
    return CrowdRoster(features, annotators)


class Annotators:
    """Workers at the label parties, a session of secure sums over them, and what they say.

    with Annotators(fed, parties, secure="masks") as annotators:
        counts = annotators.votes()
        annotators.m_step(weights)
        evidence = annotators.evidence()
    """

    def __init__(
        self,
        fed: Federation,
        parties: Sequence[str],
        *,
        secure: str = "he",
        key_holder: str | None = None,
        rule: str = "product",
    ) -> None:
        if len(parties) < 2:
            raise DataError(
                f"{len(parties)} of the parties label; a sum over annotators needs two or more",
                party=parties[0] if parties else None,
                mend="fm.VFL learns from the labels of a single party",
            )
        if key_holder is not None and key_holder not in fed.names:
            raise ConfigError(
                f"key_holder={key_holder!r} is not in the federation. "
                f"Mend: one of {', '.join(fed.names)}"
            )
        self.fed = fed
        self.parties = list(parties)
        self.classes: list[Any] = []
        self.error_bound = 0.0
        self._rule = rule
        self._form = EvidenceForm.of(rule, len(parties))
        self._mode: Any = secure
        self._key_holder = key_holder

    def __enter__(self) -> Self:
        everyone = list(self.parties)
        if self._key_holder is not None and self._key_holder not in everyone:
            everyone.append(self._key_holder)
        self._crew = self.fed.workers(
            LabelWorker, parties=everyone, rule=self._rule, annotators=len(self.parties)
        )
        try:
            self._sums = SumSession(
                self._crew, mode=self._mode, parties=self.parties, key_holder=self._key_holder
            )
        except BaseException:
            self._crew.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._crew.stop()

    # ------------------------------------------------------------------ set-up

    def attach(
        self,
        classes: Sequence[Any] | None = None,
        label_dp: float | None = None,
        keep: str | None = None,
    ) -> dict[str, int]:
        """Agree on the classes; returns how many rows each party labels."""
        self.classes = self._agree(classes)
        counts = {
            party: int(self._crew[party].attach(self.classes, label_dp, keep))
            for party in self.parties
        }
        if not any(counts.values()):
            raise DataError(
                "no aligned row has a label", mend="label some of the rows all parties know"
            )
        return counts

    def _agree(self, classes: Sequence[Any] | None) -> list[Any]:
        if classes is not None:
            agreed = list(dict.fromkeys(classes))
        else:
            seen: dict[Any, str] = {}
            for party in self.parties:
                for value in self._crew[party].classes():
                    seen.setdefault(value, party)
            _check_types(seen)
            agreed = sorted(seen)
        if len(agreed) < 2:
            raise DataError(
                f"the labels of {', '.join(self.parties)} have one class only",
                value=agreed[0] if agreed else None,
                mend="name all classes in classes=, or check how the tables were read",
            )
        return agreed

    # ------------------------------------------------------------------ sums

    def votes(self) -> np.ndarray:
        """How many parties say what, row by row. **Shape** [n, C] int64."""
        return self._sums.sum("votes", between=(0, 1)).values

    def turns(self, turns: np.ndarray) -> np.ndarray:
        """The vote of the party whose turn it is, row by row (`turns` holds party numbers)."""
        for number, party in enumerate(self.parties):
            self._crew[party].take_turns(turns, number)
        return self._sums.sum("turns", between=(0, 1)).values

    def evidence(self) -> np.ndarray:
        """What all votes together say about each row's true class. **Shape** [n, C] float64."""
        total = self._sums.sum("evidence", between=(0, self._form.span)).values
        self.error_bound = self._form.error(len(self.parties))
        return self._form.decode(total, len(self.parties))

    # ------------------------------------------------------------------ expertise

    def m_step(self, weights: np.ndarray) -> None:
        """Every party estimates its T anew."""
        sent = weights.astype(np.float32, copy=False)
        self._ask_all("m_step", sent)

    def expertise(self) -> dict[str, np.ndarray]:
        """T of the parties whose policies let it out."""
        return self._permitted("expertise")

    def standing(self) -> dict[str, dict[str, float]]:
        return self._permitted("standing")

    def epsilon_spent(self) -> dict[str, dict[str, float]]:
        """The accounts of labels told at random."""
        return self._permitted("epsilon_spent")

    def _ask_all(self, method: str, *args: Any) -> None:
        if len(self._crew) == len(self.parties):
            getattr(self._crew, method)(*args)
            return
        for party in self.parties:  # a key holder without labels is in the crew too
            getattr(self._crew[party], method)(*args)

    def _permitted(self, method: str) -> dict[str, Any]:
        return permitted(self._crew, self.parties, method)


def permitted(crew: Crew, parties: Sequence[str], method: str) -> dict[str, Any]:
    """Ask each party; who refuses is left out, with a warning."""
    answers = {}
    for party in parties:
        try:
            answers[party] = getattr(crew[party], method)()
        except Refused as refusal:
            warnings.warn(str(refusal), FedmendWarning, stacklevel=4)
    return answers


def warn_if_below_chance(counts: np.ndarray) -> crowd.Agreement:
    """Parties that are right together agree more often than by chance; otherwise say so."""
    found = crowd.agreement(counts)
    if found.pairs == 0:
        warnings.warn(
            "no row has two labels, so that nothing tells good annotators from bad ones but the "
            "model itself. Mend: let some rows be labelled twice",
            FedmendWarning,
            stacklevel=4,
        )
    elif not found.beats_chance:
        warnings.warn(
            f"two labels of a row agree in {found.observed:.1%} of cases, by chance it would be "
            f"{found.chance:.1%}: together the label parties are no better than chance, and "
            "classes may come out swapped. Mend: check the parties' labels, or leave the bad ones "
            "out with label_parties=",
            FedmendWarning,
            stacklevel=4,
        )
    return found


def warn_of_inverters(
    standing: Mapping[str, Mapping[str, float]], votes: Mapping[str, int]
) -> None:
    """Name the parties whose votes are believed clearly less than random ones would be."""
    low = [
        party
        for party, found in standing.items()
        if found["believed"] < found["by_chance"] - 1.5 / np.sqrt(max(votes[party], 1))
    ]
    if low:
        warnings.warn(
            f"the labels of {', '.join(map(repr, low))} are right less often than by chance; they "
            "were used as the evidence they are, turned round. Mend: check how these parties code "
            "their classes",
            FedmendWarning,
            stacklevel=4,
        )


def _check_types(seen: Mapping[Any, str]) -> None:
    text = [value for value in seen if isinstance(value, str)]
    other = [value for value in seen if not isinstance(value, str)]
    if text and other:
        raise DataError(
            f"labels are text at {seen[text[0]]!r} ({text[0]!r}) and not at {seen[other[0]]!r}",
            party=seen[other[0]],
            value=other[0],
            mend="write the classes alike at all parties",
        )
