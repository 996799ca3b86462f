"""The keys a party names in its party.toml: its own lasting identity, and those of its partners.

Without them a site makes a fresh key pair for every run and believes the first key that the
coordinator passes on. With them a coordinator that lies at the first exchange is found out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.federation import Site
    from fedmend.secure.keys import Identity

__all__ = ["IDENTITY_FILE", "KeySettings", "install_keys", "own_identity"]

IDENTITY_FILE = "identity.pem"


class KeySettings(BaseModel):
    """The table [keys] of a party.toml.

    identity: the file of this party's own key pair (`fedmend party keys` makes it), encrypted
    under the password in the environment variable `password_variable`. pinned: public keys of
    partners, 64 hexadecimal digits each. only_pinned: talk to nobody else.
    """

    model_config = ConfigDict(extra="forbid")

    identity: str | None = None
    password_variable: str = "FEDMEND_KEY_PASSWORD"
    pinned: dict[str, str] = Field(default_factory=dict)
    only_pinned: bool = False

    @field_validator("pinned")
    @classmethod
    def _hexadecimal(cls, pinned: dict[str, str]) -> dict[str, str]:
        for party, key in pinned.items():
            if len(key) != 64 or not set(key.lower()) <= set("0123456789abcdef"):
                raise ValueError(
                    f"the key of {party!r} is not 64 hexadecimal digits. Mend: paste the line "
                    f"that 'fedmend party keys' shows at {party!r}"
                )
        return pinned


def install_keys(site: Site, keys: KeySettings, folder: Path) -> None:
    """Give the site its keys before any protocol could make or take others."""
    from fedmend.secure.keys import Identity, keyring

    if keys == KeySettings():
        return
    identity = None
    if keys.identity is not None:
        identity = Identity.load(folder / keys.identity, _password(keys))
    keyring(site, identity=identity, pinned=keys.pinned, only_pinned=keys.only_pinned)


def own_identity(keys: KeySettings, folder: Path) -> tuple[Identity, Path, bool]:
    """This party's identity, its file, and whether it was made just now."""
    from fedmend.secure.keys import Identity

    path = folder / (keys.identity or IDENTITY_FILE)
    if path.exists():
        return Identity.load(path, _password(keys)), path, False
    password = _password(keys, f"a new key pair is kept in {path} under a password of your choice")
    identity = Identity()
    identity.save(path, password)
    return identity, path, True


def _password(
    keys: KeySettings, why: str = "the key pair of this party is kept under a password"
) -> bytes:
    password = os.environ.get(keys.password_variable, "")
    if not password:
        raise ConfigError(
            f"{why}, and the environment variable {keys.password_variable} is not set. "
            f"Mend: export {keys.password_variable}=… first; whatever starts the party needs it too"
        )
    return password.encode()
