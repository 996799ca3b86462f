"""The stage of a run that completes rows: fits the completion once, keeps it, reports it.

The completed tables are at the parties. While a run is unfinished each party keeps its own in its
folder of the run, so that a resumed run does not complete again; a finished run has them only if
they were to be exported.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._json import write_json
from fedmend.config_checks import completer_class
from fedmend.federation import Federation
from fedmend.kept import keep_completion, restore_completion
from fedmend.report.mending import Mending

if TYPE_CHECKING:
    from fedmend.flow import Listener

__all__ = ["EXPORT_FOLDER", "Completing", "complete"]

EXPORT_FOLDER = "completed"
_KEPT = "completion.json"


@dataclass(frozen=True)
class Completing:
    """How rows are completed, and what is trained on the result.

    also_unmended: train the methods without the completed rows too, to compare. export: the
    format in which every completing party writes its table into its folder, or None.
    """

    name: str = "fedpsg-pum"
    params: dict[str, Any] = field(default_factory=dict)
    also_unmended: bool = True
    export: str | None = None


def complete(
    fed: Federation, how: Completing, seed: int, work: Path, listener: Listener
) -> tuple[Federation, Mending]:
    """The federation with the completed rows, and what was mended; from before if it is kept."""
    kept = work / "completion"
    if (kept / _KEPT).is_file():
        stored = json.loads((kept / _KEPT).read_text(encoding="utf-8"))
        mended = fed.on(stored["dataset"])
        restore_completion(mended, kept)
        return mended, Mending.from_dict(stored["mending"])
    listener.stage("Completing rows that only one party has")
    crossings, crossed = len(fed.ledger), fed.ledger.total_bytes()
    began = time.perf_counter()
    model = completer_class(how.name)(**how.params).set_params(seed=seed)
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
