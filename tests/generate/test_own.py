"""A generator of one's own, as docs/generators.md has it: by itself, saved, and in FedPSG-PUM."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedmend as fm
from fedmend.data.table import Table
from fedmend.errors import ConfigError
from fedmend.generate import Generator, load, make
from fedmend.generate.encoder import Encoded, Encoder


class Resampler(Generator):
    """Rows of the table again, drawn at random."""

    name = "resampler"

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        self.seed, self.device = seed, device

    def _encoder(self) -> Encoder:
        return Encoder(numeric="quantile")

    def _build(self) -> dict[str, torch.nn.Module]:
        return {}

    def _train(self, rows: Encoded, progress: Any) -> None:
        self.rows_ = np.asarray(rows.values)

    def _generate(self, n: int, known: Encoded | None, generator: torch.Generator) -> np.ndarray:
        return self.rows_[torch.randint(len(self.rows_), (n,), generator=generator).numpy()]

    def _extra(self) -> dict[str, Any]:
        return {"rows": self.rows_}

    def _set_extra(self, values: dict[str, Any]) -> None:
        self.rows_ = values["rows"]


def test_it_is_known_by_its_name(tmp_path):
    rng = np.random.default_rng(0)
    frame = {"age": rng.integers(20, 60, 80), "city": rng.choice(["Rome", "Oslo"], 80)}
    made = make("resampler", seed=3).fit(Table(np.arange(80), frame))
    rows = made.sample(6, seed=1)
    assert set(rows.frame["age"]) <= set(frame["age"])
    made.save(tmp_path / "own.fmw")
    again = load(tmp_path / "own.fmw")
    assert type(again) is type(made)
    pd.testing.assert_frame_equal(again.sample(6, seed=1).frame, rows.frame)
    with pytest.raises(ConfigError, match="did you mean 'resampler'"):
        make("resamplers")


def test_it_fills_weak_columns_in_fedpsg_pum():
    rng = np.random.default_rng(1)
    known = np.arange(60)
    x = rng.normal(size=120)
    bank = Table(np.arange(120), {"x": x, "late": rng.integers(0, 2, 120)}, label="late")
    telco = Table(known, {"plan": rng.choice(["a", "b", "c"], 60), "calls": x[:60] + 0.1})
    fed = fm.Federation(fm.Party("bank", bank), fm.Party("telco", telco))
    fm.align(fed)
    quick = {"model": "linear", "rounds": 1, "correlation_mode": "dealer"}
    quick["min_skill"] = None  # columns that nothing explains are generated all the same
    own = {"generator": "resampler", "generator_params": {"seed": 4}}
    mended = fm.FedPSGPUM(source="bank", **own, **quick).fit(fed)
    engine: Any = mended.federation.engine
    found = engine.sites["telco"].tables[mended.federation.scope]
    assert found.n_rows == 120 and set(found.frame["plan"]) <= {"a", "b", "c"}
    with pytest.raises(ConfigError, match="resampler has no parameter 'epochs'"):
        fm.FedPSGPUM(generator="resampler", generator_params={"epochs": 3}).fit(fed)
