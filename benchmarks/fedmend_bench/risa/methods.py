"""The methods of `fedmend bench risa`, each with the settings it gets on tables and on images.

Beside them on tables boosted trees, with the settings they have by default, and scikit-learn's in
the clear. Methods that train on aligned rows only see few rows in an epoch: they get smaller
batches and more epochs, so that all have about as many updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedmend.errors import ConfigError
from fedmend.methods.boosting.secureboost import LocalTrees, SecureBoost
from fedmend.methods.network import SplitEstimator
from fedmend.methods.risa.risa import RISA
from fedmend.methods.vertical.absent_partner import AbsentPartner
from fedmend.methods.vertical.fedcvt import FedCVT
from fedmend.methods.vertical.few_shot import FewShotVFL
from fedmend.methods.vertical.sfhtl import SFHTL
from fedmend.methods.vertical.ssl_vfl import SSLVFL
from fedmend.methods.vertical.vfl import VFL, Local, LocalVFL, RandomMatch
from fedmend_bench.clear import CLEAR, Clear
from fedmend_bench.risa.data import World

LEAST_UPDATES = 1000


@dataclass(frozen=True)
class Size:
    """What a method's settings depend on; `epochs` over all rows of the label party."""

    image: bool
    aligned: int
    rows: int
    epochs: int | None = None
    device: str = "cpu"


def shared(size: Size) -> dict[str, Any]:
    """Settings of methods that train on all rows."""
    if not size.image:
        return {
            "bottom": (64,),
            "embedding": 32,
            "top": (64,),
            "batch_size": 256,
            "epochs": size.epochs or 60,
            "patience": 8,
        }
    small = size.rows < 20_000
    return {
        "bottom": (),
        "embedding": 64 if small else 256,
        "top": (64,) if small else (256,),
        "conv": "cnn" if small else "whitened",
        "batch_size": 64 if small else 1024,
        "epochs": size.epochs or 30,
        "optimizer": "sgd",
        "lr": 0.05 if small else 0.4,
        "weight_decay": 5e-4 if small else 2e-3,
        "schedule": "one-cycle",
        "augment": "weak",
        "precision": "bf16" if size.device.startswith("cuda") else "float32",
        "validation": 0.0,
    }


