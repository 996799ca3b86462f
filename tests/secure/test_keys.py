import copy
import hmac
import logging
import pickle
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmend.errors import ConfigError, CryptoError
from fedmend.federation.site import Site
from fedmend.secure.keys import (
    Identity,
    KeyRing,
    Keystream,
    add_streams,
    derive_key,
    fingerprint,
    keyring,
    mask_stream,
    pack,
    secret_permutation,
    uniform,
)
from tests.conftest import texts


def identity_of(private: str) -> Identity:
    return Identity(X25519PrivateKey.from_private_bytes(bytes.fromhex(private)))


# ---------------------------------------------------------------------------- key pairs


def test_agreement_gives_the_vector_of_rfc_7748():
    alice = identity_of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = identity_of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == secret


def test_a_point_of_small_order_or_a_key_of_the_wrong_form_is_refused():
    for public in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(CryptoError, match="small order"):
            Identity().agree(public)
    for public in (b"short", b"", "text", None, 5, bytes(33)):
        with pytest.raises(CryptoError, match="32 bytes"):
            Identity().agree(public)


def test_a_private_key_is_never_shown_pickled_or_copied(caplog):
    private = bytes(range(32))
    identity = Identity(X25519PrivateKey.from_private_bytes(private))
    ring = KeyRing("bank", identity)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("fedmend").warning("%s %r %s", identity, ring, vars(ring))
    assert private.hex() not in caplog.text and repr(private) not in caplog.text
    assert identity.fingerprint in repr(identity)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(identity)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(identity)
    assert copy.deepcopy(identity) is identity
    assert not hasattr(identity, "__dict__")


def test_a_saved_identity_is_encrypted_private_and_comes_back(tmp_path):
    identity, path = Identity(), tmp_path / "bank.key"
    identity.save(path, b"correct horse")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"ENCRYPTED PRIVATE KEY" in path.read_bytes()
    assert Identity.load(path, b"correct horse").public == identity.public
    assert [each.name for each in tmp_path.iterdir()] == ["bank.key"]
    with pytest.raises(CryptoError, match="under this password"):
        Identity.load(path, b"wrong")
    with pytest.raises(ConfigError, match="cannot read"):
        Identity.load(tmp_path / "none.key", b"x")
    with pytest.raises(ConfigError, match="password"):
        identity.save(path, b"")


# ---------------------------------------------------------------------------- key ring


def test_a_key_is_pinned_at_first_sight_and_a_changed_one_is_named():
    ring, first, second = KeyRing("bank"), Identity(), Identity()
    ring.pin("telco", first.public)
    ring.pin("telco", first.public)
    with pytest.raises(CryptoError, match="'bank': the key of 'telco' has changed") as caught:
        ring.pin("telco", second.public)
    assert first.fingerprint in str(caught.value) and second.fingerprint in str(caught.value)
    assert ring.fingerprints() == {"bank": ring.identity.fingerprint, "telco": first.fingerprint}


def test_a_key_given_in_advance_holds_from_the_start():
    telco, stranger = Identity(), Identity()
    for given_key in (telco.public, telco.public.hex()):
        ring = KeyRing("bank", pinned={"telco": given_key})
        with pytest.raises(CryptoError, match="has changed"):
            ring.pin("telco", stranger.public)
        assert ring.pin("telco", telco.public) == telco.public
    with pytest.raises(ConfigError, match="'telco' is not hexadecimal"):
        KeyRing("bank", pinned={"telco": "zz"})
    with pytest.raises(CryptoError, match="32 bytes"):
        KeyRing("bank", pinned={"telco": "abcd"})


def test_a_site_has_one_ring_and_its_keys_can_be_given_once():
    site, identity = Site("bank", {}), Identity()
    ring = keyring(site, identity=identity)
    assert keyring(site) is ring and ring.identity is identity
    with pytest.raises(ConfigError, match="has its keys already"):
        keyring(site, identity=Identity())


