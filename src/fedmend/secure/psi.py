"""Private set intersection: parties find the ids they have in common, and nothing else.

Two parties (Meadows 1986; Huberman, Franklin, Hogg 1999). Each hashes its ids into ristretto255
and blinds them with a secret scalar drawn for this run; each blinds the other's list once more and
gives it back as 16-byte tags. Equal ids have equal tags under both scalars.

Three and more (Kolesnikov, Matania, Pinkas, Rosulek, Trieu 2017). Blinding every list by everybody
and comparing would show pairwise overlaps, so the parties share out zeros instead: every pair has
a common key, a party's share of an id is the exclusive or of the id under its keys, and the shares
of *all* parties cancel. Each party gives the hub (the one with the fewest rows) a key–value store
that yields its share to whoever can evaluate its secret function on the id; the hub may do so,
blindly, for its own ids only. Where the shares cancel, everybody has the id; where one is missing,
the hub sees noise and cannot tell who lacks it.

Who learns what, besides the coordinator's counts (rows per party, size of the intersection):
two parties: the common ids, and how many rows the other has. Three and more: the common ids; the
hub also how many rows each has, the others how many the hub has. The coordinator carries sealed
messages. Before a party stores anything, each of the others shows it, end to end, that it found the
same rows in the same order: a coordinator's word is not enough. A partner that invents ids can ask
about them, as many as it brings (no protocol of this kind prevents that); how many they were is
noted for the party, and results can be refused by size (`Policy.min_intersection`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from fedmend.errors import AlignmentError, CryptoError, Refused, TooFewCommon
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.site import Alignment, Site
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure import okvs
from fedmend.secure.channel import SealingWorker
from fedmend.secure.group import TAG_BYTES, Scalar, hash_to_points, split, tags_of
from fedmend.secure.identifiers import describe_ids, normalised, type_of_ids
from fedmend.secure.keys import pack, secret_permutation

SHARE_BYTES = 16


# ---------------------------------------------------------------------------- party side, common


class MatchWorker(SealingWorker):
    """What all ways of matching share: the ids as compared, the policy's word, the result."""

    def __init__(
        self,
        site: Site,
        scope: str = "train",
        *,
        normalise: str = "exact",
        order_seed: int | None = None,
    ) -> None:
        super().__init__(site, scope)
        if order_seed is not None and not site.reproducible:
            raise Refused(
                site.name,
                "the order of the common rows would follow from the run's seed, which others know",
                'align with order="auto"',
            )
        self.rule = normalise
        self.order_seed = order_seed
        self.common: np.ndarray | None = None
        self._found = b""  # a digest of the common rows in their order, the same at all parties
        self._partners: frozenset[str] = frozenset()  # with whom they were found
        self._agreeing: set[str] = set()

    @cached_property
    def keys(self) -> list[bytes]:
        return normalised(self.table.ids, self.rule, self.site.name)

    @exposed(kind="count", over_rows=False)
    def facts(self) -> dict[str, Any]:
        """How many rows, and whether ids are integers or text."""
        return {"rows": len(self.table), "ids": type_of_ids(self.table.ids)}

    @exposed(kind="statistic", over_rows=False)
    def style(self) -> str:
        """How this party writes its ids; asked for only when none matched."""
        return describe_ids(self.table.ids)

    @exposed(kind="control")
    def admit(self) -> None:
        """Say yes or no to the intersection that was found, before anyone stores it."""
        found, least = len(self._result()), self.site.policy.min_intersection
        if found < least:
            raise TooFewCommon(
                self.site.name,
                f"the intersection has {found} rows, this party takes part from {least}",
                "find more common rows, or lower min_intersection in the policy of "
                f"{self.site.name!r}",
            )

    @exposed(kind="hashed-id")
    def confirm(self) -> dict[str, Sealed]:
        """What was found here, as a digest for each of those with whom it was found."""
        self._result()
        return {party: self._pack(self._found, party) for party in sorted(self._partners)}

    @exposed(kind="control", takes={"messages": "hashed-id"})
    def agree(self, messages: dict[str, Sealed]) -> None:
        """The others' digests must be this party's own."""
        self._result()
        for party, sealed in messages.items():
            theirs = self._unpack(sealed, party)
            if not isinstance(theirs, bytes) or not hmac.compare_digest(theirs, self._found):
                raise AlignmentError(
                    f"party {self.site.name!r} and {party!r} found different rows, or in another "
                    "order. Mend: start the alignment anew; the same fedmend version at all parties"
                )
            self._agreeing.add(party)

    @exposed(kind="count", over_rows=False)
    def store(self) -> dict[str, int]:
        """Keep the alignment at this site, once everybody it is with has confirmed it."""
        self.admit()
        aligned = self._result()
        silent = self._partners - self._agreeing
        if silent or not self._partners:
            who = ", ".join(map(repr, sorted(silent))) or "any other party"
            raise Refused(
                self.site.name,
                f"an alignment that was not confirmed by {who}",
                "align with a partner, and pass its confirmation on",
            )
        rest = np.ones(len(self.table), bool)
        rest[aligned] = False
        unaligned = np.flatnonzero(rest)
        self.site.alignments[self.scope] = Alignment(aligned, unaligned)
        return {"aligned": len(aligned), "unaligned": len(unaligned)}

    def _result(self) -> np.ndarray:
        if self.common is None:
            raise AlignmentError(
                f"party {self.site.name!r}: the rows were not matched yet. Mend: match first"
            )
        return self.common

    def _settle(
        self, rows: list[int], tags: list[bytes], secret: bytes, partners: Iterable[str]
    ) -> int:
        """Keep the common rows, in the order all parties get from the tags and their secret."""
        if self.order_seed is not None:
            secret = hashlib.sha256(b"seeded order %d" % self.order_seed).digest()
            tags = [self.keys[row] for row in rows]
        places = [hashlib.blake2b(tag, digest_size=16, key=secret).digest() for tag in tags]
        order = sorted(range(len(rows)), key=places.__getitem__)
        self.common = np.array([rows[at] for at in order], np.int64)
        self._keep_found(b"".join(sorted(places)), partners)
        return len(rows)

    def _keep_found(self, found: bytes, partners: Iterable[str]) -> None:
        self._found = hashlib.blake2b(found, digest_size=32).digest()
        self._partners, self._agreeing = frozenset(partners), set()

    def _pack(self, data: Any, to: str) -> Sealed:
        return self.seal({"rule": self.rule, "data": data}, to=to, kind="hashed-id")

    def _unpack(self, sealed: Sealed, sender: str) -> Any:
        message = self.open(sealed, sender=sender, kind="hashed-id")
        if not isinstance(message, dict) or message.keys() != {"rule", "data"}:
            raise CryptoError(f"{sender!r} sent something else than blinded ids")
        if message["rule"] != self.rule:
            raise AlignmentError(
                f"party {self.site.name!r} compares ids by normalise={self.rule!r}, "
                f"{sender!r} by {message['rule']!r}. Mend: one rule for all parties"
            )
        return message["data"]


