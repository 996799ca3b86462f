"""Columns from inner products: what completing rows (FedPSG-PUM) shows of single rows.

A product of two columns over all aligned rows says nothing about a row by itself. But m products of
one column with m known vectors are m linear equations in its n entries: they are counted here, for
whoever knows one side's vectors, and a column is said to be determined when their rank reaches n
(Dinur & Nissim, "Revealing Information while Preserving Privacy", PODS 2003, for how few noisy
ones do). With ``protocol="published"`` the coordinator decrypts the difference of two ranks in
every row. All differences of one row follow from its ranks up to one number; that every rank lies
within known bounds leaves an interval for it, and its middle is guessed.
"""

from __future__ import annotations

import numpy as np

from fedmend.audit.context import Attack, Context, NotApplicable
from fedmend.audit.learner import Scores, bootstrap, r2
from fedmend.audit.recorder import Observations, Observed
from fedmend.audit.result import Finding
from fedmend.federation import COORDINATOR

MAX_VECTORS = 4000


class ColumnsFromProducts(Attack):
    """Hears who brings which columns to products, and who learns the results."""

    name = "columns from products"
    paper = "docs/inner-products.md; Dinur & Nissim, PODS 2003"
    mend = 'protocol = "inner-product" (the default) shows sums only'

    def __init__(self, seen: Observations) -> None:
        super().__init__(seen)
        self.brought: dict[str, dict[bytes, np.ndarray]] = {}
        self.learners: set[str] = set()
        self.ranked: dict[str, list[str]] = {}
        self.sent: list[tuple[str, int, np.ndarray]] = []
        self.received: list[tuple[str, np.ndarray]] = []

    def hear(self, call: Observed) -> None:
        columns = getattr(call.at, "_columns", None)
        if call.method == "load" and columns is not None:
            known = self.brought.setdefault(call.party, {})
            for vector in columns.values:
                if len(known) < MAX_VECTORS:
                    known.setdefault(vector.tobytes(), vector)
        elif call.method in ("add_up", "learn"):
            self.learners.add(call.party)
        elif call.method == "describe" and call.worker == "RankWorker":
            self.ranked[call.party] = list(call.answer["names"])
        elif call.method == "encrypt_column" and columns is not None:
            at = call.given["at"]
            self.sent.append((call.party, at, columns.values[at].copy()))
        elif call.method == "differences" and columns is not None:
            self.received.append((call.party, columns.values.copy()))

    def run(self, context: Context) -> list[Finding]:
        if not self.brought:
            raise NotApplicable("no inner products of two parties' columns were made")
        for party in self.brought:
            context.facts.append(self._count(party))
        found = self._published(context) if self.received else []
        if not found:
            context.facts.append(
                f"{self.name}: no message holds a line a row that its receiver can read, so there "
                "is nothing to attack row by row"
            )
        return found

    def _count(self, party: str) -> str:
        """How many equations whoever knows this party's vectors has."""
        vectors = list(self.brought[party].values())
        lengths = [len(each) for each in vectors]
        rows = max(set(lengths), key=lengths.count)
        same = [each for each in vectors if len(each) == rows]
        rank = len(same)
        if rank >= rows:
            rank = int(np.linalg.matrix_rank(np.stack(same).astype(np.float64)))
        who = f"the coordinator together with {party}"
        if party in self.learners:
            who = f"{party}, which learns products itself,"
        told = "a column is then DETERMINED" if rank >= rows else "no column is determined"
        return (
            f"products with {party}'s vectors: for {who} they are at most {rank:,} linear "
            f"equations in the {rows:,} entries of each column of the other side; {told}"
        )

    def _published(self, context: Context) -> list[Finding]:
        """Ranks of both sides from the differences that the coordinator decrypts."""
        party, values = self.received[0]
        # One encrypted column of A comes before each list of differences at B.
        sent = self.sent[: len(self.received)]
        fixed = np.stack([column for _, _, column in sent])
        rows = values.shape[1]
        differences = fixed[:, None] - values[None]
        guessed = ranks_from_differences(differences, rows - 1)
        truth = np.concatenate([fixed, values])
        owners = [(owner, self.ranked[owner][at]) for owner, at, _ in sent]
        owners += [(party, name) for name in self.ranked[party]]
        found = []
        for (owner, name), real, told in zip(owners, truth, guessed, strict=True):
            rng = context.rng(f"ranks {owner} {name}")
            scores = Scores.beside(bootstrap(r2, real.astype(np.float64), told, rng=rng), 0.0)
            what = f"ranks of {name}"
            found.append(
                self.finding(
                    COORDINATOR, "differences of ranks", owner, what, "R²", scores, rows=rows
                )
            )
        return found


def ranks_from_differences(differences: np.ndarray, bound: int) -> np.ndarray:
    """Ranks a_k and b_l from all a_k − b_l, each within ±bound. **Shape** [p, q, n] to [p + q, n]

    >>> ranks_from_differences(np.array([[[6.0, 0.0]]]), 3)
    array([[ 3.,  0.],
           [-3.,  0.]])
    """
    first = differences[:, 0]
    # Relative to the first rank of A: its others, and B's.
    relative = np.concatenate([first - first[0], -differences[0]]).astype(np.float64)
    low, high = -bound - relative.min(0), bound - relative.max(0)
    return relative + (low + high) / 2
