"""A finished run's model on new rows, whoever knows them; in one of three ways.

`predict_run`: all parties in this process (``fedmend predict``). `predict_alone`: one party
without anybody else, from what it keeps of a model. `predict_over_machines`: every party on its own
machine, with its own rows and part of the model. Every party writes the predictions of its own
rows; no id leaves it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmend.data.table import Table
from fedmend.deploy.flare_run import RUN_NAME, server_up
from fedmend.deploy.ledgers import LEDGERS_FOLDER
from fedmend.deploy.provision import Kits
from fedmend.errors import ConfigError, DataError, FedmendError, PartyFailed
from fedmend.federation import Federation, Party, Policy
from fedmend.federation.engines.flare.host import RUN_FOLDER
from fedmend.federation.policy import MACHINES_PREDICTIONS
from fedmend.flow import CONFIG_FILE
from fedmend.flow.config import Config, PartySettings, load_config
from fedmend.flow.manifest import hash_of
from fedmend.flow.manifest import read_manifest as read_stages
from fedmend.flow.new_rows import read_rows
from fedmend.methods.registry import HORIZONTAL, METHODS
from fedmend.report.page import LEDGER_FILE
from fedmend.secure.heads import exchange_heads
from fedmend.serve.models import (
    KeptModel,
    assembled,
    chosen,
    encoder_of,
    load_model,
    name_of_class,
    read_manifest,
    schema_of,
)
from fedmend.serve.predicting import (
    PREDICTIONS_FILE,
    Group,
    Predicted,
    PredictionWorker,
    ask_horizontal,
    ask_split,
    groups_of,
)
from fedmend.split.parts import FILE, MANIFEST

NEW = "new"
MACHINES = "machines"
"""In the folder of a run of one process: the ledgers of its predictions over machines."""
_STAYS = {
    "auto": "several models decide, and stay with it",
    "boosting": "trees tell of its labels and stay with it",
}
"""Methods of which the label party hands out nothing that could decide elsewhere, and why."""


# ---------------------------------------------------------------- all in this process


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
        with predict_tables(model, given, config) as (done, workers), _on_disk(out):
            _write(done, workers, out)
    return [
        replace(each, path=out / each.party / PREDICTIONS_FILE) if each.rows else each
        for each in done
    ]


@contextmanager
def predict_tables(
    model: KeptModel, given: Mapping[str, Table], config: Config
) -> Iterator[tuple[list[Predicted], Any]]:
    """Predict tables in this process; the workers have the answers, party by party."""
    policies = {party.name: party.policy.build() for party in config.party}
    # The rows were given here: what a model says of them, however few, is for who gave them.
    mine = {
        name: replace(each, foreign_predictions=1, min_rows=1) for name, each in policies.items()
    }
    parties = [Party(name, table, policy=mine[name]) for name, table in given.items()]
    if not model.horizontal:
        # Parties that were given no rows: their part is here, over an empty table.
        absent = [name for name in model.parties if name not in given]
        parties += [Party(name, _empty_table(model.folder / name)) for name in absent]
    fed = Federation(*parties, seed=config.run.all_seeds[0], device=config.run.device)
    with fed:
        loaded = load_model(model.name, model.folder, fed)
        with fed.workers(PredictionWorker) as workers:
            yield _asked(model, loaded, fed, workers, list(given), config), workers


def _asked(
    model: KeptModel,
    loaded: Any,
    fed: Federation,
    workers: Any,
    present: list[str],
    config: Config,
    **align_with: Any,
) -> list[Predicted]:
    """The model's answers on the rows of those present, kept by their workers."""
    if model.horizontal:
        return ask_horizontal(loaded, fed.only(*present), workers, model.title)
    settings = config.align.how | {"minimum": 1} | align_with
    groups = groups_of(fed, workers, present, settings)
    return ask_split(loaded, fed, workers, groups, model.title)


def _write(done: list[Predicted], workers: Any, out: Path) -> None:
    for each in done:
        if each.rows:
            workers[each.party].write(str(out))


