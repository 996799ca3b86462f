"""The commands of a federation of several machines: provision, party, server."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedmend.cli.running import tell
from fedmend.cli.shared import ConfigPath, OutFolder, Port, app, escaped, terminal
from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.deploy.party_file import PartyFile
    from fedmend.deploy.processes import Daemon

Kit = Annotated[Path, Argument(help="the start-up kit, for instance kits/bank", metavar="KIT")]
KitsFolder = Annotated[Path, Argument(help="the folder of all kits", metavar="KITS")]
Detach = Annotated[bool, Option("--detach", help="run in the background")]

_GRADES = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}


party_app = typer.Typer(help="A party on its own machine: check, start, status, stop, serve.")
server_app = typer.Typer(help="The server beside the coordinator; 'run' starts it when needed.")
app.add_typer(party_app, name="party", no_args_is_help=True)
app.add_typer(server_app, name="server", no_args_is_help=True)


# ---------------------------------------------------------------- provision


@app.command()
def provision(
    config: ConfigPath = Path("federation.toml"),
    force: Annotated[
        bool, Option("--force", help="make all kits anew; tables and models stay")
    ] = False,
) -> None:
    """Make a start-up kit for every party and for the coordinator: certificates and settings."""
    from fedmend.deploy.provision import provision as make
    from fedmend.flow.config import load_config

    settings = load_config(config)
    kits = make(settings, force=force)
    for party in settings.party:
        _hand_out(kits.party(party.name))
    typer.echo(f"{kits.folder / 'coordinator'} and {kits.folder / 'ca'}: keep them to yourself")
    typer.echo("Next, at each party: fill in party.toml, then fedmend party check KIT")


def _hand_out(kit: Path) -> None:
    typer.echo(f"{kit}: give it to {kit.resolve().name}, by a way you trust")


# ---------------------------------------------------------------- party


@party_app.command()
def check(kit: Kit) -> None:
    """Test certificate, clock, reachability, table and schema; change nothing."""
    from fedmend.deploy.party_check import check_party

    found = check_party(kit)
    console = terminal(soft_wrap=True)
    for each in found:
        console.print(f"{_GRADES[each.grade]:<8} {each.name}: {escaped(each.words)}")
    problems = [f"{each.name}: {each.words}" for each in found if each.grade == "problem"]
    if problems:
        raise ConfigError(problems, source=str(kit))
    console.print(f"no problems. Next: fedmend party start {kit}")


@party_app.command()
def confirm(
    kit: Kit,
    yes: Annotated[bool, Option("--yes", help="do not ask: it was seen elsewhere")] = False,
) -> None:
    """Show where party.toml leads (databases, environment variables, addresses), and confirm it."""
    from fedmend.deploy.party_file import load_party

    _daemon(kit, "party")
    _confirm(load_party(kit), kit, yes=yes)
    typer.echo("confirmed: a change of these lines has to be confirmed again")


def _confirm(file: PartyFile, kit: Path, *, yes: bool = False) -> None:
    """Have the party's people confirm what they have not seen yet; a no, or nobody, is an error."""
    from fedmend.deploy.party_file import confirm as remember
    from fedmend.deploy.party_file import unconfirmed

    fresh = unconfirmed(file)
    if fresh:
        typer.echo(f"The party.toml of {file.name} leads to what nobody here has confirmed yet:")
        for lead in fresh:
            typer.echo(f"  {lead.words}")
        if not yes and not sys.stdin.isatty():
            raise ConfigError(
                f"{len(fresh)} lines of party.toml are not confirmed, and nobody sits here to be "
                f"asked. Mend: read them, then fedmend party confirm {kit} --yes"
            )
        if not yes and not typer.confirm("Is this where it should lead?"):
            raise ConfigError("not confirmed. Mend: correct party.toml, then confirm it")
        remember(file)


