"""The whitened network: first layer, starting point, mirror, and its place in bottoms."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import (
    FLOOR,
    Batch,
    Bottom,
    BottomSpec,
    PassingConv,
    ShiftNorm,
    WhitenedNet,
    initialise,
)
from fedmend.methods.vertical.vfl import VFL
from fedmend.split.parts import part_of


def photographs(n: int, height: int = 16, width: int = 8, seed: int = 0) -> torch.Tensor:
    """Smooth noise: neighbouring pixels and channels are alike, as in photographs."""
    drawn = torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.avg_pool2d(drawn, 3, 1, 1) * 3
    return smooth + smooth.mean(1, keepdim=True)


def test_first_layer_whitens_patches():
    images = photographs(200)
    net = WhitenedNet(3).double()
    net.fit(images)
    made = nn.functional.conv2d(images.double(), net.filters)
    half = made.shape[1] // 2
    torch.testing.assert_close(made[:, half:], -made[:, :half])
    flat = made[:, :half].permute(1, 0, 2, 3).flatten(1)
    covariance = flat @ flat.T / flat.shape[1]
    patches = images.double().unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5)
    patches = patches.reshape(-1, 12)
    variances = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)
    torch.testing.assert_close(covariance, torch.diag(variances / (variances + FLOOR)))


def test_the_sign_of_a_direction_is_the_same_at_every_party():
    filters = []
    for seed in (1, 2):
        net = WhitenedNet(3)
        strength = torch.tensor([1.0, 0.6, 0.3])[:, None, None]
        net.fit(photographs(1000, seed=seed) * strength)
        filters.append(net.filters)
    first, second = (f[:3].flatten(1) for f in filters)  # those that carry most of an image
    assert torch.nn.functional.cosine_similarity(first, second).min() > 0.9


def test_convolutions_begin_by_passing_their_input_on():
    conv = PassingConv(4, 6)
    initialise(conv, torch.Generator().manual_seed(0))
    images = photographs(2)[:, :1].expand(-1, 4, -1, -1)
    torch.testing.assert_close(conv(images)[:, :4], images)
    narrow = PassingConv(6, 4)
    narrow.pass_on()
    six = torch.cat([images, images[:, :2]], 1)
    torch.testing.assert_close(narrow(six), six[:, :4])


@pytest.mark.parametrize("training", [True, False])
def test_norm_is_batch_norm_with_a_shift(training):
    ours, theirs = ShiftNorm(3), nn.BatchNorm2d(3)
    with torch.no_grad():
        ours.shift.copy_(torch.tensor([0.5, -1.0, 0.0]))
        theirs.bias.copy_(ours.shift * 8)
    for _ in range(2):
        images = photographs(5)
        torch.testing.assert_close(ours(images), theirs(images))
    ours.train(training)
    theirs.train(training)
    torch.testing.assert_close(ours(images), theirs(images))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked == theirs.num_batches_tracked


def test_a_step_moves_the_shift_64_times_as_far():
    norm = ShiftNorm(2)
    norm(torch.randn(4, 2, 3, 3)).sum().backward()
    theirs = nn.BatchNorm2d(2)
    theirs(torch.randn(4, 2, 3, 3)).sum().backward()
    torch.testing.assert_close(8 * norm.shift.grad, 64 * theirs.bias.grad)


def test_predictions_do_not_change_in_a_mirror():
    net = WhitenedNet(3, (8, 8, 8))
    images = photographs(4)
    net(images)
    assert not torch.allclose(net(images), net(images.flip(3)))
    net.eval()
    torch.testing.assert_close(net(images), net(images.flip(3)))


@pytest.mark.parametrize("shape", [(3, 2, 2), (1, 8, 4), (3, 5, 3), (3, 32, 16)])
def test_images_of_any_shape(shape):
    bottom = Bottom(BottomSpec(0, (), (shape,), (), 7, conv="whitened"))
    images = torch.rand(4, *shape)
    bottom.fit_images([images])
    found = bottom(Batch(torch.zeros(4, 0), torch.zeros(4, 0, dtype=torch.int64), (images,)))
    assert found.shape == (4, 7)
    assert torch.isfinite(found).all()


def test_a_strip_of_single_pixels_is_refused():
    with pytest.raises(ConfigError, match="at least 2 x 2 pixels, got 4 x 1"):
        WhitenedNet(1)(torch.rand(3, 1, 4, 1))


def test_parties_whiten_their_own_images_and_keep_that(tmp_path):
    rng = np.random.default_rng(0)
    n = 60
    tables = {}
    for name in ("left", "right"):
        images = photographs(n, 8, 4, seed=len(name)).numpy()
        images = (images * 30 + 128).clip(0, 255).astype(np.uint8)
        frame = {"y": rng.integers(0, 2, n)} if name == "left" else {}
        tables[name] = Table(
            np.arange(n),
            frame,
            label="y" if frame else None,
            kinds={"y": "nominal"} if frame else None,
            blocks={"image": images},
        )
    fed = Federation(*(Party(name, table) for name, table in tables.items()), strict=True)
    everyone, nobody = np.arange(n), np.zeros(0, np.int64)
    for name in tables:
        fed.engine.site(name).alignments["train"] = Alignment(everyone, nobody)
    fed.note_alignment(AlignmentCounts(n, dict.fromkeys(tables, 0)))
    model = VFL(conv="whitened", bottom=(), embedding=4, top=(), epochs=1, validation=0.0)
    model.fit(fed)
    for name, table in tables.items():
        part = part_of(fed.engine.site(name), model.network_.model).bottom
        assert part is not None
        alone = WhitenedNet(3)
        alone.fit(torch.from_numpy(part.encoder.transform(table).blocks["image"]))
        torch.testing.assert_close(part.module.convolutions[0].filters.cpu(), alone.filters)
    model.save(tmp_path)
    again = VFL.load(tmp_path, fed)
    np.testing.assert_array_equal(model.predict_proba(fed), again.predict_proba(fed))
