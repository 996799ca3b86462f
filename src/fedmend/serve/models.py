"""The models of a run folder: which there are, and where their parts lie.

A model is a folder with ``model.json`` and, for every party, a folder with its part. After a run
over machines the parts are in the parties' kits; `assembled` brings parts that were handed over
together again.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend._json import reading
from fedmend.data.encode import Encoder
from fedmend.data.schema import Schema
from fedmend.deploy.flare_run import RUN_NAME
from fedmend.deploy.party_file import load_party
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.federation.engines.flare.host import RUN_FOLDER
from fedmend.flow.config import slug_of
from fedmend.flow.training import MODEL_FOLDER
from fedmend.methods.horizontal.worker import MODEL as COMMON_MODEL
from fedmend.methods.registry import HORIZONTAL, METHODS, method_class
from fedmend.report.record import RunRecord
from fedmend.split.parts import FILE, MANIFEST, read_file, read_json

DAMAGED = "take the model from a backup, or fit it again"


@dataclass(frozen=True)
class KeptModel:
    """A saved model: its method's name, how it is shown, its folder, and what the manifest says."""

    name: str
    title: str
    folder: Path
    manifest: dict[str, Any]
    run: str

    @property
    def horizontal(self) -> bool:
        return self.name in HORIZONTAL

    @property
    def label_party(self) -> str | None:
        return self.manifest.get("label_party")

    @property
    def parties(self) -> list[str]:
        """Whose columns the model uses, and who decides."""
        names = [*self.manifest["parties"], self.label_party]
        return [name for name in dict.fromkeys(names) if name is not None]

    def schema(self, party: str) -> Schema | None:
        """The columns that the model expects of a party; None where its part is not here."""
        return schema_of(self.folder / party)


def schema_of(folder: Path) -> Schema | None:
    """The columns that the part of a model in a party's folder knows."""
    encoder = encoder_of(folder)
    return None if encoder is None else encoder.schema


def encoder_of(folder: Path) -> Encoder | None:
    """The encoder of a party's part in this folder, if it is there and has columns."""
    if not (folder / FILE).is_file():
        return None
    stored = read_file(folder / FILE, folder.name)
    with reading(folder / FILE, DAMAGED):
        # Trees have an encoder without a bottom model to feed.
        holder = stored if "encoder" in stored else stored["bottom"]
        return Encoder.from_dict(holder["encoder"]) if holder and holder["encoder"] else None


def chosen(run: Path, method: str | None) -> KeptModel:
    """A model that the run has left: the asked one, or the best."""
    record = RunRecord.load(run)
    names = {each.title: each.name for each in record.methods}
    folders = {title: run / MODEL_FOLDER / slug_of(title) for title in names}
    kept = [title for title in names if (folders[title] / MANIFEST).is_file()]
    if not kept:
        raise ConfigError(f"{run} holds no model. Mend: make the run again")
    if method is not None:
        asked = [title for title in kept if method in (title, slug_of(title), names[title])]
        if not asked:
            raise ConfigError(
                f"the run holds no model {method!r}. Mend: --method one of "
                + ", ".join(slug_of(title) for title in kept)
            )
        title = asked[0]
    else:
        best = record.best(among=kept)
        title = kept[0] if best is None else best.title
    folder = folders[title]
    return KeptModel(names[title], title, folder, read_manifest(folder), run_name(run))


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the ``model.json`` of a saved model says."""
    path = folder / MANIFEST
    stored = read_json(path, "a saved model")
    with reading(path, DAMAGED):
        parties = [*stored["parties"], stored.get("label_party")]
        if not all(isinstance(each, str | None) for each in parties):
            raise TypeError("parties must be names")
        if not isinstance(stored["method"], str):
            raise TypeError("method must be a name")
        return dict(stored)


def load_model(name: str, folder: Path, fed: Federation, *, alone: bool = False) -> Any:
    """The estimator of a saved model; whatever else is in its folder is a `DataError`.

    alone: without the parts of parties that are not there.
    """
    with reading(folder, DAMAGED):
        kind = method_class(name)
        if alone:
            return kind.of_manifest(read_manifest(folder) | {"alone": True}, folder, fed)
        return kind.load(folder, fed)


def run_name(run: Path) -> str:
    """Under which name parties on other machines keep their parts of a run."""
    kept = run / RUN_NAME
    if kept.is_file():
        with reading(kept, "make the run again"):
            return kept.read_text(encoding="utf-8").strip()
    return re.sub(r"[^A-Za-z0-9_-]", "-", run.resolve().name)[:60]


def name_of_class(class_name: str) -> str:
    """The method whose estimator this is."""
    found = [name for name, record in METHODS.items() if record.class_name == class_name]
    if not found:
        raise ConfigError(
            f"no method of this fedmend is called {class_name!r}. Mend: the version that made the "
            "model"
        )
    return found[0]


@contextmanager
def assembled(model: KeptModel, parts: Mapping[str, Path]) -> Iterator[KeptModel]:
    """The model with parts that lie in kits beside its own, for as long as it is used."""
    if not parts:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="fedmend-") as scratch:
        whole = Path(scratch) / model.folder.name
        shutil.copytree(model.folder, whole)
        for party, kit in parts.items():
            kept = part_in_kit(kit, model)
            if party not in model.parties:
                raise ConfigError(
                    f"--part {party}: the model has no part at {party!r}. "
                    f"Mend: one of {', '.join(model.parties)}"
                )
            shutil.copytree(kept, whole / party, dirs_exist_ok=True)
        yield replace(model, folder=whole)


def part_in_kit(kit: Path, model: KeptModel) -> Path:
    """Where a kit keeps the part of a model; the part's own folder may be named as well."""
    if (kit / FILE).is_file():
        return kit
    kept = kit / RUN_FOLDER / model.run / model.folder.name
    if not (kept / FILE).is_file():
        raise DataError(
            f"{kit} holds no part of {model.title} of the run {model.run!r}",
            party=kit.name,
            mend="name the kit that took part in this run",
        )
    return kept


