"""Linear models of many targets over two parties: ridge in closed form, logistic by gradients.

A turns its columns (standardised numbers, one indicator per category) into secret coordinates
Z [n, r], drawn afresh for every `fit` (`rotate`). B assembles everything else:

*Ridge.* One run of products gives B Z'W[1, Y] for every set W of training rows; A adds Z'WZ over
the aligned rows (for rows that joined later, which A does not know, it comes as products with the
columns z_j z_k), and B solves the normal equations of all targets.
*Logistic.* Per step, Z'R for the residuals R of all classes of all targets, and Z D for the
directions D; both through the same masked or encrypted Z (`LogisticTarget` chooses the steps).
*Prediction.* B's weights against A's rows, as one more product that B alone learns.

What each role learns
- The coordinator: sizes, names and tasks of the targets, how many have converged.
- A: nothing but sizes: no target, no weight, no prediction, not which rows train.
- B: the sums above and its weights in A's secret coordinates (with them the eigenvalues of A's
  columns, not their axes), and the scores u'z of the rows: the predictions that are asked for, one
  linear combination of A's columns for each output. Logistic training shows B such combinations of
  the training rows for every step and class. Once they are as many as A has columns, B knows A's
  rows up to the unknown turn of the axes; that is the price of many linear predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.linalg import cho_solve
from scipy.special import expit, softmax

from fedmend._parameters import Rules, at_least, check_values
from fedmend.data.encode import Encoder
from fedmend.errors import NotFitted
from fedmend.federation.federation import Federation
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.completion.screening import bins_of, columns_within, held_within
from fedmend.methods.completion.targets import (
    FitReport,
    Progress,
    StoreWorker,
    TargetModels,
    TargetWorker,
)
from fedmend.secure.columns import Columns, keep_products
from fedmend.secure.fixed_point import MAX_BITS, encode, fitting_bits, standard_bounds
from fedmend.secure.inner_product import LIMIT_BITS, ProductSession
from fedmend.secure.keys import uniform

RANK_TOLERANCE = 1e-10
PAIRS_AT_ONCE = 256  # products of two coordinates in one session
ROWS_AT_ONCE = 16384  # that are predicted in one session
RULES: Rules = {
    "alpha": ("a finite number from 0 on", lambda alpha: alpha >= 0 and math.isfinite(alpha)),
    "steps": at_least(1),
}


# ---------------------------------------------------------------------------------- coordinates


@dataclass(frozen=True, repr=False)
class Rotated:
    """values: Z [n, rank]; penalty: K [rank, rank]."""

    values: np.ndarray
    penalty: np.ndarray

    @property
    def rank(self) -> int:
        return int(self.values.shape[1])


def rotate(columns: np.ndarray) -> Rotated:
    """Columns float64 [n, d] in coordinates that only their owner knows: whitened, then turned.

    With X centred and X'X / n = Q L Q', Z = X Q L^(-1/2) H for a uniformly random orthogonal H.
    Z'Z / n is the identity, so that bounds on Z follow from n alone; a linear model w'x is u'z with
    u = H' L^(1/2) Q' w, and the ridge penalty |w|^2 is u'Ku with K = H' L^(-1) H. Whoever is shown
    K, or products of Z with columns of its own, learns about X what is left when nobody knows which
    way its axes point: the eigenvalues L. Constant directions fall away.
    """
    centred = columns - columns.mean(axis=0)
    eigenvalues, axes = np.linalg.eigh(centred.T @ centred / len(columns))
    largest = eigenvalues[-1] if len(eigenvalues) else 0.0
    keep = eigenvalues > RANK_TOLERANCE * max(largest, np.finfo(float).tiny)
    eigenvalues, axes = eigenvalues[keep], axes[:, keep]
    turn = secret_rotation(len(eigenvalues))
    penalty = (turn.T / eigenvalues) @ turn
    values = centred @ ((axes / np.sqrt(eigenvalues)) @ turn)
    return Rotated(values, (penalty + penalty.T) / 2)


def secret_rotation(size: int) -> np.ndarray:
    """A uniformly random orthogonal matrix nobody can draw again."""
    if size == 0:
        return np.zeros((0, 0))
    # Box-Muller on 53 bits of each word: normal entries make the QR factor uniform.
    words = (uniform((2, size, size)) >> np.uint64(11)).astype(np.float64)
    first, second = (words + 0.5) / float(1 << 53)
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    orthogonal, upper = np.linalg.qr(normal)
    return orthogonal * np.sign(np.diag(upper))


def longest_row(rows: int, rank: int) -> int:
    """No row is longer: |z|^2 <= n for every one, because Z'Z = n I."""
    return math.isqrt(rows) + 1 + rank


