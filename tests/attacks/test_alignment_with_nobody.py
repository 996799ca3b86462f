"""A coordinator that has a party store an alignment which no other party found.

An alignment lets per-row protocols run over rows of the coordinator's choice. Before, a party
stored one on the coordinator's word alone. Measured: whether the site holds an alignment.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.errors import AlignmentError, CryptoError, Refused

from .reached import ENGINES, introduced, partners

ROWS = 40


@pytest.fixture(params=ENGINES)
def parties(request, tmp_path):
    tables = {
        name: Table(np.arange(start, start + ROWS), pd.DataFrame({name: np.arange(ROWS)}))
        for name, start in (("bank", 0), ("telco", 10))
    }
    with partners(request.param, tmp_path, tables) as made:
        yield made


def test_by_same_order_with_nobody(parties):
    bank = parties["bank"].worker("SameOrderWorker")
    bank.salt(to=[])
    bank.digest()
    assert bank.confirm() == {}
    for _ in range(2):
        with pytest.raises(Refused, match="an alignment that was not confirmed by any other party"):
            bank.store()
        bank.agree(messages={})
    assert not parties["bank"].site.alignments


def test_by_same_order_with_a_partner_that_was_met_and_never_asked(parties):
    bank, telco = (at.worker("SameOrderWorker") for at in parties.values())
    introduced(("bank", bank), ("telco", telco))
    bank.salt(to=["telco"])
    bank.digest()
    with pytest.raises(Refused, match="not confirmed by 'telco'"):
        bank.store()
    assert not parties["bank"].site.alignments


def test_by_same_order_with_a_partner_that_has_other_rows(parties):
    bank, telco = (at.worker("SameOrderWorker") for at in parties.values())
    introduced(("bank", bank), ("telco", telco))
    telco.take_salt(sealed=bank.salt(to=["telco"])["telco"], sender="bank")
    bank.digest(), telco.digest()
    with pytest.raises(AlignmentError, match="'bank' and 'telco' found different rows"):
        bank.agree(messages={"telco": telco.confirm()["bank"]})
    with pytest.raises(Refused, match="not confirmed by 'telco'"):
        bank.store()


def matched(parties, *, tell=lambda messages: messages):
    """The two-party protocol, but for its end."""
    bank, telco = (at.worker("PairWorker") for at in parties.values())
    introduced(("bank", bank), ("telco", telco))
    for x, y, name, other in ((bank, telco, "bank", "telco"), (telco, bank, "telco", "bank")):
        sealed = x.blinded(start=0, count=ROWS, to=other)
        x.keep(sealed=y.tagged(sealed=sealed, sender=name), sender=other)
    assert bank.settle(peer="telco") == ROWS - 10
    return bank, telco


def test_by_set_intersection_without_the_partners_word(parties):
    bank, telco = matched(parties)
    with pytest.raises(Refused, match="not confirmed by 'telco'"):
        bank.store()
    with pytest.raises(AlignmentError, match="'telco': the rows were not matched yet"):
        telco.confirm()
    own = bank.confirm()["telco"]
    with pytest.raises(CryptoError, match="goes from 'bank' to 'telco'"):
        bank.agree(messages={"telco": own})  # its own word turned back at it
    assert not parties["bank"].site.alignments
    telco.settle(peer="bank")
    bank.agree(messages={"telco": telco.confirm()["bank"]})
    assert bank.store() == {"aligned": ROWS - 10, "unaligned": 10}


def test_a_word_given_for_an_earlier_result_is_not_one_for_a_later(parties):
    bank, telco = matched(parties)
    telco.settle(peer="bank")
    bank.agree(messages={"telco": telco.confirm()["bank"]})
    bank.settle(peer="telco")
    with pytest.raises(Refused, match="not confirmed by 'telco'"):
        bank.store()


def test_rows_that_were_never_matched_with_anybody(parties):
    for worker in ("PairWorker", "StarWorker"):
        bank = parties["bank"].worker(worker)
        with pytest.raises(AlignmentError, match="not matched yet"):
            bank.store()
    star = parties["bank"].worker("StarWorker")  # a hub of its own, with nobody around it
    star.settle(messages={})
    with pytest.raises(Refused, match="not confirmed by any other party"):
        star.store()
    assert not parties["bank"].site.alignments