class _BlindingWorker(MatchWorker):
    """A worker that blinds its ids, in an order that is nobody's business."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._scalar = Scalar()
        self._order = secret_permutation(len(self.keys))

    def _blinded(self, keys: list[bytes]) -> bytes:
        return self._scalar.times(hash_to_points(keys), sender=self.site.name)

    def _next_blinded(self, start: int, count: int) -> bytes:
        return self._blinded([self.keys[row] for row in self._order[start : start + count]])


# ---------------------------------------------------------------------------- party side, two


class PairWorker(_BlindingWorker):
    """One of two parties of ECDH-PSI."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._own: list[bytes] = []
        self._theirs: list[bytes] = []

    @exposed(kind="hashed-id")
    def blinded(self, start: int, count: int, to: str) -> Sealed:
        """The next own ids under the own scalar."""
        return self._pack(self._next_blinded(start, count), to)

    @exposed(kind="hashed-id", takes={"sealed": "hashed-id"})
    def tagged(self, sealed: Sealed, sender: str) -> Sealed:
        """The other's ids under both scalars, as tags in the order they came."""
        tags = tags_of(self._scalar.times(self._unpack(sealed, sender), sender=sender), sender)
        self._theirs += split(tags, sender, TAG_BYTES)
        return self._pack(tags, sender)

    @exposed(kind="control", takes={"sealed": "hashed-id"})
    def keep(self, sealed: Sealed, sender: str) -> None:
        """The tags of the own ids, back from the other."""
        self._own += split(self._unpack(sealed, sender), sender, TAG_BYTES)

    @exposed(kind="count", over_rows=False)
    def settle(self, peer: str) -> int:
        """Compare the tags; the number of common ids."""
        if len(self._own) != len(self.keys):
            raise CryptoError(
                f"{peer!r} gave back {len(self._own)} tags for {len(self.keys)} ids of "
                f"{self.site.name!r}. Mend: start the alignment anew"
            )
        theirs = set(self._theirs)
        if len(theirs) != len(self._theirs):
            raise CryptoError(f"{peer!r} sent an id more than once. Mend: its table is damaged")
        hits = [at for at, tag in enumerate(self._own) if tag in theirs]
        rows = [int(self._order[at]) for at in hits]
        secret = self.shared_seed(peer, "order of aligned rows")
        self.site.note(
            f"{peer} asked for {len(theirs):,} ids in {self.scope!r} of {self.site.name}: "
            f"{len(rows):,} of the {len(self.keys):,} here are among them"
        )
        return self._settle(rows, [self._own[at] for at in hits], secret, [peer])