@party_app.command()
def start(kit: Kit, detach: Detach = False) -> None:
    """Take part: connect to the server, and show on this screen what is asked for."""
    from fedmend.deploy.party_file import load_party
    from fedmend.deploy.party_screen import PartyScreen, forget_typed, keyboard_answer

    daemon = _daemon(kit, "party")
    file = load_party(kit)
    _confirm(file, kit)
    if detach:
        found = daemon.start()
        typer.echo(f"{file.name} runs in the background (process {found.supervisor})")
        return
    daemon.require_valid()
    console = terminal(soft_wrap=True)
    somebody = sys.stdin.isatty()
    keyboard = (keyboard_answer, forget_typed) if somebody else (None, None)
    screen = PartyScreen(daemon.kit, console, *keyboard)
    console.print(
        f"{file.name} is starting; Ctrl-C ends it. Nothing leaves but what is shown here."
    )
    daemon.supervise(screen.tick)
    screen.tick()
    console.print(f"{file.name} has ended")


@party_app.command()
def status(kit: Kit) -> None:
    """Whether the party runs and is connected, and what happened last."""
    from fedmend.deploy.consent import open_question
    from fedmend.federation.engines.flare.events import EVENTS_FILE, read_events

    daemon = _daemon(kit, "party")
    found = daemon.running()
    if found is None:
        typer.echo("not running")
    else:
        connected = "connected" if daemon.is_connected() else "not connected"
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.began))
        typer.echo(f"running since {since} (process {found.supervisor}), {connected}")
    question = open_question(daemon.kit)
    if question is not None:
        typer.echo(f"waiting for an answer: {question.words} (fedmend party allow | refuse)")
    for event, _ in list(read_events(daemon.kit / EVENTS_FILE))[-5:]:
        clock = time.strftime("%H:%M:%S", time.localtime(event.time))
        typer.echo(f"{clock}  {event.words}")
    if found is None:
        raise typer.Exit(1)


@party_app.command()
def stop(kit: Kit) -> None:
    """End the party's process, and the job it may be in."""
    typer.echo("stopped" if _daemon(kit, "party").stop() else "was not running")


@party_app.command()
def allow(kit: Kit) -> None:
    """Say yes to the run that asks (approve = "ask")."""
    from fedmend.deploy.consent import give_answer

    typer.echo(f"allowed: {give_answer(_daemon(kit, 'party').kit, True).words}")


@party_app.command()
def refuse(kit: Kit) -> None:
    """Say no to the run that asks (approve = "ask")."""
    from fedmend.deploy.consent import give_answer

    typer.echo(f"refused: {give_answer(_daemon(kit, 'party').kit, False).words}")


@party_app.command()
def keys(kit: Kit) -> None:
    """Show this party's public key, and those of its partners; make a lasting one if need be."""
    from fedmend.deploy.party_file import (
        PARTNERS_FILE,
        is_encrypted,
        load_party,
        own_identity,
    )
    from fedmend.secure.keys import KeyRing

    file = load_party(kit)
    identity, path, new = own_identity(file)
    if new and is_encrypted(path):
        typer.echo(f"made {path}, encrypted; the password is needed whenever the party starts")
    elif new:
        typer.echo(
            f"made {path}, readable by its owner only. To have it encrypted, remove it and set "
            f"{file.keys.password_variable} before this command and wherever the party starts"
        )
    typer.echo("what your partners put into their party.toml, under [keys.pinned]:")
    typer.echo(f'{file.name} = "{identity.public.hex()}"')
    ring = KeyRing(file.name, identity, file.keys.pinned, memory=file.at(PARTNERS_FILE))
    typer.echo("fingerprints, to compare by telephone:")
    for party, mark in ring.fingerprints().items():
        how = {file.name: "this party"}.get(
            party, "pinned" if party in file.keys.pinned else "as first seen"
        )
        typer.echo(f"{mark}  {party} ({how})")
    typer.echo(f"{identity.signing_fingerprint}  what {file.name} signs (exports of ledgers)")


@party_app.command()
def predict(
    kit: Kit,
    rows: Annotated[Path, Argument(help="a file of new rows", metavar="ROWS")],
    out: OutFolder = Path("predictions"),
    run: Annotated[str | None, Option(help="which run's model")] = None,
    method: Annotated[str | None, Option(help="which of its models")] = None,
) -> None:
    """Predict own rows alone, with what this party keeps of a model; nobody is asked."""
    from fedmend.deploy.party_file import load_party
    from fedmend.serve.models import kept_in_kit
    from fedmend.serve.running import check_out, predict_alone

    party = load_party(kit)
    kept = kept_in_kit(kit, party.name, run, method)
    check_out(out)
    tell([predict_alone(kept, party, rows, out, device=party.device)])


