"""What a party keeps of a trained split model: encoder and weights, in memory and on disk.

A part never leaves its party. On disk it is one file of wire bytes: typed and length-checked, no
pickle, no code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from torch import Tensor, nn

from fedmend._files import write_whole
from fedmend.data.encode import Encoder, LabelEncoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, NotFitted, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.site import Site
from fedmend.learn.nets import Bottom, BottomSpec, Top, TopSpec
from fedmend.split.imputed import ImputedEmbeddings
from fedmend.split.scaling import Scaling

FILE = "part.fmw"
MANIFEST = "model.json"


BOTTOMS: list[Callable[[Mapping[str, Any]], nn.Module | None]] = []
"""Further kinds of bottoms: from a saved spec to the module, None where it is not of the kind."""
TOPS: dict[str, tuple[Callable[[Any], Any], type[Any]]] = {"top": (Top, TopSpec)}
"""Kinds of tops that can be kept: how to build the module, and the spec it is built from."""


@dataclass
class BottomPart:
    """A bottom and the encoder that feeds it."""

    encoder: Encoder
    module: Any

    def to_wire(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder.to_dict(),
            "spec": self.module.spec.to_dict(),
            "weights": weights_of(self.module),
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> BottomPart:
        others = (build(saved["spec"]) for build in BOTTOMS)
        module = next(filter(None, others), None) or Bottom(BottomSpec.from_dict(saved["spec"]))
        return cls(Encoder.from_dict(saved["encoder"]), filled(module, saved["weights"]))


@dataclass
class TopPart:
    """`names` are the feature parties in the order of the top's inputs.

    kind: the name of the module's class among `TOPS`. imputed: the embedding of a party that does
    not know a row, where the top has learnt that. foreign: it was sent in from outside. scaling:
    how far outputs are taken at their word, by kind of row (`features.kind_of`).
    """

    names: list[str]
    labels: LabelEncoder
    module: Any
    kind: str = "top"
    imputed: ImputedEmbeddings | None = None
    foreign: bool = False
    scaling: dict[str, Scaling] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "kind": self.kind,
            "labels": self.labels.to_dict(),
            "spec": self.module.spec.to_dict(),
            "weights": weights_of(self.module),
            "sides": self.imputed.to_wire() if self.imputed else None,
            "foreign": self.foreign,
            "scaling": {kind: each.to_wire() for kind, each in self.scaling.items()},
        }

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> TopPart:
        kind = saved.get("kind", "top")
        build, spec = TOPS[kind]
        module = filled(build(spec.from_dict(saved["spec"])), saved["weights"])
        # Models of earlier versions impute nothing.
        imputed = ImputedEmbeddings.from_wire(saved["sides"]) if saved.get("sides") else None
        labels, foreign = LabelEncoder.from_dict(saved["labels"]), bool(saved.get("foreign"))
        scaling = {k: Scaling.from_wire(each) for k, each in saved.get("scaling", {}).items()}
        return cls(list(saved["names"]), labels, module, kind, imputed, foreign, scaling)


@dataclass
class Part:
    """Everything one party holds of one model; pieces that are not there are None.

    alone: another model, whole, for rows that nobody but this party knows (`keep_own_model`).
    gradient: what the party was sent to learn from alone; not kept on disk. few, thin: whether
    the weights of the top, of the bottom would tell of few rows that taught them. since: the rows
    that did since the bottom last left or was attached, None where they are enough. mark: what a
    saved part of this kind has and others have not.
    """

    mark: ClassVar[str] = "top"

    bottom: BottomPart | None = None
    top: Any = None
    alone: Part | None = None
    gradient: Tensor | None = None
    few: bool = False
    thin: bool = False
    since: np.ndarray | None = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def is_thin(self) -> bool:
        return self.thin or (self.since is not None and len(self.since) > 0)

    @classmethod
    def pieces(cls) -> dict[str, type[Any]]:
        """What is kept on disk, by name, and its type."""
        return {"bottom": BottomPart, "top": TopPart, "alone": Part}

    def own_bottom(self, party: str) -> BottomPart:
        if self.bottom is None:
            raise DataError("holds no bottom model", party=party, mend="fit the model")
        return self.bottom

    def to_wire(self) -> dict[str, Any]:
        held = {name: getattr(self, name) for name in self.pieces()}
        pieces = {name: None if each is None else each.to_wire() for name, each in held.items()}
        return pieces | {"few": self.few, "thin": self.is_thin}

    @classmethod
    def from_wire(cls, saved: Mapping[str, Any]) -> Self:
        # Models of earlier versions have fewer pieces.
        known = {name: kind for name, kind in cls.pieces().items() if saved.get(name)}
        made = cls(**{name: kind.from_wire(saved[name]) for name, kind in known.items()})
        made.few, made.thin = bool(saved.get("few")), bool(saved.get("thin"))
        return made


def part_of(site: Site, model: str) -> Any:
    """The part of a model this site holds."""
    parts: dict[str, Part] = site.state.setdefault("parts", {})
    if model not in parts:
        raise NotFitted(
            f"party {site.name!r} holds no part of model {model!r}. Mend: fit it, or load it"
        )
    return parts[model]


def new_part(site: Site, model: str, kind: type[Part] = Part) -> Any:
    parts: dict[str, Part] = site.state.setdefault("parts", {})
    return parts.setdefault(model, kind())


def keep_part(site: Site, model: str, part: Any) -> None:
    site.state.setdefault("parts", {})[model] = part


def file_of(site: Site, path: str, member: str = "") -> Path:
    """Where a party keeps its part of the model `path`, or of one member of it (a plain word)."""
    if member and not re.fullmatch(r"[a-z0-9-]{1,64}", member):
        raise ConfigError(f"{member!r} is no name for a member. Mend: letters, digits and hyphens")
    return site.folder(path) / (f"part-{member}.fmw" if member else FILE)


def save_part(site: Site, model: str, path: str, member: str = "") -> None:
    write_file(file_of(site, path, member), part_of(site, model).to_wire())


def load_part(site: Site, model: str, path: str, kind: type[Any] = Part, member: str = "") -> None:
    saved = read_file(file_of(site, path, member), site.name)
    if kind.mark not in saved:
        raise DataError(
            f"{path} holds another kind of model", party=site.name, mend="load it with its method"
        )
    keep_part(site, model, kind.from_wire(saved))


# ---------------------------------------------------------------------------------- own models

_OWN_MODELS = "learn.own_model"
_OUTPUTS = "learn.outputs"


def keep_own_model(site: Site, dataset: str, part: Part) -> None:
    """At the party: a whole model of its columns, learnt with the labels of this table.

    Where the labels were corrected by a network of the label party's columns only, that network has
    learnt from more rows than any that needs a partner, and nothing a partner knows can help with
    rows that only this party has. So it is kept with the corrected table, becomes part of whatever
    is trained on it, and answers for those rows.
    """
    site.state.setdefault(_OWN_MODELS, {})[dataset] = part


def own_model(site: Site, dataset: str) -> Part | None:
    """At the party: what was kept for a table; None where nothing was."""
    found = site.state.get(_OWN_MODELS, {}).get(dataset)
    return found if isinstance(found, Part) else None


# ---------------------------------------------------------------------------------- outputs


class Outputs(NamedTuple):
    """What a model says of rows: their ids [n], None of those not known, and [n, C] (or [n])."""

    ids: np.ndarray
    values: np.ndarray
    classes: list[Any]


def leave_outputs(
    site: Site, name: str, ids: np.ndarray, values: np.ndarray, classes: Sequence[Any]
) -> None:
    """At the label party: leave a model's outputs under a name, for `take_outputs`."""
    site.state.setdefault(_OUTPUTS, {})[name] = Outputs(ids, values, list(classes))


