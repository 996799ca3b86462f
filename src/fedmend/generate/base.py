"""What every generator is: fit a table, sample rows, fill gaps, be saved and loaded.

A generator of its own says how it trains and how it makes coordinates; all that concerns tables —
types, ranges, given columns, missing cells, ids — is settled here, once for all of them:

    @parameters                                                         # or an own __init__
    class Mine(Generator):
        name = "mine"
        epochs: int = 300
        def _encoder(self): return Encoder(numeric="quantile")
        def _build(self): self.net_ = ...; return {"net": self.net_}     # modules, by name
        def _train(self, rows, progress): ...                            # trains what _build made
        def _generate(self, n, known, generator): ...                    # -> float32 (n, width)

What is sampled is complete: missing cells are gaps to be filled, never values to be learnt.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from torch import nn

from fedmend._parameters import (
    NOT_NEGATIVE,
    POSITIVE,
    PROPER_SHARE,
    SHARE,
    Parameters,
    Rules,
    at_least,
    one_of,
    parameters,
    wrong_values,
)
from fedmend._suggest import did_you_mean
from fedmend.data.schema import Column, Schema, check_type, numbers, python_scalar
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, FedmendWarning, NotFitted
from fedmend.generate.encoder import Encoded, Encoder, Raw
from fedmend.generate.registry import class_of, defined
from fedmend.generate.training import Progress, generator_for, numpy_for, shown
from fedmend.learn.nets import initialise
from fedmend.split.config import resolve_device
from fedmend.split.parts import read_file, weights_of, write_file

Given = Mapping[str, Any] | pd.DataFrame | Table

MIN_ROWS = 10
LARGEST = 1e100
_FORMAT, _VERSION = "fedmend generator", 1


def _are_widths(value: Any) -> bool:
    widths = value if isinstance(value, (tuple, list)) else [value]
    return bool(widths) and all(width >= 1 for width in widths)


RULES: Rules = {
    **dict.fromkeys(("seed", "patience", "refine"), at_least(0)),
    **dict.fromkeys(("epochs", "steps", "latent", "channels", "candidates", "pac"), at_least(1)),
    **dict.fromkeys(("batch_size", "sampling_steps"), at_least(1)),
    **dict.fromkeys(("dropout", "validation", "average", "condition"), PROPER_SHARE),
    **dict.fromkeys(("hint", "blank"), SHARE),
    **dict.fromkeys(("lr", "epsilon"), POSITIVE),
    "penalty": NOT_NEGATIVE,
    "sampling": one_of(("log-frequency", "frequency")),
    "numeric": one_of(("rank", "minmax")),
    "hidden": ("made of whole numbers from 1", _are_widths),
}
"""What parameters may be, by name: the same names mean the same in all generators."""


@parameters
class Generator(Parameters):
    """The interface and the table side of every generator.

    Constructor arguments are keyword-only and kept under their own names; ``seed`` and ``device``
    are among them always. Fitted: ``encoder_``, ``schema_``, ``label_``, ``device_``.
    """

    name: ClassVar[str]
    impute_draws: ClassVar[int] = 10
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named settings; ``paper`` are the publication's, where they differ from the defaults."""

    seed: int = 0
    device: str = "auto"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The publication's settings, with these changes."""
        if "paper" not in cls.PRESETS:
            raise ConfigError(f"{cls.__name__} has no preset 'paper': its defaults are all it has")
        return cls(**{**cls.PRESETS["paper"], **changes})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        defined(cls)

    # --- what a generator says of itself -----------------------------------------------

    def _encoder(self) -> Encoder:
        """The encoder that suits this generator, not yet fitted."""
        raise NotImplementedError

    def _build(self) -> dict[str, nn.Module]:
        """Make the networks for ``self.encoder_`` and return them by name."""
        raise NotImplementedError

    def _train(self, rows: Encoded, progress: Progress | None) -> None:
        """Train the networks; their parameters are seeded and on the device already."""
        raise NotImplementedError

    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        """Coordinates of ``n`` rows that agree with what ``known`` has observed.

        **Shape**: float32 (n, width). Softmax spans may hold any non-negative scores; known cells
        are put back exactly by the caller, so they need not be right here.
        """
        raise NotImplementedError

    def _extra(self) -> dict[str, Any]:
        """Fitted values other than networks that `save` must keep; wire values only."""
        return {}

    def _set_extra(self, values: dict[str, Any]) -> None:
        """Take back what `_extra` gave."""

    # --- fit ------------------------------------------------------------------------------

    def fit(self, table: Table, progress: Progress | None = None) -> Self:
        """Learn the joint distribution of all columns, label included.

        ``progress(stage, done, total)`` is called as training goes on; without it a bar is shown
        on a terminal.
        """
        self._check_params()
        self._check_table(table)
        with self._or_as_before():
            self._prepare(table)
            if self.encoder_.width:
                raw = self.encoder_.raw(table.frame)
                rows = self.encoder_.encode(raw, self._numpy_rng("encode"))
                # cuDNN's fastest convolutions sum in an order of their own each time.
                steady = torch.backends.cudnn.flags(benchmark=False, deterministic=True)
                with shown(f"{self.name}", progress) as tell, steady:
                    self._train(rows, tell)
        for module in self.modules_.values():
            module.eval()
        return self

    def _check_params(self) -> None:
        """Refuse impossible parameters, all in one message."""
        self.require_types()
        problems = self._problems()
        if problems:
            raise ConfigError(problems)

    def _problems(self) -> list[str]:
        """What is wrong with the parameters; generators add what is their own."""
        own = self.parameter_names()
        return wrong_values(self, {name: rule for name, rule in RULES.items() if name in own})

    def _check_table(self, table: Table) -> None:
        _require_table(table)
        if table.n_rows < MIN_ROWS:
            raise DataError(
                f"a generator needs {MIN_ROWS} rows at least, this table has {table.n_rows}",
                mend="bring more rows; 50 or more are sensible",
            )
        if not table.names:
            raise DataError("the table has no columns", mend="name the columns to generate")
        if table.frame.shape[1] and bool(table.frame.isna().all(axis=None)):
            raise DataError(
                "every cell of the table is missing",
                column=table.names[0],
                mend="check how the table was read",
            )
        for name, column in table.schema.items():
            if column.is_numeric:
                _check_size(name, table.frame[name])

    def _prepare(self, table: Table) -> None:
        self.device_ = resolve_device(self.device)
        self.encoder_ = self._encoder().fit(table)
        self.schema_: Schema = table.schema
        self.label_ = table.label
        self.draws_ = 0
        self.modules_: dict[str, nn.Module] = {}
        if self.encoder_.width:
            self._place_modules()

    def _place_modules(self) -> None:
        self.modules_ = {name: self._placed(name, net) for name, net in self._build().items()}

    def _placed(self, name: str, module: nn.Module) -> nn.Module:
        """Seeded on the CPU, so that the start is the same on every device; then on the device."""
        seeds = generator_for(torch.device("cpu"), self.seed, f"init {name}")
        return initialise(module, seeds).to(self.device_)

    def _numpy_rng(self, purpose: str, seed: int | None = None) -> np.random.Generator:
        return numpy_for(self.seed if seed is None else seed, purpose)

    # --- sample -----------------------------------------------------------------------------

    def sample(
        self, n: int | None = None, given: Given | None = None, seed: int | None = None
    ) -> Table:
        """``n`` new rows with the schema, types, ranges and categories of the fitted table.

        ``given`` holds known columns — a table or frame of n rows, or a dict of single values and
        lists of n — which come back exactly as given, the other columns generated to go with them;
        its missing cells are generated too. Without ``n``, as many rows as are given. With the same
        ``seed`` the rows are the same; without one, every call goes on in the generator's stream.
        """
        self._check_fitted()
        if seed is None:
            seed, self.draws_ = self.seed + 1_000_003 * (self.draws_ + 1), self.draws_ + 1
        if given is None:
            if not isinstance(n, Integral) or isinstance(n, bool) or n < 0:
                raise ConfigError(f"n must be a whole number from 0, got n={n!r}")
            return self._table(np.arange(n), self._rows(n, None, seed))
        ids, frame = _given_rows(given, n, self.schema_)
        known = self.encoder_.raw(frame, strict=True)
        rows = self._rows(len(frame), known, seed)
        for name, cells in known.items():
            rows[name] = np.where(np.isnan(cells), rows[name], cells)
        return self._table(ids, rows, frame)

    def _rows(self, n: int, known: Raw | None, seed: int) -> Raw:
        """Raw numbers of all columns for n rows."""
        encoder = self.encoder_
        if n == 0 or not encoder.width:
            return encoder.decode(np.zeros((n, encoder.width), np.float32))
        encoded = None if known is None else encoder.encode(known)
        if encoded is not None and not encoded.observed.any():
            encoded = None
        if encoded is not None and encoded.is_complete:
            values = encoded.values
        else:
            stream = generator_for(self.device_, seed, f"sample {self.name}")
            values = self._generate(n, encoded, stream)
        return encoder.decode(values, self._decode_rng(seed))

    def _decode_rng(self, seed: int) -> np.random.Generator | None:
        """None: the largest score of a softmax span wins; not so where they are probabilities."""
        return None

    def _table(self, ids: np.ndarray, rows: Raw, given: pd.DataFrame | None = None) -> Table:
        frame = self.encoder_.restore(rows)
        for name, known in () if given is None else given.items():
            if pd.api.types.is_integer_dtype(frame[name].dtype):
                # Not all of them are among the float64 of `rows`.
                cells = known.dropna()
                frame.loc[cells.index, name] = cells.astype(frame[name].dtype)
        with quiet():
            return Table(ids, frame, schema=self.schema_, label=self.label_)

    # --- impute -----------------------------------------------------------------------------

    def impute(self, table: Table, seed: int | None = None, draws: int | None = None) -> Table:
        """The table with its gaps filled; observed cells stay as they are, bit for bit.

        A gap takes the mean (numbers) or the majority (categories) of ``draws`` generated values:
        many come closer to the truth, ``draws=1`` keeps the spread. The default is the generator's
        ``impute_draws``. Columns the generator does not know stay untouched, columns that had no
        value in `fit` stay missing, and a category never seen in `fit` is kept but tells nothing
        about its row.
        """
        self._check_fitted()
        _require_table(table)
        names = [name for name in self.schema_ if name in table.frame.columns]
        if not names:
            raise DataError(
                "none of the generator's columns is in this table",
                column=table.names[0] if table.names else None,
                mend=f"the generator was fitted on: {', '.join(self.schema_.names[:20])}",
            )
        for name in names:
            check_type(self.schema_[name], table.frame[name])
        gaps = table.frame[names].isna()
        rows = np.flatnonzero(gaps.any(axis=1).to_numpy())
        if not len(rows):
            return table
        part = table.frame[names].iloc[rows]
        filled = self.encoder_.restore(
            self._imputed(
                self.encoder_.raw(part),
                self.impute_draws if draws is None else draws,
                self.seed if seed is None else seed,
            )
        )
        frame = table.frame.copy()
        for name in names:
            holes = gaps[name].to_numpy()
            if holes.any():
                frame[name] = _fill(frame[name], holes, filled[name].array[holes[rows]])
        columns = [
            self.schema_[name] if name in names and bool(gaps[name].all()) else table.schema[name]
            for name in table.names
        ]
        with quiet():
            return Table(
                table.ids, frame, schema=Schema(columns), label=table.label, blocks=table.blocks
            )

    def _imputed(self, known: Raw, draws: int, seed: int) -> Raw:
        """Raw numbers of all columns for rows with gaps."""
        if draws < 1:
            raise ConfigError(f"draws must be a whole number from 1, got draws={draws!r}")
        rows = len(next(iter(known.values())))
        repeated = {name: np.tile(numbers, draws) for name, numbers in known.items()}
        made = self._rows(rows * draws, repeated, seed)
        return self.encoder_.average(
            {name: numbers.reshape(draws, rows) for name, numbers in made.items()}
        )

    # --- save and load -----------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the fitted generator into one file, whole or not at all: a value of the wire.

        There is no pickle in it.
        """
        self._check_fitted()
        target = Path(path)
        write_file(
            target,
            {
                "format": _FORMAT,
                "version": _VERSION,
                "name": self.name,
                "params": self.get_params(),
                "label": self.label_,
                "draws": self.draws_,
                "encoder": self.encoder_.to_dict(),
                "modules": {name: weights_of(net) for name, net in self.modules_.items()},
                "extra": self._extra() if self.encoder_.width else {},
            },
        )
        return target

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The generator that `save` wrote; on a subclass, only one of that class."""
        values = _read(path)
        made = class_of(values["name"])._unfitted(values["params"])
        if not isinstance(made, cls):
            raise DataError(
                f"{path} holds a {type(made).__name__}, not a {cls.__name__}",
                mend="use fedmend.generate.load(path)",
            )
        here = torch.cuda.is_available() or not made.device.startswith("cuda")
        made.device_ = resolve_device(made.device if here else "cpu")
        made.encoder_ = Encoder.from_dict(values["encoder"])
        made.schema_ = made.encoder_.schema
        made.label_, made.draws_ = values["label"], values["draws"]
        made.modules_ = {}
        if made.encoder_.width:
            made._set_extra(values["extra"])
            made._place_modules()
        for name, module in made.modules_.items():
            module.load_state_dict(values["modules"][name])
            module.eval()
        return made

    @classmethod
    def _unfitted(cls, params: Mapping[str, Any]) -> Self:
        """As it was saved; parameters that are no more did their work when it was fitted."""
        return cls(**{name: params[name] for name in cls.parameter_names() if name in params})

    def _check_fitted(self) -> None:
        if not hasattr(self, "encoder_"):
            raise NotFitted(
                f"this {type(self).__name__} is not fitted yet. Mend: call fit(table) first"
            )


