"""`fedmend bench psi`: private alignment, its time and its bytes, beside what is not private.

Every way of aligning runs on the same ids through a federation (encryption, ledger, policy), half
of each set common to all. Beside it: the intersection of salted hashes, which is what one gets
without privacy (whoever has the salt can try ids), the bare group operations the protocol cannot
do without, and the bytes of its payload without any framing.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.table import Table
from fedmend.federation import COORDINATOR, Federation, Party
from fedmend.federation.engines.local import LocalEngine
from fedmend_bench.harness import Bar, BenchResult

NAME = "psi"
HELP = "private set intersection of 1e5 ids: seconds and bytes beside salted hashes"

SPU_IDS = 1_000_000


def run(quick: bool = False, ids: int = 100_000, seed: int = 0) -> BenchResult:
    """Measure all modes at `ids` per party; `quick` takes 2,000. spu runs where it is set up."""
    count = 2_000 if quick else ids
    runs = [
        (_salted_hashes, 2, count),
        (_federated("ecdh"), 2, count),
        (_federated("ecdh"), 3, count),
        (_federated("same-order"), 2, count),
    ]
    if os.environ.get("FEDMEND_SPU_PYTHON"):
        runs += [(_federated("spu"), 2, size) for size in ([count] if quick else [count, SPU_IDS])]
    rows: list[dict[str, Any]] = []
    wrong, bare = 0, 0.0
    for measure, parties, size in runs:
        # The machine's speed comes and goes: the yardstick is read around what it is for.
        is_pair = len(rows) == 1
        bare += _bare_seconds(count) / 2 if is_pair else 0.0
        row = measure(parties, size, seed)
        bare += _bare_seconds(count) / 2 if is_pair else 0.0
        wrong += row.pop("wrong ids")
        rows.append(row)
    pair, star = rows[1], rows[2]
    rows.insert(
        1, {"mode": "bare group operations", "parties": 2, "ids each": count, "CPU s": bare}
    )
    bars = [
        Bar.at_most("ids that differ from the plain intersection, all modes", wrong, 0),
        Bar.at_most("ecdh, 2 parties: CPU over bare group operations", pair["CPU s"] / bare, 1.5),
        Bar.at_most("ecdh, 2 parties: bytes over payload", pair["over minimum"], 1.05),
        Bar.at_most("ecdh, 3 parties: bytes over payload", star["over minimum"], 1.15),
    ]
    return BenchResult(NAME, rows, bars)


def make_sets(parties: int, count: int, seed: int) -> list[np.ndarray]:
    """Sets of `count` ids as they look in practice, half of each common to all, shuffled."""
    rng = np.random.default_rng(seed)
    common = np.arange(count // 2)
    sets = []
    for party in range(parties):
        own = np.arange(count - count // 2) + (party + 1) * 10**9
        numbers = rng.permutation(np.concatenate([common, own]))
        sets.append(np.array([f"user-{number:011d}@example.org" for number in numbers], object))
    return sets


def _federated(mode: str) -> Callable[[int, int, int], dict[str, Any]]:
    def measure(parties: int, count: int, seed: int) -> dict[str, Any]:
        from fedmend.secure.align import align

        sets = make_sets(parties, count, seed)
        if mode == "same-order":
            sets = [sets[0]] * parties
        names = [f"party{number}" for number in range(parties)]
        tables = [Table(ids, {"x": np.zeros(len(ids))}) for ids in sets]
        with Federation(*map(Party, names, tables)) as fed:
            loopback, clock = _loopback_bytes(), _Clock()
            align(fed, mode=mode, minimum=1)
            row = {"mode": mode, "parties": parties, "ids each": count, **clock.read()}
            sent = sum(e.total_bytes for e in fed.ledger if e.sender != COORDINATOR)
            if mode == "spu":  # spu has connections of its own, which the ledger does not see
                sent += _loopback_bytes() - loopback
            row |= _bytes(sent, _payload(mode, parties, count, count // 2))
            row["wrong ids"] = _wrong(fed, sets)
        return row

    return measure


def _salted_hashes(parties: int, count: int, seed: int) -> dict[str, Any]:
    sets = make_sets(parties, count, seed)
    clock = _Clock()
    salt = os.urandom(32)
    hashed = [
        {hashlib.blake2b(each.encode(), digest_size=16, key=salt).digest(): each for each in ids}
        for ids in sets
    ]
    common = set(hashed[0]).intersection(*hashed[1:])
    row = {"mode": "salted hashes (not private)", "parties": parties, "ids each": count}
    row |= clock.read() | _bytes(16 * parties * count, 16 * parties * count)
    found = {hashed[0][tag] for tag in common}
    return row | {"wrong ids": len(found ^ set(sets[0]).intersection(*sets[1:]))}


def _wrong(fed: Federation, sets: list[np.ndarray]) -> int:
    """How many ids stand in a party's result and not in the plain intersection, or the reverse."""
    assert isinstance(fed.engine, LocalEngine)
    expected = set(sets[0]).intersection(*sets[1:])
    orders = []
    for name in fed.names:
        site = fed.engine.site(name)
        orders.append(site.table_of("train").ids[site.alignments["train"].aligned].tolist())
    misplaced = sum(order != orders[0] for order in orders)
    return misplaced + sum(len(set(order) ^ expected) for order in orders)


def _payload(mode: str, parties: int, count: int, common: int) -> int | None:
    """The least this protocol can send: points of 32 bytes, tags and shares of 16, no framing."""
    if mode == "same-order":
        return 32 * (parties - 1) + 32 * parties
    if mode == "spu":
        return None
    if parties == 2:
        return parties * count * (32 + 16)
    return (parties - 1) * (count * (32 + 32 + 16) + common * 16)


def _bytes(sent: int, payload: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"MB sent by parties": sent / 1e6}
    if payload is not None:
        row |= {"MB minimum": payload / 1e6, "over minimum": sent / payload}
    return row


def _bare_seconds(count: int) -> float:
    """CPU seconds of what two parties cannot avoid: a hash and two multiplications an id."""
    from fedmend.secure.group import Scalar, hash_to_points

    sample = min(count, 4000)
    scalar, began = Scalar(), time.process_time()
    points = hash_to_points([b"%d" % number for number in range(sample)])
    scalar.times(scalar.times(points, sender="bench"), sender="bench")
    return (time.process_time() - began) * 2 * count / sample


class _Clock:
    """Wall and CPU seconds, threads and finished child processes included."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), self._cpu()

    def read(self) -> dict[str, float]:
        return {"wall s": time.perf_counter() - self.wall, "CPU s": self._cpu() - self.cpu}

    @staticmethod
    def _cpu() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime


def _loopback_bytes() -> int:
    """What the loopback device carried so far; other programs' traffic counts too."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0
