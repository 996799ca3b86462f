"""A coordinator that invents a party: ids by a dictionary, rows by masks, sealed messages opened.

The bank pinned the key of telco, its partner. What the coordinator has: everything its invented
party holds and receives. Measured: how many ids, values of rows, and embeddings of the bank it can
tell; before, it told all of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from fedmend.data.table import Table
from fedmend.deploy.party_file import PARTNERS_FILE
from fedmend.errors import CryptoError, Refused
from fedmend.federation import KINDS, Alignment, Federation, Party, Policy, Site
from fedmend.federation.ledger import read_ledger
from fedmend.secure.keys import Identity, keyring
from fedmend.secure.sums import SumForm
from fedmend.serve.predicting import PredictionWorker, groups_of
from fedmend.split.config import SplitConfig

from .reached import ENGINES, Asked, AtHost, AtSite, introduced, party

ROWS = 60
FORM = SumForm(-(2**20), 2**20)
CONFIG = SplitConfig(bottom=(), embedding=2).to_wire()


def table() -> Table:
    rng = np.random.default_rng(1)
    ids = np.sort(rng.choice(1000, ROWS, replace=False))
    frame = pd.DataFrame(
        {"income": rng.integers(1000, 9000, ROWS), "age": rng.integers(18, 90, ROWS)}
    )
    return Table(ids, frame)


@pytest.fixture(params=ENGINES)
def bank(request, tmp_path):
    telco = Identity()
    made = party(
        request.param, tmp_path / "bank", table(), pinned={"telco": telco.public},
        sealed=("embedding", "gradient"), allow=KINDS,
    )  # fmt: skip
    made.telco = telco
    made.site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    yield made
    made.close()


def ghost(name: str = "ghost", identity: Identity | None = None) -> AtSite:
    """A party of the coordinator's own making: every id there is, a column of zeros."""
    site = Site(
        name,
        {"train": Table(np.arange(1000), {"zero": np.zeros(1000, int)})},
        policy=Policy(allow=frozenset(KINDS)),
    )
    site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
    if identity is not None:
        keyring(site, identity=identity)
    return AtSite(site)


def test_ids_by_a_dictionary(bank):
    ours, theirs = ghost().worker("PairWorker"), bank.worker("PairWorker")
    with pytest.raises(Refused, match=r"'ghost' is none of its partners \(telco\).*Mend"):
        introduced(("bank", theirs), ("ghost", ours))
    with pytest.raises(CryptoError, match="'bank' has no key of 'ghost'"):
        theirs.blinded(start=0, count=ROWS, to="ghost")
    assert list(keyring(bank.site).fingerprints()) == ["bank", "telco"]


def rounds(*workers: Asked, parties: list[str]) -> np.ndarray:
    """What the coordinator adds up in a sum by masks."""
    for worker in workers:
        worker.prepare_round(number=1, name="x", form=asdict(FORM), parties=parties)
    return sum(worker.masked(number=1, own_mask=False) for worker in workers)


def test_rows_by_masks_that_it_shares(bank):
    theirs = bank.worker("ColumnSumWorker", columns=["income", "age"], per="row")
    ours = ghost().worker("ColumnSumWorker", columns=["zero", "zero"], per="row")
    with pytest.raises(Refused, match="none of its partners"):
        introduced(("bank", theirs), ("ghost", ours))
    with pytest.raises(CryptoError, match="'bank' has no key of 'ghost'"):
        rounds(theirs, ours, parties=["bank", "ghost"])


def test_embeddings_sealed_for_it(bank):
    theirs, ours = bank.worker("BottomWorker", model="m"), ghost().worker("BottomWorker", model="m")
    with pytest.raises(Refused, match="none of its partners"):
        introduced(("bank", theirs), ("ghost", ours))
    theirs.create(config=CONFIG)
    theirs.attach(segments=[["aligned", ROWS]], config=CONFIG)
    with pytest.raises(Refused, match="that is not sealed"):
        theirs.embed(rows=np.arange(ROWS))
    theirs.seal_for(party="ghost")
    with pytest.raises(CryptoError, match="'bank' has no key of 'ghost'"):
        theirs.embed(rows=np.arange(ROWS))
    # Nor can it make the bank change its mind once the recipient is settled.
    with pytest.raises(CryptoError, match="seals for 'ghost' and does not change to 'telco'"):
        theirs.seal_for(party="telco")


# ------------------------------------------------------------------ variants


def test_it_comes_under_the_partners_name(bank):
    theirs = bank.worker("ColumnSumWorker", columns=["income"], per="row")
    ours = ghost("telco").worker("ColumnSumWorker", columns=["zero"], per="row")
    with pytest.raises(CryptoError, match="the key of 'telco' has changed"):
        introduced(("bank", theirs), ("telco", ours))


