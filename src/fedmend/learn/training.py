"""The coordinator's half of split training: epochs, validation, early stopping, checkpoints.

network = SplitNetwork(fed, parties=["bank", "telco"], label_party="bank", config=…)
network.fit([["aligned", 800]])
network.evaluate(fed.on("test"), [["aligned", 200]])
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.errors import ConfigError, DataError, ResumeError
from fedmend.federation import Crew, Each, Federation
from fedmend.learn.features import Segments, batch_sizes
from fedmend.learn.halves import Settings
from fedmend.learn.metrics import CLASSIFICATION, REGRESSION, better
from fedmend.learn.parts import read_json, write_json
from fedmend.learn.server_top import ServerTop
from fedmend.learn.split import BottomWorker, TopWorker

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int, dict[str, float]], None]
PREDICT_ROWS = 4096
STATE = "training.json"


@dataclass(frozen=True)
class SplitConfig:
    """A split network and how it is trained.

    bottom, top: widths of hidden layers; () makes that half linear.
    validation: the share of training rows held out; 0 trains on all, for all epochs.
    patience: epochs without improvement of `metric` before training stops; None never stops.
    metric: what early stopping watches; None means log loss, or RMSE for regression.
    """

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    top: tuple[int, ...] = (64,)
    dropout: float = 0.0
    conv: str = "cnn"
    missing_indicator: bool = True
    task: str = "auto"
    epochs: int = 50
    validation: float = 0.1
    patience: int | None = 10
    metric: str | None = None
    seed: int = 0
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        problems = []
        if self.epochs < 1:
            problems.append(f"epochs must be at least 1, however: {self.epochs}")
        if not 0 <= self.validation < 1:
            problems.append(f"validation must be in [0, 1), however: {self.validation}")
        if self.patience is not None and self.patience < 1:
            problems.append(f"patience must be at least 1 or None, however: {self.patience}")
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout must be in [0, 1), however: {self.dropout}")
        known = (None, *CLASSIFICATION, *REGRESSION)
        if self.metric not in known:
            problems.append(f"metric must be one of {known[1:]}, however: {self.metric!r}")
        for name in ("bottom", "top"):
            if any(width < 1 for width in getattr(self, name)):
                problems.append(f"{name}: widths must be positive, however: {getattr(self, name)}")
        if self.embedding < 1:
            problems.append(f"embedding must be at least 1, however: {self.embedding}")
        if problems:
            raise ConfigError(problems)

    def net(self) -> dict[str, Any]:
        """What the workers need to know to build their modules, as wire values."""
        return {
            "bottom": list(self.bottom),
            "embedding": self.embedding,
            "top": list(self.top),
            "dropout": self.dropout,
            "conv": self.conv,
            "missing_indicator": self.missing_indicator,
            "task": self.task,
            "seed": self.seed,
        }

    def fingerprint(self, rows: int, names: list[str]) -> str:
        """Changes when a checkpoint would not continue the same training (epochs may grow)."""
        facts = asdict(self) | {"epochs": None, "rows": rows, "names": names}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def epoch_seed(run_seed: int, seed: int, epoch: int) -> int:
    """The seed all halves shuffle an epoch's rows with; it depends on nothing that went before."""
    return int(np.random.SeedSequence([run_seed, seed, epoch]).generate_state(1)[0])


