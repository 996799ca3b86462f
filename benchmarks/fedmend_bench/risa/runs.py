"""One run of `fedmend bench risa`: one method on one data set at one overlap with one seed."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedmend.learn.calibration import calibration_error, reliability
from fedmend_bench.risa.data import ALONE, LABELS, PARTNER, World, load_sides, tear
from fedmend_bench.risa.methods import Size, fit, make
from fedmend_bench.simulation import wait

DECILES = 10


@dataclass(frozen=True)
class Part:
    """One run. overlap: in percent. rows, test: at most so many (None: all)."""

    data: str
    method: str
    overlap: float
    seed: int
    rows: int | None = None
    test: int | None = None
    epochs: int | None = None
    device: str = "cpu"
    parties: int = 2


def start() -> None:
    """In every process that runs parts."""
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True


def run_part(part: Part) -> dict[str, Any]:
    """Fit and score one method; all shares in percent."""
    sides = load_sides(part.data, part.seed, part.rows, part.test, part.parties)
    world = tear(sides, part.overlap / 100, part.seed, part.device)
    rows = len(sides.train[LABELS])
    size = Size(sides.is_image, world.overlap, rows, part.epochs, part.device)
    model = make(part.method, size, part.seed)
    began = time.perf_counter()
    fit(model, world)
    wait(part.device)
    seconds = time.perf_counter() - began
    scores = model.evaluate(world.fed.on("test"))
    found = asdict(part) | {
        "metric": sides.metric,
        "value": 100 * scores[sides.metric],
        "seconds": seconds,
        "epochs run": len(model.history_),
        "accuracy": 100 * scores["accuracy"],
        "auc": 100 * scores["auc"],
        "log_loss": scores["log_loss"],
    }
    return found | _one_sided(model, world, sides.metric) | _trust(model, world)


def _one_sided(model: Any, world: World, metric: str) -> dict[str, float]:
    """The same test rows, known to one party only."""
    alone = world.fed.on(ALONE)
    found = {"label party's side": 100 * model.evaluate(alone, rows=LABELS)[metric]}
    if hasattr(model, "network_") and PARTNER in model.network_.parties:
        outputs = model.predict_proba(alone, rows=PARTNER)
        assert model.classes_ is not None
        right = model.classes_[outputs.argmax(1)] == world.test_labels
        found["partner's side, accuracy"] = 100 * float(right.mean())
    return found


def _trust(model: Any, world: World) -> dict[str, Any]:
    """What doubt is worth: errors by decile, ranking of errors, accuracy of the surest half."""
    test = world.fed.on("test")
    outputs = model.predict_proba(test)
    assert model.classes_ is not None
    wrong = model.classes_[outputs.argmax(1)] != world.test_labels
    number = {name: place for place, name in enumerate(model.classes_.tolist())}
    truth = np.array([number.get(each, -1) for each in world.test_labels.tolist()])
    found: dict[str, Any] = {
        "trust": doubt_scores(wrong, 1 - outputs.max(1)),
        "calibration error": calibration_error(outputs, truth),
        "reliability": reliability(outputs, truth),
    }
    if hasattr(model, "predict_uncertainty"):
        found["uncertainty"] = doubt_scores(wrong, np.asarray(model.predict_uncertainty(test)))
    if hasattr(model, "pseudo_labels"):
        found["pseudo-labels"] = pseudo_scores(
            model.pseudo_labels(PARTNER), model.classes_, world.partner_labels
        )
    return found


def pseudo_scores(
    told: dict[str, np.ndarray], classes: np.ndarray, truth: np.ndarray
) -> dict[str, Any]:
    """How many of the partner's rows were labelled, and how many rightly, before and after
    selection: {} where the method made no labels."""
    if not told:
        return {}
    right = classes[told["label"]] == truth
    found: dict[str, Any] = {}
    for name, rows in (("before", told["chosen"]), ("after", told["kept"])):
        found[f"rows {name}"] = int(rows.sum())
        found[name] = float(right[rows].mean()) if rows.any() else None
    return found


def doubt_scores(wrong: np.ndarray, doubt: np.ndarray) -> dict[str, Any]:
    """Error rate by decile of doubt, AUROC of doubt against error, accuracy where surest.

    >>> doubt_scores(np.array([False, False, True, True]), np.array([0.1, 0.2, 0.8, 0.9]))["auroc"]
    1.0
    """
    from sklearn.metrics import roc_auc_score

    order = np.argsort(doubt, kind="stable")
    return {
        "errors by decile": [float(wrong[part].mean()) for part in np.array_split(order, DECILES)]
        if len(order) >= DECILES
        else [],
        "auroc": float(roc_auc_score(wrong, doubt)) if 0 < wrong.mean() < 1 else float("nan"),
        "accuracy of the surest half": float(1 - wrong[order[: max(1, len(order) // 2)]].mean()),
    }
