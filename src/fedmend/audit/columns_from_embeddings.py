"""Columns from embeddings, at the label party and at the coordinator, if it can read them.

Whoever sees a party's embeddings and knows that party's columns of some rows learns the way back
(as in He et al., "Model Inversion Attacks Against Collaborative Inference", ACSAC 2019, the
attack with known inputs; Luo et al., "Feature Inference Attack on Model Predictions in Vertical
Federated Learning", ICDE 2021, for what predictions alone tell). The attacker sees a row at every
epoch, so looks at different states of the bottom are put side by side as well. The label party
also has its own columns; the guess without the messages is made from these alone, with the same
known rows. The coordinator has none: it guesses the mean, or the commonest category.
"""

from __future__ import annotations

import numpy as np

from fedmend.audit.guess import Guesser, standardised
from fedmend.audit.result import Finding
from fedmend.audit.scene import NotApplicable, Scene
from fedmend.audit.scores import DRAWS, r2
from fedmend.audit.secrets_of import Secret, secrets_of
from fedmend.audit.sightings import BOTTOM, Sightings
from fedmend.audit.tap import Heard
from fedmend.federation import COORDINATOR

__all__ = ["ColumnsFromEmbeddings", "scored"]

PAPER = "He et al., ACSAC 2019 (known inputs)"
MEND = (
    "a narrower embedding, and a deeper bottom with it; or the party refuses 'embedding' in its "
    "policy. 16-bit values and fewer epochs help little"
)
SEAL = "seal=True keeps embeddings from the coordinator; "
FEWEST = 20


class ColumnsFromEmbeddings:
    """Runs for every column of every party whose embeddings go up."""

    name = "columns from embeddings"

    def __init__(self, sightings: Sightings) -> None:
        self.sightings = sightings

    def hear(self, heard: Heard) -> None:
        """The sightings hear for it."""

    def run(self, scene: Scene) -> list[Finding]:
        if not self.sightings.final:
            raise NotApplicable("no embedding left a party")
        n = self.sightings.aligned
        known = min(scene.budget.known_rows, n // 2)
        if known < FEWEST:
            raise NotApplicable(f"{n} aligned rows are too few: {2 * FEWEST} are needed")
        found = []
        for party in self.sightings.final:
            views = self._views(party)
            if not views:
                continue
            attackers = [COORDINATOR]
            if self.sightings.sealed(party):
                attackers = []
                scene.facts.append(
                    f"{self.name}: those of {party} were sealed: the coordinator passed them on "
                    "unread and has nothing to attack"
                )
            if len(scene.labellers) == 1 and scene.labellers[0] != party:
                attackers.append(scene.labellers[0])
            for attacker in attackers:
                found += self._findings(scene, attacker, party, views, known)
        if not found:
            raise NotApplicable("no party has sent embeddings of all aligned rows")
        return found

    def _views(self, party: str) -> list[np.ndarray]:
        """The final embeddings, and all looks besides."""
        final = self.sightings.final_embeddings(party)
        if final is None:
            return []
        views = [standardised(final)]
        looks = self.sightings.embeddings.get((party, BOTTOM))
        if looks:
            stacked, counts = self.sightings.stacked(looks)
            if (counts > 0).all():
                views.append(np.concatenate([views[0], standardised(stacked)], 1))
        return views

    def _findings(
        self, scene: Scene, attacker: str, party: str, views: list[np.ndarray], known: int
    ) -> list[Finding]:
        rng = scene.rng(f"columns {party}")
        order = rng.permutation(self.sightings.aligned)
        learnt, others = order[:known], order[known : known + scene.budget.most_rows]
        own = []
        to_seal = attacker == COORDINATOR and len(scene.labellers) == 1
        if attacker != COORDINATOR:
            columns = scene.columns(attacker)
            own = [columns] if columns.shape[1] else []
            views = [*views, *(np.concatenate([view, columns], 1) for view in views if own)]
        secrets = secrets_of(scene.table(party), learnt)
        answers = np.concatenate([each.values[learnt] for each in secrets], 1)
        attack = Guesser(views, learnt).guess(answers, others)
        guess = Guesser(own, learnt).guess(answers, others)
        found, at = [], 0
        for secret in secrets:
            span = slice(at, at + secret.values.shape[1])
            at = span.stop
            there = secret.present[others]
            told = scored(secret, others[there], attack[there, span], guess[there, span], rng)
            if told is None:
                continue
            found.append(
                Finding(
                    attack=self.name,
                    role=attacker,
                    from_="embeddings",
                    about=party,
                    what=secret.name,
                    metric=secret.metric,
                    known=known,
                    rows=int(there.sum()),
                    paper=PAPER,
                    mend=SEAL + MEND if to_seal else MEND,
                    **told,
                )
            )
        return found


def scored(
    secret: Secret,
    rows: np.ndarray,
    attack: np.ndarray,
    guess: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, float] | None:
    """Both guesses of these rows, scored; None where there is nothing to tell apart."""
    truth = secret.values[rows]
    if len(truth) < FEWEST or not truth.std(0).any():
        return None
    points = [_score(secret, truth, each) for each in (attack, guess)]
    drawn = []
    for _ in range(DRAWS):
        some = rng.integers(len(truth), size=len(truth))
        drawn.append([_score(secret, truth[some], each[some]) for each in (attack, guess)])
    scores, guesses = np.array(drawn).T
    low, high = np.nanpercentile(scores, [2.5, 97.5])
    gain_low, gain_high = np.nanpercentile(scores - guesses, [2.5, 97.5])
    return {
        "score": points[0],
        "low": float(low),
        "high": float(high),
        "guess": points[1],
        "gain": points[0] - points[1],
        "gain_low": float(gain_low),
        "gain_high": float(gain_high),
    }


def _score(secret: Secret, truth: np.ndarray, guess: np.ndarray) -> float:
    if secret.metric == "accuracy":
        return float((truth.argmax(1) == guess.argmax(1)).mean())
    return r2(truth, guess)
