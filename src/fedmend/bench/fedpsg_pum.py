"""FedPSG-PUM on Bank, Adult and Credit: completion, what it is worth downstream, and its cost.

Columns are dealt half and half within kinds; party b loses a share of the rows. FedPSG-PUM (with
its defaults, and as published) stands beside private baselines (mean/mode, a generator alone) and
beside references that see party a's columns in the clear.

The sweep runs the real protocols with masks (``dealer``) for the correlation too, where the method
itself takes homomorphic encryption (``bfv``): both are exact integer arithmetic, so the results
are the same to the bit, and only the cost differs. ``secure=true`` runs with ``bfv`` throughout the
correlation, for the cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from fedmend.bench.completion_scores import REFERENCES, Scenario, reference, scores, tear_table
from fedmend.bench.harness import Bar, BenchResult
from fedmend.data import datasets
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Federation
from fedmend.generate import make
from fedmend.methods.baselines import VFL, Local, LocalVFL
from fedmend.methods.completion import completion_of
from fedmend.methods.fedpsg_pum import FedPSGPUM

NAME = "fedpsg-pum"
HELP = "FedPSG-PUM: completion error, downstream AUC and cost, beside references"

logger = logging.getLogger(__name__)

OURS, PAPER = "FedPSG-PUM", "paper()"
NOT_PRIVATE = ("knn", "iterative", "boosted trees")
PARTS = ("completion", "references", "downstream")


def run(
    quick: bool = False,
    *,
    data: Any = ("bank", "adult", "credit"),
    rows: int = 12000,
    test: int = 4000,
    seeds: Any = 1,
    shares: Any = (0.1, 0.5, 0.9),
    where: str = "random",
    parts: Any = PARTS,
    generators: Any = ("vae",),
    generator_epochs: int = 30,
    epochs: int = 60,
    secure: bool = False,
    settings: dict[str, Any] | None = None,
) -> BenchResult:
    """Measure, and say which promises hold.

    seeds: how many, or which. where: rows missing at "random" or the "last" ones. parts: which of
    completion (FedPSG-PUM, its paper preset, generators alone), references and downstream.
    generator_epochs, epochs: of generators and of downstream training. settings: arguments for
    FedPSGPUM in the place of its defaults (for ablations).
    """
    names, parts = _listed(data), _listed(parts)
    shares = [float(share) for share in _listed(shares)]
    seeds = list(range(seeds)) if isinstance(seeds, int) else _listed(seeds)
    own = dict(settings or {})
    if quick:
        names, rows, test, shares, seeds = names[:1], min(rows, 1500), 500, [0.5], seeds[:1]
        generator_epochs, epochs = min(generator_epochs, 2), min(epochs, 5)
        own = {"tree": {"trees": 15}, **own}
    _check(names, shares, where, parts)
    table = []
    for name in names:
        whole = datasets.load(name)
        for share in shares:
            for seed in seeds:
                case = tear_table(whole, share, rows=rows, test=test, seed=seed, where=where)
                facts = {"data": name, "missing": share, "seed": seed}
                work = _Work(case, seed, generator_epochs, epochs, secure, own)
                for line in work.lines(parts, _listed(generators)):
                    table.append(facts | line)
                    logger.info("%s", table[-1])
    return BenchResult(NAME, table, [] if quick else _bars(pd.DataFrame(table)))


class _Work:
    """All measurements of one torn table."""

    def __init__(
        self,
        case: Scenario,
        seed: int,
        generator_epochs: int,
        epochs: int,
        secure: bool,
        own: dict[str, Any],
    ) -> None:
        self.case, self.seed, self.epochs = case, seed, epochs
        self.generator = {"epochs": generator_epochs}
        self.mode = {} if secure else {"correlation_mode": "dealer"}
        self.own = own

    def lines(self, parts: list[str], generators: list[str]) -> Iterable[dict[str, Any]]:
        mended: FedPSGPUM | None = None
        if "completion" in parts or "downstream" in parts:
            params = {"generator_params": self.generator, "seed": self.seed}
            ours = FedPSGPUM(**{**self.mode, **params, **self.own})
            mended, line = self._fitted(OURS, ours)
            yield line
        if "completion" in parts:
            # The published protocol gives the same order of columns at many times the cost.
            paper = FedPSGPUM.paper(
                protocol="inner-product", generator_params=self.generator, **self.mode
            )
            yield self._fitted(PAPER, paper)[1]
            for name in generators:
                yield self._completion(f"{name} alone", partial(self._generated, name))
        if "references" in parts:
            for name in REFERENCES:
                yield self._completion(name, partial(reference, name, self.case))
        if "downstream" in parts and mended is not None:
            yield from self._downstream(mended)

    # ------------------------------------------------------------------ completion

    def _fitted(self, name: str, model: FedPSGPUM) -> tuple[FedPSGPUM, dict[str, Any]]:
        fed = self.case.federation(seed=self.seed)
        began = time.perf_counter()
        model.fit(fed)
        seconds = time.perf_counter() - began
        return model, {
            "method": name,
            **scores(self.case, _completed(fed, model)),
            "seconds": seconds,
            "mb": fed.ledger.total_bytes() / 1e6,
        }

    def _completion(self, name: str, fill: Callable[[], pd.DataFrame]) -> dict[str, Any]:
        began = time.perf_counter()
        filled = fill()
        seconds = time.perf_counter() - began
        return {"method": name, **scores(self.case, filled), "seconds": seconds}

    def _generated(self, name: str) -> pd.DataFrame:
        own = self.case.b.take(self.case.known)
        model = make(name, seed=self.seed, **self.generator).fit(own)
        return model.sample(len(self.case.missing)).frame

    # ------------------------------------------------------------------ downstream

    def _downstream(self, mended: FedPSGPUM) -> Iterable[dict[str, Any]]:
        """AUC on two-sided test rows of the joint model, by what it was trained on."""
        torn = self.case.federation(seed=self.seed)
        mean = self.case.federation(self._filled(reference("mean/mode", self.case)), self.seed)
        oracle = self.case.federation(self.case.b, self.seed)
        trained: dict[str, tuple[Any, Federation]] = {
            "aligned only": (VFL, torn),
            "a only": (Local, torn),
            "zeros": (LocalVFL, torn),
            "mean": (VFL, mean),
            OURS: (VFL, mended.federation),
            "oracle": (VFL, oracle),
        }
        for name, (method, fed) in trained.items():
            began = time.perf_counter()
            model = method(epochs=self.epochs, seed=self.seed).fit(fed)
            auc = model.evaluate(fed.on("test"))["auc"]
            yield {
                "method": f"downstream: {name}",
                "auc": auc,
                "seconds": time.perf_counter() - began,
            }

    def _filled(self, values: pd.DataFrame) -> Table:
        frame = self.case.b.frame.copy()
        for name in self.case.columns:
            column = frame[name].astype(object)
            column.iloc[self.case.missing] = values[name].to_numpy(dtype=object)
            kind = self.case.b.schema[name]
            frame[name] = column.astype(float) if kind.is_numeric else column
        kinds = {name: self.case.b.schema[name].kind for name in self.case.columns}
        kinds = {name: "continuous" if kind == "integer" else kind for name, kind in kinds.items()}
        return Table(self.case.b.ids, frame, kinds=kinds)


def _completed(fed: Federation, model: FedPSGPUM) -> pd.DataFrame:
    """B's guesses in the order of the missing rows; a simulation can look into both sites."""
    sites: Any = fed.engine
    made = completion_of(sites.site("b"), model.run_, "a")
    rows = sites.site("a").alignments[f"{fed.dataset}@{model.run_}-a"].unaligned
    frame = pd.DataFrame(made.values)
    return frame.iloc[np.argsort(rows)].reset_index(drop=True)


