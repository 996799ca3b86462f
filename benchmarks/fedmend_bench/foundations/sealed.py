"""What end-to-end encryption costs (`fedmend bench split -o part=sealed`).

The same table, network and order of rows; every value goes through the wire (strict), as between
machines but without their network, so that the ratio is an upper one: a network takes time too.
Rounds with and without it alternate. The quickest epochs are compared, in seconds of the
processor: encryption costs nothing but computing, and other programs only ever make it slower.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.risa import RISA
from fedmend.methods.vertical.vfl import VFL
from fedmend_bench.foundations.split import Size, make_federation, make_table
from fedmend_bench.harness import Bar

__all__ = ["sealed_bars", "sealed_rows"]

LIMIT = 1.5
"""What an encrypted epoch may take, as a multiple of the open one."""

SIZES = ((Size(4_000, 16, 64, LIMIT), (2, 4)), (Size(20_000, 54, 1024, LIMIT), (2,)))
QUICK = ((Size(1_000, 16, 64, LIMIT), (2,)),)


def sealed_rows(quick: bool, rounds: int, epochs: int) -> list[dict[str, Any]]:
    """A line for each method, size of batches and number of parties."""
    found = []
    for size, counts in QUICK if quick else SIZES:
        for parties, method in itertools.product(counts, (VFL, RISA)):
            made = method(batch_size=size.batch, epochs=epochs + 1)
            if "patience" in made.get_params():
                made.set_params(patience=None)  # all epochs are measured
            found.append(_compare(made, size, parties, rounds))
    return found


def sealed_bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Encryption costs little, and changes no bit."""
    bars = []
    for row in rows:
        name = (
            f"{row['method']}, {row['rows']:,} x {row['columns']}, batch {row['batch']}, "
            f"{row['parties']} parties"
        )
        bars.append(Bar.at_most(f"sealed epoch, {name}", row["sealed ratio"], LIMIT))
        bars.append(Bar.at_most(f"sealed predictions differ, {name}", row["differ by"], 0.0))
    return bars


def _compare(method: SplitEstimator, size: Size, parties: int, rounds: int) -> dict[str, Any]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    sent: dict[bool, int] = {}
    told: dict[bool, np.ndarray] = {}
    for _ in range(rounds):
        for seal in (False, True):
            took, sent[seal], told[seal] = _train(method, seal, size, parties)
            seconds[seal] += took
    open_, sealed = (min(seconds[seal]) for seal in (False, True))
    return {
        "method": type(method).__name__,
        "rows": size.rows,
        "columns": size.columns,
        "batch": size.batch,
        "parties": parties,
        "open CPU s/epoch": open_,
        "sealed CPU s/epoch": sealed,
        "sealed ratio": sealed / open_,
        "bytes ratio": sent[True] / sent[False],
        "differ by": float(np.abs(told[True] - told[False]).max()),
    }


def _train(
    method: SplitEstimator, seal: bool, size: Size, parties: int
) -> tuple[list[float], int, np.ndarray]:
    """CPU seconds of every epoch but the first, bytes of embeddings and gradients, predictions."""
    fed = make_federation(make_table(size), parties, strict=True)
    marks: list[float] = []

    def mark(stage: str, *_: Any) -> None:
        if stage == "train":
            marks.append(time.process_time())

    model = type(method)(**method.get_params() | {"seal": seal}).fit(fed, progress=mark)
    told = model.predict_proba(fed)
    kinds = ("embedding", "gradient")
    sent = sum(entry.total_bytes for entry in fed.ledger if entry.kind in kinds)
    return [after - before for before, after in itertools.pairwise(marks)], sent, told