# ---------------------------------------------------------------------------- party side, more


class StarWorker(_BlindingWorker):
    """One of three or more parties; the hub calls `blinded` … `invite`, the others the rest."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._outputs: list[bytes] = []  # of the own secret function (others), in table order
        self._theirs: dict[str, list[bytes]] = {}  # of each other's, on the hub's shuffled ids
        self._group = b""  # the key that all parties share in the end

    @exposed(kind="hashed-id")
    def blinded(self, start: int, count: int, to: list[str]) -> dict[str, Sealed]:
        """Hub: the next own ids under the own scalar, for each of the others."""
        points = self._next_blinded(start, count)
        return {party: self._pack(points, party) for party in to}

    @exposed(kind="hashed-id", takes={"sealed": "hashed-id"})
    def evaluated(self, sealed: Sealed, sender: str) -> Sealed:
        """Others: the hub's blinded ids under the own scalar as well, in the order they came."""
        return self._pack(self._scalar.times(self._unpack(sealed, sender), sender=sender), sender)

    @exposed(kind="control", takes={"messages": "hashed-id"})
    def unblind(self, messages: dict[str, Sealed]) -> None:
        """Hub: take the own scalar off again; what remains is the others' function on own ids."""
        bare = self._scalar.inverse()
        for party, sealed in messages.items():
            points = bare.times(self._unpack(sealed, party), sender=party)
            tags = split(tags_of(points, party), party, TAG_BYTES)
            self._theirs.setdefault(party, []).extend(tags)

    @exposed(kind="control")
    def digest_own(self, start: int, count: int) -> None:
        """Others: the own secret function on the next own ids."""
        me, points = self.site.name, self._blinded(self.keys[start : start + count])
        self._outputs += split(tags_of(points, me), me, TAG_BYTES)

    @exposed(kind="hashed-id")
    def shares(self, to: str) -> Sealed:
        """Others: the store that gives the own zero shares to who knows the function's value."""
        hidden = _words(self._outputs) ^ self._zero_shares(self.keys)
        seed, table = okvs.encode(self.keys, hidden)
        return self._pack({"seed": seed, "table": table}, to)

    @exposed(kind="count", over_rows=False, takes={"messages": "hashed-id"})
    def settle(self, messages: dict[str, Sealed]) -> int:
        """Hub: add up everybody's shares of the own ids; those that cancel are common to all."""
        mine = [self.keys[row] for row in self._order]
        total = self._zero_shares(mine)
        for party, sealed in messages.items():
            store, outputs = self._unpack(sealed, party), self._theirs.get(party, [])
            if len(outputs) != len(mine):
                raise CryptoError(
                    f"{party!r} evaluated {len(outputs)} of {len(mine)} ids of "
                    f"{self.site.name!r}. Mend: start the alignment anew"
                )
            if not isinstance(store, dict) or store.keys() != {"seed", "table"}:
                raise CryptoError(f"{party!r} sent something else than its shares")
            total ^= okvs.decode(mine, store["seed"], store["table"], party) ^ _words(outputs)
        hits = np.flatnonzero(~total.any(axis=1))
        rows = [int(self._order[at]) for at in hits]
        self._group = os.urandom(32)
        return self._settle(rows, self._group_tags(rows), self._group, self.met)

    @exposed(kind="hashed-id")
    def invite(self, to: list[str]) -> dict[str, Sealed]:
        """Hub: the common ids under a key all parties get, in the common order."""
        tags = b"".join(self._group_tags([int(row) for row in self._result()]))
        return {party: self._pack({"key": self._group, "tags": tags}, party) for party in to}

    @exposed(kind="count", over_rows=False, takes={"sealed": "hashed-id"})
    def recognise(self, sealed: Sealed, sender: str) -> int:
        """Others: find the common ids among the own."""
        invitation = self._unpack(sealed, sender)
        if not isinstance(invitation, dict) or invitation.keys() != {"key", "tags"}:
            raise CryptoError(f"{sender!r} sent something else than the common ids")
        self._group = invitation["key"]
        rows = list(range(len(self.keys)))
        mine = dict(zip(self._group_tags(rows), rows, strict=True))
        tags = split(invitation["tags"], sender, TAG_BYTES)
        if len(set(tags)) != len(tags):
            raise CryptoError(f"{sender!r} names a common id more than once. Mend: start anew")
        unknown = sum(tag not in mine for tag in tags)
        if unknown:
            raise CryptoError(
                f"{sender!r} names {unknown} common ids that {self.site.name!r} does not have. "
                "Mend: start the alignment anew"
            )
        return self._settle([mine[tag] for tag in tags], tags, self._group, self.met)

    def _zero_shares(self, keys: list[bytes]) -> np.ndarray:
        """This party's share of zero for each id, **shape** [n, 2]: all parties' cancel.

        Over everybody met, and not over whom a caller names: a share that leaves one out would
        show the hub the overlap of the rest.
        """
        total = np.zeros((len(keys), 2), np.uint64)
        for party in self.met:
            seed = self.shared_seed(party, "zero shares")
            total ^= _words([_prf(seed, key) for key in keys])
        return total

    def _group_tags(self, rows: list[int]) -> list[bytes]:
        return [_prf(self._group, self.keys[row]) for row in rows]


