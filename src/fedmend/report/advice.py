"""What would mend a federation: its tears, a method for each, what it will take, and the settings.

A pure function of an `Overview`: nobody is asked again. The rules are plain thresholds on counts
that stand in the overview. Where there are rows to choose by, ``auto`` is recommended, after a
named recipe's mends (`fedmend.methods.recipes`) if annotators disagree; the methods that fit are
named beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedmend.data.schema import NUMERIC
from fedmend.methods.costs import Cost, Facts, cost_of_alignment
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import estimate, rated, record_of
from fedmend.report.amounts import about, counted, in_bytes, in_time, listed

if TYPE_CHECKING:
    from fedmend.report.overview import Overview, PartyOverview

# Fewer shared rows than this share of the label party's are few.
FEW_SHARED = 0.8
# Rows that one party only knows are worth using from this share of all its rows on.
MANY_UNSHARED = 0.1
SCARCE_LABELS = 0.5
# Below this kappa two annotators disagree enough for errors of theirs to matter.
AGREED = 0.9
# FedPSG-PUM learns relations from the shared rows; below this it has little to go by.
MIN_SHARED_TO_COMPLETE = 50
# Rounds on labelled rows only before pseudo-labels are made.
WARMUP = 3
# Cross-validation on fewer shared rows says more about chance than about methods.
MIN_SHARED_TO_CHOOSE = 40
# Annotators who disagree, and few rows known to all.
RECIPE = "correct-auto"


@dataclass(frozen=True)
class Tear:
    """One thing that is torn, and what mends it.

    methods: their names in federation.toml. seconds, bytes: of the mend, beyond plain training;
    None where nobody has measured it.
    """

    name: str
    title: str
    words: str
    mend: str
    methods: list[str]
    seconds: float | None
    bytes: int | None

    @property
    def sentence(self) -> str:
        cost = ""
        if self.seconds is not None and self.bytes is not None:
            cost = f" ({in_time(self.seconds)}, {in_bytes(self.bytes)})"
        return f"{self.title}: {self.words} {self.mend}{cost}."


@dataclass(frozen=True)
class Advice:
    """The tears, the widest first, and the settings that mend them.

    recipe: the one that mends them, or None. correct: the table of this name, or None. methods:
    those that fit, as tables [[method]], and after them what they are compared with. whole: what
    all of these take, None where nobody has measured it. choosing: what ``auto`` takes, with what
    the recipe does before; None where there is nothing to choose by.
    """

    tears: list[Tear] = field(default_factory=list)
    methods: list[dict[str, Any]] = field(default_factory=list)
    correct: dict[str, Any] | None = None
    recipe: str | None = None
    whole: Cost | None = field(default_factory=lambda: Cost(0.0, 0))
    choosing: Cost | None = None

    @property
    def words(self) -> list[str]:
        return [*(tear.sentence for tear in self.tears), *self._closing()]

    def _closing(self) -> Iterator[str]:
        """What to begin with, at what cost, and what fits by name."""
        if not self.methods:
            return
        records = [record_of(str(method["name"])) for method in self.methods]
        if self.choosing is not None:
            heard = (
                "lets the methods that fit be heard as far as held-out rows say and tells whether "
                "federation pays"
            )
            if any(each.annotators or each.horizontal for each in records):
                heard = "tries the methods that fit on rows set aside and trains the best"
            begin = 'method = "auto"'
            if self.recipe is not None:
                stages = " → ".join(record_of(name).shown for name in RECIPES[self.recipe].stages)
                begin = f'recipe = "{self.recipe}" ({stages})'
            cost = f" ({about(self.choosing.seconds)})" if self.whole else ""
            yield f"To begin with: {begin}, which {heard}{cost}."
        first = "To begin with" if self.choosing is None else "To compare by name"
        cost = ""
        if self.whole:
            cost = f"; {about(self.whole.seconds)} and {in_bytes(self.whole.bytes)} in all"
        yield f"{first}: {', '.join(each.shown for each in records)}{cost}."

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        methods = self.methods
        if self.choosing is not None:
            methods = [{"name": "auto"}] if self.recipe is None else []
        return {
            "tears": [asdict(tear) | {"sentence": tear.sentence} for tear in self.tears],
            "words": self.words,
            "settings": {"recipe": self.recipe, "correct": self.correct, "methods": methods},
            "seconds": self.whole and self.whole.seconds,
            "bytes": self.whole and self.whole.bytes,
        }


@dataclass(frozen=True)
class _Case:
    """What the rules look at: the overview, those of its parties that report, and their sizes."""

    found: Overview
    parties: Sequence[PartyOverview]
    facts: Facts

    @property
    def owner(self) -> PartyOverview:
        """The label party."""
        return next(party for party in self.parties if party.name == self.facts.owner)

    @property
    def shared(self) -> int:
        return self.facts.aligned or 0

    @property
    def up_to(self) -> str:
        """Before a number of rows, where it counts those that lack only an annotator's label."""
        sure = self.found.columns_share is not None or len(self.parties) == len(self.found.parties)
        return "" if sure else "Up to "

    @property
    def numbers(self) -> bool:
        """Whether the label is a number: evidence is for classes."""
        return "mean" in (self.found.label or {})

    @property
    def evidence(self) -> str:
        """Parts of pictures at two parties or more may share what they learn."""
        images = sum("image" in party.columns for party in self.parties)
        return "risa-images" if images > 1 else "risa"

    @property
    def alone(self) -> list[str]:
        """What the label party reaches by itself, which every comparison needs beside it."""
        if not self.owner.n_columns:
            return []
        return ["local" if "image" in self.owner.columns else "local-trees"]

    def tear(self, name: str, title: str, words: str, mend: str, method: str) -> Tear:
        cost = estimate(method, self.facts) if rated(method, self.facts) else None
        return Tear(name, title, words, mend, [method], *(astuple(cost) if cost else (None, None)))


