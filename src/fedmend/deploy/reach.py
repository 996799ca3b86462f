"""Whether the server takes this kit's certificate: a whole handshake, as a party's process does."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from fedmend.federation.engines.flare.kits import server_of


def reach(kit: Path, seconds: float) -> tuple[bool, str]:
    """Whether something is wrong, and what was found.

    Both show their certificates; the server's first bytes say that it accepted ours.
    """
    startup = kit / "startup"
    host, port = server_of(kit)
    where = f"{host}:{port}"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
    except OSError as error:
        words = f"{where} was not called, for want of a certificate and its key ({error}). "
        return True, words + "Mend: ask for a new kit"
    try:
        with (
            socket.create_connection((host, port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            if not secure.recv(1):
                words = f"{where} closed the connection: it does not take this certificate. "
                return True, words + "Mend: ask for a new kit"
    except ssl.SSLError as error:
        if "expired" in str(getattr(error, "verify_message", "")):
            words = f"{where} answers with a certificate that has expired. Mend: the "
            return True, words + "coordinator makes new kits"
        words = f"{where} answers, but not to this certificate: {error.reason or error}. "
        return True, words + "Mend: take both kits from one provisioning"
    except OSError as error:
        words = f"{where} cannot be reached: {error.strerror or error}. Mend: is it up, and "
        return True, words + "is the way free (name, port, firewall)?"
    return False, f"{where} answers over mutual TLS"
