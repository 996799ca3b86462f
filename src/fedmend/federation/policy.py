"""What a party lets out and takes in. The party's own file decides, nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedmend._parameters import Rule, Rules, wrong_values
from fedmend._suggest import closest
from fedmend.errors import AlignmentError, ConfigError, Refused
from fedmend.federation.kinds import KINDS, REFUSED_BY_DEFAULT
from fedmend.federation.randomness import COSTS
from fedmend.federation.wire import Sealed, is_tensor

MACHINES_PREDICTIONS = 5
"""Different predictions of a row that leave in a session between machines, where no policy says
more: a table of predictions has one, and one more for every party left out to see its share."""
MIN_ROWS = 10
LARGEST_WEIGHT = 1e4
"""Networks on standardised columns end up far below; a weight of this size makes a step function
of a column, which picks out rows."""


def _whole(least: int) -> Rule:
    return f"a whole number from {least} on", lambda value: type(value) is int and value >= least


_RULES: Rules = {
    "predictions": (_whole(0)[0], lambda value: value is None or _whole(0)[1](value)),
    "foreign_predictions": _whole(0),
    "min_intersection": _whole(1),
    "min_rows": _whole(1),
    "label_epsilon": (
        "a positive number or inf",
        lambda value: isinstance(value, (int, float)) and value > 0,  # a NaN is not
    ),
}


@dataclass(frozen=True)
class Policy:
    """A party's rules.

    allow: the kinds that may leave; by default all but `label` and `row`.
    refuse: kinds taken away from `allow`.
    sealed: kinds that leave only end-to-end encrypted: the coordinator passes them on unread.
    workers: names of the workers that may be started here; None admits every installed one.
    min_intersection: fewest common ids with which this party takes part in anything.
    reproducible: whether its random choices may follow from a run's seed, which others know.
    label_epsilon: ceiling for the sum of all label_dp with which one label was ever drawn, over all
    runs; `inf` for none. label_dp_only: labels are known through label_dp or not at all: True from
    the start, None from the first time that a run asks for it on (and in all later ones), False in
    the runs that ask for it only. true_test_labels: under label_dp, scores of rows of which no
    label was ever drawn (a test table) may rest on labels as they are.
    methods: the methods it takes part in (`federation.bound`); None is every published one.
    takes: the kinds that may come in; by default all but `label` and `row`.
    predictions: how many different predictions of one row may leave in a session, by models that
    were trained here; None counts none (between machines it is then `MACHINES_PREDICTIONS`).
    foreign_predictions: the same by models whose weights were sent in. Whoever chooses weights
    chooses what a prediction says of a row, so that by default none leaves.
    min_rows: fewest rows that an answer may rest on, by itself or together with earlier ones.
    label_sums: whether the label's own column may take part in sums and products of columns.
    """

    allow: frozenset[str] = frozenset(KINDS) - REFUSED_BY_DEFAULT
    refuse: frozenset[str] = frozenset()
    sealed: frozenset[str] = frozenset()
    workers: frozenset[str] | None = None
    min_intersection: int = 2
    reproducible: bool = False
    label_epsilon: float = 8.0
    label_dp_only: bool | None = None
    true_test_labels: bool = False
    methods: frozenset[str] | None = None
    takes: frozenset[str] = frozenset(KINDS) - REFUSED_BY_DEFAULT
    predictions: int | None = None
    foreign_predictions: int = 0
    min_rows: int = field(default_factory=lambda: MIN_ROWS)
    label_sums: bool = False

    def __post_init__(self) -> None:
        for name in ("allow", "refuse", "sealed", "takes", "workers", "methods"):
            names = getattr(self, name)
            if names is not None:
                names = (names,) if isinstance(names, str) else names
                object.__setattr__(self, name, frozenset(names))
        problems = [f"policy.{each}" for each in wrong_values(self, _RULES)]
        problems += [
            unknown_kind(kind, f"policy.{name}")
            for name in ("allow", "refuse", "sealed", "takes")
            for kind in getattr(self, name)
            if kind not in KINDS
        ]
        if problems:
            raise ConfigError(sorted(problems))

    @cached_property
    def may_leave(self) -> frozenset[str]:
        return self.allow - self.refuse

    def admit_worker(self, party: str, worker: str) -> None:
        if self.workers is not None and worker not in self.workers:
            raise Refused(
                party,
                f"the worker {worker} is not on its list",
                f"add {worker!r} to workers in the policy of {party!r}, or use another method",
            )

    def admit_reproducible(self, party: str) -> None:
        if not self.reproducible:
            raise Refused(
                party,
                f"its random choices are to follow from the run's seed: {COSTS}",
                f"reproducible = false for the run, or true in the policy of {party!r}",
            )

    def admit_kind(self, party: str, call: str, kind: str) -> None:
        if kind not in self.may_leave:
            raise Refused(
                party,
                f"{call} would let a value of kind {kind!r} out ({KINDS[kind].words})",
                f"allow {kind!r} in the policy of {party!r}, or use a method that needs it not",
            )

    def admit_taken(self, party: str, call: str, kind: str, value: Any) -> None:
        """Refuse what may not come in, or what comes in the open though its kind is sealed."""
        if kind not in self.takes and kind != "control":
            raise Refused(
                party,
                f"{call} would take a value of kind {kind!r} in ({KINDS[kind].words})",
                f"add {kind!r} to takes in the policy of {party!r}, or use another method",
            )
        if kind in self.sealed and in_the_open(value):
            raise Refused(
                party,
                f"{call} was given a value of kind {kind!r} ({KINDS[kind].words}) that is not "
                "sealed",
                f"seal = true of the method; or take {kind!r} out of sealed in the policy of "
                f"{party!r}",
            )

    def admit_aligned(self, party: str, rows: int) -> None:
        """Refuse to take part with fewer common rows than `min_intersection`."""
        if rows < self.min_intersection:
            raise AlignmentError(
                f"party {party!r} takes part from {self.min_intersection} aligned rows on, here "
                f"are {rows}. Mend: more common rows, or a smaller min_intersection in its policy"
            )

    def admit_label_sums(self, party: str) -> None:
        """Refuse the label's own column in sums and products of columns."""
        if not self.label_sums:
            raise Refused(
                party,
                "its label column takes no part in sums and products of columns",
                f"name other columns, or label_sums = true in the policy of {party!r}",
            )

    def admit_value(self, party: str, call: str, kind: str, value: Any) -> None:
        """Refuse what would leave in the open though its kind is to be sealed."""
        if kind in self.sealed and in_the_open(value):
            raise Refused(
                party,
                f"{call} would let a value of kind {kind!r} out ({KINDS[kind].words}) that is not "
                "sealed",
                "seal = true of a method whose top is at a party; or take "
                f"{kind!r} out of sealed in the policy of {party!r}",
            )


