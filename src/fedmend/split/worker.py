"""What the workers of split training share: a part at the site, rows, checkpoints, best weights."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedmend.data.encode import Encoder
from fedmend.data.labels import LabelEncoder
from fedmend.errors import DataError
from fedmend.federation import Site, exposed
from fedmend.learn.nets import Bottom, BottomSpec, initialise
from fedmend.secure.exchange import ExchangeWorker
from fedmend.split.belief import Belief, label_belief
from fedmend.split.features import ALL, Features, Segments, own_rows
from fedmend.split.halves import Settings, resolve_device
from fedmend.split.label_dp import ToldLabels, ask_for_noise
from fedmend.split.parts import (
    MANIFEST,
    BottomPart,
    load_part,
    read_file,
    save_part,
    write_file,
    write_json,
)

__all__ = ["SplitWorker"]

LOOKED_AT = 2000
"""Images from which a bottom learns what images look like."""


class SplitWorker(ExchangeWorker):
    """What bottoms and tops have in common: their part, checkpoints, best weights."""

    parallel_inside = True

    def __init__(self, site: Site, scope: str = "train", *, model: str) -> None:
        super().__init__(site, scope)
        self.model = model
        self.device = resolve_device(site.device)
        self.half: Any = None
        self._told: tuple[Any, ToldLabels | None] = (None, None)

    @exposed(kind="statistic")
    def tell_labels(self, epsilon: float, task: str, folder: str | None) -> dict[str, float]:
        """Let this party's labels be known through randomised response only, from now on.

        They are drawn once and kept with the party. Told is the account.
        """
        by = self.worker_name()
        return ask_for_noise(self.site, self.scope, epsilon, by=by, task=task, folder=folder)

    @property
    def told(self) -> ToldLabels | None:
        """The party's labels, where they are known through randomised response."""
        if self._told[0] is not self.table:
            self._told = (self.table, ToldLabels.of(self.site, self.scope))
        return self._told[1]

    @exposed(kind="control")
    def save(self, path: str) -> None:
        save_part(self.site, self.model, path)

    @exposed(kind="control")
    def load(self, path: str) -> None:
        load_part(self.site, self.model, path)

    @exposed(kind="control")
    def save_manifest(self, path: str, manifest: dict[str, Any]) -> None:
        """What this party needs to know of the model to load it without anybody else."""
        write_json(self.site.folder(path) / MANIFEST, manifest)

    @exposed(kind="control")
    def keep_best(self) -> None:
        self.half.keep_best()

    @exposed(kind="control")
    def restore_best(self) -> None:
        self.half.restore_best()

    @exposed(kind="control")
    def save_checkpoint(self, path: str, epoch: int) -> None:
        write_file(self._checkpoint(path, epoch), self.half.checkpoint())
        self._checkpoint(path, epoch - 2).unlink(missing_ok=True)

    @exposed(kind="control")
    def load_checkpoint(self, path: str, epoch: int) -> None:
        self.half.restore(read_file(self._checkpoint(path, epoch), self.site.name))

    def _checkpoint(self, path: str, epoch: int) -> Any:
        return self.site.folder(path) / f"epoch-{epoch}.fmw"

    def _new_bottom(self, net: Mapping[str, Any], settings: Settings) -> BottomPart:
        """An encoder fitted on this party's own rows, and fresh weights."""
        dtype = "float64" if settings.precision == "float64" else "float32"
        encoder = Encoder(missing_indicator=bool(net["missing_indicator"]), dtype=dtype)
        encoder.fit(self.table)
        spec = BottomSpec(
            numeric=len(encoder.numeric_names),
            cardinalities=tuple(encoder.cardinalities),
            block_shapes=tuple(encoder.block_shapes.values()),
            hidden=tuple(net["bottom"]),
            out=int(net["embedding"]),
            dropout=float(net["dropout"]),
            conv=str(net["conv"]),
        )
        weights = self.site.torch_generator(f"bottom {net['seed']}", "cpu")
        bottom = Bottom(spec)
        initialise(bottom, weights)
        if bottom.learns_from_images:
            some = np.linspace(0, len(self.table) - 1, min(LOOKED_AT, len(self.table)))
            seen = encoder.transform(self.table.take(some.astype(np.int64)), party=self.site.name)
            bottom.fit_images([torch.from_numpy(block) for block in seen.blocks.values()])
        return BottomPart(encoder, bottom)

    def _rows(self, segments: Segments) -> np.ndarray:
        alignment = self.site.alignments.get(self.scope)
        if alignment is None and any(name != ALL for name, _ in segments):
            alignment = self.alignment  # raises, with the mend
        return own_rows(self.site.name, segments, alignment, len(self.table))

    def _features(self, part: BottomPart, rows: np.ndarray, settings: Settings) -> Features:
        present = np.unique(rows[rows >= 0])
        table = self.table if len(present) == len(self.table) else self.table.take(present)
        encoded = part.encoder.transform(table, party=self.site.name)
        return Features(
            encoded,
            np.where(rows >= 0, np.searchsorted(present, rows), -1),
            self.device,
            settings.dtype,
        )

    def _fitted_labels(self, task: str, dtype: str = "float32") -> LabelEncoder:
        """Which classes there are is known to all, also where the labels are told at random."""
        own = self.table if self.told is None else self.site.tables[self.scope.partition("@")[0]]
        column = own.schema[self._label_column(None)]
        return LabelEncoder(task, dtype=dtype).fit(own.y, column, party=self.site.name)

    def _belief(self) -> Belief | None:
        """What is believed of this party's labels, where they are corrected or told at random."""
        if self.told is not None:
            return self.told.belief
        return label_belief(self.site, self.scope.partition("@")[0])

    def _label_column(self, known: LabelEncoder | None) -> str:
        """The column that a model has learnt, where this table has it, or the table's label."""
        if (
            known is not None
            and known.column_ is not None
            and known.column_.name in self.table.names
        ):
            return known.column_.name
        if self.table.label is None:
            raise DataError(
                f"the table {self.scope!r} has no label column",
                party=self.site.name,
                mend="name it where the table is read: fm.read(path, id=…, label=…)",
            )
        return self.table.label

    def _let_out(self, used: np.ndarray, outputs: np.ndarray, *, foreign: bool) -> None:
        """Count predictions that are about to leave, by whose rows they are, or refuse them.

        used: positions in this party's table, -1 for rows of others.
        """
        ids = [
            self.table.ids[at] if at >= 0 else (self.scope, number)
            for number, at in enumerate(used)
        ]
        self.site.predicted.admit(self.site.name, self.site.policy, ids, outputs, foreign=foreign)

    def _dropout_seed(self, seed: int) -> int:
        return self.site.own_seed(seed ^ zlib.crc32(self.site.name.encode()), "dropout")
