"""The contract: what an estimator is to whoever uses it without knowing its family.

After scikit-learn: keyword-only constructor arguments stored under their own names, `fit` returns
self, fitted attributes end in `_`, and `get_params` / `set_params` / `sklearn.base.clone` work.

Every method has `fit`; those that `predict` have `predict`, `predict_proba`, `evaluate`, `save`,
`load` and `hand_out` as well. What only some can tell has a default here, so that flow, report,
audit and serving ask a model and never look into it. What is true of a method as such, fitted or
not, stands in its record (`fedmend.methods.registry`).
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from fedmend._parameters import Parameters
from fedmend._suggest import did_you_mean
from fedmend.data.encode import as_written
from fedmend.errors import ConfigError, NotFitted
from fedmend.federation import Federation
from fedmend.learn.metrics import expected_error


class Estimator(Parameters):
    """What all methods share.

    PRESETS: settings by name, such as the published ones (``paper``). predicts: it ends in a model
    of the label, as against a completion of rows. horizontal: its parties have the same columns.
    takes_reference: `evaluate` can be asked whose labels count (``against=``), because several
    parties label. privacy_: what randomised response cost, if labels were learnt through it.
    expertise_: how well each annotator labels, if that was estimated. choice_: what was compared,
    by a model that chose itself. notes_: what happened in training that people should know, as
    sentences. classes_: of the label, None where it is a number.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    predicts: ClassVar[bool] = True
    horizontal: ClassVar[bool] = False
    takes_reference: ClassVar[bool] = False
    fed_: Federation
    privacy_: Any = None
    expertise_: dict[str, Any] | None = None
    choice_: dict[str, Any] | None = None
    notes_: Sequence[str] = ()
    classes_: Any = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The estimator with the settings of a preset, some of them changed."""
        if name not in cls.PRESETS:
            raise ConfigError(
                f"{cls.__name__} has no preset {name!r}: {did_you_mean(name, cls.PRESETS)}"
            )
        return cls(**{**cls.PRESETS[name], **changes})

    def check_params(self) -> None:
        """Raise all that is wrong with the parameters, before anything is trained."""
        self._check()

    def _check(self) -> None:
        """A family's own checks."""

    def learnt_from(self, fed: Federation) -> list[str]:
        """The parties whose labels a fitted model learnt, and which `evaluate` measures by."""
        return []

    def predict_uncertainty(self, fed: Federation, *, rows: str | None = None) -> np.ndarray:
        """The error rate to expect of each row's prediction: 1 - the largest probability.

        rows: as in `predict_proba`.
        """
        which = {} if rows is None else {"rows": rows}  # horizontal methods have one kind
        return expected_error(self.predict_proba(fed, **which))  # type: ignore[attr-defined]

    def evidence_report(self, fed: Federation) -> dict[str, Any]:
        """Who carried its decisions and how far each source is trusted, where it knows."""
        return {}

    def to(self, fed: Federation) -> Self:
        """The same model at the parties of another federation, its parts at those of like names."""
        # Parties with a home keep their parts there, under this name: it must be nobody else's.
        name = f"moved-{secrets.token_hex(6)}"
        with tempfile.TemporaryDirectory(prefix="fedmend-") as folder:
            self.save(Path(folder) / name)  # type: ignore[attr-defined]
            return type(self).load(Path(folder) / name, fed)  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "fed_"):
            name = type(self).__name__
            keep = (
                f"save(folder), and {name}.load(folder, fed)" if self.predicts else "export(name)"
            )
            raise ConfigError(
                f"a fitted {name} cannot be pickled or copied: its parts are at the parties. "
                f"Mend: model.{keep}; sklearn.base.clone(model) is one that is not fitted"
            )
        return vars(self)

    def _require_fit(self) -> None:
        if not hasattr(self, "fed_"):
            raise NotFitted(f"{type(self).__name__} is not fitted. Mend: call fit(fed) first")

    def _require_at(self, fed: Federation) -> None:
        """That it is fitted, and at the parties of this federation."""
        self._require_fit()
        if fed.engine is not self.fed_.engine:
            raise ConfigError(
                "the model's parts are at the parties of another federation. "
                "Mend: model.to(fed), or give the rows as a further table of the same parties: "
                "Party(name, table, test=…) and fed.on('test')"
            )

    @classmethod
    def _unfitted(cls, saved: Mapping[str, Any], path: str | os.PathLike[str]) -> Self:
        """An unfitted estimator as the manifest of the model at `path` has it."""
        if saved["method"] != cls.__name__:
            raise ConfigError(
                f"{path} holds a {saved['method']}, not a {cls.__name__}. "
                f"Mend: fm.{saved['method']}.load(…)"
            )
        # JSON has no tuples; no parameter is a list. Parameters that are no more (of a model saved
        # by an earlier version) have done their work in its training.
        params = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in saved["params"].items()
            if name in cls.parameter_names()
        }
        return cls(**params)


def frame_of(
    classes: Sequence[Any] | None,
    outputs: np.ndarray,
    uncertainty: np.ndarray | None,
    found: dict[str, np.ndarray],
) -> pd.DataFrame:
    """Outputs and what is known of them, as a table."""
    columns: dict[str, Any] = {}
    if classes:
        shown = [as_written(value) for value in classes]
        columns["prediction"] = np.asarray(shown)[outputs.argmax(1)]
        columns |= {f"p({name})": outputs[:, at] for at, name in enumerate(shown)}
        columns["uncertainty"] = uncertainty
    else:
        columns["prediction"] = outputs
    columns |= {f"share({name})": share for name, share in found.items()}
    return pd.DataFrame(columns)