def test_it_shows_the_partners_lasting_key_beside_a_fresh_one_of_its_own(bank):
    """The bank meets it, and what it says is under a secret that takes telco's private key."""
    theirs = bank.worker("ColumnSumWorker", columns=["income"], per="row")
    ours = ghost("telco").worker("ColumnSumWorker", columns=["zero"], per="row")
    shown = bank.telco.public + ours.public_key()[32:]
    theirs.meet(keys={"telco": shown})
    ours.meet(keys={"bank": theirs.public_key()})
    total = rounds(theirs, ours, parties=["bank", "telco"])
    guesses = FORM.decode(total, (ROWS, 1), 2)[:, 0]
    truth = bank.site.tables["train"].frame["income"].to_numpy()
    assert not (guesses == truth).any()
    assert abs(np.corrcoef(total.astype(float), truth)[0, 1]) < 0.4  # of 60 uniform numbers


# ------------------------------------------------------------------ nothing pinned: first sight


def first_run(folder):
    """A party over machines that names nobody; in its first run it meets telco."""
    folder.mkdir(exist_ok=True)
    table().frame.assign(id=table().ids).to_csv(folder / "table.csv", index=False)
    (folder / "party.toml").write_text('name = "bank"\ndata = "table.csv"\nid = "id"\n')
    bank, telco = AtHost(folder, methods=("vfl",)), ghost("telco", Identity())
    introduced(("bank", bank.worker("PairWorker")), ("telco", telco.worker("PairWorker")))
    bank.close()
    return keyring(telco.site).identity


def test_a_key_believed_at_first_sight_is_shown_remembered_and_closes_the_circle(tmp_path):
    telco = first_run(tmp_path)
    words = f"first meeting with 'telco': the key {telco.fingerprint}"
    entries = read_ledger(tmp_path / "ledgers" / "r.jsonl")
    (noted,) = [each for each in entries if each.sender == each.receiver == "bank"]
    assert noted.note.startswith(words) and not noted.is_crossing
    assert words in (tmp_path / "events.jsonl").read_text()
    assert json.loads((tmp_path / PARTNERS_FILE).read_text()) == {"telco": telco.public.hex()}

    bank = AtHost(tmp_path, methods=("vfl",), run="second")
    with pytest.raises(Refused, match=r"'ghost' is none of its partners \(telco\)"):
        introduced(("bank", bank.worker("PairWorker")), ("ghost", ghost().worker("PairWorker")))
    with pytest.raises(CryptoError, match="the key of 'telco' has changed"):
        introduced(
            ("bank", bank.worker("PairWorker")), ("telco", ghost("telco").worker("PairWorker"))
        )
    again = ghost("telco", telco)  # the real one is welcome, and nothing new is to be told
    introduced(("bank", bank.worker("PairWorker")), ("telco", again.worker("PairWorker")))
    bank.close()
    assert not [each for each in read_ledger(tmp_path / "ledgers" / "second.jsonl")
                if each.note.startswith("first")]  # fmt: skip


def test_how_many_ids_a_partner_asked_about_is_shown_to_the_party(tmp_path):
    """A dictionary by a partner that is what it says cannot be prevented; it can be seen."""
    telco = Identity()
    bank = party("host", tmp_path / "bank", table(), pinned={"telco": telco.public})
    curious = ghost("telco", telco)
    theirs, ours = bank.worker("PairWorker"), curious.worker("PairWorker")
    introduced(("bank", theirs), ("telco", ours))
    for x, y, name, other in ((theirs, ours, "bank", "telco"), (ours, theirs, "telco", "bank")):
        sealed = x.blinded(start=0, count=1000, to=other)
        x.keep(sealed=y.tagged(sealed=sealed, sender=name), sender=other)
    assert theirs.settle(peer="telco") == ROWS
    bank.close()
    words = f"telco asked for 1,000 ids in 'train' of bank: {ROWS} of the {ROWS} here are among"
    assert words in (tmp_path / "bank" / "events.jsonl").read_text()


def test_who_is_let_in_by_nobody_is_not_passed_over_in_silence():
    """Predictions fall back on each party's own rows where few are common, and only there."""
    tables = {name: Table(np.arange(30), {name: np.arange(30.0)}) for name in ("bank", "telco")}
    fed = Federation(*(Party(name, each) for name, each in tables.items()))
    keyring(fed.engine.sites["bank"], pinned={"shop": Identity().public})
    with (
        fed.workers(PredictionWorker) as workers,
        pytest.raises(Refused, match="'telco' is none of its partners"),
    ):
        groups_of(fed, workers, fed.names, {"minimum": 1})
