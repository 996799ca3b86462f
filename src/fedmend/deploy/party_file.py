"""party.toml: a party's own file. Where its table is, and what it lets out; nobody else sees it."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedmend.data.table import Table
from fedmend.deploy.confirmed import require_confirmed
from fedmend.deploy.party_keys import KeySettings, install_keys
from fedmend.errors import ConfigError
from fedmend.federation import Policy, Site, Worker
from fedmend.federation.bound import Bound
from fedmend.federation.engines.flare.host import RUN_FOLDER, Hello
from fedmend.federation.engines.flare.leftovers import KEEP_JOBS
from fedmend.federation.policy import MACHINES_PREDICTIONS
from fedmend.federation.randomness import kept_secret
from fedmend.federation.site import RECORDS
from fedmend.flow.config import PartySettings, checked, party_problems
from fedmend.flow.config.references import look_up
from fedmend.flow.reading import read_party, split_by_id
from fedmend.secure.psi_spu import PARTNER_ADDRESSES

if TYPE_CHECKING:
    from fedmend.data.schema import Schema

__all__ = [
    "PARTY_FILE",
    "PartyFile",
    "install_workers",
    "load_party",
    "open_site",
    "read_new",
    "rules_of",
]

logger = logging.getLogger(__name__)

PARTY_FILE = "party.toml"
# Rooms and modules with workers in them; what is imported is known, and nothing else can be asked.
_ROOMS = (
    "secure", "split", "generate", "methods", "report", "preflight", "flow", "serve",
)  # fmt: skip


class PartyFile(PartySettings):
    """A whole party.toml.

    approve: "ask" waits for a word of this party before every run. modules: further modules of
    this installation that define workers. patience: seconds without a word from the coordinator
    after which a job ends here. threads: for tensor programs, all cores by default. partners: the
    parties that this one works with, besides those whose keys it pins; nobody else is let in.
    keys: lasting keys of this party and its partners. new: a file of rows to predict with a
    trained model. spu_addresses: host:port, or a host, where partners are reached in alignments of
    mode "spu". keep_jobs: of how many finished runs the folders of FLARE's jobs are kept.
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
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "there is no such file. Mend: 'fedmend provision' writes one into every kit",
            source=str(path),
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}. Mend: it must be TOML in UTF-8", source=str(path)
        ) from error
    found, problems = checked(PartyFile, raw, party_problems)
    if problems or found is None:
        raise ConfigError(problems, source=str(path))
    found._source = path
    return found


def open_site(file: PartyFile, hello: Hello, folder: Path) -> Site:
    """This party's site for a run: bound to its methods, tables read, test rows set aside."""
    require_confirmed(file)
    policy, bound = rules_of(file, hello)
    home = folder / RUN_FOLDER / hello.run
    if hello.reproducible:
        policy.admit_reproducible(file.name)
    if file.threads is not None:
        import torch

        torch.set_num_threads(file.threads)
    train, test = read_party(file, file)
    if test is None:
        train, test = split_by_id(train, hello.test_share, hello.seed)
    site = Site(
        file.name,
        {"train": train, "test": test, "new": _new_rows(file, train)},
        policy=policy,
        seed=hello.seed,
        secret=None
        if hello.reproducible
        else kept_secret(home, f"party {file.name!r}", resumed=hello.resumed),
        device=file.device,
        home=home,
        records=folder / RECORDS,
        bound=bound,
    )
    install_keys(site, file.keys, file.at("."), file.partners)
    site.vault[PARTNER_ADDRESSES] = dict(file.spu_addresses)
    return site


def rules_of(file: PartyFile, hello: Hello) -> tuple[Policy, Bound]:
    """This party's policy between machines, and what the methods of a run may use by it."""
    own = install_workers(file.modules)
    policy = file.policy.build()
    if policy.predictions is None:
        policy = replace(policy, predictions=MACHINES_PREDICTIONS)
    seal = file.policy.sealed is None
    return policy, Bound.to(file.name, hello.methods, policy, own=own, seal=seal)


def _new_rows(file: PartyFile, train: Table) -> Table:
    """The rows to predict, read as the training rows were; none where none are named."""
    return train.features.take([]) if file.new is None else read_new(file, train.features.schema)


def read_new(file: PartyFile, schema: Schema) -> Table:
    """The rows of the file that a party names for predictions."""
    from fedmend.flow.new_rows import read_rows

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
