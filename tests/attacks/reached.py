"""A party as a coordinator reaches it: a Site in this process, or a PartyHost behind messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from fedmend.data.table import Table
from fedmend.deploy.party_file import install_workers, load_party, open_site
from fedmend.federation import Policy, Site, wire
from fedmend.federation.engines.flare.host import Hello, PartyHost
from fedmend.federation.engines.flare.messages import read_reply
from fedmend.federation.ledger import Entry, read_ledger
from fedmend.secure.keys import Identity, keyring

ENGINES = ("site", "host")
# A run that may start nearly everything: what else protects a party is tried behind this door.
OPENED = ("vfl", "risa", "fedavg", "inc", "fedpsg-pum", "auto", "products", "sums", "correlation")


class Reached:
    """One worker of the party at a time is asked by ``reached.worker(...)``."""

    site: Site

    def start(self, worker: str, params: Mapping[str, Any], scope: str = "train") -> str:
        return self.site.start(worker, scope, params)

    def call(self, handle: str, method: str, kwargs: Mapping[str, Any]) -> Any:
        return self.site.call(handle, method, kwargs)

    def worker(self, name: str, **params: Any) -> Asked:
        return Asked(self, self.start(name, params))

    def close(self) -> None: ...


class Asked:
    """A worker; its methods are those that the party exposes."""

    def __init__(self, at: Reached, handle: str) -> None:
        self._at, self._handle = at, handle

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda **kwargs: self._at.call(self._handle, method, kwargs)


class AtSite(Reached):
    def __init__(self, site: Site) -> None:
        self.site = site


class AtHost(Reached):
    """The party's half of the flare engine; requests and replies are bytes."""

    def __init__(
        self,
        folder: Path,
        *,
        methods: tuple[str, ...] = OPENED,
        run: str = "r",
        test_share: float = 0.2,
    ) -> None:
        file = load_party(folder)
        self.party = file.name
        self.host = PartyHost(file.name, lambda hello: open_site(file, hello, folder), folder)
        self._number, self._session = 0, b""
        hello = Hello(run, "a run", methods, 0, test_share)
        self._session = self.ask("hello", **hello.to_wire())["session"]
        assert self.host._site is not None
        self.site = self.host._site

    def reply(self, op: str, **content: Any) -> bytes:
        self._number += 1
        content = {"op": op, "session": self._session, "number": self._number, **content}
        return self.host.answer(wire.encode(content))

    def ask(self, op: str, **content: Any) -> Any:
        return read_reply(self.reply(op, **content), self.party, op)

    def start(self, worker: str, params: Mapping[str, Any], scope: str = "train") -> str:
        return str(self.ask("start", worker=worker, scope=scope, params=dict(params)))

    def call(self, handle: str, method: str, kwargs: Mapping[str, Any]) -> Any:
        return self.ask("call", handle=handle, method=method, kwargs=dict(kwargs))

    @property
    def left(self) -> list[Entry]:
        """What left the party by its own ledger, refusals aside."""
        ledger = self.host._ledger
        assert ledger is not None and ledger.path is not None
        ledger.flush()
        entries = read_ledger(ledger.path)
        return [each for each in entries if each.sender == self.party and not each.note]

    def close(self) -> None:
        self.host.close("finished")


def hostile(
    folder: Path,
    frame: pd.DataFrame,
    *methods: str,
    name: str = "bank",
    label: str | None = None,
    policy: str = "",
) -> AtHost:
    """A party whose coordinator said hello with these methods, and asks whatever it likes."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{name}.csv", index=False)
    text = f'name = "{name}"\ndata = "{name}.csv"\nid = "id"\nthreads = 1\n'
    text += f'label = "{label}"\n' if label else ""
    (folder / "party.toml").write_text(f"{text}[policy]\n{policy}\n")
    return AtHost(folder, methods=methods)


def party(
    engine: str,
    folder: Path,
    table: Table,
    *,
    name: str = "bank",
    pinned: Mapping[str, bytes] | None = None,
    identity: Identity | None = None,
    sealed: tuple[str, ...] = (),
    allow: Collection[str] = Policy.allow,
    run: str = "r",
) -> Reached:
    """A party with these keys and a default policy; its table is read from a file by a host.

    allow: for attacks on what protects a value that the policy lets out.
    """
    pinned = pinned or {}
    install_workers()
    if engine == "site":
        site = Site(name, {"train": table}, policy=Policy(sealed=sealed, allow=allow))
        keyring(site, identity=identity, pinned=pinned)
        return AtSite(site)
    folder.mkdir(exist_ok=True)
    frame = table.frame.assign(id=table.ids)
    frame.to_csv(folder / "table.csv", index=False)
    frame.head(5).to_csv(folder / "test.csv", index=False)
    label = f'label = "{table.label}"\n' if table.label else ""
    keys = "".join(f'{each} = "{key.hex()}"\n' for each, key in pinned.items())
    (folder / "party.toml").write_text(
        f'name = "{name}"\ndata = "table.csv"\ntest = "test.csv"\nid = "id"\n{label}'
        f"[policy]\nmethods = {list(OPENED)}\nsealed = {list(sealed)}\n"
        f"allow = {sorted(allow)}\n[keys.pinned]\n{keys}"
    )
    if identity is not None and not (folder / "identity.pem").exists():
        identity.save(folder / "identity.pem", None)
    return AtHost(folder, run=run)


@contextmanager
def partners(
    engine: str, folder: Path, tables: Mapping[str, Table], **options: Any
) -> Iterator[dict[str, Reached]]:
    """Two parties that pin each other's keys."""
    keys = {name: Identity() for name in tables}
    made = {}
    for name, table in tables.items():
        pinned = {other: keys[other].public for other in tables if other != name}
        own = {"name": name, "identity": keys[name], "pinned": pinned}
        made[name] = party(engine, folder / name, table, **own, **options)
    try:
        yield made
    finally:
        for each in made.values():
            each.close()


def introduced(*workers: tuple[str, Asked], told: Mapping[str, bytes] | None = None) -> None:
    """Pass the keys of the workers on, as a coordinator does; `told` stands in for some of them."""
    keys = {name: worker.public_key() for name, worker in workers}
    for name, worker in workers:
        worker.meet(keys={**keys, **(told or {}), name: keys[name]})
