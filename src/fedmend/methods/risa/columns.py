"""Additive evidence: what each column of a party says for or against a class, and no more.

A network needs many rows to learn from; a sum over columns does with few. Every party without
labels keeps a table of weights, one for each category and each step of a number, and what a row's
columns add up to are weights of evidence g [K]: Dempster's rule adds them to the logarithm of what
others find plausible (Denoeux, "Logistic regression, neural networks and Dempster-Shafer theory",
2019). They are learnt on overlapping rows with the label party's own opinion as offset, so they
say what that opinion lacks, and are held by a ridge: no weight is vacuous evidence.

Only g crosses, and its gradient. Steps are those of a bound that a party can compute alone: the
Hessian of a softmax is at most one half, so X'X/2 + ridge bounds the curvature whatever the labels.
Plain torch: no parties, no calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.federation.wire import Record
from fedmend.learn.nets import Batch
from fedmend.split.features import ALIGNED
from fedmend.split.labels import expected, label_loss

STEPS = 10
"""A number is cut at its deciles, or between its values where it has few of them."""
FEW_VALUES = 12
MOST_COLUMNS = 1000
FARTHEST = 4.0
"""Standard deviations beyond which a number says no more."""

ALONE = "alone"
EVERYTHING = -1
"""The fold that no row is in: a model that learns from all rows."""

RIDGES = (10.0, 20.0, 60.0, 200.0, 600.0, 2000.0)
"""Strengths to choose from; the last lets a party say next to nothing.

Weaker ones than the first win on few rows by chance only, and then do harm.
"""


@dataclass(frozen=True)
class Columns(Record):
    """The columns of a party, as its additive evidence sees them.

    cuts: per numeric column where it is cut. used: which of all columns (numbers, steps,
    categories, in this order) have a weight. centre: their means over the overlapping rows.
    """

    cardinalities: tuple[int, ...]
    cuts: tuple[Tensor, ...]
    used: Tensor
    centre: Tensor

    @classmethod
    def of(cls, rows: Batch, cardinalities: Sequence[int], overlapping: Batch) -> Columns:
        """Cuts from all the party's rows; columns that vary over the overlapping ones."""
        cuts = tuple(_cuts(values.double()) for values in rows.numeric.unbind(1))
        whole = cls(tuple(cardinalities), cuts, torch.zeros(0), torch.zeros(0))._all(overlapping)
        # Of no column at all, as images alone have, torch's variance warns.
        spread = whole.var(0, correction=0) if whole.shape[1] else whole.sum(0)
        used = torch.argsort(spread, descending=True, stable=True)[:MOST_COLUMNS]
        used = used[spread[used] > 0].sort().values
        return cls(tuple(cardinalities), cuts, used, whole[:, used].mean(0))

    def matrix(self, rows: Batch) -> Tensor:
        """**Shape** [n, p], centred."""
        return self._all(rows)[:, self.used] - self.centre

    def _all(self, rows: Batch) -> Tensor:
        numbers = rows.numeric.float().clamp(-FARTHEST, FARTHEST)
        pieces = [numbers]
        for values, cuts in zip(rows.numeric.double().unbind(1), self.cuts, strict=True):
            pieces.append((values[:, None] > cuts.to(values.device)).float())
        for codes, cardinality in zip(rows.codes.unbind(1), self.cardinalities, strict=True):
            pieces.append(torch.nn.functional.one_hot(codes, cardinality).float())
        return torch.cat(pieces, 1)


def _cuts(values: Tensor) -> Tensor:
    distinct = values.unique()
    if len(distinct) <= FEW_VALUES:
        return (distinct[:-1] + distinct[1:]) / 2
    shares = torch.linspace(0, 1, STEPS + 1, dtype=values.dtype, device=values.device)[1:-1]
    # torch.quantile takes sixteen million values at most.
    ordered = values.sort().values
    return ordered[(shares * (len(values) - 1)).long()].unique()


@dataclass(frozen=True)
class Scores(Record):
    """A party's learnt weights: `aligned` beside others' opinions, `alone` without any.

    **Shape** [p, K] each.
    """

    columns: Columns
    aligned: Tensor
    alone: Tensor

    def of(self, rows: Batch) -> Tensor:
        """Weights of evidence for rows known to all, then for rows of this party. [n, 2 K]"""
        matrix = self.columns.matrix(rows)
        both = torch.cat([self.aligned, self.alone], 1).to(matrix.device)
        return matrix @ both

    def to_wire(self) -> dict[str, Any]:
        return super().to_wire() | {"columns": self.columns.to_wire()}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Scores:
        return super().from_wire({**saved, "columns": Columns.from_wire(saved["columns"])})


