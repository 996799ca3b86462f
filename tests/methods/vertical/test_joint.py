"""Joint tops: means over subsets, estimates of absent sides, cross-view heads."""

import math
from itertools import combinations

import pytest
import torch
from torch.nn import functional as F

from fedmend.errors import ConfigError
from fedmend.learn.nets import initialise
from fedmend.methods.vertical.absent_partner import MeanTop, subset_weight
from fedmend.methods.vertical.fedcvt import CrossViewTop, attend, attend_others
from fedmend.methods.vertical.sfhtl import TransferTop
from fedmend.split.partial import JointSpec, Views, row_losses, weighted_mean

D = 4


def spec(parties: int = 2, out: int = 3, **options: object) -> JointSpec:
    return JointSpec((D,) * parties, (6,), out, 0, tuple(options.items()))


def views(masks: list[list[bool]], seed: int = 0) -> Views:
    generator = torch.Generator().manual_seed(seed)
    values, at = {}, {}
    for number, mask in enumerate(masks):
        here = torch.tensor(mask).nonzero()[:, 0]
        values[f"p{number}"] = torch.randn(len(here), D, generator=generator)
        at[f"p{number}"] = here
    return Views(len(masks[0]), values, at)


def seeded(top: torch.nn.Module) -> torch.nn.Module:
    top = initialise(top, torch.Generator().manual_seed(0))
    top.start_epoch(torch.Generator().manual_seed(1))
    return top


# ------------------------------------------------------------------ losses of rows


def test_rows_without_a_target_do_not_count():
    outputs = torch.randn(4, 3)
    loss, known = row_losses(outputs, torch.tensor([0, -1, 2, -1]))
    assert known.tolist() == [True, False, True, False]
    expected = F.cross_entropy(outputs[[0, 2]], torch.tensor([0, 2]))
    torch.testing.assert_close(weighted_mean(loss, known), expected)
    values, known = row_losses(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, math.nan]))
    assert (values[0].item(), known.tolist()) == (4.0, [True, False])
    assert weighted_mean(values, torch.zeros(2)).item() == 0.0


# ------------------------------------------------------------------ mean


def test_the_mean_is_over_whoever_is_there():
    top = seeded(MeanTop(spec(fusion="mean", drop=0.0)))
    both = views([[True, True, False], [True, False, True]])
    out = top.outputs(both)
    a, b = both.values["p0"], both.values["p1"]
    by_hand = torch.stack([(a[0] + b[0]) / 2, a[1], b[1]])
    torch.testing.assert_close(out, top.body(torch.relu(by_hand)))


def test_one_subset_of_every_size_is_drawn_evenly():
    top = seeded(MeanTop(spec(3, fusion="mean", drop=0.0)))
    masks = torch.ones(3, 6000, dtype=torch.bool)
    masks[2, 3000:] = False
    subsets = top._one_of_each_size(masks)
    weights = [weight for weight, _ in subsets]
    assert sum(weights) == pytest.approx(1)
    wanted = [math.comb(2, size - 1) / size for size in (1, 2, 3)]
    assert weights == pytest.approx([each / sum(wanted) for each in wanted])
    for size, (_, chosen) in enumerate(subsets, 1):
        assert set(chosen[:, :3000].sum(0).tolist()) == {size}
        late = chosen[:, 3000:].sum(0)
        assert set(late.tolist()) == ({size} if size < 3 else {0})
        assert not chosen[2, 3000:].any()
        if size == 2:
            pairs = [chosen[list(pair), :3000].all(0).float().mean().item() for pair in PAIRS]
            assert pairs == pytest.approx([1 / 3] * 3, abs=0.04)


PAIRS = list(combinations(range(3), 2))


def test_weights_of_subsets_are_lasers():
    assert [subset_weight(4, k) for k in (1, 2, 3, 4)] == [1.0, 1.5, 1.0, 0.25]


def test_plugged_parties_are_dropped_but_never_the_label_party():
    top = seeded(MeanTop(spec(3, fusion="concat", drop=0.4)))
    ((weight, chosen),) = top._plugged(torch.ones(3, 4000, dtype=torch.bool))
    assert weight == 1.0
    assert chosen[0].all()
    assert chosen[1:].float().mean().item() == pytest.approx(0.6, abs=0.03)


def test_means_need_one_width():
    with pytest.raises(ConfigError, match=r"one width.*Mend: one embedding"):
        MeanTop(JointSpec((4, 5), (6,), 3, 0, (("fusion", "mean"),)))


# ------------------------------------------------------------------ transfer


OPTIONS = {"map_weight": 1.0, "pseudo_weight": 1.0, "threshold": 0.9, "warmup": 0}


def test_absent_embeddings_are_estimated_and_present_ones_kept():
    top = seeded(TransferTop(spec(**OPTIONS)))
    both = views([[True, True, False], [True, False, True]])
    dense = [both.dense("p0"), both.dense("p1")]
    masks = torch.stack([both.mask("p0"), both.mask("p1")])
    first, second = top._completed(dense, masks)
    torch.testing.assert_close(first[:2], both.values["p0"])
    torch.testing.assert_close(first[2], top.maps["1-0"](dense[1])[2])
    torch.testing.assert_close(second[1], top.maps["0-1"](dense[0])[1])


