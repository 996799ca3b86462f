"""The top model at the coordinator, for labels that no single party holds.

Same calls as the label party's `TopWorker`, so that the training loop does not know the
difference; but the targets are soft labels that the coordinator was given (the mean of several
parties' votes, say), and no feature party sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedmend.data.labels import LabelEncoder
from fedmend.data.schema import infer_column
from fedmend.errors import DataError
from fedmend.federation import COORDINATOR
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.randomness import begin
from fedmend.federation.rows import judges
from fedmend.learn.nets import Top, TopSpec, initialise
from fedmend.split.config import SplitConfig, resolve_device
from fedmend.split.halves import ServerTopHalf
from fedmend.split.parts import FILE, Part, TopPart, read_file, write_file
from fedmend.split.workers import TopModel

CANNOT_SEAL = (
    "seal=True, but the top is at the coordinator: it must read the embeddings. "
    "Mend: leave seal out, or take a method whose labels are at one party, such as VFL or RISA"
)


class ServerTop(TopModel):
    """Soft labels [N, C] over `classes`, in the order of the training rows; weights [N] or None.

    own_seed: makes of a seed that all can know one of the coordinator's own
    (`Federation.own_seed`): feature parties are sent gradients, and with a top that they can
    compute these would tell them the labels.
    """

    def __init__(
        self,
        classes: Sequence[Any],
        *,
        targets: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        device: str = "cpu",
        seed: int = 0,
        own_seed: Callable[[int, str], int] = lambda seed, purpose: seed,
    ) -> None:
        self.classes = list(classes)
        self.targets: np.ndarray | None = None
        self.weights: np.ndarray | None = None
        self.device = resolve_device(device)
        self.seed = seed
        self.own_seed = own_seed
        self.kept = Part()
        self._attached = False
        if targets is not None:
            self.set_targets(targets, weights)

    def set_targets(self, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        """New soft labels for the same rows, from the next epoch on."""
        if targets.ndim != 2 or targets.shape[1] != len(self.classes):
            raise DataError(
                f"soft labels of shape {targets.shape} for {len(self.classes)} classes",
                mend="one row per training row and one column per class",
            )
        if self._attached and self.targets is not None:
            _check_count(targets, len(self.targets))
            self.half.set_targets(targets, weights)
        self.targets, self.weights = targets, weights

    def create(self, config: dict[str, Any], names: list[str], widths: list[int]) -> dict[str, Any]:
        how, series = SplitConfig.from_wire(config), pd.Series(self.classes, name="label")
        labels = LabelEncoder("multiclass").fit(series, infer_column("label", series, "nominal"))
        labels.classes_ = list(self.classes)  # columns of the soft labels keep their order
        spec = TopSpec(tuple(widths), how.top, len(self.classes), how.dropout)
        mixed = int(np.random.SeedSequence([self.seed, how.seed, 7]).generate_state(1)[0])
        generator = begin(torch.Generator(), self.own_seed(mixed, "top"))
        self.kept = Part(top=TopPart(list(names), labels, initialise(Top(spec), generator)))
        return self.about()

    def attach(self, segments: list[Any], config: dict[str, Any], train: bool) -> int:
        rows, part = sum(int(count) for _, count in segments), self._part_top()
        settings = SplitConfig.from_wire(config).settings
        half = ServerTopHalf(part.module, settings, self.device, names=part.names)
        if train:
            _check_count(() if self.targets is None else self.targets, rows)
            assert self.targets is not None
            half.set_targets(self.targets, self.weights)
        self._use(half)
        self._attached = True
        return rows

    def labelled(self) -> np.ndarray | None:
        """Rows with any vote at all."""
        assert self.targets is not None
        known = self.targets.sum(1) > 0
        return None if known.all() else np.flatnonzero(known)

    def hold_out(self, rows: np.ndarray, share: float) -> np.ndarray:
        """Some of these rows, to judge a training by."""
        drawn = np.random.default_rng(self.own_seed(0, "rows held out")).random(len(rows))
        return rows[judges(drawn, share, MIN_ROWS)]

    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Against the likeliest class of the soft labels: agreement, not truth."""
        assert self.targets is not None
        hard = np.where(self.targets.sum(1) > 0, self.targets.argmax(1), -1)
        return self._scores(hard if rows is None else hard[rows])

    def predictions(self, table_order: bool = False) -> np.ndarray:
        return self._take_outputs()

    def save(self, path: str) -> None:
        write_file(self._folder(path) / FILE, self.kept.to_wire())

    def load(self, path: str) -> None:
        self.kept = Part.from_wire(read_file(self._folder(path) / FILE))
        self.classes = list(self._part_top().labels.classes_)

    def _folder(self, path: str) -> Path:
        return Path(path) / COORDINATOR

    def _dropout_seed(self, seed: int) -> int:
        return self.own_seed(seed, "dropout")

    def _part_top(self) -> TopPart:
        if self.kept.top is None:
            raise DataError(
                "the coordinator holds no top model", mend="fit or load the model first"
            )
        return self.kept.top


def _check_count(targets: Sized, rows: int) -> None:
    if len(targets) != rows:
        raise DataError(
            f"{len(targets)} soft labels for {rows} training rows", mend="give one for each row"
        )
