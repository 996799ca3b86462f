"""``fedmend party serve``: a partner's resident side. Its columns and its part of the model stay.

A label party that shows its certificate opens a session: the parties find the people they share by
private set intersection, once, and from then on a person is a number in an order that both know
and that says nothing. The workers of training answer, under the party's own policy and into its
own ledger, but only with what a prediction needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.deploy.party_file import (
    install_workers,
    load_party,
    require_confirmed,
    site_of,
)
from fedmend.errors import ConfigError, Refused
from fedmend.federation import Alignment, Policy, Site
from fedmend.federation.bound import EVERY_RUN, Bound, declare, declared
from fedmend.federation.engines.flare.events import EVENTS_FILE, Events
from fedmend.federation.engines.flare.host import RUN_FOLDER, Hello, PartyHost
from fedmend.federation.federation import RosterWorker
from fedmend.federation.randomness import draw_secret
from fedmend.federation.worker import Worker, exposed
from fedmend.methods.registry import METHODS
from fedmend.secure.psi import MatchWorker
from fedmend.serve.channel import Answering, Listener
from fedmend.serve.models import encoder_of
from fedmend.serve.sources import People, Quota, source_of

PEOPLE, SERVE = "people", "serve"
"""The tables of a site that serves: everybody, and those of the prediction under way."""
AUTO = "auto"
_NO_NAMES = {"", ".", ".."}
SOURCE, QUOTA, PART = "serve.source", "serve.quota", "serve.part"
CALLS = frozenset(
    {"about", "attach", "embed", "load", "meet", "public_key", "seal_for", "sides_for"}
)
"""What a prediction calls of a method's workers: nothing that trains, saves or tells weights."""


class ServeWorker(Worker):
    """Takes the rows of people that a prediction is about from the party's own source."""

    @exposed(kind="control")
    def take(self, people: str, numbers: np.ndarray) -> np.ndarray:
        """People by their numbers in the common order of `people`, as rows of this scope.

        Told are the places in `numbers` of those whose columns are not to be had, today or at all.
        """
        site = self.site
        if not site.vault[PART].is_dir():  # it was taken away while its workers are in memory
            raise Refused(site.name, "its part of this model was revoked", "ask its people")
        aligned = site.alignments[people].aligned
        numbers = np.asarray(numbers)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise Refused(site.name, "people are whole numbers", "the numbers of the alignment")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(aligned):
            raise Refused(site.name, f"only {len(aligned):,} people are shared", "numbers of these")
        places = aligned[numbers]
        quota: Quota = site.vault[QUOTA]
        over = np.isin(places, quota.over("", places.tolist()))
        if len(over) and over.all():
            raise Refused(
                site.name,
                f"these {len(over)} people were asked about {quota.most} times today",
                "ask tomorrow, or agree on a larger quota",
            )
        # Others are asked about in the same round: they get their answers.
        source: People = site.vault[SOURCE]
        table, lacking = source.rows(places)
        site.tables[SERVE] = table.blanked(over) if over.any() else table
        lacking = np.union1d(lacking, np.flatnonzero(over))
        everybody = np.arange(len(places))
        site.alignments[self.scope] = Alignment(everybody, everybody[:0])
        return lacking


declare("serve", ServeWorker)


def served_only(party: str, methods: tuple[str, ...], policy: Policy) -> Bound:
    """What a prediction by these methods may use: their calls that predict, and the alignment.

    Nothing is sealed: the label party reads what it is sent, and nobody carries it.
    """
    bound = Bound.to(party, methods, policy, seal=False)
    aligning, known = (ServeWorker, RosterWorker, MatchWorker), Worker.installed()
    whole = {name for name in bound.calls if issubclass(known[name], aligning)}
    calls = {
        name: some if name in whole else some & CALLS
        for name, some in bound.calls.items()
        if name in whole or name not in declared()[EVERY_RUN].calls
    }
    return replace(bound, calls=calls)


def _install(methods: tuple[str, ...]) -> None:
    """Load the workers of these methods: all of them, where one is made of others."""
    if AUTO in methods:
        install_workers()
    for each in methods:
        if each in METHODS:
            METHODS[each].load()