# ---------------------------------------------------------------------------------- promises


def _bars(table: pd.DataFrame) -> list[Bar]:
    mean = table.groupby(["data", "missing", "method"])[["rmse", "auc"]].mean()
    bars = []
    for data in dict.fromkeys(table["data"]):
        for share in dict.fromkeys(table["missing"]):
            rmse = mean.loc[(data, share), "rmse"].dropna()
            auc = mean.loc[(data, share), "auc"].dropna()
            at = f"{data}, {share:g} missing"
            private = rmse.drop([OURS, *NOT_PRIVATE], errors="ignore")
            if OURS in rmse and len(private):
                best = private.idxmin()
                bars.append(_at_most(f"{at}: RMSE below {best}'s", rmse[OURS], private[best]))
            clear = rmse[[name for name in NOT_PRIVATE if name in rmse]]
            if OURS in rmse and share == 0.5 and len(clear):
                best = clear.idxmin()
                bars.append(_at_most(f"{at}: RMSE at most {best}'s", rmse[OURS], clear[best]))
            ours = f"downstream: {OURS}"
            if ours in auc and share >= 0.5:
                for other in ("aligned only", "zeros", "mean"):
                    limit = auc[f"downstream: {other}"]
                    name = f"{at}: downstream AUC above {other}"
                    bars.append(Bar(name, float(auc[ours]), f"> {limit:.4f}", auc[ours] > limit))
    return bars


def _at_most(name: str, value: float, limit: float) -> Bar:
    return Bar(name, float(value), f"<= {limit:.4f}", bool(value <= limit))


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [each.strip() for each in given.split(",") if each.strip()]
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _check(names: list[str], shares: list[float], where: str, parts: list[str]) -> None:
    problems = []
    if not names:
        problems.append("data names no data set")
    if not shares or not all(0 < share < 1 for share in shares):
        problems.append(f"shares must lie in (0, 1), however: {shares}")
    if where not in ("random", "last"):
        problems.append(f"where must be 'random' or 'last', however: {where!r}")
    if not parts or not set(parts) <= set(PARTS):
        problems.append(f"parts must be some of {', '.join(PARTS)}, however: {parts}")
    if problems:
        raise ConfigError(problems)