@pytest.mark.slow
def test_maps_learn_a_linear_relation():
    top = seeded(TransferTop(spec(**OPTIONS | {"warmup": 99})))
    generator = torch.Generator().manual_seed(3)
    turn = torch.randn(D, D, generator=generator) / 2
    optimizer = torch.optim.Adam(top.parameters(), 1e-2)
    everyone = torch.arange(128)
    for _ in range(250):
        a = torch.randn(128, D, generator=generator)
        batch = Views(128, {"p0": a, "p1": a @ turn}, {"p0": everyone, "p1": everyone})
        optimizer.zero_grad()
        top.loss(batch, torch.zeros(128, dtype=torch.int64)).backward()
        optimizer.step()
    a = torch.randn(200, D, generator=generator)
    error = (top.maps["0-1"](a) - a @ turn).square().mean()
    assert error < 0.1 * (a @ turn).square().mean()


def test_pseudo_labels_come_after_the_warm_up_and_only_where_sure():
    batch = views([[True, False], [True, True]])
    targets = torch.tensor([1, -1])
    losses = {}
    for name, changes in {
        "warm": {"warmup": 5, "threshold": 0.0},
        "strict": {"threshold": 1.0},
        "lax": {"threshold": 0.0},
    }.items():
        losses[name] = seeded(TransferTop(spec(**OPTIONS | changes))).loss(batch, targets)
    torch.testing.assert_close(losses["warm"], losses["strict"])
    assert losses["lax"] > losses["warm"]
    # a row that has a label needs no other
    told = torch.tensor([1, 0])
    lax, warm = (
        seeded(TransferTop(spec(**OPTIONS | {"threshold": 0.0, "warmup": epochs}))).loss(
            batch, told
        )
        for epochs in (0, 5)
    )
    torch.testing.assert_close(lax, warm)


# ------------------------------------------------------------------ cross views


CROSS = {"temperature": 0.5, "thresholds": [0.0, 0.0, 0.0], "weights": [1, 1, 1, 1], "bank": 8}


def test_attention_is_torchs():
    q, k, v = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 3)
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    torch.testing.assert_close(attend(q, k, v, 1.0), expected)
    sharp = attend(q, k, v, 1e-4)
    torch.testing.assert_close(sharp, v[(q @ k.T).argmax(1)])


def test_nobody_attends_to_himself():
    k, v = torch.randn(6, 4), torch.randn(6, 3)
    found = attend_others(k, k, v, 1.0)
    for row in range(6):
        others = [other for other in range(6) if other != row]
        expected = attend(k[row : row + 1], k[others], v[others], 1.0)[0]
        torch.testing.assert_close(found[row], expected)


def cross(**changes: object) -> CrossViewTop:
    top = seeded(CrossViewTop(spec(**CROSS | changes)))
    assert isinstance(top, CrossViewTop)
    return top


def test_a_row_joins_only_when_all_three_heads_agree_and_are_sure():
    top = cross(thresholds=[0.8, 0.7, 0.7])
    sure, less, other = (
        torch.tensor([[9.0, 0.0, 0.0]]),
        torch.tensor([[1.5, 0.0, 0.0]]),
        torch.tensor([[0.0, 9.0, 0.0]]),
    )
    none, known = torch.tensor([-1]), torch.tensor([2])
    assert top._labels(none, sure, sure, sure).item() == 0
    assert top._labels(none, less, sure, sure).item() == -1
    assert top._labels(none, sure, less, sure).item() == -1
    assert top._labels(none, sure, sure, other).item() == -1
    assert top._labels(known, sure, sure, other).item() == 2


def test_one_sided_rows_are_completed_from_the_bank():
    top = cross()
    aligned = [torch.randn(6, D), torch.randn(6, D)]
    top._remember(aligned)
    assert int(top.rows_seen) == 6
    rows = torch.randn(2, D)
    empty = torch.zeros(0, dtype=torch.int64)
    one = Views(2, {"a": rows, "b": torch.zeros(0, D)}, {"a": torch.arange(2), "b": empty})
    guess = top._estimate(rows, aligned[0], aligned[1], aligned[1])
    torch.testing.assert_close(top.outputs(one), top._joint(rows, guess))
    top._remember([torch.randn(5, D), torch.randn(5, D)])
    assert int(top.rows_seen) == 11
    torch.testing.assert_close(top.bank[0, 3:6], aligned[0][3:])


def test_the_loss_of_aligned_rows_alone_is_the_heads_and_the_halves():
    top = cross(weights=[0.0, 0.0, 0.0, 0.0])
    a, b = torch.randn(5, D), torch.randn(5, D)
    everyone = torch.arange(5)
    targets = torch.tensor([0, 1, 2, 0, 1])
    loss = top.loss(Views(5, {"a": a, "b": b}, {"a": everyone, "b": everyone}), targets)
    expected = (
        F.cross_entropy(top._joint(a, b), targets)
        + F.cross_entropy(top._alone(0, a), targets)
        + F.cross_entropy(top._alone(1, b), targets)
    )
    torch.testing.assert_close(loss, expected)


def test_cross_views_join_two_even_embeddings_and_classes():
    options = tuple(CROSS.items())
    for widths, out in (((4, 4, 4), 3), ((4, 6), 3), ((5, 5), 3), ((4, 4), 1)):
        with pytest.raises(ConfigError, match=r"Mend"):
            CrossViewTop(JointSpec(widths, (6,), out, 0, options))
