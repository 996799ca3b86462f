"""Start-up kits: certificates and settings for the coordinator's server and for every party.

FLARE's provisioner makes the certificate authority and the certificates. What we add to each kit
closes it: only fedmend's two job classes may run, a job that brings code is refused, nobody gets
a shell, and all files of the server stay inside its kit.

    kits/coordinator/server   kits/coordinator/admin   kits/<party>   kits/ca (keep it to yourself)
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._files import write_whole
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, FedmendWarning, MissingExtra
from fedmend.federation.engines.flare.kits import (
    ADMIN,
    CONTROLLER_CLASS,
    EXECUTOR_CLASS,
    PARTY_CLASS,
    RELAY_CLASS,
    Kits,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from fedmend.flow.config import Config, PartySettings

SOON_DAYS = 30
_REVOKED = "revoked.json"  # beside the authority: names that it does not know any more
_PARTS = ("startup", "local")  # of a kit: the rest is the party's own
Named = tuple[str, "Certificate"]

_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "any",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
_QUIET_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
            "fmt": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        }
    },
    "handlers": {
        "file": {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "line",
            "filename": "log.txt",
            "mode": "a",
            "maxBytes": 5_000_000,
            "backupCount": 2,
        }
    },
    # FLARE writes several lines per call at INFO, which costs more than the call.
    "loggers": {
        "root": {"level": "WARNING", "handlers": ["file"]},
        "fedmend": {"level": "INFO"},
    },
}


_FIRST = ("data", "sql", "uri", "test", "test_sql", "id", "label")
_FORM = {
    "encoding": '# encoding = "cp1252"      # of a CSV file; "utf-8" by default',
    "delimiter": '# delimiter = ";"          # "," by default',
    "decimal": '# decimal = ","            # "." by default',
    "missing": '# missing = ["-999"]       # what stands in empty cells, besides NA and null',
    "drop": '# drop = ["remarks"]       # columns that are left out',
    "test": '# test = "later.csv"       # test rows; by default a share is set aside by the ids',
}


def provision(config: Config, *, force: bool = False) -> Kits:
    """The kits of a federation.toml, each party's with a party.toml to fill in."""
    flare = config.flare
    names = [party.name for party in config.party]
    kits = make_kits(config.at(flare.kits), names, host=flare.host, port=flare.port, force=force)
    for party in config.party:
        path = kits.party(party.name) / "party.toml"
        if not path.exists():
            path.write_text(_party_toml(config, party, path.parent), encoding="utf-8")
    return kits


def renew(kit: Path) -> None:
    """A new certificate for one party, of the same authority; all other kits stay as they are."""
    kit = kit.resolve()
    kits, known, (host, port) = _federation_of(kit)
    parties = sorted({*known, kit.name})
    make_kits(kits.folder, parties, host=host, port=port, renew=[kit.name])


def revoke(kit: Path) -> list[str]:
    """Shut a party out: a new authority, and new kits for all others, whose names are returned.

    FLARE's server takes whatever its authority has signed, for as long as it says.
    """
    kit = kit.resolve()
    kits, known, (host, port) = _federation_of(kit)
    rest = [name for name in known if name != kit.name]
    authority, before = kits.folder / "ca", kits.folder / "ca.before"
    gone = sorted({*_revoked(kits), kit.name})
    authority.rename(before)
    try:
        make_kits(kits.folder, rest, host=host, port=port, force=True)
    except BaseException:
        shutil.rmtree(authority, ignore_errors=True)
        before.rename(authority)
        raise
    _write(authority / _REVOKED, gone)
    shutil.rmtree(before)
    for part in _PARTS:
        shutil.rmtree(kit / part, ignore_errors=True)
    return rest


def _federation_of(kit: Path) -> tuple[Kits, list[str], tuple[str, int]]:
    """The kits around one, the parties its authority knows, and the server's address."""
    kits = Kits(kit.parent)
    if not _noted(kits.folder / "ca"):
        raise ConfigError(
            f"there is no authority in {kits.folder}: certificates are made where it is, at the "
            "coordinator. Mend: name the kit there, or ask the coordinator"
        )
    known = known_parties(kits)
    # One that was revoked is not known any more, and may come back.
    names = sorted({*known, *_revoked(kits)})
    if kit.name not in names and not (kit / "party.toml").is_file():
        words = did_you_mean(kit.name, names)
        raise ConfigError(f"there is no party {kit.name!r} in {kits.folder}: {words}")
    return kits, known, _address(kits)


