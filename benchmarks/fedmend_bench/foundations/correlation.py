"""`fedmend bench correlation`: exact inner products of ranks between two parties, and rho.

Columns with ties, two parties, 20 x 20 columns at three sizes. Beside each other in one run: the
products by numpy in the clear (float64, exact here), and through a federation in the modes
``plain``, ``dealer`` and ``bfv``; then the published protocol with Paillier, measured on a few
cells and multiplied up (marked so). CPU seconds are those of all roles together; rho is compared
with scipy's on every pair of columns.

Paillier is timed with `lightphe`, and with `phe` where that can be found: in this interpreter, or
in another one given as ``-o phe_python=/path/to/python`` (it is under the GPL, so no dependency).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data.table import Table
from fedmend.errors import MissingExtra, PrivacyWarning
from fedmend.federation import KINDS, Federation, Party, Policy
from fedmend.federation.engines.local import LocalEngine
from fedmend.secure.columns import Columns, hold_columns
from fedmend.secure.correlation import centred_ranks, rank_bounds, rank_correlation
from fedmend.secure.inner_product import ProductSession
from fedmend_bench.harness import Bar, BenchResult
from fedmend_bench.simulation import know, together

NAME = "correlation"
HELP = "exact inner products and Spearman's rho between two parties, beside numpy and Paillier"

PARTIES = ("a", "b")
MODES = ("plain", "dealer", "bfv")
FULL_ROWS = 100_000


def run(
    quick: bool = False,
    rows: int = FULL_ROWS,
    columns: int = 20,
    repeats: int = 7,
    seed: int = 0,
    cells: int = 6,
    phe_python: str | None = None,
) -> BenchResult:
    """Measure at `rows` × `columns` and two smaller sizes; `quick` takes 20,000 × 10.

    cells: how many Paillier ciphertexts are timed; they are what the benchmark waits for.
    """
    from threadpoolctl import threadpool_limits

    if quick:
        rows, columns, repeats = 20_000, 10, 3
    table: list[dict[str, Any]] = []
    sizes = [(rows // 2, columns // 2), (rows // 2, columns), (rows, columns)]
    # CPU time is compared, and a second BLAS thread that waits for work counts as if it worked.
    with threadpool_limits(1):
        for size in sizes:
            table += _measure(*size, repeats, seed)
        table += _published(rows, columns, cells, phe_python)
    return BenchResult(NAME, table, _bars(table, sizes))


# ---------------------------------------------------------------------------------- measuring


def _measure(rows: int, columns: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    left, right = make_columns(rows, columns, seed), make_columns(rows, columns, seed + 1)
    exact = _scipy(left, right)
    ranks = [np.stack([centred_ranks(column) for column in side.T]) for side in (left, right)]
    with make_federation(left, right) as fed:
        engine = fed.engine
        assert isinstance(engine, LocalEngine)
        for party, values in zip(PARTIES, ranks, strict=True):
            hold_columns(engine.sites[party], "ranks", values, **rank_bounds(values.shape[1]))
        calls: dict[str, Callable[[], Any]] = {"numpy": lambda: _numpy(*ranks)}
        for mode in MODES:
            calls[mode] = partial(_products, fed, mode)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        products: dict[str, np.ndarray] = {}
        sent: dict[str, int] = {}
        # Rounds alternate between the modes, because the machine's other work comes and goes.
        for number in range(repeats):
            for name, call in calls.items():
                if name == "bfv" and number:
                    continue
                before = _bytes_sent(fed)
                cpu, products[name] = _timed(call)
                seconds[name].append(cpu)
                sent[name] = _bytes_sent(fed) - before
        whole = {mode: _whole(fed, mode, exact) for mode in MODES}
    truth = products["numpy"]
    return [
        {
            "what": name,
            "note": "in the clear" if name in ("numpy", "plain") else "",
            "rows": rows,
            "columns": f"{columns}x{columns}",
            "CPU s, products": min(seconds[name]),
            "times numpy": min(seconds[name]) / min(seconds["numpy"]),
            "MB sent": sent[name] / 1e6,
            "exact": bool(np.array_equal(products[name], truth)),
            "CPU s, with ranking": whole[name][0] if name in whole else None,
            "max |rho - scipy|": whole[name][1] if name in whole else None,
        }
        for name in calls
    ]


def make_columns(rows: int, columns: int, seed: int) -> np.ndarray:
    """Related columns [rows, columns]: continuous, with few levels, skewed and rounded."""
    rng = np.random.default_rng(seed)
    shared = np.random.default_rng(99).normal(size=(rows, 3))
    values = shared @ rng.normal(size=(3, columns)) + rng.normal(size=(rows, columns))
    values[:, ::3] = np.round(values[:, ::3] * 2)
    values[:, 1::5] = np.round(np.exp(values[:, 1::5]))
    return values


def make_federation(left: np.ndarray, right: np.ndarray) -> Federation:
    """Two parties whose rows are aligned already (finding them is the benchmark `psi`)."""
    rows = len(left)
    parties = []
    for name, values in zip(PARTIES, (left, right), strict=True):
        names = [f"{name}{at}" for at in range(values.shape[1])]
        frame = pd.DataFrame(values, columns=names)
        table = Table(np.arange(rows), frame, kinds=dict.fromkeys(names, "continuous"))
        parties.append(Party(name, table, policy=Policy(allow=frozenset(KINDS))))
    fed = Federation(*parties)
    know(fed, together(rows))
    return fed


def _numpy(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """What a single owner of all columns would do; exact while sums stay below 2^53."""
    return (left.astype(np.float64) @ right.astype(np.float64).T).astype(np.int64)


def _products(fed: Federation, mode: str) -> np.ndarray:
    sides = [Columns(party, "state", {"key": "ranks"}) for party in PARTIES]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        with ProductSession(fed, sides[0], PARTIES[1], mode=mode) as session:  # type: ignore[arg-type]
            return np.asarray(session.products(sides[1]))


def _whole(fed: Federation, mode: str, exact: np.ndarray) -> tuple[float, float]:
    """CPU seconds of `rank_correlation` as a user calls it, and its distance from scipy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        cpu, found = _timed(lambda: rank_correlation(fed, *PARTIES, mode=mode))  # type: ignore[arg-type]
    return cpu, float(np.abs(found.matrix.to_numpy() - exact).max())