class Ridge:
    """Weights of several models over the same rows, each with a ridge, learnt from gradients.

    ridges: one for each model. blocks: how many parties learn a model at once; each takes steps
    so short that all together do not overshoot. Nesterov's momentum.
    """

    def __init__(
        self, matrix: Tensor, ridges: Sequence[float], blocks: Sequence[int], classes: int
    ) -> None:
        self._rows, self._back, spectrum = _rotated(matrix)
        shape = (1, len(ridges), 1)
        self._ridge = torch.tensor(ridges, dtype=matrix.dtype, device=matrix.device).view(shape)
        curves = torch.tensor(blocks, dtype=matrix.dtype, device=matrix.device).view(shape) / 2
        self._bound = spectrum.view(-1, 1, 1) * curves + self._ridge
        self._now = matrix.new_zeros(self._rows.shape[1], len(ridges), classes)
        self._ahead = self._now
        self._taken = 0

    def scores(self) -> Tensor:
        """What the rows add up to. **Shape** [n, models x classes]."""
        return self._rows @ self._ahead.flatten(1)

    def step(self, gradient: Tensor) -> None:
        """One step, given the gradient with respect to `scores`."""
        slope = (self._rows.T @ gradient.to(self._rows)).view_as(self._now)
        after = self._ahead - (slope + self._ridge * self._ahead) / self._bound
        self._taken += 1
        self._ahead = after + (self._taken - 1) / (self._taken + 2) * (after - self._now)
        self._now = after

    def weights(self, model: int) -> Tensor:
        """**Shape** [p, classes]."""
        return self._back @ self._now[:, model]

    def mean(self, shares: Mapping[int, float]) -> Tensor:
        """Models' weights by their shares. **Shape** [p, classes]."""
        return sum(
            (share * self.weights(model) for model, share in shares.items()),
            self._back.new_zeros(len(self._back), self._now.shape[2]),
        )