def _empty_table(folder: Path) -> Table:
    encoder = encoder_of(folder)
    # Without an encoder a party labels, and the model uses no column of its.
    return Table([], {}) if encoder is None else encoder.empty_table()


# ---------------------------------------------------------------- one party by itself


def predict_alone(
    folder: Path, party: PartySettings, rows: Path, out: Path, *, device: str = "cpu"
) -> Predicted:
    """Predict a file of the party's rows with its part of a model, kept in `folder`.

    Nothing else is read: no other party's part, and nothing of the coordinator's. A label party has
    all it needs. Any other party needs a copy of what decides, which it is given at the end of a
    run (``[predict] alone`` in federation.toml) where the label party's policy lets "weights" out.
    The embeddings of absent parties are imputed, or handled as the method has learnt it.
    """
    if not (folder / MANIFEST).is_file():
        raise _not_alone(folder, party.name)
    name = name_of_class(read_manifest(folder)["method"])
    table = read_rows(rows, party, schema_of(folder))
    home = folder.resolve().parent
    # The party asks itself, with a top that it was once sent.
    own = Policy(foreign_predictions=MACHINES_PREDICTIONS, min_rows=1)
    fed = Federation(Party(party.name, table, home=home, policy=own), device=device)
    title = METHODS[name].shown
    with fed, fed.workers(PredictionWorker) as workers:
        model = load_model(name, folder.resolve(), fed)
        if name in HORIZONTAL:
            (done,) = ask_horizontal(model, fed, workers, title)
        else:
            group = Group((party.name,), workers[party.name].claim(party.name))
            (done,) = ask_split(model, fed, workers, [group], title)
        # The part lies at the party's home; predictions go where it was asked to put them.
        fed.engine.sites[party.name].home = None  # type: ignore[attr-defined]
        with _on_disk(out):
            workers[party.name].write(str(out))
    return replace(done, path=out / party.name / PREDICTIONS_FILE)


def _not_alone(folder: Path, party: str) -> DataError:
    """Why there is nothing with which a party could decide, and what helps."""
    asked = f'[predict] alone = ["{party}"] in federation.toml before the run'
    if (folder.parent / MANIFEST).is_file():
        saved = read_manifest(folder.parent)
        name = name_of_class(saved["method"])
        uses = party in saved["parties"]
        reason = _STAYS.get(name) if uses else "it uses none of its columns"
        if reason is not None:
            return DataError(
                f"cannot predict alone by {METHODS[name].shown}: {reason}",
                party=party,
                mend=f"--method of one whose top can be handed out (vfl, risa), and {asked}",
            )
        if not (folder / FILE).is_file():  # a run over machines
            return _kept_elsewhere(party)
    return DataError(
        f"{folder} holds no model that can decide alone",
        party=party,
        mend=f"{asked}, and a label party whose policy lets 'weights' out",
    )


# ---------------------------------------------------------------- every party on its machine


def predict_over_machines(
    run: Path,
    kits: Path,
    out: Path,
    *,
    method: str | None = None,
    waiting: Callable[[list[str]], None] | None = None,
) -> list[Predicted]:
    """Ask the parties of `run`, by their kits, for predictions of the rows they call new.

    A party names its new rows in its ``party.toml`` (``new = "rows.csv"``). The model is the one of
    a run over machines, or of a run in one process whose parts the parties have taken into their
    kits (``fedmend party adopt``). waiting: told which parties are not there yet. What crosses is
    appended to the run's ledger, as at the parties.
    """
    config, model = run_config(run), chosen(run, method)
    found = Kits(kits)
    if not found.server.is_dir():
        raise ConfigError(f"there are no kits in {kits}. Mend: --kits the folder of all kits")
    everybody = [party.name for party in config.party]
    with server_up(found), _ledger_goes_on(run) as home:
        fed = Federation.over_flare(
            kits,
            parties=everybody if model.horizontal else model.parties,
            run=model.run,
            resume=True,  # nothing is begun anew: the model's parts lie under this name
            title=f"{config.title}: predict new rows",
            methods=(model.name, "predict"),
            seed=config.run.all_seeds[0],
            test_share=config.test_share,
            ledger=home / LEDGER_FILE,
            ledgers=home / LEDGERS_FOLDER,
            wait_seconds=config.flare.wait_seconds,
            call_timeout=config.flare.call_timeout,
            stall_seconds=config.flare.stall_seconds,
            waiting=waiting,
            asker=config.flare.asker,
        )
        with fed:
            loaded = load_model(model.name, model.folder, fed)
            new = fed.on(NEW)
            with new.workers(PredictionWorker) as workers:
                present = [party for party, rows in workers.rows().items() if rows]
                if present:
                    # Of no row is the order to be repeated.
                    done = _asked(model, loaded, new, workers, present, config, order="secret")
                    _write(done, workers, out)
            exchange_heads(fed)
    if not present:
        raise DataError(
            "no party has new rows",
            mend='new = "rows.csv" in the party.toml of at least one',
        )
    kept = f"in its own kit, {RUN_FOLDER}/{model.run}/{out.name}/{PREDICTIONS_FILE}"
    return [replace(each, kept=kept) for each in done]