def _require_table(table: object) -> None:
    if not isinstance(table, Table):
        raise DataError(
            f"a generator takes a Table, not a {type(table).__name__}",
            mend="Table.from_frame(frame), or fm.read(path, id=…)",
        )


def _check_size(name: str, series: pd.Series) -> None:
    values = np.nan_to_num(numbers(series))
    largest = values[np.abs(values).argmax()]
    if abs(largest) > LARGEST:
        raise DataError(
            f"a number beyond {LARGEST:g}, whose square is none",
            column=name,
            value=float(largest),
            mend="leave the cell empty if it stands for a missing one, or change the column's unit",
        )


def _read(path: str | Path) -> dict[str, Any]:
    """The values that `Generator.save` wrote."""
    values = read_file(Path(path))
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise DataError(
            f"{path} holds no generator", mend="give the file that Generator.save wrote"
        )
    if values["version"] != _VERSION:
        raise DataError(
            f"{path} is of version {values['version']}, this fedmend reads {_VERSION}",
            mend="fit the generator again, or install the fedmend that saved it",
        )
    return values


# --- cells that come from outside ----------------------------------------------------------


@contextmanager
def quiet() -> Iterator[None]:
    """Tables made here may have columns without any value; their sources have said so already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedmendWarning)
        yield


def _given_rows(given: Given, n: int | None, schema: Schema) -> tuple[np.ndarray, pd.DataFrame]:
    """Ids and checked cells of the known columns."""
    if isinstance(given, Table):
        ids, columns, rows = given.ids, given.frame, given.n_rows
    else:
        columns, rows = _given_frame(given, n)
        ids = np.arange(rows)
    if n is not None and n != rows:
        raise DataError(
            f"{rows} rows are given for n={n}", mend="leave n out, or give one value for all rows"
        )
    for name in columns.columns:
        if name not in schema:
            raise DataError(
                "the generator knows no such column",
                column=str(name),
                mend=did_you_mean(str(name), schema.names),
            )
    with quiet():
        checked = Table(ids, columns, schema=schema.select(columns.columns))
    for name in checked.names:
        _check_room(schema[name], checked.frame[name].dropna())
    return ids, checked.frame


def _check_room(column: Column, cells: pd.Series) -> None:
    """Refuse whole numbers that the column's type does not hold: it would make others of them."""
    dtype = column.dtype.lower().removesuffix("[pyarrow]")
    if not column.is_numeric or not dtype.startswith(("int", "uint")):
        return
    limits = np.iinfo(dtype)
    wrong = cells[(cells < limits.min) | (cells > limits.max)]
    if len(wrong):
        raise DataError(
            f"a column of {column.dtype} holds numbers from {limits.min} to {limits.max}",
            column=column.name,
            value=python_scalar(wrong.iloc[0]),
            mend="give one of these, or fit on a table whose column has a wider type",
        )


