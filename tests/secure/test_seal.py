"""SEAL's objects as bytes and numpy: golden vectors, round trips, and refusal of foreign bytes."""

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fedmend.errors import CryptoError
from fedmend.secure import seal
from fedmend.secure.columns import signed
from fedmend.secure.seal import BFVParameters, SealContext, uniform_below_power

from .parties import assert_uniform

GOLDEN = Path(__file__).parent / "golden"
SMALL = BFVParameters(2048, (27, 27), 64)
WIDE = BFVParameters(4096, (36, 36, 37), 1 << 20)


@pytest.fixture(scope="module")
def small():
    return SealContext(SMALL)


@pytest.fixture(scope="module")
def context():
    return SealContext(WIDE)


@pytest.fixture(scope="module")
def keys(context):
    return context.generate_keys()


def words_of(ciphertext, count):
    return np.array([ciphertext[at] for at in range(count)], dtype="<u8")


# ---------------------------------------------------------------------------------- golden vectors


def test_pinned_tenseal_is_the_one_whose_bytes_are_known():
    import tenseal

    assert tenseal.__version__ == "0.3.18"


def test_golden_bytes_written_for_a_plaintext():
    expected = (
        "5ea1100403000000" + "7000000000000000"  # header: magic, 16, 4.3, uncompressed, size
        + "00" * 32 + "0300000000000000" + "000000000000f03f"  # not NTT, 3 coefficients, scale 1
        + "5ea1100403000000" + "3000000000000000" + "0300000000000000"
        + "0100000000000000" + "0000000000000000" + "0300000000000000"
    )  # fmt: skip
    body = bytes(32) + struct.pack("<Qd", 3, 1.0) + seal.array_bytes(np.array([1, 0, 3]))
    assert seal.with_header(body).hex() == expected


def test_golden_ciphertext(small):
    data = (GOLDEN / "ciphertext.bin").read_bytes()
    ciphertext = small.load_ciphertext(data)
    np.testing.assert_array_equal(words_of(ciphertext, 4096), np.arange(4096))
    raw = np.arange(4096, dtype=np.uint64).reshape(2, 1, 2048)
    assert small.ciphertext_bytes(small._raw_ciphertext(raw)) == data


def test_golden_seeded_ciphertext_and_public_key(small):
    """A seeded ciphertext expands to the same polynomials."""
    ciphertext = small.load_ciphertext((GOLDEN / "seeded_ciphertext.bin").read_bytes())
    key = small.load_public_key((GOLDEN / "public_key.bin").read_bytes())
    for thing, count, digest in (
        (ciphertext, 4096, "a9283c0ac58931a74bd5816354bd116aa34e03d3b73db15da56e03a132247589"),
        (key.data(), 8192, "1858251caabf214005b9ef9f3cb99bc6b6912e078b5d05d49dcf6db1b9609890"),
    ):
        assert hashlib.sha256(words_of(thing, count).tobytes()).hexdigest() == digest


def test_golden_fingerprint_of_parameters():
    assert SMALL.fingerprint == (GOLDEN / "ciphertext.bin").read_bytes()[6:22]


# ---------------------------------------------------------------------------------- round trips


@settings(max_examples=10)
@given(st.lists(st.integers(-(1 << 19), (1 << 19) - 1), min_size=1, max_size=40))
def test_encryption_round_trip(context, keys, values):
    array = np.array(values)
    through = context.load_ciphertext(context.encrypt_to_bytes(keys.secret, array))
    found = context.decrypt(keys.secret, through)[: len(array)]
    np.testing.assert_array_equal(signed(found, 20), array)
    public = context.load_public_key(context.public_key_bytes(keys.public))
    again = context.load_ciphertext(context.ciphertext_bytes(context.encrypt(public, array)))
    found = context.decrypt(keys.secret, again, range(len(array)))
    np.testing.assert_array_equal(signed(found, 20), array)


def test_full_polynomial_of_residues(context):
    residues = uniform_below_power(20, 4096)
    assert_uniform(residues, 20)
    np.testing.assert_array_equal(context.coefficients(context.plaintext(residues)), residues)


def test_flooding_adds_that_much_noise_and_switching_drops_a_prime():
    context = SealContext(BFVParameters(8192, (45, 45, 45, 45), 1 << 30))
    keys = context.generate_keys()
    values = np.arange(-50, 50)
    ciphertext = context.encrypt(keys.public, values)
    before = context.noise_budget(keys.secret, ciphertext)
    context.flood(ciphertext, 75)
    after = context.noise_budget(keys.secret, ciphertext)
    assert before > 85
    assert 135 - 30 - 75 - 3 <= after <= 135 - 30 - 75
    context.switch_down(ciphertext)
    data = context.ciphertext_bytes(ciphertext)
    with pytest.raises(CryptoError, match="level 0"):
        context.load_ciphertext(data)
    back = context.load_ciphertext(data, level=1)
    found = context.decrypt(keys.secret, back, range(100))
    np.testing.assert_array_equal(signed(found, 30), values)


