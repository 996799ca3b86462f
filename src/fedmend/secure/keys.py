"""Keys of a party: who it is, whom it knows, and the secrets it shares with one other party.

    identity   an X25519 key pair that stands for the party as long as the site lives
    key ring   the identity, whom the party works with, and the public keys it holds them to
    seeds      32 bytes that two parties (or all of them) share and nobody else has
    streams    AES-256-CTR keystreams of such seeds as uniform numbers modulo 2^64

No `repr`, pickle, log line or ledger entry holds a private key. A party that wants the same
identity in its next run keeps it in a file of its own (:meth:`Identity.save`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fedmend._files import write_whole
from fedmend.errors import ConfigError, CryptoError, Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from fedmend.federation.site import Site

KEY_BYTES = 32
_ZEROS = memoryview(bytes(1 << 20))
_SPILL = 16  # update_into wants 15 bytes more than it writes
# A piece of stream and of the array it is added to stay in the processor's cache together.
_PIECE_BYTES = 1 << 17
_PLACE = "secure.keyring"


# ------------------------------------------------------------------------------ key pairs


class Identity:
    """An X25519 key pair whose private half cannot be printed, pickled or copied.

    >>> one, other = Identity(), Identity()
    >>> one.agree(other.public) == other.agree(one.public)
    True
    """

    __slots__ = ("_private", "public")

    def __init__(self, private: X25519PrivateKey | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = private or X25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    def agree(self, public: bytes) -> bytes:
        """The secret that only the holders of the two private keys can compute."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        check_public(public)
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(bytes(public)))
        except ValueError as error:  # the all-zero result of a point of small order
            raise CryptoError(
                f"the public key {fingerprint(public)} has small order: no secret comes of it. "
                "Mend: the other party must send a key it generated"
            ) from error

    # ------------------------------------------------------------------ signatures

    def _signer(self) -> Ed25519PrivateKey:
        """Its own key for signatures, which follows from the private one and stays here, too."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        seed = derive_key(self._private.private_bytes_raw(), "signatures")
        return Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def signing_key(self) -> bytes:
        """The public key by which others check its signatures (Ed25519)."""
        return self._signer().public_key().public_bytes_raw()

    @property
    def signing_fingerprint(self) -> str:
        return fingerprint(self.signing_key)

    def sign(self, content: bytes) -> bytes:
        return self._signer().sign(content)

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str], password: bytes | None) -> None:
        """Keep the private key in a file readable by the owner only, encrypted but for None."""
        from cryptography.hazmat.primitives import serialization

        if password == b"":
            raise ConfigError("an encrypted identity needs a password. Mend: give a non-empty one")
        pem = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password),
        )
        write_whole(path, pem, private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], password: bytes | None) -> Identity:
        """The identity in a file written by :meth:`save`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            private = load_pem_private_key(Path(path).read_bytes(), password)
        except OSError as error:
            raise ConfigError(f"cannot read the identity {path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise CryptoError(
                f"{path} is no identity under this password. Mend: check the password and the file"
            ) from error
        if not isinstance(private, X25519PrivateKey):
            raise CryptoError(f"{path} holds a key of another type than X25519")
        return cls(private)

    def __repr__(self) -> str:
        return f"Identity({self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key does not leave its process: Identity cannot be pickled")

    def __deepcopy__(self, memo: dict[int, Any]) -> Identity:
        return self


def fingerprint(public: bytes) -> str:
    """A public key in a form that two people can read to each other: 80 bits in five groups."""
    digest = hashlib.sha256(b"fedmend identity" + bytes(public)).hexdigest()
    return "-".join(digest[at : at + 4] for at in range(0, 20, 4))


