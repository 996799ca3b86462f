"""Generators on real tables: is it the same distribution, is it of use, is it copied, how fast.

For every data set and generator: column shapes and pair trends (as sdmetrics defines them), AUC of
gradient boosting trained on synthetic and tested on real rows, distance to the closest training
row, error of filled gaps (a fifth of all cells; half of the columns), seconds to fit and rows per
second. Beside it, in the same run: the real training rows, mean, KNN and iterative imputation, and
the peers of other packages where the interpreter ``peers_python`` (else this one) has them.

A full run takes hours on a small machine. It can be split: every row is written into the file
``parts`` as soon as it is measured, rows found there are not measured again, and several processes
may share the file. A last call with all names finds everything measured and gives the table.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedmend.data.datasets import names as dataset_names
from fedmend.errors import ConfigError
from fedmend.generate import generators as generator_names
from fedmend.generate.training import pick_device
from fedmend_bench.generators import peers as generator_peers
from fedmend_bench.generators.bars import bars
from fedmend_bench.generators.book import Book, means
from fedmend_bench.generators.data import GAPS, Data, gap_measures, prepared
from fedmend_bench.generators.peers import Asked
from fedmend_bench.generators.rows import REFERENCES, Place, Row, ours, reference, theirs
from fedmend_bench.harness import BenchResult, device_name
from fedmend_bench.options import chosen

NAME = "generators"
HELP = "eight tabular generators: fidelity, use, copying, imputation, speed, beside peers"

DATASETS = ("adult", "bank", "credit")


def run(
    quick: bool = False,
    *,
    datasets: str | Sequence[str] = DATASETS,
    generators: str | Sequence[str] = "all",
    rows: int = 10_000,
    seed: int = 0,
    seeds: int = 1,
    device: str = "auto",
    threads: int | None = None,
    imputation: bool = True,
    gaps: str = GAPS,
    references: bool = True,
    peers: str | Sequence[str] = "all",
    peers_python: str | None = None,
    peer_seconds: float = 7_200.0,
    forest: str = "50x20",
    parts: str | None = None,
) -> BenchResult:
    """``quick``: the first data set, 600 rows, a fiftieth of the training, and no promises.

    Any named data set with a binary label will do. ``generators`` and ``peers`` are names, ``all``
    or ``none``. With several ``seeds`` (from ``seed`` on; each draws other rows) the table holds
    means. ``device`` and ``threads`` are for all methods alike. ``gaps`` says how filled gaps are
    judged: in how many rows, and with how many halves of the columns missing; ``2000x5,1000x1``
    judges by both. ``forest``: noise levels x copies of each row x trees x bins for
    ForestDiffusion, whose own are 50x100x100x256: days of a core for a table of these.
    """
    names = chosen("generators", generators, generator_names())
    sets = chosen("datasets", datasets, dataset_names())
    wanted = chosen("peers", peers, generator_peers.PEERS)
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,3}", forest):
        raise ConfigError(f"forest must be whole numbers such as 20x5x50x64, got {forest!r}")
    if quick:
        sets, rows = sets[:1], min(rows, 600)
    place = Place(str(pick_device(device)), threads)
    asked = Asked(peers_python or sys.executable, peer_seconds, forest)
    measures = gap_measures(gaps)
    terms = {"rows": rows, "quick": quick, "gaps": "; ".join(map(str, measures))}
    book = Book(Path(parts) if parts else None, terms)
    plain = (REFERENCES if imputation else REFERENCES[:1]) if references else ()
    table: list[Row] = []
    with place.entered():
        for name, number in itertools.product(sets, range(seed, seed + seeds)):
            data = functools.cache(functools.partial(prepared, name, rows, number, quick, measures))
            measure = functools.partial(_measured, data, number, place, asked, imputation, quick)
            table += [
                book.row(name, number, method, functools.partial(measure, method))
                for method in (*plain, *names, *wanted)
            ]
    table = means(table)
    promises = [] if quick else bars(table)  # they are for trained generators
    return BenchResult(NAME, table, promises, device=device_name(place.device))


def _measured(
    data: functools._lru_cache_wrapper[Data],
    seed: int,
    place: Place,
    asked: Asked,
    imputation: bool,
    quick: bool,
    method: str,
) -> Row:
    if method in REFERENCES:
        return reference(data(), method, seed)
    if method in generator_names():
        return ours(data(), method, seed, place, imputation, quick)
    if method not in generator_peers.found(asked.python):
        return {"note": f"left out: not installed for {Path(asked.python).name}"}
    return theirs(data(), method, seed, place, asked, quick)
