"""The stage of a run that completes rows: fits the completion once, keeps it, reports it.

The completed tables are at the parties. Each party keeps its own in its folder of the run, so that
a run that goes on does not complete again.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._json import write_json
from fedmend.federation import Federation
from fedmend.flow.kept import (
    keep_alignment,
    keep_completion,
    restore_alignment,
    restore_completion,
)
from fedmend.methods.registry import make
from fedmend.report.mending import Mending
from fedmend.secure.align import align

if TYPE_CHECKING:
    from fedmend.flow.config import Config
    from fedmend.flow.listening import Listener

__all__ = ["EXPORT_FOLDER", "FOLDER", "Completing", "complete", "completed_before"]

EXPORT_FOLDER = "completed"
FOLDER = "stages/complete"
PAIRS_FOLDER = "stages/pairs"
STAGE = "Completing rows that another party lacks"
_KEPT = "completion.json"


@dataclass(frozen=True)
class Completing:
    """How rows are completed, and what is trained on the result.

    also_unmended: train the methods without the completed rows too, to compare. export: the
    format in which every completing party writes its table into its folder, or None. pairs: with
    three parties and more, align every two first, so that a person whom two of them know is
    joined and not guessed twice. align: the settings of that alignment.
    """

    name: str = "fedpsg-pum"
    params: dict[str, Any] = field(default_factory=dict)
    also_unmended: bool = True
    export: str | None = None
    pairs: bool = True
    align: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Completing | None:
        """As a federation.toml has it."""
        given = config.complete
        if given is None:
            return None
        return cls(
            given.name,
            given.params,
            given.also_unmended,
            given.export_format if given.export else None,
            given.pairs,
            config.align.model_dump(exclude_none=True),
        )

    def on(self, fed: Federation) -> Completing:
        """With the rows of the party that labels, unless the file says whose.

        Methods learn nothing from completed rows that nobody has labelled.
        """
        if "source" in self.params or self.params.get("direction", "a-to-b") == "both":
            return self
        able = [
            name
            for name in fed.label_parties
            if fed.roster[name]["features"] and fed.alignment.unaligned[name]
        ]
        if len(able) != 1:
            return self
        return replace(self, params={**self.params, "source": able[0]})


def complete(
    fed: Federation, how: Completing, seed: int, work: Path, listener: Listener
) -> tuple[Federation, Mending]:
    """The federation with the completed rows, and what was mended; both are kept in the run."""
    kept = work / FOLDER
    how = how.on(fed)
    if how.pairs and len(fed.names) > 2:
        _align_pairs(fed, how, work / PAIRS_FOLDER, listener)
    listener.stage(STAGE)
    crossings, crossed = len(fed.ledger), fed.ledger.total_bytes()
    began = time.perf_counter()
    model = make(how.name, how.params, seed)
    model.fit(fed, progress=listener.progress)
    found = Mending.of(
        how.name,
        model,
        rows={party: facts["rows"] for party, facts in fed.roster.items()},
        seconds=time.perf_counter() - began,
        crossings=len(fed.ledger) - crossings,
        bytes=fed.ledger.total_bytes() - crossed,
        exported=model.export(work / EXPORT_FOLDER, how.export) if how.export else {},
    )
    keep_completion(model.federation, kept)
    write_json(kept / _KEPT, {"dataset": model.federation.dataset, "mending": found.to_dict()})
    return model.federation, found


def completed_before(fed: Federation, work: Path) -> tuple[Federation, Mending]:
    """What :func:`complete` has kept."""
    kept = work / FOLDER
    stored = json.loads((kept / _KEPT).read_text(encoding="utf-8"))
    mended = fed.on(stored["dataset"])
    restore_completion(mended, kept)
    return mended, Mending.from_dict(stored["mending"])


def _align_pairs(fed: Federation, how: Completing, kept: Path, listener: Listener) -> None:
    """Every two parties of which one completes the other's rows find those they share."""
    listener.stage("Finding the rows that two parties share")
    pairs = list(itertools.combinations(fed.names, 2))
    if how.params.get("direction", "a-to-b") != "both":
        counts = fed.alignment.unaligned
        source = how.params.get("source") or max(fed.names, key=lambda name: counts[name])
        pairs = [pair for pair in pairs if source in pair]
    for pair in pairs:
        view = fed.only(*pair)
        if not restore_alignment(view, kept):
            align(view, progress=listener.progress, **how.align)
            keep_alignment(view, kept)
