"""An oblivious key–value store: a table of random-looking words from which keys give their values.

Each key has three cells, one in each third of the table, and its value is the exclusive or of
them. A key of the set gives the value put there; any other key gives noise; and as long as the
values are uniform, so is the table, which then says nothing about the keys but how many there
are. Filling goes by peeling (Garimella et al., "Oblivious Key-Value Stores and Amplification for
Private Set Intersection", 2021): cells with one key left are set last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from fedmend.errors import CryptoError
from fedmend.secure.keys import uniform

WORDS = 2  # a value is two 64-bit words
SEED_BYTES = 16
# Random 3-uniform hypergraphs peel up to 1.222 cells a key; the constant is for small sets.
EXPANSION = 1.3
SPARE = 64
_ATTEMPTS = 60


def encode(keys: Sequence[bytes], values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """A seed and a table [cells, 2] from which each key gives its row of `values` [n, 2]."""
    third = int(len(keys) * EXPANSION / 3) + SPARE
    for _ in range(_ATTEMPTS):
        seed = os.urandom(SEED_BYTES)
        cells = _cells(keys, seed, third)
        rounds = _peel(cells, 3 * third)
        if rounds is not None:
            return seed, _fill(cells, values, rounds, third)
    raise CryptoError(
        f"no table for {len(keys)} keys could be filled. Mend: the keys are not unique; drop "
        "duplicates"
    )


def decode(keys: Sequence[bytes], seed: bytes, table: np.ndarray, sender: str) -> np.ndarray:
    """The values of `keys` [n, 2]: those that were put in, and noise for all other keys."""
    well_formed = (
        isinstance(table, np.ndarray)
        and table.dtype == np.uint64
        and table.ndim == 2
        and table.shape[1] == WORDS
        and len(table) >= 3 * SPARE
        and len(table) % 3 == 0
        and isinstance(seed, bytes)
        and len(seed) == SEED_BYTES
    )
    if not well_formed:
        raise CryptoError(f"{sender!r} sent a key–value table that is malformed")
    one, two, three = _cells(keys, seed, len(table) // 3).T
    return table[one] ^ table[two] ^ table[three]


def _cells(keys: Sequence[bytes], seed: bytes, third: int) -> np.ndarray:
    """The three cells of each key, **shape** [n, 3]."""
    raw = b"".join(hashlib.blake2b(key, digest_size=24, key=seed).digest() for key in keys)
    numbers = np.frombuffer(raw, "<u8").reshape(len(keys), 3)
    return (numbers % np.uint64(third)).astype(np.int64) + np.arange(3) * third


def _peel(cells: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """(keys, the cell each is alone in) round by round, or None if some keys never stand alone."""
    degree = np.bincount(cells.reshape(-1), minlength=size)
    # The sum of the keys in a cell is the key itself once it is alone there.
    holds = np.zeros(size, np.int64)
    np.add.at(holds, cells, np.arange(len(cells))[:, None])
    rounds = []
    left = len(cells)
    while left:
        single = np.flatnonzero(degree == 1)
        keys, first = np.unique(holds[single], return_index=True)
        if not len(keys):
            return None
        rounds.append((keys, single[first]))
        gone = cells[keys]
        np.subtract.at(degree, gone, 1)
        np.subtract.at(holds, gone, keys[:, None])
        left -= len(keys)
    return rounds


def _fill(
    cells: np.ndarray,
    values: np.ndarray,
    rounds: list[tuple[np.ndarray, np.ndarray]],
    third: int,
) -> np.ndarray:
    table = uniform((3 * third, WORDS))
    # Keys peeled last have the fewest free cells: they are served first. Within one round no
    # key's own cell is another's, so a round is one array operation.
    for keys, own in reversed(rounds):
        one, two, three = cells[keys].T
        table[own] ^= table[one] ^ table[two] ^ table[three] ^ values[keys]
    return table