def advise(found: Overview) -> Advice:
    """What to do about what an overview shows."""
    parties = [party for party in found.parties if not party.withheld]
    if not any(party.labelled_rows for party in parties):
        return Advice()
    facts = facts_of(found)
    case = _Case(found, parties, facts)
    if found.shape == "horizontal":
        return _horizontal(case)
    if len(parties) < 2:
        return _alone(case)
    if not found.aligned:
        return Advice()
    if len(facts.labellers) > 1:
        return _several_annotators(case)
    # Nothing that others know can be learnt, or scored, on shared rows without a label.
    if case.owner.labelled_aligned == 0:
        return _alone(case)
    advice = _one_label_party(case)
    return replace(advice, choosing=None) if facts.pictures else advice  # auto's trees see none


def _alone(case: _Case) -> Advice:
    methods = [{"name": name} for name in case.alone]
    return Advice(methods=methods, whole=_sum(case.alone, case.facts))


def facts_of(found: Overview) -> Facts:
    """The sizes that costs follow from, of the parties that tell."""
    parties = [party for party in found.parties if not party.withheld]
    return Facts(
        {party.name: party.rows for party in parties},
        {party.name: party.n_columns for party in parties},
        tuple(party.name for party in parties if party.labelled),
        None if found.shape == "horizontal" else found.aligned,
        found.training,
        _classes(found),
        found.same_order,
        {party.name: sum(party.columns.get(kind, 0) for kind in NUMERIC) for party in parties},
        any("image" in party.columns for party in parties),
    )


def _classes(found: Overview) -> int:
    """How many classes the label has; 1 for a number, 2 where nobody tells."""
    told = [found.label] if found.label else list(found.labels.values())
    if any("mean" in each for each in told):
        return 1
    return max([2, *(len(each.get("counts", ())) for each in told)])


def told(costs: Mapping[str, Cost | None]) -> dict[str, Any]:
    """What a file takes: in words, and all of it in numbers; None where nobody has measured it."""
    known = {name: cost for name, cost in costs.items() if cost is not None}
    whole = sum(known.values(), start=Cost(0.0, 0))
    words = [f"{name}: {in_time(c.seconds)}, {in_bytes(c.bytes)}." for name, c in known.items()]
    lacking = [name for name in costs if name not in known]
    takes = "takes" if len(lacking) == 1 else "take"
    but = f", and what {listed(lacking)} {takes}, which was not measured" if lacking else ""
    cost = f"{about(whole.seconds)} of one processor and {in_bytes(whole.bytes)}"
    words.append(f"All of it: {cost}{but}.")
    return {"words": words, "seconds": whole.seconds, "bytes": whole.bytes}


