import os
import pickle
import subprocess
import sys

import pytest
import rbcl
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmend.errors import CryptoError
from fedmend.secure.group import POINT_BYTES, Scalar, hash_to_points, split, tags_of

IDENTITY = bytes(32)
NOT_CANONICAL = [
    b"\xff" * 32,
    bytes.fromhex("00" * 31 + "80"),  # the identity with the sign bit set
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),  # p itself
    bytes.fromhex("01" + "00" * 31),  # negative field element, RFC 9496 A.3
    bytes.fromhex("26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371"),
]


def test_nothing_is_left_among_the_temporary_files(tmp_path):
    """rbcl writes its library there in every process."""
    code = "from fedmend.secure.group import Scalar; print(Scalar().inverse())"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout.strip() == b"Scalar(hidden)" and not list(tmp_path.iterdir())


def test_hashing_to_the_group_gives_the_vector_of_rfc_9496():
    digest = bytes.fromhex(
        "5d1be09e3d0c82fc538112490e35701979d99e06ca3e2b5b54bffe8b4dc772c1"
        "4d98b696a1bbfb5ca32c436cc61c16563790306c79eaca7705668b47dffe5bb6"
    )
    point = "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    assert rbcl.crypto_core_ristretto255_from_hash(digest).hex() == point


@given(st.lists(st.binary(max_size=20), max_size=12, unique=True))
@settings(max_examples=12)
def test_scalars_commute_and_can_be_taken_off(items):
    a, b = Scalar(), Scalar()
    points = hash_to_points(items)
    assert len(points) == POINT_BYTES * len(items)
    assert len(set(split(points, "bank"))) == len(items)
    both = a.times(b.times(points, sender="x"), sender="x")
    assert both == b.times(a.times(points, sender="x"), sender="x")
    assert a.inverse().times(both, sender="x") == b.times(points, sender="x")
    assert tags_of(both, "x") != tags_of(points, "x") or not items


def test_bulk_work_over_threads_keeps_the_order():
    items = [b"%d" % number for number in range(700)]
    scalar = Scalar()
    together = scalar.times(hash_to_points(items), sender="x")
    apart = [scalar.times(hash_to_points([item]), sender="x") for item in items]
    assert split(together, "x") == apart


@pytest.mark.parametrize("bad", [IDENTITY, *NOT_CANONICAL])
@pytest.mark.parametrize("place", [0, 300])
def test_what_is_no_point_is_refused_and_its_sender_named(bad, place):
    points = split(hash_to_points([b"%d" % number for number in range(301)]), "x")
    points[place] = bad
    with pytest.raises(CryptoError, match="'telco' sent a value that is no point"):
        Scalar().times(b"".join(points), sender="telco")


@pytest.mark.parametrize("run", [b"x", bytes(33), "text", None])
def test_a_run_that_does_not_divide_is_refused(run):
    with pytest.raises(CryptoError, match="'telco'"):
        Scalar().times(run, sender="telco")


def test_a_scalar_is_never_shown():
    scalar = Scalar()
    assert repr(scalar) == "Scalar(hidden)" and scalar._raw.hex() not in repr(scalar)
    assert Scalar()._raw != scalar._raw
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(scalar)
