"""`align(fed)`: find the rows that all parties have, and put them in one order that says nothing.

    fm.align(fed)                          # private set intersection; ids must be written alike
    fm.align(fed, normalise="text")        # 7 is '7', 'Ann ' is 'ann'
    fm.align(fed.on("test"))               # another table of the same parties

After it every site holds, for this scope, the positions of its aligned rows in the common order
and of its other rows; the coordinator knows how many.
"""

from __future__ import annotations

import hmac
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import AlignmentError, ConfigError, PrivacyWarning, Refused
from fedmend.federation.federation import (
    AlignmentCounts,
    Each,
    Federation,
    WorkerGroup,
    require_federation,
)
from fedmend.federation.wire import Sealed
from fedmend.secure.channel import introduce
from fedmend.secure.identifiers import check_rule
from fedmend.secure.psi import PairWorker, SameOrderWorker, StarWorker
from fedmend.secure.psi_spu import ADDRESS_VARIABLE, SpuWorker

logger = logging.getLogger(__name__)

MODES = ("ecdh", "spu", "same-order")
ORDERS = ("auto", "secret", "seeded")
FEW_ROWS = 20
IDS_AT_ONCE = 4096

Facts = dict[str, dict[str, Any]]
Progress = Callable[[str, int, int], None]


def align(
    fed: Federation,
    *,
    mode: str = "ecdh",
    normalise: str = "exact",
    minimum: int = FEW_ROWS,
    order: str = "auto",
    progress: Progress | None = None,
) -> AlignmentCounts:
    """Align the rows of `fed.scope` at all parties; nothing is stored unless all of them agree.

    mode: "ecdh" (private set intersection); "spu" (the same result by spu's RR22, two parties,
        for large sets: see `fedmend.secure.psi_spu` for what it takes); or "same-order" when the
        tables hold the same ids in the same order already (checked; the order stays that of the
        tables).
    normalise: the rule by which ids are equal, "exact", "text" or "number" (`identifiers`).
    minimum: a smaller intersection gives a `PrivacyWarning`, since statistics over few rows
        reveal them. What a party will not take part in is its own policy's `min_intersection`.
    order: "secret" is new in every run and known to the parties only; "seeded" follows from the
        federation's seed and the ids, so that a simulation can be repeated — a coordinator that
        guesses ids could then tell roughly where they stand, and a party between machines refuses
        it unless the run may be reproducible; "auto" is seeded where the federation is
        reproducible, as in one process, and secret everywhere else.
    progress: called as ``progress(stage, done, total)``.
    """
    require_federation(fed)
    check_rule(normalise)
    _check_choice("alignment mode", mode, MODES)
    _check_choice("order", order, ORDERS)
    if len(fed.names) < 2:
        raise AlignmentError(
            f"only {fed.names[0]!r} is here, there is nothing to align with. "
            "Mend: a federation of two parties or more"
        )
    if order == "auto":
        order = "seeded" if fed.reproducible else "secret"
    tell = progress or (lambda stage, done, total: None)
    params = {"normalise": normalise, "order_seed": fed.seed if order == "seeded" else None}
    with ExitStack() as stack:
        if mode == "same-order":
            groups, facts, found = _match_same_order(fed, params, tell, stack)
        else:
            groups, facts, found = _match_private(fed, mode, params, tell, stack)
        if not found:
            raise _nothing_common(groups, facts, normalise)
        counts = replace(_conclude(fed, groups, found, minimum), same_order=mode == "same-order")
    fed.note_alignment(counts)
    logger.info("aligned %d rows of %s by %s", counts.aligned, ", ".join(fed.names), mode)
    return counts


def _check_choice(what: str, word: str, choices: tuple[str, ...]) -> None:
    if word not in choices:
        raise ConfigError(f"there is no {what} {word!r}: {did_you_mean(word, choices)}")


# ---------------------------------------------------------------------------- ways to match