@party_app.command("serve")
def party_serve(
    kit: Kit,
    listen: Annotated[str | None, Option(help="where to wait", metavar="HOST:PORT")] = None,
) -> None:
    """Answer label parties about people both know, from this party's own columns."""
    from fedmend.serve.loopback import serve_until_told
    from fedmend.serve.partner import PartnerServer

    with PartnerServer(kit, listen) as server:
        words = f"{server.file.name} answers at {server.address} (Ctrl-C ends it)"
        serve_until_told(server, lambda: typer.echo(words))
        typer.echo("ended")


@party_app.command()
def adopt(
    kit: Kit,
    model: Annotated[Path, Argument(help="a run's folder, or its model/", metavar="RUN")],
    run: Annotated[str | None, Option(help="under which name it is kept")] = None,
) -> None:
    """Take this party's part of a model that was made in one process into its kit."""
    from fedmend.serve.models import adopt as take

    for line in take(kit, model, run):
        typer.echo(line)


@party_app.command()
def renew(kit: Kit) -> None:
    """At the coordinator: make a party a new certificate; all other kits stay as they are."""
    from fedmend.deploy.provision import renew as make

    make(kit)
    _hand_out(kit)


@party_app.command()
def revoke(kit: Kit) -> None:
    """At the coordinator: shut a party out, by a new authority and new kits for all others."""
    from fedmend.deploy.provision import revoke as shut_out

    for name in shut_out(kit):
        _hand_out(kit.parent / name)
    typer.echo(
        f"{kit.resolve().name} has no certificate any more ('fedmend party renew {kit}' would make "
        "one). Start the server anew: until then it takes the old ones"
    )


@app.command()
def console(
    kit: Annotated[Path, Argument(help="a party's kit, or its party.toml", metavar="KIT")],
    port: Port = 0,
) -> None:
    """Answer runs, and see rules, ledgers, table and models of a party in the browser, here."""
    from fedmend.console.server import ConsoleServer
    from fedmend.serve.loopback import serve_until_told

    with ConsoleServer(kit, port) as server:
        words = f"{server.link}\nOpen it in a browser on this machine; it is good for once."
        serve_until_told(server, lambda: typer.echo(f"{words} Ctrl-C ends the console."))


# ---------------------------------------------------------------- server


@server_app.command("start")
def server_start(kits: KitsFolder = Path("kits")) -> None:
    """Start the server in the background, and wait until parties can reach it."""
    from fedmend.deploy.provision import Kits
    from fedmend.deploy.reach import require_answer

    found = _daemon(_server_kit(kits), "server").start()
    require_answer(Kits(kits), 60.0)
    typer.echo(f"the server runs in the background (process {found.supervisor})")


@server_app.command("status")
def server_status(kits: KitsFolder = Path("kits")) -> None:
    """Whether the server runs, and which parties are connected."""
    from fedmend.deploy.provision import Kits, known_parties
    from fedmend.deploy.reach import listens, require_answer
    from fedmend.federation.engines.flare.engine import connected
    from fedmend.federation.engines.flare.kits import server_of

    daemon = _daemon(_server_kit(kits), "server")
    if daemon.running() is None:
        host, port = server_of(daemon.kit)
        other = f"; something else listens at {host}:{port}" if listens(host, port) else ""
        typer.echo(f"not running{other}")
        raise typer.Exit(1)
    require_answer(Kits(kits), 10.0)
    there = connected(Kits(kits).admin, 10.0)
    for party in sorted({*known_parties(Kits(kits)), *there}):
        typer.echo(f"{party}: {'connected' if party in there else 'not connected'}")


@server_app.command("stop")
def server_stop(kits: KitsFolder = Path("kits")) -> None:
    """End the server, and the job it may be running."""
    typer.echo("stopped" if _daemon(_server_kit(kits), "server").stop() else "was not running")


def _server_kit(kits: Path) -> Path:
    from fedmend.deploy.provision import Kits

    return Kits(kits).server


def _daemon(kit: Path, role: str) -> Daemon:
    from fedmend.deploy.processes import Daemon

    found = Daemon(kit)
    if found.role != role:
        raise ConfigError(f"{kit} is the kit of a {found.role}. Mend: name the one of a {role}")
    return found
