"""Labels from a trained bottom, at a feature party with a few labelled examples.

Fu et al., "Label Inference Attacks Against Vertical Federated Learning" (USENIX Security 2022):
a party completes its own bottom, which was trained by everybody's labels, into a classifier
("model completion"), with a handful of labelled examples. Here the completion is the audit's
learner on the party's own embeddings of its rows, alone or beside its raw columns, or on these
alone where that seems better; the guess without the messages is the same learner on the raw
columns with the same examples. The gain is
what taking part has told the party.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedmend.audit.context import FEWEST_ROWS, Attack, Context, NotApplicable
from fedmend.audit.learner import BOOTSTRAP_DRAWS, Scores, guessed, label_score, standardised
from fedmend.audit.result import Finding

Guesses = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of some rows the truth, the attack's guess and the guess without the messages."""


class LabelsFromBottom(Attack):
    """Runs at every party without labels that has a bottom."""

    name = "labels from a trained bottom"
    paper = "Fu et al., USENIX Security 2022"
    mend = (
        "labels told through randomised response (label_dp) bound it; how the network is made and "
        "trained changes little"
    )

    from_: ClassVar[str] = "its trained bottom"
    nothing: ClassVar[str] = "no party without labels has trained a bottom model"

    def told(self, context: Context) -> dict[str, np.ndarray]:
        """What a party has of every row besides its columns."""
        found = {party: self.seen.final_embeddings(party) for party in self.seen.final}
        return {party: told for party, told in found.items() if told is not None}

    def without(self, context: Context, party: str) -> np.ndarray:
        """What a party has of every row without any message."""
        return context.columns(party)

    def run(self, context: Context) -> list[Finding]:
        found_at = self.told(context)
        if not found_at:
            raise NotApplicable(self.nothing)
        labels, classes, found = context.labels, context.classes, []
        sizes = np.bincount(labels[labels >= 0], minlength=classes)
        for party, told in found_at.items():
            if party in context.annotators:
                continue
            raw, own = self.without(context, party), standardised(told)
            views = [own, np.concatenate([own, raw], 1), raw]
            for known in context.budget.known_labels:
                left = (labels >= 0).sum() - known * classes
                if sizes.min() < known + 1 or left < FEWEST_ROWS:
                    context.facts.append(
                        f"{self.name}: {known} examples of each class are too many for {party}'s "
                        f"rows; the smallest class has {sizes.min()}"
                    )
                    continue
                draws = [
                    _guesses(context, known, views, raw, context.rng(f"bottom {known} {repeat}"))
                    for repeat in range(context.budget.repeats)
                ]
                found.append(
                    self.finding(
                        party,
                        self.from_,
                        " + ".join(context.annotators),
                        "labels",
                        context.label_metric,
                        _paired(draws, context.rng(f"bootstrap {party} {known}")),
                        known=known * classes,
                        rows=len(draws[0][0]),
                    )
                )
        if not found:
            raise NotApplicable(
                "only parties with labels have a bottom, or a class has fewer rows than examples"
            )
        return found


def _guesses(
    context: Context,
    known: int,
    views: list[np.ndarray],
    raw: np.ndarray,
    rng: np.random.Generator,
) -> Guesses:
    """With so many examples of every class, drawn at random."""
    labels = context.labels
    examples = draw_examples(labels, known, context.classes, rng)
    others = rng.permutation(np.setdiff1d(np.flatnonzero(labels >= 0), examples))
    others = others[: context.budget.most_rows]
    answers = np.eye(context.classes)[labels[examples]]
    attack, guess = (guessed(each, examples, answers, others) for each in (views, [raw]))
    return labels[others], attack, guess


def draw_examples(
    labels: np.ndarray, each: int, classes: int, rng: np.random.Generator
) -> np.ndarray:
    """As many rows of every class."""
    drawn = [
        rng.choice(np.flatnonzero(labels == number), each, replace=False)
        for number in range(classes)
    ]
    return np.concatenate(drawn)


def _paired(draws: list[Guesses], rng: np.random.Generator) -> Scores:
    """Mean scores over draws of examples; a bootstrap draw takes these anew, and rows of each."""

    def both(truth: np.ndarray, attack: np.ndarray, guess: np.ndarray) -> list[float]:
        return [label_score(truth, attack), label_score(truth, guess)]

    drawn = []
    for _ in range(BOOTSTRAP_DRAWS):
        some = []
        for at in rng.integers(len(draws), size=len(draws)):
            n = len(draws[at][0])
            rows = rng.integers(n, size=n)
            some.append(both(*(each[rows] for each in draws[at])))
        drawn.append(np.mean(some, axis=0))
    points = np.mean([both(*each) for each in draws], axis=0)
    return Scores.paired([float(each) for each in points], np.array(drawn))