def take_outputs(site: Site, name: str, ids: np.ndarray) -> Outputs:
    """What was left under a name, if it is of the rows of these ids in this order."""
    found: Outputs = site.state[_OUTPUTS].pop(name)
    if not np.array_equal(found.ids, ids):
        raise Refused(
            site.name,
            f"the outputs under {name!r} are of other rows than those they would speak for",
            "leave outputs of the same rows, in the same order",
        )
    return found


def ids_of(table: Table, rows: np.ndarray) -> np.ndarray:
    """The ids of rows at these places of a table, None for -1."""
    found, known = np.full(len(rows), None), rows >= 0
    found[known] = table.ids[rows[known]]
    return found


# ---------------------------------------------------------------------------------- files


def write_file(path: Path, value: Any) -> None:
    """A wire value as a file."""
    write_whole(path, wire.encode(value), lasting=True)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2).encode(), lasting=True)


def begin_model(folder: Path) -> None:
    """Make the folder of a model, which is none until its manifest is written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot save a model in {folder}: {error.strerror}",
            mend="name a folder that can be written to",
        ) from error


def read_json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", mend=f"name the folder of {what}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}", mend="take it from a backup") from error


def read_file(path: Path, party: str | None = None) -> Any:
    try:
        return wire.decode(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", party=party, mend="name what was saved"
        ) from error
    except WireError as error:
        seen = str(error).partition(". Mend:")[0]  # what the wire advises is about messages
        raise DataError(
            f"{path} is damaged: {seen}", party=party, mend="take it from a backup or fit again"
        ) from error


def weights_of(module: nn.Module) -> dict[str, Any]:
    return {key: value.detach().cpu() for key, value in module.state_dict().items()}


def filled(module: Any, weights: dict[str, Any]) -> Any:
    dtype = next(value.dtype for value in weights.values() if value.is_floating_point())
    module.to(dtype).load_state_dict(weights)
    return module
