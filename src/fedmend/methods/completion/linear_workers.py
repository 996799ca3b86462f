"""The two sides of the linear models: A's columns in secret coordinates, B's targets and weights.

See `linear.py` for the protocol and for what each side learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.data.encode import Encoder
from fedmend.errors import DataError, NotFitted
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.methods.completion.beyond import held_within
from fedmend.methods.completion.board import indicators, known
from fedmend.methods.completion.logistic import LogisticTarget
from fedmend.methods.completion.ridge import Moments, RidgeModel, solve_ridge
from fedmend.methods.completion.rotation import Rotated, rotate
from fedmend.methods.completion.targets import BoardWorker, TargetWorker
from fedmend.secure.fixed_point import encode, standard_bounds

if TYPE_CHECKING:
    from fedmend.federation.site import Site

__all__ = ["LinearFeatures", "LinearTargets"]


def people_norm(rows: int, rank: int) -> int:
    """No row is longer: |z|^2 <= n for every one, because Z'Z = n I."""
    return math.isqrt(rows) + 1 + rank


def member_weights(seeds: Sequence[int], rows: int) -> list[np.ndarray]:
    """All rows once, and for every seed a bootstrap sample as weights; known to everybody."""
    drawn = [np.random.default_rng(seed).poisson(1.0, rows).astype(np.float64) for seed in seeds]
    return [np.ones(rows), *drawn]


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
            raise DataError(
                "no column varies, so nothing can be predicted from them",
                party=self.site.name,
                mend="give the party columns with one value a row that vary",
            )
        return self._rotated.rank

    @property
    def rotated(self) -> Rotated:
        if self._rotated is None:
            raise NotFitted(f"party {self.site.name!r} has no coordinates yet. Mend: start first")
        return self._rotated

    @exposed(kind="statistic")
    def moments_for(self, to: str, seeds: list[int]) -> Sealed:
        """In a box: the penalty, and sums of products over the aligned rows, per member."""
        part = self.rotated.values[: self.aligned]
        members = member_weights(seeds, len(self.rows))
        weighted = [part * weights[: self.aligned, None] for weights in members]
        return self.seal(
            {
                "penalty": self.rotated.penalty,
                "sums": [each.sum(axis=0) for each in weighted],
                "products": [part.T @ each for each in weighted],
            },
            to=to,
            kind="statistic",
        )

    @exposed(kind="control")
    def load_columns(self, bits: int, length: int) -> None:
        """Coordinates of the first `length` rows as integers, for products over rows."""
        values = encode(self.rotated.values[:length].T, bits)
        self.keep_columns("columns", values, *standard_bounds(len(self.rows), bits))

    @exposed(kind="control")
    def load_people(self, bits: int, first: int, last: int) -> None:
        """Rows as integers, for products over coordinates."""
        most = people_norm(len(self.rows), self.rotated.rank) << bits
        self.keep_columns("people", encode(self.rotated.values[first:last], bits), most, most**2)

    @exposed(kind="control")
    def load_pairs(self, bits: int, length: int, first: int, last: int) -> None:
        """Products of two coordinates each, of which `first` … `last` in the order of triu."""
        z = self.rotated.values[:length]
        one, other = np.triu_indices(self.rotated.rank)
        values = encode((z[:, one[first:last]] * z[:, other[first:last]]).T, bits)
        most = (len(self.rows) + 1) << bits
        self.keep_columns("pairs", values, most, most**2)


@dataclass
class _Group:
    """Targets that are trained on the same rows with the same weights."""

    weights: np.ndarray
    member: int
    names: list[str]
    simple: bool
    products: np.ndarray | None = None


