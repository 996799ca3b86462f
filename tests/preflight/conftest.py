import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy


def annotators_of(votes: dict[str, list], **policies: Policy) -> Federation:
    """Parties that label the same people, the rows of each in an order of its own."""
    count = len(next(iter(votes.values())))
    parties, orders = [], {}
    for number, (name, said) in enumerate(votes.items()):
        order = np.random.default_rng(number).permutation(count)
        frame = pd.DataFrame({"y": pd.Series(said, dtype=object).iloc[order].to_numpy()})
        table = Table(order, frame, label="y", kinds={"y": "nominal"})
        parties.append(Party(name, table, policy=policies.get(name)))
        orders[name] = order
    fed = Federation(*parties, strict=True)
    for name, order in orders.items():
        aligned = np.argsort(order)
        fed.engine.site(name).alignments["train"] = Alignment(aligned, np.zeros(0, np.int64))
    fed.note_alignment(AlignmentCounts(count, dict.fromkeys(votes, 0)))
    return fed


@pytest.fixture(scope="session")
def annotators():
    return annotators_of
