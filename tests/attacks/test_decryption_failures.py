"""A coordinator or partner that sends ciphertexts to see how their decryption fails.

What it has: the replies of the key holder's host, as bytes. Measured: replies to failures of unlike
causes must be equal byte for byte, and after one failure the key must be gone: a failure is one
bit about the key, and there is one.
"""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import CryptoError
from fedmend.federation import Alignment, Sealed
from fedmend.secure import sums_he
from fedmend.secure.keys import Identity

from .reached import introduced, party

ROWS = 30


@pytest.fixture
def pair(tmp_path):
    """The bank behind messages, and a partner in the attacker's hands."""
    keys = {name: Identity() for name in ("bank", "telco")}
    made = {}
    for name, other, engine in (("bank", "telco", "host"), ("telco", "bank", "site")):
        table = Table(np.arange(ROWS), pd.DataFrame({name: np.arange(ROWS)}))
        made[name] = party(
            engine, tmp_path / name, table, name=name, identity=keys[name],
            pinned={other: keys[other].public},
        )  # fmt: skip
        made[name].site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    yield made["bank"], made["telco"]
    made["bank"].close()


def products(bank, telco):
    """A fresh product up to the point where the bank, which holds the key, decrypts."""
    a, b = bank.start("BfvWorker", {}), telco.start("BfvWorker", {})
    keys = {"bank": bank.call(a, "public_key", {}), "telco": telco.call(b, "public_key", {})}
    shape = {"profile": "narrow", "plain_bits": 20}
    shape["packing"] = {"rows": ROWS, "columns": 1, "group": 1}
    for at, handle in ((bank, a), (telco, b)):
        at.call(handle, "meet", {"keys": keys})
        at.call(handle, "load", {"provider": "integers", "settings": {"bound": 99}})
        at.call(handle, "agree", shape)
    key = bank.call(a, "public_parameters", {"to": "telco"})
    telco.call(b, "take_key", {"sealed": key, "sender": "bank"})
    part = bank.call(a, "encrypt_part", {"to": "telco", "start": 0, "stop": 1})
    telco.call(b, "take_part", {"sealed": part, "sender": "bank"})
    return a, telco.site._workers[b]


def spoilt(worker, how):
    """Something else than a product, in a good message of the partner's."""
    context, _ = worker._at_work()
    if how == "rubbish":
        return [b"rubbish"]
    if how == "no list":
        return 5
    stranger = context.generate_keys()
    answer = context.encrypt(stranger.public, np.arange(3))
    if how == "fresh level":
        return [context.ciphertext_bytes(answer)]
    if how == "noise":
        answer = context.encrypt(worker._public, np.arange(3))
        context.flood(answer, 133)
    context.switch_down(answer)
    return [context.ciphertext_bytes(answer)]


def test_what_does_not_decrypt_fails_alike_and_once(pair, caplog):
    bank, telco = pair
    replies = set()
    for how in ("rubbish", "no list", "fresh level", "another key", "noise"):
        handle, partner = products(bank, telco)
        sealed = partner.seal(spoilt(partner, how), to="bank", kind="ciphertext")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedmend.secure.channel"):
            ask = {"handle": handle, "method": "decrypt_part"}
            replies.add(bank.reply("call", **ask, kwargs={"sealed": sealed, "sender": "telco"}))
        assert "could not read a message from 'telco'" in caplog.text  # and why, for the bank
        good = partner.multiply_part("bank", 0, 1)
        with pytest.raises(CryptoError, match="'bank' holds no key"):
            bank.call(handle, "decrypt_part", {"sealed": good, "sender": "telco"})
    assert len(replies) == 1
    assert b"noise" not in next(iter(replies))


def test_sums_that_do_not_decrypt_fail_alike_and_once(pair):
    bank, _ = pair
    scheme = sums_he.context()
    noisy = scheme.encrypt(scheme.generate_keys().public, np.arange(3))
    short = scheme.ciphertext_bytes(noisy)
    replies = set()
    for ciphertexts in ([b"rubbish"], [short], [short[:-1]], 5, [5], [short, b""]):
        handle = bank.start("ColumnSumWorker", {"columns": ["bank"]})
        bank.call(handle, "sum_key", {})
        kwargs = {"number": 1, "ciphertexts": ciphertexts}
        replies.add(bank.reply("call", handle=handle, method="decrypt_blinded", kwargs=kwargs))
        with pytest.raises(CryptoError, match="holds no key for sums"):
            bank.call(handle, "decrypt_blinded", {"number": 2, "ciphertexts": []})
    assert len(replies) == 1


def test_messages_that_do_not_open_fail_alike(pair):
    bank, telco = pair
    handle, ours = bank.start("PairWorker", {}), telco.worker("PairWorker")
    theirs = type(ours)(bank, handle)
    introduced(("bank", theirs), ("telco", ours))
    good = ours.blinded(start=0, count=ROWS, to="bank")
    later = ours.blinded(start=0, count=ROWS, to="bank")
    other = bytearray(good.ciphertext)
    other[20] ^= 1
    messages = [
        bytes(other),
        good.ciphertext[:30],
        good.ciphertext[:5],
        b"",
        b"\7" + good.ciphertext[1:],
        later.ciphertext,
    ]
    replies = {
        bank.reply(
            "call",
            handle=handle,
            method="tagged",
            kwargs={"sealed": Sealed("telco", "bank", "hashed-id", sealed), "sender": "telco"},
        )
        for sealed in messages
    }
    assert len(replies) == 1
    theirs.tagged(sealed=good, sender="telco")
    replies.add(
        bank.reply(
            "call", handle=handle, method="tagged", kwargs={"sealed": good, "sender": "telco"}
        )
    )
    assert len(replies) == 1
