"""Labels from gradients, at a feature party without labels; it knows nothing else.

Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022): the gradient of
a row's loss by its embedding points one way for one class and the other way for the other
(direction), and is longer for the rarer class (norm). Here the direction attack needs no labelled
row: over all looks, unit gradients are put side by side, and for two classes their leading axis
separates the rows; for more classes they are clustered (as FewShotVFL does to learn). Which side
or cluster is which class is then matched as well as possible: one known row of each class tells
it. The level without messages is what the same matching gives for shuffled labels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.cluster import KMeans

from fedmend.audit.context import FEWEST_ROWS, Attack, Context, NotApplicable
from fedmend.audit.learner import (
    Scores,
    balanced_accuracy,
    best_matching,
    bootstrap,
    label_score,
    one_score_auc,
)
from fedmend.audit.recorder import WEIGHTED_SUMS
from fedmend.audit.result import Finding

STARTS = 8
SHUFFLES = 50


class LabelsFromGradients(Attack):
    """Runs at every party that gradients come down to."""

    name = "labels from gradients"
    paper = "Li et al., ICLR 2022"
    mend = (
        "labels told through randomised response (label_dp) bound it; or the label party refuses "
        "'gradient' in its policy. 16-bit values and fewer epochs do not help, a narrow embedding "
        "only where there are many classes"
    )

    def run(self, context: Context) -> list[Finding]:
        if not self.seen.gradients:
            raise NotApplicable("no gradient came down to a party")
        found: list[Finding] = []
        for (party, channel), looks in self.seen.gradients.items():
            if party == context.label_party:
                continue
            units, counts = self.seen.stacked(looks, unit=True)
            rows = np.flatnonzero((counts > 0) & (context.labels >= 0))
            if len(rows) < FEWEST_ROWS:
                raise NotApplicable(
                    f"{len(rows)} labelled rows had gradients, {FEWEST_ROWS} are needed"
                )
            lengths = _relative_lengths(self.seen.stacked(looks)[0][rows], counts[rows])
            how = "gradients of sums" if channel == WEIGHTED_SUMS else "gradients"
            how = f"{how} ({counts[rows].max()} looks"
            rng = context.rng(f"gradients {party} {channel}")
            for word, scores in _scored(context, party, rows, units[rows], lengths, rng):
                found.append(
                    self.finding(
                        party,
                        f"{how}, {word})",
                        " + ".join(context.annotators),
                        "labels",
                        context.label_metric,
                        scores,
                        rows=len(rows),
                    )
                )
        if not found:
            raise NotApplicable("gradients came down only to parties that have the labels")
        if context.label_party is not None:
            for party in dict.fromkeys(each.role for each in found):
                context.facts.append(f"{self.name}: {self._relayed(party)}")
        return found

    def _relayed(self, party: str) -> str:
        if self.seen.sealed(party):
            return f"those of {party} were sealed: the coordinator passed them on unread"
        return (
            f"the coordinator relays those of {party}, and can do the same; "
            "seal=True keeps them from it"
        )


def _scored(
    context: Context,
    party: str,
    rows: np.ndarray,
    units: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[tuple[str, Scores]]:
    """By direction and, for two classes, by norm; beside what the party knows by its own votes."""
    truth, classes, own = context.labels[rows], context.classes, 0.0
    if party in context.annotators:
        likelihood = np.eye(classes + 1)[context.votes(party)[rows]][:, :classes]
        own = label_score(truth, likelihood)
    if classes > 2:
        clusters = clustered(units, classes, rng)

        def matched(truth: np.ndarray) -> np.ndarray:
            return best_matching(truth, clusters, classes)[clusters]

        score = bootstrap(balanced_accuracy, truth, matched(truth), rng=rng)
        others = [rng.permutation(truth) for _ in range(SHUFFLES)]
        guess = np.mean([balanced_accuracy(each, matched(each)) for each in others])
        yield "direction", Scores.beside(score, max(float(guess), own))
        return
    along = units @ leading_axis(units)
    along = along if one_score_auc(truth, along) >= 0.5 else -along
    score = bootstrap(one_score_auc, truth, along, rng=rng)
    shuffled = [one_score_auc(rng.permutation(truth), along) for _ in range(SHUFFLES)]
    guess = np.mean([max(each, 1 - each) for each in shuffled])
    yield "direction", Scores.beside(score, max(float(guess), own))
    rarer = int(np.bincount(truth, minlength=2).argmin())
    score = bootstrap(one_score_auc, truth, lengths if rarer == 1 else -lengths, rng=rng)
    yield "norm", Scores.beside(score, max(0.5, own))


def leading_axis(units: np.ndarray) -> np.ndarray:
    """The direction along which, to either side of zero, the rows lie most."""
    _, vectors = np.linalg.eigh(units.T @ units)
    return np.asarray(vectors[:, -1])


def clustered(units: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The tightest of several k-means clusterings, along the leading axes."""
    _, vectors = np.linalg.eigh(units.T @ units)
    points = units @ vectors[:, -2 * classes :]
    drawn = int(rng.integers(2**31))
    found: np.ndarray = KMeans(classes, n_init=STARTS, random_state=drawn).fit_predict(points)
    return found


def _relative_lengths(stacked: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean length of a row's gradients over its looks, each against the median of that look."""
    looks = int(counts.max())
    lengths = np.linalg.norm(stacked.reshape(len(stacked), looks, -1), axis=2)
    there = np.arange(looks) < counts[:, None]
    total = np.zeros(len(stacked))
    for at in range(looks):
        some = there[:, at]
        typical = float(np.median(lengths[some, at])) or 1.0
        total[some] += lengths[some, at] / typical
    return total / np.maximum(1, counts)