def known_parties(kits: Kits) -> list[str]:
    """The parties that the authority knows, wherever their kits are now.

    Where it is kept elsewhere: those that have a kit here.
    """
    noted, others = _noted(kits.folder / "ca"), (_address(kits)[0], ADMIN)
    if not noted:
        return kits.parties
    return sorted(
        name
        for path in noted
        for name in json.loads(path.read_text("utf-8"))
        if not name.startswith("root_") and name not in others
    )


def _revoked(kits: Kits) -> list[str]:
    path = kits.folder / "ca" / _REVOKED
    return list(json.loads(path.read_text("utf-8"))) if path.is_file() else []


def _address(kits: Kits) -> tuple[str, int]:
    """Host and port for which kits were made."""
    text = (kits.admin / "startup" / "fed_admin.json").read_text("utf-8")
    admin = json.loads(text)["admin"]
    return str(admin["host"]), int(admin["port"])


def require_kits(config: Config, kits: Kits) -> None:
    """That the kits are those of this file: the same address, and one for each of its parties."""
    again = f"fedmend provision {config.source}"
    if not kits.server.is_dir():
        raise ConfigError(f"there are no kits in {kits.folder}. Mend: {again}")
    own = chain(kit_certificates(kits.server), kit_certificates(kits.admin))
    names = {party.name for party in config.party}
    theirs = (each for each in issued_certificates(kits.folder / "ca") if each[0] in names)
    require_valid(
        chain(own, theirs),
        f"'fedmend party renew {kits.folder}/PARTY' makes one party a new certificate, {again} "
        "--force all (after kits/ca is removed, if it is the authority's that is over)",
    )
    problems = []
    made, said = _address(kits), (config.flare.host, config.flare.port)
    if made != said:
        problems.append(
            f"flare.host and flare.port are {said[0]}:{said[1]}, but {kits.folder} was made for "
            f"{made[0]}:{made[1]}. Mend: write that, or {again} --force and new kits for all"
        )
    known = [
        name for path in _noted(kits.folder / "ca") for name in json.loads(path.read_text("utf-8"))
    ]
    problems += [
        f"party {party.name!r} has no kit in {kits.folder}. Mend: {again} --force, which leaves "
        "the kits that were handed out in force"
        for party in config.party
        if known and party.name not in known
    ]
    if problems:
        raise ConfigError(problems, source=str(config.source))


def _party_toml(config: Config, party: PartySettings, kit: Path) -> str:
    """A party's own file: what federation.toml already says, and what else can be said."""
    # Here, since a supervisor, which never makes a kit, would take seconds longer to start.
    from fedmend.flow.config.rewriting import moved, toml_text

    lines = [
        f"# What fedmend needs to know at {party.name}. This file stays here; nobody else sees it.",
        f"name = {json.dumps(party.name)}",
        "",
        "# The table: a file (.csv, .csv.gz, .parquet; relative to this file), or a query.",
    ]
    told = party.model_dump(exclude_defaults=True, exclude_none=True)
    told = moved(told, Path(os.path.relpath(config.source.parent, kit)))
    if party.sql is None:
        lines += ['# sql = "SELECT …"', '# uri = "postgresql://…"']
        told.setdefault("data", "table.csv")
    if party.id is None:
        lines.append('# id = "customer"')
    kinds, policy = told.pop("kinds", {}), told.pop("policy", {})
    told = {key: told[key] for key in (*_FIRST, *told) if key in told and key != "name"}
    lines.append(toml_text(told).rstrip())
    lines += [f"kinds.{toml_text({name: kind})}".rstrip() for name, kind in kinds.items()]
    if party.sql is None:
        lines += ["", *(words for key, words in _FORM.items() if key not in told)]
    partners = [each.name for each in config.party if each.name != party.name]
    lines += [
        "",
        "# Whom this party works with; nobody else is let in. Their keys: fedmend party keys KIT.",
        f"partners = {json.dumps(partners)}",
        "",
        '# new = "new.csv"          # rows to predict with a trained model',
        '# approve = "ask"          # ask on this screen before every run',
        '# device = "cuda"',
        "",
        "[policy]",
        *([toml_text(policy).rstrip()] if policy else []),
        '# refuse = ["weights"]     # kinds that never leave, besides labels and rows',
        '# sealed = ["embedding", "gradient"]   # leave only end-to-end encrypted',
        '# workers = ["…"]          # only these may be started here',
        "# min_intersection = 100   # take part in nothing with fewer shared ids",
        "# min_rows = 20            # fewest rows that any answer rests on; 10 without it",
        "# label_epsilon = 4        # ceiling for all label_dp of all runs together; 8 without it",
        "# label_dp_only = true     # let labels be known through label_dp or not at all",
        "# reproducible = true      # let others know what this party draws: for trials only",
        "",
        "# [keys.pinned]            # believed at once; other partners' keys when first seen",
        *(f'# {name} = "…"' for name in partners),
    ]
    return "\n".join(lines) + "\n"


