"""``fedmend predict``: a finished run's model on new rows, whoever knows them.

Every party writes the predictions of its own rows; no id leaves it. Here all parties are in this
process; `fedmend.serve.machines` asks them on machines of their own, and `alone` is one party
without the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation, Party
from fedmend.flow.new_rows import read_rows
from fedmend.serve.asking import Predicted, ask_horizontal, ask_split, groups_of
from fedmend.serve.models import KeptModel, assembled, chosen, load_model
from fedmend.serve.worker import PREDICTIONS_FILE, PredictionWorker
from fedmend.split.parts import FILE

if TYPE_CHECKING:
    from fedmend.data.table import Table
    from fedmend.flow.config import Config

__all__ = [
    "check_out",
    "party_settings",
    "predict_run",
    "predict_tables",
    "require_parts",
    "run_config",
]


def predict_run(
    run: Path,
    tables: Mapping[str, Path],
    out: Path,
    *,
    method: str | None = None,
    parts: Mapping[str, Path] | None = None,
) -> list[Predicted]:
    """Predict the rows of `tables` (party → file) with a method of `run`, the best by default.

    parts: kits of parties that keep their part of the model to themselves (a run over machines).
    """
    config = run_config(run)
    known = party_settings(config, tables)
    check_out(out)
    with assembled(chosen(run, method), parts or {}) as model:
        require_parts(model)
        given = {
            name: read_rows(path, known[name], model.schema(name)) for name, path in tables.items()
        }
        with predict_tables(model, given, config) as (done, crew):
            for each in done:
                if each.shared or each.alone:
                    crew[each.party].write(str(out))
    return [
        replace(each, path=out / each.party / PREDICTIONS_FILE)
        if each.shared or each.alone
        else each
        for each in done
    ]


@contextmanager
def predict_tables(
    model: KeptModel, given: Mapping[str, Table], config: Config
) -> Iterator[tuple[list[Predicted], Any]]:
    """Predict tables in this process; the crew has the answers, party by party."""
    policies = {party.name: party.policy.build() for party in config.party}
    # The rows were given here: what a model says of them is for who gave them.
    mine = {name: replace(each, foreign_predictions=1) for name, each in policies.items()}
    parties = [Party(name, table, policy=mine[name]) for name, table in given.items()]
    if not model.horizontal:
        parties += [Party(name, table) for name, table in _absent(model, given)]
    fed = Federation(*parties, seed=config.run.all_seeds[0], device=config.run.device)
    with ExitStack() as stack:
        stack.enter_context(fed)
        loaded = load_model(model.name, model.folder, fed)
        crew = stack.enter_context(fed.workers(PredictionWorker))
        if model.horizontal:
            done = ask_horizontal(loaded, fed, crew, model.title)
        else:
            settings = config.align.model_dump(exclude_none=True) | {"minimum": 1}
            groups = groups_of(fed, crew, list(given), settings)
            done = ask_split(loaded, fed, crew, groups, model.title)
        yield done, crew


def run_config(run: Path) -> Config:
    """The settings of a run folder: how tables are read and aligned."""
    from fedmend.flow import CONFIG_FILE
    from fedmend.flow.config import load_config

    file = run / CONFIG_FILE
    if not run.is_dir():
        beside = run.parent.iterdir() if run.parent.is_dir() else ()
        made = sorted(str(each) for each in beside if (each / CONFIG_FILE).is_file())
        there = f"the runs there are: {', '.join(made[:5])}" if made else "'fedmend run' makes one"
        raise ConfigError(f"{run}: there is no such run. Mend: check the name; {there}")
    if not file.is_file() or not file.stat().st_size:
        raise ConfigError(
            f"{run} was made without a federation.toml, which says how tables are read. "
            "Mend: predict in Python: Method.load(folder, fed).predict_table(fed)"
        )
    return load_config(file)


def party_settings(config: Config, tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run's parties, once it is known that all of `tables` are among them."""
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
    return known


def check_out(out: Path) -> None:
    """Predictions are never mixed with others."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty. Mend: --out another folder")


def require_parts(model: KeptModel) -> None:
    """After a run over machines the parts are elsewhere; then no file needs to be read."""
    parties = [] if model.horizontal else model.parties
    kept = [name for name in parties if not (model.folder / name / FILE).is_file()]
    if kept:
        raise DataError(
            "keeps its part of the model to itself",
            party=kept[0],
            mend="fedmend predict --engine flare, or --part with its kit; at the party itself "
            "fedmend party predict",
        )


def _absent(model: KeptModel, given: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """Parties of the model that were given no rows: their part is here, over an empty table."""
    from fedmend.data.table import Table

    for name in model.parties:
        if name in given:
            continue
        encoder = model.encoder(name)
        if encoder is not None:
            yield name, encoder.empty_table()
        else:
            yield name, Table([], {})  # it labels, and the model uses no column of its