def _prf(seed: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=SHARE_BYTES, key=seed).digest()


def _words(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), "<u8").astype(np.uint64).reshape(len(values), 2)


# ---------------------------------------------------------------------------- the same order


class SameOrderWorker(MatchWorker):
    """Shows, by a digest under a secret of the parties, that all tables list the same ids."""

    def __init__(self, site: Site, scope: str = "train", **params: Any) -> None:
        super().__init__(site, scope, **params)
        self._salt = b""

    @exposed(kind="hashed-id")
    def salt(self, to: list[str]) -> dict[str, Sealed]:
        """Draw the secret under which ids are digested, for the other parties only."""
        self._salt = os.urandom(32)
        return {party: self._pack(self._salt, party) for party in to}

    @exposed(kind="control", takes={"sealed": "hashed-id"})
    def take_salt(self, sealed: Sealed, sender: str) -> None:
        self._salt = self._unpack(sealed, sender)

    @exposed(kind="hashed-id")
    def digest(self) -> bytes:
        """One digest of all ids in table order; says nothing to who does not know the salt."""
        if len(self._salt) != 32:
            raise CryptoError(f"party {self.site.name!r} has no salt yet. Mend: introduce first")
        digest = hashlib.blake2b(key=self._salt, digest_size=32)
        ids = self.table.ids
        if self.rule == "exact" and type_of_ids(ids) == "integers":
            digest.update(b"integers")
            digest.update(ids.astype("<i8").tobytes())
        else:
            digest.update(b"keys")
            digest.update(pack(*self.keys))
        self.common = np.arange(len(ids))
        self._keep_found(digest.digest(), self.met)
        return digest.digest()


declare(EVERY_RUN, PairWorker, StarWorker, SameOrderWorker)
