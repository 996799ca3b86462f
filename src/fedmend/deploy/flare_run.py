"""A run over flare: the plan of a federation.toml with its parties on machines of their own.

The server is started for the run when nobody has started it. When a party stops answering, the
run stops, waits for it and goes on, or starts over without it, as ``flare.on_absent`` says.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedmend._json import reading
from fedmend.deploy.ledgers import LEDGERS_FOLDER
from fedmend.deploy.processes import Daemon
from fedmend.deploy.provision import Kits, require_kits
from fedmend.errors import PartyAbsent
from fedmend.federation import Federation
from fedmend.flow import Listener, Plan, execute, plan_of
from fedmend.flow.config import Config
from fedmend.report.page import LEDGER_FILE
from fedmend.report.record import RunRecord

logger = logging.getLogger(__name__)

RUN_NAME = "run.name"


@contextlib.contextmanager
def server_up(kits: Kits) -> Iterator[None]:
    """The server runs inside; it ends afterwards if it was not running before."""
    daemon = Daemon(kits.server)
    started = daemon.running() is None
    if started:
        daemon.start(owned=True)
    try:
        yield
    finally:
        if started:
            daemon.stop()


def execute_flare(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    start: str | None = None,
    listener: Listener | None = None,
) -> RunRecord:
    """Run a federation.toml with its parties elsewhere; see :func:`fedmend.flow.execute`."""
    listener = listener or Listener()
    kits = Kits(config.at(config.flare.kits))
    require_kits(config, kits)
    with server_up(kits):
        while True:
            try:
                plan = _plan(config, kits, listener)
                return execute(
                    plan,
                    folder,
                    resume=resume,
                    force=force,
                    keep_failed=True,
                    start=start,
                    listener=listener,
                )
            except PartyAbsent as error:
                config, resume, force = _after(error, config, listener)
                start = None  # what was to be done again is no longer in the manifest


def _plan(config: Config, kits: Kits, listener: Listener) -> Plan:
    plan = plan_of(config)

    def federation(work: Path) -> Federation:
        name, resumed = _run_name(work)
        return Federation.over_flare(
            kits.folder,
            parties=[party.name for party in config.party],
            run=name,
            resume=resumed,
            reproducible=config.run.reproducible,
            home=work,
            title=config.title,
            methods=tuple(plan.named_methods()),
            seed=plan.seeds[0],
            test_share=config.test_share,
            ledger=work / LEDGER_FILE,
            ledgers=work / LEDGERS_FOLDER,
            wait_seconds=config.flare.wait_seconds,
            call_timeout=config.flare.call_timeout,
            stall_seconds=config.flare.stall_seconds,
            keep_jobs=config.flare.keep_jobs,
            waiting=lambda missing: listener.stage(
                f"Waiting for {', '.join(missing)} ('fedmend party start KIT' there)"
            ),
            answered=partial(_tell_answer, listener),
            asker=config.flare.asker,
        )

    return replace(plan, federation=federation, engine="flare")


def _tell_answer(listener: Listener, party: str, yes: bool, left: list[str]) -> None:
    """Who has consented, and who has not: a party's people may take their time."""
    said = f"{party} {'takes part' if yes else 'does not take part'}"
    listener.stage(f"{said}; waiting for the answer of {', '.join(left)}" if left else said)


def _run_name(work: Path) -> tuple[str, bool]:
    """The name under which the parties keep their part of this run, and whether it is resumed."""
    path = work / RUN_NAME
    with reading(path, "begin the run anew with --force"):
        name = path.read_text(encoding="utf-8") if path.is_file() else ""
    resumed = bool(name)
    if not resumed:  # a process that was killed may have left an empty file
        slug = re.sub(r"[^A-Za-z0-9_-]", "-", work.name.removesuffix(".part"))[:60]
        name = f"{slug}-{secrets.token_hex(4)}"
        path.write_text(name, encoding="utf-8")
    return name, resumed


def _after(error: PartyAbsent, config: Config, listener: Listener) -> tuple[Config, bool, bool]:
    """What to do about an absent party: config, resume and force of the next attempt, or raise."""
    how = config.flare.on_absent
    # Without a call, the party was waited for already, and did not come.
    if how == "stop" or (how == "wait" and not error.call):
        raise error
    logger.info("%s", error)
    if how == "wait":
        listener.stage(f"{error.party} is absent ({error.reason}); waiting for it")
        return config, True, False
    rest = [party for party in config.party if party.name != error.party]
    if len(rest) < 2 or not any(party.label is not None for party in rest):
        names = ", ".join(party.name for party in rest)
        error.add_note(f"on_absent = 'continue', but {names} cannot go on without {error.party}")
        raise error
    listener.stage(f"{error.party} is absent ({error.reason}); starting over without it")
    left: dict[str, Any] = {"party": rest}
    fewer = config.model_copy(update=left)
    return fewer, False, True
