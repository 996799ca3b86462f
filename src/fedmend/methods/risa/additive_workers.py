"""Additive evidence at the parties: who has columns learns weights, the label party sums up.

Scores go up (kind `embedding`: K numbers for each row and model) and their gradients come down
(kind `gradient`), a few dozen times in all. Weights stay where the columns are, labels where the
labels are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedmend.federation import exposed
from fedmend.methods.risa.additive import (
    EVERYTHING,
    RIDGES,
    Columns,
    Ridge,
    Scores,
    Sum,
    mixed,
    models_of,
)
from fedmend.methods.risa.opinions import probability
from fedmend.split.features import ALIGNED
from fedmend.split.workers import _numbers

if TYPE_CHECKING:
    from fedmend.methods.risa.halves import EvidenceBottomHalf, EvidenceTopHalf
    from fedmend.methods.risa.parts import EvidencePart, HeadsPart


class AdditiveParty:
    """The part of `EvidenceBottomWorker` that learns what its columns add up to."""

    half: EvidenceBottomHalf
    device: torch.device
    _part: Callable[[], EvidencePart]
    _columns: Columns
    _ridge: Ridge

    @exposed(kind="count")
    def additive_columns(self, rows: np.ndarray) -> int:
        """How many columns, steps and categories these overlapping rows can say something of."""
        bottom = self._part().bottom
        assert bottom is not None
        own = self.half.own
        everything = own.batch(torch.nonzero(own.slot >= 0)[:, 0])
        overlapping = own.batch(_numbers(rows, self.device))
        self._columns = Columns.of(everything, bottom.encoder.cardinalities, overlapping)
        return len(self._columns.used)

    @exposed(kind="embedding")
    def additive_begin(
        self, rows: np.ndarray, ridges: list[float], blocks: list[int], classes: int
    ) -> Tensor:
        """Models with these ridges on these rows, nothing learnt yet; returns their scores."""
        matrix = self._columns.matrix(self.half.own.batch(_numbers(rows, self.device)))
        self._ridge = Ridge(matrix, ridges, blocks, classes)
        return self._ridge.scores()

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def additive_step(self, gradient: Tensor) -> Tensor:
        self._ridge.step(gradient.to(self.device))
        return self._ridge.scores()

    @exposed(kind="control")
    def additive_keep(self, aligned: list[list[float]], alone: list[list[float]]) -> None:
        """Keep means of models (number, share): beside others' opinions, and without."""
        both = [self._ridge.mean({int(n): share for n, share in each}) for each in (aligned, alone)]
        self._part().scores = Scores(self._columns, *both)


class AdditiveLabels:
    """The part of `EvidenceTopWorker` that sums up scores and hands out gradients."""

    half: EvidenceTopHalf
    device: torch.device
    _outputs: dict[str, list[dict[str, Tensor]]]
    _sum: Sum
    added: dict[str, dict[str, Tensor]]
    _known_of: Callable[[np.ndarray], np.ndarray]

    def _heads(self) -> HeadsPart:
        raise NotImplementedError

    @exposed(kind="control")
    def additive_begin(
        self, rows: np.ndarray, places: np.ndarray, plan: dict[str, list[list[float]]]
    ) -> None:
        """Models by ALIGNED and by party, as (fold not seen, ridge), on some of the judged rows.

        places: which of `rows`, those judged last, take part.
        """
        heads = self._heads()
        targets = torch.from_numpy(self._known_of(rows)[places]).to(self.device)
        classes = len(heads.labels.classes_)
        offset = torch.zeros(len(places), classes, device=self.device)
        judged = [
            chunk[self.half.own] for chunk in self._outputs[ALIGNED] if self.half.own in chunk
        ]
        if judged:
            outputs = torch.cat(judged)[_numbers(places, self.device)]
            offset = probability(heads.how.opinion(outputs)).clamp_min(1e-12).log()
        assert self.half.unseen is not None
        unseen = self.half.unseen[_numbers(rows[places], self.device)]
        models = {name: [(int(f), float(r)) for f, r in each] for name, each in plan.items()}
        self._sum = Sum(targets, offset, unseen, models)

    @exposed(kind="gradient", takes={"scores": "embedding"})
    def additive_step(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._sum.gradients(self._here(scores))

    @exposed(kind="statistic", takes={"scores": "embedding"})
    def additive_shares(self, scores: dict[str, Tensor]) -> dict[str, list[list[float]]]:
        """By group how much each ridge counts, judged by rows that its models have not seen."""
        found = self._sum.losses(self._here(scores))
        return {group: [[r, s] for r, s in mixed(each).items()] for group, each in found.items()}

    @exposed(kind="control", takes={"scores": "embedding"})
    def additive_finish(self, scores: dict[str, Tensor], mix: dict[str, list[list[float]]]) -> None:
        """Keep the scores of rows under models that have not seen them, to calibrate by."""
        here = self._here(scores)
        shares = {group: {ridge: share for ridge, share in each} for group, each in mix.items()}
        self.added = {
            name: self._sum.unseen_scores(here, name, shares) for name in self._sum.parties
        }

    def _here(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device) for name, value in scores.items()}


