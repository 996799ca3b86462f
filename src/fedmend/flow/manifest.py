"""``manifest.json``: which stages a run went through, from what, with which settings, to what.

An entry tells a stage (of ``train`` and ``evaluate``: a method under a seed) by its fingerprint,
which is made of its settings and of the hashes of what it started from. A stage whose fingerprint
and outputs are as they were need not be done again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedmend._json import plain, typed, write_json
from fedmend._version import __version__
from fedmend.errors import ResumeError

__all__ = ["MANIFEST_FILE", "STAGES", "Manifest", "StageEntry", "fingerprint", "read_manifest"]

MANIFEST_FILE = "manifest.json"
FORMAT = 1
STAGES = (
    "align",
    "diagnose",
    "complete",
    "correct",
    "choose",
    "train",
    "evaluate",
    "report",
)
"""In their order."""


@dataclass
class StageEntry:
    """One stage that was done.

    unit: method and seed of a training, nothing otherwise. inputs, outputs: hashes by name and by
    path in the run folder; what is at a party stands under the party's name. reused: taken over
    by the last call of the run.
    """

    stage: str
    unit: str = ""
    title: str = ""
    started: str = ""
    seconds: float = 0.0
    fingerprint: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    crossings: int = 0
    bytes: int = 0
    reused: bool = False
    says: str = ""

    @property
    def product(self) -> str:
        """One hash of all that came out, for the stages that start from it."""
        return digest(self.outputs)


@dataclass
class Manifest:
    """The entries of a run in their order, kept in a file."""

    folder: Path
    title: str = ""
    engine: str = "local"
    recipe: str | None = None
    entries: list[StageEntry] = field(default_factory=list)

    def find(self, stage: str, unit: str = "") -> StageEntry | None:
        """What was done of this stage before."""
        same = (each for each in self.entries if (each.stage, each.unit) == (stage, unit))
        return next(same, None)

    def record(self, entry: StageEntry) -> None:
        """Put an entry in the place of the earlier one, and write the file."""
        self.forget(entry.stage, entry.unit)
        self.entries.append(entry)
        self.save()

    def forget(self, stage: str, unit: str) -> None:
        """As if this was never done."""
        self.entries = [each for each in self.entries if (each.stage, each.unit) != (stage, unit)]

    def forget_from(self, stage: str) -> None:
        """As if nothing was done from this stage on."""
        before = STAGES[: STAGES.index(stage)]
        self.entries = [each for each in self.entries if each.stage in before]
        self.save()

    def keep_only(self, done: list[tuple[str, str]]) -> None:
        """Drop entries of stages that the run no longer has, and put the rest in its order."""
        place = {each: at for at, each in enumerate(done)}
        kept = [each for each in self.entries if (each.stage, each.unit) in place]
        self.entries = sorted(kept, key=lambda each: place[each.stage, each.unit])
        self.save()

    def report(self, work: Path, sources: list[str], write: Callable[[], object]) -> None:
        """Do the last stage, whose page shows the manifest with all stages but itself."""
        entry = StageEntry("report", started=now())
        entry.inputs = {name: hash_of(work / name) for name in sources if (work / name).is_file()}
        entry.fingerprint = fingerprint("report", {}, entry.inputs)
        began = time.perf_counter()
        write()
        entry.seconds = time.perf_counter() - began
        entry.outputs = {"report.html": hash_of(work / "report.html")}
        self.record(entry)

    @property
    def seconds(self) -> float:
        """What all stages took, whenever that was."""
        return sum(each.seconds for each in self.entries)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        write_json(
            self.folder / MANIFEST_FILE,
            {
                "format": FORMAT,
                "fedmend": __version__,
                "title": self.title,
                "engine": self.engine,
                "recipe": self.recipe,
                "stages": [asdict(each) for each in self.entries],
            },
        )


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a run folder, finished or not."""
    path = Path(folder) / MANIFEST_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        entries = [typed(StageEntry, each) for each in stored["stages"]]
        told = {name: stored[name] for name in ("title", "engine", "recipe")}
        return typed(Manifest, {"folder": path.parent, "entries": entries, **told})
    except FileNotFoundError:
        raise ResumeError(
            f"{folder} has no {MANIFEST_FILE}, so nothing tells what was done. "
            "Mend: --force starts anew"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResumeError(f"{path} cannot be read: {error}. Mend: --force starts anew") from error


def fingerprint(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """What tells one doing of a stage from another."""
    return digest({"stage": stage, "settings": settings, "inputs": inputs})


def digest(value: Any) -> str:
    """A short hash of any plain value."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def hash_of(path: Path) -> str:
    """A short hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def now() -> str:
    """The time as a manifest has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
