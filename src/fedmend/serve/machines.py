"""Predictions with every party on its own machine, each with its own rows and part of the model.

A party names its new rows in its ``party.toml`` (``new = "rows.csv"``). The model is the one of a
run over machines, or of a run in one process whose parts the parties have taken into their kits
(``fedmend party adopt``). Predictions are written at the parties; no id leaves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.secure.heads import exchange_heads
from fedmend.serve.asking import Predicted, ask_horizontal, ask_split, groups_of
from fedmend.serve.models import RUNS_FOLDER, chosen, load_model
from fedmend.serve.running import run_config
from fedmend.serve.worker import PREDICTIONS_FILE, PredictionWorker

__all__ = ["NEW", "predict_over_machines"]

NEW = "new"


def predict_over_machines(
    run: Path,
    kits: Path,
    out: Path,
    *,
    method: str | None = None,
    waiting: Callable[[list[str]], None] | None = None,
) -> list[Predicted]:
    """Ask the parties of `run`, by their kits, for predictions of the rows they call new.

    waiting: told which parties are not there yet.
    """
    from fedmend.deploy.flare_run import server_up
    from fedmend.deploy.provision import Kits

    config, model = run_config(run), chosen(run, method)
    found = Kits(kits)
    if not found.server.is_dir():
        raise ConfigError(f"there are no kits in {kits}. Mend: --kits the folder of all kits")
    asked = [party.name for party in config.party]
    with server_up(found):
        fed = Federation.over_flare(
            kits,
            parties=asked if model.horizontal else model.parties,
            run=model.run,
            resume=True,  # nothing is begun anew: the model's parts lie under this name
            title=f"{config.title}: predict new rows",
            methods=(model.name, "predict"),
            seed=config.run.all_seeds[0],
            test_share=config.evaluate.test_share,
            wait_seconds=config.flare.wait_seconds,
            call_timeout=config.flare.call_timeout,
            stall_seconds=config.flare.stall_seconds,
            waiting=waiting,
        )
        with fed:
            loaded: Any = load_model(model.name, model.folder, fed)
            new = fed.on(NEW)
            with new.workers(PredictionWorker) as crew:
                present = [party for party, rows in crew.rows().items() if rows]
                if not present:
                    raise DataError(
                        "no party has new rows",
                        mend='new = "rows.csv" in the party.toml of at least one',
                    )
                if model.horizontal:
                    done = ask_horizontal(loaded, new.only(*present), crew, model.title)
                else:
                    settings = config.align.model_dump(exclude_none=True)
                    settings |= {"minimum": 1, "order": "secret"}  # of no row is it to be repeated
                    groups = groups_of(new, crew, present, settings)
                    done = ask_split(loaded, new, crew, groups, model.title)
                for each in done:
                    if each.shared or each.alone:
                        crew[each.party].write(str(out))
            exchange_heads(fed)
    kept = f"in its own kit, {RUNS_FOLDER}/{model.run}/{out.name}/{PREDICTIONS_FILE}"
    return [replace(each, kept=kept) for each in done]