# ---------------------------------------------------------------- other columns, the same people


def _one_label_party(case: _Case) -> Advice:
    tears = [*_few_shared(case), *_unlinked_partner(case), *_scarce_labels(case)]
    evidence = [] if case.numbers else [case.evidence]
    few = any(tear.name == "few-shared" for tear in tears)
    between = "local-vfl" if few else "vfl"
    names = [*(evidence if tears else []), between, *case.alone]
    return _with_costs(tears, names, case.facts)


def _several_annotators(case: _Case) -> Advice:
    found, facts = case.found, case.facts
    lowest = (found.agreement or {}).get("lowest")
    # Corrected labels go to an annotator with columns, and with the most rows.
    able = [party for party in case.parties if party.labelled]
    owner = max(able, key=lambda party: (party.n_columns > 0, party.rows))
    tears = []
    if lowest is None or lowest < AGREED:
        agree = "whether they agree is not known"
        if lowest is not None:
            agree = f"two of them agree with a kappa of {lowest:.2f} only"
        words = f"{listed(facts.labellers, 6)} label; {agree}."
        tears.append(
            case.tear("disagreement", "Annotators who disagree", words, *_mend_of_votes(facts))
        )
    first = "inc" if tears else "majority"
    if not any(facts.features.values()):
        return _with_costs(tears, ["dawid-skene", "majority"], facts)
    if case.shared >= FEW_SHARED * owner.rows:
        names = sorted(("inc", "majority"), key=lambda name: name != first)
        return _with_costs(tears, names, facts)
    # Labels first, on all rows that the annotators know; then one party labels, as anywhere.
    columns = [party for party in case.parties if party.n_columns or party.name == owner.name]
    if not owner.n_columns:  # its labels are needed all the same
        found = replace(found, columns_share=None)
    shared = facts.aligned if found.columns_share is None else found.columns_share
    one = _Case(found, columns, replace(facts, labellers=(owner.name,), aligned=shared))
    disagree = bool(tears)
    tears += [*_few_shared(one), *_unlinked_partner(one)]
    rows = found.labellers_share or min(facts.rows[name] for name in facts.labellers)
    before = estimate("inc", replace(facts, aligned=rows))
    advice = _with_costs(tears, [one.evidence, "local-vfl", *one.alone], one.facts, before=before)
    if disagree and advice.choosing is not None:
        return replace(advice, recipe=RECIPE, correct={"to": owner.name})
    return replace(advice, correct={"name": first, "to": owner.name, "among": "labellers"})


def _mend_of_votes(facts: Facts) -> tuple[str, str]:
    """What mends labels that disagree, and the method's name."""
    if any(facts.features.values()):
        mend = "InC corrects the labels while it learns, and tells each which are doubtful"
        return mend, "inc"
    mend = "Dawid–Skene infers labels from the votes alone"
    return f'{mend}; run.leave_out = ["evaluate"], as it knows no other rows', "dawid-skene"


def _few_shared(case: _Case) -> Iterator[Tear]:
    """The label party has rows that the others lack."""
    owner, shared = case.owner, case.shared
    if shared >= FEW_SHARED * owner.rows:
        return
    method, trust = case.evidence, ", each trusted by evidence"
    if case.numbers:
        method, trust = "local-vfl", ""
    rest = owner.rows - shared
    yield case.tear(
        "few-shared",
        "Few people in common",
        f"{shared:,} of {owner.name}'s {owner.rows:,} rows are shared.",
        f"{record_of(method).shown} trains on the other {rest:,} too{trust}",
        method,
    )
    others = [party for party in case.parties if party.name != owner.name and party.n_cells]
    if others and case.facts.trained_on >= MIN_SHARED_TO_COMPLETE:
        lacking = [f"{party.name}'s {counted(party.n_cells, 'column')}" for party in others]
        yield case.tear(
            "missing-block",
            "A missing column block",
            f"{case.up_to}{rest:,} rows lack {' or '.join(lacking)}.",
            "FedPSG-PUM fills them in, each cell with its origin and confidence",
            "fedpsg-pum",
        )


