"""Single votes from sums, at the coordinator, where several parties label (InC and its baselines).

The coordinator learns how many parties say each class of a row: where all agree, every vote is
told. InC also sums evidence, each party's T as its vote selects from it: rows of one pattern of
votes have one value, and with the T's that the parties tell in the end the pattern follows by
name (docs/inc.md, "Protection"). The sums are opened here from the messages themselves, as the
coordinator does. The guess without them is each party's commonest class.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from fedmend.audit.context import Attack, Context, NotApplicable
from fedmend.audit.learner import Scores, bootstrap
from fedmend.audit.recorder import Observations, Observed
from fedmend.audit.result import Finding
from fedmend.federation import COORDINATOR
from fedmend.methods.annotators.worker import EvidenceForm
from fedmend.secure.sums import SumForm, ring_of, total_of

MAX_PATTERNS = 4096
NOBODY = -1


@dataclass
class _Round:
    """A secure sum under way, as the coordinator has it."""

    name: str
    form: SumForm
    parties: tuple[str, ...]
    messages: dict[str, np.ndarray] = field(default_factory=dict)
    seeds: dict[str, bytes] = field(default_factory=dict)

    def total(self) -> np.ndarray | None:
        """The sum, once everybody's message is there. **Shape** [n * C]"""
        if set(self.messages) != set(self.parties):
            return None
        count = len(self.parties)
        size = len(next(iter(self.messages.values())))
        shifted = total_of(self.messages, ring_of(self.form, count), size, self.seeds)
        return shifted.astype(np.int64) + count * self.form.low


class VotesFromSums(Attack):
    """Hears masked sums and what the parties tell of their T."""

    name = "votes from sums"
    paper = "InC's sums; docs/inc.md"
    mend = (
        "label_dp tells every label through randomised response; share_expertise=False keeps T at "
        "the parties; more annotators make fewer rows unanimous"
    )

    def __init__(self, seen: Observations) -> None:
        super().__init__(seen)
        self.expertise: dict[str, np.ndarray] = {}
        self._rounds: dict[int, _Round] = {}
        self._last: dict[str, _Round] = {}
        self._prepared: dict[str, _Round] = {}

    def hear(self, call: Observed) -> None:
        if call.worker != "LabelWorker":
            return
        if call.method == "prepare_round":
            given = call.given
            fresh = _Round(given["name"], SumForm.from_wire(given["form"]), tuple(given["parties"]))
            self._last[fresh.name] = self._rounds.setdefault(given["number"], fresh)
            self._prepared[call.party] = fresh
        elif call.method == "masked" and call.answer is not None:
            if call.given.get("after") is not None:
                before = self._prepared[call.party]
                fresh = _Round(before.name, before.form, before.parties)
                self._last[fresh.name] = self._rounds.setdefault(call.given["number"], fresh)
            answer = np.array(call.answer)
            self._rounds[call.given["number"]].messages[call.party] = answer
            # Sums that were followed by another of their name are not looked at.
            kept = {id(each) for each in self._last.values()}
            self._rounds = {n: each for n, each in self._rounds.items() if id(each) in kept}
        elif call.method == "open_own_mask":
            self._rounds[call.given["number"]].seeds[call.party] = bytes(call.answer)
        elif call.method == "expertise":
            self.expertise[call.party] = np.array(call.answer)

    # ------------------------------------------------------------------ the attack

    def run(self, context: Context) -> list[Finding]:
        last = self._last.get("votes")
        total = None if last is None else last.total()
        if last is None or total is None:
            raise NotApplicable("no votes of several parties were summed under masks")
        parties, classes = list(last.parties), context.classes
        counts = total.reshape(-1, classes)
        votes = np.stack([context.votes(party) for party in parties], 1)
        unanimous = counts.max(1) == len(parties)
        given = votes >= 0
        share = float((unanimous[:, None] & given).sum() / max(1, given.sum()))
        context.facts.append(
            f"sums of votes: {share:.1%} of the {given.sum():,} votes stand on rows where all "
            f"{len(parties)} parties agree, and are told outright"
        )
        likely = np.repeat(counts.argmax(1)[:, None], len(parties), 1)
        found = [self._told(context, parties, votes, likely, "sums of votes")]
        patterns = self._patterns(context, parties, counts)
        if patterns is not None:
            found.append(
                self._told(context, parties, votes, patterns, "sums of votes and evidence, and T")
            )
        return found

    def _patterns(
        self, context: Context, parties: list[str], counts: np.ndarray
    ) -> np.ndarray | None:
        """By row the pattern of votes that the sums of evidence fit best. **Shape** [n, K]"""
        last, classes = self._last.get("evidence"), counts.shape[1]
        total = None if last is None else last.total()
        absent = [party for party in parties if party not in self.expertise]
        if total is None or (classes + 1) ** len(parties) > MAX_PATTERNS:
            return None
        if absent:
            context.facts.append(
                f"{', '.join(absent)} told no T: patterns of votes have one value of evidence "
                "each, but not the names of those who voted so"
            )
            return None
        rule = str(context.model.get_params().get("posterior", "product"))
        form = EvidenceForm.of(rule, len(parties))
        tables = [form.table(self.expertise[each], rule).astype(np.int64) for each in parties]
        said = [*range(classes), NOBODY]
        patterns = np.array(list(itertools.product(said, repeat=len(parties))))
        values = sum(table[patterns[:, at]] for at, table in enumerate(tables))
        tallies = np.stack([(patterns == c).sum(1) for c in range(classes)], 1)
        evidence, found = total.reshape(-1, classes), np.empty((len(counts), len(parties)), int)
        by_count: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row, count in enumerate(counts.tolist()):
            by_count[tuple(count)].append(row)
        for told, rows in by_count.items():
            fit = np.flatnonzero((tallies == told).all(1))
            far = np.abs(evidence[rows][:, None] - values[fit][None]).sum(2)
            found[rows] = patterns[fit[far.argmin(1)]]
        return found

    def _told(
        self, context: Context, parties: list[str], votes: np.ndarray, told: np.ndarray, from_: str
    ) -> Finding:
        commonest = [
            np.bincount(column[column >= 0], minlength=context.classes).argmax()
            for column in votes.T
        ]
        right = _shares(votes, told)
        guess = _shares(votes, np.tile(commonest, (len(votes), 1)))
        rng = context.rng(f"votes {from_}")
        score, gain = (bootstrap(_mean, each, rng=rng) for each in (right, right - guess))
        scores = Scores(*score, _mean(guess), *gain)
        about = " + ".join(parties)
        return self.finding(
            COORDINATOR, from_, about, "single votes", "accuracy", scores, rows=len(votes)
        )


def _shares(votes: np.ndarray, told: np.ndarray) -> np.ndarray:
    """By row the share of its votes that are told rightly; NaN where there is none."""
    given = votes >= 0
    right = ((votes == told) & given).sum(1)
    return np.divide(right, given.sum(1), out=np.full(len(votes), np.nan), where=given.any(1))


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))
