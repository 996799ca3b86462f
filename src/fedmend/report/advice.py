"""What would mend a federation: its tears, a method for each, what it will take, and the settings.

A pure function of an `Overview`: nobody is asked again. The rules are plain thresholds on counts
that stand in the overview. Where a named recipe (`fedmend.methods.recipes`) mends the tears found,
it is recommended; what it replaces is trained beside it (`fedmend run` says which is better).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmend.methods.costs import Cost, Facts
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import cost_of_alignment, estimate, record_of
from fedmend.report.advised import Advice, Tear

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
# Rounds on labelled rows only before pseudo-labels are made.
WARMUP = 3
# Cross-validation on fewer shared rows says more about chance than about methods.
LEAST_CHOSEN_BY = 40
FOLDS = 3
RECIPE_FOR = {
    ("disagreement", "missing-block"): "correct-complete-vfl",
    ("disagreement", "few-shared"): "correct-local-vfl",
    ("missing-block",): "complete-vfl",
}
"""Which recipe mends tears that come together; the first that fits counts."""


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
        found.training,
    )
    if found.shape == "horizontal":
        return _across(found, told, facts)
    if len(facts.rows) < 2:
        return Advice([], [{"name": "local"}], whole=estimate("local", facts))
    if not found.aligned:
        return Advice([], [])
    if len(facts.labellers) > 1:
        return _several_labellers(found, told, facts)
    owner = next(party for party in told if party.name == facts.owner)
    if owner.labelled_aligned == 0:
        # Nothing that others know can be learnt, or scored, on rows without a label.
        return Advice([], [{"name": "local"}], whole=estimate("local", facts))
    return _one_labeller(found, told, facts)


# ---------------------------------------------------------------- other columns, the same people


def _one_labeller(found: Overview, told: list[PartyOverview], facts: Facts) -> Advice:
    tears = [
        tear for rule in (_few_shared, _unlinked_partner, _scarce_labels)
        for tear in rule(found, told, facts)
    ]  # fmt: skip
    complete = None
    # Evidence is for classes; numbers are left to the others.
    evidence = [] if _predicts_numbers(found) else [_evidence(told)]
    names = [*evidence, "vfl", "local"] if tears else ["vfl", "local"]
    if recipe := _recipe_for(tears):
        # Rows with a label are those that are worth completing for a training.
        complete = {"source": facts.owner}
        names = [*evidence, "local-vfl", "local"]
    if not facts.features[facts.owner]:
        names.remove("local")
    return _with_costs(tears, names, facts, complete=complete, recipe=recipe)


def _evidence(told: Sequence[PartyOverview]) -> str:
    """Parts of pictures at two parties or more may share what they learn."""
    return "risa-images" if sum("image" in party.columns for party in told) > 1 else "risa"


def _predicts_numbers(found: Overview) -> bool:
    return "mean" in (found.label or {})


def _recipe_for(tears: Sequence[Tear]) -> str | None:
    seen = {tear.name for tear in tears}
    return next((name for needs, name in RECIPE_FOR.items() if seen.issuperset(needs)), None)


def _few_shared(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    """The label party has rows that the others lack."""
    owner = next(party for party in told if party.name == facts.owner)
    shared = found.aligned or 0
    rest = owner.rows - shared
    if shared >= FEW_SHARED * owner.rows:
        return
    share = f"{shared:,} of {owner.name}'s {owner.rows:,} rows are shared."
    method = _evidence(told)
    mend = f"{record_of(method).shown} trains on the other {rest:,} too, each trusted by evidence"
    if _predicts_numbers(found):
        mend, method = f"LocalVFL trains on the other {rest:,} too", "local-vfl"
    yield _tear("few-shared", "Few people in common", share, mend, [method], facts)
    others = [party for party in told if party.name != owner.name and party.n_cells]
    if others and facts.trained_on >= LEAST_SHARED:
        lacking = " and ".join(f"{party.name}'s {_columns(party.n_cells)}" for party in others)
        yield _tear(
            "missing-block", "A missing column block", f"{rest:,} rows lack {lacking}.",
            "FedPSG-PUM fills them in, each cell with its origin and confidence",
            ["fedpsg-pum"], facts,
        )  # fmt: skip


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _unlinked_partner(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    """Partners have rows for which nobody has a label."""
    shared = found.aligned or 0
    rows = {
        party.name: party.rows - shared
        for party in told
        if not party.labelled and party.n_columns and party.rows - shared > MANY_ALONE * party.rows
    }
    if not rows or _predicts_numbers(found):
        return
    method = _evidence(told)
    told_rows = " and ".join(f"{name} has {count:,} rows" for name, count in rows.items())
    yield _tear(
        "unlabelled-partner", "Rows without labels at a partner",
        f"{told_rows} that nobody labels.",
        f"{record_of(method).shown} predicts them too; with self_training it learns from those it "
        "is sure of",
        [method], facts,
    )  # fmt: skip


def _scarce_labels(found: Overview, told: list[PartyOverview], facts: Facts) -> Iterator[Tear]:
    owner = next(party for party in told if party.name == facts.owner)
    if owner.labelled_rows >= SCARCE_LABELS * owner.rows:
        return
    yield _tear(
        "scarce-labels", "Scarce labels",
        f"{owner.labelled_rows:,} of {owner.name}'s {owner.rows:,} rows have a label.",
        "SSLVFL learns the columns from all shared rows before it looks at labels",
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
        return _with_costs(tears, names, facts)
    # Labels first, on all rows that the labellers know; then one party labels, as anywhere.
    columns = [party for party in told if party.n_columns or party.name == owner.name]
    one = replace(facts, labellers=(owner.name,))
    tears += _few_shared(found, columns, one)
    tears += _unlinked_partner(found, columns, one)
    recipe = _recipe_for(tears)
    tables = RECIPES[recipe].tables if recipe else {}
    correct = {"to": owner.name}
    if "correct" not in tables:
        name = "inc" if "disagreement" in {tear.name for tear in tears} else "majority"
        correct = {"name": name, **correct, "among": "labellers"}
    complete = {"source": owner.name} if "complete" in tables else None
    rows = found.labellers_share or min(facts.rows[name] for name in facts.labellers)
    before = estimate("inc", replace(facts, aligned=rows))
    names = [_evidence(columns)] if recipe else [_evidence(columns), "vfl"]
    names += ["local"] if owner.n_columns else []
    return replace(
        _with_costs(tears, names, one, complete=complete, recipe=recipe, before=before),
        correct=correct,
    )


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
        "InC corrects the labels while it learns, and tells each which are doubtful",
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
                f"{labelled:,} of {rows:,} rows have a label.",
                "SAGE and FixMatch give rows without label one of their own",
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
                "FedProx holds every party near the common model",
                ["fedprox"],
                facts,
            )
        )
    names = ["sage", "fixmatch"] if labelled < SCARCE_LABELS * rows else []
    names += ["fedprox"] if uneven else []
    advice = _with_costs(tears, [*names, "fedavg"], facts)
    for method in advice.methods:
        if method["name"] in ("sage", "fixmatch"):
            # Pseudo-labels of a model that has learnt nothing yet do harm (docs/benchmarks.md).
            method["warmup"] = WARMUP
    return advice


# ---------------------------------------------------------------- costs and words


def _tear(name: str, title: str, words: str, mend: str, methods: list[str], facts: Facts) -> Tear:
    cost = _sum(methods, facts)
    return Tear(name, title, words, mend, methods, cost.seconds, cost.bytes)


def _with_costs(
    tears: list[Tear],
    names: list[str],
    facts: Facts,
    *,
    complete: dict[str, Any] | None = None,
    recipe: str | None = None,
    before: Cost | None = None,
) -> Advice:
    """names: what is trained, beside what a recipe trains. before: a correction of labels."""
    mends = [method for tear in tears for method in tear.methods]
    extra = [name for name in mends if name not in (*names, "inc", "fedpsg-pum")]
    chosen = [*dict.fromkeys(extra), *names]
    trained = [*([each["name"] for each in RECIPES[recipe].tables["method"]] if recipe else [])]
    trained += [name for name in chosen if name not in trained]
    whole = _sum(trained, facts)
    tried = [name for name in ("vfl", "local-vfl", "risa") if name != "risa" or name in trained]
    candidates = _sum(["local", *tried], facts)
    if before is not None:
        whole += before
    if facts.aligned is not None:
        whole += cost_of_alignment(facts)
    if complete is not None:
        again = facts.completed()
        whole += estimate("fedpsg-pum", facts)
        whole += _sum([name for name in trained if name != "local"], again)
        candidates += _sum(tried, again)
    choosing = None
    if tears and facts.aligned and facts.trained_on >= LEAST_CHOSEN_BY:
        # Every fold trains on all rows but its own.
        choosing = Cost((FOLDS - 1) * candidates.seconds, (FOLDS - 1) * candidates.bytes)
    return Advice(
        tears,
        [{"name": name} for name in chosen],
        complete,
        recipe=recipe,
        whole=whole,
        choosing=choosing,
    )


def _sum(methods: list[str], facts: Facts) -> Cost:
    total = Cost(0.0, 0)
    for method in methods:
        total += estimate(method, facts)
    return total
