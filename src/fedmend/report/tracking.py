"""``fedmend run --mlflow URI``: a finished run in MLflow, beside a team's others.

Logged is what the coordinator has in the run folder and the report shows: parameters, scores,
histories, seconds and bytes of the methods, and the report itself. No file that names tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fedmend.errors import ConfigError, FedmendError, MissingExtra
from fedmend.report.record import MethodRun, RunRecord

REPORT_FILE = "report.html"
MOST_AT_ONCE = 100


class Tracker:
    """Where runs are logged. What it lacks is told when it is made: before a run, not after it."""

    def __init__(self, uri: str, experiment: str) -> None:
        # What is used of mlflow, and by whom, is nobody else's business.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunTag
        except ImportError as error:
            raise MissingExtra("mlflow", "mlflow", "--mlflow") from error
        self.uri = uri
        self._entities = Metric, Param, RunTag
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(name)
            self._experiment = (
                known.experiment_id if known else self._client.create_experiment(name)
            )
        except Exception as error:  # a store, or a server and its client, have errors of their own
            raise ConfigError(
                f"--mlflow {uri!r} cannot be used: {_first_line(error)}. Mend: a tracking "
                "server (http://…), or with all of mlflow installed a file (sqlite:///mlflow.db)"
            ) from error

    def log(self, record: RunRecord, folder: Path) -> str:
        """Log a finished run; returns its id there."""
        logged, param, tag = self._entities
        began = int(1000 * datetime.fromisoformat(record.started).timestamp())
        try:
            made = self._client.create_run(self._experiment, began, run_name=folder.name)
            run = str(made.info.run_id)
            metrics = [logged(name, value, began, step) for name, value, step in metrics_of(record)]
            params = [param(name, value) for name, value in params_of(record).items()]
            tags = [tag(name, value) for name, value in tags_of(record).items()]
            for at in range(0, max(len(metrics), len(params), len(tags)), MOST_AT_ONCE):
                some = slice(at, at + MOST_AT_ONCE)
                self._client.log_batch(run, metrics[some], params[some], tags[some])
            if (folder / REPORT_FILE).is_file():
                self._client.log_artifact(run, str(folder / REPORT_FILE))
            self._client.set_terminated(run, end_time=began + int(1000 * record.seconds))
        except Exception as error:
            raise FedmendError(
                f"the run is done and in {folder}, but MLflow at {self.uri} did not take it: "
                f"{_first_line(error)}. Mend: the same command with --resume"
            ) from error
        return run


def params_of(record: RunRecord) -> dict[str, str]:
    """The parameters of each method, of its first seed."""
    found = {"seeds": str(record.seeds)}
    for title in record.titles():
        params = {"method": _first(record, title).name, **_first(record, title).params}
        found |= {_name(title, key): str(value)[:500] for key, value in params.items()}
    return found


def metrics_of(record: RunRecord) -> Iterator[tuple[str, float, int]]:
    """Name, value and step: means over seeds, under plain names those of the best, histories."""
    best = record.best()
    for each in record.summaries():
        for name, value in each.mean.items():
            yield _name(each.title, name), value, 0
            if each.seeds > 1:
                yield _name(each.title, name, "sd"), each.sd[name], 0
            if best is not None and each.title == best.title:
                yield _name(name), value, 0
        yield _name(each.title, "seconds"), each.seconds, 0
        yield _name(each.title, "bytes"), float(each.bytes), 0
        for step, line in enumerate(_first(record, each.title).history, 1):
            for name, value in line.items():
                if name != "epoch" and isinstance(value, int | float):
                    yield _name(each.title, "training", name), float(value), step


def tags_of(record: RunRecord) -> dict[str, str]:
    """What a list of runs is sorted by."""
    best = record.best()
    found = {"title": record.title, "recipe": record.recipe, "best": best and best.title}
    told = {f"fedmend.{name}": str(value) for name, value in found.items() if value}
    return told | {f"version.{name}": text for name, text in record.versions.items()}


def _first(record: RunRecord, title: str) -> MethodRun:
    return next(run for run in record.methods if run.title == title)


def _name(*parts: str) -> str:
    """As MLflow wants names: no signs but these."""
    return "/".join(re.sub(r"[^\w.: -]", "-", part) for part in parts)[:250]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")[:200]