class LinearTargets(BoardWorker):
    """B's side: everything but A's columns."""

    def __init__(
        self, site: Site, scope: str = "train", *, alpha: float, tolerance: float, **params: Any
    ) -> None:
        super().__init__(site, scope, **params)
        self.alpha, self.tolerance = alpha, tolerance
        self.ridge: dict[str, list[RidgeModel]] = {}
        self.logistic: dict[str, LogisticTarget] = {}
        self._groups: list[_Group] = []
        self._scales = np.ones(0)

    # ------------------------------------------------------------------ what a fit begins with

    @exposed(kind="control", takes={"box": "statistic"})
    def begin(self, box: Sealed, sender: str, seeds: list[int]) -> dict[str, Any]:
        """Take A's moments; tells how many ridge and logistic targets there are."""
        self._moments = self.open(box, sender=sender, kind="statistic")
        self._own, self._own_at = self._own_columns()
        self._groups = self._make_groups(seeds)
        self.ridge, self.logistic = {}, {}
        columns = sum(1 + self._own.shape[1] + len(group.names) for group in self._groups)
        pairs = [at for at, group in enumerate(self._groups) if not group.simple]
        classes = [name for name in self.board.learnt if self.board[name].is_class]
        return {"columns": columns, "paired": len(pairs), "classes": len(classes)}

    def _own_columns(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """B's own features [n, m] at all rows, and which columns belong to which name."""
        board, parts, at, places = self.board, [], 0, {}
        for name in board.own:
            column = board[name]
            if column.is_class:
                part = indicators(column.guess, len(column.classes))
            else:
                part = np.where(known(column.guess), column.guess, 0.0)[:, None]
            parts.append(part)
            places[name] = np.arange(at, at + part.shape[1])
            at += part.shape[1]
        return np.concatenate(parts, axis=1) if parts else np.zeros((board.rows, 0)), places

    def own_places(self, target: str) -> np.ndarray:
        """Which of B's own features may be used for a target."""
        places = [self._own_at[name] for name in self.board.features_of(target)]
        return np.concatenate(places) if places else np.zeros(0, np.int64)

    def _make_groups(self, seeds: list[int]) -> list[_Group]:
        members = member_weights(seeds, len(self.rows))
        everyone = np.arange(len(self.rows)) < self.aligned
        found: dict[tuple[bytes, int], _Group] = {}
        for name in self.board.learnt:
            target = self.board[name]
            rows = target.labelled
            simple = bool(np.array_equal(rows, everyone))
            # the first member alone serves the curvature of logistic targets
            for member, weights in enumerate(members[:1] if target.is_class else members):
                group = found.setdefault(
                    (np.packbits(rows).tobytes(), member),
                    _Group(weights * rows, member, [], simple),
                )
                group.names.append(name)
        return list(found.values())

    # ------------------------------------------------------------------ ridge

    @exposed(kind="control")
    def load_sums(self, bits: int, length: int) -> None:
        """Per group its weights, and weighted own features and targets, as integers."""
        parts = []
        for group in self._groups:
            block = np.concatenate([np.ones((len(self.rows), 1)), self._own], axis=1)
            values = np.stack([self._regressand(name) for name in group.names], axis=1)
            parts.append(np.concatenate([block, values], axis=1) * group.weights[:, None])
        self._load("changing", np.concatenate(parts, axis=1).T[:, :length], bits)

    def _regressand(self, name: str) -> np.ndarray:
        target = self.board[name]
        if target.is_class:
            return np.zeros(len(self.rows))
        return np.where(target.labelled, target.labels, 0.0)

    @exposed(kind="control")
    def load_weights(self, bits: int, length: int) -> None:
        """The weights of the groups whose rows A cannot add up by itself."""
        rows = [group.weights for group in self._groups if not group.simple]
        self._load("changing", np.stack(rows)[:, :length], bits)

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
        sums = self._loaded_products("products", bits)
        at = 0
        for group in self._groups:
            width = 1 + self._own.shape[1] + len(group.names)
            moments = self._moments_of(group, sums[:, at : at + width])
            at += width
            for number, name in enumerate(group.names):
                try:
                    self._solve_one(name, number, moments)
                except np.linalg.LinAlgError:
                    self.board.failed[name] = "its equations have no solution; try a larger alpha"
                    self.ridge.pop(name, None)

    def _solve_one(self, name: str, number: int, moments: Moments) -> None:
        own = self.own_places(name)
        if self.board[name].is_class:
            self.logistic[name] = self._logistic(name, own, moments)
            return
        model = solve_ridge(moments, number, own, self._moments["penalty"], self.alpha)
        self.ridge.setdefault(name, []).append(model)

    def _moments_of(self, group: _Group, sums: np.ndarray) -> Moments:
        width = self._own.shape[1]
        weights, own = group.weights, self._own
        values = np.stack([self._regressand(name) for name in group.names], axis=1)
        if group.simple:
            products = self._moments["products"][group.member]
        else:
            rank = len(sums)
            products = np.zeros((rank, rank))
            products[np.triu_indices(rank)] = group.products
            products = products + np.triu(products, 1).T
        weighted = own * weights[:, None]
        return Moments(
            aa=products,
            ab=sums[:, 1 : 1 + width],
            bb=own.T @ weighted,
            a=sums[:, 0],
            b=weighted.sum(axis=0),
            ay=sums[:, 1 + width :],
            by=weighted.T @ values,
            y=weights @ values,
            yy=weights @ values**2,
            weight=float(weights.sum()),
        )

    # ------------------------------------------------------------------ logistic

    def _logistic(self, name: str, own: np.ndarray, moments: Moments) -> LogisticTarget:
        target = self.board[name]
        rows = np.flatnonzero(target.labelled)
        return LogisticTarget(
            target.labels[rows],
            len(target.classes),
            rows,
            self._own[np.ix_(rows, own)],
            moments,
            own,
            self._moments["penalty"],
            self.alpha,
            self.tolerance,
        )

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
            self._load("changing", rows, bits)
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
            self._load_unit("weights", np.concatenate(parts, axis=1).T, weight_bits)
        return len(parts)

    @exposed(kind="control")
    def step(self, bits: int) -> None:
        """Go along the directions as far as pays, with A's part of the scores at hand."""
        scores = self._loaded_products("scores", bits)
        at = 0
        for each in self._active():
            each.step(scores[each.rows, at : at + each.width])
            at += each.width

    # ------------------------------------------------------------------ prediction

    @exposed(kind="count")
    def load_outputs(self, bits: int) -> int:
        """Weights of A's coordinates for all outputs; tells how many there are."""
        parts = [model.a[:, None] for models in self.ridge.values() for model in models]
        parts += [each.a for each in self.logistic.values()]
        if parts:
            self._load_unit("weights", np.concatenate(parts, axis=1).T, bits)
        return sum(part.shape[1] for part in parts)

    @exposed(kind="control")
    def take_outputs(self, bits: int, first: int) -> None:
        """Scores of the rows from `first` on become outputs on the board."""
        scores = self._loaded_products("scores", bits)
        rows = slice(first, first + len(scores))
        at = 0
        for name, models in self.ridge.items():
            self._write_ridge(name, models, scores[:, at : at + len(models)], rows)
            at += len(models)
        for name, each in self.logistic.items():
            own = self._own[rows][:, self.own_places(name)]
            self._write(name, each.probabilities(scores[:, at : at + each.width], own), rows)
            at += each.width

    def _write_ridge(
        self, name: str, models: list[RidgeModel], scores: np.ndarray, rows: slice
    ) -> None:
        own = self._own[rows][:, self.own_places(name)]
        outputs = np.stack(
            [
                score + own @ model.b + model.intercept
                for score, model in zip(scores.T, models, strict=True)
            ]
        )
        self._write(name, outputs[0], rows)
        target = self.board[name]
        if target.spread is None:
            target.spread = np.full(len(self.rows), np.nan)
        between = outputs[1:].var(axis=0) if len(models) > 2 else 0.0
        target.spread[rows] = np.sqrt(models[0].deviation ** 2 + between)

    def _write(self, name: str, outputs: np.ndarray, rows: slice) -> None:
        target = self.board[name]
        if target.outputs is None:
            target.outputs = np.full((len(self.rows), *outputs.shape[1:]), np.nan)
        target.outputs[rows] = outputs

    # ------------------------------------------------------------------ integers and back

    def _load(self, key: str, values: np.ndarray, bits: int) -> None:
        """Columns brought to the norm sqrt(n), which everybody may know, and rounded."""
        norms = np.linalg.norm(values, axis=1)
        self._scales = np.where(norms > 0, norms, 1.0) / math.sqrt(len(self.rows))
        whole = encode(values / self._scales[:, None], bits)
        self.keep_columns(key, whole, *standard_bounds(len(self.rows), bits))

    def _load_unit(self, key: str, values: np.ndarray, bits: int) -> None:
        norms = np.linalg.norm(values, axis=1)
        self._scales = np.where(norms > 0, norms, 1.0)
        most = (1 << bits) + values.shape[1]
        self.keep_columns(key, encode(values / self._scales[:, None], bits), most, most**2)

    def _loaded_products(self, key: str, bits: int) -> np.ndarray:
        """Products that arrived, with `bits` of both factors and B's own scales taken out."""
        return self.kept(key).astype(np.float64) * (self._scales * 0.5**bits)
