"""All inner products between two parties' integer columns, exactly: one primitive, four modes.

    sums = inner_products(fed, Columns("bank", "centred-ranks"), Columns("telco", "centred-ranks"))

Most uses multiply one party's *fixed* columns again and again with the other's *changing* ones
(columns against residuals, bin indicators against gradients). A `ProductSession` encrypts or
masks the fixed side once; afterwards only the changing side travels:

    with ProductSession(fed, Columns("bank", "indicators"), "telco", mode="dealer") as session:
        for step in range(100):
            sums = session.products(Columns("telco", "state", {"key": "gradient"}))

Modes: ``bfv`` (default; stays safe even if the coordinator works together with one of the
parties), ``dealer`` (about as fast as plain arithmetic; the coordinator must not work together
with a party), ``published`` (the paper's own, for reference) and ``plain`` (simulation). What each
role learns in each is in docs/inner-products.md.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedmend.errors import AlignmentError, ConfigError, DataError, PrivacyWarning
from fedmend.federation.bound import declare
from fedmend.federation.federation import Each, Federation
from fedmend.federation.worker import exposed
from fedmend.secure.bfv import BfvProducts
from fedmend.secure.channel import introduce
from fedmend.secure.columns import (
    Columns,
    Products,
    ProductWorker,
    Progress,
    Wanted,
    largest_product,
)
from fedmend.secure.dealer import SIDES, DealerProducts
from fedmend.secure.exact import wrapping_product
from fedmend.secure.published import PublishedProducts

logger = logging.getLogger(__name__)

Mode = Literal["bfv", "dealer", "published", "plain"]


class PlainWorker(ProductWorker):
    """Lets the columns out as they are; of kind `row`, so that a default policy refuses it."""

    @exposed(kind="row")
    def values(self) -> np.ndarray:
        return self.columns.values


class PlainProducts(Products):
    """Simulation: the coordinator multiplies what the parties send it."""

    worker = PlainWorker
    warning = "mode='plain' sends columns in the clear: for simulation only. Mend: mode='bfv'"

    _values: np.ndarray | None = None

    def products(self, wanted: Wanted) -> np.ndarray:
        if self._values is None:
            self._values = self.a.values()
        return wrapping_product(self._values, self.b.values()).view(np.int64)


PROTOCOLS: dict[str, type[Products]] = {
    "bfv": BfvProducts,
    "dealer": DealerProducts,
    "published": PublishedProducts,
    "plain": PlainProducts,
}
PRODUCT_WORKERS = [protocol.worker for protocol in PROTOCOLS.values()]
LIMIT_BITS = {mode: protocol.limit_bits for mode, protocol in PROTOCOLS.items()}


class ProductSession:
    """Products of one party's fixed columns with the other's changing ones.

    fixed: the columns that stay; encrypted or masked at the first product and reused.
    changing_party: who brings the other columns.
    mode: ``bfv``, ``dealer``, ``published`` or ``plain``.
    key_bits: of the Paillier key in mode ``published``.
    progress: called as ``progress(stage, done, total)`` in mode ``bfv``.

    Shape: `products` gives int64 [fixed columns, changing columns].
    """

    def __init__(
        self,
        fed: Federation,
        fixed: Columns,
        changing_party: str,
        *,
        mode: Mode = "bfv",
        key_bits: int = 2048,
        progress: Progress | None = None,
    ) -> None:
        if mode not in PROTOCOLS:
            raise ConfigError(f"unknown mode {mode!r}. Mend: use one of {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[mode]
        if fixed.party == changing_party:
            raise ConfigError(
                f"both sides are {changing_party!r}, who can multiply its own columns alone. "
                "Mend: name two parties"
            )
        self.mode = mode
        self.parties = (fixed.party, changing_party)
        sides = {"role": Each(dict(zip(self.parties, SIDES, strict=True)))}
        self._workers = fed.workers(
            protocol.worker, parties=list(self.parties), **(sides if mode == "dealer" else {})
        )
        try:
            introduce(self._workers)
            self.fixed_facts: dict[str, Any] = self._load(fixed)
            self.protocol = protocol(
                self._workers, *self.parties, key_bits=key_bits, progress=progress
            )
            if protocol.warning:
                warnings.warn(protocol.warning, PrivacyWarning, stacklevel=2)
        except BaseException:
            self._workers.stop()
            raise

    def products(
        self, changing: Columns, *, to: str | None = None, store: str = "products"
    ) -> np.ndarray | None:
        """Inner products of every fixed with every changing column, exact.

        to: the party that alone learns them; they stay at its site under ``state[store]`` and
        nothing is returned. By default the coordinator learns and returns them.
        """
        if changing.party != self.parties[1]:
            raise ConfigError(
                f"the changing side of this session is {self.parties[1]!r}, not "
                f"{changing.party!r}. Mend: start another session"
            )
        if to is not None and to not in self.parties:
            raise ConfigError(
                f"only a party of the product can learn it alone, not {to!r}. Mend: to= one of "
                + ", ".join(map(repr, self.parties))
            )
        self.changing_facts: dict[str, Any] = self._load(changing)
        largest = self._check_sizes(self.fixed_facts, self.changing_facts)
        shape = (len(self.fixed_facts["names"]), len(self.changing_facts["names"]))
        values: np.ndarray | None = np.zeros(shape, dtype=np.int64)
        if 0 not in shape:
            wanted = Wanted(self.fixed_facts, self.changing_facts, to, store, largest)
            values = self.protocol.products(wanted)
        if to is None or values is None:
            return values
        self._workers[to].learn(values, store)
        return None

    def close(self) -> None:
        """Stop the workers; their keys and masks end with them."""
        self._workers.stop()

    def __enter__(self) -> ProductSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ parts

    def _load(self, columns: Columns) -> dict[str, Any]:
        facts: dict[str, Any] = self._workers[columns.party].load(
            columns.provider, dict(columns.settings)
        )
        return facts

    def _check_sizes(self, fixed: dict[str, Any], changing: dict[str, Any]) -> int:
        if fixed["rows"] != changing["rows"]:
            raise AlignmentError(
                f"{self.parties[0]!r} has {fixed['rows']} aligned rows and {self.parties[1]!r} "
                f"{changing['rows']}. Mend: align again"
            )
        largest = largest_product(fixed, changing)
        if largest.bit_length() > LIMIT_BITS[self.mode]:
            raise DataError(
                f"products may be as large as 2^{largest.bit_length()}; mode {self.mode!r} is "
                f"exact below 2^{LIMIT_BITS[self.mode]}",
                mend="mode='dealer' (to 2^63), fewer rows, or smaller bounds or fewer bits a value",
            )
        return largest


def inner_products(
    fed: Federation,
    a: Columns | str,
    b: Columns | str,
    *,
    mode: Mode = "bfv",
    key_bits: int = 2048,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """All inner products between A's and B's integer columns on the aligned rows, exact (int64).

    a, b: `Columns`, or a party's name for all its integer columns. A's side is the one that is
    encrypted in mode ``bfv``; the result has A's columns as rows and B's as columns.
    """
    fixed = Columns(a) if isinstance(a, str) else a
    changing = Columns(b) if isinstance(b, str) else b
    with ProductSession(
        fed, fixed, changing.party, mode=mode, key_bits=key_bits, progress=progress
    ) as session:
        values = session.products(changing)
        names = session.fixed_facts["names"], session.changing_facts["names"]
    logger.debug("inner products, mode %s: %d x %d", mode, len(names[0]), len(names[1]))
    return pd.DataFrame(values, index=names[0], columns=names[1])


declare(
    "products",
    *PRODUCT_WORKERS,
    providers=["integers", "indicators", "centred-ranks", "fixed-point", "state"],
    named_only=True,
)
