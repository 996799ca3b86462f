"""party.toml: a party's own file. Where its table is, what it lets out, whose keys it believes.

Nobody else sees it. But the coordinator's `fedmend provision` writes the first one, and whoever
writes ``uri`` or ``${NAME}`` there decides which database is called and which of the party's
environment variables goes to it. So each of these is shown and confirmed once, at the party, by its
people; what they confirmed is remembered as hashes in the kit, and a change has to be confirmed
again. A file that names nothing but tables beside it has nothing to confirm.

The party's own lasting key pair and the keys of its partners are in the kit too. The key of a
partner that party.toml does not pin is believed when it is first seen, shown to the party and
remembered; a coordinator that lies at that first exchange is found out only by comparing
fingerprints. One that lies about a pinned key is found out at once.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedmend._files import write_whole
from fedmend.data.schema import Schema
from fedmend.data.sql import replace_passwords
from fedmend.data.table import Table
from fedmend.deploy.rules import Rule, refused_kinds
from fedmend.errors import ConfigError, Refused
from fedmend.federation import Policy, Site, Worker
from fedmend.federation.bound import Bound
from fedmend.federation.engines.flare.events import printable
from fedmend.federation.engines.flare.host import RUN_FOLDER, Hello
from fedmend.federation.engines.flare.kits import KEEP_JOBS
from fedmend.federation.policy import MACHINES_PREDICTIONS
from fedmend.federation.randomness import kept_secret
from fedmend.federation.site import RECORDS
from fedmend.flow.config import PartySettings, checked, party_problems
from fedmend.flow.config.references import REFERENCED, is_reference, look_up, look_up_names
from fedmend.flow.new_rows import read_rows
from fedmend.flow.reading import read_party, split_by_id
from fedmend.secure.keys import Identity, keyring
from fedmend.secure.psi_spu import PARTNER_ADDRESSES

logger = logging.getLogger(__name__)

PARTY_FILE = "party.toml"
CONFIRMED_FILE = "confirmed.json"
IDENTITY_FILE = "identity.pem"
PARTNERS_FILE = "partners.json"
# Rooms and modules with workers in them; what is imported is known, and nothing else can be asked.
_ROOMS = (
    "secure", "split", "generate", "methods", "report", "preflight", "flow", "serve",
)  # fmt: skip


def _is_hexadecimal(text: str) -> bool:
    return len(text) == 64 and set(text.lower()) <= set("0123456789abcdef")


class KeySettings(BaseModel):
    """The table [keys] of a party.toml.

    identity: the file of this party's own key pair, if not identity.pem beside the party.toml.
    password_variable: the environment variable with the password under which it is encrypted.
    pinned: public keys of partners, 64 hexadecimal digits each.
    """

    model_config = ConfigDict(extra="forbid")

    identity: str | None = None
    password_variable: str = "FEDMEND_KEY_PASSWORD"
    pinned: dict[str, str] = Field(default_factory=dict)

    @field_validator("pinned")
    @classmethod
    def _hexadecimal(cls, pinned: dict[str, str]) -> dict[str, str]:
        for party, key in pinned.items():
            if not _is_hexadecimal(key):
                raise ValueError(
                    f"the key of {party!r} is not 64 hexadecimal digits. Mend: paste the line "
                    f"that 'fedmend party keys' shows at {party!r}"
                )
        return pinned


class ServeSettings(BaseModel):
    """The table [serve] of a party.toml: how questions are answered, at either end.

    rows: a file with the columns of people that may be asked about; by default the party's table.
    sql: a query for the rows of some people, ``… WHERE customer IN ({ids})``, at the party's `uri`.
    url: an address of this party's own that is sent ``{"ids": […]}`` and answers with
    ``{"rows": [{…}]}``. quota: answers about one person that whoever asks gets in a day. runs: the
    runs whose models may be asked; all that are in the kit without it.
    listen: where a partner waits for label parties. partners: at the label party, where each of
    its partners listens. normalise: as under [align]. deadline: seconds after which an answer does
    without partners. queue: how many requests wait at most. digits: of probabilities that leave.
    askers: who may ask over HTTP, each with the SHA-256 of its token. model: RUN/METHOD of the
    model that answers, read again at SIGHUP.
    """

    model_config = ConfigDict(extra="forbid")

    rows: str | None = None
    sql: str | None = None
    url: str | None = None
    quota: int | None = Field(default=None, ge=1)
    runs: list[str] | None = None
    listen: str | None = None
    partners: dict[str, str] = Field(default_factory=dict)
    normalise: Literal["exact", "text", "number"] = "exact"
    deadline: float = Field(default=0.2, gt=0, le=60)
    queue: int = Field(default=256, ge=1)
    digits: int | None = Field(default=None, ge=1, le=7)
    askers: dict[str, str] = Field(default_factory=dict)
    model: str | None = Field(default=None, pattern="^[^/]+/[^/]+$")

    @model_validator(mode="after")
    def _one_source(self) -> ServeSettings:
        if sum(each is not None for each in (self.rows, self.sql, self.url)) > 1:
            raise ValueError("rows, sql and url are three ways to say one thing. Mend: one of them")
        if self.sql is not None and "{ids}" not in self.sql:
            raise ValueError("sql must say where the ids go. Mend: … WHERE customer IN ({ids})")
        wrong = [name for name, each in self.askers.items() if not _is_hexadecimal(each)]
        if wrong:
            raise ValueError(
                f"askers.{wrong[0]} must be the SHA-256 of a token, 64 hexadecimal digits. "
                "Mend: printf %s TOKEN | sha256sum"
            )
        return self


class PartyFile(PartySettings):
    """A whole party.toml.

    approve: "ask" waits for a word of this party before every run. modules: further modules of
    this installation that define workers. patience: seconds without a word from the coordinator
    after which a job ends here. threads: for tensor programs, all cores by default. partners: the
    parties that this one works with, besides those whose keys it pins; nobody else is let in.
    keys: lasting keys of this party and its partners. new: a file of rows to predict with a
    trained model. spu_addresses: host:port, or a host, where partners are reached in alignments of
    mode "spu". keep_jobs: of how many finished runs the folders of FLARE's jobs are kept. rule: to
    whom it says yes or no before anybody is asked.
    serve: how questions about people are answered, once there is a model.
    """

    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    threads: int | None = Field(default=None, ge=1)
    approve: Literal["always", "ask"] = "always"
    approve_seconds: float = Field(default=600, gt=0)
    modules: list[str] = Field(default_factory=list)
    patience: float = Field(default=180, gt=0)
    partners: list[str] = Field(default_factory=list)
    keys: KeySettings = Field(default_factory=KeySettings)
    new: str | None = None
    spu_addresses: dict[str, str] = Field(default_factory=dict)
    keep_jobs: int = Field(default=KEEP_JOBS, ge=0)
    rule: list[Rule] = Field(default_factory=list)
    serve: ServeSettings = Field(default_factory=ServeSettings)

    _source: Path = Path(PARTY_FILE)

    def at(self, path: str) -> Path:
        """A path of the file, which is relative to the file itself."""
        return self._source.parent / path

    @property
    def labellers(self) -> list[str]:
        """This party cannot know who else has labels."""
        return []


def load_party(path: Path) -> PartyFile:
    """Read and check a party.toml; all its problems come in one ConfigError."""
    path = path / PARTY_FILE if path.is_dir() else path
    try:
        return party_of(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise ConfigError(
            "there is no such file. Mend: 'fedmend provision' writes one into every kit",
            source=str(path),
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}. Mend: it must be TOML in UTF-8", source=str(path)
        ) from error


def party_of(text: str, path: Path) -> PartyFile:
    """The settings of a party.toml with this text."""
    raw = tomllib.loads(text)
    found, problems = checked(PartyFile, raw, party_problems)
    if problems or found is None:
        raise ConfigError(problems, source=str(path))
    found._source = path
    return found


def open_site(file: PartyFile, hello: Hello, folder: Path) -> Site:
    """This party's site for a run: bound to its methods, tables read, test rows set aside."""
    require_confirmed(file)
    policy, bound = rules_of(file, hello)
    if hello.reproducible:
        policy.admit_reproducible(file.name)
    if file.threads is not None:
        import torch

        torch.set_num_threads(file.threads)
    train, test = read_party(file, file)
    if test is None:
        train, test = split_by_id(train, hello.test_share, hello.seed)
    # The rows to predict are read as the training rows were; there are none where none are named.
    known = train.features
    new = known.take([]) if file.new is None else read_new(file, known.schema)
    tables = {"train": train, "test": test, "new": new}
    how: dict[str, Any] = {"seed": hello.seed, "bound": bound}
    if not hello.reproducible:
        home = folder / RUN_FOLDER / hello.run
        how["secret"] = kept_secret(home, f"party {file.name!r}", resumed=hello.resumed)
    return site_of(file, folder, hello.run, tables, policy, **how)


