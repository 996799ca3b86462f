"""``fedmend predict``: a finished run's model on new rows, whoever knows them.

Rows known to all given parties are found by private set intersection. Rows that one party alone
knows are predicted too: by evidence where the method has it, otherwise with the absent sides at
their mean. Every party writes the predictions of its own rows; no id leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmend.config.catalogue import method_class, slug_of
from fedmend.config.shapes import HORIZONTAL
from fedmend.errors import AlignmentError, ConfigError, DataError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.federation.worker import Worker, exposed
from fedmend.learn.features import ALIGNED
from fedmend.report.record import RunRecord, better_is_higher

if TYPE_CHECKING:
    from fedmend.config import Config, PartySettings
    from fedmend.data.table import Table
    from fedmend.methods.base import SplitEstimator

__all__ = ["PREDICTIONS_FILE", "Predicted", "predict_run"]

PREDICTIONS_FILE = "predictions.csv"
MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Predicted:
    """What was written at one party: how many rows that all knew, and that it alone knew."""

    party: str
    method: str
    shared: int
    alone: int
    path: Path


@dataclass
class Answers:
    """Predictions of some rows of a party, as they cross to it."""

    classes: list[Any]
    outputs: np.ndarray
    uncertainty: np.ndarray | None = None
    shares: dict[str, np.ndarray] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return {
            "classes": self.classes,
            "outputs": self.outputs,
            "uncertainty": self.uncertainty,
            "shares": self.shares,
        }


class PredictionWorker(Worker):
    """Knows which rows were asked about, and writes the answers beside their ids."""

    def __init__(self, site: Any, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._parts: list[Any] = []

    @exposed(kind="count")
    def adopt(self, scope: str) -> dict[str, int]:
        """Take the alignment that was found among fewer parties."""
        found = self.site.alignments[scope]
        self.site.alignments[self.scope] = found
        return {"aligned": len(found.aligned), "unaligned": len(found.unaligned)}

    @exposed(kind="count")
    def alone(self) -> dict[str, int]:
        """All rows are this party's own."""
        rows = np.arange(len(self.table))
        self.site.alignments[self.scope] = Alignment(rows[:0], rows)
        return {"aligned": 0, "unaligned": len(rows)}

    @exposed(kind="control")
    def absent(self, aligned: int) -> None:
        """This party knows none of the rows: -1 is "stand in" to whoever looks a row up."""
        self.site.alignments[self.scope] = Alignment(
            np.full(aligned, -1), np.zeros(0, dtype=np.int64)
        )

    @exposed(kind="control", takes={"answers": "prediction"})
    def take(self, rows: str, known_to: str, answers: dict[str, Any]) -> None:
        """Predictions of the aligned rows, of this party's own, or of all its rows."""
        import pandas as pd

        positions = {
            ALIGNED: lambda: self.alignment.aligned,
            "own": lambda: self.alignment.unaligned,
            "all": lambda: np.arange(len(self.table)),
        }[rows]()
        outputs = answers["outputs"]
        if len(outputs) != len(positions):
            raise DataError(
                f"{len(outputs):,} predictions came for {len(positions):,} rows",
                party=self.site.name,
                mend="the same tables from alignment to prediction",
            )
        columns: dict[str, Any] = {"id": self.table.ids[positions], "known_to": known_to}
        if answers["classes"]:
            columns["prediction"] = np.asarray(answers["classes"])[outputs.argmax(1)]
            for at, name in enumerate(answers["classes"]):
                columns[f"p({name})"] = outputs[:, at]
            columns["uncertainty"] = answers["uncertainty"]
        else:
            columns["prediction"] = outputs
        columns |= {f"share({name})": share for name, share in answers["shares"].items()}
        self._parts.append((positions, pd.DataFrame(columns)))

    @exposed(kind="control")
    def write(self, path: str) -> None:
        """One file with all of them, in the order of this party's table."""
        import pandas as pd

        places = np.concatenate([place for place, _ in self._parts])
        frame = pd.concat([part for _, part in self._parts], ignore_index=True)
        file = self.site.folder(path) / PREDICTIONS_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.part")
        frame.iloc[np.argsort(places, kind="stable")].to_csv(beside, index=False)
        beside.replace(file)