def aligned_only(size: Size) -> dict[str, Any]:
    """Settings of methods that train on aligned rows alone."""
    settings = shared(size)
    if not size.image:
        batch = min(256, max(16, size.aligned // 10))
        return settings | {"batch_size": batch, "epochs": 3 * settings["epochs"], "patience": 20}
    batch = min(settings["batch_size"], 128 if size.aligned < 4000 else 512)
    updates = max(settings["epochs"] * size.aligned / batch, _least(size))
    # A step on fewer rows is noisier, and goes less far.
    lr = settings["lr"] * math.sqrt(batch / settings["batch_size"])
    epochs = math.ceil(updates * batch / size.aligned)
    return settings | {"batch_size": batch, "epochs": epochs, "lr": lr}


def _least(size: Size) -> int:
    """Fewest updates of a network on images; in proportion where the rows are a sample."""
    share = min(1.0, size.rows / 50_000) * (size.epochs or 20) / 20
    return max(1, round(LEAST_UPDATES * share))


def _ssl(size: Size) -> SplitEstimator:
    more = {"pretrain_epochs": max(1, (size.epochs or 20) // 3), "pretrain_batch": 512}
    return SSLVFL(**aligned_only(size) | (more if size.image else {}))


def _few_shot(size: Size) -> SplitEstimator:
    settings = aligned_only(size)
    if size.image:
        # Epochs are those of the head, on embeddings that stand still.
        settings |= {"epochs": 30, "batch_size": 64, "local_updates": _least(size), "rounds": 2}
        settings |= {"lr": shared(size)["lr"] / 4}
    else:
        settings |= {"local_updates": 600}
    return FewShotVFL(**settings)


def _sfhtl(size: Size) -> SplitEstimator:
    return SFHTL(**shared(size) | {"pretrain_epochs": 3 if size.image else 5} | _adam(size))


def _fedcvt(size: Size) -> SplitEstimator:
    return FedCVT(**shared(size) | _adam(size))


def _adam(size: Size) -> dict[str, Any]:
    """Losses on representations have no bound, and with large steps of SGD they run away."""
    return {"optimizer": "adam", "lr": 2e-3, "weight_decay": 1e-4} if size.image else {}


def _risa(size: Size, *, paper: bool = False, **changes: Any) -> SplitEstimator:
    settings = shared(size)
    if not size.image:
        settings = {key: settings[key] for key in ("bottom", "embedding", "top")}
        settings |= {"epochs": size.epochs} if size.epochs else {}
    elif not paper:
        # Its own schedule, and held-out aligned rows, on which its trust rests.
        kept = ("bottom", "embedding", "top", "conv", "batch_size", "lr", "precision")
        settings = {key: settings[key] for key in kept}
        settings |= {"epochs": size.epochs} if size.epochs else {}
        return RISA.for_images(**settings | changes)
    build = RISA.paper if paper else RISA
    known = {key: value for key, value in settings.items() if key in RISA.parameter_names()}
    return build(**known | changes)


def _with_settings(cls: type[SplitEstimator], **more: Any) -> Callable[[Size], SplitEstimator]:
    return lambda size: cls(**shared(size) | more)


SELF_TRAINED: dict[str, Any] = {"threshold": 0.7, "final_threshold": 0.3}
METHODS: dict[str, Callable[[Size], Any]] = {
    "Local": _with_settings(Local),
    "VFL": lambda size: VFL(**aligned_only(size)),
    "LocalVFL": _with_settings(LocalVFL),
    "RandomMatch": _with_settings(RandomMatch),
    "SSLVFL": _ssl,
    "SFHTL": _sfhtl,
    "FedCVT": _fedcvt,
    "FewShotVFL": _few_shot,
    "AbsentMean": _with_settings(AbsentPartner),
    "AbsentConcat": _with_settings(AbsentPartner, fusion="concat"),
    "RISA": _risa,
    "RISA paper()": lambda size: _risa(size, paper=True),
    # Pseudo-labels and selection, which are in use only where that is asked for.
    "RISA self-trained": lambda size: _risa(size, **SELF_TRAINED),
    # What sharing bottoms is worth, and to RISA without it.
    "AbsentMean shared": _with_settings(AbsentPartner, share_every=10),
    "RISA apart": lambda size: _risa(size, share_every=0),
}
# The rows of the paper's Table III, beside VFL (nothing) and RISA paper() (everything).
PLAIN: dict[str, Any] = {"objective": "joint", "final_threshold": 1.0}
METHODS |= {
    "IMP": lambda size: _risa(size, paper=True, threshold=None, **PLAIN),
    "IMP+ST": lambda size: _risa(size, paper=True, **PLAIN),
    "IMP+EVFL": lambda size: _risa(size, paper=True, threshold=None),
}
ABLATION = ("VFL", "IMP", "IMP+ST", "IMP+EVFL", "RISA paper()")
# Bottoms of tables are not alike.
ONLY_IMAGES = ("AbsentMean shared", "RISA apart")
BASELINES = tuple(name for name in METHODS if not name.startswith(("RISA", "IMP")))
TREES = ("LocalTrees", "SecureBoost")
METHODS |= {"LocalTrees": lambda size: LocalTrees(), "SecureBoost": lambda size: SecureBoost()}
ONLY_TABLES = (*TREES, *CLEAR)
ANY_OVERLAP = (
    "Local",
    "LocalTrees",
    *(name for name in CLEAR if "own" in name or "joined" in name),
)
"""To these the overlap makes no difference: one run stands for all."""


def make(method: str, size: Size, seed: int) -> Any:
    """An estimator ready to fit."""
    if method in CLEAR:
        return Clear(method, seed)
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}. Mend: one of {', '.join(METHODS)}")
    return METHODS[method](size).set_params(seed=seed)


def fit(model: Any, world: World) -> Any:
    """Fit an estimator, or a model in the clear, which is told who is who."""
    return model.fit(world.fed, world.same) if isinstance(model, Clear) else model.fit(world.fed)