# ---------------------------------------------------------------------------------- ridge


@dataclass(frozen=True, repr=False)
class Moments:
    """Sums over the training rows of features and targets; count: how many rows.

    Shape: zz [r, r]; z [r]: sums of the features; zy [r, q]; y, yy [q]: sums and squares of the
    targets.
    """

    zz: np.ndarray
    z: np.ndarray
    zy: np.ndarray
    y: np.ndarray
    yy: np.ndarray
    count: float


@dataclass(frozen=True, repr=False)
class RidgeModel:
    """weights: of the coordinates; deviation: of the residuals on the training rows."""

    weights: np.ndarray
    intercept: float
    deviation: float


def solve_ridge(moments: Moments, target: int, penalty: np.ndarray) -> RidgeModel:
    """Ridge regression from sums of products alone; the intercept is not penalised."""
    mean, mean_y = moments.z / moments.count, moments.y[target] / moments.count
    gram = moments.zz - np.outer(moments.z, mean)
    right = moments.zy[:, target] - moments.z * mean_y
    # lstsq: without a penalty, or with constant columns, there may be more than one solution
    weights = np.linalg.lstsq(gram + penalty, right, rcond=1e-13)[0]
    variation = moments.yy[target] - moments.count * mean_y**2
    residual = variation - 2 * weights @ right + weights @ gram @ weights
    return RidgeModel(
        weights,
        float(mean_y - weights @ mean),
        float(np.sqrt(max(residual, 0.0) / moments.count)),
    )


# ---------------------------------------------------------------------------------- logistic


