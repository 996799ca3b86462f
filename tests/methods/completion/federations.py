"""Two parties for models of columns: A has all rows, B the first of them."""

from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.completion.targets import TargetModels, TargetStore, store_of


def numbered(a, b, aligned, *, order=None, seed=0, policies=None):
    """order: in which A has its rows."""
    order = np.arange(len(a)) if order is None else order
    if isinstance(a, pd.DataFrame):
        a = Table(order, a.iloc[order].reset_index(drop=True))
    tables: dict[str, Any] = {"bank": a, "telco": Table(np.arange(aligned), b.iloc[:aligned])}
    parties = [Party(n, each, policy=(policies or {}).get(n)) for n, each in tables.items()]
    fed = Federation(*parties, strict=True, seed=seed)
    position, rows = np.argsort(order), np.arange(aligned)
    fed.engine.site("bank").alignments["train"] = Alignment(position[:aligned], position[aligned:])
    fed.engine.site("telco").alignments["train"] = Alignment(rows, rows[:0])
    fed.note_alignment(AlignmentCounts(aligned, {"bank": len(order) - aligned, "telco": 0}))
    return fed


def stored(fed: Federation, models: TargetModels) -> TargetStore:
    """What B keeps."""
    return store_of(fed.engine.site("telco"), models.model)
