"""The stages train and evaluate: each method under each seed, each with a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._json import write_json
from fedmend.errors import ConfigError
from fedmend.flow.scoring import Reference, how_sure, measure
from fedmend.methods.registry import make, method_class
from fedmend.report.labelling import Labelling
from fedmend.report.record import MethodRun
from fedmend.split.label_dp import in_words

if TYPE_CHECKING:
    from fedmend.federation import Federation
    from fedmend.flow.manifest import StageEntry
    from fedmend.flow.plan import Method, Plan
    from fedmend.flow.steps import Steps

__all__ = ["MODEL_FOLDER", "REVIEW_FOLDER", "Training"]

MODEL_FOLDER = "model"
SEEDS_FOLDER = "seeds"
REVIEW_FOLDER = "labels"
CHECKPOINTS = "checkpoints"


class Training:
    """One method under one seed, on one of the federations there are."""

    def __init__(
        self,
        steps: Steps,
        plan: Plan,
        method: Method,
        seed: int,
        fed: Federation,
        inputs: dict[str, str],
    ) -> None:
        self.steps = steps
        self.plan = plan
        self.method = method
        self.seed = seed
        self.fed = fed
        self.inputs = inputs
        self.work = steps.place.folder
        self.unit = f"{method.slug}-{seed}"
        first = seed == plan.seeds[0]
        self.first = first
        # Over machines a party keeps a model under the last name of its path alone.
        self.model = (
            f"{MODEL_FOLDER}/{method.slug}"
            if first
            else f"{SEEDS_FOLDER}/{method.slug}-seed-{seed}"
        )
        self._estimator: Any = None

    @property
    def title(self) -> str:
        several = f", seed {self.seed}" if len(self.plan.seeds) > 1 else ""
        return f"{self.method.title}{several}"

    @property
    def turns(self) -> str:
        """What training goes by."""
        return "rounds" if self.plan.horizontal else "epochs"

    # ------------------------------------------------------------------ train

    def train(self) -> tuple[dict[str, Any], StageEntry]:
        """What is known of the training: parameters, history, costs."""
        stored = f"stages/train/{self.unit}.json"
        return self.steps.do(
            "train",
            lambda mark: self._fit(mark, self.work / stored),
            lambda: _read(self.work / stored),
            unit=self.unit,
            title=self.title,
            settings={
                "method": self.method.name,
                "params": self.method.params,
                "seed": self.seed,
                "device": self.plan.device,
                "alone": list(self.plan.alone) if self.first else [],
            },
            inputs=self.inputs,
            paths=[stored, self.model],
            says=lambda told: f"{len(told['history'])} {self.turns} in {told['seconds']:.1f} s",
        )

    def _fit(self, mark: str, stored: Path) -> dict[str, Any]:
        plan, listener = self.plan, self.steps.listener
        listener.stage(f"Training {self.title}")
        began = time.perf_counter()
        ledger = self.fed.ledger
        crossings, crossed = len(ledger), ledger.total_bytes()
        estimator = make(self.method.name, self.method.params, self.seed)
        if plan.horizontal and estimator.watch is None:
            estimator.set_params(watch="test")
        title = self.turns
        estimator.fit(
            self.fed,
            progress=lambda _, done, total, facts: listener.progress(title, done, total, facts),
            checkpoint=self.work / CHECKPOINTS / f"{self.unit}-{mark[:8]}",
            resume=True,
        )
        told = {
            "params": estimator.get_params(),
            "history": list(estimator.history_),
            "seconds": time.perf_counter() - began,
            "crossings": len(ledger) - crossings,
            "bytes": ledger.total_bytes() - crossed,
            "notes": [],
        }
        if estimator.privacy_ is not None:
            told["notes"].append(in_words(estimator.privacy_))
        estimator.save(self.work / self.model)
        if self.first:
            told["notes"] += estimator.hand_out(self.work / self.model, parties=plan.alone)
        write_json(stored, told)
        self._estimator = estimator
        return _read(stored)

    @property
    def estimator(self) -> Any:
        """The fitted method; loaded when it was trained before."""
        if self._estimator is None:
            loaded = method_class(self.method.name).load(self.work / self.model, self.fed)
            self._estimator = loaded
        return self._estimator

    # ------------------------------------------------------------------ evaluate

    def evaluate(
        self, trained: dict[str, Any], entry: StageEntry, reference: Reference, test: dict[str, str]
    ) -> MethodRun:
        """The method's scores on the test rows, and all that the report tells of it.

        test: hashes of what the test rows are.
        """
        stored = f"stages/evaluate/{self.unit}.json"
        review = f"{REVIEW_FOLDER}/{self.method.slug}"
        told, _ = self.steps.do(
            "evaluate",
            lambda _: self._score(self.work / stored, reference, self.work / review),
            lambda: _read(self.work / stored),
            unit=self.unit,
            title=self.title,
            settings={
                "metrics": list(self.plan.metrics),
                "against": list(reference.parties),
                "own": reference.own,
                "label_review": self.plan.label_review,
            },
            inputs={"train": entry.product, **test},
            paths=[stored, review] if self._reviews else [stored],
            says=lambda told: ", ".join(
                f"{name} {value:.3f}" for name, value in told["scores"].items() if value is not None
            ),
        )
        return self.run(trained, told)

    def run(self, trained: dict[str, Any], told: dict[str, Any] | None = None) -> MethodRun:
        """As the record has it."""
        told = told or {"scores": {}}
        return MethodRun(
            name=self.method.name,
            title=self.method.title,
            seed=self.seed,
            params=trained["params"],
            history=trained["history"],
            seconds=trained["seconds"],
            about=self.method.about,
            crossings=trained["crossings"] + told.pop("crossings", 0),
            bytes=trained["bytes"] + told.pop("bytes", 0),
            **told,
        )

    @property
    def _reviews(self) -> bool:
        return self.first and self.plan.label_review

    def _score(self, stored: Path, reference: Reference, review: Path) -> dict[str, Any]:
        estimator = self.estimator
        ledger = self.fed.ledger
        crossings, crossed = len(ledger), ledger.total_bytes()
        test = self.steps.fed.on("test")  # of all parties, whoever the method was trained with
        told: dict[str, Any] = {
            "scores": chosen(measure(estimator, test, reference), self.plan.metrics),
            "crossings": len(ledger) - crossings,
            "bytes": ledger.total_bytes() - crossed,
        }
        if self.first and estimator.expertise_ is not None:
            suspicious = estimator.review_labels(path=review if self._reviews else None)
            told["labelling"] = Labelling.of(estimator, suspicious).to_dict()
        if self.first and (found := how_sure(estimator, test, reference)) is not None:
            told["uncertainty"] = found.to_dict()
        write_json(stored, told)
        return _read(stored)


def chosen(scores: dict[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """The scores asked for."""
    if not metrics:
        return dict(scores)
    wrong = [metric for metric in metrics if metric not in scores]
    if wrong:
        raise ConfigError(
            f"evaluate.metrics: {wrong[0]!r} does not fit this label. "
            f"Mend: choose from {', '.join(scores)}"
        )
    return {metric: scores[metric] for metric in metrics}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