def _given_frame(
    given: Mapping[str, Any] | pd.DataFrame, n: int | None
) -> tuple[pd.DataFrame, int]:
    if isinstance(given, pd.DataFrame):
        return given.reset_index(drop=True), len(given)
    lists = {name: values for name, values in given.items() if not _is_single(values)}
    sizes = {name: len(values) for name, values in lists.items()}
    rows = next(iter(sizes.values()), n)
    if rows is None:
        raise ConfigError("given holds single values only. Mend: say how many rows: sample(n, …)")
    for name, size in sizes.items():
        if size != rows:
            raise DataError(
                f"{size} values are given for {rows} rows",
                column=name,
                mend="give one value, or one for each row",
            )
    columns = {
        name: pd.Series([values] * rows) if name not in lists else pd.Series(values).array
        for name, values in given.items()
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(rows)), rows


def _is_single(values: Any) -> bool:
    return isinstance(values, str | bytes) or not hasattr(values, "__len__")


def _fill(series: pd.Series, holes: np.ndarray, cells: Any) -> pd.Series:
    """The series with the cells put into its holes; its dtype stays unless it had no value."""
    cells = pd.Series(cells)
    if holes.all():
        return cells
    filled = series.copy()
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = series.dtype.categories
        fresh = [value for value in cells.dropna().unique() if value not in known]
        filled = filled.cat.add_categories(fresh) if fresh else filled
        cells = cells.astype(object)
    else:
        if pd.api.types.is_integer_dtype(series.dtype):
            cells = pd.to_numeric(cells).round()  # of a column that had fractions in `fit`
        cells = cells.astype(series.dtype)
    filled[holes] = cells.array
    return filled
