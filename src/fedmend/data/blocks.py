"""Images and tensors as standardised float arrays, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.data.schema import Column

__all__ = ["BlockScaler"]

_ROWS_AT_ONCE = 4096
_IN_CACHE = 512


@dataclass(frozen=True)
class BlockScaler:
    """Mean and scale per channel (the first axis of one row's value).

    ``uint8`` images are brought to 0..1 first. A block of plain vectors is thus
    standardised feature by feature.
    """

    column: Column
    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, column: Column, values: np.ndarray) -> BlockScaler:
        """Means and standard deviations, in two passes over a few thousand rows at a time."""
        if values.dtype == np.uint8 and len(values):
            return cls._of_bytes(column, values)
        shape = column.shape or ()
        per_channel = max(len(values) * int(np.prod(shape[1:])), 1)
        axes = (0, *range(2, values.ndim))
        keep = (shape[0], *([1] * (len(shape) - 1)))
        unit = _unit(column)
        mean = sum((c.sum(axes) for c in _chunks(values, unit)), np.zeros(shape[0])) / per_channel
        centred = (np.square(c - mean.reshape(keep)) for c in _chunks(values, unit))
        variance = sum((c.sum(axes) for c in centred), np.zeros(shape[0])) / per_channel
        scale = np.sqrt(variance)
        negligible = scale <= 1e-12 * np.maximum(np.abs(mean), 1.0)
        return cls(column, mean.reshape(keep), np.where(negligible, 1.0, scale).reshape(keep))

    @classmethod
    def _of_bytes(cls, column: Column, values: np.ndarray) -> BlockScaler:
        """The same from how often each of the 256 values occurs: exact, and a tenth of the work."""
        shape = column.shape or ()
        unit = _unit(column)
        levels = np.arange(256) / unit
        means, scales = np.zeros(shape[0]), np.zeros(shape[0])
        for channel in range(shape[0]):
            counts = _value_counts(values[:, channel])
            share = counts / counts.sum()
            means[channel] = levels @ share
            scales[channel] = np.sqrt(np.square(levels - means[channel]) @ share)
        keep = (shape[0], *([1] * (len(shape) - 1)))
        negligible = scales <= 1e-12 * np.maximum(np.abs(means), 1.0)
        return cls(column, means.reshape(keep), np.where(negligible, 1.0, scales).reshape(keep))

    def transform(self, values: np.ndarray, dtype: str) -> np.ndarray:
        """**Shape**: [n, ...] to [n, ...]."""
        out = np.empty(values.shape, dtype=dtype)
        if values.dtype == np.uint8 and out.dtype == np.float32:
            # One multiplication and one subtraction per value, in the precision that is asked for.
            factor = (1.0 / (_unit(self.column) * self.scale)).astype(np.float32)
            offset = (self.mean / self.scale).astype(np.float32)
            for start in range(0, len(values), _IN_CACHE):
                part = out[start : start + _IN_CACHE]
                part[...] = values[start : start + _IN_CACHE]
                part *= factor
                part -= offset
            return out
        start = 0
        for chunk in _chunks(values, _unit(self.column)):
            out[start : start + len(chunk)] = (chunk - self.mean) / self.scale
            start += len(chunk)
        return out

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """The block in its original type; whole-number types are rounded and clipped."""
        target = np.dtype(self.column.dtype)
        out = np.empty(values.shape, dtype=target)
        start = 0
        for chunk in _chunks(values, 1.0):
            plain = (chunk * self.scale + self.mean) * _unit(self.column)
            if target.kind in "iu":
                limits = np.iinfo(target)
                plain = np.clip(np.rint(plain), limits.min, limits.max)
            elif target.kind == "b":
                plain = plain > 0.5
            out[start : start + len(chunk)] = plain.astype(target)
            start += len(chunk)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values."""
        return {"mean": self.mean.reshape(-1).tolist(), "scale": self.scale.reshape(-1).tolist()}

    @classmethod
    def from_dict(cls, column: Column, values: Mapping[str, Any]) -> BlockScaler:
        """The scaler that :meth:`to_dict` described."""
        keep = (-1, *([1] * (len(column.shape or ()) - 1)))
        mean, scale = np.asarray(values["mean"], float), np.asarray(values["scale"], float)
        return cls(column, mean.reshape(keep), scale.reshape(keep))


def _value_counts(values: np.ndarray) -> np.ndarray:
    counts = np.zeros(256, np.int64)
    for start in range(0, len(values), _ROWS_AT_ONCE):
        counts += np.bincount(values[start : start + _ROWS_AT_ONCE].reshape(-1), minlength=256)
    return counts


def _unit(column: Column) -> float:
    return 255.0 if column.kind == "image" and column.dtype == "uint8" else 1.0


def _chunks(values: np.ndarray, unit: float) -> Iterator[np.ndarray]:
    for start in range(0, len(values), _ROWS_AT_ONCE):
        yield values[start : start + _ROWS_AT_ONCE].astype(np.float64) / unit
