"""Batches of fixed make-up, and the loss of a batch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.heads import EvidenceTop, EvidenceTopSpec, Objective, total_loss
from fedmend.methods.risa.training import MOST_PASSES, Pools, batch_make_up

CPU = torch.device("cpu")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 500), min_size=2, max_size=5),
    st.integers(1, 128),
    st.floats(0, 0.9),
)
def test_the_make_up_of_a_batch(counts: list[int], batch: int, least: float) -> None:
    counts[0] += 2
    sizes, steps = batch_make_up(counts, batch, least)
    assert sum(sizes) == min(batch, sum(counts))
    assert steps >= 1
    assert all(size >= 0 for size in sizes)
    assert all(size == 0 for size, count in zip(sizes, counts, strict=True) if count == 0)
    # As many overlapping rows as asked, unless each would be shown too often in an epoch.
    if batch >= len(counts) + 2:
        assert sizes[0] >= min(least * sum(sizes), MOST_PASSES * counts[0] / steps) - 1e-9
    # And two at least, however few there are: they tie the sides.
    assert sizes[0] >= min(2, sum(sizes))


def test_pools_are_dealt_alike_and_go_round() -> None:
    pools = [np.arange(5), np.arange(10, 110), np.zeros(0, np.int64)]
    one, other = (Pools(pools, 20, 0.25, CPU) for _ in range(2))
    assert one.make_up == [4, 16, 0]
    assert one.steps == 5
    seen = []
    for each in (one, other):
        each.start(7)
        seen.append(torch.stack([each.next() for _ in range(each.steps)]))
    torch.testing.assert_close(seen[0], seen[1])
    overlapping, own = seen[0][:, :4], seen[0][:, 4:]
    assert all(len(set(part.tolist())) == 5 for part in overlapping.flatten().view(4, 5))
    assert set(own.flatten().tolist()) <= set(range(10, 110))
    assert len(set(own.flatten().tolist())) == min(100, own.numel())
    assert one.places([True, False, True]).tolist() == list(range(4))
    other.start(8)
    assert not torch.equal(other.next(), seen[0][0])


def top_of(parties: int = 2, **more: bool) -> EvidenceTop:
    torch.manual_seed(0)
    return EvidenceTop(EvidenceTopSpec((3,) * parties, (4,), 3, **more))


def batch_of(parties: int = 2) -> dict[str, object]:
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


def test_the_published_loss_is_the_fused_one() -> None:
    top, how = top_of(joint=False), Objective()
    batch = batch_of()
    total, fused = total_loss(top, how, **batch)  # type: ignore[arg-type]
    opinions = [
        ev.opinion(torch.nn.functional.softplus(top.head(m, batch["sides"][m])))  # type: ignore[index]
        for m in range(2)
    ]
    by_hand = ev.yager(*opinions)
    likely = ev.probability(by_hand)[torch.arange(6), batch["targets"]]  # type: ignore[index]
    torch.testing.assert_close(total, -likely.log().mean())
    torch.testing.assert_close(fused[:, -1:], by_hand.uncertainty.detach())


def test_absent_parties_have_no_say_unless_imputed() -> None:
    top = top_of(joint=False)
    batch = batch_of()
    _, fused = total_loss(top, Objective(imputed=False), **batch)  # type: ignore[arg-type]
    alone = ev.opinion(torch.nn.functional.softplus(top.head(0, batch["sides"][0])))  # type: ignore[index]
    torch.testing.assert_close(fused[2:4, :3], alone.belief[2:4].detach())
    moved = {**batch, "imputed": [torch.zeros(3)] * 2}
    moved["sides"] = [side.clone() for side in batch["sides"]]  # type: ignore[attr-defined]
    moved["sides"][1][2:4] += 5.0  # type: ignore[index]
    _, again = total_loss(top, Objective(imputed=False), **moved)  # type: ignore[arg-type]
    torch.testing.assert_close(again[2:4], fused[2:4])


def test_a_party_learns_only_from_rows_it_knows() -> None:
    top = top_of(joint=False)
    batch = batch_of()
    how = Objective(fused=0.0, party=1.0)
    sides = [side.clone().requires_grad_() for side in batch["sides"]]  # type: ignore[attr-defined]
    total, _ = total_loss(top, how, **{**batch, "sides": sides})  # type: ignore[arg-type]
    total.backward()
    for side, known in zip(sides, batch["present"], strict=True):  # type: ignore[call-overload]
        moved = side.grad.abs().sum(1) > 0
        assert not bool((moved & ~known).any())
        assert bool((moved | ~known).any())


def test_a_solo_bottom_is_its_heads_alone() -> None:
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


def test_view_dropout_shows_the_joint_head_rows_with_one_side() -> None:
    top = top_of(heads=False)
    batch = batch_of()
    plain, dropped = (
        total_loss(top, Objective(fused=0.0, joint=1.0, view_dropout=on), **batch)[0]  # type: ignore[arg-type]
        for on in (False, True)
    )
    how = Objective(fused=0.0, joint=1.0)
    sides, imputed, y = batch["sides"], batch["imputed"], batch["targets"]
    rows = [how.rows_loss(how.opinion(top.together(sides)), y)]  # type: ignore[arg-type]
    for alone in (0, 1):
        torn = [
            sides[m][:2] if m == alone else imputed[m].expand(2, -1)  # type: ignore[index]
            for m in range(2)
        ]
        rows.append(how.rows_loss(how.opinion(top.together(torn)), y[:2]))  # type: ignore[index]
    torch.testing.assert_close(plain, rows[0].mean())
    torch.testing.assert_close(dropped, torch.cat(rows).mean())
