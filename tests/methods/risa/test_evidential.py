"""Batches of fixed make-up, the loss of a batch, calibration of sources."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedmend.errors import ConfigError
from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.pools import MOST_PASSES, Pools, batch_make_up
from fedmend.methods.risa.top import JOINT, EvidenceTop, EvidenceTopSpec, Objective, total_loss
from fedmend.methods.risa.trust import Calibration, Trusted, fit_sources, minimise

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
    assert one.sizes == [4, 16, 0]
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
    stand_ins = [torch.randn(3) for _ in range(parties)]
    present = [torch.tensor([True, True, True, True, False, False]) for _ in range(parties)]
    present[1] = torch.tensor([True, True, False, False, True, True])
    for m in range(parties):
        sides[m] = torch.where(present[m][:, None], sides[m], stand_ins[m])
    return {
        "sides": sides,
        "stand_ins": stand_ins,
        "present": present,
        "overlapping": 2,
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "weights": torch.ones(6),
        "epoch": 1,
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
    alpha = ev.dirichlet(by_hand)
    wanted = (
        alpha.sum(1).log() - alpha[torch.arange(6), batch["targets"]].log()  # type: ignore[index]
    ).mean()
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(fused[:, -1:], by_hand.uncertainty.detach())


def test_absent_parties_have_no_say_unless_imputed() -> None:
    top = top_of(joint=False)
    batch = batch_of()
    _, fused = total_loss(top, Objective(imputed=False), **batch)  # type: ignore[arg-type]
    alone = ev.opinion(torch.nn.functional.softplus(top.head(0, batch["sides"][0])))  # type: ignore[index]
    torch.testing.assert_close(fused[2:4, :3], alone.belief[2:4].detach())
    moved = {**batch, "stand_ins": [torch.zeros(3)] * 2}
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
    sides, stand_ins, y = batch["sides"], batch["stand_ins"], batch["targets"]
    rows = [how.rows_loss(how.opinion(top.together(sides)), y, 1)]  # type: ignore[arg-type]
    for alone in (0, 1):
        torn = [
            sides[m][:2] if m == alone else stand_ins[m].expand(2, -1)  # type: ignore[index]
            for m in range(2)
        ]
        rows.append(how.rows_loss(how.opinion(top.together(torn)), y[:2], 1))  # type: ignore[index]
    torch.testing.assert_close(plain, rows[0].mean())
    torch.testing.assert_close(dropped, torch.cat(rows).mean())


def test_minimise_agrees_with_scipy() -> None:
    def value(theta: torch.Tensor) -> torch.Tensor:
        x, y = theta.flatten()
        return (1 - x) ** 2 + 10 * (y - x**2) ** 2

    found = minimise(value, torch.tensor([[-1.0, 2.0]], dtype=torch.float64), steps=200)
    wanted = minimize(lambda p: (1 - p[0]) ** 2 + 10 * (p[1] - p[0] ** 2) ** 2, [-1, 2]).x
    np.testing.assert_allclose(found.flatten(), wanted, atol=1e-2)


@pytest.fixture
def judged() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A good source, one that is too sure, and one that knows nothing but is sure of it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    clear = torch.tensor(rng.normal(size=(400, 3)) + 2.5 * np.eye(3)[y])
    sure = torch.tensor(4 * (rng.normal(size=(400, 3)) + np.eye(3)[y]))
    noise = torch.tensor(4 * rng.normal(size=(400, 3)))
    return {"bank": clear, "telco": sure, JOINT: noise}, torch.from_numpy(y)


def test_calibration_cools_the_overconfident_and_distrusts_noise(judged) -> None:
    outputs, y = judged
    how = Objective(fusion="dempster", activation="exp")
    found = fit_sources(how, outputs, y, anchor="bank")
    raw = ev.loss(Calibration().fuse(how, "aligned", outputs), y).mean()
    made = _made(found)
    fitted = ev.loss(made.fuse(how, "aligned", outputs), y).mean()
    alone = ev.loss(how.opinion(outputs["bank"]), y).mean()
    assert float(fitted) < float(raw)
    assert float(fitted) < float(alone)
    assert found.temperature["telco"] > 1.2
    again = Calibration.from_wire(made.to_wire())
    assert again == made


def test_the_guard_falls_back_on_the_label_party(judged) -> None:
    outputs, y = judged
    harmful = {"bank": outputs["bank"], "telco": outputs[JOINT]}
    how = Objective(fusion="average", activation="exp")
    found = fit_sources(how, harmful, y, anchor="bank")
    assert found.trust["telco"] == 0.0 or found.losses["all"] < found.losses["bank"]
    assert min(found.losses.values()) <= found.losses["bank"]


def test_wrong_objectives_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        Objective(fusion="vote", activation="tanh", loss="hinge", fused=-1)
    assert all(word in str(caught.value) for word in ("vote", "tanh", "hinge", "fused"))


def test_few_rows_fit_one_temperature_for_all(judged) -> None:
    outputs, y = judged
    some = {"bank": outputs["bank"][:60], "telco": outputs["telco"][:60]}
    found = fit_sources(Objective(fusion="dempster", activation="exp"), some, y[:60], anchor="bank")
    used = [name for name, trust in found.trust.items() if trust > 0]
    assert len({found.temperature[name] for name in used}) == 1
    assert {round(found.trust[name], 6) for name in used} == {round(1 / (1 + np.exp(-3.0)), 6)}
    assert set(found.losses) == {"all", "bank"}


@pytest.mark.parametrize(("good", "heard"), [(True, True), (False, False)])
def test_of_few_rows_sources_alike_are_all_heard_or_none_but_the_label_party(
    good: bool, heard: bool
) -> None:
    """Two heads that are right on their own account; a joint one that is no better than either."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 2100)
    clear = [torch.tensor(rng.normal(size=(2100, 3)) + 1.5 * np.eye(3)[y]) for _ in range(3)]
    telco = clear[1] if good else torch.tensor(6 * rng.normal(size=(2100, 3)))
    outputs, targets = {"bank": clear[0], "telco": telco, JOINT: clear[2]}, torch.from_numpy(y)
    if not good:
        outputs[JOINT] = telco
    how = Objective(fusion="dempster", activation="exp")
    few = {name: values[:100] for name, values in outputs.items()}
    found = fit_sources(how, few, targets[:100], anchor="bank", alike=True)
    assert set(found.losses) == {"all", "bank"}
    assert [name for name, trust in found.trust.items() if trust > 0] == (
        ["bank", "telco", JOINT] if heard else ["bank"]
    )
    assert len({found.temperature[name] for name in found.trust if found.trust[name]}) == 1
    # Of sources that may differ the joint head stands for all.
    other = fit_sources(how, few, targets[:100], anchor="bank")
    assert set(other.losses) == {JOINT, "bank"}
    if good:
        rest = {name: values[100:] for name, values in outputs.items()}
        right = [
            (ev.probability(_made(each).fuse(how, "aligned", rest)).argmax(1) == targets[100:])
            .float()
            .mean()
            for each in (found, other)
        ]
        assert right[0] > right[1] + 0.05


def _made(found: Trusted) -> Calibration:
    return Calibration(
        {"aligned": found.temperature}, {"aligned": found.trust}, {"aligned": found.centre}
    )


def test_a_temperature_draws_towards_what_is_usual() -> None:
    """Of a class nine rows in ten have, an overconfident source must not be cooled to evens."""
    rng = np.random.default_rng(1)
    y = torch.from_numpy((rng.random(600) < 0.1).astype(int))
    noise = rng.normal(size=600) * 3
    logits = torch.from_numpy(np.stack([2.2 + noise, -noise], 1))
    how = Objective(fusion="dempster", activation="exp")
    found = fit_sources(how, {"bank": logits}, y)
    made = Calibration({"a": found.temperature}, {"a": found.trust}, {"a": found.centre})
    p = ev.probability(made.fuse(how, "a", {"bank": logits}))[:, 1]
    assert found.temperature["bank"] > 2
    assert float(p.mean()) < 0.3
