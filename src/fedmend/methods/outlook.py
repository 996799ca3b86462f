"""What a model says of rows, told in full: prediction, probabilities, how undecided, and by whom.

A party's share of a decision is what the likeliest class loses when the party is taken away and
the others have to do without it. Methods with evidence say how undecided they are themselves; for
all others it is the entropy of the probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmend.data.labels import as_written
from fedmend.errors import ConfigError
from fedmend.learn.metrics import normalised_entropy
from fedmend.split.features import ALL, among, is_known

if TYPE_CHECKING:
    from fedmend.federation import Federation
    from fedmend.methods.network import NetworkEstimator

__all__ = ["frame_of", "outlook", "shares"]

LEAST = 1e-6


def outlook(model: NetworkEstimator, fed: Federation, rows: str) -> pd.DataFrame:
    """One line for each row: prediction, p(…), uncertainty, and share(…) of each party.

    rows: a segment's name, "aligned", "aligned@bank+telco" or a party's own; "all" where the
    label party is alone.
    """
    network, segments, _ = model._ready(fed, rows)
    if len(segments) > 1:
        raise ConfigError(
            f"rows={rows!r} are known to different parties. Mend: ask for 'aligned' and for "
            f"{network.label_party!r} one after the other"
        )
    if rows == ALL:
        rows = str(network.label_party)
    known = [name for name in network.parties if is_known(rows, name)]
    found: dict[str, np.ndarray]
    if model.evidential:
        outputs, undecided = network.opinions(fed, segments)  # type: ignore[attr-defined]
        carried = model.contributions(fed, rows=str(segments[0][0]))  # type: ignore[attr-defined]
        found = {name: carried[name].to_numpy() for name in known}
    else:
        outputs = network.predict(fed, segments)
        undecided = None if model.classes_ is None else normalised_entropy(outputs)
        found = shares(model, fed, segments, known, outputs)
    classes = None if model.classes_ is None else model.classes_.tolist()
    return frame_of(classes, outputs, undecided, found)


def frame_of(
    classes: Sequence[Any] | None,
    outputs: np.ndarray,
    uncertainty: np.ndarray | None,
    found: dict[str, np.ndarray],
) -> pd.DataFrame:
    """Outputs and what is known of them, as a table."""
    columns: dict[str, Any] = {}
    if classes:
        shown = [as_written(value) for value in classes]
        columns["prediction"] = np.asarray(shown)[outputs.argmax(1)]
        columns |= {f"p({name})": outputs[:, at] for at, name in enumerate(shown)}
        columns["uncertainty"] = uncertainty
    else:
        columns["prediction"] = outputs
    columns |= {f"share({name})": share for name, share in found.items()}
    return pd.DataFrame(columns)


def shares(
    model: NetworkEstimator,
    fed: Federation,
    segments: list[list[object]],
    known: list[str],
    outputs: np.ndarray,
) -> dict[str, np.ndarray]:
    """Which share of each decision a party carries, where several know the rows."""
    if len(known) < 2:
        return {name: np.ones(len(outputs), np.float32) for name in known}
    ((_, count),) = segments
    lost = np.zeros((len(outputs), len(known)), np.float32)
    for number, name in enumerate(known):
        others = [other for other in known if other != name]
        without = model.network_.predict(fed, [[among(others), count]])
        if outputs.ndim == 1:
            change = np.abs(outputs - without)
        else:
            best = outputs.argmax(1)[:, None]
            change = np.take_along_axis(outputs - without, best, 1)[:, 0]
        lost[:, number] = change.clip(LEAST)
    carried = lost / lost.sum(1, keepdims=True)
    return {name: carried[:, number] for number, name in enumerate(known)}
