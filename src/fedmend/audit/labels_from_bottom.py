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

import numpy as np

from fedmend.audit.guess import Guesser, standardised
from fedmend.audit.result import Finding
from fedmend.audit.scene import NotApplicable, Scene
from fedmend.audit.scores import DRAWS, label_score
from fedmend.audit.sightings import Sightings
from fedmend.audit.tap import Heard

__all__ = ["LabelsFromBottom", "draw_examples", "paired"]

PAPER = "Fu et al., USENIX Security 2022"
MEND = (
    "labels told through randomised response (label_dp) bound it; how the network is made and "
    "trained changes little"
)
LEFT = 20


class LabelsFromBottom:
    """Runs at every party without labels that has a bottom."""

    name = "labels from a trained bottom"

    def __init__(self, sightings: Sightings) -> None:
        self.sightings = sightings

    def hear(self, heard: Heard) -> None:
        """The sightings hear for it."""

    def run(self, scene: Scene) -> list[Finding]:
        if not self.sightings.final:
            raise NotApplicable("no party without labels has trained a bottom model")
        labels, found = scene.labels, []
        sizes = np.bincount(labels[labels >= 0], minlength=scene.classes)
        for party in self.sightings.final:
            embeddings = self.sightings.final_embeddings(party)
            if party in scene.labellers or embeddings is None:
                continue
            raw, own = scene.columns(party), standardised(embeddings)
            views = [own, np.concatenate([own, raw], 1), raw]
            for known in scene.budget.known_labels:
                if sizes.min() < known + 1 or (labels >= 0).sum() < known * scene.classes + LEFT:
                    scene.facts.append(
                        f"{self.name}: {known} examples of each class are too many for {party}'s "
                        f"rows; the smallest class has {sizes.min()}"
                    )
                    continue
                found.append(self._finding(scene, party, known, views, [raw]))
        if not found:
            raise NotApplicable(
                "only parties with labels have a bottom, or a class has fewer rows than examples"
            )
        return found

    def _finding(
        self,
        scene: Scene,
        party: str,
        known: int,
        views: list[np.ndarray],
        without: list[np.ndarray],
    ) -> Finding:
        labels, classes = scene.labels, scene.classes
        pairs = []
        for repeat in range(scene.budget.repeats):
            rng = scene.rng(f"bottom {known} {repeat}")
            examples = draw_examples(labels, known, classes, rng)
            others = rng.permutation(np.setdiff1d(np.flatnonzero(labels >= 0), examples))
            others = others[: scene.budget.most_rows]
            answers = np.eye(classes)[labels[examples]]
            attack = Guesser(views, examples).guess(answers, others)
            guess = Guesser(without, examples).guess(answers, others)
            pairs.append((labels[others], attack, guess))
        told = paired(pairs, scene.rng(f"bootstrap {party} {known}"))
        return Finding(
            attack=self.name,
            role=party,
            from_="its trained bottom",
            about=scene.whose,
            what="labels",
            metric="AUC" if classes == 2 else "balanced accuracy",
            known=known * classes,
            rows=len(pairs[0][0]),
            paper=PAPER,
            mend=MEND,
            **told,
        )


def draw_examples(
    labels: np.ndarray, each: int, classes: int, rng: np.random.Generator
) -> np.ndarray:
    """As many rows of every class."""
    drawn = [
        rng.choice(np.flatnonzero(labels == number), each, replace=False)
        for number in range(classes)
    ]
    return np.concatenate(drawn)


def paired(
    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]], rng: np.random.Generator
) -> dict[str, float]:
    """Mean scores of attack and guess over draws of examples, and intervals of both together.

    A bootstrap draw takes draws of examples anew, and the rows of each: (truth, attack, guess).
    """
    points = np.array(
        [[label_score(t, attack), label_score(t, guess)] for t, attack, guess in pairs]
    )
    drawn = []
    for _ in range(DRAWS):
        some = []
        for at in rng.integers(len(pairs), size=len(pairs)):
            truth, attack, guess = pairs[at]
            rows = rng.integers(len(truth), size=len(truth))
            some.append(
                [label_score(truth[rows], attack[rows]), label_score(truth[rows], guess[rows])]
            )
        drawn.append(np.mean(some, axis=0))
    scores, guesses = np.array(drawn).T
    low, high = np.percentile(scores, [2.5, 97.5])
    gain_low, gain_high = np.percentile(scores - guesses, [2.5, 97.5])
    score, guess = points.mean(0)
    return {
        "score": float(score),
        "low": float(low),
        "high": float(high),
        "guess": float(guess),
        "gain": float(score - guess),
        "gain_low": float(gain_low),
        "gain_high": float(gain_high),
    }