class LogisticTarget:
    """Logistic regression of one target at the party that has it, but not the columns.

    The features are F = [Z, 1]; Z'R and Z D come from outside, everything else is at hand. Steps
    are those of L-BFGS that starts from the Hessian of the constant model,
    (diag(pi) - pi pi') (x) F'F + P, which needs no products but those of ridge. The first step is
    Newton's own. How far to go along a direction D is decided exactly: scores are linear in it.
    Classes: one sigmoid for two, softmax with a column each for more (as scikit-learn does).
    Parameters are stacked [r + 1, width]: Z, intercept.

    labels: class numbers of the training rows; rows: their numbers; penalty: of Z's weights.
    tolerance: training ends when the next step promises to move the scores by less than this (root
    mean square, weighted by p (1 - p)).
    """

    MEMORY = 10
    SEARCH_STEPS = 30
    JITTER = 1e-10

    def __init__(
        self,
        labels: np.ndarray,
        classes: int,
        rows: np.ndarray,
        moments: Moments,
        penalty: np.ndarray,
        tolerance: float,
    ) -> None:
        self.rows, self._tolerance = rows, tolerance
        self.width = 1 if classes == 2 else classes
        wanted = np.array([1]) if classes == 2 else np.arange(classes)
        self._hot = (labels[:, None] == wanted).astype(np.float64)
        self.converged = False
        self._penalty = np.pad(penalty, (0, 1))
        logs = np.log(np.bincount(labels, minlength=classes) + 0.5)
        self.parameters = np.zeros((len(moments.z) + 1, self.width))
        self.parameters[-1] = logs[1] - logs[0] if self.width == 1 else logs - logs.mean()
        self.scores = np.tile(self.parameters[-1], (len(labels), 1))
        self._curvature(moments)
        self._history: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._gradient: np.ndarray | None = None
        self._direction: np.ndarray | None = None

    def _curvature(self, moments: Moments) -> None:
        """Factors of the constant model's Hessian, for each principal mix of the classes."""
        gram = np.pad(moments.zz, (0, 1))
        gram[-1, :-1] = gram[:-1, -1] = moments.z
        gram[-1, -1] = moments.count
        share = _probabilities(self.scores[:1])[0]
        mix = (
            np.diag(share) - np.outer(share, share)
            if self.width > 1
            else np.diag(share * (1 - share))
        )
        weights, self._mixes = np.linalg.eigh(mix)
        jitter = self.JITTER * np.trace(gram) / len(gram) * np.eye(len(gram))
        # the mix of all classes alike moves no probability: no step goes along it
        self._factors = [
            np.linalg.cholesky(weight * gram + self._penalty + jitter) if weight > 1e-12 else None
            for weight in weights
        ]

    def residuals(self) -> np.ndarray:
        """Probabilities less what was seen, [rows, width]."""
        return _probabilities(self.scores) - self._hot

    def direction(self, products: np.ndarray) -> np.ndarray | None:
        """Where to go, for A's coordinates; None (and converged) when it does not pay.

        products: Z'R [r, width].
        """
        gradient = np.concatenate([products, self.residuals().sum(axis=0)[None]])
        gradient = gradient + self._penalty @ self.parameters
        self._remember(gradient)
        direction = -self._scaled(gradient)
        promise = -float((direction * gradient).sum())
        if promise <= len(self.rows) * self._tolerance**2:
            self.converged = True
            return None
        self._gradient, self._direction = gradient, direction
        return direction[:-1]

    def step(self, forward: np.ndarray) -> None:
        """Update, given A's part Z D of the change of the training rows' scores."""
        assert self._direction is not None
        change = forward + self._direction[-1]
        length = self._search(change, self._direction)
        self.scores = self.scores + length * change
        self._moved = length * self._direction
        self.parameters = self.parameters + self._moved

    def _remember(self, gradient: np.ndarray) -> None:
        if self._gradient is None:
            return
        difference = gradient - self._gradient
        curvature = float((difference * self._moved).sum())
        if curvature > 0:
            self._history = [*self._history, (self._moved, difference, curvature)][-self.MEMORY :]

    def _scaled(self, gradient: np.ndarray) -> np.ndarray:
        """The inverse Hessian as far as known, times the gradient (two-loop recursion)."""
        rest, shares = gradient, []
        for moved, difference, curvature in reversed(self._history):
            share = float((moved * rest).sum()) / curvature
            rest = rest - share * difference
            shares.append(share)
        mixed = rest @ self._mixes
        for at, factor in enumerate(self._factors):
            mixed[:, at] = 0.0 if factor is None else cho_solve((factor, True), mixed[:, at])
        rest = mixed @ self._mixes.T
        for (moved, difference, curvature), share in zip(
            self._history, reversed(shares), strict=True
        ):
            rest = rest + moved * (share - float((difference * rest).sum()) / curvature)
        return rest

    def _search(self, change: np.ndarray, direction: np.ndarray) -> float:
        """The minimum along the direction: a root of a rising function, by guarded Newton steps."""
        linear = float((direction * (self._penalty @ self.parameters)).sum())
        square = float((direction * (self._penalty @ direction)).sum())
        low, high, at = 0.0, np.inf, 1.0
        for _ in range(self.SEARCH_STEPS):
            shares = _probabilities(self.scores + at * change)
            slope = float(((shares - self._hot) * change).sum()) + linear + at * square
            bend = _curvature_along(shares, change) + square
            low, high = (at, high) if slope < 0 else (low, at)
            proposal = at - slope / bend if bend > 0 else 2 * at
            if abs(proposal - at) <= 1e-4 * at:
                return proposal
            if not low < proposal < high:
                proposal = 2 * low if np.isinf(high) else (low + high) / 2
            at = proposal
        return at

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """[n, classes], from A's part of the scores."""
        shares = _probabilities(scores + self.parameters[-1])
        return np.concatenate([1 - shares, shares], axis=1) if self.width == 1 else shares


def _probabilities(scores: np.ndarray) -> np.ndarray:
    return np.asarray(expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1))


def _curvature_along(shares: np.ndarray, change: np.ndarray) -> float:
    if shares.shape[1] == 1:
        return float((shares * (1 - shares) * change**2).sum())
    mean = (shares * change).sum(axis=1, keepdims=True)
    return float((shares * (change - mean) ** 2).sum())


# ---------------------------------------------------------------------------------- at A


