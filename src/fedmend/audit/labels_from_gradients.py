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

import numpy as np
from sklearn.cluster import KMeans

from fedmend.audit.result import Finding
from fedmend.audit.scene import NotApplicable, Scene
from fedmend.audit.scores import balanced_accuracy, best_matching, bootstrap, label_score
from fedmend.audit.sightings import WEIGHTED_SUMS, Sightings
from fedmend.audit.tap import Heard
from fedmend.learn.metrics import auc

__all__ = ["LabelsFromGradients"]

PAPER = "Li et al., ICLR 2022"
MEND = (
    "labels told through randomised response (label_dp) bound it; or the label party refuses "
    "'gradient' in its policy. 16-bit values and fewer epochs do not help, a narrow embedding only "
    "where there are many classes"
)
STARTS = 8
SHUFFLES = 50
FEWEST = 20


class LabelsFromGradients:
    """Runs at every party that gradients come down to."""

    name = "labels from gradients"

    def __init__(self, sightings: Sightings) -> None:
        self.sightings = sightings

    def hear(self, heard: Heard) -> None:
        """The sightings hear for it."""

    def run(self, scene: Scene) -> list[Finding]:
        if not self.sightings.gradients:
            raise NotApplicable("no gradient came down to a party")
        labels, found = scene.labels, []
        for (party, channel), looks in self.sightings.gradients.items():
            if [party] == scene.labellers:
                continue
            how = "gradients of sums" if channel == WEIGHTED_SUMS else "gradients"
            units, counts = self.sightings.stacked(looks, unit=True)
            rows = np.flatnonzero((counts > 0) & (labels >= 0))
            if len(rows) < FEWEST:
                raise NotApplicable(f"{len(rows)} labelled rows had gradients, {FEWEST} are needed")
            truth, rng = labels[rows], scene.rng(f"gradients {party} {channel}")
            told = f"{how} ({counts[rows].max()} looks"
            guesses = self._directions(units[rows], scene.classes, truth, rng)
            found.append(_finding(scene, party, f"{told}, direction)", rows, guesses, rng))
            if scene.classes == 2:
                lengths, _ = self.sightings.stacked(looks)
                scores = _relative_lengths(lengths[rows], counts[rows])
                rarer = int(np.bincount(truth, minlength=2).argmin())
                sided = scores if rarer == 1 else -scores
                found.append(
                    _finding(scene, party, f"{told}, norm)", rows, sided, rng, matched=False)
                )
        if found and len(scene.labellers) == 1:
            for party in dict.fromkeys(each.role for each in found):
                scene.facts.append(f"{self.name}: {self._relayed(party)}")
        if not found:
            raise NotApplicable("gradients came down only to parties that have the labels")
        return found

    def _relayed(self, party: str) -> str:
        if self.sightings.sealed(party):
            return f"those of {party} were sealed: the coordinator passed them on unread"
        return (
            f"the coordinator relays those of {party}, and can do the same; "
            "seal=True keeps them from it"
        )

    @staticmethod
    def _directions(
        units: np.ndarray, classes: int, truth: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """A number a row for two classes, the matched class for more."""
        if classes == 2:
            scores = units @ leading_axis(units)
            return scores if _two_class_auc(truth, scores) >= 0.5 else -scores
        return clustered(units, classes, rng)


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


def _two_class_auc(truth: np.ndarray, scores: np.ndarray) -> float:
    return auc(truth, np.stack([-scores, scores], 1))


def _own_votes(scene: Scene, party: str, rows: np.ndarray) -> float:
    """How well a party that is one of several labellers knows their labels by its own."""
    if party not in scene.labellers:
        return 0.0
    votes = scene.votes(party)[rows]
    return label_score(scene.labels[rows], np.eye(scene.classes + 1)[votes][:, : scene.classes])


def _finding(
    scene: Scene,
    party: str,
    from_: str,
    rows: np.ndarray,
    guesses: np.ndarray,
    rng: np.random.Generator,
    *,
    matched: bool = True,
) -> Finding:
    """guesses: a score a row for two classes, a cluster a row for more."""
    truth, classes = scene.labels[rows], scene.classes
    if classes == 2:
        score = bootstrap(_two_class_auc, truth, guesses, rng=rng)
        shuffled = [_two_class_auc(rng.permutation(truth), guesses) for _ in range(SHUFFLES)]
        guess = float(np.mean([max(each, 1 - each) for each in shuffled])) if matched else 0.5
    else:
        score = bootstrap(
            balanced_accuracy, truth, best_matching(truth, guesses, classes)[guesses], rng=rng
        )
        shuffled = []
        for _ in range(SHUFFLES):
            other = rng.permutation(truth)
            match = best_matching(other, guesses, classes)[guesses]
            shuffled.append(balanced_accuracy(other, match))
        guess = float(np.mean(shuffled))
    point, low, high = score
    guess = max(guess, _own_votes(scene, party, rows))
    return Finding(
        attack=LabelsFromGradients.name,
        role=party,
        from_=from_,
        about=scene.whose,
        what="labels",
        metric="AUC" if classes == 2 else "balanced accuracy",
        score=point,
        low=low,
        high=high,
        guess=guess,
        gain=point - guess,
        gain_low=low - guess,
        gain_high=high - guess,
        known=0,
        rows=len(truth),
        paper=PAPER,
        mend=MEND,
    )
