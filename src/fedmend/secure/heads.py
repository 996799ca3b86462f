"""At the end of a run every party tells every other one, and the coordinator, its ledger's head.

Whoever has noted the head of another's ledger notices when an end of it is cut off or all of it
written anew. Between parties heads travel end to end encrypted, so that the coordinator, who
carries them, cannot give one party another's head than that party has. Noted is a head in the
ledger of who receives it: it is in that ledger's own chain, and needs no file.
"""

from __future__ import annotations

import logging

from fedmend.errors import CryptoError, DataError, FedmendError
from fedmend.federation import Federation
from fedmend.federation.bound import EVERY_RUN, declare
from fedmend.federation.federation import Each
from fedmend.federation.ledger import COORDINATOR, NOTHING, Head, Ledger
from fedmend.federation.wire import Sealed
from fedmend.federation.worker import exposed
from fedmend.secure.channel import SealingWorker, introduce

logger = logging.getLogger(__name__)

CALL = "LedgerHeadWorker.head"
_DIGITS = frozenset("0123456789abcdef")


class LedgerHeadWorker(SealingWorker):
    """Tells how far a party's own ledger has come, and notes how far those of others have."""

    @property
    def _ledger(self) -> Ledger:
        if self.site.ledger is None:
            raise DataError(
                "keeps no ledger of its own",
                party=self.site.name,
                mend="in one process there is one ledger, of which nobody else needs a head",
            )
        return self.site.ledger

    @exposed(kind="control")
    def head(self, to: list[str]) -> dict[str, list[int | str] | Sealed]:
        """The head for the coordinator, and encrypted for every other party; the same for all."""
        head: list[int | str] = [*self._ledger.head()]
        messages = {party: self.seal(head, to=party, kind="control") for party in to}
        return {COORDINATOR: head, **messages}

    @exposed(kind="control")
    def note(self, messages: dict[str, Sealed], coordinator: list[int | str]) -> None:
        """Note the heads of the others, and the coordinator's."""
        told = {
            party: self.open(sealed, sender=party, kind="control")
            for party, sealed in messages.items()
        }
        me = self.site.name
        for party, head in (told | {COORDINATOR: coordinator}).items():
            _note(self._ledger, party, me, _checked(head, party))


def exchange_heads(fed: Federation) -> None:
    """Let all parties of a federation and its coordinator note each other's ledger heads.

    A party that does not take part must not spoil a run that is done: its head is then missing.
    """
    if not fed.engine.apart:
        return
    names = fed.names
    try:
        with fed.workers(LedgerHeadWorker) as workers:
            if len(names) > 1:
                introduce(workers)
            others = {party: [other for other in names if other != party] for party in names}
            told = workers.head(Each(others))
            for party in names:
                _note(fed.ledger, party, COORDINATOR, _checked(told[party][COORDINATOR], party))
            messages = {to: {party: told[party][to] for party in others[to]} for to in names}
            workers.note(Each(messages), list(fed.ledger.head()))
    except FedmendError as error:
        logger.warning("the heads of the ledgers were not exchanged: %s", error)


def _note(ledger: Ledger, whose: str, at: str, head: Head) -> None:
    ledger.record(whose, at, CALL, "control", NOTHING, note=head.note)


def _checked(head: object, party: str) -> Head:
    if isinstance(head, (list, tuple)) and len(head) == 2:
        lines, digest = head
        known = isinstance(digest, str) and len(digest) == 64 and set(digest) <= _DIGITS
        if type(lines) is int and 0 <= lines < 1 << 62 and known:
            return Head(lines, digest)
    raise CryptoError(
        f"{party!r} gave something else than the head of its ledger. "
        "Mend: the same version of fedmend at every party"
    )


declare(EVERY_RUN, LedgerHeadWorker)
