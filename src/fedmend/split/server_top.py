"""The top model at the coordinator, for labels that no single party holds.

Same calls as the label party's `TopWorker`, so that the training loop does not know the
difference; but the targets are soft labels that the coordinator was given (the mean of several
parties' votes, say), and no feature party sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedmend.data.labels import LabelEncoder
from fedmend.data.schema import infer_column
from fedmend.errors import DataError
from fedmend.federation import COORDINATOR
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.randomness import begin
from fedmend.federation.rows import judges
from fedmend.learn.nets import Top, TopSpec, initialise
from fedmend.split.halves import Settings, resolve_device
from fedmend.split.parts import FILE, Part, TopPart, read_file, write_file
from fedmend.split.server_half import ServerTopHalf
from fedmend.split.top_side import TopSide

CANNOT_SEAL = (
    "seal=True, but the top is at the coordinator: it must read the embeddings. "
    "Mend: leave seal out, or take a method whose labels are at one party, such as VFL or RISA"
)


class ServerTop:
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
        self.part = Part()
        self.half: ServerTopHalf | None = None
        if targets is not None:
            self.set_targets(targets, weights)

    def set_targets(self, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        """New soft labels for the same rows, from the next epoch on."""
        if targets.ndim != 2 or targets.shape[1] != len(self.classes):
            raise DataError(
                f"soft labels of shape {targets.shape} for {len(self.classes)} classes",
                mend="one row per training row and one column per class",
            )
        if self.half is not None and self.targets is not None:
            self._check_count(targets, len(self.targets))
            self.half.set_targets(targets, weights)
        self.targets, self.weights = targets, weights

    def create(
        self, net: dict[str, Any], settings: dict[str, Any], names: list[str], widths: list[int]
    ) -> dict[str, Any]:
        series = pd.Series(self.classes, name="label")
        labels = LabelEncoder("multiclass").fit(series, infer_column("label", series, "nominal"))
        labels.classes_ = list(self.classes)  # columns of the soft labels keep their order
        spec = TopSpec(tuple(widths), tuple(net["top"]), len(self.classes), float(net["dropout"]))
        mixed = int(np.random.SeedSequence([self.seed, net["seed"], 7]).generate_state(1)[0])
        generator = begin(torch.Generator(), self.own_seed(mixed, "top"))
        module: Any = initialise(Top(spec), generator)
        self.part = Part(top=TopPart(list(names), labels, module))
        return self.about()

    def about(self) -> dict[str, Any]:
        return {
            "task": self._top.labels.task,
            "classes": list(self._top.labels.classes_),
            "names": self._top.names,
            "sides": self._top.sides is not None,
        }

    def attach(self, segments: list[Any], settings: dict[str, Any], train: bool) -> int:
        rows = sum(int(count) for _, count in segments)
        how = Settings.from_dict(settings)
        half = ServerTopHalf(self._top.module, how, self.device, names=self._top.names)
        if train:
            targets = self.targets
            self._check_count(() if targets is None else targets, rows)
            assert targets is not None
            half.set_targets(targets, self.weights)
        self.half = half
        self.side = TopSide(half, self._top)
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

    def set_order(self, rows: np.ndarray) -> int:
        return self._attached.set_order(rows)

    def start_epoch(self, epoch: int) -> None:
        self._attached.start_epoch(epoch, self.own_seed(epoch, "dropout"))

    def step(self, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._attached.step(embeddings)

    def loss(self) -> float:
        return self._attached.take_loss()

    def predict_chunk(
        self,
        rows: np.ndarray,
        embeddings: Mapping[str, Tensor],
        known: Sequence[str] | None = None,
    ) -> None:
        self.side.predict_chunk(embeddings, torch.from_numpy(rows).to(self.device), known)

    def give_top(self) -> dict[str, Any]:
        return self._top.to_wire()

    def see(self, rows: np.ndarray, embeddings: Mapping[str, Tensor]) -> None:
        self.side.see(embeddings, torch.from_numpy(rows).to(self.device))

    def learn_sides(self, fixed: Mapping[str, Tensor]) -> None:
        self.side.learn_sides(fixed)

    def metrics(self, rows: np.ndarray | None = None) -> dict[str, float]:
        """Against the likeliest class of the soft labels: agreement, not truth."""
        assert self.targets is not None
        hard = np.where(self.targets.sum(1) > 0, self.targets.argmax(1), -1)
        return self.side.metrics(hard if rows is None else hard[rows])

    def predictions(self, table_order: bool = False) -> np.ndarray:
        return self.side.take_outputs()

    def keep_best(self) -> None:
        self._attached.keep_best()

    def restore_best(self) -> None:
        self._attached.restore_best()

    def save(self, path: str) -> None:
        write_file(Path(path) / COORDINATOR / FILE, self.part.to_wire())

    def load(self, path: str) -> None:
        self.part = Part.from_wire(read_file(Path(path) / COORDINATOR / FILE))
        self.classes = list(self._top.labels.classes_)

    def save_checkpoint(self, path: str, epoch: int) -> None:
        folder = Path(path) / COORDINATOR
        write_file(folder / f"epoch-{epoch}.fmw", self._attached.checkpoint())
        (folder / f"epoch-{epoch - 2}.fmw").unlink(missing_ok=True)

    def load_checkpoint(self, path: str, epoch: int) -> None:
        self._attached.restore(read_file(Path(path) / COORDINATOR / f"epoch-{epoch}.fmw"))

    @staticmethod
    def _check_count(targets: Sized, rows: int) -> None:
        if len(targets) != rows:
            raise DataError(
                f"{len(targets)} soft labels for {rows} training rows",
                mend="give one for each row",
            )

    @property
    def _attached(self) -> ServerTopHalf:
        assert self.half is not None
        return self.half

    @property
    def _top(self) -> TopPart:
        if self.part.top is None:
            raise DataError(
                "the coordinator holds no top model", mend="fit or load the model first"
            )
        return self.part.top
