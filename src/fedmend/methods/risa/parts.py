"""What a party keeps of an evidential model: encoder, weights, mean row, trust; never sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedmend.data.encode import Encoder
from fedmend.data.labels import LabelEncoder
from fedmend.errors import DataError, NotFitted
from fedmend.federation.site import Site
from fedmend.methods.risa.columns import Scores
from fedmend.methods.risa.ensemble import bottom_of
from fedmend.methods.risa.heads import EvidenceTop, EvidenceTopSpec, Objective
from fedmend.methods.risa.imputation import MeanRow
from fedmend.methods.risa.trust import Calibration
from fedmend.split.parts import FILE, BottomPart, _weights, read_file, write_file

__all__ = ["EvidencePart", "HeadsPart", "load_part", "new_part", "part_of", "save_part"]

_PARTS = "evidence parts"


@dataclass
class HeadsPart:
    """The label party's: heads, classes, and the imputed embedding of each party's side.

    names: the feature parties in the order of the heads. pseudo: pseudo-labels of rows that have
    none, kept in memory only (see `EvidenceTopWorker.pseudo_labels`). foreign: the heads were sent
    in from outside.
    """

    names: list[str]
    labels: LabelEncoder
    module: EvidenceTop
    how: Objective
    calibration: Calibration = field(default_factory=Calibration)
    imputed: dict[str, Tensor] = field(default_factory=dict)
    pseudo: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    foreign: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "labels": self.labels.to_dict(),
            "spec": self.module.spec.to_dict(),
            "weights": _weights(self.module),
            "how": self.how.to_dict(),
            "calibration": self.calibration.to_wire(),
            "imputed": {name: value.cpu() for name, value in self.imputed.items()},
            "foreign": self.foreign,
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> HeadsPart:
        module = EvidenceTop(EvidenceTopSpec.from_dict(saved["spec"]))
        module.to(next(iter(saved["weights"].values())).dtype).load_state_dict(saved["weights"])
        return cls(
            list(saved["names"]),
            LabelEncoder.from_dict(saved["labels"]),
            module,
            Objective.from_dict(saved["how"]),
            Calibration.from_wire(saved["calibration"]),
            dict(saved["imputed"]),
            foreign=bool(saved["foreign"]),
        )


@dataclass
class EvidencePart:
    """Everything one party holds of one model; scores: its additive evidence."""

    bottom: BottomPart | None = None
    mean: MeanRow | None = None
    heads: HeadsPart | None = None
    scores: Scores | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "bottom": self.bottom.to_wire() if self.bottom else None,
            "mean": self.mean.to_wire() if self.mean else None,
            "heads": self.heads.to_wire() if self.heads else None,
            "scores": self.scores.to_wire() if self.scores else None,
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> EvidencePart:
        return cls(
            _bottom(saved["bottom"]) if saved["bottom"] else None,
            MeanRow.from_wire(saved["mean"]) if saved["mean"] else None,
            HeadsPart.from_wire(saved["heads"]) if saved["heads"] else None,
            Scores.from_wire(saved["scores"]) if saved["scores"] else None,
        )


def _bottom(saved: Mapping[str, Any]) -> BottomPart:
    module = bottom_of(saved["spec"])
    module.to(next(iter(saved["weights"].values())).dtype).load_state_dict(saved["weights"])
    return BottomPart(Encoder.from_dict(saved["encoder"]), module)  # type: ignore[arg-type]


def part_of(site: Site, model: str) -> EvidencePart:
    """The part of a model this site holds."""
    parts: dict[str, EvidencePart] = site.state.setdefault(_PARTS, {})
    if model not in parts:
        raise NotFitted(
            f"party {site.name!r} holds no part of model {model!r}. Mend: fit it, or load it"
        )
    return parts[model]


def new_part(site: Site, model: str) -> EvidencePart:
    parts: dict[str, EvidencePart] = site.state.setdefault(_PARTS, {})
    return parts.setdefault(model, EvidencePart())


def drop_part(site: Site, model: str) -> None:
    site.state.setdefault(_PARTS, {}).pop(model, None)


def save_part(site: Site, model: str, path: str) -> None:
    write_file(site.folder(path) / FILE, part_of(site, model).to_wire())


def load_part(site: Site, model: str, path: str) -> None:
    saved = read_file(site.folder(path) / FILE, site.name)
    if "heads" not in saved:
        raise DataError(
            f"{path} holds another kind of model", party=site.name, mend="load it with its method"
        )
    site.state.setdefault(_PARTS, {})[model] = EvidencePart.from_wire(saved)
