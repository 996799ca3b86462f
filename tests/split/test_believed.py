"""Completed sides in evidential training: learnt from, and heard, as far as they are believed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.halves import EvidenceTopHalf
from fedmend.methods.risa.heads import EvidenceTopWorker
from fedmend.methods.risa.top import EvidenceTop, EvidenceTopSpec, Objective
from fedmend.split.features import ALIGNED
from fedmend.split.halves import Settings

ROWS, CLASSES = 6, 3
BELIEVED = torch.tensor([1.0, 1.0, 0.6, 0.25, 0.0, 0.0], dtype=torch.float64)


def half_of(how: Objective) -> EvidenceTopHalf:
    torch.manual_seed(0)
    top = EvidenceTop(EvidenceTopSpec((3, 3), (4,), CLASSES, joint=how.joint > 0)).double()
    half = EvidenceTopHalf(
        top,
        how,
        Settings(batch_size=ROWS, precision="float64"),
        torch.device("cpu"),
        names=["bank", "telco"],
        segments=[[ALIGNED, ROWS]],
        label_party="bank",
        bottom=None,
        own=None,
        mean=None,
    )
    half.set_targets(np.arange(ROWS) % CLASSES)
    half.set_pools([np.arange(ROWS)], 0.0)
    half.reliable = {"telco": BELIEVED}
    return half


def sides() -> list[Tensor]:
    """Embeddings of six rows, and last of the mean row, by party."""
    torch.manual_seed(1)
    return [torch.randn(ROWS + 1, 3, dtype=torch.float64) for _ in range(2)]


def test_the_loss_of_a_completed_side_by_hand() -> None:
    how = Objective(fusion="dempster", fused=1.0, party=1.0, imputed=False)
    half, (bank, telco) = half_of(how), sides()
    total, fused = half.judge([bank, telco], torch.arange(ROWS))
    between = telco[-1] + BELIEVED[:, None] * (telco[:-1] - telco[-1])
    own, theirs = (
        how.opinion(half.top.head(number, side)) for number, side in enumerate((bank[:-1], between))
    )
    targets = torch.arange(ROWS) % CLASSES
    # The party's own head learns from a row as far as its side is believed ...
    lost = [ev.loss(own, targets).mean()]
    lost.append((ev.loss(theirs, targets) * BELIEVED).sum() / BELIEVED.sum())
    # ... and is heard on it as far: Shafer's discount.
    heard = ev.dempster(own, ev.discount(theirs, BELIEVED[:, None].float()))
    lost.append(ev.loss(heard, targets).mean())
    torch.testing.assert_close(total.double(), torch.stack(lost).sum().double())
    assert fused is not None
    torch.testing.assert_close(fused[:, :-1], heard.belief.detach())


def test_nothing_is_learnt_by_a_party_from_sides_that_are_not_believed() -> None:
    half = half_of(Objective(fused=0.0, party=1.0, imputed=False))
    bank, telco = sides()
    telco.requires_grad_()
    total, _ = half.judge([bank, telco], torch.arange(ROWS))
    total.backward()
    assert telco.grad is not None
    moved = telco.grad[:ROWS].abs().sum(1) > 0
    assert bool(moved.any()) and not bool((moved & (BELIEVED == 0)).any())
    # Rows that are not believed at all stand where the mean row does, and teach it nothing.
    alone = half_of(Objective(fused=0.0, party=1.0, imputed=False))
    alone.reliable = {"telco": (BELIEVED == 1).double()}
    again = telco.detach().clone().requires_grad_()
    alone.judge([bank, again], torch.arange(ROWS))[0].backward()
    assert again.grad is not None
    assert not again.grad[-1].any()


@pytest.mark.parametrize("soft", [False, True])
def test_made_up_labels_among_likelihoods_are_certain_classes(
    soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soft label says how probable classes are, a likelihood how likely what was said is."""
    half = half_of(Objective())
    half.set_likelihoods(np.full((ROWS, CLASSES), 0.5))
    worker = EvidenceTopWorker.__new__(EvidenceTopWorker)
    worker.half, worker.device = half, torch.device("cpu")
    heads = SimpleNamespace(labels=SimpleNamespace(classes_=["a", "b", "c"]))
    monkeypatch.setattr(worker, "_heads", lambda: heads)
    guess = np.array([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    worker._set_made_up(np.array([4, 1]), guess if soft else guess.argmax(1), soft)
    assert half.targets is not None
    assert half.targets[4].tolist() == [0.0, 1.0, 0.0]
    assert half.targets[1].tolist() == [1.0, 0.0, 0.0]
    assert half.targets[0].tolist() == [0.5, 0.5, 0.5]
    # where labels are plain, a soft one makes all of them soft
    plain = half_of(Objective())
    worker.half = plain
    worker._set_made_up(np.array([4, 1]), guess if soft else guess.argmax(1), soft)
    assert plain.targets is not None
    wanted = [guess[0].tolist(), [1.0, 0.0, 0.0]] if soft else [1, 0]
    assert plain.targets[[4, 0]].tolist() == wanted
