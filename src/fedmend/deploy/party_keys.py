"""A party's own lasting key pair, and the keys of the partners it works with.

Both are kept in its kit. The key of a partner that party.toml does not pin is believed when it is
first seen, shown to the party and remembered; a coordinator that lies at that first exchange is
found out only by comparing fingerprints. One that lies about a pinned key is found out at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedmend.errors import ConfigError

if TYPE_CHECKING:
    from fedmend.federation import Site
    from fedmend.secure.keys import Identity

__all__ = ["IDENTITY_FILE", "PARTNERS_FILE", "KeySettings", "install_keys", "own_identity"]

IDENTITY_FILE = "identity.pem"
PARTNERS_FILE = "partners.json"


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
            if len(key) != 64 or not set(key.lower()) <= set("0123456789abcdef"):
                raise ValueError(
                    f"the key of {party!r} is not 64 hexadecimal digits. Mend: paste the line "
                    f"that 'fedmend party keys' shows at {party!r}"
                )
        return pinned


def install_keys(site: Site, keys: KeySettings, folder: Path, partners: Iterable[str] = ()) -> None:
    """Give the site its keys before any protocol could make or take others."""
    from fedmend.secure.keys import keyring

    if keys.identity is not None and not (folder / keys.identity).exists():
        raise ConfigError(
            f"keys.identity: there is no {keys.identity!r} beside party.toml. Mend: correct the "
            "name, or make it with 'fedmend party keys'"
        )
    keyring(
        site,
        identity=own_identity(keys, folder)[0],
        pinned=keys.pinned,
        partners=partners,
        memory=folder / PARTNERS_FILE,
    )


def own_identity(keys: KeySettings, folder: Path) -> tuple[Identity, Path, bool]:
    """This party's identity, its file, and whether it was made just now.

    A new one is encrypted if there is a password; else it is as safe as the kit, which holds the
    party's certificate and its key in the same way.
    """
    from fedmend.secure.keys import Identity

    path = folder / (keys.identity or IDENTITY_FILE)
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
