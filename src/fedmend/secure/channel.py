"""End-to-end encryption between parties whose messages the coordinator carries.

    class TalkWorker(SealingWorker):
        @exposed(kind="masked")
        def share(self, to: str) -> Sealed:
            return self.seal(self.numbers, to=to, kind="masked")

        @exposed(kind="control", takes={"box": "masked"})
        def take(self, box: Sealed, sender: str) -> None:
            self.numbers += self.open(box, sender=sender)

    crew = fed.workers(TalkWorker)
    introduce(crew)                                   # public keys change hands
    crew["telco"].take(crew["bank"].share("telco"), "bank")

Every worker has a fresh X25519 key beside the lasting identity of its party. Two workers agree on
four Diffie–Hellman secrets (fresh–fresh, both fresh–lasting, lasting–lasting), and HKDF-SHA256
over them, the names, the scope and all public keys gives one ChaCha20-Poly1305 key per direction.
Boxes are numbered; sender, recipient, kind and number are authenticated. So a box that was
altered, cut, sent twice, sent out of turn, meant for somebody else or made under another key is
refused, and recorded boxes stay closed even if an identity is stolen later.

What this rests on: a key is pinned when it is first seen, through the coordinator. A coordinator
that follows the protocol and only looks (semi-honest) learns sizes and times. One that lies at
the very first exchange can put its own keys in the place of the parties' and read along; comparing
fingerprints (`keyring(site).fingerprints()`), or giving the keys in advance
(`keyring(site, pinned=…)`), closes that gap.
"""

from __future__ import annotations

import struct
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from fedmend.errors import CryptoError, WireError
from fedmend.federation import wire
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Worker, exposed
from fedmend.secure.keys import (
    KEY_BYTES,
    Identity,
    KeyRing,
    check_public,
    derive_key,
    fingerprint,
    keyring,
    pack,
)

if TYPE_CHECKING:
    from fedmend.federation.federation import Crew
    from fedmend.federation.site import Site

__all__ = ["SealingWorker", "introduce"]

VERSION = 1
_HEAD = struct.Struct("<BQ")
_TAG_BYTES = 16


class SealingWorker(Worker):
    """Base of workers that talk to their counterparts at other parties.

    conversation: what the boxes are about; workers of two classes that talk to each other set it
    to the same word. By default the class's name.
    """

    conversation: ClassVar[str] = ""

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._lines: dict[str, _Line] = {}
        self._meeting = threading.Lock()

    # Keys are made when they are asked for: who seals nothing needs no cryptography.

    @cached_property
    def _ring(self) -> KeyRing:
        return keyring(self.site)

    @cached_property
    def _session(self) -> Identity:
        return Identity()

    @exposed(kind="control")
    def public_key(self) -> bytes:
        """The party's lasting public key and this worker's fresh one, 64 bytes."""
        return self._ring.identity.public + self._session.public

    @exposed(kind="control")
    def meet(self, keys: dict[str, bytes]) -> None:
        """Take the public keys of the counterparts: pin the lasting ones, agree on secrets."""
        me = self.site.name
        if me in keys and keys[me] != self.public_key():
            raise CryptoError(
                f"party {me!r}: the key that is passed on as mine is not mine: somebody changes "
                "keys on the way. Mend: do not go on; compare fingerprints with the other parties"
            )
        with self._meeting:
            for party, public in keys.items():
                if party != me:
                    self._meet_one(party, public)

    @property
    def met(self) -> list[str]:
        """The parties whose counterparts this worker has keys of."""
        return sorted(self._lines)

    def seal(self, value: Any, *, to: str, kind: str) -> Sealed:
        """A box that only `to` can open; refused if the policy keeps this kind in."""
        me = self.site.name
        self.site.policy.admit_kind(me, f"{self.worker_name()}.seal", kind)
        return Sealed(me, to, kind, self._line(to).seal(wire.encode(value), kind))

    def open(self, sealed: Sealed, *, sender: str, kind: str | None = None) -> Any:
        """The value in a box from `sender`; `CryptoError` for anything but its very next box."""
        me = self.site.name
        if not isinstance(sealed, Sealed):
            raise CryptoError(
                f"party {me!r} expected a sealed box from {sender!r} and got a "
                f"{type(sealed).__name__}. Mend: the sender must use seal()"
            )
        if (sealed.sender, sealed.recipient) != (sender, me):
            raise CryptoError(
                f"party {me!r} expected a box from {sender!r}; this one goes from "
                f"{sealed.sender!r} to {sealed.recipient!r}. Mend: the coordinator mixed up boxes"
            )
        if kind is not None and sealed.kind != kind:
            raise CryptoError(
                f"party {me!r} expected a box of kind {kind!r} from {sender!r}, this is of kind "
                f"{sealed.kind!r}"
            )
        plain = self._line(sender).open(sealed.box, sealed.kind)
        try:
            return wire.decode(plain)
        except WireError as error:
            raise CryptoError(
                f"party {me!r}: the box from {sender!r} holds no value: {error}"
            ) from error

    def shared_seed(self, party: str, purpose: str) -> bytes:
        """32 bytes that this worker and its counterpart at `party` alone have in common.

        The same at both ends, different for every pair, purpose and start of the workers.
        """
        return self._line(party).seed(purpose)

    def _meet_one(self, party: str, public: bytes) -> None:
        me = self.site.name
        if not isinstance(public, bytes) or len(public) != 2 * KEY_BYTES:
            raise CryptoError(
                f"party {me!r}: the key of {party!r} is not {2 * KEY_BYTES} bytes. "
                "Mend: pass on what its public_key() gave"
            )
        met = self._lines.get(party)
        if met is not None:
            if met.public != public:
                raise CryptoError(
                    f"party {me!r} has met {party!r} already, with another key "
                    f"({fingerprint(public[:KEY_BYTES])}). Mend: start the workers anew"
                )
            return
        lasting = self._ring.pin(party, public[:KEY_BYTES])
        self._lines[party] = _Line.agree(
            (me, self._ring.identity, self._session),
            (party, lasting, check_public(public[KEY_BYTES:])),
            (self.conversation or self.worker_name(), self.scope),
        )

    def _line(self, party: str) -> _Line:
        line = self._lines.get(party)
        if line is None:
            raise CryptoError(
                f"party {self.site.name!r} has no key of {party!r}. "
                "Mend: introduce(crew) before anything is sealed"
            )
        return line