class _Host(PartyHost):
    """A session with one label party, for as long as its connection stays.

    hosts: of all that are open, by the name of their ledger. hang_up: ends the connection.
    """

    def __init__(
        self, *given: Any, hosts: dict[str, _Host], hang_up: Callable[[], None], **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self._hosts, self._hang_up = hosts, hang_up
        self._place = ""

    def _in_turn(self, operation: str, content: dict[str, Any], asked: Any) -> bytes:
        return self._do(operation, content, asked)  # a connection is one thread already

    def close(self, reason: str) -> None:
        super().close(reason)
        if self._hosts.get(self._place) is self:
            del self._hosts[self._place]

    def _hello(self, content: dict[str, Any]) -> dict[str, Any]:
        # Who connects anew for the same model takes the place of the session before: a ledger is
        # written by one.
        run = str(content.get("run"))
        before = self._hosts.pop(run, None)
        if before is not None:
            before.close("it connected anew")
            before._hang_up()
        self._hosts[run] = self
        self._place = run
        answer = super()._hello(content)
        assert self._ledger is not None
        self._ledger.remember = False
        return answer


class PartnerServer:
    """Waits for label parties; use it as a context, and `serve` until it is stopped."""

    def __init__(self, kit: Path, listen: str | None = None) -> None:
        self.kit = kit
        self.file = load_party(kit)
        require_confirmed(self.file)
        self.events = Events(kit / EVENTS_FILE)
        self._sources: dict[str, People] = {}
        self._hosts: dict[str, _Host] = {}
        self._quotas: dict[str, Quota] = {}
        address = listen or self.file.serve.listen
        if address is None:
            raise ConfigError(
                "nobody knows where to listen. Mend: --listen HOST:PORT, or listen under [serve] "
                "in party.toml",
                source=str(kit),
            )
        admitted = frozenset({*self.file.partners, *self.file.keys.pinned})
        self._listener = Listener(kit, address, admitted, self._open_for, self._told)

    @property
    def address(self) -> str:
        return self._listener.address

    def serve(self) -> None:
        self._listener.serve()

    def stop(self) -> None:
        self._listener.close()

    def __enter__(self) -> PartnerServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        for host in list(self._hosts.values()):
            host.close("the service ended")

    def _told(self, words: str) -> None:
        self.events.note(words, "refused")

    def _open_for(self, asker: str, hang_up: Callable[[], None]) -> Answering:
        return _Host(
            self.file.name,
            lambda hello: self._site(asker, hello),
            self.kit,
            patience=float("inf"),
            hosts=self._hosts,
            hang_up=hang_up,
        )

    def _site(self, asker: str, hello: Hello) -> Site:
        """This party's side of a session: nothing of training, and its own policy."""
        file = self.file
        run, _, method = hello.title.partition("/")
        if hello.run != f"{SERVE}-{asker}-{run}-{method}" or not {run, method}.isdisjoint(
            _NO_NAMES
        ):
            raise Refused(file.name, f"{hello.title!r} is no model of a run", "RUN/METHOD")
        if file.serve.runs is not None and run not in file.serve.runs:
            raise Refused(
                file.name, f"the models of {run!r} are not to be asked", "runs under [serve]"
            )
        _install(hello.methods)
        # A connection inside the party's own TLS has no coordinator to hide from.
        policy = replace(file.policy.build(), sealed=frozenset())
        source = self._source(run, method)
        bound = served_only(file.name, hello.methods, policy)
        how: dict[str, Any] = {"seed": hello.seed, "secret": draw_secret(), "bound": bound}
        # Their ids to find the shared ones by; columns are those of people that are taken.
        everybody = {PEOPLE: source.table.select([])}
        site = site_of(file, self.kit, run, everybody, policy, **how)
        site.only = method
        site.vault[SOURCE] = source
        site.vault[PART] = self.kit / RUN_FOLDER / run / method
        site.vault[QUOTA] = self._quotas.setdefault(asker, Quota(file.serve.quota))
        return site

    def _source(self, run: str, method: str) -> People:
        """Read once for each model; errors of the party's own files are for its eyes."""
        folder, key = self.kit / RUN_FOLDER / run / method, f"{run}/{method}"
        if key not in self._sources:
            if not folder.is_dir():
                raise Refused(self.file.name, f"it has no part of {key}", "name a run it was in")
            encoder = encoder_of(folder)
            self._sources[key] = source_of(self.file, None if encoder is None else encoder.schema)
        return self._sources[key]
