"""What boosted trees tell: a partner's columns to the label party, and labels to a partner.

- The label party is told on which side of every used cut each row lies. All cuts of one column
  together are its bins, as far as they are used, in their order, without names, edges or values.
- A label party that cheats puts made-up numbers into the sums: powers of two, each at one row.
  Every sum over a bin then says which of so many rows are in it (the reverse sums of Weng et al.,
  "Privacy Leakage of Real-World Vertical Federated Learning", 2020). Bins have `min_rows` rows, but
  whose sums are taken the partner cannot see: masks and encryption hide it. How many rows that
  opens follows from how many sums a training asks for. The attack is run, with the protocol itself.
- A partner is asked for some of its cuts and not for others. It can look at these sides of its own
  rows, the sooner asked for the heavier, to learn more from a few labels that it knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import rankdata

from fedmend.audit.context import FEWEST_ROWS, Attack, Context, NotApplicable
from fedmend.audit.labels_from_bottom import LabelsFromBottom
from fedmend.audit.learner import Scores, bootstrap, standardised
from fedmend.audit.recorder import Observations, Observed
from fedmend.audit.result import Finding
from fedmend.data.encode import as_numbers
from fedmend.federation import COORDINATOR
from fedmend.methods.boosting.bins import CutTable
from fedmend.methods.boosting.secureboost import ActiveTrees, OwnColumns
from fedmend.secure.histogram_product import HALF, BinsSide, Helper, NumbersSide
from fedmend.split.parts import part_of

ROWS_A_NUMBER = 2 * HALF
"""Each half of a number has room for as many powers of two as it has bits."""


class _TreeAttack(Attack):
    """Hears which cuts the label party asks for, what it is told, and how many sums it takes."""

    def __init__(self, seen: Observations) -> None:
        super().__init__(seen)
        self.sides: dict[str, dict[int, np.ndarray]] = {}
        self.numbers = 0
        self.trees: ActiveTrees | None = None

    def hear(self, call: Observed) -> None:
        if not isinstance(call.at, ActiveTrees) or not self.seen.training:
            return
        self.trees = call.at
        if call.method in ("start_tree", "split"):
            self.numbers += call.answer or 0
        elif call.method == "take_sides":
            told = self.sides.setdefault(call.given["sender"], {})
            for cut, name, own in call.at._asked:
                if name == call.given["sender"]:
                    told.setdefault(own, call.at._known[cut][: self.seen.aligned])


class ColumnsFromTrees(_TreeAttack):
    """Runs at the label party, for every column that the trees use of every partner's."""

    name = "columns from trees"
    paper = "Weng et al., 2020 (reverse sums); docs/boosting.md"
    mend = (
        "fewer and flatter trees use fewer cuts; fewer bins, or a larger min_rows in the partner's "
        "policy, which makes them wider, hide values but hardly their order"
    )
    mend_of_cheats = (
        "a partner cannot see what is summed and must trust the label party to keep to the "
        "protocol; else fewer trees, or a policy that does not name 'boosting' among its methods"
    )

    def run(self, context: Context) -> list[Finding]:
        if self.trees is None or not self.sides:
            raise NotApplicable("no partner's columns were cut by trees")
        role, n = self.trees.site.name, self.seen.aligned
        self.seen.unread.discard("PassiveTrees.sides_for")
        opened = min(n, ROWS_A_NUMBER * self.numbers)
        context.facts.append(
            f"{self.name}: this training took {self.numbers:,} sums of numbers; made-up ones "
            f"would open the bins of {opened:,} of {n:,} rows, in all columns of every partner"
        )
        found = []
        for party, told in self.sides.items():
            state = part_of(context.site(party), self.trees.model)
            table = CutTable(state.layouts)
            codes = state.codes(context.table(party))
            some = context.rng(f"trees {party}").permutation(opened)[: context.budget.most_rows]
            read = bins_by_made_up_numbers(table, codes[:, some])
            unused = len(table.layouts)
            for at, name, truth, nominal in _columns(state, context, party):
                cuts = [own for own in told if table.columns[own] == at]
                if cuts:
                    unused -= 1
                    rights = np.stack([~told[own] for own in cuts])
                    guess = _patterns(rights) if nominal else rights.sum(0)
                    every = np.arange(n)[: context.budget.most_rows]
                    found += self._finding(
                        context, (role, party, name), "sides of used cuts", truth, every, guess,
                        nominal, self.mend
                    )  # fmt: skip
                whole = np.zeros(n, np.int64)
                whole[some] = read[at]
                found += self._finding(
                    context, (role, party, name), "made-up sums, if it cheats", truth, some, whole,
                    nominal, self.mend_of_cheats
                )  # fmt: skip
            if unused:
                context.facts.append(
                    f"{self.name}: no tree cuts {unused} of the {len(table.layouts)} columns of "
                    f"{party}, and nothing is told of these"
                )
        return found

    def _finding(
        self,
        context: Context,
        whose: tuple[str, str, str],
        from_: str,
        truth: np.ndarray,
        rows: np.ndarray,
        guess: np.ndarray,
        nominal: bool,
        mend: str,
    ) -> list[Finding]:
        role, party, name = whose
        rows = rows[~np.isnan(truth[rows])]
        real, told = truth[rows], guess[rows]
        if len(rows) < FEWEST_ROWS or np.ptp(real) == 0:
            return []
        rng = context.rng(f"trees {party} {name} {from_}")
        metric = "accuracy" if nominal else "rank correlation"
        if nominal:  # granted: which category is the commonest in every group
            counts = np.zeros((int(told.max()) + 1, int(real.max()) + 1))
            np.add.at(counts, (told, real.astype(np.int64)), 1)
            right = (counts.argmax(1)[told] == real).astype(np.float64)
            scores = Scores.beside(
                bootstrap(np.mean, right, rng=rng), counts.sum(0).max() / len(real)
            )
        else:
            scores = Scores.beside(bootstrap(_rank_correlation, real, told, rng=rng), 0.0)
        return [self.finding(role, from_, party, name, metric, scores, rows=len(rows), mend=mend)]