class LinearFeatures(TargetWorker):
    """A's side: its columns as real numbers, and in coordinates drawn afresh for every fit."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self.columns = self._encoded()
        self._rotated: Rotated | None = None

    def _encoded(self) -> np.ndarray:
        """float64 [n, columns]: standardised numbers, one indicator per category."""
        table = self.features()
        encoder = Encoder(dtype="float64", missing_indicator=True).fit(table)
        columns = encoder.transform(table, party=self.site.name).onehot()
        return columns if self.beyond else held_within(columns, self.aligned)

    @exposed(kind="count")
    def start(self) -> int:
        """Draw new coordinates; tells how many there are."""
        self._rotated = rotate(self.columns)
        if self._rotated.rank == 0:
            raise self.nothing_varies()
        return self._rotated.rank

    @property
    def rotated(self) -> Rotated:
        if self._rotated is None:
            raise NotFitted(f"party {self.site.name!r} has no coordinates yet. Mend: start first")
        return self._rotated

    @exposed(kind="statistic")
    def moments_for(self, to: str) -> Sealed:
        """Encrypted for B: the penalty, and sums of products over the aligned rows."""
        part = self.rotated.values[: self.aligned]
        return self.seal(
            {"penalty": self.rotated.penalty, "products": part.T @ part}, to=to, kind="statistic"
        )

    @exposed(kind="control")
    def load_columns(self, bits: int, length: int) -> None:
        """Coordinates of the first `length` rows as integers, for products over rows."""
        values = encode(self.rotated.values[:length].T, bits)
        self.keep_columns("columns", values, *standard_bounds(len(self.rows), bits))

    @exposed(kind="control")
    def load_people(self, bits: int, first: int, last: int) -> None:
        """Rows as integers, for products over coordinates."""
        most = longest_row(len(self.rows), self.rotated.rank) << bits
        self.keep_columns("people", encode(self.rotated.values[first:last], bits), most, most**2)

    @exposed(kind="control")
    def load_pairs(self, bits: int, length: int, first: int, last: int) -> None:
        """Products of two coordinates each, of which `first` … `last` in the order of triu."""
        z = self.rotated.values[:length]
        one, other = np.triu_indices(self.rotated.rank)
        values = encode((z[:, one[first:last]] * z[:, other[first:last]]).T, bits)
        most = (len(self.rows) + 1) << bits
        self.keep_columns("pairs", values, most, most**2)


# ---------------------------------------------------------------------------------- at B


@dataclass
class _Group:
    """Targets that are trained on the same rows; simple: on all aligned ones, which A knows."""

    rows: np.ndarray
    names: list[str]
    simple: bool
    products: np.ndarray | None = None

    @property
    def width(self) -> int:
        """How many columns are summed: the rows themselves, and the targets."""
        return 1 + len(self.names)


class LinearTargets(StoreWorker):
    """B's side: everything but A's columns."""

    def __init__(
        self, site: Site, scope: str = "train", *, alpha: float, tolerance: float, **params: Any
    ) -> None:
        super().__init__(site, scope, **params)
        self.alpha, self.tolerance = alpha, tolerance
        self.ridge: dict[str, RidgeModel] = {}
        self.logistic: dict[str, LogisticTarget] = {}
        self._groups: list[_Group] = []
        self._scales = np.ones(0)

    @exposed(kind="control", takes={"message": "statistic"})
    def begin(self, message: Sealed, sender: str) -> dict[str, Any]:
        """Take A's moments; tells how many columns, groups of other rows and classes there are."""
        self._moments = self.open(message, sender=sender, kind="statistic")
        everyone = np.arange(len(self.rows)) < self.aligned
        found: dict[bytes, _Group] = {}
        for name in self.store.learnt:
            rows = self.store[name].labelled
            simple = bool(np.array_equal(rows, everyone))
            group = found.setdefault(
                np.packbits(rows).tobytes(), _Group(rows.astype(np.float64), [], simple)
            )
            group.names.append(name)
        self._groups = list(found.values())
        self.ridge, self.logistic = {}, {}
        return {
            "columns": sum(group.width for group in self._groups),
            "paired": sum(not group.simple for group in self._groups),
            "classes": sum(self.store[name].is_class for name in self.store.learnt),
        }

    # ------------------------------------------------------------------ ridge

    def _values(self, group: _Group) -> np.ndarray:
        """The numbers to learn at the group's rows, [n, targets]; zeros for classes."""
        values = np.zeros((len(self.rows), len(group.names)))
        for at, name in enumerate(group.names):
            target = self.store[name]
            if not target.is_class:
                values[:, at] = np.where(target.labelled, target.labels, 0.0)
        return values

    @exposed(kind="control")
    def load_sums(self, bits: int, length: int) -> None:
        """Per group its rows, and its targets at these, as integers."""
        parts = [
            np.concatenate([group.rows[:, None], self._values(group)], axis=1)
            for group in self._groups
        ]
        self._load(np.concatenate(parts, axis=1).T[:, :length], bits)

    @exposed(kind="control")
    def load_weights(self, bits: int, length: int) -> None:
        """The rows of the groups that A cannot add up by itself."""
        rows = [group.rows for group in self._groups if not group.simple]
        self._load(np.stack(rows)[:, :length], bits)

    @exposed(kind="control")
    def take_pairs(self, bits: int) -> None:
        """Sums over the rows of products of A's coordinates, in the order of the groups."""
        sums = self._loaded_products("products", bits).T
        paired = [group for group in self._groups if not group.simple]
        for group, values in zip(paired, sums, strict=True):
            held = group.products
            group.products = values if held is None else np.concatenate([held, values])

    @exposed(kind="control")
    def solve(self, bits: int) -> None:
        """Solve all normal equations; keep the curvature for the logistic targets."""
        sums, at = self._loaded_products("products", bits), 0
        penalty = self.alpha * self._moments["penalty"]
        for group in self._groups:
            moments = self._moments_of(group, sums[:, at : at + group.width])
            at += group.width
            for number, name in enumerate(group.names):
                target = self.store[name]
                try:
                    if not target.is_class:
                        self.ridge[name] = solve_ridge(moments, number, penalty)
                        continue
                    rows = np.flatnonzero(target.labelled)
                    self.logistic[name] = LogisticTarget(
                        target.labels[rows],
                        len(target.classes),
                        rows,
                        moments,
                        penalty,
                        self.tolerance,
                    )
                except np.linalg.LinAlgError:
                    self.store.failed[name] = "its equations have no solution; try a larger alpha"

    def _moments_of(self, group: _Group, sums: np.ndarray) -> Moments:
        values = self._values(group)
        if group.simple:
            products = self._moments["products"]
        else:
            products = np.zeros((len(sums), len(sums)))
            products[np.triu_indices(len(sums))] = group.products
            products = products + np.triu(products, 1).T
        return Moments(
            zz=products,
            z=sums[:, 0],
            zy=sums[:, 1:],
            y=group.rows @ values,
            yy=group.rows @ values**2,
            count=float(group.rows.sum()),
        )

    # ------------------------------------------------------------------ logistic

    def _active(self) -> list[LogisticTarget]:
        return [each for each in self.logistic.values() if not each.converged]

    @exposed(kind="count")
    def load_residuals(self, bits: int, length: int) -> int:
        """Residuals of the classes of all targets that have not converged; tells how many."""
        active = self._active()
        rows = np.zeros((sum(each.width for each in active), length))
        at = 0
        for each in active:
            rows[at : at + each.width, each.rows] = each.residuals().T
            at += each.width
        if active:
            self._load(rows, bits)
        return len(active)

    @exposed(kind="count")
    def load_directions(self, bits: int, weight_bits: int) -> int:
        """Search directions from the gradients; tells how many targets go on."""
        gradients = self._loaded_products("products", bits)
        parts, at = [], 0
        for each in self._active():
            direction = each.direction(gradients[:, at : at + each.width])
            at += each.width
            if direction is not None:
                parts.append(direction)
        if parts:
            self._load_unit(np.concatenate(parts, axis=1).T, weight_bits)
        return len(parts)

    @exposed(kind="control")
    def step(self, bits: int) -> None:
        """Go along the directions as far as pays, with A's part of the scores at hand."""
        scores, at = self._loaded_products("scores", bits), 0
        for each in self._active():
            each.step(scores[each.rows, at : at + each.width])
            at += each.width

    # ------------------------------------------------------------------ prediction

    @exposed(kind="count")
    def load_outputs(self, bits: int) -> int:
        """Weights of A's coordinates for all outputs; tells how many there are."""
        parts = [model.weights[:, None] for model in self.ridge.values()]
        parts += [each.parameters[:-1] for each in self.logistic.values()]
        if parts:
            self._load_unit(np.concatenate(parts, axis=1).T, bits)
        return sum(part.shape[1] for part in parts)

    @exposed(kind="control")
    def take_outputs(self, bits: int, first: int) -> None:
        """Scores of the rows from `first` on become outputs in the target store."""
        scores, at = self._loaded_products("scores", bits), 0
        rows = slice(first, first + len(scores))
        for name, model in self.ridge.items():
            target = self.store[name]
            target.write(scores[:, at] + model.intercept, rows)
            if target.spread is None:
                target.spread = np.full(len(self.rows), np.nan)
            target.spread[rows] = model.deviation
            at += 1
        for name, each in self.logistic.items():
            self.store[name].write(each.probabilities(scores[:, at : at + each.width]), rows)
            at += each.width

    # ------------------------------------------------------------------ integers and back

    def _load(self, values: np.ndarray, bits: int) -> None:
        """Columns brought to the norm sqrt(n), which everybody may know, and rounded."""
        norms = np.linalg.norm(values, axis=1)
        self._scales = np.where(norms > 0, norms, 1.0) / math.sqrt(len(self.rows))
        whole = encode(values / self._scales[:, None], bits)
        self._keep_own("changing", whole, *standard_bounds(len(self.rows), bits))

    def _load_unit(self, values: np.ndarray, bits: int) -> None:
        norms = np.linalg.norm(values, axis=1)
        self._scales = np.where(norms > 0, norms, 1.0)
        most = (1 << bits) + values.shape[1]
        whole = encode(values / self._scales[:, None], bits)
        self._keep_own("weights", whole, most, most**2)

    def _keep_own(self, key: str, values: np.ndarray, *bounds: int) -> None:
        """For products that this party alone learns."""
        self.keep_columns(key, values, *bounds)
        keep_products(self.site, f"{self.model}:{key}")

    def _loaded_products(self, key: str, bits: int) -> np.ndarray:
        """Products that arrived, with `bits` of both factors and B's own scales taken out."""
        return np.asarray(self.kept(key).astype(np.float64) * (self._scales * 0.5**bits))


