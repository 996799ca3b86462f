"""The coordinator's half of split training: validation, early stopping, saving, predicting.

network = SplitNetwork(fed, parties=["bank", "telco"], label_party="bank", config=…)
network.fit([["aligned", 800]])
network.evaluate(fed.on("test"), [["aligned", 200]])
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.learn.metrics import better
from fedmend.split.config import SplitConfig
from fedmend.split.features import Segments, check_names
from fedmend.split.server_top import CANNOT_SEAL, ServerTop
from fedmend.split.session import STATE, Crews, Session, epoch_seed
from fedmend.split.workers import BottomWorker, TopWorker

__all__ = ["Progress", "SplitConfig", "SplitNetwork", "epoch_seed"]

Progress = Callable[[str, int, int, dict[str, float]], None]


class SplitNetwork:
    """A split model over the feature parties `parties`, its top at `label_party` or `server`.

    history: one dict per epoch (epoch, loss, val_<metric>…); best_epoch: the one whose weights
    are kept.

    Methods with a protocol of their own put in their workers and their session.

    stand_ins: what is put in the place of a party that does not know a row: "guessed" from those
    that do (`learn.sides`), "fixed" where the top was trained with the party's fill row, "asked"
    of the party itself as long as it is there, or its "own" business where the top can do without.
    has_sides: whether the top has learnt them. folder: where parties without a home keep what
    belongs to this training.
    privacy: under label_dp ε, how often labels are told as they are, and the ε spent so far.
    """

    stand_ins: ClassVar[str] = "guessed"

    bottom_worker: ClassVar[type[BottomWorker]] = BottomWorker
    top_worker: ClassVar[type[TopWorker]] = TopWorker
    session_type: ClassVar[type[Session]] = Session

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
        if server is not None and config.seal:
            raise ConfigError(CANNOT_SEAL)
        check_names(parties)
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
        self.has_sides = False
        self.progress: Progress | None = None
        self.resuming = False
        self.privacy: dict[str, Any] | None = None
        self.folder: Path | None = None
        self._best = float("nan")

    @property
    def passive(self) -> list[str]:
        return [name for name in self.parties if name != self.label_party]

    def guesses(self, fed: Federation) -> bool:
        """Whether the top stands in for parties that do not know a row, without asking them."""
        if self.stand_ins == "asked" and all(name in fed.names for name in self.parties):
            return False
        return self.has_sides and self.stand_ins != "own"

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
        folder = Path(checkpoint) if checkpoint is not None else None
        self.progress, self.folder = progress, folder
        self.resuming = resume and folder is not None and (folder / STATE).is_file()
        with self.session(segments) as session:
            epoch = 0
            if folder is not None and resume:
                epoch = session.resume(folder)
            while epoch < self.config.epochs and not self._out_of_patience(epoch):
                epoch += 1
                session.epoch(epoch)
                self._judge(epoch, session)
                if progress is not None:
                    progress("train", epoch, self.config.epochs, self.history[-1])
                if folder is not None:
                    session.checkpoint(folder, epoch)
            if len(session.validation):
                session.bottoms.restore_best()
                session.top.restore_best()
            session.learn_sides()
        return self

    def session(self, segments: Segments, rows: np.ndarray | None = None) -> Session:
        """A training under way, epoch by epoch, for methods whose targets change in between.

        rows: the row numbers to train on; by default all that have a label. With

            with network.session(segments) as session:
                session.epoch(1)
                server.set_targets(correct(session.outputs()))
                session.epoch(2)
        """
        return self.session_type(self, self.fed, segments, train=True, rows=rows)

    def _judge(self, epoch: int, session: Session) -> None:
        """Validate, and remember the weights if they are the best so far."""
        if not len(session.validation):
            self.best_epoch = epoch
            return
        session.run(session.validation)
        scores = session.top.metrics(session.validation)
        self.history[-1] |= {f"val_{name}": value for name, value in scores.items()}
        metric = self.config.metric or ("rmse" if self.task == "regression" else "log_loss")
        if metric not in scores:
            raise ConfigError(
                f"metric={metric!r} is not for {self.task}. Mend: one of {', '.join(scores)}"
            )
        if self.best_epoch == 0 or better(metric, scores[metric], self._best):
            self._best = scores[metric]
            self.best_epoch = epoch
            session.bottoms.keep_best()
            session.top.keep_best()

    def _out_of_patience(self, epoch: int) -> bool:
        patience = self.config.patience
        return patience is not None and epoch - self.best_epoch >= patience

    # ------------------------------------------------------------------ state for checkpoints

    def progress_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the loop itself."""
        return {"best_epoch": self.best_epoch, "best": self._best, "history": self.history}

    def take_progress_state(self, saved: Mapping[str, Any]) -> None:
        self.history = saved["history"]
        self.best_epoch, self._best = saved["best_epoch"], saved["best"]

    # ------------------------------------------------------------------ using it

    def evaluate(self, fed: Federation, segments: Segments) -> dict[str, float]:
        """Metrics over these rows, computed at the label party."""
        with self.session_type(self, fed, segments, train=False) as session:
            session.run(session.all_rows)
            return dict(session.top.metrics())

    def uncertainty_report(self, fed: Federation, segments: Segments) -> dict[str, Any]:
        """What the entropy of the predictions is worth, computed at the label party."""
        with self.session_type(self, fed, segments, train=False) as session:
            session.run(session.all_rows)
            return dict(session.top.uncertainty_report())

    def predict(
        self,
        fed: Federation,
        segments: Segments,
        *,
        table_order: bool = False,
    ) -> np.ndarray:
        """Probabilities [n, C], or values [n] for regression."""
        with self.session_type(self, fed, segments, train=False) as session:
            session.run(session.all_rows)
            return session.top.predictions(table_order)

    def save(self, path: str) -> None:
        """Every party saves its own part under this name."""
        with Crews(self, self.fed) as (bottoms, top):
            bottoms.save(path)
            top.save(path)

    def hand_out(self, path: str, party: str, manifest: dict[str, Any]) -> None:
        """Let a party keep, beside its part under this name, what it needs to predict alone."""
        if party == self.label_party:
            with Crews(self, self.fed, []) as (_, top):
                top.save_manifest(path, manifest)
            return
        with Crews(self, self.fed, [party]) as (bottoms, top):
            at_party = bottoms[party]
            at_party.take_top(top.give_top())
            at_party.save(path)
            at_party.save_manifest(path, manifest)

    def load(self, path: str) -> SplitNetwork:
        with Crews(self, self.fed) as (bottoms, top):
            bottoms.load(path)
            top.load(path)
            about = top.about()
            self.task, self.classes = about["task"], about["classes"]
            self.has_sides = bool(about["sides"])
        return self