# ---------------------------------------------------------------- the run and its model


def predict_run(
    run: Path, tables: Mapping[str, Path], out: Path, *, method: str | None = None
) -> list[Predicted]:
    """Predict the rows of `tables` (party → file) with a method of `run`, the best by default."""
    from fedmend.config import load_config
    from fedmend.flow import CONFIG_FILE

    record = RunRecord.load(run)
    if not (run / CONFIG_FILE).is_file() or not (run / CONFIG_FILE).read_text(encoding="utf-8"):
        raise ConfigError(
            f"{run} was made without a federation.toml, which says how tables are read. "
            "Mend: predict in Python: Method.load(folder, fed).predict_proba(fed)"
        )
    config = load_config(run / CONFIG_FILE)
    given = _given(config, tables)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty. Mend: --out another folder")
    name, title = _chosen(record, run, method)
    folder = run / MODEL_FOLDER / slug_of(title)
    absent = [] if name in HORIZONTAL else _absent(folder, given)
    fed = Federation(*given, *absent, seed=config.run.all_seeds[0], device=config.run.device)
    with fed:
        model = method_class(name).load(folder, fed)
        with fed.workers(PredictionWorker) as crew:
            if name in HORIZONTAL:
                found = _horizontal(model, crew)
            else:
                present = [party.name for party in given]
                _know_rows(fed, crew, present, config)
                found = _split(model, fed, crew, present)
            for party in found:
                crew[party].write(str(out))
    return [
        Predicted(party, title, *counts, out / party / PREDICTIONS_FILE)
        for party, counts in found.items()
    ]


def _given(config: Config, tables: Mapping[str, Path]) -> list[Party]:
    known = {party.name: party for party in config.party}
    problems = [
        f"there is no party {name!r} in the run. Mend: --with one of {', '.join(known)}"
        for name in tables
        if name not in known
    ]
    if not tables:
        problems.append(f"no rows are given. Mend: --with {next(iter(known))}=rows.csv")
    if problems:
        raise ConfigError(problems)
    return [
        Party(name, _rows_of(known[name], path), policy=known[name].policy.build())
        for name, path in tables.items()
    ]


def _rows_of(party: PartySettings, path: Path) -> Table:
    from fedmend.data.readers import read

    try:
        table = read(path, id=party.id, kinds=party.kinds)
    except DataError as error:
        raise error.at(party.name) from error
    # Labels are what is asked for; where the file has them all the same, they are no columns.
    return table.drop([party.label]) if party.label in table.names else table


def _chosen(record: RunRecord, run: Path, method: str | None) -> tuple[str, str]:
    """Name and title of a method of the run that has left a model: the asked one, or the best."""
    names = {each.title: each.name for each in record.methods}
    kept = [title for title in names if (run / MODEL_FOLDER / slug_of(title)).is_dir()]
    if method is not None:
        asked = [title for title in kept if method in (title, slug_of(title), names[title])]
        if not asked:
            raise ConfigError(
                f"the run holds no model {method!r}. Mend: --method one of "
                + ", ".join(slug_of(title) for title in kept)
            )
        return names[asked[0]], asked[0]
    means = {each.title: each.mean.get(record.metric) for each in record.summaries()}
    able = [title for title in kept if means[title] is not None]
    if not able:
        raise ConfigError(f"{run} holds no model. Mend: make the run again")
    sign = 1 if better_is_higher(record.metric) else -1
    best = max(able, key=lambda title: sign * float(means[title] or 0.0))
    return names[best], best