# ---------------------------------------------------------------------------------- coordinator

ROUNDS = 25
MOST_TO_CHOOSE = 4000
"""Rows times classes on which the ridge is chosen; it says how large weights are, not how many
rows there are."""


def learn_additive(session: Any, rows: np.ndarray, folds: int) -> dict[str, float]:
    """Let passive parties learn what their columns add up to, on the rows judged last.

    Returns by kind of row the ridge that counts most; {} where nobody has columns.
    """
    widths = session.bottoms.additive_columns(rows)
    parties = [name for name, width in widths.items() if width]
    if not parties or folds < 2:
        return {}
    classes = len(session.network.classes)
    count = min(len(rows), max(500, MOST_TO_CHOOSE // classes))
    some = np.linspace(0, len(rows) - 1, count).astype(np.int64)
    plan = {group: models_of(RIDGES, range(folds)) for group in (ALIGNED, *parties)}
    found = session.top.additive_shares(_learn(session, rows, some, plan, classes))
    mix = {group: {ridge: share for ridge, share in each} for group, each in found.items()}
    last = [*range(folds), EVERYTHING]
    plan = {group: models_of(list(shares), last) for group, shares in mix.items()}
    scores = _learn(session, rows, np.arange(len(rows)), plan, classes)
    session.top.additive_finish(scores, found)
    for name in parties:
        whole = [
            [[at, mix[group][ridge]] for at, (fold, ridge) in enumerate(models, begin) if fold < 0]
            for group, models, begin in (
                (ALIGNED, plan[ALIGNED], 0),
                (name, plan[name], len(plan[ALIGNED])),
            )
        ]
        session.bottoms[name].additive_keep(*whole)
    return {group: max(shares, key=lambda each: shares[each]) for group, shares in mix.items()}


def _learn(
    session: Any,
    rows: np.ndarray,
    places: np.ndarray,
    plan: dict[str, list[tuple[int, float]]],
    classes: int,
) -> dict[str, Tensor]:
    """Learn all models of a plan at once; returns the parties' last scores."""
    parties = [name for name in plan if name != ALIGNED]
    session.top.additive_begin(
        rows, places, {group: [list(each) for each in models] for group, models in plan.items()}
    )
    scores = {}
    for name in parties:
        models = [*plan[ALIGNED], *plan[name]]
        blocks = [1 + len(parties)] * len(plan[ALIGNED]) + [2] * len(plan[name])
        scores[name] = session.bottoms[name].additive_begin(
            rows[places], [ridge for _, ridge in models], blocks, classes
        )
    for _ in range(ROUNDS):
        gradients = session.top.additive_step(scores)
        scores = {name: session.bottoms[name].additive_step(gradients[name]) for name in parties}
    return scores
