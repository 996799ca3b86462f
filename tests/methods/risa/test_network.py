"""RISA's networks in plain torch: an ensemble, mean rows, heads, and the loss of a batch."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import DataError
from fedmend.learn.nets import Batch, Bottom, BottomSpec, initialise
from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.network import (
    BottomEnsemble,
    EnsembleSpec,
    EvidenceTop,
    EvidenceTopSpec,
    MeanRow,
    MemberLinear,
    Objective,
    deal,
    draw,
    embed,
    mean_row,
    total_loss,
)
from fedmend.methods.risa.training import MAX_PASSES, EvidenceTopModel, Watch, batch_make_up
from fedmend.split.config import Settings
from fedmend.split.features import ALIGNED, Features, MixedOrder
from fedmend.split.parts import BottomPart

CPU = torch.device("cpu")

# ------------------------------------------------------------------ ensemble


ONE = BottomSpec(numeric=3, cardinalities=(5, 4), hidden=(6,), out=4)
MEAN = MeanRow(torch.zeros(3), (torch.full((5,), 0.2), torch.full((4,), 0.25)), ())


def rows_of(n: int) -> Batch:
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
            mine.weight.copy_(theirs.weight.chunk(whole.spec.members, 1)[number])
        for mine, theirs in zip(alone.body, whole.body, strict=True):
            if isinstance(theirs, MemberLinear):
                mine.weight.copy_(theirs.weight[number].T)
                mine.bias.copy_(theirs.bias[number, 0])
    return alone


def test_members_embed_as_they_would_alone():
    whole, batch = ensemble(), rows_of(7)
    pieces = whole(batch).chunk(3, 1)
    for number in range(3):
        alone = member_of(whole, number)
        torch.testing.assert_close(pieces[number], alone(batch))
        torch.testing.assert_close(
            embed(whole, batch, MEAN).chunk(3, 1)[number], embed(alone, batch, MEAN)
        )
    assert not torch.allclose(pieces[0], pieces[1])


def test_an_ensemble_survives_saving():
    table = Table(np.arange(30), {"x": np.arange(30.0)})
    part = BottomPart(Encoder().fit(table), ensemble())
    again = BottomPart.from_wire(part.to_wire())
    torch.testing.assert_close(again.module(rows_of(5)), part.module(rows_of(5)))


def test_images_have_a_network_for_each_member():
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
    for net in whole.convolutions[0].nets:
        torch.testing.assert_close(net(images), alone.convolutions[0](images))


@pytest.mark.parametrize("view_dropout", [False, True])
def test_the_loss_of_an_ensemble_is_the_sum_of_its_members(view_dropout):
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


def test_rows_are_dealt_evenly():
    found = deal(np.arange(23), 5, np.random.default_rng(0))
    assert sorted(np.bincount(found).tolist()) == [4, 4, 5, 5, 5]


# ------------------------------------------------------------------ mean rows


@pytest.fixture
def encoder_and_rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=40), "n": rng.normal(size=40), "job": rng.choice(["a", "b", "c"], 40)}
    )
    images = rng.integers(0, 255, (40, 3, 6, 4)).astype(np.uint8)
    table = Table(np.arange(40), frame, blocks={"photo": images}, kinds={"photo": "image"})
    encoder = Encoder().fit(table)
    return encoder, encoder.transform(table)


def bottom_of(encoder: Encoder) -> Bottom:
    spec = BottomSpec(
        numeric=len(encoder.numeric_names),
        cardinalities=tuple(encoder.cardinalities),
        block_shapes=tuple(encoder.block_shapes.values()),
        hidden=(8,),
        out=5,
    )
    made = initialise(Bottom(spec), torch.Generator().manual_seed(0))
    assert isinstance(made, Bottom)
    return made.eval()


def test_the_mean_of_overlapping_rows(encoder_and_rows):
    _, encoded = encoder_and_rows
    rows = np.arange(5, 25)
    found = mean_row(encoded, rows)
    np.testing.assert_allclose(found.numeric, encoded.numeric[rows].mean(0), atol=1e-6)
    np.testing.assert_allclose(found.blocks[0], encoded.blocks["photo"][rows].mean(0), atol=1e-6)
    shares = np.bincount(encoded.codes[rows, 0], minlength=5) / 20
    np.testing.assert_allclose(found.codes[0], shares)


@pytest.mark.parametrize("overlap", [0, 1, 9])
def test_a_mean_never_shows_a_few_rows(encoder_and_rows, overlap):
    _, encoded = encoder_and_rows
    found = mean_row(encoded, np.arange(overlap))
    np.testing.assert_allclose(found.numeric, encoded.numeric.mean(0), atol=1e-6)
    few = encoded.take(np.arange(4))
    with pytest.raises(DataError, match="4 rows are too few"):
        mean_row(few, np.arange(4), party="telco")


def test_the_mean_row_is_embedded_beside_real_ones(encoder_and_rows):
    encoder, encoded = encoder_and_rows
    bottom = bottom_of(encoder)
    rows = Features(encoded, np.arange(40), CPU, torch.float32)
    batch = rows.batch(torch.arange(40))
    one_hot = MeanRow(  # the "mean" of row 3 alone, so that the answer is known
        batch.numeric[3],
        (torch.nn.functional.one_hot(batch.codes[3, 0], 5).float(),),
        (batch.blocks[0][3],),
    )
    found = embed(bottom, batch, one_hot)
    torch.testing.assert_close(found[:-1], bottom(batch))
    torch.testing.assert_close(found[-1], found[3])
    again = MeanRow.from_wire(one_hot.to_wire())
    torch.testing.assert_close(embed(bottom, batch, again), found)


def test_the_mean_one_hot_is_the_mean_embedding(encoder_and_rows):
    encoder, encoded = encoder_and_rows
    bottom = bottom_of(encoder)
    mean = mean_row(encoded, np.arange(40)).to(CPU, torch.float32)
    table = bottom.tables[0].weight
    every = table[torch.from_numpy(encoded.codes[:, 0])].mean(0)
    torch.testing.assert_close(mean.codes[0] @ table, every, atol=1e-6, rtol=1e-5)


# ------------------------------------------------------------------ batches and heads


@given(
    st.lists(st.integers(0, 500), min_size=2, max_size=5), st.integers(1, 128), st.floats(0, 0.9)
)
def test_the_make_up_of_a_batch(counts, batch, least):
    counts[0] += 2
    sizes, steps = batch_make_up(counts, batch, least)
    assert sum(sizes) == min(batch, sum(counts))
    assert steps >= 1
    assert all(size >= 0 for size in sizes)
    assert all(size == 0 for size, count in zip(sizes, counts, strict=True) if count == 0)
    # As many overlapping rows as asked, unless each would be shown too often in an epoch.
    if batch >= len(counts) + 2:
        assert sizes[0] >= min(least * sum(sizes), MAX_PASSES * counts[0] / steps) - 1e-9
    # And two at least, however few there are: they tie the sides.
    assert sizes[0] >= min(2, sum(sizes))


def top_of(parties: int = 2, **more: bool) -> EvidenceTop:
    torch.manual_seed(0)
    return EvidenceTop(EvidenceTopSpec((3,) * parties, (4,), 3, **more))


def batch_of(parties: int = 2) -> dict[str, Any]:
    torch.manual_seed(1)
    sides = [torch.randn(6, 3) for _ in range(parties)]
    imputed = [torch.randn(3) for _ in range(parties)]
    present = [torch.tensor([True, True, True, True, False, False]) for _ in range(parties)]
    present[1] = torch.tensor([True, True, False, False, True, True])
    for m in range(parties):
        sides[m] = torch.where(present[m][:, None], sides[m], imputed[m])
    return {
        "sides": sides,
        "imputed": imputed,
        "present": present,
        "overlapping": 2,
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "weights": torch.ones(6),
    }


def test_the_published_loss_is_the_fused_one():
    top, how = top_of(joint=False), Objective()
    batch = batch_of()
    total, fused = total_loss(top, how, **batch)
    opinions = [
        ev.opinion(torch.nn.functional.softplus(top.head(m, batch["sides"][m]))) for m in range(2)
    ]
    by_hand = ev.yager(*opinions)
    likely = ev.probability(by_hand)[torch.arange(6), batch["targets"]]
    torch.testing.assert_close(total, -likely.log().mean())
    torch.testing.assert_close(fused[:, -1:], by_hand.uncertainty.detach())


def test_opinions_that_nobody_watches_are_not_fused_and_change_no_loss():
    top, how, batch = top_of(), Objective(fused=0.0, party=0.3, joint=1.0), batch_of()
    total, fused = total_loss(top, how, **batch)
    alone, nothing = total_loss(top, how, **batch, fuse=False)
    assert fused is not None and nothing is None
    torch.testing.assert_close(alone, total, rtol=0, atol=0)
    # What the fused opinion is trained by is fused all the same.
    assert total_loss(top, Objective(), **batch, fuse=False)[1] is not None


@pytest.mark.parametrize("solo", [-1, 0])
def test_the_loss_of_heads_that_is_written_down_is_the_traced_one(solo, monkeypatch):
    how = Objective(activation="exp", fused=0.0, party=0.3, joint=1.0, imputed=False)
    members, bottoms = 3, [6 if solo == 0 else 3, 3]
    spec = EvidenceTopSpec(tuple(4 * n for n in bottoms), (5,), 3, members=members, solo=solo)
    settings = Settings(precision="float64")
    segments = [[ALIGNED, 4], ["bank", 3], ["telco", 2]]
    groups = [np.arange(4), np.arange(4, 7), np.arange(7, 9)]
    found = []
    for plain in (True, False):
        top = draw(EvidenceTop(spec), torch.Generator().manual_seed(0))
        model = EvidenceTopModel(
            top, how, settings, CPU, names=["bank", "telco"], segments=segments
        )
        model.set_targets(np.arange(9) % 3)
        model.walk(MixedOrder(groups, [4, 3, 2], 1, CPU))
        model.unseen = torch.tensor([0, 1, 2, 0, -1, -1, -1, -1, -1])
        assert model._is_plain
        if not plain:
            monkeypatch.setattr(EvidenceTopModel, "_is_plain", False)
        # So large that some evidence is cut off.
        made = torch.Generator().manual_seed(1)
        whole = [
            (20 * torch.randn(rows + 1, 4 * n, generator=made, dtype=torch.float64))
            for rows, n in zip((7, 6), bottoms, strict=True)
        ]
        for each in whole:
            each.requires_grad_()
        (total,) = model.judge(whole, torch.arange(9))
        total.backward()
        found.append([total.detach(), *(each.grad for each in whole), model.optimizer.gradient])
    assert all(each.abs().sum() > 0 for each in found[0])
    torch.testing.assert_close(found[0], found[1], check_dtype=False, rtol=1e-5, atol=1e-7)


def test_absent_parties_have_no_say_unless_imputed():
    top = top_of(joint=False)
    batch = batch_of()
    _, fused = total_loss(top, Objective(imputed=False), **batch)
    alone = ev.opinion(torch.nn.functional.softplus(top.head(0, batch["sides"][0])))
    torch.testing.assert_close(fused[2:4, :3], alone.belief[2:4].detach())
    moved = {**batch, "imputed": [torch.zeros(3)] * 2}
    moved["sides"] = [side.clone() for side in batch["sides"]]
    moved["sides"][1][2:4] += 5.0
    _, again = total_loss(top, Objective(imputed=False), **moved)
    torch.testing.assert_close(again[2:4], fused[2:4])


def test_a_party_learns_only_from_rows_it_knows():
    top = top_of(joint=False)
    batch = batch_of()
    how = Objective(fused=0.0, party=1.0)
    sides = [side.clone().requires_grad_() for side in batch["sides"]]
    total, _ = total_loss(top, how, **{**batch, "sides": sides})
    total.backward()
    for side, known in zip(sides, batch["present"], strict=True):
        moved = side.grad.abs().sum(1) > 0
        assert not bool((moved & ~known).any())
        assert bool((moved | ~known).any())


def test_a_solo_bottom_is_its_heads_alone():
    torch.manual_seed(0)
    top = EvidenceTop(EvidenceTopSpec((6, 3), (4,), 3, solo=0))
    alike = EvidenceTop(EvidenceTopSpec((3, 3), (4,), 3))
    alike.load_state_dict(top.state_dict())
    one, other = torch.randn(5, 6, requires_grad=True), torch.randn(5, 3)
    torch.testing.assert_close(top.head(0, one), alike.head(0, one[:, 3:]))
    torch.testing.assert_close(top.head(1, other), alike.head(1, other))
    torch.testing.assert_close(top.together([one, other]), alike.together([one[:, :3], other]))
    (own,) = torch.autograd.grad(top.head(0, one).square().sum(), one)
    (joint,) = torch.autograd.grad(top.together([one, other]).square().sum(), one)
    assert not own[:, :3].any()
    assert not joint[:, 3:].any()
    assert bool(own[:, 3:].any())
    assert bool(joint[:, :3].any())


def test_view_dropout_shows_the_joint_head_rows_with_one_side():
    top = top_of(heads=False)
    batch = batch_of()
    plain, dropped = (
        total_loss(top, Objective(fused=0.0, joint=1.0, view_dropout=on), **batch)[0]
        for on in (False, True)
    )
    how = Objective(fused=0.0, joint=1.0)
    sides, imputed, y = batch["sides"], batch["imputed"], batch["targets"]
    rows = [how.rows_loss(how.opinion(top.together(sides)), y)]
    for alone in (0, 1):
        torn = [sides[m][:2] if m == alone else imputed[m].expand(2, -1) for m in range(2)]
        rows.append(how.rows_loss(how.opinion(top.together(torn)), y[:2]))
    torch.testing.assert_close(plain, rows[0].mean())
    torch.testing.assert_close(dropped, torch.cat(rows).mean())


def test_rows_above_the_limit_are_dropped_and_unseen_ones_stay():
    watch = Watch(6, CPU)
    for uncertainty in ([0.1, 0.3, 0.8, 0.3], [0.1, 0.1, 0.8, 0.5]):
        watch.add(torch.arange(4), torch.tensor(uncertainty))
    rows = np.arange(6)
    again = Watch(6, CPU)
    again.restore(watch.state())
    for each in (watch, again):
        assert each.below(rows, 0.35).tolist() == [0, 1, 4, 5]
    assert watch.below(np.array([3, 1]), 0.35).tolist() == [1]
    watch.clear()
    assert watch.below(rows, 0.01).tolist() == rows.tolist()
