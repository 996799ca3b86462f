"""From when until when the certificates of kits are valid; one that is over makes no connection.

FLARE does not say so: a party tries for ever, and a run waits for it.
"""

from __future__ import annotations

import datetime
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import ConfigError, FedmendWarning

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["SOON_DAYS", "issued_certificates", "kit_certificates", "require_valid"]

SOON_DAYS = 30
Named = tuple[str, "Certificate"]


def kit_certificates(kit: Path) -> Iterator[Named]:
    """The certificates in a kit that can be read: its own, and that of the authority."""
    for file in ("client.crt", "server.crt", "rootCA.pem"):
        path = kit / "startup" / file
        found = _read(path.read_bytes()) if path.is_file() else None
        if found is not None:
            yield "the authority" if file == "rootCA.pem" else _name(found), found


def issued_certificates(authority: Path) -> Iterator[Named]:
    """The certificates that an authority has handed out, as it noted them; its own among them."""
    for path in authority.glob("*/state/cert.json"):
        for name, told in json.loads(path.read_text(encoding="utf-8")).items():
            text = told if name == "root_cert" else told.get("cert") if _is_table(told) else None
            found = _read(text.encode()) if isinstance(text, str) else None
            if found is not None:
                yield "the authority" if name == "root_cert" else name, found


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


def _is_table(value: object) -> bool:
    return isinstance(value, dict)
