"""A coordinator that asks the sides of a masked protocol for what they are not.

Keys are pinned both ways, and no party works together with the coordinator. What it has: every
message of both parties. Measured: how many values of a party's columns, or equations in them, come
out of the messages right; before, all of them. What it gets now is refused or uniform: of numbers
modulo 2^64 a guess is right with probability 2^-64.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from fedmend.data.table import Table
from fedmend.errors import ConfigError, CryptoError
from fedmend.federation import KINDS, Alignment
from fedmend.secure.exact import Blocked
from fedmend.secure.sums_he import Packing, _blinds, unblind

from .reached import ENGINES, introduced, partners

ROWS = 300
INDICATORS = {"model": "targets-m", "segments": [["aligned", ROWS], ["bank", 0]]}
TREES = {**INDICATORS, "bins": 8, "least": 5, "disclose": None}


@pytest.fixture(params=ENGINES)
def parties(request, tmp_path):
    rng = np.random.default_rng(0)
    frames = {
        "bank": {"x": rng.integers(0, 9000, ROWS), "y": rng.integers(0, 90, ROWS)},
        "telco": {"u": np.full(ROWS, 47), "v": rng.integers(0, 99, ROWS)},
    }
    tables = {name: Table(np.arange(ROWS), pd.DataFrame(each)) for name, each in frames.items()}
    with partners(request.param, tmp_path, tables, allow=KINDS) as made:
        for each in made.values():
            each.site.alignments["train"] = Alignment(np.arange(ROWS), np.zeros(0, np.int64))
        yield made


def columns(at, *names) -> np.ndarray:
    return at.site.tables["train"].frame[list(names)].to_numpy(np.int64).T


def dealers(parties, bank="fixed", telco="changing"):
    return (
        parties["bank"].worker("DealerWorker", role=bank),
        parties["telco"].worker("DealerWorker", role=telco),
    )


def met(parties):
    bank, telco = dealers(parties)
    introduced(("bank", bank), ("telco", telco))
    return bank, telco


def numbers(words, count) -> np.ndarray:
    return np.concatenate(list(Blocked(words, (count, ROWS))), axis=1).view(np.int64)


def exactly(*terms) -> int:
    """A sum modulo 2^64."""
    return sum(map(int, terms)) % 2**64


def is_uniform(words) -> bool:
    top = (np.asarray(words).view(np.uint64).ravel() >> np.uint64(60)).astype(int)
    return chisquare(np.bincount(top, minlength=16)).pvalue > 1e-6


# ------------------------------------------------------------------ one role for both


@pytest.mark.parametrize("role", ["fixed", "changing"])
def test_both_sides_in_one_role_do_not_meet(parties, role):
    bank, telco = dealers(parties, role, role)
    with pytest.raises(
        CryptoError, match=f"'bank' has the role '{role}'.*'telco' comes in the role"
    ):
        introduced(("bank", bank), ("telco", telco))
    bank.load(provider="integers", settings={"names": ["x"]})
    with pytest.raises(CryptoError, match="'bank' has no key of 'telco'"):
        bank.mask(other="telco", number=1)


def test_lying_to_each_about_the_others_role_leaves_them_no_mask_in_common(parties):
    bank, telco = dealers(parties, "fixed", "fixed")
    keys = {"bank": bank.public_key(), "telco": telco.public_key()}
    bank.meet(keys={"telco": keys["telco"][:64] + b"changing"})
    telco.meet(keys={"bank": keys["bank"][:64] + b"changing"})
    bank.load(provider="integers", settings={"names": ["x"]})
    telco.load(provider="integers", settings={"names": ["u"]})
    mine = numbers(bank.mask(other="telco", number=1), 1)
    yours = numbers(telco.mask(other="bank", number=1), 1)
    guess = mine - yours + 47  # telco's column is 47 throughout
    assert not (guess == columns(parties["bank"], "x")).any()
    assert is_uniform(guess)


def test_a_role_that_is_neither(parties):
    for params in ({"role": "both"}, {"role": ""}):
        with pytest.raises(ConfigError, match="role must be one of fixed, changing, got"):
            parties["bank"].worker("DealerWorker", **params)


# ------------------------------------------------------------------ a role, or a number, again


def test_a_worker_does_not_change_its_side(parties):
    bank, telco = met(parties)
    bank.load(provider="integers", settings={"names": ["x"]})
    telco.load(provider="integers", settings={"names": ["u"]})
    bank.mask(other="telco", number=1)
    telco.mask(other="bank", number=1)
    with pytest.raises(CryptoError, match="is the fixed side of these products"):
        bank.multiply_changing(other="telco", number=1, fixed=1, count=1, bits=64)
    with pytest.raises(CryptoError, match="is the changing side of these products"):
        telco.multiply_fixed(other="bank", number=2, count=1, bits=64)


@pytest.mark.parametrize("number", [5, 4, 0, -1, True, "6", 6.0])
def test_a_number_again_or_backwards_or_none(parties, number):
    bank, telco = met(parties)
    for worker, other, name in ((bank, "telco", "x"), (telco, "bank", "u")):
        worker.load(provider="integers", settings={"names": [name]})
        worker.mask(other=other, number=5)
        with pytest.raises(CryptoError, match="a mask that is used twice hides nothing"):
            worker.mask(other=other, number=number)


def test_a_third_worker_shares_no_mask_with_the_first_two(parties):
    bank, telco = met(parties)
    third = parties["bank"].worker("DealerWorker", role="fixed")
    with pytest.raises(CryptoError, match="'telco' has met 'bank' already, with another key"):
        telco.meet(keys={"bank": third.public_key()})
    third.meet(keys={"telco": telco.public_key()})
    for worker in (bank, third):
        worker.load(provider="integers", settings={"names": ["x"]})
    one = numbers(bank.mask(other="telco", number=1), 1)
    other = numbers(third.mask(other="telco", number=1), 1)
    assert not (one == other).any() and is_uniform(one - other)


# ------------------------------------------------------------------ variants: told differently


def test_counts_told_differently_give_no_equation_in_the_columns(parties):
    """Shares of unlike shapes added up by their position gave, per product, one linear equation
    in the fixed side's columns with known coefficients: as many products as cells, all cells."""
    bank, telco = met(parties)
    bank.load(provider="integers", settings={"names": ["x", "y"]})
    telco.load(provider="integers", settings={"names": ["u", "v"]})
    a, b = columns(parties["bank"], "x", "y"), columns(parties["telco"], "u", "v")
    masked = numbers(bank.mask(other="telco", number=1), 2)
    for number in range(2, 6):
        sent = numbers(telco.mask(other="bank", number=number), 2)
        bank.multiply_fixed(other="telco", number=number, count=1, bits=64)
        telco.multiply_changing(other="bank", number=number, fixed=1, count=2, bits=64)
        one, two = bank.share().view(np.int64).ravel(), telco.share().view(np.int64).ravel()
        equation = exactly(a[1] @ b[0], -(a[1] @ sent[0]), a[0] @ sent[1], -(masked[0] @ sent[1]))
        assert exactly(one[1], two[1]) != equation
    # Told alike they are the products, so it is the shapes that were in the way.
    sent = numbers(telco.mask(other="bank", number=9), 2)
    bank.multiply_fixed(other="telco", number=9, count=2, bits=64)
    telco.multiply_changing(other="bank", number=9, fixed=1, count=2, bits=64)
    shares = (bank.share() + telco.share()).view(np.int64)
    assert (shares + masked @ sent.T == a @ b.T).all()


