"""End-to-end encryption between parties whose messages the coordinator carries.

    class TalkWorker(SealingWorker):
        @exposed(kind="masked")
        def share(self, to: str) -> Sealed:
            return self.seal(self.numbers, to=to, kind="masked")

        @exposed(kind="control", takes={"message": "masked"})
        def take(self, message: Sealed, sender: str) -> None:
            self.numbers += self.open(message, sender=sender)

    workers = fed.workers(TalkWorker)
    introduce(workers)                                   # public keys change hands
    workers["telco"].take(workers["bank"].share("telco"), "bank")

Every worker has a fresh X25519 key beside the lasting identity of its party. Two workers agree on
four Diffie–Hellman secrets (fresh–fresh, both fresh–lasting, lasting–lasting), and HKDF-SHA256
over them, the names, the scope and all public keys gives one ChaCha20-Poly1305 key per direction.
Messages are numbered; sender, recipient, kind, number and (of embeddings and gradients) the numbers
of the rows are authenticated. So a message that was
altered, cut, sent twice, sent out of turn, meant for somebody else or made under another key is
refused, and recorded messages stay closed even if an identity is stolen later. Why one was refused
is for the party's own log: what leaves is the same word for all.

Masks come from the same agreement. A worker may have a *role*, which is fixed when it starts and
part of what two workers agree on: one that is told of a counterpart in the wrong role refuses it,
and if the coordinator lies about a role, the two have no secret in common. A stream belongs to who
hides something by it (`mask_key`); its numbers only grow.

What this rests on: the keys of the partners (`keys.KeyRing`). A party that pins or names partners
meets nobody else. A key that was not given in advance is believed when it is first seen, through
the coordinator: one that lies at that very first exchange can put its own key in its place and
read along. Comparing fingerprints, or giving the keys in advance, closes that gap.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

from fedmend.errors import CryptoError
from fedmend.federation import wire
from fedmend.federation.federation import Each, Federation, WorkerGroup
from fedmend.federation.kinds import EXCHANGED
from fedmend.federation.site import Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import Exposure, Worker, exposed
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

logger = logging.getLogger(__name__)

VERSION = 1
_HEAD = struct.Struct("<BQ")
_TAG_BYTES = 16


class SealingWorker(Worker):
    """Base of workers that talk to their counterparts at other parties.

    conversation: what the messages are about; workers of two classes that talk to each other set it
    to the same word. By default the class's name.
    role, counterpart: what this worker is in it, and what every other must be; set before anybody
    is met, and never again.
    """

    conversation: ClassVar[str] = ""
    role: str = ""
    counterpart: str = ""

    def __init__(self, site: Site, scope: str = "train") -> None:
        super().__init__(site, scope)
        self._lines: dict[str, _Line] = {}
        self._mask_numbers: dict[tuple[str, str, str], int] = {}
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
        """The party's lasting public key and this worker's fresh one, 64 bytes, and its role."""
        return self._ring.identity.public + self._session.public + self.role.encode()

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

    def seal(self, value: Any, *, to: str, kind: str, rows: str = "") -> Sealed:
        """A message that only `to` can open; refused if the policy keeps this kind in.

        rows: of which rows it is, which the other must expect in the same words.
        """
        me = self.site.name
        self.site.policy.admit_kind(me, f"{self.worker_name()}.seal", kind)
        return Sealed(me, to, kind, self._line(to).seal(wire.encode(value), kind, rows))

    def open(self, sealed: Sealed, *, sender: str, kind: str | None = None, rows: str = "") -> Any:
        """The value in a message from `sender`; `CryptoError` for anything but its very next."""
        me = self.site.name
        if not isinstance(sealed, Sealed):
            raise CryptoError(
                f"party {me!r} expected an encrypted message from {sender!r} and got a "
                f"{type(sealed).__name__}. Mend: the sender must use seal()"
            )
        if (sealed.sender, sealed.recipient) != (sender, me):
            raise CryptoError(
                f"party {me!r} expected an encrypted message from {sender!r}; this one goes from "
                f"{sealed.sender!r} to {sealed.recipient!r}. Mend: the coordinator mixed them up"
            )
        if kind is not None and sealed.kind != kind:
            raise CryptoError(
                f"party {me!r} expected a message of kind {kind!r} from {sender!r}, this is of "
                f"kind {sealed.kind!r}"
            )
        line = self._line(sender)
        with self.unreadable(sender):
            return wire.decode(line.open(sealed.ciphertext, sealed.kind, rows))

    @contextmanager
    def unreadable(self, sender: str) -> Iterator[None]:
        """One error for whatever does not open or decrypt in here; its cause stays at this party.

        Who sends things to see how they fail is to learn no more than that they did.
        """
        try:
            yield
        except Exception as error:
            party = self.site.name
            logger.warning("party %r could not read a message from %r: %s", party, sender, error)
            raise CryptoError(
                f"party {party!r} could not read a message from {sender!r}; the cause is in its "
                "own log. Mend: start the protocol anew; if it happens again, look at who carries "
                "the messages"
            ) from error

    def mask_key(
        self, party: str, stream: str, number: int, *about: object, owner: str, again: bool = False
    ) -> bytes:
        """The key of the masks by which `owner`, one of the two, hides something from others.

        Both ends get the same key if they say the same: owner, stream, number, and what it is
        `about` (shapes, say). A number is given out once, and numbers only grow; `again` is for
        who makes the other's mask anew, to take it away from what the other sent.
        """
        me, line = self.site.name, self._line(party)
        if owner not in (me, party):
            raise CryptoError(f"party {me!r}: a mask with {party!r} cannot be {owner!r}'s")
        last = self._mask_numbers.get((party, owner, stream), 0)
        if not again:
            if not isinstance(number, int) or number <= last:
                raise CryptoError(
                    f"party {me!r}: number {number} of {stream!r} is not after {last}, and a mask "
                    "that is used twice hides nothing. Mend: count on"
                )
            self._mask_numbers[party, owner, stream] = number
        return line.seed("mask", owner, stream, *map(str, (number, *about)))

    def shared_seed(self, party: str, purpose: str) -> bytes:
        """32 bytes that this worker and its counterpart at `party` alone have in common.

        The same at both ends, different for every pair, purpose and start of the workers. For
        what both ends know anyway, an order say; what hides something has an owner (`mask_key`).
        """
        return self._line(party).seed("seed", purpose)

    def _meet_one(self, party: str, public: bytes) -> None:
        me = self.site.name
        if not isinstance(public, bytes) or len(public) < 2 * KEY_BYTES:
            raise CryptoError(
                f"party {me!r}: the key of {party!r} is not {2 * KEY_BYTES} bytes. "
                "Mend: pass on what its public_key() gave"
            )
        role = public[2 * KEY_BYTES :].decode(errors="replace")
        if role != self.counterpart:
            raise CryptoError(
                f"party {me!r} has the role {self.role!r} and works with {self.counterpart!r}; "
                f"{party!r} comes in the role {role!r}. Mend: one role for each side"
            )
        met = self._lines.get(party)
        if met is not None:
            if met.public != public[: 2 * KEY_BYTES]:
                raise CryptoError(
                    f"party {me!r} has met {party!r} already, with another key "
                    f"({fingerprint(public[:KEY_BYTES])}). Mend: start the workers anew"
                )
            return
        lasting = self._ring.pin(party, public[:KEY_BYTES])
        roles = [each for _, each in sorted([(me, self.role), (party, role)]) if each]
        self._lines[party] = _Line.agree(
            (me, self._ring.identity, self._session),
            (party, lasting, check_public(public[KEY_BYTES : 2 * KEY_BYTES])),
            ("|".join([self.conversation or self.worker_name(), *roles]), self._rows_met),
        )

    @property
    def _rows_met(self) -> str:
        """The scope and, of a part of a table, which rows were taken: the same at both, or none."""
        return self.scope + self.site.excerpts.get(self.scope, "")

    def _line(self, party: str) -> _Line:
        line = self._lines.get(party)
        if line is None:
            raise CryptoError(
                f"party {self.site.name!r} has no key of {party!r}. "
                "Mend: introduce(workers) before anything is sealed"
            )
        return line


def introduce(*groups: WorkerGroup, hub: str | None = None) -> dict[str, str]:
    """Pass public keys between the workers of a group (or of several groups that talk together).

    hub: the party to whom alone all others talk: they meet it, and not each other.
    Returns the fingerprints of the parties' lasting keys as the coordinator saw them.
    """
    keys: dict[str, bytes] = {}
    for workers in groups:
        for party, public in workers.public_key().items():
            if party in keys:
                raise CryptoError(
                    f"party {party!r} has two of the workers that are to meet. Mend: one each"
                )
            keys[party] = public
    for workers in groups:
        known = {
            party: keys if hub in (None, party) else {each: keys[each] for each in (hub, party)}
            for party in workers
        }
        workers.meet(Each(known))
    return {party: fingerprint(public[:KEY_BYTES]) for party, public in keys.items()}


class ExchangeWorker(SealingWorker):
    """Base of workers that exchange embeddings and gradients, openly until `seal_exchange`.

        bottoms, tops = fed.workers(BottomWorker, …), fed.workers(TopWorker, parties=["bank"], …)
        seal_exchange(bottoms, tops)      # from here on their embeddings and gradients are sealed
        tops["bank"].step(bottoms.step())

    Neither the loop that calls the workers nor their methods change: answers of the kinds
    `EXCHANGED` leave encrypted for the party they are meant for, and are opened before the method
    sees them. In the arguments of a sealed call anything in the open, or a message of another
    sender, is refused: the coordinator can neither read embeddings and gradients nor put in its
    own. Where the top is at the coordinator it is the reader, and nothing can be sealed.
    """

    conversation = "split training"
    _counterpart: str | None = None
    _by_party = False

    @exposed(kind="control")
    def seal_for(self, party: str | None) -> None:
        """From now on embeddings and gradients leave and come in encrypted messages.

        party: the only counterpart; None where answers are dicts with a value for each. Whom they
        are for is settled once.
        """
        if self.seals and (self._counterpart, self._by_party) != (party, party is None):
            raise CryptoError(
                f"party {self.site.name!r} seals for {self._counterpart or 'each party'!r} and "
                f"does not change to {party or 'each party'!r}. Mend: start the workers anew"
            )
        self._counterpart, self._by_party = party, party is None

    @property
    def seals(self) -> bool:
        return self._by_party or self._counterpart is not None

    def exchanged(self, method: str, kwargs: Mapping[str, Any], *, coming: bool) -> str:
        """Of which rows the messages of a call are, where both sides can say so. A hook.

        A coordinator that passes on an embedding of other rows would choose what stands beside
        which label. coming: before the call, of what it takes; otherwise after it.
        """
        return ""

    def outgoing(self, exposure: Exposure, kwargs: Mapping[str, Any], value: Any) -> Any:
        if value is None or exposure.kind not in EXCHANGED or not self.seals:
            return value
        about = {"kind": exposure.kind}
        about["rows"] = self.exchanged(exposure.method, kwargs, coming=False)
        if self._counterpart is not None:
            return self.seal(value, to=self._counterpart, **about)
        return {to: self.seal(each, to=to, **about) for to, each in value.items()}

    def incoming(self, exposure: Exposure, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.seals:
            return kwargs
        opened = dict(kwargs)
        for name, kind in exposure.takes.items():
            if kind in EXCHANGED and opened.get(name) is not None:
                rows = self.exchanged(exposure.method, kwargs, coming=True)
                opened[name] = self._opened(opened[name], {"kind": kind, "rows": rows})
        return opened

    def _opened(self, given: Any, about: dict[str, str]) -> Any:
        if isinstance(given, Mapping):
            return {
                party: self.open(sealed, sender=party, **about) for party, sealed in given.items()
            }
        # Without a counterpart no single message is expected of anybody.
        return self.open(given, sender=self._counterpart or "", **about)


def seal_exchange(bottoms: WorkerGroup, tops: WorkerGroup, *, by_party: bool = True) -> None:
    """Let feature parties and the one party of `tops` exchange encrypted messages, fresh keys.

    by_party: the top answers with a dict by party; else with one value, for the only other party.
    """
    if not len(bottoms):
        return
    (at,), others = tops, list(bottoms)
    introduce(bottoms, tops)
    bottoms.seal_for(at)
    tops.seal_for(None if by_party else others[0])


def is_sealed(fed: Federation, seal: bool | None) -> bool:
    """Whether an exchange is sealed: as asked for, else where parties are machines of their own.

    In one process there is nobody to hide from, and values pass by reference.
    """
    return fed.engine.apart if seal is None else seal


# ---------------------------------------------------------------------------------- two workers


class _Line:
    """What two workers share: a key and a counter per direction, and a root for seeds."""

    def __init__(self, me: str, peer: str, public: bytes, secret: bytes, about: bytes) -> None:
        self.me, self.peer, self.public = me, peer, public
        self._about, self._secret = about, secret
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

    @cached_property
    def _ciphers(self) -> list[Any]:
        """Out and in, made when needed: among many parties most lines carry masks alone."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        ways = ((self.me, self.peer), (self.peer, self.me))
        return [ChaCha20Poly1305(derive_key(self._secret, "sealed", *way)) for way in ways]

    def seal(self, plain: bytes, kind: str, rows: str = "") -> bytes:
        with self._lock:
            number = self._sent
            self._sent += 1
        head = _HEAD.pack(VERSION, number)
        bound = pack(self._about, self.me, self.peer, kind, rows, head)
        return head + self._ciphers[0].encrypt(_nonce(number), plain, bound)

    def open(self, ciphertext: bytes, kind: str, rows: str = "") -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(ciphertext) < _HEAD.size + _TAG_BYTES:
            raise CryptoError(f"{len(ciphertext)} bytes are too few: it was cut off")
        head = ciphertext[: _HEAD.size]
        version, number = _HEAD.unpack(head)
        if version != VERSION:
            raise CryptoError(f"it is of version {version}, this side speaks {VERSION}")
        bound = pack(self._about, self.peer, self.me, kind, rows, head)
        with self._lock:
            try:
                plain = self._ciphers[1].decrypt(
                    _nonce(number), memoryview(ciphertext)[_HEAD.size :], bound
                )
            except InvalidTag as error:
                raise CryptoError("it was altered or made under another key") from error
            if number < self._received:
                raise CryptoError(f"message {number} was opened before: it was sent again")
            if number > self._received:
                raise CryptoError(
                    f"message {number} came where message {self._received} was due: some were "
                    "lost or came out of turn"
                )
            self._received += 1
        return plain

    def seed(self, *purpose: str) -> bytes:
        return derive_key(self._seeds, *purpose)

    def __repr__(self) -> str:
        return f"_Line({self.me!r} to {self.peer!r})"


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