def introduce(*crews: Crew) -> dict[str, str]:
    """Pass public keys between the workers of a crew (or of several crews that talk together).

    Returns the fingerprints of the parties' lasting keys as the coordinator saw them.
    """
    keys: dict[str, bytes] = {}
    for crew in crews:
        for party, public in crew.public_key().items():
            if party in keys:
                raise CryptoError(
                    f"party {party!r} has two of the workers that are to meet. Mend: one each"
                )
            keys[party] = public
    for crew in crews:
        crew.meet(keys)
    return {party: fingerprint(public[:KEY_BYTES]) for party, public in keys.items()}


class _Line:
    """What two workers share: a key and a counter per direction, and a root for seeds."""

    def __init__(self, me: str, peer: str, public: bytes, secret: bytes, about: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self.me, self.peer, self.public = me, peer, public
        self._about = about
        self._out = ChaCha20Poly1305(derive_key(secret, "box", me, peer))
        self._in = ChaCha20Poly1305(derive_key(secret, "box", peer, me))
        self._seeds = derive_key(secret, "seeds")
        self._sent = 0
        self._received = 0
        self._lock = threading.Lock()

    @classmethod
    def agree(
        cls,
        mine: tuple[str, Identity, Identity],
        theirs: tuple[str, bytes, bytes],
        about: tuple[str, str],
    ) -> _Line:
        me, lasting, fresh = mine
        peer, peer_lasting, peer_fresh = theirs
        # Both ends must write the same transcript: the alphabetically first party's view.
        crossed = [fresh.agree(peer_lasting), lasting.agree(peer_fresh)]
        ends = [(me, lasting.public, fresh.public), (peer, peer_lasting, peer_fresh)]
        if peer < me:
            crossed.reverse()
            ends.reverse()
        secrets = (fresh.agree(peer_fresh), *crossed, lasting.agree(peer_lasting))
        transcript = pack(*about, *(part for end in ends for part in end))
        root = derive_key(b"".join(secrets), "line", transcript)
        return cls(me, peer, peer_lasting + peer_fresh, root, pack(*about))

    def seal(self, plain: bytes, kind: str) -> bytes:
        with self._lock:
            number = self._sent
            self._sent += 1
        head = _HEAD.pack(VERSION, number)
        bound = pack(self._about, self.me, self.peer, kind, head)
        return head + self._out.encrypt(_nonce(number), plain, bound)

    def open(self, box: bytes, kind: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(box) < _HEAD.size + _TAG_BYTES:
            raise self._refuse(f"{len(box)} bytes are too few: it was cut off")
        head = box[: _HEAD.size]
        version, number = _HEAD.unpack(head)
        if version != VERSION:
            raise self._refuse(f"it is of version {version}, this side speaks {VERSION}")
        bound = pack(self._about, self.peer, self.me, kind, head)
        with self._lock:
            try:
                plain = self._in.decrypt(_nonce(number), memoryview(box)[_HEAD.size :], bound)
            except InvalidTag as error:
                raise self._refuse("it was altered or made under another key") from error
            if number < self._received:
                raise self._refuse(f"box {number} was opened before: it was sent again")
            if number > self._received:
                raise self._refuse(
                    f"box {number} came where box {self._received} was due: boxes were lost or "
                    "came out of turn"
                )
            self._received += 1
        return plain

    def seed(self, purpose: str) -> bytes:
        return derive_key(self._seeds, purpose)

    def _refuse(self, why: str) -> CryptoError:
        return CryptoError(
            f"party {self.me!r} refused a box from {self.peer!r}: {why}. "
            "Mend: start the protocol anew; if it happens again, look at who carries the messages"
        )

    def __repr__(self) -> str:
        return f"_Line({self.me!r} to {self.peer!r})"


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