def _absent(folder: Path, given: list[Party]) -> list[Party]:
    """Parties of the model that were given no rows: their part stands in, over an empty table."""
    from fedmend.learn.parts import FILE, Part, read_file, read_json
    from fedmend.methods.base import MANIFEST

    manifest = read_json(folder / MANIFEST, "a saved model")
    here = {party.name for party in given}
    found = []
    for name in dict.fromkeys([*manifest["parties"], manifest["label_party"]]):
        if name is None or name in here:
            continue
        part = Part.from_wire(read_file(folder / name / FILE, name))
        if part.bottom is None:
            raise DataError(
                "has the model's labels and top, and no rows to predict with them",
                party=name,
                mend=f"--with {name}=rows.csv as well",
            )
        found.append(Party(name, part.bottom.encoder.empty_table()))
    return found


# ---------------------------------------------------------------- which rows, and what of them


def _know_rows(fed: Federation, crew: Any, present: list[str], config: Config) -> None:
    """Align the present parties; everybody then knows which rows are common, own or unknown."""
    from fedmend.secure.align import align

    counts = {name: crew[name].alone() for name in present}
    if len(present) > 1:
        settings = config.align.model_dump(exclude_none=True) | {"minimum": 1}
        among = fed.only(*present)
        try:
            align(among, **settings)
            counts = {name: crew[name].adopt(among.scope) for name in present}
        except AlignmentError:
            # Nobody is known to all of them: every row is one party's own.
            counts = {name: crew[name].alone() for name in present}
    aligned = counts[present[0]]["aligned"]
    for name in fed.names:
        if name not in present:
            crew[name].absent(aligned)
    unaligned = {name: counts[name]["unaligned"] if name in counts else 0 for name in fed.names}
    fed.note_alignment(AlignmentCounts(aligned, unaligned))


def _split(
    model: SplitEstimator, fed: Federation, crew: Any, present: list[str]
) -> dict[str, tuple[int, int]]:
    """Rows known to all present parties, then each one's own. Returns counts by party."""
    counts = fed.alignment
    users = [name for name in present if name in model.network_.parties]
    if not users:
        raise DataError(
            f"{type(model).__name__} uses no column of {', '.join(present)}",
            mend=f"--with {model.network_.parties[0]}=rows.csv, or another --method",
        )
    # The rows in common go to the party that decides, or to the first that helps to.
    label_party = str(model.network_.label_party)
    holder = label_party if label_party in present else users[0]
    found: dict[str, tuple[int, int]] = {}
    if counts.aligned:
        crew[holder].take(ALIGNED, " ".join(present), _answers(model, fed, ALIGNED).to_wire())
        found[holder] = (counts.aligned, 0)
    for name in users:
        if counts.unaligned[name]:
            crew[name].take("own", name, _answers(model, fed, name).to_wire())
            found[name] = (found.get(name, (0, 0))[0], counts.unaligned[name])
    return found


def _answers(model: SplitEstimator, fed: Federation, rows: str) -> Answers:
    if rows == ALIGNED:
        segments: list[list[object]] = [[ALIGNED, fed.alignment.aligned]]
    else:
        segments = [[rows, fed.alignment.unaligned[rows]]]
    outputs = model.network_.predict(fed, segments, table_order=False)
    if model.classes_ is None:
        return Answers([], outputs)
    classes = model.classes_.tolist()
    if hasattr(model, "predict_uncertainty"):
        shares = model.contributions(fed, rows=rows)  # type: ignore[attr-defined]
        return Answers(
            classes,
            outputs,
            model.predict_uncertainty(fed, rows=rows),
            {str(name): shares[name].to_numpy() for name in shares},
        )
    return Answers(classes, outputs, _entropy(outputs))


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    """How undecided a row is, between 0 and 1."""
    safe = np.clip(probabilities, 1e-12, 1.0)
    return -(safe * np.log(safe)).sum(1) / np.log(probabilities.shape[1])


def _horizontal(model: Any, crew: Any) -> dict[str, tuple[int, int]]:
    found = {}
    for party, outputs in _by_party(model):
        answers = Answers(model.classes_.tolist(), outputs, _entropy(outputs))
        crew[party].take("all", party, answers.to_wire())
        found[party] = (0, len(outputs))
    return found


def _by_party(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    yield from model.predict_proba(model.fed_).items()