def test_fingerprints_are_short_and_differ():
    prints = {fingerprint(Identity().public) for _ in range(50)}
    assert len(prints) == 50 and all(len(each) == 24 for each in prints)


# ---------------------------------------------------------------------------- secrets, streams


@given(st.lists(texts(max_size=5), max_size=4), st.lists(texts(max_size=5), max_size=4))
def test_contexts_never_run_into_each_other(one, other):
    assert (pack(*one) == pack(*other)) == (one == other)
    same = derive_key(b"s" * 32, *one) == derive_key(b"s" * 32, *other)
    assert same == (one == other)


def test_derived_keys_are_those_of_rfc_5869():
    extracted = hmac.digest(b"fedmend 1", b"s" * 32, "sha256")
    expanded = hmac.digest(extracted, pack("a", b"b") + b"\x01", "sha256")
    assert derive_key(b"s" * 32, "a", b"b") == expanded


def test_the_stream_is_aes_256_ctr_of_zeros_in_the_shape_asked_for():
    key = bytes(range(32))
    count = (1 << 20) // 8 * 2 + 3  # over several chunks, and not a multiple of one
    reference = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(reference.update(bytes(8 * count)), "<u8")
    assert np.array_equal(mask_stream(key, count), expected)
    for rows, columns in ((0, 5), (1, 1), (7, 40)):
        stream = mask_stream(key, (rows, columns))
        assert stream.shape == (rows, columns) and stream.flags.writeable
        assert stream.dtype == np.uint64
        assert np.array_equal(stream.ravel(), expected[: rows * columns])


def test_streams_of_other_keys_are_unrelated_and_uniform():
    streams = [mask_stream(b"k" * 32, 20_000), mask_stream(b"l" * 32, 20_000), uniform(20_000)]
    for number, stream in enumerate(streams):
        counts = np.bincount(np.frombuffer(stream.tobytes(), np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
        for other in streams[number + 1 :]:
            assert not np.intersect1d(stream, other).size


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 70_001])
def test_streams_are_added_and_taken_away_in_rings_of_any_width(size, width):
    keys = [bytes([number]) * 32 for number in range(3)]
    streams = [mask_stream(key, size * width // 8 + 1).view(f"<u{width}")[:size] for key in keys]
    ring = np.arange(size).astype(f"u{width}")
    expected = ring + streams[0] + streams[1] - streams[2]
    parts = list(map(Keystream, keys))
    add_streams(ring, parts[:2], parts[2:])
    assert np.array_equal(ring, expected)
    add_streams(ring, parts[:2], parts[2:], number=5)
    add_streams(ring, list(map(Keystream, keys[2:])), list(map(Keystream, keys[:2])), number=5)
    assert np.array_equal(ring, expected)


def test_parts_of_a_stream_are_aes_256_ctr_from_their_number_on_and_none_is_used_twice():
    key, stream, room = bytes(range(32)), Keystream(bytes(range(32))), np.empty(116, np.uint8)
    for number in (0, 1, 7, (1 << 64) - 1):
        counter = number.to_bytes(8, "big") + bytes(8)
        reference = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        stream.begin(100, number).fill(room, 100)
        assert room[:100].tobytes() == reference.update(bytes(100))
        for past in (number, number - 1, 1 << 64):
            with pytest.raises(CryptoError, match="used twice hides nothing"):
                stream.begin(100, past)


def test_a_stream_that_would_wrap_its_counter_or_has_a_short_key_is_refused():
    with pytest.raises(CryptoError, match="too long"):
        mask_stream(bytes(32), 1 << 33)
    with pytest.raises(CryptoError, match="32 bytes"):
        mask_stream(bytes(16), 1)


def test_a_secret_permutation_is_new_every_time():
    assert np.array_equal(np.sort(secret_permutation(999)), np.arange(999))
    assert not np.array_equal(secret_permutation(999), secret_permutation(999))