def _match_private(
    fed: Federation, mode: str, params: dict[str, Any], tell: Progress, stack: ExitStack
) -> tuple[list[WorkerGroup], Facts, int]:
    groups = [stack.enter_context(workers) for workers in _private_groups(fed, mode, params)]
    facts = _facts(groups)
    if params["normalise"] == "exact" and _types_differ(facts):
        raise AlignmentError(
            f"no ids can match under normalise='exact': {_types(facts)}. "
            "Mend: align with normalise='text', or 'number' where only one side has leading zeros"
        )
    rows = {party: each["rows"] for party, each in facts.items()}
    if not all(rows.values()):
        return groups, facts, 0
    introduce(*groups)
    if mode == "spu":
        counts = _match_spu(groups[0], rows, tell)
    elif len(groups) == 1:
        counts = _match_pair(groups[0], rows, tell)
    else:
        counts = _match_star(groups[0], groups[1], rows, tell)
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{party!r} {count}" for party, count in counts.items())
        raise AlignmentError(
            f"the parties found different numbers of common ids ({told}). Mend: start the "
            "alignment anew; the same version of fedmend (and of spu) at all parties"
        )
    return groups, facts, next(iter(counts.values()))


def _private_groups(fed: Federation, mode: str, params: dict[str, Any]) -> Iterator[WorkerGroup]:
    """One group of two parties, or the hub's and all others'."""
    if mode == "spu" and len(fed.names) != 2:
        raise ConfigError(
            f"mode='spu' is for two parties, here are {len(fed.names)}. Mend: mode='ecdh'"
        )
    if len(fed.names) == 2:
        yield fed.workers(SpuWorker if mode == "spu" else PairWorker, **params)
        return
    # The party with the fewest rows: its ids are blinded once for every other party.
    rows = {party: facts["rows"] for party, facts in fed.roster.items()}
    hub = min(sorted(rows), key=rows.__getitem__)
    yield fed.workers(StarWorker, parties=[hub], **params)
    yield fed.workers(StarWorker, parties=[name for name in fed.names if name != hub], **params)


def _match_pair(workers: WorkerGroup, rows: Mapping[str, int], tell: Progress) -> dict[str, int]:
    """The two-party protocol over introduced `PairWorker`s; how many common ids each found."""
    one, other = rows
    across = {one: other, other: one}

    def swapped(messages: Mapping[str, Sealed]) -> Each:
        return Each({across[party]: sealed for party, sealed in messages.items()})

    total = max(rows.values())
    for start in range(0, total, IDS_AT_ONCE):
        blinded = workers.blinded(start, IDS_AT_ONCE, Each(across))
        tagged = workers.tagged(swapped(blinded), Each(across))
        workers.keep(swapped(tagged), Each(across))
        tell("blinding ids", min(start + IDS_AT_ONCE, total), total)
    return workers.settle(Each(across))


def _match_star(
    hub: WorkerGroup, others: WorkerGroup, rows: Mapping[str, int], tell: Progress
) -> dict[str, int]:
    """The protocol for three and more over introduced `StarWorker`s, one of them the hub."""
    (middle,), rest = hub, list(others)
    centre, total = hub[middle], rows[middle]
    for start in range(0, total, IDS_AT_ONCE):
        messages = centre.blinded(start, IDS_AT_ONCE, rest)
        centre.unblind(others.evaluated(Each(messages), middle))
        tell(f"blinding the ids of {middle}", min(start + IDS_AT_ONCE, total), total)
    largest = max(rows[party] for party in rest)
    for start in range(0, largest, IDS_AT_ONCE):
        others.digest_own(start, IDS_AT_ONCE)
        tell("preparing the other ids", min(start + IDS_AT_ONCE, largest), largest)
    found = centre.settle(others.shares(middle))
    return {middle: found, **others.recognise(Each(centre.invite(rest)), middle)}


def _match_spu(workers: WorkerGroup, rows: Mapping[str, int], tell: Progress) -> dict[str, int]:
    """RR22 over two introduced `SpuWorker`s."""
    addresses = workers.address()
    if len(set(addresses.values())) != len(addresses):
        raise ConfigError(
            f"the parties give the same address {next(iter(addresses.values()))!r}. Mend: on one "
            f"machine leave {ADDRESS_VARIABLE} unset, elsewhere give each party its own"
        )
    found = workers.intersect(addresses)
    tell("spu", max(rows.values()), max(rows.values()))
    return found


