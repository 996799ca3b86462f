"""Rows from known weights, at the label party, and at the coordinator if it reads embeddings.

He et al., "Model Inversion Attacks Against Collaborative Inference" (ACSAC 2019), the white-box
attack, with weights that nobody was shown: where a party's random choices follow from the run's
seed, whoever takes part can draw the weights with which its bottom begins, and the first batch of
embeddings is made by exactly these. Every row is then solved for by itself (Levenberg-Marquardt);
no row need be known. The attacker is granted how many columns of which kind there are, which it
could find by trying: only the right numbers explain the embeddings. A row that its weights do not
explain it leaves at the mean, which is also the guess without the messages. So it does with
embeddings that have no more numbers than a row has unknowns, which any weights explain, unless it
knows that the weights follow from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.audit.context import Attack, Context, NotApplicable, Secret
from fedmend.audit.recorder import Look, Observations, Observed, as_array
from fedmend.audit.result import Finding
from fedmend.data.encode import Encoded
from fedmend.data.table import Table
from fedmend.federation import COORDINATOR, Site
from fedmend.methods.risa.network import BottomEnsemble
from fedmend.split.config import SplitConfig
from fedmend.split.parts import BottomPart
from fedmend.split.workers import SplitWorker

STARTS, STEPS = 6, 100
MAX_ROWS = 128
CLOSE_ENOUGH = 1e-3
"""How far from an embedding, in its own spread, a row may end that is taken for found."""


class KnownWeights(Attack):
    """Runs for every party without labels whose bottom is made of numbers and categories."""

    name = "rows from known weights"
    paper = "He et al., ACSAC 2019 (white box)"
    mend = (
        "between machines a party's weights are its own secret, unless reproducible = true is "
        "asked for and its policy allows it; Federation(…, reproducible=False) rehearses that in "
        "one process"
    )

    def __init__(self, seen: Observations) -> None:
        super().__init__(seen)
        self._made: dict[str, tuple[type[SplitWorker], Mapping[str, Any]]] = {}
        self._first: dict[str, Look] = {}

    def hear(self, call: Observed) -> None:
        """Keep the settings of every party's first bottom, and the first batch it sends."""
        if call.scope != self.seen.scope or not isinstance(call.at, SplitWorker):
            return
        if call.method == "create" and "config" in call.given:
            self._made.setdefault(call.party, (type(call.at), dict(call.given)))
        if call.party in self._first or call.method not in ("step", "embed"):
            return
        rows = call.after if call.method == "step" else np.asarray(call.given["rows"])
        if call.kind == "embedding" and rows is not None:
            at = self.seen.places(rows, len(call.answer))
            if at is not None:
                self._first[call.party] = Look(rows[at], as_array(call.answer)[at])

    def run(self, context: Context) -> list[Finding]:
        found = []
        for party, look in self._first.items():
            if party in context.annotators or party not in self._made:
                continue
            roles = [] if self.seen.sealed(party) else [COORDINATOR]
            roles += [] if context.label_party is None else [context.label_party]
            if roles:
                found += self._findings(context, party, look, roles)
        if not found:
            raise NotApplicable("no party has sent embeddings of numbers and categories")
        return found

    def _findings(
        self, context: Context, party: str, look: Look, roles: list[str]
    ) -> list[Finding]:
        worker, given = self._made[party]
        whole = context.site(party).table_of(context.fed.scope)
        part = rebuilt_bottom(worker, given, party, context.fed.seed, whole)
        if part.encoder.block_shapes or look.values.shape[1] != part.module.spec.out:
            return []
        rows = look.rows[:MAX_ROWS]
        truth = part.encoder.transform(context.table(party).take(rows), party=party)
        rng = context.rng(f"weights {party}")
        sent, unknown = look.values[:MAX_ROWS], sum(_sizes(part.module))
        if sent.shape[1] > unknown or context.site(party).reproducible:
            guessed, sure = explained_rows(part.module, sent, rng)
            context.facts.append(
                f"{self.name}: the weights that follow from the run's seed and {party}'s name "
                f"explain {int(sure.sum())} of the first {len(rows)} embeddings of {party}"
            )
        else:
            guessed = [np.zeros((len(sent), size)) for size in _sizes(part.module)]
            context.facts.append(
                f"{self.name}: {party}'s weights are its own secret, and its embeddings tell none: "
                f"whatever the weights, some row explains {sent.shape[1]} numbers, as it has "
                f"{unknown} unknowns"
            )
        found = []
        for secret, attack, guess in _targets(part, truth, guessed):
            there = np.flatnonzero(secret.present)
            scores = secret.scores(there, attack[there], guess[there], rng)
            if scores is not None:
                told = ("first embeddings", party, secret.name, secret.metric, scores)
                found += [self.finding(role, *told, rows=len(there)) for role in roles]
        return found


def rebuilt_bottom(
    worker: type[SplitWorker], given: Mapping[str, Any], party: str, seed: int, table: Table
) -> BottomPart:
    """The bottom that a party begins with if its choices follow from the seed, by public code.

    given: the settings its worker was created with, which the label party is told as well. table:
    any with the party's columns; only their number and kinds matter.
    """
    site = Site(party, {"train": table}, seed=seed)
    made = worker(site, model="rebuilt")
    return made._new_bottom(SplitConfig.from_wire(given["config"]))


