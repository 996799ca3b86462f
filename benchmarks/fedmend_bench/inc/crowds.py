"""Human annotators for `fedmend bench inc`: LabelMe (59 of them) and CIFAR-10N (three).

LabelMe's features are VGG's. CIFAR's are those of one frozen convolution layer for each half of
the picture, its filters the centroids of whitened patches (Coates, Ng & Lee 2011): nobody's labels
take part, and every party computes them from its own half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmend.data import datasets

PATCH = 6


@dataclass(frozen=True)
class CrowdProblem:
    """Rows with human votes; standardised columns in the order of the parties."""

    train: Tensor
    test: Tensor
    y_train: np.ndarray
    y_test: np.ndarray
    votes: np.ndarray
    columns: tuple[int, ...]
    classes: int


def labelme(device: str) -> CrowdProblem:
    """1,000 training images, 2.5 votes each; 512 columns over four parties."""
    train, test = datasets.load("labelme"), datasets.load("labelme", split="test")
    x, x_test = _standardised(
        *(table.blocks["features"].astype(np.float32) for table in (train, test))
    )
    return CrowdProblem(
        torch.from_numpy(x).to(device),
        torch.from_numpy(x_test).to(device),
        train.y.to_numpy(np.int64),
        test.y.to_numpy(np.int64),
        datasets.annotations("labelme"),  # type: ignore[operator]
        (128,) * 4,
        8,
    )


def cifar10n(
    device: str, rows: int | None = None, *, sheets: int | None = None, filters: int = 400
) -> CrowdProblem:
    """50,000 training images with three votes each; left half and right half at two parties.

    sheets: read the first of the five training sheets only, 10,000 images each.
    """
    read = range(1, 1 + (sheets or 5))
    train, test = datasets.load("cifar10", batches=read), datasets.load("cifar10-test")
    votes = datasets.annotations("cifar10n")[: len(train)]  # type: ignore[operator]
    y, y_test = train.y.to_numpy(np.int64), test.y.to_numpy(np.int64)
    images, test_images = train.blocks["image"], test.blocks["image"]
    if rows is not None and rows < len(y):
        kept = np.random.default_rng(0).permutation(len(y))[:rows]
        images, y, votes = images[kept], y[kept], votes[kept]
        test_images, y_test = test_images[:rows], y_test[:rows]
    halves = []
    for party, columns in enumerate((slice(0, 16), slice(16, 32))):
        bank = FilterBank(images[..., columns], filters, device, seed=party)
        halves.append([bank.features(each[..., columns]) for each in (images, test_images)])
    x, x_test = (np.concatenate([half[number] for half in halves], 1) for number in (0, 1))
    x, x_test = _standardised(x, x_test)
    return CrowdProblem(
        torch.from_numpy(x).to(device),
        torch.from_numpy(x_test).to(device),
        y,
        y_test,
        votes,
        tuple(half[0].shape[1] for half in halves),
        10,
    )


def _standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, spread = train.mean(0), train.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    return (train - mean) / spread, (test - mean) / spread


class FilterBank:
    """Whitened patch centroids of some images, and their soft responses pooled above and below."""

    def __init__(self, images: np.ndarray, filters: int, device: str, *, seed: int = 0) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        some = torch.randperm(len(images), generator=self.generator)[:4000].numpy()
        patches = self._patches(images[some])
        chosen = torch.randint(len(patches), (40 * filters + 4000,), generator=self.generator)
        patches = patches[chosen.to(patches.device)]
        self.mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self.whiten = vectors @ torch.diag((values + 0.1).rsqrt()) @ vectors.T
        self.centroids = self._kmeans((patches - self.mean) @ self.whiten, filters)

    def _patches(self, images: np.ndarray) -> Tensor:
        """All patches, brightness and contrast evened out. **Shape** [n · places, 3 · 6 · 6]."""
        pixels = torch.from_numpy(np.ascontiguousarray(images)).to(self.device).float()
        unfolded = F.unfold(pixels, PATCH).transpose(1, 2).reshape(-1, 3 * PATCH * PATCH)
        unfolded = unfolded - unfolded.mean(1, keepdim=True)
        return unfolded / (unfolded.var(1, keepdim=True) + 10).sqrt()

    def _kmeans(self, points: Tensor, count: int, rounds: int = 20) -> Tensor:
        start = torch.randperm(len(points), generator=self.generator)[:count]
        centres = points[start.to(points.device)]
        for _ in range(rounds):
            nearest = torch.cdist(points, centres).argmin(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, points)
            sizes = torch.bincount(nearest, minlength=count)[:, None]
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        return centres

    def features(self, images: np.ndarray) -> np.ndarray:
        """Responses max(0, mean distance − distance), summed over the upper and lower part."""
        high = images.shape[2] - PATCH + 1
        pooled = []
        for at in range(0, len(images), 500):
            batch = images[at : at + 500]
            points = (self._patches(batch) - self.mean) @ self.whiten
            distance = torch.cdist(points, self.centroids)
            response = F.relu(distance.mean(1, keepdim=True) - distance)
            grid = response.view(len(batch), high, -1, len(self.centroids))
            parts = [grid[:, : high // 2], grid[:, high // 2 :]]
            pooled.append(torch.cat([part.sum((1, 2)) for part in parts], 1).cpu())
        return torch.cat(pooled).numpy()