def kept_in_kit(kit: Path, party: str, run: str | None, method: str | None) -> Path:
    """The folder of a model in a kit with which its party can decide."""
    some = f"{run or '*'}/{method or '*'}"
    kept = sorted((kit / RUN_FOLDER).glob(f"{some}/model.json"))
    others = sorted((kit / RUN_FOLDER).glob("*/*/model.json"))
    if not kept and others and not any((kit / RUN_FOLDER).glob(some)):
        raise ConfigError(f"{kit} holds no model {some!r}. Mend: one of {_options(others)}")
    if not kept:
        asked = "".join(f" {each!r}" for each in (run, method) if each)
        raise ConfigError(
            f"{kit} holds no model{asked} that can decide alone. Mend: for a party without "
            f'labels [predict] alone = ["{party}"] in the federation.toml of the run, and a method '
            "whose top can be handed out (vfl, risa; not boosting, not auto); "
            "fedmend party adopt takes a part that was handed over"
        )
    if len(kept) > 1:
        raise ConfigError(f"{kit} holds several models. Mend: one of {_options(kept)}")
    return kept[0].parent


def _options(manifests: list[Path]) -> str:
    return ", ".join(f"--run {each.parts[-3]} --method {each.parts[-2]}" for each in manifests)


def adopt(kit: Path, model: Path, run: str | None) -> list[str]:
    """Take a part that was made elsewhere into the kit; a line for each, of what it is."""
    party = load_party(kit)
    inside = model / MODEL_FOLDER if (model / MODEL_FOLDER).is_dir() else model
    found = sorted({*inside.glob(f"{party.name}/"), *inside.glob(f"*/{party.name}/")})
    taken = {each.parent.name: each for each in found if (each / FILE).is_file()}
    # Parties with the same columns have one model together, which lies beside its manifest.
    whole = [inside] if (inside / COMMON_MODEL).is_file() else list(inside.iterdir())
    common = {each.name: each for each in whole if (each / COMMON_MODEL).is_file()}
    if not taken and not common:
        raise ConfigError(
            f"{model} holds no part of {party.name!r}. Mend: name a run's folder or its model/"
        )
    source = model if inside != model else model.parent.parent
    name, told = run or run_name(source), []
    for method, each in {**common, **taken}.items():
        target = kit / RUN_FOLDER / name / method
        target.mkdir(parents=True, exist_ok=True)
        for file in each.iterdir():
            if file.is_file():
                shutil.copy2(file, target / file.name)
        what = f"{party.name}'s part of {method}" if method in taken else f"the model of {method}"
        told.append(f"{target}: {what}")
    return told
