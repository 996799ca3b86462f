"""`seal=`: every split method learns the same in messages, and the coordinator reads none of it."""

import copy
from typing import Any

import numpy as np
import pytest

from fedmend.errors import ConfigError, Refused
from fedmend.federation import Federation, Policy
from fedmend.methods import (
    RISA,
    SFHTL,
    SSLVFL,
    VFL,
    AbsentPartner,
    FedCVT,
    FewShotVFL,
    InC,
    Local,
    LocalVFL,
    RandomMatch,
)
from fedmend.methods.network import SplitEstimator
from fedmend.split.parts import part_of

QUICK: dict[str, Any] = {"epochs": 2, "bottom": (8,), "top": (8,), "embedding": 4, "seed": 3}
MORE: dict[type[SplitEstimator], dict[str, Any]] = {
    VFL: {},
    LocalVFL: {},
    RandomMatch: {},
    SSLVFL: {"pretrain_epochs": 1},
    SFHTL: {"pretrain_epochs": 1, "epochs": 6},  # pseudo-labels come after five
    FedCVT: {},
    FewShotVFL: {"local_updates": 10},
    AbsentPartner: {},
    RISA: {"members": 2},
}
TWO = {"bank": ["a", "b", "y"], "telco": ["c", "d", "e", "city"]}


def make(method: type[SplitEstimator], **changes: Any) -> SplitEstimator:
    return method(**QUICK | MORE[method] | changes)


def exchanged(fed: Federation) -> list[Any]:
    """What crossed of embeddings and gradients; an empty dict holds none."""
    return [e for e in fed.ledger if e.kind in ("embedding", "gradient") and e.shape]


def weights(fed: Federation, model: SplitEstimator) -> list[np.ndarray]:
    """Of every party's bottom and top."""
    found = []
    for name in fed.names:
        part: Any = part_of(fed.engine.site(name), model.network_.model)
        for each in (part.top, part.bottom):
            if each is not None:
                found += [value.numpy() for value in each.module.state_dict().values()]
    return found


@pytest.mark.daily("VFL", "SFHTL", "FewShotVFL", "RISA")
@pytest.mark.parametrize("method", list(MORE))
def test_messages_change_no_bit(make_frame, make_fed, method):
    columns = TWO if method is FedCVT else {**TWO, "telco": ["c", "d"], "shop": ["e", "city"]}
    made = []
    for seal in (False, True):
        fed = make_fed(make_frame(60), aligned=48, columns=columns)
        model = make(method, seal=seal).fit(fed)
        made.append((weights(fed, model), model.predict_proba(fed), model.history_, fed))
    assert len(made[0][0]) > 6
    for open_, sealed in zip(made[0][0], made[1][0], strict=True):
        np.testing.assert_array_equal(open_, sealed)
    np.testing.assert_array_equal(made[0][1], made[1][1])
    assert made[0][2] == made[1][2]
    assert not any(entry.sealed_for for entry in exchanged(made[0][3]))
    assert len(exchanged(made[1][3])) >= 6
    assert all(entry.sealed_for for entry in exchanged(made[1][3]))
    assert {e.dtype for e in exchanged(made[1][3])} == {"sealed bytes"}


def test_every_party_gets_a_message_of_its_own(make_frame, make_fed):
    fed = make_fed(make_frame(100))
    VFL(**QUICK, seal=True).fit(fed)
    told = {(e.kind, e.sender, e.receiver): e.sealed_for for e in exchanged(fed)}
    assert told == {
        ("embedding", "telco", "coordinator"): "bank",
        ("embedding", "shop", "coordinator"): "bank",
        ("embedding", "coordinator", "bank"): "bank",
        ("gradient", "bank", "coordinator"): "telco, shop",
        ("gradient", "coordinator", "telco"): "telco",
        ("gradient", "coordinator", "shop"): "shop",
    }


def test_in_one_process_nothing_is_sealed_unless_asked_for(make_frame, make_fed):
    fed = make_fed(make_frame(100))
    VFL(**QUICK).fit(fed)
    assert not [entry for entry in fed.ledger if entry.sealed_for]
    assert not [entry for entry in fed.ledger if entry.call.endswith(".public_key")]


@pytest.mark.parametrize("method", [VFL, RISA])
def test_rows_are_predicted_from_messages(make_frame, make_fed, tmp_path, method):
    fed = make_fed(make_frame(100), aligned=80, test=make_frame(40, seed=1))
    model = make(method).fit(fed)
    open_ = model.predict_proba(fed.on("test"))
    before = len(exchanged(fed))
    model.set_params(seal=True).save(tmp_path / "model")
    again = method.load(tmp_path / "model", fed)
    assert again.seal is True
    np.testing.assert_array_equal(again.predict_proba(fed.on("test")), open_)
    new = exchanged(fed)[before:]
    assert new
    assert all(entry.sealed_for for entry in new)
    np.testing.assert_array_equal(
        again.predict_proba(fed, rows="bank"), model.predict_proba(fed, rows="bank")
    )


@pytest.mark.daily("RISA")
@pytest.mark.parametrize("method", [VFL, RISA])
def test_a_training_goes_on_in_messages_where_another_process_stopped(
    make_frame, make_fed, tmp_path, method
):
    """New workers, new keys and new parties' identities: no message of before is waited for."""
    whole = make_fed(make_frame(100), aligned=80)
    expected = make(method, epochs=4).fit(whole)

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        make(method, epochs=4, seal=True).fit(
            make_fed(make_frame(100), aligned=80), progress=stop, checkpoint=tmp_path
        )
    fed = make_fed(make_frame(100), aligned=80)
    model = make(method, epochs=4, seal=True).fit(fed, checkpoint=tmp_path, resume=True)
    for whole_, resumed in zip(weights(whole, expected), weights(fed, model), strict=True):
        np.testing.assert_array_equal(whole_, resumed)
    assert all(entry.sealed_for for entry in exchanged(fed))


def test_a_party_may_insist_on_messages(make_frame, make_fed):
    insists = Policy(sealed=frozenset({"embedding", "gradient"}))
    for party, call in (("telco", "BottomWorker.step"), ("bank", "TopWorker.step")):
        fed = make_fed(make_frame(60), **{f"policy_{party}": insists})
        with pytest.raises(Refused, match=rf"{party}.*{call}.*not sealed.*Mend: seal = true"):
            VFL(**QUICK).fit(fed)
        assert not [e for e in exchanged(fed) if e.sender == party]
        assert [e.call for e in fed.ledger if e.note == "refused"] == [call]
        assert VFL(**QUICK, seal=True).fit(fed).predict_proba(fed).shape == (60, 2)


def test_a_party_alone_has_nothing_to_seal(make_frame, make_fed):
    fed = make_fed(make_frame(100))
    scores = [Local(**QUICK, seal=seal).fit(fed).score(fed) for seal in (False, True)]
    assert scores[0] == scores[1]
    assert not exchanged(fed)


def test_a_top_at_the_coordinator_cannot_be_sealed_off(make_frame, make_fed):
    fed = make_fed(make_frame(100))
    with pytest.raises(ConfigError, match=r"top is at the coordinator.*Mend: leave seal out"):
        InC(epochs=1, seal=True).fit(fed)
    assert copy.copy(InC(seal=False)).get_params()["seal"] is False
