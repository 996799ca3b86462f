"""Completed sides in evidential training: learnt from, and heard, as far as they are trusted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmend.methods.risa import opinions as ev
from fedmend.methods.risa.network import EvidenceTop, EvidenceTopSpec, Objective
from fedmend.methods.risa.training import EvidenceTopModel, Watch
from fedmend.methods.risa.workers import EvidencePart, EvidenceTopWorker, HeadsPart
from fedmend.split.config import Settings
from fedmend.split.features import ALIGNED, MixedOrder

ROWS, CLASSES = 6, 3
TRUST = torch.tensor([1.0, 1.0, 0.6, 0.25, 0.0, 0.0], dtype=torch.float64)


def model_of(how: Objective) -> EvidenceTopModel:
    torch.manual_seed(0)
    top = EvidenceTop(EvidenceTopSpec((3, 3), (4,), CLASSES, joint=how.joint > 0)).double()
    model = EvidenceTopModel(
        top,
        how,
        Settings(batch_size=ROWS, precision="float64"),
        torch.device("cpu"),
        names=["bank", "telco"],
        segments=[[ALIGNED, ROWS]],
        watch=Watch(ROWS, torch.device("cpu")),
    )
    model.set_targets(np.arange(ROWS) % CLASSES)
    model.walk(MixedOrder([np.arange(ROWS)], [ROWS], 1, torch.device("cpu")))
    model.reliable = {"telco": TRUST}
    return model


def sides() -> list[Tensor]:
    """Embeddings of six rows, and last of the mean row, by party."""
    torch.manual_seed(1)
    return [torch.randn(ROWS + 1, 3, dtype=torch.float64) for _ in range(2)]


def test_the_loss_of_a_completed_side_by_hand():
    how = Objective(fusion="dempster", fused=1.0, party=1.0, imputed=False)
    model, (bank, telco) = model_of(how), sides()
    total, fused = model.judge([bank, telco], torch.arange(ROWS))
    between = telco[-1] + TRUST[:, None] * (telco[:-1] - telco[-1])
    own, theirs = (
        how.opinion(model.top.head(number, side))
        for number, side in enumerate((bank[:-1], between))
    )
    targets = torch.arange(ROWS) % CLASSES
    # The party's own head learns from a row as far as its side is trusted ...
    lost = [ev.loss(own, targets).mean()]
    lost.append((ev.loss(theirs, targets) * TRUST).sum() / TRUST.sum())
    # ... and is heard on it as far: Shafer's discount.
    heard = ev.dempster(own, ev.discount(theirs, TRUST[:, None].float()))
    lost.append(ev.loss(heard, targets).mean())
    torch.testing.assert_close(total.double(), torch.stack(lost).sum().double())
    assert fused is not None
    torch.testing.assert_close(fused[:, :-1], heard.belief.detach())


def test_nothing_is_learnt_by_a_party_from_sides_that_are_not_trusted():
    model = model_of(Objective(fused=0.0, party=1.0, imputed=False))
    bank, telco = sides()
    telco.requires_grad_()
    total, _ = model.judge([bank, telco], torch.arange(ROWS))
    total.backward()
    assert telco.grad is not None
    moved = telco.grad[:ROWS].abs().sum(1) > 0
    assert bool(moved.any()) and not bool((moved & (TRUST == 0)).any())
    # Rows that are not trusted at all stand where the mean row does, and teach it nothing.
    alone = model_of(Objective(fused=0.0, party=1.0, imputed=False))
    alone.reliable = {"telco": (TRUST == 1).double()}
    again = telco.detach().clone().requires_grad_()
    alone.judge([bank, again], torch.arange(ROWS))[0].backward()
    assert again.grad is not None
    assert not again.grad[-1].any()


@pytest.mark.parametrize("likely", [True, False])
def test_pseudo_labels_among_likelihoods_are_certain_classes(likely):
    model = model_of(Objective())
    if likely:
        model.set_likelihoods(np.full((ROWS, CLASSES), 0.5))
    labels = SimpleNamespace(classes_=["a", "b", "c"])
    made, mine = (HeadsPart([], labels, model.top, model.how) for _ in range(2))
    made.pseudo["telco"] = {"label": np.array([1, 0, 2]), "chosen": np.array([True, True, False])}
    worker = EvidenceTopWorker.__new__(EvidenceTopWorker)
    worker.trained, worker.device, worker.model = model, torch.device("cpu"), "m"
    state = {"parts": {"f_ST": EvidencePart(top=made), "m": EvidencePart(top=mine)}}
    worker.site = SimpleNamespace(name="bank", state=state)
    worker.take_labels("f_ST", "telco", 3)
    assert model.targets is not None
    wanted = [[0.5, 0.5, 0.5], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]] if likely else [2, 1, 0]
    assert model.targets[[2, 3, 4]].tolist() == wanted
    assert mine.pseudo["telco"] is made.pseudo["telco"]
