"""The promises of ``fedmend bench generators``, taken from its table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmend.generate import generators as generator_names
from fedmend_bench.generators.peers import PEERS
from fedmend_bench.generators.rows import REAL, Row
from fedmend_bench.harness import Bar

__all__ = ["bars", "fidelity"]

_GAIN_FAMILY = ("gain", "vgain", "vfgain")


def bars(table: Sequence[Row]) -> list[Bar]:
    """What can be said of the rows that are there."""
    found: list[Bar] = []
    for name in dict.fromkeys(row["data"] for row in table):
        by = {row["method"]: row for row in table if row["data"] == name and _measured(row)}
        found += [*_ctgan_bars(name, by), *_peer_bars(name, by), *_imputation_bars(name, by)]
        if name == "adult" and "tabddpm" in by and REAL in by:
            limit = by[REAL]["AUC"] - 0.02
            found.append(Bar.at_least("adult: AUC of tabddpm", by["tabddpm"]["AUC"], limit))
    return found


def _measured(row: Row) -> bool:
    return "shapes" in row or "20% RMSE" in row


def fidelity(row: Row) -> float:
    """The mean of column shapes and pair trends."""
    return float(row["shapes"] + row["pairs"]) / 2


def _ctgan_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    if "ctgan" not in by or "ctgan CTGAN" not in by:
        return []
    ours, theirs = by["ctgan"], by["ctgan CTGAN"]
    found = [Bar.at_least(f"{name}: fidelity of ctgan", fidelity(ours), fidelity(theirs) - 0.01)]
    if ours.get("on") == theirs.get("on"):  # seconds of two machines are no comparison
        # CPU seconds: what else the machine did at the time is no merit of either.
        clock = "fit CPU s" if str(ours.get("on")).startswith("cpu") else "fit s"
        title = f"{name}: {'CPU ' * clock.startswith('fit C')}seconds to fit ctgan"
        found.append(Bar.at_most(title, ours[clock], theirs[clock]))
    return found


def _peer_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    ours = [row for method, row in by.items() if method in generator_names()]
    theirs = [row for method, row in by.items() if method in PEERS]
    if not ours or not theirs:
        return []
    found = []
    for what, of in (("fidelity", fidelity), ("AUC", _auc)):
        title = f"{name}: best {what}, against peers"
        found.append(Bar.at_least(title, max(map(of, ours)), max(map(of, theirs))))
    return found


def _auc(row: Row) -> float:
    return float(np.nan_to_num(row.get("AUC") or 0.0))


def _imputation_bars(name: str, by: dict[str, Row]) -> list[Bar]:
    """Every member of the GAIN family against the better of mean and KNN, in both measures."""
    family = [by[method] for method in _GAIN_FAMILY if method in by]
    plain = [by[method] for method in ("mean", "KNN") if method in by]
    found: list[Bar] = []
    if not family or not plain:
        return found
    for error in [key for key in family[0] if key.endswith(" RMSE")]:
        pattern = error.removesuffix(" RMSE")
        hits = f"{pattern} acc"
        if any(error not in row for row in [*family, *plain]):
            continue
        worst = (max(row[error] for row in family), min(row[hits] for row in family))
        limit = (min(row[error] for row in plain), max(row[hits] for row in plain))
        found.append(
            Bar(
                f"{name}: RMSE / accuracy of the GAIN family's worst, {pattern} missing",
                f"{worst[0]:.3f} / {worst[1]:.3f}",
                f"< {limit[0]:.3f} / > {limit[1]:.3f}",
                bool(worst[0] < limit[0] and worst[1] > limit[1]),
            )
        )
    return found
