"""Embeddings and gradients encrypted: the values come out as they went in, and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.federation import Federation, Party, Sealed, exposed, wire
from fedmend.secure.channel import ExchangeWorker, is_sealed, seal_exchange
from fedmend.secure.keys import Identity

from .parties import unread


class LowerWorker(ExchangeWorker):
    """Hands out numbers it is given, and keeps the gradients that come back."""

    @exposed(kind="embedding", takes={"gradient": "gradient"})
    def step(self, numbers: Any, gradient: Any = None) -> Any:
        self.gradient = gradient
        return numbers

    @exposed(kind="statistic")
    def kept(self) -> Any:
        return self.gradient


class UpperWorker(ExchangeWorker):
    """Keeps embeddings, and answers with each of them negated, by party."""

    @exposed(kind="gradient", takes={"embeddings": "embedding"})
    def step(self, embeddings: dict[str, Any] | None, note: str = "") -> Any:
        self.embeddings = embeddings
        return None if embeddings is None else {p: -each for p, each in embeddings.items()}

    @exposed(kind="gradient", takes={"embedding": "embedding"})
    def one(self, embedding: Any) -> Any:
        return -embedding

    @exposed(kind="statistic")
    def kept(self) -> Any:
        return self.embeddings


def groups(*names, sealed=True, by_party=True):
    parties = [Party(name, Table([1, 2], {"x": [0.5, 1.5]})) for name in ("bank", *names)]
    fed = Federation(*parties, strict=True)
    lower, upper = (
        fed.workers(LowerWorker, parties=names),
        fed.workers(UpperWorker, parties=["bank"]),
    )
    if sealed:
        seal_exchange(lower, upper, by_party=by_party)
    return lower, upper


def bits(value: Any) -> bytes:
    return wire.encode(value)


arrays = st.builds(
    lambda dtype, rows, seed: (np.random.default_rng(seed).normal(size=(rows, 3)) * 9).astype(
        dtype
    ),
    st.sampled_from(["float16", "float32", "float64", "int64"]),
    st.integers(0, 5),
    st.integers(0, 99),
)


@given(values=st.fixed_dictionaries({"shop": arrays, "telco": arrays}))
@settings(max_examples=10)
def test_what_comes_out_is_what_went_in_to_the_bit(values):
    lower, upper = groups("shop", "telco")
    messages = {party: lower[party].step(values[party]) for party in lower}
    assert {type(each) for each in messages.values()} == {Sealed}
    answer = upper["bank"].step(messages)
    assert {(each.sender, each.recipient, each.kind) for each in answer.values()} == {
        ("bank", "shop", "gradient"),
        ("bank", "telco", "gradient"),
    }
    kept = upper["bank"].kept()
    for party in lower:
        assert bits(kept[party]) == bits(values[party])
        lower[party].step(values[party], answer[party])
        assert bits(lower[party].kept()) == bits(-values[party])


def test_tensors_of_all_dtypes_come_out_as_they_went_in():
    lower, upper = groups("telco")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        value = torch.randn(4, 2).to(dtype)
        upper["bank"].step({"telco": lower["telco"].step(value)})
        assert torch.equal(upper["bank"].kept()["telco"], value)


def test_a_pair_needs_no_dict():
    lower, upper = groups("telco", by_party=False)
    answer = upper["bank"].one(lower["telco"].step(np.ones(3)))
    lower["telco"].step(np.zeros(1), answer)
    assert lower["telco"].kept().tolist() == [-1.0, -1.0, -1.0]


def test_other_arguments_none_and_other_kinds_stay_open():
    lower, upper = groups("telco")
    assert upper["bank"].step(None, note="nothing to learn from") is None
    assert upper["bank"].kept() is None
    lower["telco"].step(np.ones(1))
    assert lower["telco"].kept() is None


def test_open_exchanges_make_no_keys(monkeypatch):
    """A machine without cryptography must be able to train in one process."""

    def none(self: Identity, *given: Any) -> None:
        raise ModuleNotFoundError("No module named 'cryptography'")

    monkeypatch.setattr(Identity, "__init__", none)
    lower, upper = groups("telco", sealed=False)
    assert upper["bank"].step(lower.step(np.ones(2)))["telco"].tolist() == [-1.0, -1.0]
    _, upper = groups()  # sealed, with nobody to exchange with
    assert upper["bank"].step({}) == {}


# ------------------------------------------------------------------ whoever carries the messages


def test_an_open_value_or_a_message_of_another_sender_or_kind_is_refused():
    lower, upper = groups("shop", "telco")
    with pytest.raises(
        CryptoError, match=r"expected an encrypted message from 'telco' and got a ndarray"
    ):
        upper["bank"].step({"telco": np.ones(2)})
    with pytest.raises(CryptoError, match=r"expected an encrypted message from 'bank'"):
        lower["telco"].step(np.ones(2), np.ones(2))
    messages = lower.step(np.ones(2))
    with pytest.raises(CryptoError, match="expected an encrypted message from 'telco'"):
        upper["bank"].step({"telco": messages["shop"], "shop": messages["telco"]})
    with pytest.raises(CryptoError, match="expected an encrypted message from 'bank'"):
        lower["shop"].step(np.ones(2), messages["telco"])
    lower, upper = groups("telco", by_party=False)
    gradient = upper["bank"].one(lower["telco"].step(np.ones(2)))
    with pytest.raises(CryptoError):
        upper["bank"].one(gradient)


def test_messages_are_taken_once_and_in_turn():
    lower, upper = groups("telco")
    first, second = (lower["telco"].step(np.full(1, each)) for each in (1.0, 2.0))
    with unread("out of turn"):
        upper["bank"].step({"telco": second})
    upper["bank"].step({"telco": first})
    with unread("sent again"):
        upper["bank"].step({"telco": first})
    upper["bank"].step({"telco": second})
    assert upper["bank"].kept()["telco"].tolist() == [2.0]


def test_a_method_that_fails_has_taken_its_message():
    """So that the next exchange is not out of turn."""
    lower, upper = groups("telco", by_party=False)
    with pytest.raises(Exception, match="bad operand"):
        upper["bank"].one(lower["telco"].step("no numbers"))
    assert upper["bank"].one(lower["telco"].step(np.ones(1))) is not None


def test_sealed_where_parties_are_apart_and_as_asked_for():
    fed = Federation(Party("bank", Table([1], {"x": [0.5]})))
    assert [is_sealed(fed, each) for each in (None, False, True)] == [False, False, True]
    fed.engine.apart = True
    assert [is_sealed(fed, each) for each in (None, False, True)] == [True, False, True]
