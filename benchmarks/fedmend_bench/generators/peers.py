"""Generators of other packages, each run in an interpreter of its own on the same CSV file.

None of them is a dependency (LIBRARIES: licences and pins forbid it), so this file is a script
that needs nothing of fedmend: `measure` starts it with the interpreter that has the packages.

    python peers.py list
    python peers.py PEER JOB.json

The job names the CSV to learn from, its discrete columns, how many rows to make, where to write
them, and the seed; the script prints one line of JSON with the seconds it took.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "Asked", "found", "measure"]

PEERS: dict[str, str] = {
    "ctgan CTGAN": "ctgan",
    "ctgan TVAE": "ctgan",
    "mostlyai": "mostlyai.engine",
    "ForestDiffusion": "ForestDiffusion",
}
_QUICK_EPOCHS = 30
_BINS = 256  # of xgboost's histograms


# --- this side -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """How peers are run: by which interpreter, for how long at most, and the forest's size."""

    python: str
    seconds: float
    forest: str


@functools.cache
def found(python: str) -> list[str]:
    """The peers whose package that interpreter has."""
    try:
        done = subprocess.run(
            [python, "-P", __file__, "list"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except OSError:
        return []
    return json.loads(done.stdout) if done.returncode == 0 else []


def measure(peer: str, asked: Asked, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds to fit and to sample; or ``{"error": …}`` with the last line the peer wrote."""
    path = folder / "job.json"
    path.write_text(json.dumps(job | {"forest": asked.forest}), encoding="utf-8")
    try:
        done = subprocess.run(
            [asked.python, "-P", __file__, peer, str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=asked.seconds,
            cwd=folder,
            env=_environment(job),
        )
    except subprocess.TimeoutExpired:
        return {"error": f"over {asked.seconds:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1][:200]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _environment(job: dict[str, Any]) -> dict[str, str]:
    """As many threads as ours have, and no accelerator where ours have none."""
    environment = dict(os.environ)
    if "threads" in job:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(job["threads"]))
    if job.get("device") == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # The job's files are named in full, but paths in PYTHONPATH may be relative.
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in paths if p)
    return environment


# --- the other side ----------------------------------------------------------------------------

Fit = Callable[[Any, dict[str, Any]], Callable[[int], Any]]


def _ctgan(name: str) -> Fit:
    def fit(frame: Any, job: dict[str, Any]) -> Callable[[int], Any]:
        options = {"epochs": _QUICK_EPOCHS} if job["quick"] else {}
        model = getattr(importlib.import_module("ctgan"), name)(**options)
        model.set_random_state(job["seed"])
        model.fit(frame, job["discrete"])
        return lambda rows: model.sample(rows)

    return fit


def _mostlyai(frame: Any, job: dict[str, Any]) -> Callable[[int], Any]:
    options: dict[str, Any] = {"max_epochs": _QUICK_EPOCHS} if job["quick"] else {}
    # Its protection of rare values is off: no other method has one, and it costs fidelity.
    options |= {"value_protection": False, "random_state": job["seed"]}
    model = importlib.import_module("mostlyai.engine").TabularARGN(**options)
    model.fit(frame.astype(dict.fromkeys(job["discrete"], str)))
    return lambda rows: model.sample(n_samples=rows)


def _forest(frame: Any, job: dict[str, Any]) -> Callable[[int], Any]:
    import pandas as pd

    for unused in ("lightgbm", "catboost"):
        # Imported by the package whatever trees it is asked for; these are xgboost's.
        if not _has(unused):
            sys.modules[unused] = types.ModuleType(unused)
            sys.modules[unused].__getattr__ = lambda name: object  # type: ignore[method-assign]
    levels, copies, trees, bins = _forest_size(job)
    columns = list(frame.columns)
    codes = frame.copy()
    known = {name: pd.Index(sorted(frame[name].unique())) for name in job["discrete"]}
    for name, index in known.items():
        codes[name] = index.get_indexer(frame[name])
    whole = [
        position
        for position, name in enumerate(columns)
        if name not in known and (frame[name] % 1 == 0).all()
    ]
    model = importlib.import_module("ForestDiffusion").ForestDiffusionModel(
        codes.to_numpy(dtype=float),
        n_t=levels,
        duplicate_K=copies,
        bin_indexes=[columns.index(n) for n, index in known.items() if len(index) == 2],
        cat_indexes=[columns.index(n) for n, index in known.items() if len(index) > 2],
        int_indexes=whole,
        n_estimators=trees,
        max_bin=bins,
        n_batch=int(bins == _BINS),  # its own reader of batches knows no other number
        diffusion_type="flow",
        n_jobs=1,  # the trees themselves use all threads
        seed=job["seed"],
    )

    clip = model.clip_extremes
    model.clip_extremes = lambda rows: clip(rows.copy())  # it writes where pandas 3 forbids it

    def sample(rows: int) -> Any:
        made = pd.DataFrame(model.generate(batch_size=rows), columns=columns)
        for name, index in known.items():
            made[name] = index[made[name].round().astype(int).clip(0, len(index) - 1)]
        return made

    return sample


def _forest_size(job: dict[str, Any]) -> list[int]:
    """Noise levels, copies of each row, trees and bins; what is left out is the package's."""
    if job["quick"]:
        return [5, 1, 10, 32]
    given = [int(part) for part in job["forest"].split("x")]
    return given + [50, 100, 100, _BINS][len(given) :]


def _note(peer: str, job: dict[str, Any]) -> str:
    """How the peer was run, where it was not run as it comes."""
    if peer == "ForestDiffusion":
        names = ("n_t", "duplicate_K", "n_estimators", "max_bin")
        return ", ".join(f"{n}={v}" for n, v in zip(names, _forest_size(job), strict=True))
    notes = ["value_protection=False"] if peer == "mostlyai" else []
    return ", ".join(notes + ([f"{_QUICK_EPOCHS} epochs"] if job["quick"] else []))


_FITS: dict[str, Fit] = {
    "ctgan CTGAN": _ctgan("CTGAN"),
    "ctgan TVAE": _ctgan("TVAE"),
    "mostlyai": _mostlyai,
    "ForestDiffusion": _forest,
}


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _main(arguments: list[str]) -> None:
    if arguments == ["list"]:
        sys.stdout.write(json.dumps([peer for peer, module in PEERS.items() if _has(module)]))
        return
    import pandas as pd

    peer, path = arguments
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    text = dict.fromkeys(job["discrete"], str)
    frame = pd.read_csv(job["train"], dtype=text, keep_default_na=False)
    start, busy = time.perf_counter(), time.process_time()
    sample = _FITS[peer](frame, job)
    fitted, busy = time.perf_counter(), time.process_time() - busy
    made = sample(job["rows"])
    told = {"fit": fitted - start, "busy": busy, "sample": time.perf_counter() - fitted}
    made.to_csv(job["out"], index=False)
    sys.stdout.write("\n" + json.dumps(told | {"note": _note(peer, job)}) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
