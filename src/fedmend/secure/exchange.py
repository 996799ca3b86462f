"""Embeddings and gradients in boxes: what a split network exchanges, unread by who carries it.

    bottoms, tops = fed.workers(BottomWorker, …), fed.workers(TopWorker, parties=["bank"], …)
    seal_exchange(bottoms, tops)          # from here on their embeddings and gradients are boxes
    tops["bank"].step(bottoms.step())

The loop that calls the workers does not change, nor do their methods: answers of the kinds
`EXCHANGED` leave in boxes for the party they are meant for, and boxes are opened before the method
sees them. Splits whose top is at a party need no reader in between; where the top is at the
coordinator it is the reader, and nothing can be sealed.

A box is read by the end it was made for and by nobody else; in the arguments of a sealed call
anything but a box, or a box of another sender, is refused. So the coordinator can neither read
embeddings and gradients nor put in its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedmend.errors import CryptoError
from fedmend.federation.kinds import EXCHANGED
from fedmend.federation.worker import Exposure, exposed
from fedmend.secure.channel import SealingWorker, introduce

if TYPE_CHECKING:
    from fedmend.federation.federation import Crew, Federation

__all__ = ["ExchangeWorker", "is_sealed", "seal_exchange"]

"""The kinds that leave in boxes."""


class ExchangeWorker(SealingWorker):
    """Base of workers that exchange embeddings and gradients with others, openly by default."""

    conversation = "split training"
    _counterpart: str | None = None
    _by_party = False

    @exposed(kind="control")
    def seal_for(self, party: str | None) -> None:
        """From now on embeddings and gradients leave and come in boxes.

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

    def outgoing(self, exposure: Exposure, value: Any) -> Any:
        if value is None or exposure.kind not in EXCHANGED or not self.seals:
            return value
        if self._counterpart is not None:
            return self.seal(value, to=self._counterpart, kind=exposure.kind)
        return {to: self.seal(each, to=to, kind=exposure.kind) for to, each in value.items()}

    def incoming(self, exposure: Exposure, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.seals:
            return kwargs
        opened = dict(kwargs)
        for name, kind in exposure.takes.items():
            if kind in EXCHANGED and opened.get(name) is not None:
                opened[name] = self._opened(opened[name], kind)
        return opened

    def _opened(self, given: Any, kind: str) -> Any:
        if isinstance(given, Mapping):
            return {party: self.open(box, sender=party, kind=kind) for party, box in given.items()}
        # Without a counterpart no single box is expected of anybody.
        return self.open(given, sender=self._counterpart or "", kind=kind)


def seal_exchange(bottoms: Crew, tops: Crew, *, by_party: bool = True) -> None:
    """Let feature parties and the one party of `tops` exchange boxes, fresh keys first.

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