def in_the_open(value: Any) -> bool:
    """Whether anything in a value is readable for whoever carries it."""
    if isinstance(value, dict):
        return any(in_the_open(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(in_the_open(each) for each in value)
    return value is not None and not isinstance(value, Sealed)


def unknown_kind(kind: str, where: str) -> str:
    near = closest(str(kind), KINDS)
    hint = f" Did you mean {near!r}?" if near else ""
    return f"{where}: unknown kind {kind!r}.{hint} Mend: use one of {', '.join(KINDS)}"


# ---------------------------------------------------------------- weights that are sent in


def admit_weights(party: str, call: str, value: Any) -> None:
    """Refuse weights that are not finite or too large, wherever they stand in `value`."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            admit_weights(party, call, each)
        return
    if is_tensor(value) and value.is_floating_point() and value.numel():
        largest = float(value.detach().abs().max())
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
        largest = float(np.abs(value).max())
    else:
        return
    if not largest <= LARGEST_WEIGHT:  # a NaN is not below anything
        raise Refused(
            party,
            f"{call} was given weights up to {largest:g}; they must be numbers of at most "
            f"{LARGEST_WEIGHT:g}",
            "a smaller lr, where the training has diverged",
        )


# ---------------------------------------------------------------- predictions that leave


class Predicted:
    """The account of predictions that left a party in a session: per row how many different ones.

    Predictions under enough models tell a row's columns: at once where the weights were chosen for
    it, up to a mixture of them where they were not. The same prediction again tells nothing new,
    and is free.
    """

    def __init__(self) -> None:
        self._left: dict[bool, dict[Any, set[bytes]]] = {True: {}, False: {}}

    def admit(
        self,
        party: str,
        policy: Policy,
        ids: Sequence[Any] | np.ndarray,
        outputs: np.ndarray,
        *,
        foreign: bool,
    ) -> None:
        """Let the outputs [n, …] of the rows `ids` leave and count them, or refuse all of them.

        foreign: under a model whose weights were sent in.
        """
        most = policy.foreign_predictions if foreign else policy.predictions
        if most is None:
            return
        left = self._left[foreign]
        new = []
        for row, values in zip(ids, np.ascontiguousarray(outputs), strict=True):
            seen, output = left.get(row, set()), values.tobytes()
            if output in seen:
                continue
            if len(seen) >= most:
                raise Refused(party, *_too_many_predictions(party, most, foreign=foreign))
            new.append((row, output))
        for row, output in new:
            left.setdefault(row, set()).add(output)


def _too_many_predictions(party: str, most: int, *, foreign: bool) -> tuple[str, str]:
    """What is refused, and what to do about it."""
    field = "foreign_predictions" if foreign else "predictions"
    if foreign and not most:
        return (
            "predictions of its rows under a model that was sent in do not leave it",
            "predict at the party ('fedmend party predict', 'fedmend predict --engine flare'), "
            f"or predict a table of your own; {field} = 1 in the policy of {party!r}, if it agrees",
        )
    whose = "models that were sent in" if foreign else "models trained here"
    return (
        f"a row's predictions under {most} {whose} have left in this run, and no more may",
        f"a larger {field} in the policy of {party!r}, if it agrees",
    )