# ---------------------------------------------------------------------------------- coordinator


class LinearModels(TargetModels):
    """Ridge for numbers, logistic regression for classes (one softmax per target).

    alpha: the penalty alpha |w|^2 of ridge, and alpha/2 |w|^2 of logistic regression (which is
    scikit-learn's C = 1/alpha), on A's standardised columns.
    steps: most steps of logistic training; it stops earlier at `tolerance`, the largest change
    of an output that the next step promises.
    With ``beyond=False`` lines end with the aligned rows in columns that go beyond them a little.
    """

    family = "linear"
    workers = (LinearFeatures, LinearTargets)

    def __init__(
        self,
        fed: Federation,
        a: str,
        b: str,
        *,
        alpha: float = 1.0,
        steps: int = 30,
        tolerance: float = 1e-3,
        **options: Any,
    ) -> None:
        check_values(SimpleNamespace(**locals()), RULES)
        self.steps = steps
        at_b = {"alpha": float(alpha), "tolerance": float(tolerance)}
        super().__init__(fed, a, b, **options, params={"b": at_b})
        self._rank = 0

    def fit(self, *, progress: Progress | None = None) -> FitReport:
        tell = progress or (lambda stage, done, total: None)
        self._rank = self.at_a.start()
        plan = self.at_b.begin(self.at_a.moments_for(self.b), self.a)
        length = self.at_b.reach()
        bits = fitting_bits(self.n_rows, self.mode)
        self.at_a.load_columns(bits, length)
        with self._session("columns", "rows", length) as session:
            if plan["paired"]:
                self._paired_sums(length, tell)
            if plan["columns"]:
                self.at_b.load_sums(bits, length)
                self._multiply(session, "changing", "products")
                self.at_b.solve(2 * bits)
                tell("solving", 1, 1)
            if plan["classes"]:
                self._logistic(session, bits, length, tell)
        return self._report()

    def _paired_sums(self, length: int, tell: Progress) -> None:
        """Sums of z_j z_k over rows that A does not know, a few hundred pairs at a time."""
        # weights of norm sqrt(n) against products of norm n
        room = LIMIT_BITS[self.mode] - (1.5 * math.log2(self.n_rows + 1)) - 2
        bits = min(MAX_BITS, int(room // 2))
        count = self._rank * (self._rank + 1) // 2
        for first in range(0, count, PAIRS_AT_ONCE):
            last = min(count, first + PAIRS_AT_ONCE)
            self.at_a.load_pairs(bits, length, first, last)
            with self._session("pairs", "rows", length) as session:
                self.at_b.load_weights(bits, length)
                self._multiply(session, "changing", "products")
            self.at_b.take_pairs(2 * bits)
            tell("products of A's columns", last, count)

    def _logistic(self, session: ProductSession, bits: int, length: int, tell: Progress) -> None:
        score_bits = self._score_bits()
        self.at_a.load_people(score_bits, 0, length)
        with self._session("people", "axes", self._rank) as forward:
            for number in range(self.steps):
                if not self.at_b.load_residuals(bits, length):
                    break
                self._multiply(session, "changing", "products")
                if not self.at_b.load_directions(2 * bits, score_bits):
                    break
                self._multiply(forward, "weights", "scores")
                self.at_b.step(2 * score_bits)
                tell("logistic", number + 1, self.steps)

    def predict(self, *, rows: str = "unaligned", progress: Progress | None = None) -> None:
        """As the others, or for the "aligned" rows."""
        first = 0 if rows == "aligned" else self._first_row(rows)
        end = self.n_aligned if rows == "aligned" else self.n_rows
        bits = self._score_bits()
        if not self.at_b.load_outputs(bits):
            return
        for start in range(first, end, ROWS_AT_ONCE):
            stop = min(end, start + ROWS_AT_ONCE)
            self.at_a.load_people(bits, start, stop)
            with self._session("people", "axes", self._rank) as session:
                self._multiply(session, "weights", "scores")
            self.at_b.take_outputs(2 * bits, start)
            if progress is not None:
                progress("predicting", stop - first, end - first)

    def _session(self, key: str, over: str, length: int) -> ProductSession:
        """Products with A's columns of this name."""
        fixed = Columns(self.a, "state", {"key": f"{self.model}:{key}"})
        return ProductSession(self.scoped(over, length), fixed, self.b, mode=self.mode)

    def _multiply(self, session: ProductSession, key: str, store: str) -> None:
        changing = Columns(self.b, "state", {"key": f"{self.model}:{key}"})
        session.products(changing, to=self.b, store=f"{self.model}:{store}")

    def _score_bits(self) -> int:
        """Bits of A's rows and of B's weights, whose products are |z| |u| <= sqrt(n) at most."""
        longest = longest_row(self.n_rows, self._rank)
        return min(MAX_BITS, (LIMIT_BITS[self.mode] - longest.bit_length() - 2) // 2)


# ---------------------------------------------------------------------------------- set aside


class AsideFeatures(LinearFeatures):
    """A's side: the bins of its columns that lie elsewhere on its other rows."""

    def _encoded(self) -> np.ndarray:
        table = self.table.take(self.rows)
        stay = columns_within(table, self.aligned)
        gone = [name for name in table.feature_names if name not in stay]
        return bins_of(table, self.aligned, gone)

    @exposed(kind="count")
    def bins(self) -> int:
        """How many bins tell aligned rows from one another."""
        return int(self.columns.shape[1])


class AsideTargets(LinearTargets):
    """B's side: keeps what was predicted; of numbers it is taken out of the labels."""

    @exposed(kind="control")
    def take_aside(self) -> None:
        for name in self.store.learnt:
            target = self.store[name]
            target.aside, target.outputs, target.spread = target.outputs, None, None
            self.store.release(name)


class AsideModels(LinearModels):
    """What columns that lie elsewhere say of B's columns, set aside before models learn these.

    A's other rows are of another time, say, and its columns that tell the time are left out
    (`screening.py`). If one of the columns that stay is distributed in another way there too, it
    may have stood for the time among the aligned rows, and what was learnt from it about B's
    columns leads the wrong way: telephones told early months from late ones, and with them low
    rates from high ones; later everybody had a mobile, at whatever rate. So the columns that lie
    elsewhere say what they can of B's columns on the aligned rows, by ridge and logistic regression
    on their bins. Of numbers models then learn the rest; for A's other rows, where these columns
    say nothing, that part is its mean, 0. Probabilities of classes count as far as they say more
    (`stacking.news`). What each role learns is what it learns of linear models; predictions are for
    the aligned rows only.
    """

    family = "aside"
    workers = (AsideFeatures, AsideTargets)

    def set_aside(self, **options: Any) -> bool:
        """Predict the targets and let models learn the rest; tells whether anything was there."""
        if not self.targets or not self.at_a.bins():
            return False
        self.fit(**options)
        self.predict(rows="aligned", **options)
        self.at_b.take_aside()
        return True