def _match_same_order(
    fed: Federation, params: dict[str, Any], tell: Progress, stack: ExitStack
) -> tuple[list[WorkerGroup], Facts, int]:
    workers = stack.enter_context(fed.workers(SameOrderWorker, **params))
    facts = _facts([workers])
    rows = {party: each["rows"] for party, each in facts.items()}
    if len(set(rows.values())) > 1:
        told = ", ".join(f"{party!r} has {count:,}" for party, count in rows.items())
        raise AlignmentError(
            f"mode='same-order' needs tables of equal length: {told} rows. "
            "Mend: align with mode='ecdh'"
        )
    first, *rest = fed.names
    # Salt and confirmations go between the first party and each other: what all found alike with
    # it they found alike, and keys of all pairs would be most of the work of a crowd.
    introduce(workers, hub=first)
    messages = workers[first].salt(rest)
    for party in rest:
        workers[party].take_salt(messages[party], first)
    digests = workers.digest()
    odd = [party for party in rest if not hmac.compare_digest(digests[party], digests[first])]
    if odd:
        hint = f" ({_types(facts)})" if _types_differ(facts) else ""
        raise AlignmentError(
            f"mode='same-order': the ids of {', '.join(map(repr, odd))} differ from those of "
            f"{first!r}, or stand in another order{hint}. "
            "Mend: align with mode='ecdh', or sort the tables by the same ids first"
        )
    tell("comparing digests", rows[first], rows[first])
    return [workers], facts, rows[first]


# ---------------------------------------------------------------------------- what all ways do


def _facts(groups: list[WorkerGroup]) -> Facts:
    return {party: facts for workers in groups for party, facts in workers.facts().items()}


def _types(facts: Facts) -> str:
    return ", ".join(f"{party!r} has {each['ids']}" for party, each in facts.items())


def _types_differ(facts: Facts) -> bool:
    return len({each["ids"] for each in facts.values()}) > 1


def _conclude(
    fed: Federation, groups: list[WorkerGroup], found: int, minimum: int
) -> AlignmentCounts:
    # Everybody is asked before anybody stores, so that a refusal leaves all sites as they were.
    for workers in groups:
        workers.admit()
    if found < minimum:
        which = "" if fed.scope == "train" else f" of the tables {fed.scope!r}"
        warnings.warn(
            f"only {found} rows{which} are common to {', '.join(fed.names)}: correlations, means "
            f"and models over so few rows can reveal single values. Mend: find more common rows "
            f"(minimum={minimum}), or let the parties refuse by min_intersection in their policies",
            PrivacyWarning,
            stacklevel=3,
        )
    sent = {party: messages for workers in groups for party, messages in workers.confirm().items()}
    for workers in groups:
        workers.agree(
            Each(
                {
                    to: {of: messages[to] for of, messages in sent.items() if to in messages}
                    for to in workers
                }
            )
        )
    stored = {party: counts for workers in groups for party, counts in workers.store().items()}
    return AlignmentCounts(found, {party: stored[party]["unaligned"] for party in fed.names})


def _nothing_common(groups: list[WorkerGroup], facts: Facts, rule: str) -> AlignmentError:
    empty = [party for party, each in facts.items() if not each["rows"]]
    if empty:
        return AlignmentError(
            f"the table of {', '.join(map(repr, empty))} has no rows, so there is nothing in "
            "common. Mend: check what was read there"
        )
    told = "; ".join(
        f"{party!r} has {facts[party]['rows']:,} ids: {style}"
        for party, style in _styles(groups, facts).items()
    )
    mend = "check that the same id column was named everywhere, and that the parties share people"
    if rule == "exact":
        mend = "try normalise='text' if case, spaces or unicode form differ; " + mend
    elif rule == "text":
        mend = f"try normalise='number' if leading zeros differ; {mend}; punctuation counts"
    else:
        mend += "; punctuation counts under every rule"
    return AlignmentError(f"the parties have no id in common ({told}). Mend: {mend}")


def _styles(groups: list[WorkerGroup], facts: Facts) -> dict[str, str]:
    styles = {}
    for workers in groups:
        for party in workers:
            try:
                styles[party] = workers[party].style()
            except Refused:  # a party that keeps statistics in has still said its ids' type
                styles[party] = facts[party]["ids"]
    return styles