def site_of(
    file: PartyFile, kit: Path, run: str, tables: dict[str, Table], policy: Policy, **how: Any
) -> Site:
    """A party's site: its home in the kit is the run's, its records and keys are for all runs."""
    how |= {"home": kit / RUN_FOLDER / run, "records": kit / RECORDS, "device": file.device}
    site = Site(file.name, tables, policy=policy, **how)
    install_keys(site, file)
    return site


def rules_of(file: PartyFile, hello: Hello) -> tuple[Policy, Bound]:
    """This party's policy between machines, and what the methods of a run may use by it."""
    own = install_workers(file.modules)
    policy = file.policy.build()
    if policy.predictions is None:
        policy = replace(policy, predictions=MACHINES_PREDICTIONS)
    policy = replace(policy, refuse=policy.refuse | refused_kinds(file.rule, hello))
    seal = file.policy.sealed is None
    return policy, Bound.to(file.name, hello.methods, policy, own=own, seal=seal)


def read_new(file: PartyFile, schema: Schema) -> Table:
    """The rows of the file that a party names for predictions."""
    assert file.new is not None
    place = look_up(file.new, "new")
    with place.as_written():
        return read_rows(file.at(place.text), file, schema)


def install_workers(modules: list[str] | None = None) -> list[type[Worker]]:
    """Import every module of this installation that may define workers.

    Returned are those of the party's own `modules`: it named them, so that they may be started.
    """
    root = Path(__file__).parent.parent
    for room in _ROOMS:
        if not (root / room).is_dir():
            continue
        package = importlib.import_module(f"fedmend.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"fedmend.{room}."):
            if not found.name.rpartition(".")[2].startswith("_"):
                _import(found.name)
    for name in modules or ():
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"modules: {name!r} cannot be imported: {error}. Mend: install it where fedmend "
                "is, or take it off the list in party.toml"
            ) from error
    return [each for each in Worker.installed().values() if each.__module__ in (modules or ())]


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        # An optional package is missing; whoever asks for this module's workers is told so.
        logger.warning("%s cannot be used here: %s", name, error)


