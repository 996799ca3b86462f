"""Secure sums: the coordinator learns the sum of K parties' arrays and none of the arrays.

    crew = fed.workers(SumWorker, parties=["a", "b", "c"])
    with SumSession(crew, mode="masks") as session:
        votes = session.sum("votes", between=(0, 1))                       # one-hot, int64
        rows = session.sum("loglik", between=(-30, 0), fraction_bits=16)   # fixed point, float64

    secure_sum(fed, ["age", "income"], per="total", mode="he").values

Modes: `masks` (pairwise masks, Bonawitz et al. 2017; far the cheapest), `he` (BFV; a party
holds the key, the coordinator blinds what it lets decrypt; the InC paper's setting with the key in
the right place), `none` (simulation: everything in the clear, refused by default policies). All
three give the same numbers bit for bit. The roles follow the protocol and look at what they see.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedmend.errors import (
    ConfigError,
    CryptoError,
    DataError,
    FedmendWarning,
    PartyAbsent,
    PartyFailed,
    PrivacyWarning,
)
from fedmend.federation import Each
from fedmend.federation.bound import declare
from fedmend.secure.sums_masks import check_total, ring_of, total_of
from fedmend.secure.sums_numbers import SumForm
from fedmend.secure.sums_worker import LEAST_PARTIES, ColumnSumWorker, SumWorker, offer_summand

if TYPE_CHECKING:
    from fedmend.federation import Crew, Federation

__all__ = ["Sum", "SumSession", "SumWorker", "offer_summand", "secure_sum"]

Mode = Literal["masks", "he", "none"]
MODES: tuple[str, ...] = ("masks", "he", "none")
# Rounds are numbered once per process, so that two sessions over one crew do not collide.
_ROUNDS = itertools.count(1)
# What comes of a party that is gone (connections and time-outs are OSErrors); everything else is
# the party's own answer.
_ABSENCE = (PartyAbsent, PartyFailed, OSError)


@dataclass(frozen=True)
class Sum:
    """A sum over parties.

    values: int64, or float64 in fixed point. parties: whose arrays are in it. absent: who dropped
    out. error_bound: how far an entry may be from the exact sum (0 for integers).
    """

    values: np.ndarray
    parties: tuple[str, ...]
    absent: tuple[str, ...]
    error_bound: float


class SumSession:
    """Sums over the same parties, as often as needed; keys change hands once, masks never repeat.

    Used in a `with` statement it stops the crew at its end.

    crew: workers that are `SumWorker`s. parties: those whose arrays are summed; by default all.
    key_holder: for ``mode="he"``, who holds the key; by default the first party. It may be one of
    the crew that is not summed.
    on_absent: when a party drops out, "stop" with an error that names it, or "continue" with the
    rest as long as two are left.
    """

    def __init__(
        self,
        crew: Crew,
        *,
        mode: Mode = "masks",
        parties: Sequence[str] | None = None,
        key_holder: str | None = None,
        on_absent: Literal["stop", "continue"] = "stop",
    ) -> None:
        self.crew = crew
        self.mode = mode
        self.parties = tuple(crew if parties is None else parties)
        self.key_holder = key_holder or (self.parties[0] if self.parties else "")
        self.on_absent = on_absent
        self.absent: tuple[str, ...] = ()
        self._gone: dict[str, Exception] = {}
        self._ready = False
        self._public_key: Any = None
        self._check_arguments()
        if mode == "none":
            warnings.warn(
                "mode='none' sends every party's array to the coordinator in the clear: "
                "for simulation only",
                PrivacyWarning,
                stacklevel=2,
            )

    def sum(
        self,
        name: str,
        *,
        between: tuple[float, float] | None = None,
        fraction_bits: int | None = None,
    ) -> Sum:
        """The sum of the arrays offered as `name`.

        between: the range no party's value leaves, in the values' own unit; the narrower, the
        fewer bytes. By default all that fits into 64 bits. A value outside is refused at its
        party. fraction_bits: None for integers; otherwise values are rounded to 2^-fraction_bits.
        """
        form = SumForm.of(between, fraction_bits=fraction_bits, parties=len(self.parties))
        self._set_up(name)
        return {"masks": self._by_masks, "he": self._by_he, "none": self._in_clear}[self.mode](
            name, form
        )

    def __enter__(self) -> SumSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.crew.stop()

    # ------------------------------------------------------------------ the three protocols

    def _by_masks(self, name: str, form: SumForm) -> Sum:
        # Own masks keep a late message from completing the sum of a round that was given up.
        own_mask = self.on_absent == "continue"
        while True:
            agreed = self._prepare(name, form)
            masked = self._ask(agreed.parties, "masked", agreed.number, own_mask)
            if len(masked) == len(agreed.parties):
                break
            self._go_on(name)
        seeds = self._open_masks(name, agreed) if own_mask else {}
        return self._result(total_of(masked, agreed.dtype, agreed.size, seeds), agreed, masked)

    def _open_masks(self, name: str, agreed: _Agreed) -> dict[str, bytes]:
        seeds = self._ask(agreed.parties, "open_own_mask", agreed.number, list(agreed.parties))
        if len(seeds) < len(agreed.parties):
            # The others have opened their masks: a sum without the absent party could be compared
            # with the sum of all, should its seed arrive late.
            raise self._lost(
                name, "It left after the masks were opened. Mend: bring it back, then sum anew"
            )
        return seeds

    def _by_he(self, name: str, form: SumForm) -> Sum:
        from fedmend.secure.sums_he import Packing, add_blinded, unblind

        while True:
            agreed = self._prepare(name, form)
            received = self._ask(agreed.parties, "encrypted", agreed.number)
            if len(received) == len(agreed.parties):
                break
            self._go_on(name)
        packing = Packing.of(form, len(agreed.parties))
        blinded, masks = add_blinded(self._public_key, received, packing.ciphertexts(agreed.size))
        answer = self._ask((self.key_holder,), "decrypt_blinded", agreed.number, blinded)
        if not answer:
            raise self._lost(name, "It holds the key. Mend: bring it back, or name another holder")
        packed = unblind(answer[self.key_holder], masks, self.key_holder)
        return self._result(packing.unpack(packed, agreed.size), agreed, received)

    def _in_clear(self, name: str, form: SumForm) -> Sum:
        agreed = self._prepare(name, form)
        arrays = self._ask(agreed.parties, f"{agreed.kind}s_in_clear", agreed.number)
        if len(arrays) < len(agreed.parties):
            self._go_on(name)
        return self._result(total_of(arrays, agreed.dtype, agreed.size, {}), agreed, arrays)

    # ------------------------------------------------------------------ steps

    def _set_up(self, name: str) -> None:
        """Once: public keys change hands; with encryption, the key holder's goes to everyone."""
        if self._ready:
            return
        if self.mode != "none":
            everyone = tuple(dict.fromkeys((*self.parties, *self._holders)))
            keys = self._ask(everyone, "public_key")
            if len(keys) < len(everyone):
                self._go_on(name)
            self._ask_all(name, "meet", keys)
            for holder in self._holders:
                if holder not in self.parties:
                    self.crew[holder].meet(keys)
        if self.mode == "he":
            self._pass_on_key(name)
        self._ready = True

    def _pass_on_key(self, name: str) -> None:
        from fedmend.secure.sums_he import context

        holder = self.crew[self.key_holder]
        self._public_key = context().load_public_key(holder.sum_key())
        boxes = {
            party: None if party == self.key_holder else holder.sum_key_for(party)
            for party in self.parties
        }
        self._ask_all(name, "take_sum_key", self.key_holder, Each(boxes))

    @property
    def _holders(self) -> tuple[str, ...]:
        return (self.key_holder,) if self.mode == "he" else ()

    def _prepare(self, name: str, form: SumForm) -> _Agreed:
        """Agree on a round with all who are there; every array is checked before one leaves."""
        while True:
            number, parties = next(_ROUNDS), self.parties
            answers = self._ask(
                parties, "prepare_round", number, name, form.to_wire(), list(parties)
            )
            if len(answers) == len(parties):
                break
            self._go_on(name)
        shapes = {party: tuple(answer["shape"]) for party, answer in answers.items()}
        if len(set(shapes.values())) > 1:
            raise DataError(
                f"the summands {name!r} differ in shape: "
                + ", ".join(f"{party} {shape}" for party, shape in shapes.items()),
                mend="offer arrays of one shape at all parties (align the rows first)",
            )
        labels = any(answer["kind"] == "label" for answer in answers.values())
        return _Agreed(number, form, parties, shapes[parties[0]], "label" if labels else "row")

    def _ask_all(self, name: str, method: str, *args: Any) -> None:
        """Call all who are summed and are still there."""
        answers = self._ask(self.parties, method, *args)
        if len(answers) < len(self.parties):
            self._go_on(name)

    def _ask(self, parties: Sequence[str], method: str, *args: Any) -> dict[str, Any]:
        """Call all parties at once. Who is gone is noted and left out; other errors are raised."""

        def call(party: str) -> Any:
            own = tuple(arg.values[party] if isinstance(arg, Each) else arg for arg in args)
            try:
                return getattr(self.crew[party], method)(*own)
            except Exception as error:  # sorted below, after all have ended
                return _Failure(error)

        with ThreadPoolExecutor(len(parties), "fedmend-sum") as pool:
            answers = dict(zip(parties, pool.map(call, parties), strict=True))
        failures = {
            party: answer.error for party, answer in answers.items() if isinstance(answer, _Failure)
        }
        for error in failures.values():
            if not isinstance(error, _ABSENCE):
                raise error
        self._gone = failures
        return {party: value for party, value in answers.items() if party not in failures}

    def _go_on(self, name: str) -> None:
        """After a drop-out: stop, or leave the absent parties out from now on."""
        if self.on_absent == "stop":
            raise self._lost(
                name, "Mend: bring it back, or allow on_absent='continue' to sum the rest"
            )
        for holder in self._holders:
            if holder in self._gone:
                self._gone = {holder: self._gone[holder]}
                raise self._lost(
                    name, "It holds the key. Mend: bring it back, or name another holder"
                )
        rest = tuple(party for party in self.parties if party not in self._gone)
        lost = ", ".join(repr(party) for party in self._gone)
        if len(rest) < LEAST_PARTIES:
            raise CryptoError(
                f"the sum {name!r} cannot go on without {lost}: {', '.join(rest) or 'nobody'} is "
                "left, and the sum of one party is its own array. Mend: bring the parties back"
            ) from next(iter(self._gone.values()))
        warnings.warn(
            f"the sum {name!r} goes on without {lost}: {next(iter(self._gone.values()))}",
            FedmendWarning,
            stacklevel=4,
        )
        self.parties = rest
        self.absent += tuple(self._gone)

    def _lost(self, name: str, what: str) -> PartyFailed | PartyAbsent:
        party, cause = next(iter(self._gone.items()))
        error: PartyFailed | PartyAbsent
        if isinstance(cause, PartyAbsent):  # by which a run knows that it may wait and resume
            error = cause
            error.add_note(f"in the secure sum of {name!r}. {what}")
        else:
            error = PartyFailed(party, f"the secure sum of {name!r}", cause)
            error.args = (f"{error}. {what}",)
            error.__cause__ = cause
        for other in list(self._gone)[1:]:
            error.add_note(f"also absent: {other}")
        return error

    def _result(self, total: np.ndarray, agreed: _Agreed, summed: Mapping[str, Any]) -> Sum:
        form, parties = agreed.form, tuple(summed)
        check_total(total, form, len(parties))
        values = form.decode(total, agreed.shape, len(parties))
        return Sum(values, parties, self.absent, form.error_bound(len(parties)))

    def _check_arguments(self) -> None:
        problems = []
        if self.mode not in MODES:
            problems.append(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.on_absent not in ("stop", "continue"):
            problems.append(f"on_absent must be 'stop' or 'continue', got {self.on_absent!r}")
        if len(set(self.parties)) < max(LEAST_PARTIES, len(self.parties)):
            problems.append(
                f"a sum needs at least {LEAST_PARTIES} different parties, got "
                f"{list(self.parties)}; the sum of one is its own array"
            )
        for party in (*self.parties, self.key_holder):
            if party and party not in self.crew:
                problems.append(f"no worker runs at {party!r}; they run at {', '.join(self.crew)}")
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True)
class _Agreed:
    """A round as all its parties know it."""

    number: int
    form: SumForm
    parties: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return ring_of(self.form, len(self.parties))


