"""Streams of a party: reproducible from a seed, or from all 256 bits of a secret."""

from __future__ import annotations

import stat

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ResumeError
from fedmend.federation import Site
from fedmend.federation.randomness import (
    SECRET_FILE,
    begin,
    kept_secret,
    numpy_stream,
    stream,
    wide_seed,
)

SECRET = bytes(range(32))


def drawn(generator: torch.Generator) -> list[float]:
    return torch.rand(8, generator=generator).tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**31 - 1))
def test_torch_itself_would_begin_with_32_bits_of_a_seed(low: int, high: int) -> None:
    """Why `begin` exists: these are two seeds, and one stream."""
    first, second = (torch.Generator().manual_seed(seed) for seed in (low, low + (high << 32)))
    assert drawn(first) == drawn(second)


@given(st.integers(2**64, 2**257 - 1), st.integers(0, 255))
def test_every_bit_of_a_wide_seed_counts(seed: int, bit: int) -> None:
    other = (seed ^ (1 << bit)) | 1 << 256
    seed |= 1 << 256
    one, again, another = (drawn(begin(torch.Generator(), each)) for each in (seed, seed, other))
    assert one == again
    assert one != another
    assert (numpy_stream([seed]).random(4) != numpy_stream([other]).random(4)).all()
    assert drawn(stream([seed, 3])) != drawn(stream([other, 3]))
    assert drawn(stream([seed, 3])) != drawn(stream([seed, 4]))


def test_a_wide_stream_is_a_mersenne_twister_begun_with_all_its_words() -> None:
    seed = wide_seed(SECRET, "weights")
    key = np.random.SeedSequence(seed, pool_size=8).generate_state(624)
    key[0] |= 0x80000000
    numbers = np.random.MT19937()
    state = numbers.state
    state["state"] = {"key": key, "pos": 624}
    numbers.state = state
    found = torch.rand(2000, generator=begin(torch.Generator(), seed))
    # A number of single precision takes 24 bits of one word.
    assert found.tolist() == ((numbers.random_raw(2000) & 0xFFFFFF) / 2**24).tolist()
    uniform = torch.rand(100_000, generator=begin(torch.Generator(), seed))
    normal = torch.randn(100_000, generator=begin(torch.Generator(), seed))
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(normal.std() - 1.0) < 0.01


def test_a_generator_that_was_used_begins_anew() -> None:
    seed, used = wide_seed(SECRET, "dropout"), torch.Generator().manual_seed(1)
    torch.randn(3, generator=used)  # leaves half a pair of normal numbers behind
    assert torch.randn(3, generator=begin(used, seed)).tolist() == (
        torch.randn(3, generator=begin(torch.Generator(), seed)).tolist()
    )


def test_a_site_without_a_secret_draws_what_it_always_drew() -> None:
    entropy = [3, 3630219130, 449999704]  # the seed, and the checksums of "bank" and "weights"
    site = Site("bank", {}, seed=3)
    assert site.rng("weights").random() == np.random.default_rng(entropy).random()
    assert site.own_seed(17, "dropout") == 17
    assert site.reproducible


def test_a_secret_separates_purposes_and_ignores_what_others_know() -> None:
    one = Site("bank", {}, seed=3, secret=SECRET)
    same = Site("other name", {}, seed=4, secret=SECRET)
    other = Site("bank", {}, seed=3, secret=bytes(32))
    assert not one.reproducible
    assert drawn(one.torch_generator("w", "cpu")) == drawn(same.torch_generator("w", "cpu"))
    assert drawn(one.torch_generator("w", "cpu")) != drawn(one.torch_generator("v", "cpu"))
    assert drawn(one.torch_generator("w", "cpu")) != drawn(other.torch_generator("w", "cpu"))
    assert one.rng("w").random() != other.rng("w").random()
    seeds = {each.own_seed(n, p) for each in (one, other) for n in (0, 1) for p in "ab"}
    assert len(seeds) == 8
    assert all(seed.bit_length() == 257 for seed in seeds)


def test_a_secret_is_kept_for_its_owner_and_drawn_anew_for_a_new_run(tmp_path) -> None:
    assert kept_secret(tmp_path / "never", "bank", resumed=True) != bytes(32)
    folder = tmp_path / "runs" / "r1"
    first = kept_secret(folder, "bank", resumed=False)
    file = folder / SECRET_FILE
    assert len(first) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in folder.iterdir()] == [SECRET_FILE]
    assert kept_secret(folder, "bank", resumed=True) == first
    second = kept_secret(folder, "bank", resumed=False)
    assert second != first
    assert kept_secret(folder, "bank", resumed=True) == second == file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_half_a_secret_is_no_secret(tmp_path) -> None:
    (tmp_path / SECRET_FILE).write_bytes(b"short")
    with pytest.raises(ResumeError, match="bank: .* must be 32 bytes, got 5. Mend: begin"):
        kept_secret(tmp_path, "bank", resumed=True)
