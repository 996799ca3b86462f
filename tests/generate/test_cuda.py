"""All generators on an accelerator: the same interface, seeds, files; skipped without one."""

import numpy as np
import pytest
import torch

from fedmend.generate import generators, load

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", generators())
def test_fit_sample_and_impute_there(name, small, mixed, gappy):
    model = small(name, device="cuda").fit(mixed)
    assert {p.device.type for m in model.modules_.values() for p in m.parameters()} == {"cuda"}
    made = model.sample(40, seed=1)
    assert made.schema == mixed.schema
    assert not made.frame.isna().to_numpy().any()
    assert small(name, device="cuda").fit(mixed).sample(40, seed=1).equals(made)
    assert not small(name, device="cuda", seed=4).fit(mixed).sample(40, seed=1).equals(made)
    given = model.sample(20, given={"city": "Rome"}, seed=1)
    assert (given.frame["city"] == "Rome").all()
    filled = model.impute(gappy)
    assert not filled.frame.isna().to_numpy().any()
    for column in gappy.names:
        there = gappy.frame[column].notna().to_numpy()
        same = filled.frame[column].astype(object) == gappy.frame[column].astype(object)
        assert same.to_numpy()[there].all(), column


@pytest.mark.parametrize("name", generators())
def test_files_go_from_there_to_the_cpu(name, small, mixed, tmp_path):
    model = small(name, device="auto").fit(mixed)
    assert model.device_.type == "cuda"
    model.save(tmp_path / "model.fmw")
    again = load(tmp_path / "model.fmw")
    assert again.sample(25, seed=2).equals(model.sample(25, seed=2))
    there = {
        f"{m}.{k}": v for m, net in again.modules_.items() for k, v in net.state_dict().items()
    }
    here = load(tmp_path / "model.fmw").set_params(device="cpu")
    here.save(tmp_path / "cpu.fmw")
    moved = load(tmp_path / "cpu.fmw")
    assert moved.device_.type == "cpu"
    for module, net in moved.modules_.items():
        for key, value in net.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), there[f"{module}.{key}"].cpu().numpy())
    assert moved.sample(10, seed=2).schema == mixed.schema
