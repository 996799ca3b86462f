"""Where random numbers that protect a party come from: the run's seed, or a secret of the party.

Whoever knows the weights with which a bottom model begins can compute rows from the first
embeddings it sends, and whoever knows a top's, labels from the first gradients. In one process
everything follows from the run's seed, so that a run can be repeated: nobody is there to hide from.
Between machines a site has a secret of 32 bytes from the operating system, drawn once a run, from
which all of its random choices follow; it stays in the party's own folder of the run, beside its
checkpoints, so that a resumed run goes on as it would have.

A seed derived from a secret is wider than 64 bits. Torch would cut it (its generator on the CPU
begins with 32 bits of a seed, which can be tried one by one); `begin` sets the whole state.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmend._files import write_whole
from fedmend.errors import ResumeError

if TYPE_CHECKING:
    import torch

SECRET_BYTES = 32
SECRET_FILE = "secret.key"
_NARROW = 1 << 64
_POOL = 8  # words of 32 bits that a SeedSequence mixes; by default it keeps 128 bits
_MT_WORDS, _MT_AT = 624, 24  # the words of the Mersenne twister in the state of torch's generator

COSTS = (
    "first weights and orders of rows follow from the run's seed and the parties' names, which "
    "everybody in the run knows: whoever receives a party's embeddings can compute its rows "
    "from them, and whoever receives gradients the labels. Only for comparing runs on data that "
    "everybody may see"
)
"""What it costs when a run between machines is reproducible."""


def draw_secret() -> bytes:
    return os.urandom(SECRET_BYTES)


def kept_secret(folder: Path, owner: str, *, resumed: bool) -> bytes:
    """The secret of a run in `folder`: of a resumed run the one kept there, else a new one."""
    path = folder / SECRET_FILE
    if resumed and path.is_file():
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise ResumeError(
                f"{owner}: {path.name} of the run must be {SECRET_BYTES} bytes, "
                f"got {len(secret)}. Mend: begin the run anew"
            )
        return secret
    secret = draw_secret()
    write_whole(path, secret, private=True, lasting=True)
    return secret


def wide_seed(secret: bytes, purpose: str) -> int:
    """A seed of 256 bits for a purpose, and one bit more that tells it from a run's seed."""
    digest = hashlib.blake2b(purpose.encode(), key=secret, digest_size=32).digest()
    return 1 << 256 | int.from_bytes(digest)


def numpy_stream(entropy: Sequence[int]) -> np.random.Generator:
    if max(entropy) < _NARROW:
        return np.random.default_rng(list(entropy))
    return np.random.default_rng(np.random.SeedSequence(list(entropy), pool_size=_POOL))


def stream(entropy: Sequence[int], device: str | torch.device = "cpu") -> torch.Generator:
    """A generator that begins with all of these numbers."""
    import torch

    generator = torch.Generator(device=device)
    if max(entropy) < _NARROW:
        mixed = np.random.SeedSequence(list(entropy)).generate_state(1, np.uint64)[0]
        return generator.manual_seed(int(mixed) >> 1)
    mixed = np.random.SeedSequence(list(entropy), pool_size=_POOL).generate_state(_POOL)
    return begin(generator, 1 << 256 | int.from_bytes(mixed.tobytes()))


def begin(generator: torch.Generator, seed: int) -> torch.Generator:
    """Begin a generator's stream anew: by a seed as torch takes it, or by all of a wide one."""
    import torch

    if seed < _NARROW:
        return generator.manual_seed(seed)
    mixed = np.random.SeedSequence(seed, pool_size=_POOL)
    if generator.device.type != "cpu":
        # A key of 64 bits, and where in its stream of 2^64 numbers to begin (in fours, with room).
        key, place = (int(word) for word in mixed.generate_state(2, np.uint64))
        generator.manual_seed(key)
        generator.set_offset(place >> 4 & ~3)
        return generator
    words = mixed.generate_state(_MT_WORDS).astype(np.uint64)
    words[0] |= 0x80000000  # as its authors do it: never all zeros
    state = generator.manual_seed(0).get_state().numpy()
    state[_MT_AT : _MT_AT + words.nbytes] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return generator
