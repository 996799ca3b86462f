"""A party's rows as tensors, laid out in the order that all parties of a training agree on.

Training and prediction number their rows 0..N-1, in *segments*: the aligned rows first, then
rows that only one party has. A party that lacks a segment's rows has its fill row for them
(zeros: the mean of every standardised column, and "missing" for every nominal one).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmend.data.encode import Encoded
from fedmend.errors import ConfigError
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.randomness import begin
from fedmend.federation.site import Alignment, Site
from fedmend.learn.augment import Weak, apply_weak, draw_weak
from fedmend.learn.nets import Batch

PAD = 4
ALIGNED = "aligned"
ALL = "all"


Segments = Sequence[Sequence[object]]
"""Pairs of a name and a count of rows: "aligned", "all" (of the only party), or a party's own.

"aligned@bank+telco" are rows that these parties know and others do not.
"""


def among(parties: Sequence[str]) -> str:
    """The segment of aligned rows that only these parties know.

    >>> among(["bank", "telco"])
    'aligned@bank+telco'
    """
    return f"{ALIGNED}@{'+'.join(parties)}"


def is_known(segment: object, party: str) -> bool:
    """Whether a party knows the rows of a segment."""
    name, _, some = str(segment).partition("@")
    if name == ALIGNED:
        return not some or party in some.split("+")
    return segment in (ALL, party)


def kind_of(segment: object, owner: str) -> str:
    """What rows of a segment are to a model: known to all or to one party.

    owner: whose all rows are, where nobody else takes part.

    >>> kind_of("aligned", "bank"), kind_of("all", "bank"), kind_of("aligned@telco", "bank")
    ('aligned', 'bank', 'telco')
    """
    name, _, some = str(segment).partition("@")
    if name == ALIGNED:
        return some if some and "+" not in some else ALIGNED
    return owner if name == ALL else name


def check_names(parties: Iterable[str], taken: Sequence[str] = (ALIGNED, ALL)) -> None:
    """Refuse parties whose names say which rows are meant (or `taken` by something else)."""
    wrong = [name for name in parties if name in taken]
    if wrong:
        raise ConfigError(
            f"party {wrong[0]!r} is named by a word that training uses for something else "
            f"({', '.join(taken)}). Mend: rename the party"
        )


def spans(segments: Segments) -> list[tuple[str, int, int]]:
    """Every segment's name, its first row number, and the one after its last.

    >>> spans([["aligned", 10], ["bank", 5]])
    [('aligned', 0, 10), ('bank', 10, 15)]
    """
    ends = np.cumsum([0, *(int(str(count)) for _, count in segments)]).tolist()
    return [(str(name), *ends[i : i + 2]) for i, (name, _) in enumerate(segments)]


def rows_of(segments: Segments, names: Sequence[str | None], rows: np.ndarray) -> np.ndarray:
    """Those of the row numbers that belong to segments of these names, segment by segment."""
    inside = [(at, end) for name, at, end in spans(segments) if name in names]
    found = [rows[(rows >= at) & (rows < end)] for at, end in inside]
    return np.concatenate([np.zeros(0, np.int64), *found])


def own_rows(
    party: str, segments: Segments, alignment: Alignment | None, n_rows: int
) -> np.ndarray:
    """For every numbered row the party's own table position, or -1 where it has none."""
    pieces = []
    for name, count in segments:
        if name == ALL:
            pieces.append(np.arange(n_rows))
        elif alignment is None or not is_known(name, party):
            pieces.append(np.full(int(str(count)), -1))
        else:
            pieces.append(alignment.unaligned if name == party else alignment.aligned)
    return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)


def presence(party: str, segments: Segments) -> np.ndarray:
    """Which numbered rows a party has, as anybody can tell from the segments."""
    pieces = [np.full(int(str(count)), is_known(name, party)) for name, count in segments]
    return np.concatenate([np.zeros(0, bool), *pieces])


# ---------------------------------------------------------------------------------- folds

_FOLDS = "learn.folds"


