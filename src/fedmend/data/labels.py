"""Labels as class numbers or standardised targets, and back to the original values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedmend.data._values import naming, numbers, python_scalar, sorted_distinct
from fedmend.data.restore import UNSEEN, positions
from fedmend.data.schema import Column, check_type
from fedmend.errors import DataError, NotFitted

__all__ = ["MOST_CLASSES", "LabelEncoder", "as_written"]

TASKS = ("auto", "binary", "multiclass", "regression")
MOST_CLASSES = 30
"""Whole numbers with more distinct values than this are a regression target."""


def as_written(value: Any) -> Any:
    """A class as people wrote it: whole numbers became fractions where a label was missing."""
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


class LabelEncoder:
    """Class numbers 0..C-1 or standardised targets; missing labels become -1 or NaN.

    ``task="auto"``: binary, nominal and ordinal columns are classes; an integer column is
    classes if it has at most 30 distinct values with two rows each on average; all else
    is regression.

    >>> y = pd.Series(["no", "yes", None], name="default")
    >>> encoder = LabelEncoder().fit(y, Column("default", "binary", ("no", "yes"), dtype="object"))
    >>> encoder.task, encoder.transform(y).tolist()
    ('binary', [0, 1, -1])
    """

    def __init__(self, task: str = "auto", *, dtype: str = "float32") -> None:
        if task not in TASKS:
            raise DataError(f"unknown task {task!r}", mend=f"use one of {', '.join(TASKS)}")
        self._asked = task
        self.dtype = dtype
        self.task = task
        self.classes_: list[Any] = []
        self.mean_ = 0.0
        self.scale_ = 1.0
        self.column_: Column | None = None

    def fit(self, series: pd.Series, column: Column, party: str | None = None) -> LabelEncoder:
        """Learn the task, and the classes or the mean and scale, from the labels present."""
        with naming(party):
            self._fit(series, column)
        return self

    def _fit(self, series: pd.Series, column: Column) -> None:
        if column.is_block:
            raise DataError("a block cannot be the label", column=column.name, mend="name a column")
        check_type(column, series)
        if bool(series.isna().all()):
            raise DataError(
                f"all {len(series)} labels are missing",
                column=column.name,
                mend="give at least two rows of different classes a label, or name another column",
            )
        task = self._asked if self._asked != "auto" else _infer_task(series, column)
        if task == "regression":
            self._fit_regression(series, column)
        else:
            task = self._fit_classes(series, column, task)
        self.task = task
        self.column_ = column

    def _fit_regression(self, series: pd.Series, column: Column) -> None:
        if not column.is_numeric and isinstance((column.categories or ("",))[0], (str, bool)):
            raise DataError(
                f"a {column.kind} column of {type((column.categories or ('',))[0]).__name__} "
                "values cannot be a regression target",
                column=column.name,
                value=(column.categories or (None,))[0],
                mend="use task='auto', or name a column of numbers",
            )
        values = numbers(series)
        values = values[~np.isnan(values)]
        self.mean_ = float(values.mean())
        scale = float(values.std())
        self.scale_ = scale if np.isfinite(scale) and scale > 0 else 1.0
        self.classes_ = []

    def _fit_classes(self, series: pd.Series, column: Column, task: str) -> str:
        seen = sorted_distinct(series) or ()
        if column.categories is not None:
            found, listed = set(seen), set(column.categories)
            known = [value for value in column.categories if value in found]
            seen = (*known, *(value for value in seen if value not in listed))
        if len(seen) == 1:
            raise DataError(
                "the label has one class only, so there is nothing to learn",
                column=column.name,
                value=seen[0],
                mend="add rows of another class, or check how the file was read and filtered",
            )
        if task == "binary" and len(seen) > 2:
            raise DataError(
                f"the task is binary, but the label has {len(seen)} classes",
                column=column.name,
                value=list(seen[:5]),
                mend="use task='multiclass' or task='auto'",
            )
        self.classes_ = list(seen)
        return "binary" if len(seen) == 2 and self._asked == "auto" else task

    def transform(self, series: pd.Series, party: str | None = None) -> np.ndarray:
        """int64 class numbers (-1: no label) or standardised floats (NaN: no label)."""
        column = self._fitted()
        with naming(party):
            check_type(column, series)
            if self.task == "regression":
                return ((numbers(series) - self.mean_) / self.scale_).astype(self.dtype)
            at = positions(series, tuple(self.classes_))
            if (at == UNSEEN).any():
                raise DataError(
                    "a label that was not there in training",
                    column=column.name,
                    value=python_scalar(series.iloc[int((at == UNSEEN).argmax())]),
                    mend=f"the known classes are {self.classes_[:10]}; correct or drop those rows",
                )
        return at

    def inverse(self, array: np.ndarray) -> np.ndarray:
        """Original values: classes in their own type, targets as float64 in original units.

        Class number -1 gives None.
        """
        column = self._fitted()
        values = np.asarray(array)
        if self.task == "regression":
            return values.astype(np.float64) * self.scale_ + self.mean_
        values = values.astype(np.int64)
        if values.size and (values.min() < -1 or values.max() >= len(self.classes_)):
            raise DataError(
                f"class numbers must lie in 0..{len(self.classes_) - 1}",
                column=column.name,
                value=int(values.max() if values.max() >= len(self.classes_) else values.min()),
                mend="use the encoder the numbers came from",
            )
        pool = np.empty(len(self.classes_) + 1, dtype=object)
        pool[:-1], pool[-1] = self.classes_, None
        found = pool[values]
        if isinstance(self.classes_[0], str) or (values == -1).any():
            return found
        kept = np.dtype(column.dtype) if column.dtype in np.sctypeDict else None
        return found.astype(kept if kept is not None else type(self.classes_[0]))

    def _fitted(self) -> Column:
        if self.column_ is None:
            raise NotFitted("this LabelEncoder is not fitted. Mend: call fit(series, column) first")
        return self.column_

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; :meth:`from_dict` gives an equal encoder back."""
        return {
            "asked": self._asked,
            "dtype": self.dtype,
            "column": self._fitted().to_dict(),
            "task": self.task,
            "classes": list(self.classes_),
            "mean": self.mean_,
            "scale": self.scale_,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LabelEncoder:
        """The encoder that :meth:`to_dict` described."""
        encoder = cls(values["asked"], dtype=values["dtype"])
        encoder.task = values["task"]
        encoder.classes_ = list(values["classes"])
        encoder.mean_, encoder.scale_ = float(values["mean"]), float(values["scale"])
        encoder.column_ = Column.from_dict(values["column"])
        return encoder


def _infer_task(series: pd.Series, column: Column) -> str:
    if column.is_categorical:
        return "multiclass"
    if column.kind != "integer":
        return "regression"
    distinct, present = int(series.nunique()), int(series.notna().sum())
    return "multiclass" if distinct <= min(MOST_CLASSES, max(present // 2, 1)) else "regression"
