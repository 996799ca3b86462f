"""`fedmend bench sums`: what it costs to sum K parties' arrays without showing one of them.

One-hot votes [N, C] (int64) and rows of log-likelihoods (float64; 16 fraction bits, and 9, with
which the sum of four fits into 16 bits), summed through a federation by every mode, beside a plain
numpy add of the same arrays; the rounds alternate, because the machine's other work comes and
goes. The bar on time is that of the votes: they travel as one byte each, fixed point as two to
four.

Beside encryption as it is here stand two others: BFV with batching slots through TenSEAL's own
API, and Paillier with one vote to a ciphertext, measured on a few and multiplied up. CPU seconds
are those of all roles together.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedmend.data.table import Table
from fedmend.errors import MissingExtra, PrivacyWarning
from fedmend.federation import KINDS, Federation, Party, Policy
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure.sums import SumSession, SumWorker, offer_summand
from fedmend_bench.harness import Bar, BenchResult

NAME = "sums"
HELP = "secure sums of 4 parties' votes and log-likelihoods beside a plain add"

LOWEST = -30.0
# title -> the array's name at the parties, and how it is summed
SUMS: dict[str, tuple[str, dict[str, Any]]] = {
    "votes": ("votes", {"between": (0, 1)}),
    "log-likelihoods, 16 bits": (
        "log-likelihoods",
        {"between": (LOWEST, 0.0), "fraction_bits": 16},
    ),
    "log-likelihoods, 9 bits": (
        "log-likelihoods",
        {"between": (LOWEST, 0.0), "fraction_bits": 9},
    ),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "masks": {"mode": "masks"},
    "masks, drop-out allowed": {"mode": "masks", "on_absent": "continue"},
    "he": {"mode": "he"},
    "none (not private)": {"mode": "none"},
}
PAILLIER_VALUES = 8


def run(
    quick: bool = False,
    rows: int = 400_000,
    classes: int = 26,
    parties: int = 4,
    rounds: int = 5,
    seed: int = 0,
) -> BenchResult:
    """Measure at `rows` × `classes` × `parties`; `quick` takes 60,000 rows and fewer rounds."""
    if quick:
        rows, rounds = 60_000, 3
    table: list[dict[str, Any]] = []
    bars: list[Bar] = []
    with make_federation(rows, classes, parties, seed) as fed:
        for title, (name, settings) in SUMS.items():
            arrays = _arrays(fed, name)
            exact = _plain_add(arrays)
            runs: dict[str, _Run] = {"plain add (not private)": _Run(partial(_plain_add, arrays))}
            for variant, options in VARIANTS.items():
                runs[variant] = _Federated(fed, options, name, settings, exact)
            for number in range(rounds):
                for variant, each in runs.items():
                    if variant != "he" or number == 0:
                        each.once()
            plain = next(iter(runs.values())).cpu
            table += [each.row(title, variant, plain) for variant, each in runs.items()]
            bars += _bars(title, runs, plain)
        votes, plain = _arrays(fed, "votes"), table[0]["CPU s"]
        table += [_batching(votes, plain), *_paillier(votes, plain)]
    return BenchResult(NAME, table, bars)


def make_federation(rows: int, classes: int, parties: int, seed: int) -> Federation:
    """Parties that hold votes and log-likelihoods; the policies admit the simulation too."""
    policy = Policy(allow=frozenset(KINDS), min_rows=1)
    empty = Table([0], {"none": [0.0]})
    fed = Federation(*(Party(f"p{number}", empty, policy=policy) for number in range(parties)))
    assert isinstance(fed.engine, LocalEngine)
    for number, site in enumerate(fed.engine.sites.values()):
        rng = np.random.default_rng([seed, number])
        votes = np.zeros((rows, classes), np.int64)
        votes[np.arange(rows), rng.integers(0, classes, rows)] = 1
        offer_summand(site, "votes", votes, kind="label", opens="votes")
        likely = rng.standard_exponential((rows, classes))
        np.maximum(-4 * likely, LOWEST, out=likely)
        offer_summand(site, "log-likelihoods", likely, opens="votes")
        offer_summand(site, "warm", np.zeros(1, np.int64), opens="statistic")
    return fed


class _Run:
    """A way of summing, and what its rounds cost."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.seconds: list[float] = []
        self.walls: list[float] = []
        self.facts: dict[str, Any] = {}
        self.over_bound = 0.0

    def once(self) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = self.work()
        self.seconds.append(time.process_time() - cpu)
        self.walls.append(time.perf_counter() - wall)
        return result

    @property
    def cpu(self) -> float:
        return statistics.median(self.seconds)

    def row(self, title: str, variant: str, plain: float) -> dict[str, Any]:
        cost = {"CPU s": self.cpu, "wall s": statistics.median(self.walls)}
        return (
            {"sum of": title, "mode": variant}
            | cost
            | {"over plain": self.cpu / plain}
            | self.facts
        )


