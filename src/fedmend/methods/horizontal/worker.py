"""A party's side of horizontal training: its rows, encoded as agreed, and rounds on them.

With secure averaging a party keeps what its round led to, scales it by its share of the rows, and
puts it into a secure sum (Bonawitz et al., 2017; `fedmend.secure.sums`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.schema import Schema
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation.rows import Asked
from fedmend.federation.site import Site
from fedmend.federation.worker import Worker, exposed
from fedmend.learn.metrics import confusion, counted, selves, softmax
from fedmend.methods.horizontal.encoding import describe, moments, pool_of
from fedmend.methods.horizontal.length import held_out, losses_of
from fedmend.methods.horizontal.local_methods import LocalMethod, Supervised
from fedmend.methods.horizontal.networks import NetSpec
from fedmend.methods.horizontal.rounds import (
    Pool,
    RoundSettings,
    Trainer,
    Update,
    round_generator,
)
from fedmend.methods.horizontal.tallies import judged, log_loss, odds_moments, ranks, tally
from fedmend.secure.sums import offer_summand
from fedmend.split.checkpoints import digest_of_rows, of_rows, require_rows
from fedmend.split.config import resolve_device
from fedmend.split.features import folds_of
from fedmend.split.labels import ReportedLabels, ask_for_noise
from fedmend.split.parts import MANIFEST, read_file, write_file, write_json

MODEL = "model.fmw"
STATE = "client-{:06d}.fmw"
UPDATE = "round.update"
JUDGED = "round.judged"
HELD_OUT = "round.held-out"
# A share of a change of weights; a training that goes further has gone astray.
LIMIT = 4096.0


class ClientWorker(Worker):
    """A party's side. What its method keeps between rounds stays with the party, by `run`."""

    parallel_inside = True

    def __init__(self, site: Site, scope: str = "train", *, run: str) -> None:
        super().__init__(site, scope)
        self.run = run
        self._trainer: Trainer | None = None
        self._warm: Trainer | None = None
        self._pool: Pool | None = None
        self._pooled: Table | None = None
        self._held = np.zeros(0, np.int64)
        self._common: dict[str, Any] = {}
        self._seed = 0
        self._classes: list[Any] = []

    @exposed(kind="statistic")
    def columns(self) -> dict[str, Any]:
        """The columns' names, kinds and categories, and the label's classes."""
        return describe(self.table, self.site.rows.least)

    @exposed(kind="statistic")
    def moments(self, schema: Any) -> dict[str, Any]:
        """Count, mean and variance of every number and of every image channel."""
        return moments(self.table.features, Schema.from_dict(schema), self._may_tell_of)

    def _may_tell_of(self, column: str, rows: np.ndarray) -> bool:
        """Whether a column's moments may rest on the rows that have a number in it.

        Tables that differ in many rows can differ in few of these, so that a column that has gaps
        somewhere has an account of its own.
        """
        tables = [each.frame for each in self.site.tables.values() if column in each.names]
        if len(rows) == len(self.table) and not any(each[column].isna().any() for each in tables):
            return True
        return self.site.rows.admits("moments", self.table, rows, f"column {column}")

    @exposed(kind="statistic")
    def tell_labels(
        self, epsilon: float, classes: list[Any], folder: str | None
    ) -> dict[str, float] | None:
        """Let this party's labels be known through randomised response only, from now on.

        classes: of all parties together. The account, None where the party has no labels.
        """
        if self.table.label is None:
            return None
        by = self.worker_name()
        return ask_for_noise(self.site, self.scope, epsilon, by=by, classes=classes, folder=folder)

    @exposed(kind="control")
    def prepare(self, common: dict[str, Any]) -> None:
        """Encode the rows and build the network."""
        settings = RoundSettings.from_dict(common["settings"])
        if settings.batch_size < self.site.rows.least:  # an optimizer can forget all other steps
            raise Refused(
                self.site.name,
                f"weights would tell of the {settings.batch_size} rows of their last step",
                f"a batch_size from {self.site.rows.least} on",
            )
        device = resolve_device(self.site.device)
        self._common = dict(common)
        self._fill_pool(settings, device)
        self._seed = self.site.own_seed(int(common["seed"]), "rounds")
        self._classes = list(common["classes"])
        net = NetSpec.from_dict(common["net"])
        self._trainer = Trainer(net, LocalMethod.of(common["method"]), settings, device)

    def _fill_pool(self, settings: RoundSettings, device: torch.device) -> None:
        self._pooled = self.table
        pool = pool_of(self._pooled, self._common, self.site.name)
        if self._common.get("held out of") == self.scope:
            self._held = self._hold_out(pool)
            pool = pool.without(self._held)
        self._pool = pool.to(device, settings)

    def _hold_out(self, pool: Pool) -> np.ndarray:
        """Labelled rows to judge rounds by; none where that would tell of too few.

        In a cross-validation one of its folds, otherwise by a number that each id keeps, so that
        trainings ask about few sets of rows (as in `split.workers.TopWorker.hold_out`).
        """
        rows, account = pool.labelled.numpy(), self.site.rows
        ids = self.table.ids[rows]
        folds = folds_of(self.site, ids)
        if (folds >= 0).any():
            held = folds == folds[folds >= 0].min()
        else:
            classes = pool.labels.numpy()[rows]
            held = held_out(self.site.draws_of(ids), account.least, classes)
        sets = [rows[held], rows[~held]]
        if held.all() or not account.would_admit(self.table, sets, self.about_rows("offer_held")):
            return rows[:0]
        return rows[held]

    @exposed(kind="weights", takes={"weights": "weights", "extras": "weights"})
    def train_round(
        self, weights: Tensor, number: int, extras: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Train on the party's own rows from these weights; gives back where that led."""
        update = self._train(weights, number, extras)
        self._require_numbers(update.weights, number)
        return {
            "weights": update.weights.cpu(),
            "rows": update.rows,
            "steps": update.steps,
            "measures": update.measures.cpu(),
            "extras": {key: value.cpu() for key, value in update.extras.items()},
        }

    def _train(self, weights: Tensor, number: int, extras: dict[str, Any] | None = None) -> Update:
        trainer, pool = self._ready(number)
        start = weights.to(trainer.device, trainer.settings.dtype)
        generator = round_generator(self._seed, pool.name, number)
        kept = self.site.state.setdefault(self._key, {})
        return trainer.train(pool, start, generator, state=kept, extras=extras)

    @exposed(kind="statistic", takes={"weights": "weights"})
    def confusion(self, weights: Tensor, scale: np.ndarray | None = None) -> dict[str, Any]:
        """How often which class was predicted for which, and the summed log loss.

        Where labels are known through randomised response, estimates of these by true labels.
        scale: of all parties' odds; with it also how many rows of which class lie where (`ranks`).
        """
        probabilities, weight = self._labelled(weights)
        found: dict[str, Any] = {
            "counts": confusion(weight, probabilities.argmax(1)),
            "log_loss": log_loss(probabilities, weight),
        }
        if scale is not None:
            found["ranks"] = ranks(probabilities, weight, scale)
            found["selves"] = selves(weight)
        return found

    @exposed(kind="statistic", takes={"weights": "weights"})
    def odds(self, weights: Tensor) -> np.ndarray:
        """Count, sum and sum of squares of the labelled rows' log odds. **Shape** [3, K or 1]."""
        return odds_moments(self._labelled(weights)[0])

    @exposed(kind="statistic", takes={"weights": "weights"})
    def tallies(self, weights: Tensor) -> dict[str, np.ndarray]:
        """How many labelled rows are right and wrong, by how undecided the model is."""
        return tally(*self._labelled(weights))

    @exposed(kind="count", over_rows=False)
    def offer_rows(self) -> int:
        """Put the number of rows to judge by where a secure sum finds it; tells the least."""
        rows = np.array([float(len(self._judging(self._ready()[1])))])
        offer_summand(self.site, JUDGED, rows, kind="label", opens="statistic")
        return self.site.rows.least

    @exposed(kind="control", takes={"weights": "weights"}, over_rows=True)
    def offer_judged(self, weights: Tensor, scale: np.ndarray | None = None) -> None:
        """Put what `odds`, or with their scale `confusion`, would tell into a secure sum.

        Of too few rows nothing: who knows the other parties' parts would have this one's.
        """
        probabilities, weight = self._labelled(weights)
        told = odds_moments(probabilities)
        if scale is not None:
            told = judged(probabilities, weight, scale)
        offer_summand(self.site, JUDGED, told, kind="label", opens="statistic")

    @exposed(kind="count", over_rows=False)
    def holds_out(self) -> bool:
        """Whether there are rows here to judge rounds by."""
        self._ready()
        return len(self._held) > 0

    @exposed(kind="control", takes={"weights": "weights"}, over_rows=True)
    def offer_held(self, weights: Tensor) -> None:
        """Put what these weights lose on the rows held out into a secure sum."""
        _, pool = self._ready()
        found = self._raw(weights, torch.from_numpy(self._held))
        told = losses_of(found, self._counted(pool, self._held))
        offer_summand(self.site, HELD_OUT, told, kind="label", opens="statistic")

    @exposed(kind="prediction", takes={"weights": "weights"})
    def predict(self, weights: Tensor) -> np.ndarray:
        """Probabilities of all rows, in the table's order, where the policy lets them out. [n, K]

        Whoever sends the weights chooses what a probability says of a row.
        """
        found = self._probabilities(weights)
        site = self.site
        site.predicted.admit(site.name, site.policy, self.table.ids, found, foreign=True)
        return found

    @exposed(kind="count", takes={"weights": "weights"})
    def predict_here(self, weights: Tensor) -> int:
        """Predict all rows and keep the probabilities at this party; how many there are."""
        found = self._probabilities(weights)
        keep_predictions(self.site, self.scope.partition("@")[0], self._classes, found)
        return len(found)

    @exposed(kind="control")
    def save_state(self, path: str, number: int) -> None:
        """Keep on the party's own disk what the method keeps between rounds, as of this round.

        The state kept before it stays too: until all parties and the coordinator have kept this
        round, a run that is cut off goes on from the one before.
        """
        folder = self.site.folder(path)
        state = of_rows(self.site.state.get(self._key, {}), self._made_of)
        write_file(folder / STATE.format(number), state)
        before = sorted(folder.glob(STATE.replace("{:06d}", "*")))
        for old in [each for each in before if each.name < STATE.format(number)][:-1]:
            old.unlink()

    @exposed(kind="control")
    def load_state(self, path: str, number: int) -> None:
        """Go on with what was kept of this round."""
        kept = read_file(self.site.folder(path) / STATE.format(number), self.site.name)
        kept = require_rows(kept, self._made_of, self.site.name)
        device = resolve_device(self.site.device)
        self.site.state[self._key] = {key: value.to(device) for key, value in kept.items()}

    @cached_property
    def _made_of(self) -> str:
        return digest_of_rows(self.table)

    def about_rows(self, method: str) -> str:
        return "columns" if method in ("columns", "moments") else "labels"

    def rows_asked(self, method: str, kwargs: Mapping[str, Any]) -> list[Asked]:
        if method in ("confusion", "odds", "tallies", "offer_judged"):
            return [self._judging(self._ready()[1])]
        if method == "offer_held":
            self._ready()
            return [self._held]
        return super().rows_asked(method, kwargs)

    @property
    def _key(self) -> str:
        return f"{self.run}:client"

    def _labelled(self, weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the rows that have a label, and how far each counts for each class."""
        _, pool = self._ready()
        rows = self._judging(pool)
        return self._probabilities(weights)[rows], self._counted(pool, rows)

    def _counted(self, pool: Pool, rows: np.ndarray) -> np.ndarray:
        labels = pool.labels.cpu().numpy()[rows]
        reported = ReportedLabels.of(self.site, self.scope)
        noise = None if reported is None else reported.response
        return counted(labels, len(self._common["classes"]), noise)

    def _judging(self, pool: Pool) -> np.ndarray:
        """The labelled rows; none where they are so few that their scores would tell of them."""
        rows = pool.labelled.numpy()
        return rows if len(rows) >= self.site.rows.least else rows[:0]

    def _probabilities(self, weights: Tensor) -> np.ndarray:
        return believed(self._raw(weights), self._common)

    def _raw(self, weights: Tensor, rows: Tensor | None = None) -> np.ndarray:
        trainer, pool = self._ready()
        start = weights.to(trainer.device, trainer.settings.dtype)
        return trainer.probabilities(pool.views, start, rows).float().cpu().numpy()

    def _require_numbers(self, values: Tensor, number: int, most: float = math.inf) -> None:
        """Weights that are no numbers, or beyond `most`, would spoil every party's model."""
        trainer, _ = self._ready()
        if not bool((values.isfinite() & (values.abs() <= most)).all()):
            raise DataError(
                f"the training has diverged: after round {number} the weights are no numbers, or "
                "too large",
                party=self.site.name,
                mend=f"a smaller lr than {trainer.settings.optimizer.lr:g}",
            )

    def _ready(self, number: int | None = None) -> tuple[Trainer, Pool]:
        """The trainer, that of a round if one is given, and the rows."""
        if self._trainer is None or self._pool is None:
            raise ConfigError("the client is not prepared. Mend: call prepare(…) first")
        trainer = self._trainer
        if self._pooled is not self.table:  # labels have come under protection since
            self._fill_pool(trainer.settings, trainer.device)
        if number is None or number > trainer.settings.warmup:
            return trainer, self._pool
        if self._warm is None:
            self._warm = Trainer(trainer.spec, Supervised(), trainer.settings, trainer.device)
        return self._warm, self._pool


class HiddenClientWorker(ClientWorker):
    """A party's side with secure averaging: trains, and lets out sums only."""

    def __init__(self, site: Site, scope: str = "train", *, run: str) -> None:
        super().__init__(site, scope, run=run)
        self._change: Tensor | None = None
        self._number = 0

    @exposed(kind="statistic", takes={"weights": "weights"})
    def train_hidden(self, weights: Tensor, number: int) -> dict[str, Any]:
        """Train on the party's own rows and keep the result; tells rows, steps and measures."""
        update = self._train(weights, number)
        start = weights.to(update.weights)
        self._change, self._number = update.weights.double() - start.double(), number
        return {"rows": update.rows, "steps": update.steps, "measures": update.measures.cpu()}

    @exposed(kind="control")
    def offer(self, share: float) -> None:
        """Put the kept result, scaled, where a secure sum finds it."""
        if self._change is None:
            raise ConfigError("no round was trained. Mend: call train_hidden(…) first")
        part = self._change * share
        self._require_numbers(part, self._number, LIMIT)
        offer_summand(self.site, UPDATE, part.cpu().numpy(), opens="weights")
        self._change = None


class ModelKeeper(Worker):
    """A party's own copy of the common model."""

    @exposed(kind="control", takes={"model": "weights"})
    def keep(self, path: str, model: dict[str, Any], manifest: dict[str, Any]) -> None:
        folder = self.site.folder(path)
        write_file(folder / MODEL, model)
        write_json(folder / MANIFEST, manifest)


def believed(probabilities: np.ndarray, common: Mapping[str, Any]) -> np.ndarray:
    """What a network says, as far as it is to be believed. **Shape** [n, K]."""
    temperature = float(common.get("temperature", 1.0))
    if temperature == 1.0:
        return probabilities
    logs = np.log(np.maximum(probabilities, 1e-12))
    return softmax(logs / temperature).astype(probabilities.dtype)


def keep_predictions(site: Site, dataset: str, classes: list[Any], found: np.ndarray) -> None:
    """At the party: the probabilities of a table's rows, for who writes them down there."""
    site.vault[f"predictions of {dataset}"] = (classes, found)


def kept_predictions(site: Site, dataset: str) -> tuple[list[Any], np.ndarray]:
    """What was kept for a table, once: classes, and probabilities in its order."""
    if f"predictions of {dataset}" not in site.vault:
        raise DataError(
            f"no rows of {dataset!r} are predicted", party=site.name, mend="predict them first"
        )
    classes, found = site.vault.pop(f"predictions of {dataset}")
    return classes, found