@dataclass(frozen=True)
class _Failure:
    error: Exception


# ---------------------------------------------------------------------------------- columns


def secure_sum(
    fed: Federation,
    columns: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    *,
    parties: Sequence[str] | None = None,
    per: Literal["row", "total"] = "total",
    mode: Mode = "masks",
    between: tuple[float, float] | None = None,
    fraction_bits: int | None = None,
    key_holder: str | None = None,
    on_absent: Literal["stop", "continue"] = "stop",
) -> Sum:
    """The sum over parties of named numeric columns.

    columns: one name, several, or the names at each party; first is added to first, and so on.
    per: "row" adds row by row over the aligned rows, giving [rows, columns] (align first);
    "total" adds each party's totals over all its rows, giving [columns].

    >>> secure_sum(fed, "balance", per="total", fraction_bits=8).values  # doctest: +SKIP
    array([90210.25])
    """
    if per not in ("row", "total"):
        raise ConfigError(f"per must be 'row' or 'total', got {per!r}")
    if isinstance(columns, Mapping):
        members = list(columns if parties is None else parties)
        named = {party: _names(columns.get(party, ())) for party in members}
    else:
        members = list(fed.names if parties is None else parties)
        named = {party: _names(columns) for party in members}
    if len({len(names) for names in named.values()}) > 1 or not all(named.values()):
        raise ConfigError(
            "every party needs as many columns as the others, got "
            + ", ".join(f"{party} {names}" for party, names in named.items())
        )
    everyone = list(dict.fromkeys([*members, *([key_holder] if key_holder else [])]))
    own = Each({party: named.get(party, []) for party in everyone})
    crew = fed.workers(ColumnSumWorker, parties=everyone, columns=own, per=per)
    with SumSession(
        crew, mode=mode, parties=members, key_holder=key_holder, on_absent=on_absent
    ) as session:
        title = " + ".join(dict.fromkeys(itertools.chain(*named.values())))
        return session.sum(title, between=between, fraction_bits=fraction_bits)


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


declare("sums", ColumnSumWorker, named_only=True)
