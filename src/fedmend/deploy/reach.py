"""What is at the server's address: whether it is free, whether anybody listens there, and whether
the server takes a kit's certificate (a whole handshake, as a party's process does).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from pathlib import Path

from fedmend.errors import ConfigError
from fedmend.federation.engines.flare.kits import Kits, server_of


def require_free(host: str, port: int) -> None:
    """That a server can listen at an address of this machine, and nobody else does."""
    free, wrong = False, ""
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                socket.create_server(address, family=family).close()
                free = True
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    free, wrong = False, "another process listens there"
                    break
                wrong = os.strerror(error.errno or 0)  # of a name's addresses one will do
    except OSError as error:
        wrong = str(error.strerror)
    if not free:
        raise ConfigError(
            f"the server cannot listen at {host}:{port}: {wrong}. Mend: end what listens there, or "
            "write another address of this machine under [flare] (host, port), then fedmend "
            "provision --force, and new kits for all"
        )


def listens(host: str, port: int) -> bool:
    """Whether anybody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=3.0).close()
    except OSError:
        return False
    return True


def require_answer(kits: Kits, seconds: float) -> None:
    """That the server of these kits answers; FLARE's own login waits, and prints, where not."""
    host, port = server_of(kits.server)
    deadline = time.monotonic() + seconds
    while not (somebody := listens(host, port)) and time.monotonic() < deadline:
        time.sleep(0.5)  # it may be starting
    if not somebody or reach(kits.admin, seconds, (host, port))[0]:
        other = "what listens there is not it, or has other certificates"
        raise ConfigError(
            f"the server's process runs, but does not answer at {host}:{port}: "
            f"{other if somebody else 'nothing listens there'}. Mend: fedmend server stop "
            f"{kits.folder}, end what else listens there, fedmend server start {kits.folder}"
        )


def reach(kit: Path, seconds: float, address: tuple[str, int] | None = None) -> tuple[bool, str]:
    """Whether something is wrong, and what was found.

    Both show their certificates; the server's first bytes say that it accepted ours.
    address: the server's, where the kit does not have it.
    """
    startup = kit / "startup"
    host, port = address or server_of(kit)
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