def verify_signature(key: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the holder of a signing key has signed this."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(check_public(key)).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def check_public(public: Any) -> bytes:
    if not isinstance(public, (bytes, bytearray)) or len(public) != KEY_BYTES:
        seen = f"{len(public)} bytes" if isinstance(public, (bytes, bytearray)) else type(public)
        raise CryptoError(f"a public key is {KEY_BYTES} bytes, this is {seen}")
    return bytes(public)


# ------------------------------------------------------------------------------ whom it knows


class KeyRing:
    """A party's identity, whom it works with, and the public keys it holds them to.

    pinned: public keys given in advance (32 bytes, or 64 hexadecimal digits as in a config file).
    partners: names of parties whose key is believed when it is first seen.
    memory: a file for the keys believed at first sight, so that they hold in later runs too.
    tell: told of every key that goes into the memory.

    Who pins or names partners works with them alone. So does who names none, from the second run
    on: those in the memory are the partners then. A key that changes is always refused.
    """

    def __init__(
        self,
        owner: str,
        identity: Identity | None = None,
        pinned: Mapping[str, bytes | str] | None = None,
        *,
        partners: Iterable[str] = (),
        memory: Path | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.owner = owner
        self.identity = identity or Identity()
        self._lock = threading.Lock()
        self._memory, self._tell = memory, tell
        given = {name: check_public(_from_hex(name, key)) for name, key in (pinned or {}).items()}
        self._remembered = remembered_keys(memory)
        self._pinned = {**self._remembered, **given}
        self._partners = {*given, *partners} or set(self._remembered)

    def pin(self, party: str, public: bytes) -> bytes:
        """The key of `party` if it is a partner's and the one it is held to; else refused."""
        public = check_public(public)
        with self._lock:
            if self._partners and party not in self._partners:
                raise Refused(
                    self.owner,
                    f"{party!r} is none of its partners ({', '.join(sorted(self._partners))})",
                    f"if {party!r} is to take part, ask it for its public key and name it in the "
                    f"party.toml of {self.owner!r}, under partners or [keys.pinned]",
                )
            if party not in self._pinned:
                self._pinned[party] = public
                if self._memory is not None:
                    self._remember(self._memory, party, public)
            known = self._pinned[party]
        if not hmac.compare_digest(known, public):
            raise CryptoError(
                f"party {self.owner!r}: the key of {party!r} has changed: {fingerprint(known)} is "
                f"pinned, {fingerprint(public)} was sent. Mend: ask {party!r} whether it has a new "
                "key; if so, pin the new one, if not, somebody stands between you"
            )
        return public

    def _remember(self, memory: Path, party: str, public: bytes) -> None:
        self._remembered[party] = public
        content = {name: key.hex() for name, key in sorted(self._remembered.items())}
        write_whole(memory, json.dumps(content, indent=2) + "\n")
        self._tell(
            f"first meeting with {party!r}: the key {fingerprint(public)}, as the coordinator "
            f"passed it on, is that of {party!r} from now on. Mend: compare it with what "
            f"'fedmend party keys' shows there, by telephone say"
        )

    def fingerprints(self) -> dict[str, str]:
        """Of this party and of all it knows: to be compared over another way, a telephone say."""
        with self._lock:
            known = {party: fingerprint(key) for party, key in self._pinned.items()}
        return {self.owner: self.identity.fingerprint, **known}

    def __repr__(self) -> str:
        return f"KeyRing({self.owner!r}, {self.identity.fingerprint}, knows {len(self._pinned)})"


def keyring(site: Site, **given: Any) -> KeyRing:
    """The key ring of a site; made at the first call, which may give what a `KeyRing` is given.

    Whoever builds a site from a party's own configuration calls this first, with the keys in it
    (`identity`, `pinned`, `partners`, `memory`); otherwise the site gets a fresh identity and
    believes the key of whomever it meets.
    """
    ring = site.vault.get(_PLACE)
    if ring is None:
        made = KeyRing(site.name, tell=lambda words: site.note(words), **given)
        # Two workers of one site may ask at once: setdefault keeps the first.
        return site.vault.setdefault(_PLACE, made)
    if given:
        raise ConfigError(
            f"party {site.name!r} has its keys already. Mend: give them before the first protocol"
        )
    return ring


def remembered_keys(memory: Path | None) -> dict[str, bytes]:
    """The keys in a memory, by party; none where there is no such file yet."""
    if memory is None or not memory.exists():
        return {}
    try:
        content = json.loads(memory.read_text(encoding="utf-8"))
        return {str(party): check_public(bytes.fromhex(key)) for party, key in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, CryptoError) as error:
        raise ConfigError(
            f"{memory} does not hold the keys of partners: {error}. Mend: bring the file back, or "
            "pin your partners in party.toml and remove it"
        ) from error


def _from_hex(party: str, key: bytes | str) -> bytes:
    if not isinstance(key, str):
        return key
    try:
        return bytes.fromhex(key)
    except ValueError as error:
        raise ConfigError(
            f"the key of {party!r} is not hexadecimal: {key!r}. Mend: write its 64 digits"
        ) from error


# ------------------------------------------------------------------------------ shared secrets


def derive_key(secret: bytes, *context: str | bytes) -> bytes:
    """HKDF-SHA256 of a secret; different contexts give independent keys."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=b"fedmend 1", info=pack(*context)).derive(secret)


def pack(*parts: str | bytes) -> bytes:
    """Parts behind their lengths, so that no two lists of parts give the same bytes."""
    raw = [part.encode() if isinstance(part, str) else bytes(part) for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in raw)


# ------------------------------------------------------------------------------ streams


def mask_stream(key: bytes, shape: int | tuple[int, ...]) -> np.ndarray:
    """Uniform uint64 numbers: the AES-256-CTR keystream of `key`, the same wherever it is computed.

    One key must never serve two purposes.

    >>> mask_stream(bytes(32), 2)
    array([9910523521560253916, 9736928157321283757], dtype=uint64)
    """
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = 8 * math.prod(sides)
    stream = Keystream(key).begin(nbytes)
    room = np.empty(nbytes + _SPILL, np.uint8)
    stream.fill(room, nbytes)
    return _words(room[:nbytes]).reshape(sides)


class MaskBlocks:
    """A uniform matrix of uint64 [columns, rows] that is made anew, `rows_each` rows at a time.

    It never lies in memory as a whole: a block fits the cache and is written over by the next.
    """

    def __init__(self, key: bytes, shape: tuple[int, int], rows_each: int) -> None:
        self.shape, self.rows_each = shape, rows_each
        self._key = key

    def __iter__(self) -> Iterator[np.ndarray]:
        columns, rows = self.shape
        stream = Keystream(self._key).begin(8 * columns * rows)
        room = np.empty(8 * columns * self.rows_each + _SPILL, np.uint8)
        for start in range(0, rows, self.rows_each):
            count = min(self.rows_each, rows - start)
            stream.fill(room, 8 * columns * count)
            yield _words(room[: 8 * columns * count]).reshape(columns, count)


def add_streams(
    ring: np.ndarray, added: Sequence[Keystream], taken: Sequence[Keystream], number: int = 0
) -> None:
    """Add a part of some keystreams to a flat unsigned array, and take that of others away."""
    for stream in (*added, *taken):
        stream.begin(ring.nbytes, number)
    step = _PIECE_BYTES // ring.dtype.itemsize
    room = np.empty(min(_PIECE_BYTES, ring.nbytes) + _SPILL, np.uint8)
    for at in range(0, ring.size, step):
        part = ring[at : at + step]
        words = room[: part.nbytes].view(ring.dtype.newbyteorder("<"))
        for operation, streams in ((np.add, added), (np.subtract, taken)):
            for stream in streams:
                stream.fill(room, part.nbytes)
                operation(part, words, out=part)


class Keystream:
    """The AES-256-CTR keystream of a key, in numbered parts of which each is used once, in turn.

    A part's number is the upper half of the counter, and what it may hold the lower half can count.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        if len(key) != KEY_BYTES:
            raise CryptoError(f"a stream needs a key of {KEY_BYTES} bytes, this has {len(key)}")
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._last = -1

    def begin(self, nbytes: int, number: int = 0) -> Keystream:
        """Go to the beginning of a part, of which so many bytes are wanted."""
        if nbytes >> 4 >= 1 << 32:
            raise CryptoError(f"a stream of {nbytes:,} bytes is too long. Mend: one key per part")
        if not self._last < number < 1 << 64:
            raise CryptoError(
                f"part {number} of a stream is not after part {self._last}, and a mask that is "
                "used twice hides nothing. Mend: count on"
            )
        self._last = number
        self._cipher.reset_nonce((number << 64).to_bytes(16, "big"))
        return self

    def fill(self, room: np.ndarray, count: int) -> None:
        """Write the next so many bytes into an array, which has room for a few more."""
        for at in range(0, count, len(_ZEROS)):
            step = min(len(_ZEROS), count - at)
            self._cipher.update_into(_ZEROS[:step], room.data[at : at + step + _SPILL])


def _words(room: np.ndarray) -> np.ndarray:
    return room.view("<u8").astype(np.uint64, copy=False)


def uniform(shape: int | tuple[int, ...]) -> np.ndarray:
    """Fresh uniform uint64 numbers that nobody can compute again (ten times os.urandom's speed)."""
    return mask_stream(os.urandom(KEY_BYTES), shape)


def secret_permutation(count: int) -> np.ndarray:
    """A permutation of 0 … count−1 that nobody can draw again."""
    return np.argsort(uniform(count), kind="stable")
