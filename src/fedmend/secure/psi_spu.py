"""Set intersection by spu's RR22 (Raghuraman, Rindal 2022): for sets of a million ids and more.

Two parties. Built on vector oblivious linear evaluation instead of public keys, it is some twenty
times faster than ECDH — and works outside the house: spu opens a connection of its own from party
to party, past the coordinator, and the ledger can only note that it happened. Hence every party
that takes part says so, in its own environment:

    python3.11 -m venv spu-env && spu-env/bin/pip install spu    # needs numpy 1: never ours
    export FEDMEND_SPU_PYTHON=spu-env/bin/python
    export FEDMEND_SPU_ADDRESS=10.0.0.5:9500                     # where the other party reaches it

Without an address a free port of 127.0.0.1 is taken (all parties on one machine). Where the other
party is comes from the coordinator, and it could as well name a machine of its own: a party calls
no address but the one that its own party.toml says (``spu_addresses``), and listens at none but
its own. The connection is not encrypted by us. What spu gets to see are not the ids but 16-byte
digests of them under a secret of the two parties, so neither its temporary file (readable by the
owner only, deleted afterwards) nor its traffic lets anyone else try out ids.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedmend.errors import AlignmentError, ConfigError, Refused
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.worker import exposed
from fedmend.secure.psi import MatchWorker

logger = logging.getLogger(__name__)

PYTHON_VARIABLE = "FEDMEND_SPU_PYTHON"
ADDRESS_VARIABLE = "FEDMEND_SPU_ADDRESS"
TIMEOUT_SECONDS = 600
PARTNER_ADDRESSES = "spu addresses of partners"
"""Where a site's vault has what its party.toml says; a site without one is in one process."""

_ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]-]+:\d{1,5}")
_TRACE = re.compile(r"Trace has been written to (/\S+/psi_\w+\.trace)")


class SpuWorker(MatchWorker):
    """One of two parties of RR22; the work is done by a process of its own."""

    _own = ""

    @exposed(kind="control")
    def address(self) -> str:
        """Where the other party's process can reach this one's."""
        self._own = self._find_address()
        return self._own

    def _find_address(self) -> str:
        spu_python(self.site.name)
        given = os.environ.get(ADDRESS_VARIABLE)
        if given is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                return f"127.0.0.1:{free.getsockname()[1]}"
        if not _ADDRESS.fullmatch(given):
            raise ConfigError(
                f"party {self.site.name!r}: {ADDRESS_VARIABLE}={given!r} is no address. "
                "Mend: write host:port"
            )
        return given

    @exposed(kind="count", over_rows=False)
    def intersect(self, addresses: dict[str, str]) -> int:
        """Run spu against the other party's; the number of common ids."""
        me = self.site.name
        # The values leave by spu's connection and not by this call's answer.
        self.site.policy.admit_kind(me, f"{self.worker_name()}.intersect", "hashed-id")
        ranks = sorted(addresses)
        (peer,) = (party for party in ranks if party != me)
        self._admit_addresses(addresses[me], peer, addresses[peer])
        secret = self.shared_seed(peer, "digests of ids")
        tags = {
            hashlib.blake2b(key, digest_size=16, key=secret).hexdigest(): row
            for row, key in enumerate(self.keys)
        }
        with tempfile.TemporaryDirectory(prefix="fedmend-spu-") as folder:
            source, result = Path(folder, "in.csv"), Path(folder, "out.csv")
            # In the order of the digests, which is not that of the table.
            source.write_text("\n".join(["id", *sorted(tags)]) + "\n")
            job = {
                "rank": ranks.index(me),
                "addresses": [addresses[party] for party in ranks],
                "input": str(source),
                "output": str(result),
                "timeout_seconds": TIMEOUT_SECONDS,
            }
            _run_child(me, peer, job, Path(folder))
            common = [line.strip().strip('"') for line in result.read_text().splitlines()[1:]]
        rows = [tags[tag] for tag in common]
        order = self.shared_seed(peer, "order of aligned rows")
        return self._settle(rows, [bytes.fromhex(tag) for tag in common], order, [peer])

    def _admit_addresses(self, own: str, peer: str, address: str) -> None:
        """Refuse to listen or call anywhere that this party has not said itself."""
        me = self.site.name
        if own != self._own:
            raise Refused(
                me, f"it is to listen at {own!r}, which is not its address", "pass on its own"
            )
        if not _ADDRESS.fullmatch(address):
            raise Refused(me, f"{address!r} is no address of {peer!r}", "write host:port")
        host = address.rpartition(":")[0]
        said = self.site.vault.get(PARTNER_ADDRESSES, {peer: "127.0.0.1"}).get(peer)
        if said not in (address, host):
            raise Refused(
                me,
                f"the coordinator says that {peer!r} is at {address}, which {me!r} has not "
                "confirmed",
                f'ask {peer!r}, then write spu_addresses = {{{peer} = "host:port"}} into the '
                f"party.toml of {me!r}",
            )


def spu_python(party: str) -> str:
    """The interpreter that has spu, as this party's environment names it."""
    python = os.environ.get(PYTHON_VARIABLE)
    if not python:
        raise ConfigError(
            f"party {party!r}: mode='spu' runs in an environment of its own (spu needs numpy 1, "
            "fedmend numpy 2), and none is named. Mend: python3.11 -m venv spu-env && "
            f"spu-env/bin/pip install spu && export {PYTHON_VARIABLE}=spu-env/bin/python"
        )
    if not Path(python).is_file():
        raise ConfigError(
            f"party {party!r}: {PYTHON_VARIABLE}={python!r} is not there. Mend: correct the path"
        )
    return python


def _run_child(party: str, peer: str, job: Mapping[str, object], folder: Path) -> None:
    script = Path(__file__).with_name("_spu_child.py")
    try:
        done = subprocess.run(
            [spu_python(party), "-I", str(script)],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AlignmentError(
            f"party {party!r}: spu did not finish with {peer!r} in {TIMEOUT_SECONDS} s. "
            f"Mend: check that the two reach each other ({', '.join(job['addresses'])})"  # type: ignore[arg-type]
        ) from error
    for trace in _TRACE.findall(done.stdout + done.stderr):
        Path(trace).unlink(missing_ok=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise AlignmentError(
            f"party {party!r}: spu failed against {peer!r}: {(lines or ['no message'])[-1]}. "
            f"Mend: check {PYTHON_VARIABLE} and that the parties reach each other; or mode='ecdh'"
        )
    logger.debug("spu finished at %s", party)


declare(EVERY_RUN, SpuWorker)