def explained_rows(
    module: Any, embeddings: np.ndarray, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Of which rows a bottom of these weights makes these embeddings, and whether of any.

    The rows are numbers [n, p] and, for each nominal column, indicators of its categories. Those
    that the weights do not explain are left at 0.
    """
    sizes = _sizes(module)
    members = _networks(module, sum(sizes))
    wanted = torch.from_numpy(embeddings).double()
    near = CLOSE_ENOUGH * float(wanted.std(0).mean())
    rows = torch.zeros(len(wanted), sum(sizes), dtype=torch.float64)
    sure = torch.zeros(len(wanted), dtype=torch.bool)
    for start in range(STARTS):
        left = (~sure).nonzero()[:, 0]
        begun = torch.from_numpy(rng.normal(size=(len(left), sum(sizes)))) * (start > 0)
        found, apart = _solved(members, begun, wanted[left])
        explained = apart < near
        rows[left[explained]] = found[explained]
        sure[left] = explained
        # Weights that explain no row at all are not the ones.
        if sure.all() or (start and not sure.any()):
            break
    numbers, *shares = rows.split(sizes, 1)
    for table, share in zip(module.tables, shares, strict=True):
        weight = table.weight.detach().double()
        nearest = torch.cdist(share @ weight, weight).argmin(1)
        share.copy_(torch.eye(len(weight), dtype=torch.float64)[nearest] * sure[:, None])
    return [each.numpy() for each in (numbers, *shares)], sure.numpy()


def _sizes(module: Any) -> list[int]:
    """How many numbers a row has for a bottom, and how many categories each nominal column."""
    spec = module.spec.member if isinstance(module, BottomEnsemble) else module.spec
    return [spec.numeric, *spec.cardinalities]


Network = list[tuple[Tensor, Tensor]]
"""Weights [out, in] and biases [out] of linear layers with ReLU between them."""


def _networks(module: Any, width: int) -> list[Network]:
    """The members of a bottom over numbers and shares of categories, which its tables mix."""
    ensemble = isinstance(module, BottomEnsemble)
    members = module.spec.members if ensemble else 1
    found = []
    for member in range(members):
        tables = [
            table.weight.detach().double().chunk(members, 1)[member] for table in module.tables
        ]
        numeric = width - sum(len(table) for table in tables)
        inputs = torch.block_diag(torch.eye(numeric, dtype=torch.float64), *(t.T for t in tables))
        layers: Network = []
        for layer in module.body:
            if hasattr(layer, "weight"):
                weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
                pair = (weight[member].T, bias[member, 0]) if ensemble else (weight, bias)
                layers.append(pair if layers else (pair[0] @ inputs, pair[1]))
        found.append(layers)
    return found


def _embedded(members: list[Network], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings of rows, and their slopes. **Shape** [n, p] -> [n, d], [n, d, p]"""
    values, slopes = [], []
    for layers in members:
        value, slope = rows, torch.eye(rows.shape[1], dtype=rows.dtype).expand(len(rows), -1, -1)
        for number, (weight, bias) in enumerate(layers):
            if number:
                open_ = (value > 0).to(rows.dtype)
                value, slope = value * open_, slope * open_[:, :, None]
            value, slope = value @ weight.T + bias, weight @ slope
        values.append(value)
        slopes.append(slope)
    return torch.cat(values, 1), torch.cat(slopes, 1)


def _solved(members: list[Network], rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose embeddings are nearest to the wanted ones, and how far apart these are."""
    damping = torch.full((len(rows), 1, 1), 1e-2, dtype=rows.dtype)
    unit = torch.eye(rows.shape[1], dtype=rows.dtype)
    value, slope = _embedded(members, rows)
    for _ in range(STEPS):
        square = slope.mT @ slope + damping * unit
        step = torch.linalg.solve(square, slope.mT @ (value - wanted)[:, :, None])[:, :, 0]
        moved, moved_slope = _embedded(members, rows - step)
        good = ((moved - wanted) ** 2).sum(1) < ((value - wanted) ** 2).sum(1)
        rows = torch.where(good[:, None], rows - step, rows)
        value = torch.where(good[:, None], moved, value)
        slope = torch.where(good[:, None, None], moved_slope, slope)
        damping = (damping * torch.where(good, 0.4, 3.0)[:, None, None]).clamp(1e-12, 1e6)
    return rows, ((value - wanted) ** 2).mean(1).sqrt()


def _targets(
    part: BottomPart, truth: Encoded, guessed: list[np.ndarray]
) -> list[tuple[Secret, np.ndarray, np.ndarray]]:
    """Every column that varies: the truth, what was solved for, and the guess without it."""
    found = []
    for at, name in enumerate(part.encoder.numeric_names):
        values = truth.numeric[:, [at]].astype(np.float64)
        secret = Secret(name, values, np.ones(len(values), dtype=bool), "R²")
        found.append((secret, guessed[0][:, [at]], np.zeros_like(values)))
    for at, name in enumerate(part.encoder.code_names):
        shares = guessed[1 + at]
        values = np.eye(shares.shape[1])[truth.codes[:, at]]
        common = np.tile(np.eye(shares.shape[1])[values.sum(0).argmax()], (len(values), 1))
        attack = np.where(shares.any(1, keepdims=True), shares, common)
        found.append((Secret(name, values, truth.codes[:, at] > 0, "accuracy"), attack, common))
    return found
