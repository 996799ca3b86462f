"""What would mend a federation: its tears, a method for each, what it will take, and the settings.

A pure function of an `Overview`: nobody is asked again. The rules are plain thresholds on counts
that stand in the overview; what they recommend is a place to begin, compared with what it replaces
(`fedmend run` trains both and says which is better).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedmend.preflight.costs import Cost, Facts, estimate

if TYPE_CHECKING:
    from fedmend.report.overview import Overview, PartyOverview

__all__ = ["Advice", "Tear", "advise"]

# Fewer shared rows than this share of the label party's are few.
FEW_SHARED = 0.8
# Rows that one party alone knows are worth using from this share of all its rows on.
MANY_ALONE = 0.1
SCARCE_LABELS = 0.5
# Below this kappa two labellers disagree enough for errors of theirs to matter.
AGREED = 0.9
# FedPSG-PUM learns relations from the shared rows; below this it has little to go by.
LEAST_SHARED = 50


@dataclass(frozen=True)
class Tear:
    """One thing that is torn, and what mends it.

    methods: their names in federation.toml. cost: of the mend, beyond plain training.
    """

    name: str
    title: str
    words: str
    mend: str
    methods: list[str]
    seconds: float | None = None
    bytes: int | None = None

    @property
    def sentence(self) -> str:
        cost = ""
        if self.seconds is not None and self.bytes is not None:
            cost = f" ({in_time(self.seconds)}, {in_bytes(self.bytes)})"
        return f"{self.title}: {self.words} {self.mend}{cost}."


@dataclass(frozen=True)
class Advice:
    """The tears, the widest first, and the settings that mend them.

    complete, correct: the tables of these names, or None. methods: the tables [[method]], those
    recommended first and what they are compared with after them. whole: what all of it takes.
    """

    tears: list[Tear]
    methods: list[dict[str, Any]]
    complete: dict[str, Any] | None = None
    correct: dict[str, Any] | None = None
    whole: Cost = field(default_factory=lambda: Cost(0.0, 0))

    @property
    def words(self) -> list[str]:
        if not self.methods:
            return [tear.sentence for tear in self.tears]
        named = ", ".join(str(method["name"]) for method in self.methods)
        completed = " on completed rows and without" if self.complete else ""
        took = in_time(self.whole.seconds)
        about = took if took.startswith("under") else f"about {took}"
        closing = (
            f"To begin with: {named}{completed}; {about} and {in_bytes(self.whole.bytes)} in all."
        )
        return [*(tear.sentence for tear in self.tears), closing]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "tears": [asdict(tear) | {"sentence": tear.sentence} for tear in self.tears],
            "words": self.words,
            "settings": {
                "correct": self.correct,
                "complete": self.complete,
                "methods": self.methods,
            },
            "seconds": self.whole.seconds,
            "bytes": self.whole.bytes,
        }


def advise(found: Overview) -> Advice:
    """What to do about what an overview shows."""
    told = [party for party in found.parties if not party.withheld]
    if not any(party.labelled_rows for party in told):
        return Advice([], [])
    facts = Facts(
        {party.name: party.rows for party in told},
        {party.name: party.n_columns for party in told},
        tuple(party.name for party in told if party.labelled),
        None if found.shape == "horizontal" else found.aligned,
    )
    if found.shape == "horizontal":
        return _across(found, told, facts)
    if len(facts.rows) < 2:
        return Advice([], [{"name": "local"}], whole=estimate("local", facts))
    if not found.aligned:
        return Advice([], [])
    if len(facts.labellers) > 1:
        return _several_labellers(found, told, facts)
    return _one_labeller(found, told, facts)


# ---------------------------------------------------------------- other columns, the same people


def _one_labeller(found: Overview, told: list[PartyOverview], facts: Facts) -> Advice:
    tears = [
        tear for rule in (_few_shared, _unlinked_partner, _scarce_labels)
        for tear in rule(found, told, facts)
    ]  # fmt: skip
    complete = None
    names = ["vfl", "local"]
    if any(tear.name == "missing-block" for tear in tears):
        # Rows with a label are those that are worth completing for a training.
        complete = {"name": "fedpsg-pum", "source": facts.owner, "also_unmended": True}
        names = ["vfl", "local-vfl", "local"]
    if tears:
        names = ["risa", *names]
    return _with_costs(tears, names, complete, facts)


def _few_shared(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    """The label party has rows that the others lack."""
    owner = next(party for party in told if party.name == facts.owner)
    shared = found.aligned or 0
    rest = owner.rows - shared
    if shared >= FEW_SHARED * owner.rows:
        return
    share = f"{shared:,} of {owner.name}'s {owner.rows:,} rows are shared."
    yield _tear(
        "few-shared", "Few people in common", share,
        f"risa trains on the other {rest:,} too, each trusted by evidence", ["risa"], facts,
    )  # fmt: skip
    if shared >= LEAST_SHARED:
        others = [party for party in told if party.name != owner.name and party.n_columns]
        lacking = " and ".join(f"{party.name}'s {party.n_columns} columns" for party in others)
        yield _tear(
            "missing-block", "A missing column block", f"{rest:,} rows lack {lacking}.",
            "[complete] (fedpsg-pum) fills them in, each cell with its origin and confidence",
            ["fedpsg-pum"], facts,
        )  # fmt: skip


def _unlinked_partner(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    """Partners have rows for which nobody has a label."""
    shared = found.aligned or 0
    rows = {
        party.name: party.rows - shared
        for party in told
        if not party.labelled and party.n_columns and party.rows - shared > MANY_ALONE * party.rows
    }
    if not rows:
        return
    told_rows = " and ".join(f"{name} has {count:,} rows" for name, count in rows.items())
    yield _tear(
        "unlabelled-partner", "Rows without labels at a partner",
        f"{told_rows} that nobody labels.",
        "risa gives those it is sure about a label of its own", ["risa"], facts,
    )  # fmt: skip


def _scarce_labels(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    owner = next(party for party in told if party.name == facts.owner)
    if owner.labelled_rows >= SCARCE_LABELS * owner.rows:
        return
    yield _tear(
        "scarce-labels", "Scarce labels",
        f"{owner.labelled_rows:,} of {owner.name}'s {owner.rows:,} rows have a label.",
        "ssl-vfl learns the columns from all shared rows before it looks at labels",
        ["ssl-vfl"], facts,
    )  # fmt: skip


def _several_labellers(found: Overview, told: list[PartyOverview], facts: Facts) -> Advice:
    lowest = (found.agreement or {}).get("lowest")
    owner = _owner_of_labels(told)
    few = (found.aligned or 0) < FEW_SHARED * owner.rows
    tears = []
    if lowest is None or lowest < AGREED:
        tears.append(_disagreement(facts, lowest))
    if not few:
        names = ["inc", "majority"] if tears else ["majority", "inc"]
        return _with_costs(tears, names, None, facts)
    # Labels first, on all rows that the labellers know; then one party labels, as anywhere.
    correct = {"name": "inc", "to": owner.name, "among": "labellers"}
    columns = [party for party in told if party.n_columns or party.name == owner.name]
    one = replace(facts, labellers=(owner.name,))
    tears += _few_shared(found, columns, one)
    tears += _unlinked_partner(found, columns, one)
    return replace(_with_costs(tears, ["risa", "vfl"], None, one, ["inc"]), correct=correct)


def _owner_of_labels(told: list[PartyOverview]) -> PartyOverview:
    """The labeller that the corrected labels go to: one with columns, and with the most rows."""
    labellers = [party for party in told if party.labelled]
    return max(labellers, key=lambda party: (party.n_columns > 0, party.rows))


def _disagreement(facts: Facts, lowest: float | None) -> Tear:
    seen = (
        "whether they agree is not known."
        if lowest is None
        else f"two of them agree with a kappa of {lowest:.2f} only."
    )
    return _tear(
        "disagreement",
        "Labellers who disagree",
        f"{', '.join(facts.labellers)} label; {seen}",
        "inc corrects the labels while it learns, and tells each which are doubtful",
        ["inc"],
        facts,
    )


# ---------------------------------------------------------------- the same columns, other people


def _across(found: Overview, told: list[PartyOverview], facts: Facts) -> Advice:
    rows, labelled = sum(facts.rows.values()), sum(party.labelled_rows for party in told)
    tears = []
    if labelled < SCARCE_LABELS * rows:
        tears.append(
            _tear(
                "scarce-labels",
                "Scarce labels",
                f"{labelled:,} of {rows:,} rows have one.",
                "sage and fixmatch give rows without label one of their own",
                ["sage"],
                facts,
            )
        )
    uneven = (found.skew or {}).get("notable", [])
    if uneven:
        far = ", ".join(uneven[:3]) + (f" and {len(uneven) - 3} more" if len(uneven) > 3 else "")
        tears.append(
            _tear(
                "skewed-clients",
                "Skewed clients",
                f"{far} {'has' if len(uneven) == 1 else 'have'} other shares of the classes "
                "than all together.",
                "fedprox holds every party near the common model",
                ["fedprox"],
                facts,
            )
        )
    names = ["sage", "fixmatch"] if labelled < SCARCE_LABELS * rows else []
    names += ["fedprox"] if uneven else []
    return _with_costs(tears, [*names, "fedavg"], None, facts)


# ---------------------------------------------------------------- costs and words


def _tear(name: str, title: str, words: str, mend: str, methods: list[str], facts: Facts) -> Tear:
    cost = _sum(methods, facts)
    return Tear(name, title, words, mend, methods, cost.seconds, cost.bytes)


def _with_costs(
    tears: list[Tear],
    names: list[str],
    complete: dict[str, Any] | None,
    facts: Facts,
    before: Sequence[str] = (),
) -> Advice:
    """before: methods that run before the training, such as a correction of labels."""
    mends = [method for tear in tears for method in tear.methods]
    extra = [name for name in mends if name not in (*names, *before, "fedpsg-pum")]
    chosen = [*dict.fromkeys(extra), *names]
    whole = _sum([*before, *chosen], facts)
    if facts.aligned is not None:
        whole += estimate("align", facts)
    if complete is not None:
        whole += estimate("fedpsg-pum", facts)
        whole += _sum([name for name in chosen if name != "local"], facts.completed())
    return Advice(tears, [{"name": name} for name in chosen], complete, whole=whole)


def _sum(methods: list[str], facts: Facts) -> Cost:
    total = Cost(0.0, 0)
    for method in methods:
        total += estimate(method, facts)
    return total


def in_time(seconds: float) -> str:
    """``about 20 s``: one figure, because an estimate has no more."""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60)):
        if seconds < limit:
            return f"{_one_figure(seconds / size)} {unit}"
    return f"{_one_figure(seconds / 3600)} h"


def in_bytes(size: float) -> str:
    """``50 MB``"""
    for limit, unit in ((1e6, "kB"), (1e9, "MB"), (1e12, "GB")):
        if size < limit:
            return f"{_one_figure(size / limit * 1000)} {unit}"
    return f"{_one_figure(size / 1e12)} TB"


def _one_figure(value: float) -> str:
    if value < 1:
        return "under 1"
    digits = len(str(int(value))) - 1
    return f"{round(value / 10**digits) * 10**digits:,}"
