"""Runs spu's set intersection; a program of its own, started with the interpreter that has spu.

Reads one JSON object from standard input and imports nothing of fedmend: spu wants numpy 1 and
fedmend numpy 2, so the two never live in one interpreter.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    job = json.load(sys.stdin)
    import spu.libspu as libspu
    import spu.psi as psi

    link = libspu.link.Desc()
    link.recv_timeout_ms = job["timeout_seconds"] * 1000
    link.connect_retry_times = 60
    for rank, address in enumerate(job["addresses"]):
        link.add_party(f"party{rank}", address)
    context = libspu.link.create_brpc(link, job["rank"])
    config = psi.PsiExecuteConfig(
        protocol_conf=psi.PsiProtocolConfig(
            protocol=psi.PsiProtocol.PROTOCOL_RR22, receiver_rank=0, broadcast_result=True
        ),
        input_params=psi.InputParams(path=job["input"], selected_keys=["id"], keys_unique=True),
        output_params=psi.OutputParams(path=job["output"]),
    )
    psi.psi_execute(config, context)
    context.stop_link()


if __name__ == "__main__":
    main()
