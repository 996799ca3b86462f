"""What all estimators share, after scikit-learn's conventions: parameters by name, and manifests.

Keyword-only constructor arguments stored under their own names, `fit` returns self, fitted
attributes end in `_`, and `get_params` / `set_params` / `sklearn.base.clone` work.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from fedmend._parameters import Parameters
from fedmend.errors import ConfigError
from fedmend.split.parts import MANIFEST, read_json

__all__ = ["Estimator"]


class Estimator(Parameters):
    """Parameters by name, as scikit-learn has them, and manifests of saved models."""

    @classmethod
    def _of_manifest(cls, path: str | os.PathLike[str]) -> tuple[Self, dict[str, Any]]:
        """An unfitted estimator as it was saved, and what else the manifest says."""
        saved = read_json(Path(path) / MANIFEST, "a saved model")
        if saved["method"] != cls.__name__:
            raise ConfigError(
                f"{path} holds a {saved['method']}, not a {cls.__name__}. "
                f"Mend: fm.{saved['method']}.load(…)"
            )
        # JSON has no tuples; no parameter is a list.
        params = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in saved["params"].items()
        }
        return cls(**params), saved