@pytest.mark.parametrize(("prime_bits", "bits"), [(54, 84), (45, 63), (45, 20)])
def test_flood_noise_is_one_uniform_integer_under_all_primes(prime_bits, bits):
    primes = SealContext(BFVParameters(8192, (prime_bits,) * 4, 1 << 40)).primes
    first, second, third = seal._uniform_signed(bits, 4000, primes)
    values = []
    for a, b, c in zip(first.tolist(), second.tolist(), third.tolist(), strict=True):
        modulus, value = primes[0], a
        for residue, prime in ((b, primes[1]), (c, primes[2])):
            value += modulus * ((residue - value) * pow(modulus, -1, prime) % prime)
            modulus *= prime
        values.append(value if value < modulus // 2 else value - modulus)
    assert all(-(1 << bits) <= value < 1 << bits for value in values)
    assert kstest(np.array(values, dtype=float) / 2.0**bits, "uniform", (-1, 2)).pvalue > 1e-6
    low = np.array([value & 15 for value in values])
    assert np.bincount(low, minlength=16).min() > 150


def test_used_up_noise_and_another_key_are_errors_not_wrong_numbers(context, keys):
    ciphertext = context.encrypt(keys.public, np.arange(5))
    context.flood(ciphertext, 60)
    other = context.encrypt(context.generate_keys().public, np.arange(5))
    for each in (ciphertext, other):
        with pytest.raises(CryptoError, match="does not decrypt: .*another key"):
            context.decrypt(keys.secret, each)


# ---------------------------------------------------------------------------------- refusals


def test_truncated_and_padded_bytes(context, keys):
    data = context.encrypt_to_bytes(keys.secret, np.arange(5))
    for cut in (0, 1, 5, 41, 42, 43, 60, len(data) // 2, len(data) - 1):
        with pytest.raises(CryptoError):
            context.load_ciphertext(data[:cut])
    with pytest.raises(CryptoError):
        context.load_ciphertext(data + b"\0")
    with pytest.raises(CryptoError, match="at most"):
        context.load_ciphertext(data + bytes(1 << 20))


@given(place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_any_changed_byte_is_noticed(context, keys, place, change):
    good = context.encrypt_to_bytes(keys.secret, np.arange(5))
    at = int(place * len(good))
    bad = good[:at] + bytes((good[at] ^ change,)) + good[at + 1 :]
    with pytest.raises(CryptoError):
        context.load_ciphertext(bad)


@given(st.data())
def test_bytes_under_a_valid_digest_are_still_checked(context, keys, data):
    """A forger can make the digest; then SEAL's checks refuse, or the value is well formed."""
    payload = bytearray(seal.saved(context.encrypt(keys.public, np.arange(5))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 300))
        payload[at] = data.draw(st.integers(0, 255))
    try:
        loaded = context.load_ciphertext(context._frame("ciphertext", bytes(payload)))
    except CryptoError:
        return
    assert loaded.size() == 2
    assert loaded.parms_id() == context._level_ids[0]


def test_other_parameters_sorts_and_forms(context, keys):
    other = SealContext(BFVParameters(4096, (36, 36, 37), 1 << 21))
    data = context.encrypt_to_bytes(keys.secret, np.arange(5))
    with pytest.raises(CryptoError, match="other parameters"):
        other.load_ciphertext(data)
    with pytest.raises(CryptoError, match="another sort"):
        context.load_public_key(data)
    # the same bytes relabelled: the parms_id inside still gives them away
    with pytest.raises(CryptoError):
        other.load_ciphertext(other._frame("ciphertext", data[42:]))
    with pytest.raises(CryptoError, match="wrong first bytes"):
        context.load_public_key(b"x" * 100)
    with pytest.raises(CryptoError, match="str"):
        context.load_public_key("text")
    product = context.encrypt(keys.public, np.arange(5))
    context.evaluator.transform_to_ntt_inplace(product)
    with pytest.raises(CryptoError):
        context.load_ciphertext(context.ciphertext_bytes(product))


def test_transparent_ciphertext_is_refused(context):
    values = np.zeros((2, 2, 4096), dtype=np.uint64)
    values[0] = 5
    data = context.ciphertext_bytes(context._raw_ciphertext(values))
    with pytest.raises(CryptoError, match="encryption"):
        context.load_ciphertext(data)


def test_foreign_seal_version_and_compression(context, keys):
    payload = bytearray(seal.saved(context.encrypt(keys.public, np.arange(5))))
    for at, value, words in ((4, 1, "SEAL 4.1"), (5, 1, "compressed"), (0, 0, "form")):
        changed = bytearray(payload)
        changed[at] = value
        with pytest.raises(CryptoError, match=words):
            context.load_ciphertext(context._frame("ciphertext", bytes(changed)))


@pytest.mark.parametrize(
    "coefficients",
    [
        np.array([1 << 19]),
        np.array([-(1 << 19) - 1]),
        np.array([1 << 20], dtype=np.uint64),
        np.zeros((2, 2), dtype=int),
        np.zeros(4097, dtype=int),
        np.array([0.5]),
    ],
)
def test_coefficients_that_do_not_fit(context, coefficients):
    with pytest.raises(CryptoError):
        context.plaintext(coefficients)


@pytest.mark.parametrize(
    "parameters",
    [
        BFVParameters(2048, (45, 45, 45), 64),
        BFVParameters(3000, (36, 36), 64),
        BFVParameters(4096, (36, 36, 37), 1 << 61),
    ],
)
def test_insecure_or_impossible_parameters(parameters):
    with pytest.raises(CryptoError):
        SealContext(parameters)


def test_nothing_is_left_on_disk_or_open(context, keys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    data = context.encrypt_to_bytes(keys.secret, np.arange(5))
    context.load_ciphertext(data)
    with pytest.raises(CryptoError):
        context._load(context.new_ciphertext(), b"rubbish")
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
    assert "0x" in repr(keys) or "Keys" in repr(keys)
    assert "secret" not in repr(keys)