def _scipy(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    from scipy.stats import spearmanr

    count = left.shape[1]
    return np.asarray(spearmanr(np.concatenate([left, right], axis=1)).statistic)[:count, count:]


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    value = call()
    return time.process_time() - began, value


def _bytes_sent(fed: Federation) -> int:
    return sum(entry.total_bytes for entry in fed.ledger if entry.sender in PARTIES)


# ---------------------------------------------------------------------------------- published

# Encrypt a cell; subtract a number and blind the result; decrypt: CPU seconds of each.
_PHE = """
import json, time
from phe import paillier, __version__
public, private = paillier.generate_paillier_keypair(n_length=2048)
def timed(call):
    began = time.process_time()
    values = [call(at) for at in range(CELLS)]
    return (time.process_time() - began) / CELLS, values
encrypt, cells = timed(lambda at: public.encrypt(at * 1000))
def subtracted(at):
    number = cells[at] - 77
    number.obfuscate()
    return number
subtract, answers = timed(subtracted)
decrypt, values = timed(lambda at: private.decrypt(answers[at]))
assert values == [at * 1000 - 77 for at in range(CELLS)]
import importlib.util
fast = " with gmpy2" if importlib.util.find_spec("gmpy2") else ""
print(json.dumps({"with": "phe " + __version__ + fast, "encrypt": encrypt, "subtract": subtract,
                  "decrypt": decrypt}))
"""


def _published(rows: int, columns: int, cells: int, phe_python: str | None) -> list[dict[str, Any]]:
    """The published protocol at a few cells, and what that makes of the whole table."""
    found = []
    for cost in filter(None, (_phe_costs(cells, phe_python), _lightphe_costs(cells))):
        # A encrypts n m_A cells; per row and pair B subtracts and blinds, C decrypts.
        pairs = rows * columns * columns
        total = rows * columns * cost["encrypt"] + pairs * (cost["subtract"] + cost["decrypt"])
        found.append(
            {
                "what": "published",
                "note": f"Paillier 2048 by {cost['with']}; extrapolated from {cells} cells",
                "rows": rows,
                "columns": f"{columns}x{columns}",
                "CPU s, products": total,
                "MB sent": 512 * (rows * columns + pairs) / 1e6,
            }
        )
    return found


def _phe_costs(count: int, python: str | None) -> dict[str, Any] | None:
    if python is None:
        if importlib.util.find_spec("phe") is None:
            return None
        python = sys.executable
    code = f"CELLS = {count}\n{_PHE}"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _lightphe_costs(count: int) -> dict[str, Any] | None:
    from fedmend.secure.published import Paillier

    try:
        key = Paillier.generate(2048)
    except MissingExtra:
        return None
    encrypt, cells = _timed(lambda: [key.encrypt(at * 1000) for at in range(count)])
    subtract, answers = _timed(lambda: [key.add(cell, key.encrypt(-77)) for cell in cells])
    decrypt, values = _timed(lambda: [key.decrypt(answer) for answer in answers])
    assert values == [at * 1000 - 77 for at in range(count)]
    cost = {"encrypt": encrypt / count, "subtract": subtract / count, "decrypt": decrypt / count}
    return cost | {"with": "lightphe"}


# ---------------------------------------------------------------------------------- bars


def _bars(table: list[dict[str, Any]], sizes: list[tuple[int, int]]) -> list[Bar]:
    cost = "CPU s, products"
    at = {(row["what"], row["rows"], row["columns"]): row for row in table}
    small, full = ((rows, f"{columns}x{columns}") for rows, columns in (sizes[0], sizes[-1]))
    worst = max(row.get("max |rho - scipy|") or 0.0 for row in table)
    bars = [Bar.at_most("max |rho - scipy|, all modes and sizes", worst, 1e-12)]
    if full[0] >= FULL_ROWS:  # below, the protocol's fixed milliseconds are all there is to see
        ratio = at["dealer", *full]["times numpy"]
        bars.append(Bar.at_most("dealer, times plain numpy CPU", ratio, 10))
    for row in table:
        if row["what"] == "published":
            library = row["note"].split(" by ")[1]
            ratio = row[cost] / at["bfv", *full][cost]
            bars.append(Bar.at_least(f"published / bfv CPU, {library}", ratio, 10_000))
    more = sizes[-1][0] * sizes[-1][1] ** 2 / (sizes[0][0] * sizes[0][1] ** 2)
    for mode in ("dealer", "bfv"):
        growth = at[mode, *full][cost] / at[mode, *small][cost]
        name = f"{mode}: CPU growth for {more:g} times the rows x columns x columns"
        bars.append(Bar.at_most(name, growth, 1.25 * more))
    return bars
