"""Weak augmentation against an independent reference, image by image."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmend.errors import ConfigError
from fedmend.learn.augment import CHUNK, Weak, apply_weak, draw_weak


def reference(image: np.ndarray, flip: bool, down: int, right: int) -> np.ndarray:
    """Flip, pad by reflection, cut out: as one image would be treated by hand."""
    pad = max(abs(down), abs(right))
    turned = image[:, :, ::-1] if flip else image
    padded = np.pad(turned, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    height, width = image.shape[1:]
    return padded[:, pad + down : pad + down + height, pad + right : pad + right + width]


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(6, 12),
    st.integers(6, 12),
    st.integers(0, 5),
    st.integers(0, 1000),
)
def test_flip_and_crop_are_those_of_a_padded_image(n, channels, height, width, pad, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, channels, height, width), generator=generator)
    images = images.to(torch.uint8)
    draws = draw_weak(n, generator, pad)
    views = apply_weak(images, draws)
    assert views.dtype == torch.uint8
    for number in range(n):
        down, right = draws.shift[number].tolist()
        expected = reference(images[number].numpy(), bool(draws.flip[number]), down, right)
        assert np.array_equal(views[number].numpy(), expected)


def test_draws_are_spread_evenly_and_repeatable():
    draws = draw_weak(20_000, torch.Generator().manual_seed(3), pad=4)
    again = draw_weak(20_000, torch.Generator().manual_seed(3), pad=4)
    assert torch.equal(draws.flip, again.flip) and torch.equal(draws.shift, again.shift)
    assert abs(float(draws.flip.float().mean()) - 0.5) < 0.02
    shares = torch.bincount(draws.shift.flatten() + 4, minlength=9) / 40_000
    assert torch.allclose(shares, torch.full((9,), 1 / 9), atol=0.01)


def test_one_draw_serves_several_tensors_and_types():
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(7, 3, 8, 8, generator=generator)
    draws = draw_weak(7, generator, pad=2)
    both = apply_weak(images, draws)
    assert torch.equal(apply_weak(images[:, :1], draws), both[:, :1])
    assert torch.equal(apply_weak(images.double(), draws).float(), both)
    nearer = images.to(memory_format=torch.channels_last)
    assert torch.equal(apply_weak(nearer, draws), both)


def test_pieces_of_draws_and_large_batches():
    n = CHUNK["cpu"] + 5
    images = torch.arange(n * 16, dtype=torch.float32).view(n, 1, 4, 4)
    draws = draw_weak(n, torch.Generator().manual_seed(2), pad=1)
    views = apply_weak(images, draws)
    last = torch.arange(n - 3, n)
    assert torch.equal(views[last], apply_weak(images[last], draws[last]))


def test_edges_and_bad_input():
    generator = torch.Generator().manual_seed(0)
    # where a mirror changes the meaning nothing is flipped, and a row of pixels stays
    assert not draw_weak(1000, generator, flip=False).flip.any()
    images = torch.rand(3, 1, 1, 5)
    draws = Weak(torch.zeros(3, dtype=torch.bool), torch.tensor([[2, 0], [-1, 0], [0, 0]]))
    assert torch.equal(apply_weak(images, draws), images)
    with pytest.raises(ConfigError, match="draws for 3 images, but there are 2"):
        apply_weak(torch.rand(2, 1, 4, 4), draw_weak(3, generator))
    with pytest.raises(ConfigError, match="pad must not be negative"):
        draw_weak(3, generator, pad=-1)
