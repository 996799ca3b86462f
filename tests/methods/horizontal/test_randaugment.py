"""Every operation of the strong augmentation gives Pillow's pixels, on photographs and digits."""

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from fedmend.errors import ConfigError
from fedmend.learn.augment import CHUNK, apply_weak
from fedmend.methods.horizontal.randaugment import (
    OPERATIONS,
    _apply,
    apply_strong,
    check_images,
    cutout,
    draw_strong,
)

DIRECTED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def apply_operation(
    images: torch.Tensor, name: str, magnitude: torch.Tensor, negative: torch.Tensor
) -> torch.Tensor:
    """One operation on all images, each with its own magnitude and direction."""
    changed = images.clone()
    _apply(changed, torch.full_like(magnitude, OPERATIONS.index(name)), magnitude, negative)
    return changed


def pillow(image: Image.Image, name: str, v: int, sign: int) -> Image.Image:
    """What FixMatch's published code does with Pillow."""
    enhance = float(v) * 0.9 / 10 + 0.05
    share = sign * float(v) * 0.3 / 10
    width, height = image.size
    affine = Image.Transform.AFFINE
    match name:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "brightness":
            return ImageEnhance.Brightness(image).enhance(enhance)
        case "color":
            return ImageEnhance.Color(image).enhance(enhance)
        case "contrast":
            return ImageEnhance.Contrast(image).enhance(enhance)
        case "equalize":
            return ImageOps.equalize(image)
        case "posterize":
            return ImageOps.posterize(image, int(v * 4 / 10) + 4)
        case "rotate":
            return image.rotate(sign * int(v * 30 / 10))
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(enhance)
        case "shear_x":
            return image.transform(image.size, affine, (1, share, 0, 0, 1, 0))
        case "shear_y":
            return image.transform(image.size, affine, (1, 0, 0, share, 1, 0))
        case "solarize":
            return ImageOps.solarize(image, 256 - int(v * 256 / 10))
        case "translate_x":
            return image.transform(image.size, affine, (1, 0, int(share * width), 0, 1, 0))
        case "translate_y":
            return image.transform(image.size, affine, (1, 0, 0, 0, 1, int(share * height)))
    return image


@cache
def photographs(height: int = 32, width: int = 32) -> torch.Tensor:
    """Pieces of scikit-learn's two bundled photographs, some flat and some nearly so."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    pieces = []
    for photograph in load_sample_images().images:
        for _ in range(6):
            top = rng.integers(0, photograph.shape[0] - 4 * height)
            left = rng.integers(0, photograph.shape[1] - 4 * width)
            stride = int(rng.integers(1, 5))
            piece = photograph[top:, left:][: stride * height : stride, : stride * width : stride]
            pieces.append(piece)
    flat = np.full_like(pieces[0], 77)
    nearly = flat.copy()
    nearly[3, 4] = (200, 77, 10)
    stack = np.stack([*pieces, flat, nearly])
    return torch.from_numpy(np.ascontiguousarray(stack.transpose(0, 3, 1, 2)))


@cache
def digits() -> torch.Tensor:
    from sklearn.datasets import load_digits

    images = load_digits().images[:10]
    return torch.from_numpy((images * 15.9).astype(np.uint8))[:, None]


def as_pillow(image: torch.Tensor) -> Image.Image:
    values = image.permute(1, 2, 0).numpy()
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)


def as_array(image: Image.Image) -> np.ndarray:
    values = np.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("images", [photographs, digits], ids=["photographs", "digits"])
def test_each_operation_is_pillows(name, images):
    batch = images()
    plain = name in ("autocontrast", "equalize", "identity")
    for v in (1,) if plain else (1, 4, 8, 9):
        for sign in (1, -1) if name in DIRECTED else (1,):
            magnitude = torch.full((len(batch),), v)
            ours = apply_operation(batch, name, magnitude, torch.full_like(magnitude, sign < 0))
            for image, mine in zip(batch, ours, strict=True):
                theirs = as_array(pillow(as_pillow(image), name, v, sign))
                assert np.array_equal(mine.numpy(), theirs), (name, v, sign)


@pytest.mark.parametrize("name", ["rotate", "shear_x", "translate_y", "sharpness"])
def test_images_need_not_be_square(name):
    batch = photographs(20, 33)
    magnitude = torch.full((len(batch),), 8)
    ours = apply_operation(batch, name, magnitude, torch.ones_like(magnitude))
    for image, mine in zip(batch, ours, strict=True):
        assert np.array_equal(mine.numpy(), as_array(pillow(as_pillow(image), name, 8, -1)))


def test_the_square_is_pillows():
    batch = photographs()
    centre = torch.rand(len(batch), 2, generator=torch.Generator().manual_seed(4)).double()
    ours = cutout(batch, centre, 16)
    for image, mine, (down, right) in zip(batch, ours, centre.tolist(), strict=True):
        drawn = as_pillow(image)
        x = int(max(0.0, right * 32 - 8))
        y = int(max(0.0, down * 32 - 8))
        corners = (x, y, min(32, x + 16), min(32, y + 16))
        ImageDraw.Draw(drawn).rectangle(corners, (127, 127, 127))
        assert np.array_equal(mine.numpy(), as_array(drawn))


def test_a_mixed_batch_is_the_chain_image_by_image():
    """Different draws for every image, against Pillow one at a time."""
    pool = photographs()
    generator = torch.Generator().manual_seed(7)
    batch = pool[torch.randint(0, len(pool), (300,), generator=generator)]
    draws = draw_strong(len(batch), generator)
    ours = apply_strong(batch, draws)
    for number, start in enumerate(apply_weak(batch, draws.weak)):
        image = as_pillow(start)
        for turn in range(2):
            if draws.applied[number, turn]:
                name = OPERATIONS[int(draws.operation[number, turn])]
                sign = -1 if draws.negative[number, turn] else 1
                image = pillow(image, name, int(draws.magnitude[number, turn]), sign)
        expected = torch.from_numpy(as_array(image).copy())[None]
        expected = cutout(expected, draws.centre[number : number + 1], 16)
        assert torch.equal(ours[number], expected[0])


def test_draws_have_the_published_frequencies():
    draws = draw_strong(20_000, torch.Generator().manual_seed(0))
    shares = torch.bincount(draws.operation.flatten(), minlength=14) / 40_000
    assert torch.allclose(shares, torch.full((14,), 1 / 14), atol=0.006)
    assert set(draws.magnitude.unique().tolist()) == set(range(1, 10))
    assert abs(float(draws.applied.float().mean()) - 0.5) < 0.01
    assert abs(float(draws.negative.float().mean()) - 0.5) < 0.01


def test_large_batches_are_taken_in_pieces():
    n = CHUNK["cpu"] + 3
    images = photographs()[torch.arange(n) % 14][:, :, :8, :8].contiguous()
    draws = draw_strong(n, torch.Generator().manual_seed(1), pad=1)
    views = apply_strong(images, draws)
    last = torch.arange(n - 5, n)
    assert torch.equal(views[last], apply_strong(images[last], draws[last]))
    assert views.shape == images.shape


def test_the_images_given_stay_as_they_were():
    images = photographs().clone()
    before = images.clone()
    apply_strong(images, draw_strong(len(images), torch.Generator().manual_seed(2)))
    assert torch.equal(images, before)


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="uint8 of shape"):
        check_images(torch.rand(2, 3, 8, 8))
