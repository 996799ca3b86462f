"""The worlds of the flow's benchmark are torn as told."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend_bench.flow.world import BANK, LABELLERS, TELCO, Shape, World, make_world


def said(world: World, party: str) -> tuple[np.ndarray, np.ndarray]:
    """A labeller's votes and where it gave one."""
    votes = world.train[party].y.to_numpy(dtype=object)
    return votes, np.array([vote is not None and vote == vote for vote in votes])


@pytest.mark.real
@pytest.mark.parametrize("noisy", LABELLERS)
def test_a_world_is_torn_as_told(noisy: str) -> None:
    world = make_world(Shape("credit", 3, rows=2000, test=300, overlap=0.1, noisy=noisy))
    ids = {name: table.ids for name, table in world.train.items()}
    assert len(np.intersect1d(ids[BANK], ids[TELCO])) == 200
    assert set(ids["registry"]) == set(ids["agency"]) == set(ids[BANK])
    right = {}
    for name in LABELLERS:
        votes, given = said(world, name)
        assert 0.65 < given.mean() < 0.75
        right[name] = (votes[given] == world.truth[given]).mean()
    assert min(right, key=lambda name: right[name]) == noisy
    assert right[noisy] < 0.75 < min(value for name, value in right.items() if name != noisy)
    assert np.array_equal(world.test[BANK].ids, world.test[TELCO].ids)


@pytest.mark.real
def test_the_world_without_tears() -> None:
    world = make_world(Shape("bank", 0, rows=300, test=100), mended=True)
    votes, given = said(world, BANK)
    assert given.all() and (votes == world.truth).all()
    assert set(world.train[TELCO].ids) == set(range(300))


def test_a_labeller_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="registry"):
        _ = Shape("credit", 0, noisy="telco").rates
