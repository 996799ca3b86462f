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

from fedmend.audit.context import FEWEST_ROWS, Attack, Context, NotApplicable, secrets_of
from fedmend.audit.learner import guessed, standardised
from fedmend.audit.recorder import BOTTOM
from fedmend.audit.result import Finding
from fedmend.federation import COORDINATOR


class ColumnsFromEmbeddings(Attack):
    """Runs for every column of every party whose embeddings go up."""

    name = "columns from embeddings"
    paper = "He et al., ACSAC 2019 (known inputs)"
    mend = (
        "a narrower embedding, and a deeper bottom with it; or the party refuses 'embedding' in "
        "its policy. 16-bit values and fewer epochs help little"
    )

    def run(self, context: Context) -> list[Finding]:
        if not self.seen.final:
            raise NotApplicable("no embedding left a party")
        n = self.seen.aligned
        known = min(context.budget.known_rows, n // 2)
        if known < FEWEST_ROWS:
            raise NotApplicable(f"{n} aligned rows are too few: {2 * FEWEST_ROWS} are needed")
        found = []
        for party in self.seen.final:
            views = self._views(party)
            if not views:
                continue
            attackers = [COORDINATOR]
            if self.seen.sealed(party):
                attackers = []
                context.facts.append(
                    f"{self.name}: those of {party} were sealed: the coordinator passed them on "
                    "unread and has nothing to attack"
                )
            if context.label_party not in (None, party):
                attackers.append(str(context.label_party))
            for attacker in attackers:
                found += self._findings(context, attacker, party, views, known)
        if not found:
            raise NotApplicable("no party has sent embeddings of all aligned rows")
        return found

    def _views(self, party: str) -> list[np.ndarray]:
        """The final embeddings, and all looks besides."""
        final = self.seen.final_embeddings(party)
        if final is None:
            return []
        views = [standardised(final)]
        looks = self.seen.embeddings.get((party, BOTTOM))
        if looks:
            stacked, counts = self.seen.stacked(looks)
            if (counts > 0).all():
                views.append(np.concatenate([views[0], standardised(stacked)], 1))
        return views

    def _findings(
        self, context: Context, attacker: str, party: str, views: list[np.ndarray], known: int
    ) -> list[Finding]:
        rng = context.rng(f"columns {party}")
        order = rng.permutation(self.seen.aligned)
        learnt, others = order[:known], order[known : known + context.budget.most_rows]
        own, mend = [], self.mend
        if attacker != COORDINATOR:
            columns = context.columns(attacker)
            own = [columns] if columns.shape[1] else []
            views = [*views, *(np.concatenate([view, columns], 1) for view in views if own)]
        elif context.label_party is not None:
            mend = f"seal=True keeps embeddings from the coordinator; {mend}"
        secrets = secrets_of(context.table(party), learnt)
        answers = np.concatenate([each.values[learnt] for each in secrets], 1)
        attack, guess = (guessed(each, learnt, answers, others) for each in (views, own))
        found, at = [], 0
        for secret in secrets:
            span = slice(at, at + secret.values.shape[1])
            at = span.stop
            there = secret.present[others]
            scores = secret.scores(others[there], attack[there, span], guess[there, span], rng)
            if scores is not None:
                told = (attacker, "embeddings", party, secret.name, secret.metric, scores)
                found.append(self.finding(*told, known=known, rows=int(there.sum()), mend=mend))
        return found