class SplitNetwork:
    """A split model over the feature parties `parties`, its top at `label_party` or `server`.

    history: one dict per epoch (epoch, loss, val_<metric>…); best_epoch: the one whose weights
    are kept.
    """

    def __init__(
        self,
        fed: Federation,
        *,
        parties: list[str],
        label_party: str | None = None,
        server: ServerTop | None = None,
        config: SplitConfig,
        model: str | None = None,
    ) -> None:
        if (label_party is None) == (server is None):
            raise ConfigError("the labels are at a party or at the server: give one of the two")
        self.fed = fed
        self.parties = parties
        self.label_party = label_party
        self.server = server
        self.config = config
        self.model = model or f"split-{secrets.token_hex(6)}"
        self.task = ""
        self.classes: list[Any] = []
        self.history: list[dict[str, float]] = []
        self.best_epoch = 0
        self._best = float("nan")

    @property
    def passive(self) -> list[str]:
        return [name for name in self.parties if name != self.label_party]

    # ------------------------------------------------------------------ training

    def fit(
        self,
        segments: Segments,
        *,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> SplitNetwork:
        """Train on these rows. With `resume`, go on from the checkpoint if there is one."""
        with self._crews(self.fed) as (bottoms, top):
            widths = self._create(bottoms, top)
            logger.debug("embedding widths %s", widths)
            rows = self._attach(bottoms, top, segments, train=True)
            train, validation = self._split(rows, top.labelled())
            batches = top.set_order(train)
            bottoms.set_order(train)
            epoch = 0
            folder = Path(checkpoint) if checkpoint is not None else None
            mark = self.config.fingerprint(rows, self.parties)
            if folder is not None and resume:
                epoch = self._resume(folder, mark, bottoms, top)
            while epoch < self.config.epochs and not self._out_of_patience(epoch):
                epoch += 1
                self._epoch(epoch, batches, bottoms, top)
                self._judge(epoch, validation, bottoms, top)
                if progress is not None:
                    progress("train", epoch, self.config.epochs, self.history[-1])
                if folder is not None:
                    self._checkpoint(folder, mark, epoch, bottoms, top)
            if len(validation):
                bottoms.restore_best()
                top.restore_best()
        return self

    def _create(self, bottoms: Crew, top: Any) -> list[int]:
        net, settings = self.config.net(), self.config.settings.to_dict()
        made = bottoms.create(net, settings)
        widths = [made.get(name, 0) for name in self.parties]
        about = top.create(net, settings, list(self.parties), widths)
        self.task, self.classes = about["task"], about["classes"]
        return widths

    def _attach(self, bottoms: Crew, top: Any, segments: Segments, *, train: bool) -> int:
        wire_segments = [list(segment) for segment in segments]
        settings = self.config.settings.to_dict()
        rows = int(top.attach(wire_segments, settings, train))
        bottoms.attach(wire_segments, settings)
        return rows

    def _split(self, rows: int, labelled: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        usable = np.arange(rows) if labelled is None else labelled
        if len(usable) < 2:
            raise DataError(
                f"{len(usable)} rows to train on",
                party=self.label_party,
                mend="more labelled rows; LocalVFL and Local also use rows only one party has",
            )
        rng = np.random.default_rng([self.fed.seed, self.config.seed, 1])
        shuffled = rng.permutation(usable)
        held_out = round(self.config.validation * len(usable))
        if self.config.validation and held_out == 0:
            held_out = 1
        return np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out])

    def _epoch(self, epoch: int, batches: int, bottoms: Crew, top: Any) -> None:
        seed = epoch_seed(self.fed.seed, self.config.seed, epoch)
        if not len(bottoms):
            top.epoch_alone(seed)
        else:
            top.start_epoch(seed)
            embeddings = bottoms.step(epoch=seed)
            for _ in range(batches - 1):
                embeddings = bottoms.step(Each(top.step(embeddings)))
            bottoms.finish(Each(top.step(embeddings)))
        self.history.append({"epoch": epoch, "loss": top.loss()})

    def _judge(self, epoch: int, validation: np.ndarray, bottoms: Crew, top: Any) -> None:
        """Validate, and remember the weights if they are the best so far."""
        if not len(validation):
            self.best_epoch = epoch
            return
        self._run(validation, bottoms, top)
        scores = top.metrics(validation)
        self.history[-1] |= {f"val_{name}": value for name, value in scores.items()}
        metric = self.config.metric or ("rmse" if self.task == "regression" else "log_loss")
        if metric not in scores:
            raise ConfigError(
                f"metric={metric!r} is not for {self.task}. Mend: one of {', '.join(scores)}"
            )
        if self.best_epoch == 0 or better(metric, scores[metric], self._best):
            self._best = scores[metric]
            self.best_epoch = epoch
            bottoms.keep_best()
            top.keep_best()

    def _out_of_patience(self, epoch: int) -> bool:
        patience = self.config.patience
        return patience is not None and epoch - self.best_epoch >= patience

    # ------------------------------------------------------------------ checkpoints

    def _checkpoint(self, folder: Path, mark: str, epoch: int, bottoms: Crew, top: Any) -> None:
        # The parties' files first, ours last: a kill in between leaves the previous epoch valid.
        bottoms.save_checkpoint(str(folder), epoch)
        top.save_checkpoint(str(folder), epoch)
        state = {
            "fingerprint": mark,
            "epoch": epoch,
            "best_epoch": self.best_epoch,
            "best": self._best,
            "history": self.history,
        }
        write_json(folder / STATE, state)

    def _resume(self, folder: Path, mark: str, bottoms: Crew, top: Any) -> int:
        path = folder / STATE
        if not path.is_file():
            return 0
        state = read_json(path, "the checkpoint")
        if state["fingerprint"] != mark:
            raise ResumeError(
                f"the checkpoint in {folder} was made with other settings, parties or rows. "
                "Mend: resume with the same ones, or start in another folder"
            )
        epoch = int(state["epoch"])
        bottoms.load_checkpoint(str(folder), epoch)
        top.load_checkpoint(str(folder), epoch)
        self.history = state["history"]
        self.best_epoch, self._best = state["best_epoch"], state["best"]
        return epoch

    # ------------------------------------------------------------------ using it

    def evaluate(self, fed: Federation, segments: Segments) -> dict[str, float]:
        """Metrics over these rows, computed at the label party."""
        with self._crews(fed) as (bottoms, top):
            rows = self._attach(bottoms, top, segments, train=False)
            self._run(np.arange(rows), bottoms, top)
            return dict(top.metrics())

    def predict(
        self, fed: Federation, segments: Segments, *, table_order: bool = False
    ) -> np.ndarray:
        """Probabilities [n, C], or values [n] for regression."""
        with self._crews(fed) as (bottoms, top):
            rows = self._attach(bottoms, top, segments, train=False)
            self._run(np.arange(rows), bottoms, top)
            return top.predictions(table_order)

    def save(self, path: str) -> None:
        """Every party saves its own part under this name."""
        with self._crews(self.fed) as (bottoms, top):
            bottoms.save(path)
            top.save(path)

    def load(self, path: str) -> SplitNetwork:
        with self._crews(self.fed) as (bottoms, top):
            bottoms.load(path)
            top.load(path)
            about = top.about()
            self.task, self.classes = about["task"], about["classes"]
        return self

    def _run(self, rows: np.ndarray, bottoms: Crew, top: Any) -> None:
        """Let the top collect its outputs for these row numbers, in chunks."""
        at = 0
        for size in batch_sizes(len(rows), PREDICT_ROWS):
            chunk = rows[at : at + size]
            top.predict_chunk(bottoms.embed(chunk), chunk)
            at += size

    def _crews(self, fed: Federation) -> _Crews:
        return _Crews(fed, self)


class _Crews:
    """Bottom workers at the passive parties and the top worker at the label party, then stopped."""

    def __init__(self, fed: Federation, network: SplitNetwork) -> None:
        self.fed = fed
        self.network = network

    def __enter__(self) -> tuple[Crew, Any]:
        network = self.network
        self._bottoms = self.fed.workers(BottomWorker, parties=network.passive, model=network.model)
        self._top: Crew | None = None
        if network.label_party is None:
            return self._bottoms, network.server
        self._top = self.fed.workers(TopWorker, parties=[network.label_party], model=network.model)
        return self._bottoms, self._top[network.label_party]

    def __exit__(self, *exc: object) -> None:
        self._bottoms.stop()
        if self._top is not None:
            self._top.stop()
