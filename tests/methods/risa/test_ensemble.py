"""Members side by side: the same numbers as apart, and blind to the rows they must not see."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmend.learn.nets import Batch, Bottom, BottomSpec
from fedmend.methods.risa.ensemble import (
    BottomEnsemble,
    EnsembleSpec,
    MemberLinear,
    bottom_of,
    deal,
    draw,
)
from fedmend.methods.risa.heads import EvidenceTop, EvidenceTopSpec, Objective, total_loss
from fedmend.methods.risa.imputation import MeanRow, embed

ONE = BottomSpec(numeric=3, cardinalities=(5, 4), hidden=(6,), out=4)
MEAN = MeanRow(torch.zeros(3), (torch.full((5,), 0.2), torch.full((4,), 0.25)), ())


def batch_of(n: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 4, (n, 2), generator=generator)
    return Batch(torch.randn(n, 3, generator=generator), codes)


def ensemble(members: int = 3) -> BottomEnsemble:
    made = draw(BottomEnsemble(EnsembleSpec(ONE, members)), torch.Generator().manual_seed(0))
    assert isinstance(made, BottomEnsemble)
    return made


def member_of(whole: BottomEnsemble, number: int) -> Bottom:
    """One member as an ordinary bottom."""
    alone = Bottom(ONE)
    with torch.no_grad():
        for mine, theirs in zip(alone.tables, whole.tables, strict=True):
            mine.weight.copy_(theirs.weight.chunk(whole.spec.members, 1)[number])  # type: ignore[operator, union-attr]
        for mine, theirs in zip(alone.body, whole.body, strict=True):
            if isinstance(theirs, MemberLinear):
                mine.weight.copy_(theirs.weight[number].T)  # type: ignore[operator, union-attr]
                mine.bias.copy_(theirs.bias[number, 0])  # type: ignore[operator, union-attr]
    return alone


def test_members_embed_as_they_would_alone() -> None:
    whole, batch = ensemble(), batch_of(7)
    pieces = whole(batch).chunk(3, 1)
    for number in range(3):
        alone = member_of(whole, number)
        torch.testing.assert_close(pieces[number], alone(batch))
        torch.testing.assert_close(
            embed(whole, batch, MEAN).chunk(3, 1)[number], embed(alone, batch, MEAN)
        )
    assert not torch.allclose(pieces[0], pieces[1])


def test_an_ensemble_survives_saving() -> None:
    whole = ensemble()
    again = bottom_of(whole.spec.to_dict())
    again.load_state_dict(whole.state_dict())
    torch.testing.assert_close(again(batch_of(5)), whole(batch_of(5)))
    assert isinstance(bottom_of(ONE.to_dict()), Bottom)


def test_images_have_a_network_for_each_member() -> None:
    spec = BottomSpec(numeric=0, block_shapes=((1, 8, 8),), hidden=(), out=4)
    whole = draw(BottomEnsemble(EnsembleSpec(spec, 2)), torch.Generator().manual_seed(0)).eval()
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    batch = Batch(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int64), (images,))
    first, second = whole(batch).chunk(2, 1)
    assert first.shape == (3, 4)
    assert not torch.allclose(first, second)
    alone = draw(Bottom(spec), torch.Generator().manual_seed(5)).eval()
    assert isinstance(alone, Bottom)
    assert isinstance(whole, BottomEnsemble)
    whole.take_networks(alone)
    for net in whole.convolutions[0].nets:  # type: ignore[union-attr]
        torch.testing.assert_close(net(images), alone.convolutions[0](images))


@pytest.mark.parametrize("view_dropout", [False, True])
def test_the_loss_of_an_ensemble_is_the_sum_of_its_members(view_dropout: bool) -> None:
    how = Objective(
        fusion="dempster",
        activation="exp",
        fused=0.5,
        party=0.3,
        joint=1.0,
        imputed=False,
        view_dropout=view_dropout,
    )
    spec = EvidenceTopSpec((8, 6), (5,), 3, members=2)
    whole = draw(EvidenceTop(spec), torch.Generator().manual_seed(0))
    assert isinstance(whole, EvidenceTop)
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(9, width, generator=generator) for width in (8, 6)]
    imputed = [torch.randn(width, generator=generator) for width in (8, 6)]
    present = [torch.ones(9, dtype=torch.bool), torch.arange(9) < 4]
    y = torch.randint(0, 3, (9,), generator=generator)
    counts = (torch.arange(9) % 2 != torch.arange(2)[:, None]).float()
    total, fused = total_loss(whole, how, sides, imputed, present, 4, y, counts)
    assert fused.shape == (2, 9, 4)
    apart = 0.0
    for member in range(2):
        alone = EvidenceTop(EvidenceTopSpec((4, 3), (5,), 3))
        saved = {
            key: value[member].T.squeeze() if key.endswith("weight") else value[member, 0]
            for key, value in whole.state_dict().items()
        }
        alone.load_state_dict(saved)
        mine = [side.chunk(2, 1)[member] for side in sides]
        stand = [each.chunk(2)[member] for each in imputed]
        lost, one = total_loss(alone, how, mine, stand, present, 4, y, counts[member])
        torch.testing.assert_close(one, fused[member])
        apart = apart + lost
    torch.testing.assert_close(total, apart)


def test_rows_are_dealt_evenly() -> None:
    found = deal(np.arange(23), 5, np.random.default_rng(0))
    assert sorted(np.bincount(found).tolist()) == [4, 4, 5, 5, 5]