def _unlinked_partner(case: _Case) -> Iterator[Tear]:
    """Partners have rows for which nobody has a label."""
    partners = [party for party in case.parties if not party.labelled and party.n_columns]
    # Of three parties and more the label party may know rows that are not known to all.
    most = "up to " if len(case.found.parties) > 2 else ""
    rows = [
        f"{party.name} has {most}{party.rows - case.shared:,} rows"
        for party in partners
        if party.rows - case.shared > MANY_UNSHARED * party.rows
    ]
    if rows and not case.numbers:
        yield case.tear(
            "unlabelled-partner",
            "Rows without labels at a partner",
            f"{' and '.join(rows)} that nobody labels.",
            f"{record_of(case.evidence).shown} predicts them too; with a threshold it learns "
            "from those it is sure of",
            case.evidence,
        )


def _scarce_labels(case: _Case) -> Iterator[Tear]:
    owner = case.owner
    if owner.labelled_rows < SCARCE_LABELS * owner.rows:
        yield case.tear(
            "scarce-labels",
            "Scarce labels",
            f"{owner.labelled_rows:,} of {owner.name}'s {owner.rows:,} rows have a label.",
            "SSLVFL learns the columns from all shared rows before it looks at labels",
            "ssl-vfl",
        )


# ---------------------------------------------------------------- the same columns, other people


def _horizontal(case: _Case) -> Advice:
    rows = sum(case.facts.rows.values())
    labelled = sum(party.labelled_rows for party in case.parties)
    uneven = (case.found.skew or {}).get("notable", [])
    tears, names = [], []
    if labelled < SCARCE_LABELS * rows:
        names += ["sage", "fixmatch"]
        tears.append(
            case.tear(
                "scarce-labels",
                "Scarce labels",
                f"{labelled:,} of {rows:,} rows have a label.",
                "SAGE and FixMatch give rows without label one of their own",
                "sage",
            )
        )
    if uneven:
        names.append("fedprox")
        far = listed(uneven, 3) if len(uneven) > 3 else ", ".join(uneven)
        have = "has" if len(uneven) == 1 else "have"
        tears.append(
            case.tear(
                "skewed-clients",
                "Skewed clients",
                f"{far} {have} other shares of the classes than all together.",
                "FedProx holds every party near the common model",
                "fedprox",
            )
        )
    advice = _with_costs(tears, [*names, "fedavg"], case.facts)
    for method in advice.methods:
        if method["name"] in ("sage", "fixmatch"):
            # Pseudo-labels of a model that has learnt nothing yet do harm (docs/benchmarks.md).
            method["warmup"] = WARMUP
    return replace(advice, choosing=estimate("auto", case.facts))


# ---------------------------------------------------------------- costs


def _with_costs(
    tears: list[Tear], names: list[str], facts: Facts, before: Cost | None = None
) -> Advice:
    """names: what is trained. before: a correction of labels."""
    mends = [method for tear in tears for method in tear.methods]
    extra = [name for name in mends if name not in (*names, "inc", "fedpsg-pum")]
    chosen = [*dict.fromkeys(extra), *names]
    first = before or Cost(0.0, 0)
    if facts.aligned is not None:
        first += cost_of_alignment(facts)
    choosing = None
    enough = facts.trained_on >= MIN_SHARED_TO_CHOOSE
    if facts.aligned and enough and any(facts.features.values()):
        choosing = estimate("auto", facts) + (before or Cost(0.0, 0))
    methods = [{"name": name} for name in chosen]
    whole = _sum(chosen, facts)
    return Advice(tears, methods, whole=whole and first + whole, choosing=choosing)


def _sum(methods: Sequence[str], facts: Facts) -> Cost | None:
    if not all(rated(method, facts) for method in methods):
        return None
    return sum((estimate(method, facts) for method in methods), start=Cost(0.0, 0))
