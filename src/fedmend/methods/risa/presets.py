"""Settings of RISA: as published, and for photographs (docs/risa.md says why they differ)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PHOTOGRAPHS", "PUBLISHED", "photographs"]

PUBLISHED: dict[str, Any] = {
    "fusion": "yager",
    "activation": "softplus",
    "members": 1,
    "solo": False,
    "additive": False,
    "joint": 0.0,
    "party_loss": 0.0,
    "fused_loss": 1.0,
    "imputed_opinions": True,
    "view_dropout": False,
    "self_training": "published",
    "threshold": 0.9,
    "per_class": False,
    "precise": False,
    "soft": False,
    "select": "uncertainty",
    "select_own": True,
    "final_threshold": 0.3,
    "final_share": 1.0,
    "calibrate": False,
    "guard": False,
    "min_overlap": 0.0,
    "validation": 0.0,
}

PHOTOGRAPHS: dict[str, Any] = {
    "fusion": "dempster",
    "members": 1,
    "solo": False,
    "additive": False,
    "bottom": (),
    "embedding": 256,
    "top": (256,),
    "conv": "whitened",
    "batch_size": 1024,
    "epochs": 30,
    "self_epochs": 12,
    "optimizer": "sgd",
    "lr": 0.4,
    "weight_decay": 2e-3,
    "augment": "weak",
    "smoothing": 0.1,
    "view_dropout": True,
    "party_loss": 0.1,
    "min_overlap": 0.125,
    "min_batches": 10,
    "threshold": 0.7,
    "per_class": False,
    "precise": False,
    "soft": False,
    "select_every": 10,
    "self_training": "none",
    "share_every": 5,
}


def photographs(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for photographs with changes; who names a size of batches gets it."""
    named = {"min_batches": 1} if "batch_size" in changes else {}
    return {**PHOTOGRAPHS, **named, **changes}