def note_folds(site: Site, ids: np.ndarray, numbers: np.ndarray) -> None:
    """At the party: to which fold of a cross-validation each id belongs."""
    site.state[_FOLDS] = dict(zip(ids.tolist(), numbers.tolist(), strict=True))


def folds_of(site: Site, ids: np.ndarray) -> np.ndarray:
    """At the party: the fold of each id, -1 where none was noted. **Shape** [n]."""
    known = site.state.get(_FOLDS, {})
    return np.array([known.get(each, -1) for each in ids.tolist()], np.int64)


class Features:
    """Encoded rows on a device, batched by row number.

    Only the rows that take part are kept, plus one fill row at the end.
    """

    def __init__(
        self, encoded: Encoded, rows: np.ndarray, device: torch.device, dtype: torch.dtype
    ) -> None:
        present = rows >= 0
        kept = rows[present]
        # All rows go to the device and are put in order there: copying images costs a CPU seconds.
        in_order = np.array_equal(kept, np.arange(len(encoded)))
        order = None if in_order else torch.from_numpy(kept).to(device)

        def taken(values: np.ndarray, dtype: torch.dtype) -> Tensor:
            there = torch.from_numpy(values).to(device)
            found = there.new_zeros((len(kept) + 1, *values.shape[1:]), dtype=dtype)
            found[:-1] = there if order is None else there.index_select(0, order)
            return found

        self.n_rows = len(rows)
        self.numeric = taken(encoded.numeric, dtype)
        self.codes = taken(encoded.codes, torch.int64)
        self.blocks = tuple(taken(block, dtype) for block in encoded.blocks.values())
        self._slot: Tensor | None = None
        self._present: Tensor | None = None
        if not present.all():
            slot = np.full(len(rows), len(kept))
            slot[present] = np.arange(len(kept))
            self._slot = torch.from_numpy(slot).to(device)
            self._present = torch.from_numpy(present).to(device)

    def known(self, numbers: Tensor) -> Tensor:
        """Those of the row numbers that the party has."""
        return numbers if self._present is None else numbers[self._present[numbers]]

    def batch(self, numbers: Tensor, draws: Weak | None = None) -> Batch:
        """The rows of these numbers; `draws` say how each row's images are flipped and shifted."""
        slots = numbers if self._slot is None else self._slot.index_select(0, numbers)
        blocks = tuple(block.index_select(0, slots) for block in self.blocks)
        if draws is not None:
            blocks = tuple(augmented(block, draws) for block in blocks)
        return Batch(
            self.numeric.index_select(0, slots),
            self.codes.index_select(0, slots) if self.codes.shape[1] else self.codes,
            blocks,
        )


def augmented(block: Tensor, draws: Weak) -> Tensor:
    """Images flipped and shifted; blocks of other shapes as they are."""
    if block.dim() != 4:
        return block
    smallest = min(block.shape[2:])
    if smallest <= PAD:
        draws = Weak(draws.flip, draws.shift.clamp(1 - smallest, smallest - 1))
    return apply_weak(block, draws)


