"""One run of `fedmend bench risa`, and many of them in parallel processes.

A run is one method on one data set at one overlap with one seed. Its result is a JSON file, so
that a stopped benchmark goes on where it was; several processes share one GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend._json import write_json
from fedmend.errors import FedmendError
from fedmend.learn.calibration import calibration_error, reliability
from fedmend.learn.metrics import average_ranks
from fedmend.methods.network import SplitEstimator
from fedmend_bench.pool import side_by_side
from fedmend_bench.risa.data import ALONE, LABELS, PARTNER, World, load_sides, tear
from fedmend_bench.risa.methods import Size, make

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

    @property
    def file(self) -> str:
        method = self.method.replace(" ", "-").replace("()", "")
        return f"{self.data}.{method}.{self.overlap:g}.{self.seed}.json"


def run_part(part: Part) -> dict[str, Any]:
    """Fit and score one method; all shares in percent."""
    sides = load_sides(part.data, part.seed, part.rows, part.test)
    world = tear(sides, part.overlap / 100, part.seed, part.device)
    rows = len(sides.train[LABELS])
    size = Size(sides.is_image, world.overlap, rows, part.epochs, part.device)
    model = make(part.method, size, part.seed)
    began = time.perf_counter()
    model.fit(world.fed)
    _wait(part.device)
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


def _one_sided(model: SplitEstimator, world: World, metric: str) -> dict[str, float]:
    """The same test rows, known to one party only."""
    alone = world.fed.on(ALONE)
    found = {"label party's side": 100 * model.evaluate(alone, rows="all")[metric]}
    if PARTNER in model.network_.parties:
        outputs = model.predict_proba(alone, rows=PARTNER)
        assert model.classes_ is not None
        right = model.classes_[outputs.argmax(1)] == world.test_labels
        found["partner's side, accuracy"] = 100 * float(right.mean())
    return found


def _trust(model: SplitEstimator, world: World) -> dict[str, Any]:
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
    order = np.argsort(doubt, kind="stable")
    ranks = average_ranks(doubt)
    n_wrong = int(wrong.sum())
    pairs = n_wrong * (len(wrong) - n_wrong)
    above = float(ranks[wrong].sum()) - n_wrong * (n_wrong + 1) / 2
    return {
        "errors by decile": [float(wrong[part].mean()) for part in np.array_split(order, DECILES)]
        if len(order) >= DECILES
        else [],
        "auroc": above / pairs if pairs else float("nan"),
        "accuracy of the surest half": float(1 - wrong[order[: max(1, len(order) // 2)]].mean()),
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


# ---------------------------------------------------------------------------------- many


def run_parts(
    parts: Sequence[Part],
    folder: Path,
    processes: int,
    tell: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """All parts, those with a file in `folder` from there; failures are kept and told, not raised.

    A failed part is tried again by the next call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = [kept for part in parts if (kept := _kept(part, folder)) is not None]
    open_parts = [part for part in parts if _kept(part, folder) is None]
    for _, result in side_by_side(_guarded, open_parts, processes, _one_thread):
        if "failed" not in result:
            write_json(folder / Part(**_key(result)).file, result)
        found.append(result)
        if tell is not None:
            tell(len(found), len(parts), result)
    return found


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True


def _guarded(part: Part) -> dict[str, Any]:
    try:
        return run_part(part)
    except (FedmendError, RuntimeError) as error:
        return asdict(part) | {"failed": f"{type(error).__name__}: {error}"}


def _kept(part: Part, folder: Path) -> dict[str, Any] | None:
    path = folder / part.file
    if not path.is_file():
        return None
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same = all(kept.get(name) == value for name, value in asdict(part).items())
    return kept if same else None


def _key(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in Part.__dataclass_fields__}