def _rotated(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in coordinates in which X'X is diagonal, the way back, and the diagonal."""
    wide = matrix.shape[1] > matrix.shape[0]
    products = matrix @ matrix.T if wide else matrix.T @ matrix
    spectrum, vectors = torch.linalg.eigh(products.double())
    kept = spectrum > 1e-6 * spectrum.clamp_min(0).amax().clamp_min(1e-12)
    spectrum, vectors = spectrum[kept].to(matrix), vectors[:, kept].to(matrix)
    if wide:
        vectors = matrix.T @ (vectors / spectrum.sqrt())
    return matrix @ vectors, vectors, spectrum


# ---------------------------------------------------------------------------------- labels

LEAST_SHARE = 0.05


def likely_shares(losses: Tensor, draws: int = 200) -> Tensor:
    """How much each choice counts, by the likelihood of rows it has not seen. **Shape** [n, c].

    Rows are weighed anew many times (Bayesian bootstrap; pseudo-BMA+ of Yao et al., 2018): few
    rows cannot tell the best choice, and a wrong one costs more than a mean. Returns [c].
    """
    generator = torch.Generator().manual_seed(0)
    weights = -torch.rand(draws, len(losses), generator=generator, dtype=torch.float64).log()
    weights = weights / weights.mean(1, keepdim=True)
    return (-(weights @ losses.double().cpu())).softmax(1).mean(0)


def mixed(losses: Mapping[float, Tensor]) -> dict[float, float]:
    """The shares of ridges, those that hardly count left out, given each one's losses of rows."""
    shares = likely_shares(torch.stack(list(losses.values()), 1)).tolist()
    kept = {r: share for r, share in zip(losses, shares, strict=True) if share >= LEAST_SHARE}
    return {ridge: share / sum(kept.values()) for ridge, share in kept.items()}


def models_of(ridges: Sequence[float], folds: Sequence[int]) -> list[tuple[int, float]]:
    """Models to learn at once: of each ridge one without each fold."""
    return [(int(fold), float(ridge)) for fold in folds for ridge in ridges]


class Sum:
    """The label party's side: sums, their loss, and the gradients that parties learn from.

    Rows known to all have one sum of all parties' scores and the `offset`; for rows of one party
    its own scores are added to nothing but a constant. plan: for ALIGNED and for each party the
    models as (fold they do not see, ridge); a party's scores are those for ALIGNED, then its own.
    **Shape** targets [n], or likelihoods [n, K]; offset [n, K], unseen [n].
    """

    def __init__(
        self,
        targets: Tensor,
        offset: Tensor,
        unseen: Tensor,
        plan: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        self.plan = {name: list(models) for name, models in plan.items()}
        self.unseen = unseen
        rows, self.classes = offset.shape
        self._certain = targets.ndim == 1
        likely = F.one_hot(targets, self.classes) if self._certain else targets
        self._likely = likely.to(offset)[:, None]
        self._offset = offset
        ones = offset.new_ones(rows, 1)
        self._constant = {
            name: Ridge(ones, [1e-3] * len(models), [self.blocks(name)] * len(models), self.classes)
            for name, models in self.plan.items()
        }
        self._counts = {
            name: torch.stack([unseen != fold for fold, _ in models], 1)[..., None].to(offset)
            for name, models in self.plan.items()
        }

    @property
    def parties(self) -> list[str]:
        return [name for name in self.plan if name != ALIGNED]

    def blocks(self, group: str) -> int:
        """How many learn a model at once, the constant included."""
        return 1 + (len(self.parties) if group == ALIGNED else 1)

    def gradients(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradient of every party's scores; constants take their step."""
        found = {}
        for group, values in self._sums(scores).items():
            # What a certain label makes of any opinion is the label.
            wanted = self._likely
            if not self._certain:
                wanted = expected(values.log_softmax(-1), wanted)
            # Over a last side of two torch takes five times as long.
            p = values.movedim(-1, 0).softmax(0).movedim(0, -1)
            slope = (p - wanted) * self._counts[group]
            found[group] = slope.flatten(1)
            self._constant[group].step(found[group])
        return {name: torch.cat([found[ALIGNED], found[name]], 1) for name in self.parties}

    def losses(self, scores: Mapping[str, Tensor]) -> dict[str, dict[float, Tensor]]:
        """Log losses of rows by ridge, every row under the model that has not seen it. [n] each"""
        found: dict[str, dict[float, Tensor]] = {}
        for group, values in self._sums(scores).items():
            lost = label_loss(values, self._likely)
            kept = lost * (1 - self._counts[group][..., 0])
            found[group] = {}
            for number, (_, ridge) in enumerate(self.plan[group]):
                found[group][ridge] = found[group].get(ridge, 0.0) + kept[:, number]
        return found

    def judges(self) -> list[Tensor]:
        """For each group and ridge, which rows some model of the two has not seen: bool [n]."""
        return [
            torch.isin(self.unseen, self.unseen.new_tensor([f for f, r in models if r == ridge]))
            for models in self.plan.values()
            for ridge in dict.fromkeys(r for _, r in models)
        ]

    def unseen_scores(
        self, scores: Mapping[str, Tensor], party: str, mix: Mapping[str, Mapping[float, float]]
    ) -> dict[str, Tensor]:
        """A party's scores of every row, under models that have not seen it. [n, K] each.

        mix: by group how much each ridge counts.
        """
        found = {}
        for kind, values in zip((ALIGNED, ALONE), self._of(scores, party), strict=True):
            group = ALIGNED if kind == ALIGNED else party
            shares = [mix[group][ridge] for _, ridge in self.plan[group]]
            outside = 1 - self._counts[group]
            found[kind] = (values * outside * values.new_tensor(shares)[:, None]).sum(1)
        return found

    def _of(self, scores: Mapping[str, Tensor], party: str) -> tuple[Tensor, Tensor]:
        values = scores[party].to(self._offset).view(len(self._offset), -1, self.classes)
        cut = len(self.plan[ALIGNED])
        return values[:, :cut], values[:, cut:]

    def _sums(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every group's sums [n, models, K]."""
        found = {
            group: constant.scores().view(len(self._offset), -1, self.classes)
            for group, constant in self._constant.items()
        }
        found[ALIGNED] = found[ALIGNED] + self._offset[:, None]
        for party in self.parties:
            together, alone = self._of(scores, party)
            found[ALIGNED] = found[ALIGNED] + together
            found[party] = found[party] + alone
        return found