@contextmanager
def _ledger_goes_on(run: Path) -> Iterator[Path]:
    """The folder with the ledgers that a prediction over machines goes on with.

    They are the run's, whose name the parties write under as well. A run of one process has none of
    theirs: its predictions have a folder of their own in it.
    """
    home = run if (run / RUN_NAME).is_file() else run / MACHINES
    ledger, stages = home / LEDGER_FILE, read_stages(run)
    report, before = stages.find("report"), _hash_of(ledger)
    try:
        yield home
    except BaseException:
        if _hash_of(ledger) != before:
            # Copies of the parties' that lack what has crossed now would accuse them.
            for copy in (home / LEDGERS_FOLDER).glob("*.jsonl"):
                copy.replace(copy.with_suffix(".before"))
        raise
    finally:
        # Verifying compares with the ledger as fedmend left it; one that was altered stays so.
        if before and report is not None and report.inputs.get(LEDGER_FILE) == before:
            report.inputs[LEDGER_FILE] = _hash_of(ledger)
            stages.save()


def _hash_of(ledger: Path) -> str:
    return hash_of(ledger) if ledger.is_file() else ""


# ---------------------------------------------------------------- what a run says, and checks


def run_config(run: Path) -> Config:
    """The settings of a run folder: how tables are read and aligned."""
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
        f"there is no party {name!r} in the run. Mend: name one of {', '.join(known)}"
        for name in tables
        if name not in known
    ]
    if not tables:
        problems.append(f"no rows are given. Mend: --with {next(iter(known))}=rows.csv")
    if problems:
        raise ConfigError(problems)
    return known


def check_out(out: Path) -> None:
    """Predictions are never mixed with others, nor made for a disk that does not take them."""
    with _on_disk(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is not empty. Mend: --out another folder")
        there = next(each for each in (out, *out.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


@contextmanager
def _on_disk(out: Path) -> Iterator[None]:
    """What the disk of `out` refuses is told with what helps, also where a worker was writing."""
    try:
        yield
    except (OSError, PartyFailed) as error:
        cause = error.__cause__ if isinstance(error, PartyFailed) else error
        if not isinstance(cause, OSError):
            raise
        raise FedmendError(
            f"{out} cannot be written: {cause.strerror or cause}. Mend: --out another folder, on a "
            "disk with room and with the right to write there"
        ) from error


def require_parts(model: KeptModel) -> None:
    """After a run over machines the parts are elsewhere; then no file needs to be read."""
    parties = [] if model.horizontal else model.parties
    kept = [name for name in parties if not (model.folder / name / FILE).is_file()]
    if kept:
        raise _kept_elsewhere(kept[0])


def _kept_elsewhere(party: str) -> DataError:
    return DataError(
        "keeps its part of the model to itself",
        party=party,
        mend="fedmend predict --engine flare, or --part with its kit; at the party itself "
        "fedmend party predict",
    )