class LabelsFromCuts(_TreeAttack, LabelsFromBottom):
    """Runs at every partner of which cuts were asked for."""

    name = "labels from used cuts"
    paper = "docs/boosting.md"
    mend = "labels told through randomised response (label_dp) bound it"
    from_ = "which of its cuts are asked for"
    nothing = "no partner's columns were cut by trees"

    def run(self, context: Context) -> list[Finding]:
        if self.sides:
            context.facts.append(
                f"{self.name}: the {COORDINATOR} passes on sums and sides that are masked or "
                "encrypted; it has counts, and no line a row"
            )
        return super().run(context)

    def told(self, context: Context) -> dict[str, np.ndarray]:
        """Of every row the sides of the cuts that were asked for, the first ones the heaviest."""
        return {
            party: np.stack(list(told.values()), 1) / np.sqrt(np.arange(1, len(told) + 1))
            for party, told in self.sides.items()
        }

    def without(self, context: Context, party: str) -> np.ndarray:
        """Its columns, and the sides of all cuts that it could be asked for."""
        assert self.trees is not None
        own = part_of(context.site(party), self.trees.model)
        table, codes = CutTable(own.layouts), own.codes(context.table(party))
        sides = np.stack([table.goes_left(cut, codes) for cut in range(len(table))], 1)
        return np.concatenate([context.columns(party), standardised(sides)], 1)


def bins_by_made_up_numbers(table: CutTable, codes: np.ndarray) -> np.ndarray:
    """A partner's bin numbers [columns, n], as a label party that cheats reads them from sums.

    Through the protocol itself, as three roles run it.
    """

    def key_of(stream: str, number: int, shape: tuple[int, ...], own: bool) -> bytes:
        return f"{stream} {number}".encode().ljust(32, b".")

    rows = codes.shape[1]
    indicators: csr_array = table.indicators(codes)
    a, b = BinsSide(key_of), NumbersSide(key_of)
    helper = Helper(a.mask(indicators, 0))
    b.prepare(0, (rows, table.stored))
    count = -(-rows // ROWS_A_NUMBER)
    numbers = np.zeros((count, rows), np.int64)
    places = np.arange(rows)
    numbers[places // ROWS_A_NUMBER, places] = np.int64(1) << (places % ROWS_A_NUMBER)
    told = b.sums(helper.combine(b.mask(numbers, 1), a.share(1, count)), 1)
    inside = (told[places // ROWS_A_NUMBER] >> (places % ROWS_A_NUMBER)[:, None]) & 1
    return np.stack([
        np.where(part.any(1), part.argmax(1), last - first)
        for first, last in table.bounds
        for part in [inside[:, first:last]]
    ])  # fmt: skip


def _columns(
    own: OwnColumns, context: Context, party: str
) -> Iterator[tuple[int, str, np.ndarray, bool]]:
    """Number, name and values of a partner's columns, and whether they have no order."""
    frame = context.table(party).frame
    for at, each in enumerate(own.columns):
        values = as_numbers(each.column, frame[each.column.name])
        yield at, each.column.name, values, each.column.kind == "nominal"


def _patterns(sides: np.ndarray) -> np.ndarray:
    """Rows with the same sides have the same number. **Shape** [cuts, n] to [n]"""
    return np.asarray(np.unique(sides, axis=1, return_inverse=True)[1]).reshape(-1)


def _rank_correlation(truth: np.ndarray, guess: np.ndarray) -> float:
    if np.ptp(truth) == 0 or np.ptp(guess) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(truth), rankdata(guess))[0, 1])
