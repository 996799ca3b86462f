"""``fedmend predict``, ``party predict`` and ``party adopt``: which way to go, and what to say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from fedmend.errors import ConfigError
from fedmend.serve.models import MODEL_FOLDER, RUNS_FOLDER, chosen, part_in_kit, run_name
from fedmend.serve.predicting import Predicted
from fedmend.serve.running import (
    check_out,
    party_settings,
    predict_alone,
    predict_over_machines,
    predict_run,
    run_config,
)


def predict_command(
    run: Path,
    rows: Mapping[str, Path],
    out: Path,
    *,
    method: str | None,
    alone: str | None,
    parts: Mapping[str, Path],
    kits: Path | None,
) -> None:
    """``fedmend predict RUN``."""
    if kits is not None:
        if rows or parts or alone is not None:
            raise ConfigError(
                "over machines the rows and parts are at the parties. Mend: leave out --with, "
                '--part and --alone; every party says new = "rows.csv" in its party.toml'
            )
        _tell(predict_over_machines(run, kits, out, method=method, waiting=_waiting))
        return
    if alone is None:
        _tell(predict_run(run, rows, out, method=method, parts=parts))
        return
    if set(rows) != {alone}:
        raise ConfigError(f"--alone {alone} predicts its rows only. Mend: --with {alone}=rows.csv")
    settings = party_settings(run_config(run), rows)[alone]
    model = chosen(run, method)
    check_out(out)
    own = model.folder / alone
    if model.horizontal and not own.is_dir():
        own = model.folder  # the common model is every party's
    folder = part_in_kit(parts[alone], model) if alone in parts else own
    _tell([predict_alone(folder, settings, rows[alone], out)])


def _waiting(missing: list[str]) -> None:
    typer.echo(f"waiting for {', '.join(missing)} ('fedmend party start KIT' there)", err=True)


def party_predict(kit: Path, rows: Path, out: Path, run: str | None, method: str | None) -> None:
    """``fedmend party predict KIT ROWS``."""
    from fedmend.deploy.party_file import load_party

    party = load_party(kit)
    kept = kept_in_kit(kit, party.name, run, method)
    check_out(out)
    _tell([predict_alone(kept, party, rows, out, device=party.device)])


def kept_in_kit(kit: Path, party: str, run: str | None, method: str | None) -> Path:
    """The folder of a model in a kit with which its party can decide."""
    kept = sorted((kit / RUNS_FOLDER).glob(f"{run or '*'}/{method or '*'}/model.json"))
    if not kept:
        asked = "".join(f" {each!r}" for each in (run, method) if each)
        raise ConfigError(
            f"{kit} holds no model{asked} that can decide alone. Mend: for a party without "
            f'labels [predict] alone = ["{party}"] in the federation.toml of the run; '
            "fedmend party adopt takes a part that was handed over"
        )
    if len(kept) > 1:
        told = ", ".join(f"--run {each.parts[-3]} --method {each.parts[-2]}" for each in kept)
        raise ConfigError(f"{kit} holds several models. Mend: one of {told}")
    return kept[0].parent


def adopt(kit: Path, model: Path, run: str | None) -> None:
    """``fedmend party adopt KIT MODEL``: take a part that was made elsewhere into the kit."""
    import shutil

    from fedmend.deploy.party_file import load_party
    from fedmend.methods.horizontal.worker import MODEL as COMMON_MODEL
    from fedmend.split.parts import FILE

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
    name = run or run_name(source)
    for method, each in {**common, **taken}.items():
        target = kit / RUNS_FOLDER / name / method
        target.mkdir(parents=True, exist_ok=True)
        for file in each.iterdir():
            if file.is_file():
                shutil.copy2(file, target / file.name)
        what = f"{party.name}'s part of {method}" if method in taken else f"the model of {method}"
        typer.echo(f"{target}: {what}")


def serve_partner(kit: Path, listen: str | None) -> None:
    """``fedmend party serve KIT``: until interrupted or told to end (SIGTERM)."""
    from fedmend.serve.loopback import serve_until_told
    from fedmend.serve.partner import PartnerServer

    with PartnerServer(kit, listen) as server:
        words = f"{server.file.name} answers at {server.address} (Ctrl-C ends it)"
        serve_until_told(server, lambda: typer.echo(words))
        typer.echo("ended")


def _tell(found: list[Predicted]) -> None:
    for done in found:
        where = done.path or f"{done.party} ({done.kept})"
        if done.rows:
            known = f", {done.shared:,} of them known to the others too" if done.shared else ""
            typer.echo(f"{where}: {done.rows:,} rows by {done.method}{known}")
        if done.skipped:
            typer.echo(
                f"{done.party}: {done.skipped:,} rows not predicted, since {done.method} uses "
                f"no column of {done.party}"
            )
