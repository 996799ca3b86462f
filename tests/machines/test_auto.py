"""`auto` with all that it tries by itself, over real processes, and its blend served."""

from __future__ import annotations

import pytest
from tests.serve.conftest import serving

from fedmend.serve.partner import PartnerServer
from fedmend.serve.service import open_kit

from .conftest import PARTIES, running

pytestmark = pytest.mark.slow

TOML = (
    PARTIES
    + """
[[method]]
name = "auto"
folds = 2
epochs = 2
trees = 5

[flare]
port = {port}
wait_seconds = 60
"""
)


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")
def test_auto_is_trained_and_answers_over_machines(tmp_path):
    with running(tmp_path, toml=TOML, probe=False) as machines:
        (method,) = machines.run("over").methods
        assert method.title == "Auto" and method.scores["accuracy"] > 0.6
        kits = machines.kits
        with serving(PartnerServer(kits.party("telco"), "127.0.0.1:0")) as partner:
            service = open_kit(kits.party("bank"), {"telco": partner.address})
            try:
                known, alone = service.by_ids([100, 5], 60.0)
            finally:
                service.close()
    assert known["absent"] == {} and known["used"] == ("bank", "telco")
    assert alone["absent"] == {"telco": "not known"} and alone["used"] == ("bank",)
    assert known["p(yes)"] + known["p(no)"] == pytest.approx(1.0)