def make_kits(
    folder: Path,
    parties: Sequence[str],
    *,
    host: str = "localhost",
    port: int = 8102,
    force: bool = False,
    renew: Sequence[str] = (),
) -> Kits:
    """Provision a federation into `folder`; an authority that is there already is used again.

    renew: only these parties get new kits.
    """
    problems = _problems(parties, host, port)
    kits = Kits(folder)
    present = [each for each in (kits.server, *map(kits.party, parties)) if each.exists()]
    if present and not force and not renew:
        problems.append(
            f"{present[0]} exists already. Mend: --force makes all kits anew; those that were "
            "handed out stay in force as long as the address is the same"
        )
    if problems:
        raise ConfigError(problems)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _forget_noted(folder / "ca", renew)
    made = _run_provisioner(folder / "ca", parties, host, port)
    for name in renew or parties:
        _place(made / name, kits.party(name))
        _close_party(kits.party(name))
    if not renew:
        _place(made / host, kits.server)
        _place(made / ADMIN, kits.admin)
        _close_server(kits.server)
    shutil.rmtree(made)
    return kits


def _place(made: Path, kit: Path) -> None:
    """Put a new kit where it belongs; what a party keeps in the old one stays."""
    kit.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        shutil.rmtree(kit / part, ignore_errors=True)
        shutil.move(made / part, kit / part)


def _noted(authority: Path) -> list[Path]:
    """Where FLARE notes whom it gave certificates; nothing where the authority is elsewhere."""
    return list(authority.glob("*/state/cert.json"))


def _forget_noted(authority: Path, renew: Sequence[str]) -> None:
    """FLARE hands out the certificates it made before; the authority's own is to stay.

    renew: whose are to go; all without any.
    """
    for path in _noted(authority):
        known = json.loads(path.read_text(encoding="utf-8"))
        kept = {key for key in known if key.startswith("root_") or (renew and key not in renew)}
        _write(path, {key: value for key, value in known.items() if key in kept})


def _problems(parties: Sequence[str], host: str, port: int) -> list[str]:
    problems = []
    for name in parties:
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            problems.append(
                f"party {name!r}: a party of its own machine is named with letters, digits, '-' "
                "and '_' only. Mend: rename it"
            )
        if name in ("ca", "coordinator", "server", host):
            problems.append(f"party {name!r}: the name is taken. Mend: rename it")
    if not 0 < port < 65536:
        problems.append(f"flare.port must be between 1 and 65535, got {port}")
    return problems


def _run_provisioner(state: Path, parties: Sequence[str], host: str, port: int) -> Path:
    """Let FLARE make certificates and kits; returns the folder with one folder for each."""
    try:
        from nvflare.lighter.prov_utils import prepare_builders
        from nvflare.lighter.provision import prepare_project
        from nvflare.lighter.provisioner import Provisioner
    except ImportError as error:
        raise MissingExtra("nvflare", "flare", "a federation of several machines") from error

    builders = "nvflare.lighter.impl"
    project: dict[str, Any] = {
        "api_version": 3,
        "name": "fedmend",
        "description": "a fedmend federation",
        "participants": [
            {"name": host, "type": "server", "org": "coordinator", "fed_learn_port": port},
            *({"name": name, "type": "client", "org": _org(name)} for name in parties),
            {"name": ADMIN, "type": "admin", "org": "coordinator", "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{builders}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{builders}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{builders}.cert.CertBuilder", "args": {}},
            {"path": f"{builders}.signature.SignatureBuilder", "args": {}},
        ],
    }
    umask = os.umask(0o077)
    try:
        found = prepare_project(project)
        provisioner = Provisioner(str(state), prepare_builders(project))
        context = provisioner.provision(found, logger=_Silent())
        if context.get("build_error"):
            raise ConfigError("FLARE could not make the kits. Mend: see what it logged")
        return Path(context["current_prod_dir"])
    finally:
        os.umask(umask)


class _Silent:
    """FLARE prints unless it is given something to tell."""

    def debug(self, *words: Any) -> None: ...

    info = warning = error = debug