# ---------------------------------------------------------------- where it leads


class Lead(NamedTuple):
    """A line of a party.toml that leads out of its folder: its key, as it is shown, its hash."""

    key: str
    words: str
    digest: str


def unconfirmed(file: PartyFile) -> list[Lead]:
    """What the party's people have not seen yet."""
    known = _known(file.at(CONFIRMED_FILE))
    return [lead for lead in _leads(file) if lead.digest not in known]


def confirm(file: PartyFile) -> None:
    """Remember all that the file leads to now, and nothing that it led to before."""
    content = json.dumps({"confirmed": sorted(lead.digest for lead in _leads(file))})
    write_whole(file.at(CONFIRMED_FILE), content, private=True)


def require_confirmed(file: PartyFile) -> None:
    """Nothing is called or looked up that the party has not confirmed.

    The refusal goes to the coordinator, and names keys only.
    """
    missing = unconfirmed(file)
    if missing:
        keys = ", ".join(dict.fromkeys(lead.key for lead in missing))
        raise Refused(
            file.name,
            f"its people have not confirmed where its party.toml leads ({keys})",
            "'fedmend party confirm' there shows it and asks",
        )


def _leads(file: PartyFile) -> Iterator[Lead]:
    for key in REFERENCED:
        value = getattr(file, key)
        names = look_up_names(value) if value is not None else []
        if names or (key == "uri" and value is not None):
            reads = f"   (reads {', '.join(names)} from the environment)" if names else ""
            yield _lead(key, value, reads)
    for key in ("sql", "test_sql"):
        if getattr(file, key) is not None:
            yield _lead(key, getattr(file, key))
    for key in ("sql", "url"):
        if getattr(file.serve, key) is not None:
            yield _lead(f"serve.{key}", getattr(file.serve, key))
    for party, address in sorted(file.spu_addresses.items()):
        yield _lead(f"spu_addresses.{party}", address)


def _lead(key: str, value: str, more: str = "") -> Lead:
    plain = replace_passwords(value, lambda secret: secret if is_reference(secret) else "***")
    shown = re.sub(r"\s+", " ", printable(plain))
    digest = hashlib.sha256(json.dumps([key, value]).encode()).hexdigest()
    return Lead(key, f'{key} = "{shown}"{more}', digest)


def _known(path: Path) -> set[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(each) for each in content["confirmed"]}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}). Mend: remove it, and confirm again with "
            "'fedmend party confirm'"
        ) from error


# ---------------------------------------------------------------- keys


def install_keys(site: Site, file: PartyFile) -> None:
    """Give the site its keys before any protocol could make or take others."""
    keys = file.keys
    if keys.identity is not None and not file.at(keys.identity).exists():
        raise ConfigError(
            f"keys.identity: there is no {keys.identity!r} beside party.toml. Mend: correct the "
            "name, or make it with 'fedmend party keys'"
        )
    keyring(
        site,
        identity=own_identity(file)[0],
        pinned=keys.pinned,
        partners=file.partners,
        memory=file.at(PARTNERS_FILE),
    )
    site.vault[PARTNER_ADDRESSES] = dict(file.spu_addresses)


def own_identity(file: PartyFile) -> tuple[Identity, Path, bool]:
    """This party's identity, where it is kept, and whether it was made just now.

    A new one is encrypted if there is a password; else it is as safe as the kit, which holds the
    party's certificate and its key in the same way.
    """
    keys = file.keys
    path = file.at(keys.identity or IDENTITY_FILE)
    password = os.environ.get(keys.password_variable, "").encode() or None
    if not path.exists():
        identity = Identity()
        identity.save(path, password)
        return identity, path, True
    if not is_encrypted(path):
        return Identity.load(path, None), path, False
    if password is None:
        raise ConfigError(
            f"the key pair of this party is kept under a password, and the environment variable "
            f"{keys.password_variable} is not set. Mend: export {keys.password_variable}=… first; "
            "whatever starts the party needs it too"
        )
    return Identity.load(path, password), path, False


def is_encrypted(identity: Path) -> bool:
    try:
        return b"ENCRYPTED" in identity.read_bytes().partition(b"\n")[0]
    except OSError as error:
        raise ConfigError(f"cannot read the identity {identity}: {error.strerror}") from error
