"""How a split network is built and trained: one object, which parties are sent in one wire form.

A setting is a field here and a parameter of the estimators of the same name; nobody in between
copies it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import torch

from fedmend._parameters import PROPER_SHARE, at_least, check_values, one_of
from fedmend.errors import ConfigError
from fedmend.learn.nets import CONVOLUTIONS, Spec
from fedmend.learn.optim import OptimizerSpec


@dataclass(frozen=True)
class Settings(Spec):
    """How to train; the same at every party.

    precision: "float32", "float64" (tests), or "bf16" (autocast).
    augment: "none", or "weak": in training images are flipped and shifted, a row's sides alike.
    schedule: "constant", or "one-cycle": the learning rate rises over the first fifth of
    `schedule_epochs` and falls to zero over the rest.
    epoch_steps: the least steps of an epoch; a small table is gone through several times in one.
    """

    batch_size: int = 256
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    precision: str = "float32"
    augment: str = "none"
    schedule: str = "constant"
    schedule_epochs: int = 0
    epoch_steps: int = 1

    def __post_init__(self) -> None:
        rules = {
            "augment": one_of(("none", "weak")),
            "schedule": one_of(("constant", "one-cycle")),
            "schedule_epochs": at_least(0 if self.schedule == "constant" else 1),
            "batch_size": at_least(1),
            "epoch_steps": at_least(1),
            "precision": one_of(("float32", "float64", "bf16")),
        }
        check_values(self, rules)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def dtype_name(self) -> str:
        return "float64" if self.precision == "float64" else "float32"

    def autocast(self, device: torch.device, *, cache: bool = True) -> AbstractContextManager[Any]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=cache)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        if "optimizer" not in values:  # of a prediction (`SplitConfig.to_predict`)
            return cls(**values)
        return cls(**{**values, "optimizer": OptimizerSpec.from_dict(values["optimizer"])})


@dataclass(frozen=True)
class SplitConfig:
    """A split network and how it is trained.

    bottom, top: widths of hidden layers; () makes that model linear.
    validation: the share of training rows held out; 0 trains on all, for all epochs.
    refit: with the length that held-out rows chose, train again on all rows; where there are few,
    more of them are held out first, so that they can choose.
    restarts: how often a training that collapses begins again (`SplitNetwork.fit`).
    patience: epochs without improvement on held-out rows before training stops; None never stops.
    options: what a method's own workers need to know besides, as wire values.
    seal: whether embeddings and gradients cross end-to-end encrypted, unread by the coordinator;
    None means between machines.
    label_dp: ε of randomised response, through which the training knows labels; None: as they are.
    """

    bottom: tuple[int, ...] = (64,)
    embedding: int = 32
    top: tuple[int, ...] = (64,)
    conv: str = "cnn"
    task: str = "auto"
    epochs: int = 50
    validation: float = 0.1
    refit: bool = False
    restarts: int = 0
    patience: int | None = 10
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    options: Mapping[str, Any] = field(default_factory=dict)
    seal: bool | None = None
    label_dp: float | None = None

    def __post_init__(self) -> None:
        check_values(self, _RULES)

    @classmethod
    def of(cls, params: Mapping[str, Any], **changes: Any) -> Self:
        """From an estimator's parameters, each of which has the name of a field."""
        one_cycle = params.get("schedule", "constant") != "constant"
        flat = {
            "name": params["optimizer"],
            "nesterov": one_cycle,
            "schedule_epochs": params["epochs"] if one_cycle else 0,
        } | {key: value for key, value in params.items() if key != "optimizer"}
        settings = Settings(
            **_named(Settings, flat), optimizer=OptimizerSpec(**_named(OptimizerSpec, flat))
        )
        shape = {key: tuple(flat[key]) for key in ("bottom", "top")}
        return cls(**_named(cls, flat) | shape | {"settings": settings} | changes)

    def to_wire(self) -> dict[str, Any]:
        """What is sent to the parties."""
        lists = {"bottom": list(self.bottom), "top": list(self.top)}
        return asdict(self) | lists

    def to_predict(self) -> dict[str, Any]:
        """What parties need to know of it to predict: how numbers are computed."""
        return {"settings": {"precision": self.settings.precision}}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        lists = {key: tuple(values[key]) for key in ("bottom", "top")}
        settings = Settings.from_dict(values["settings"])
        return cls(**_named(cls, values) | lists | {"settings": settings})

    def fingerprint(self, rows: int, names: list[str]) -> str:
        """Changes when a checkpoint would not continue the same training.

        Epochs may grow, and sealing changes nothing in it.
        """
        facts = asdict(self) | {"epochs": None, "rows": rows, "names": names}
        del facts["seal"]
        if self.label_dp is None:
            del facts["label_dp"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


_WIDTHS = ("positive widths", lambda widths: all(width >= 1 for width in widths))
_RULES = {
    "epochs": at_least(1),
    "restarts": at_least(0),
    "validation": PROPER_SHARE,
    "patience": ("at least 1 or None", lambda value: value is None or value >= 1),
    "bottom": _WIDTHS,
    "top": _WIDTHS,
    "conv": one_of(tuple(CONVOLUTIONS)),
    "label_dp": ("a positive ε or None", lambda value: value is None or 0 < value < math.inf),
    "embedding": at_least(1),
}


def _named(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of a dataclass."""
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


def resolve_device(name: str) -> torch.device:
    """ "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}, but no GPU is available. Mend: device='auto'")
    return torch.device(name)