def _org(party: str) -> str:
    return party.replace("-", "_")


def _close_party(kit: Path) -> None:
    resources = _resources(kit, EXECUTOR_CLASS, PARTY_CLASS)
    resources["allow_log_streaming"] = False
    resources["components"] = [
        each for each in resources["components"] if each["id"] != "site_log_streamer"
    ]
    _write(kit / "local" / "resources.json", resources)
    _close(kit)


def _close_server(kit: Path) -> None:
    resources = _resources(kit, CONTROLLER_CLASS, RELAY_CLASS)
    for each in resources["components"]:
        if each["id"] == "job_scheduler":
            each["args"]["max_jobs"] = 100  # one for each party
    # A party that was killed is forgotten soon, so that it can come back under its name.
    resources["servers"][0]["heart_beat_timeout"] = 30
    _write(kit / "local" / "resources.json", resources)
    anchor_server(kit)
    _close(kit)


def anchor_server(kit: Path) -> None:
    """Keep the server's files inside its kit, wherever the kit is now (FLARE's default is /tmp)."""
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text(encoding="utf-8"))
    for each in resources["components"]:
        if each["id"] == "job_manager":
            each["args"]["uri_root"] = str(kit.resolve() / "jobs")
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit.resolve() / "snapshots")
    _write(path, resources)


def _close(kit: Path) -> None:
    """Rights and log of a kit; FLARE's shell scripts go, `fedmend` starts the processes."""
    authorization = {"format_version": "1.0", "permissions": {"project_admin": _RIGHTS}}
    _write(kit / "local" / "authorization.json", authorization)
    _write(kit / "local" / "log_config.json", _QUIET_LOG)
    for script in kit.glob("startup/*.sh"):
        script.unlink()


def _resources(kit: Path, *classes: str) -> dict[str, Any]:
    """FLARE's defaults, with no classes but these."""
    found = json.loads((kit / "local" / "resources.json.default").read_text("utf-8"))
    return {**found, "class_allow_list": [*classes], "class_list_enforcement_mode": "enforce"}


def _write(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2), private=True)


# ---------------------------------------------------------------- certificates
# One that is over makes no connection, and FLARE does not say so: a party tries for ever, and a
# run waits for it.


def kit_certificates(kit: Path) -> Iterator[Named]:
    """The certificates in a kit that can be read: its own, and that of the authority."""
    for file in ("client.crt", "server.crt", "rootCA.pem"):
        path = kit / "startup" / file
        found = _read(path.read_bytes()) if path.is_file() else None
        if found is not None:
            yield "the authority" if file == "rootCA.pem" else _name(found), found


def issued_certificates(authority: Path) -> Iterator[Named]:
    """The certificates that an authority has handed out, as it noted them; its own among them."""
    for path in _noted(authority):
        for name, told in json.loads(path.read_text(encoding="utf-8")).items():
            text = told.get("cert") if isinstance(told, dict) else told
            found = _read(text.encode()) if isinstance(text, str) else None
            if found is not None:
                yield "the authority" if name == "root_cert" else name, found


def require_kit_valid(kit: Path) -> None:
    """That the certificates of a kit are valid now."""
    mend = (
        "the coordinator makes a new one ('fedmend party renew', for all 'fedmend provision "
        "--force') and hands it out"
    )
    require_valid(kit_certificates(kit), mend)


def require_valid(certificates: Iterator[Named], mend: str) -> None:
    """Raise what is over or not valid yet; warn of what soon will be over."""
    problems: dict[str, None] = {}
    for name, certificate in certificates:
        now = datetime.datetime.now(datetime.UTC)
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > last:
            problems[
                f"the certificate of {name} expired on {last:%Y-%m-%d}; this machine says "
                f"{now:%Y-%m-%d}. Mend: {mend}"
            ] = None
        elif now < first:
            problems[
                f"the certificate of {name} is valid from {first:%Y-%m-%d %H:%M}, but this machine "
                f"says {now:%Y-%m-%d %H:%M} (UTC). Mend: set the clock"
            ] = None
        elif (last - now).days < SOON_DAYS:
            words = f"the certificate of {name} expires on {last:%Y-%m-%d}. Mend: {mend}, in time"
            warnings.warn(words, FedmendWarning, stacklevel=3)
    if problems:
        raise ConfigError(problems)


def _read(text: bytes) -> Certificate | None:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError:  # whoever needs it says so
        return None


def _name(certificate: Certificate) -> str:
    from cryptography.x509.oid import NameOID

    named = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(named[0].value) if named else "this kit"
