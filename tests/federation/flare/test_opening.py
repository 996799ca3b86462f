"""What a federation over machines says in its hello, before any machine is there."""

from __future__ import annotations

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend.federation import Federation, Site
from fedmend.federation.engines.flare import session
from fedmend.federation.engines.flare.host import PartyHost
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.federation.wire_types import VERSION

from .conftest import TABLES


@pytest.mark.parametrize("seed", [-1, "1", None])
def test_a_seed_that_is_none_is_refused_before_anybody_is_called(tmp_path, seed):
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        Federation.over_flare(tmp_path, seed=seed)


def test_kits_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no kit of the coordinator. Mend: 'fedmend prov"):
        Federation.over_flare(tmp_path)


def test_numbers_of_numpy_and_whole_shares_are_understood_by_a_party(tmp_path, monkeypatch):
    from fedmend._version import __version__

    (tmp_path / "coordinator" / "admin" / "startup").mkdir(parents=True)
    said = []

    def opened(reach, parties, hello, **options):
        said.append(hello)
        raise ConfigError("far enough")

    monkeypatch.setattr(session, "open_engine", opened)
    with pytest.raises(ConfigError, match="far enough"):
        Federation.over_flare(tmp_path, parties=["bank"], seed=np.int64(3), test_share=0)
    (hello,) = said
    host = PartyHost("bank", lambda got: Site("bank", TABLES, seed=got.seed), tmp_path / "bank")
    parts = {"run": hello.run, "title": hello.title, "methods": list(hello.methods)}
    numbers = {"seed": hello.seed, "test_share": hello.test_share}
    greeting = request("hello", version=__version__, wire=VERSION, **parts, **numbers)
    assert read_reply(host.answer(greeting), "bank", "hello")["party"] == "bank"
    host.close("the test ended")
