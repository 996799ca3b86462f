"""Who was among the training rows, from weights: federations of the same columns.

Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting" (CSF
2018): a row that the model fits well was probably trained on. From the common model, which every
party and the coordinator have; and, where single parties' weights cross, from a party's update:
there the score is how much the update lowered the row's loss, so that rows that are easy for every
model count for nothing (the difference to a model without the row, of which shadow models are
usually trained, is there for free: the one before the update). The attacker knows the row and its
label, and asks whether the party trained on it. Rows that it did not train on are those of the
parties' test tables.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.audit.context import FEWEST_ROWS, Attack, Context, NotApplicable
from fedmend.audit.learner import Scores, bootstrap, one_score_auc
from fedmend.audit.recorder import Observations, Observed
from fedmend.audit.result import Finding
from fedmend.data.table import Table
from fedmend.federation import COORDINATOR
from fedmend.methods.horizontal.encoding import pool_of
from fedmend.methods.horizontal.rounds import Trainer


class Membership(Attack):
    """Hears the weights that parties are sent and send back."""

    name = "membership from weights"
    paper = "Yeom et al., CSF 2018"
    mend = (
        'secure = "masks" or "he" keeps single updates from the coordinator; what the common model '
        "tells falls with the number of rows a party has"
    )

    def __init__(self, seen: Observations) -> None:
        super().__init__(seen)
        self.updates: dict[str, deque[tuple[Tensor, Tensor]]] = defaultdict(
            lambda: deque(maxlen=seen.most)
        )
        self.hidden = 0

    def hear(self, call: Observed) -> None:
        if call.method == "train_round":
            before, after = call.given["weights"], call.answer["weights"]
            self.updates[call.party].append((before.detach().clone(), after.detach().clone()))
        elif call.method == "train_hidden":
            self.hidden += 1

    def run(self, context: Context) -> list[Finding]:
        if not context.model.horizontal:
            raise NotApplicable("the method trains no common model in rounds")
        clients = context.model.clients_
        losses = _Losses(context, clients)
        if not losses.others:
            raise NotApplicable(
                "no party has a test table with labels: rows that were not trained on are needed"
            )
        final = clients.averaged  # what is told and saved
        inside = np.concatenate([-losses.of(table, final) for table in losses.members.values()])
        outside = np.concatenate([-losses.of(table, final) for table in losses.others])
        everybody = " + ".join(losses.members)
        if min(len(inside), len(outside)) < FEWEST_ROWS:
            raise NotApplicable(
                f"{len(inside)} labelled rows were trained on, beside {len(outside)} test rows; "
                f"{FEWEST_ROWS} of each are needed"
            )
        found = [self._told(context, "anybody", "the common model", everybody, inside, outside)]
        for party, rounds in self.updates.items():
            members = losses.members.get(party)
            if members is None or len(members) < FEWEST_ROWS:
                few = 0 if members is None else len(members)
                context.facts.append(
                    f"{self.name}: {party} has {few} labelled rows, too few to say how surely its "
                    "updates tell them"
                )
                continue
            inside, outside = (
                np.mean([_drop(losses, tables, *each) for each in rounds], axis=0)
                for tables in ([members], losses.others)
            )
            told = f"its updates ({len(rounds)} rounds)"
            found.append(self._told(context, COORDINATOR, told, party, inside, outside))
        if self.hidden and not self.updates:
            context.facts.append(
                f"{self.name}: no party's own update crossed ({self.hidden:,} were averaged "
                "securely), so there is none to attack"
            )
        return found

    def _told(
        self,
        context: Context,
        role: str,
        from_: str,
        about: str,
        inside: np.ndarray,
        outside: np.ndarray,
    ) -> Finding:
        rng = context.rng(f"membership {from_} {about}")
        member = np.repeat([1, 0], [len(inside), len(outside)])
        score = bootstrap(one_score_auc, member, np.concatenate([inside, outside]), rng=rng)
        scores = Scores.beside(score, 0.5)
        return self.finding(role, from_, about, "training rows", "AUC", scores, rows=len(member))


def _drop(losses: _Losses, tables: list[Table], before: Tensor, after: Tensor) -> np.ndarray:
    """How much an update lowered the loss of each row."""
    return np.concatenate([losses.of(table, before) - losses.of(table, after) for table in tables])


class _Losses:
    """Losses of labelled rows under any weights, as whoever has the common encoding computes them.

    members: by party the rows it trained on. others: tables of rows that nobody trained on.
    """

    def __init__(self, context: Context, clients: Any) -> None:
        self._common = clients.common
        self._trainer = Trainer(
            clients.net, clients.method, clients.settings, torch.device("cpu"), capture=False
        )
        most = context.budget.most_rows
        self.members: dict[str, Table] = {}
        self.others: list[Table] = []
        for name in context.fed.names:
            tables = context.site(name).tables
            train = _labelled(tables[context.fed.dataset], most, context.rng(f"members {name}"))
            if len(train):
                self.members[name] = train
            if "test" in tables and len(test := _labelled(tables["test"], most, context.rng(name))):
                self.others.append(test)

    def of(self, table: Table, weights: Tensor) -> np.ndarray:
        """**Shape** [n]"""
        pool = pool_of(table, self._common, "")
        values = weights.to(self._trainer.settings.dtype)
        found = self._trainer.probabilities(pool.views, values).double().cpu().numpy()
        labels = pool.labels.cpu().numpy()
        return -np.log(np.clip(found[np.arange(len(labels)), labels], 1e-12, 1.0))


def _labelled(table: Table, most: int, rng: np.random.Generator) -> Table:
    """Some of the rows that have a label."""
    if table.label is None:
        return table.take([])
    rows = rng.permutation(np.flatnonzero(table.y.notna().to_numpy()))[:most]
    return table.take(rows)