class _Federated(_Run):
    """Through a session, with what crossed and how far off the sum is."""

    def __init__(
        self, fed: Federation, options: dict[str, Any], name: str, settings: Any, exact: np.ndarray
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            session = SumSession(fed.workers(SumWorker), **options)
        session.sum("warm")  # keys change hands once a session, not once a sum
        super().__init__(partial(session.sum, name, **settings))
        self.fed, self.exact = fed, exact

    def once(self) -> Any:
        seen = len(self.fed.ledger.entries())
        result = super().once()
        entries = self.fed.ledger.entries()[seen:]
        sent = sum(entry.total_bytes for entry in entries if entry.sender == "p1")
        held = sum(entry.total_bytes for entry in entries if entry.call.endswith("decrypt_blinded"))
        error = float(np.abs(result.values - self.exact).max())
        # The reference rounds as well: each float64 add of values up to K · 30.
        slack = 4 * np.finfo(float).eps * abs(self.exact).max() if result.error_bound else 0.0
        self.over_bound = max(0.0, error - result.error_bound - slack)
        self.facts = {
            "MB per party": sent / 1e6,
            "MB key holder": held / 1e6 if held else None,
            "largest error": error,
        }
        return result


def _bars(title: str, runs: dict[str, _Run], plain: float) -> list[Bar]:
    if title == "votes":
        largest = max(each.facts.get("largest error", 0.0) for each in runs.values())
        return [
            Bar.at_most("votes: masks over a plain add, CPU", runs["masks"].cpu / plain, 5),
            Bar.at_most("votes: largest error, all modes", largest, 0),
        ]
    worst = max(each.over_bound for each in runs.values())
    return [Bar.at_most(f"{title}: error beyond the stated bound, all modes", worst, 0)]


def _plain_add(arrays: list[np.ndarray]) -> np.ndarray:
    total = arrays[0] + arrays[1]
    for array in arrays[2:]:
        total += array
    return total


def _arrays(fed: Federation, name: str) -> list[np.ndarray]:
    assert isinstance(fed.engine, LocalEngine)
    sites = fed.engine.sites
    return [sites[party].state["secure.sums"][name][0] for party in fed.names]


# ---------------------------------------------------------------------------------- alternatives


def _batching(votes: list[np.ndarray], plain: float) -> dict[str, Any]:
    """BFV with t = 1032193 and as many votes to a slot as fit, through TenSEAL's own vectors."""
    import tenseal as ts

    degree, modulus = 4096, 1032193
    base = len(votes) + 1
    per = int(np.log(modulus) / np.log(base))
    powers = base ** np.arange(per)
    size = votes[0].size
    cpu, wall = time.process_time(), time.perf_counter()
    keys = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=degree, plain_modulus=modulus)
    public = keys.copy()
    public.make_context_public()

    def encrypted(array: np.ndarray) -> list[bytes]:
        flat = np.pad(array.reshape(-1), (0, -size % per)).reshape(-1, per) @ powers
        return [
            ts.bfv_vector(public, flat[at : at + degree].tolist()).serialize()
            for at in range(0, len(flat), degree)
        ]

    sent = [encrypted(array) for array in votes]
    parts = []
    for column in zip(*sent, strict=True):
        total = ts.bfv_vector_from(public, column[0])
        for other in column[1:]:
            total += ts.bfv_vector_from(public, other)
        parts.append(np.array(ts.bfv_vector_from(keys, total.serialize()).decrypt()) % modulus)
    digits = (np.concatenate(parts)[:, None] // powers) % base
    result = digits.reshape(-1)[:size].reshape(votes[0].shape)
    seconds = time.process_time() - cpu
    return {
        "sum of": "votes",
        "mode": f"BFV batching, {per} to a slot, not blinded (TenSEAL)",
        "CPU s": seconds,
        "wall s": time.perf_counter() - wall,
        "over plain": seconds / plain,
        "MB per party": sum(map(len, sent[0])) / 1e6,
        "largest error": float(np.abs(result - _plain_add(votes)).max()),
    }


def _paillier(votes: list[np.ndarray], plain: float) -> list[dict[str, Any]]:
    """One vote to a Paillier ciphertext (2048 bits); a few measured, the rest multiplied up."""
    from fedmend.secure.published import Paillier

    try:
        key = Paillier.generate()
    except MissingExtra:
        return []
    cells = [array.reshape(-1)[:PAILLIER_VALUES].tolist() for array in votes]
    cpu = time.process_time()
    totals = [key.encrypt(value) for value in cells[0]]
    for other in cells[1:]:
        totals = [key.add(one, key.encrypt(two)) for one, two in zip(totals, other, strict=True)]
    opened = [key.decrypt(total) for total in totals]
    seconds = (time.process_time() - cpu) / PAILLIER_VALUES * votes[0].size
    wrong = float(np.abs(np.array(opened) - np.array(cells).sum(axis=0)).max())
    return [
        {
            "sum of": "votes",
            "mode": f"Paillier, one to a ciphertext (extrapolated from {PAILLIER_VALUES} values)",
            "CPU s": seconds,
            "over plain": seconds / plain,
            "MB per party": key.width * votes[0].size / 1e6,
            "largest error": wrong,
        }
    ]