def test_other_columns_than_were_masked_are_not_multiplied(parties):
    """A product of y under the mask of x gave an equation in x - y; as many as rows, all of it."""
    bank, telco = met(parties)
    bank.load(provider="integers", settings={"names": ["x"]})
    telco.load(provider="integers", settings={"names": ["u"]})
    bank.mask(other="telco", number=1)
    bank.load(provider="integers", settings={"names": ["y"]})
    telco.mask(other="bank", number=2)
    with pytest.raises(CryptoError, match="'bank' has not masked the columns of this product"):
        bank.multiply_fixed(other="telco", number=2, count=1, bits=64)
    bank.mask(other="telco", number=3)  # masked anew, and telco told of the old mask
    bank.multiply_fixed(other="telco", number=4, count=1, bits=64)
    sent = numbers(telco.mask(other="bank", number=4), 1)
    telco.multiply_changing(other="bank", number=4, fixed=1, count=1, bits=64)
    total = (bank.share() + telco.share()).view(np.int64)[0, 0]
    x, y = columns(parties["bank"], "x", "y")
    b = columns(parties["telco"], "u")[0]
    assert exactly(total) not in (exactly(y @ (b - sent[0])), exactly((x - y) @ sent[0], y @ b))


def test_two_parties_with_bins_do_not_meet(parties):
    """Both sides of a histogram masked their zeros and ones by one stream: a difference of rows."""
    workers = [(name, at.worker("TreeFeatures", **TREES)) for name, at in parties.items()]
    with pytest.raises(CryptoError, match="'bank' has the role 'bins'.*comes in the role 'bins'"):
        introduced(*workers)
    with pytest.raises(CryptoError, match="has no key of 'telco'"):
        workers[0][1].mask_bins(other="telco", number=1, length=ROWS)


def test_one_partys_ciphertexts_decrypted_in_place_of_the_sum_are_uniform(parties):
    """Secure sums under encryption: the key holder cannot tell whose ciphertexts it decrypts."""
    form = {"low": 0, "high": 9000, "fraction_bits": None}
    workers = {
        name: at.worker("ColumnSumWorker", columns=[column], per="row")
        for (name, at), column in zip(parties.items(), ("x", "u"), strict=True)
    }
    introduced(*workers.items())
    bank, telco = workers["bank"], workers["telco"]
    bank.take_sum_key(holder="telco", sealed=telco.sum_key(to="bank"))
    agreed = {"number": 1, "name": "x", "form": form, "parties": ["bank", "telco"]}
    bank.prepare_round(**agreed)
    *ciphertexts, seed = bank.encrypted(number=1)  # of blinds that the coordinator takes away
    residues = telco.decrypt_blinded(number=1, ciphertexts=ciphertexts)
    residues = unblind(residues, _blinds(seed, len(ciphertexts)), "telco")
    packing = Packing.of(9000, 2)
    truth = columns(parties["bank"], "x")[0]
    clear = packing.pack(truth.astype(np.uint64))
    used = packing._coefficients(ROWS)
    assert not (residues.ravel()[:used] == clear.ravel()[:used]).any()
    assert is_uniform(residues << np.uint64(14))  # all 50 bits, the padding too