class BatchOrder:
    """The order in which all models walk through the training rows, from one seed per epoch.

    least: an epoch has so many steps at least; where there are few rows it is several passes.
    shuffled: this epoch's row numbers, on the CPU.
    draws: how the images of the last batch handed out are augmented, alike at all parties.
    """

    def __init__(
        self,
        rows: np.ndarray,
        batch_size: int,
        device: torch.device,
        *,
        augment: bool = False,
        least: int = 1,
    ) -> None:
        self.rows = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        once = batch_sizes(len(rows), batch_size)
        if len(once) > 1 and once[-1] < MIN_ROWS <= batch_size:
            once[-2:] = [once[-2] + once[-1]]  # weights after a rest of few rows would tell of them
        self.passes = -(-least // max(1, len(once)))
        self.sizes = once * self.passes
        self.device = device
        self.augment = augment
        self.draws: Weak | None = None
        self._draws: Weak | None = None
        self.shuffled = self._order = self.rows
        self._mark: str | None = None
        self._at = self._told_until = 0
        self._number = 0

    def start(self, seed: int) -> None:
        generator = begin(torch.Generator(), seed)
        self.shuffled = self._shuffled(generator)
        self._order = self.shuffled.to(self.device)
        self._mark = None
        if self.augment:
            self._draws = draw_weak(len(self._order), generator, PAD).to(self.device)
        self._at = self._told_until = 0
        self._number = 0

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        turns = [torch.randperm(len(self.rows), generator=generator) for _ in range(self.passes)]
        return self.rows.index_select(0, torch.cat(turns))

    def next(self) -> Tensor:
        size = self.sizes[self._number]
        numbers = self._order[self._at : self._at + size]
        if self._draws is not None:
            self.draws = self._draws[self._at : self._at + size]
        self._at += size
        self._number += 1
        return numbers

    def handed(self) -> np.ndarray:
        """The row numbers of the batch that was handed out last; none before the first."""
        size = self.sizes[self._number - 1] if self._number else 0
        return self.shuffled[self._at - size : self._at].numpy()

    def batch(self, ahead: int = 0) -> str:
        """Which batch was handed out last, or will be; the same words at all who walk alike."""
        if self._mark is None:
            self._mark = digest_of(self.shuffled.numpy())
        return f"{self._mark} {self._number + ahead}"

    @property
    def done(self) -> float:
        """The share of this epoch's batches that were handed out."""
        return self._number / len(self.sizes)

    def walked(self) -> np.ndarray:
        """The row numbers handed out in this epoch since they were last told of.

        Of a whole epoch each row once: how often chance deals which of them says nothing.
        """
        if self._at - self._told_until == len(self.shuffled):
            return self.rows.numpy()
        return self.shuffled[self._told_until : self._at].numpy()

    def times(self, rows: int) -> np.ndarray:
        """How often each of so many rows was handed out in this epoch since it was told of."""
        numbers = self.shuffled[self._told_until : self._at].numpy()
        return np.bincount(numbers, minlength=rows)

    def told(self) -> None:
        """A loss over what was walked has been told."""
        self._told_until = self._at


def digest_of(rows: np.ndarray) -> str:
    """Row numbers in their order, in a word."""
    numbers = np.ascontiguousarray(rows, dtype=np.int64)
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()


class MixedOrder(BatchOrder):
    """Batches that take a fixed number of rows out of each group; small groups come round again."""

    def __init__(
        self,
        groups: Sequence[np.ndarray],
        counts: Sequence[int],
        batches: int,
        device: torch.device,
        *,
        augment: bool = False,
    ) -> None:
        used = [(g, c) for g, c in zip(groups, counts, strict=True) if c and len(g)]
        rows = np.concatenate([group for group, _ in used])
        self.counts = [c if len(g) else 0 for g, c in zip(groups, counts, strict=True)]
        super().__init__(rows, sum(self.counts), device, augment=augment)
        self._groups = [(torch.from_numpy(np.ascontiguousarray(g)), c) for g, c in used]
        self.sizes = [sum(self.counts)] * batches

    def _shuffled(self, generator: torch.Generator) -> Tensor:
        columns = []
        for group, count in self._groups:
            needed = count * len(self.sizes)
            rounds = -(-needed // len(group))
            turns = [torch.randperm(len(group), generator=generator) for _ in range(rounds)]
            columns.append(group[torch.cat(turns)[:needed]].view(len(self.sizes), count))
        return torch.cat(columns, 1).flatten()

    def places(self, mine: Sequence[bool]) -> Tensor:
        """Where in every batch the rows of these groups stand."""
        group = np.repeat(np.arange(len(self.counts)), self.counts)
        return torch.from_numpy(np.flatnonzero(np.asarray(mine)[group])).to(self.device)


def batch_sizes(n_rows: int, batch_size: int) -> list[int]:
    """Whole batches and the rest; a rest of a single row joins the batch before it.

    >>> batch_sizes(10, 4), batch_sizes(9, 4)
    ([4, 4, 2], [4, 5])
    """
    whole, rest = divmod(n_rows, batch_size)
    sizes = [batch_size] * whole
    if rest == 1 and sizes:
        sizes[-1] += 1  # batch norm cannot normalise one row
    elif rest:
        sizes.append(rest)
    return sizes
