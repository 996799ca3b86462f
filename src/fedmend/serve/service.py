"""A model that is served: questions in, answers out, and what is counted of them.

Two ways to open one. A run in one process has all parts and all tables here. A kit is the label
party's own: its part and its table are here, and its partners listen elsewhere
(``fedmend party serve``).
"""

from __future__ import annotations

import json
import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedmend._files import held
from fedmend.data.schema import Schema
from fedmend.deploy.party_file import (
    ServeSettings,
    load_party,
    require_confirmed,
    site_of,
)
from fedmend.errors import ConfigError, DataError, FedmendError, FedmendWarning
from fedmend.federation import Site
from fedmend.federation.engines.flare.host import LEDGER_FOLDER, Hello
from fedmend.federation.ledger import Ledger
from fedmend.federation.randomness import draw_secret
from fedmend.flow.config import Config, PartySettings
from fedmend.flow.new_rows import rows_of_records
from fedmend.serve.answering import Answerer, Keeper
from fedmend.serve.desk import Desk, Question
from fedmend.serve.drift import Drift
from fedmend.serve.engine import ServingEngine
from fedmend.serve.models import (
    KeptModel,
    chosen,
    kept_in_kit,
    name_of_class,
    read_manifest,
    schema_of,
)
from fedmend.serve.partner import PART, PEOPLE, QUOTA, SERVE, SOURCE
from fedmend.serve.running import party_settings, predict_tables, require_parts, run_config
from fedmend.serve.sources import People, Quota, people_of, source_of

logger = logging.getLogger(__name__)

MAX_REQUEST_ROWS = 10_000
BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
WAIT_SECONDS = 60.0
_QUOTED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # in a label of Prometheus


class OverQuota(FedmendError):
    """Somebody has asked about a person often enough for today."""


class Families:
    """Figures in the text form of Prometheus, in which the lines of a family stand together."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, family: str, value: object, part: str = "", **labels: str) -> None:
        """family: name and type. part: of a histogram."""
        told = ",".join(f'{name}="{each.translate(_QUOTED)}"' for name, each in labels.items())
        line = f"{family.split()[0]}{part}{{{told}}} {value}\n"
        self._lines.setdefault(family, []).append(line)

    def __str__(self) -> str:
        return "".join(f"# TYPE {each}\n{''.join(lines)}" for each, lines in self._lines.items())


class Metrics:
    """Requests by outcome with their times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, float]] = Counter()
        self._sums: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._absent: Counter[tuple[str, str]] = Counter()

    def note(self, outcome: str, seconds: float, used: list[Any], absent: list[Any]) -> None:
        with self._lock:
            self._sums[outcome] += seconds  # type: ignore[assignment]
            for bound in (*BUCKETS, float("inf")):
                if seconds <= bound:
                    self._counts[outcome, bound] += 1
            self._rows[outcome] += len(used)
            self._absent.update(pair for each in absent for pair in each.items())

    def tell(self, into: Families, model: str) -> None:
        times = "fedmend_request_seconds histogram"
        with self._lock:
            for outcome in sorted(self._sums):
                labels = {"model": model, "outcome": outcome}
                for bound in BUCKETS:
                    count = self._counts[outcome, bound]
                    into.add(times, count, "_bucket", **labels, le=f"{bound:g}")
                total = self._counts[outcome, float("inf")]
                into.add(times, total, "_bucket", **labels, le="+Inf")
                into.add(times, f"{self._sums[outcome]:.6f}", "_sum", **labels)
                into.add(times, total, "_count", **labels)
            for outcome, count in sorted(self._rows.items()):
                into.add("fedmend_rows_total counter", count, model=model, outcome=outcome)
            for (partner, reason), count in sorted(self._absent.items()):
                labels = {"model": model, "partner": partner, "reason": reason}
                into.add("fedmend_absent_total counter", count, **labels)


class Requests:
    """What is counted and written down of the requests to one model.

    drift: the folder of the model's part, where first scores are kept.
    """

    def __init__(self, name: str, log: TextIO | None, drift: Path | None = None) -> None:
        self.name = name
        self.metrics = Metrics()
        self.drift = Drift(drift)
        self._log = log

    def note(self, asker: str, outcome: str, seconds: float, rows: list[dict[str, Any]]) -> None:
        """Count a request, and write a line of it: who, how many, how long; no id, no answer."""
        used = [row["used"] for row in rows if "used" in row]
        absent = [row["absent"] for row in rows if "absent" in row]
        self.metrics.note(outcome, seconds, used, absent)
        whole = [row for row in rows if "prediction" in row and not fell_short(row)]
        try:
            self.drift.note([score_of(row) for row in whole])
            self._write(asker, outcome, seconds, rows, absent)
        except OSError as error:  # a full disk: the answer is given all the same
            logger.warning("of a request nothing could be written down: %s", error)

    def tell(self, into: Families) -> None:
        self.metrics.tell(into, self.name)
        if (index := self.drift.index()) is not None:
            into.add("fedmend_score_drift gauge", f"{index:.4f}", model=self.name)

    def _write(
        self,
        asker: str,
        outcome: str,
        seconds: float,
        rows: list[dict[str, Any]],
        absent: list[dict[str, str]],
    ) -> None:
        if self._log is not None:
            reasons = Counter(f"{name}: {why}" for each in absent for name, why in each.items())
            line = {
                "time": round(time.time(), 3),
                "model": self.name,
                "asker": asker,
                "outcome": outcome,
                "rows": len(rows),
                "ms": round(1000 * seconds, 2),
                "absent": dict(reasons),
            }
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()


class Service:
    """Answers about people, by their ids or by new rows of the label party."""

    def __init__(
        self,
        answerer: Answerer,
        party: PartySettings,
        schema: Schema | None,
        settings: ServeSettings,
        keepers: list[Keeper],
        requests: Requests,
    ) -> None:
        self.answerer, self.party, self.schema = answerer, party, schema
        self.settings, self.keepers = settings, keepers
        self.name, self.requests = requests.name, requests
        self.desk = Desk(answerer, settings.queue)
        self._quota = Quota(settings.quota)
        self._quota_lock = threading.Lock()
        self.lock: TextIO | None = None

    def by_ids(self, ids: list[Any], seconds: float, asker: str = "") -> list[dict[str, Any]]:
        """An answer for each id; ids that nobody here has are told as unknown."""
        places = self.answerer.people.places(ids)
        self._count(asker, [ids[at] for at in np.flatnonzero(places >= 0).tolist()])
        return self.answers(ids, places, seconds)

    def answers(self, ids: list[Any], places: np.ndarray, seconds: float) -> list[dict[str, Any]]:
        """The same of people at these places, without counting for anybody."""
        known = np.flatnonzero(places >= 0)
        found: list[dict[str, Any]] = [{"id": each, "unknown": True} for each in ids]
        if len(known):
            told = self.desk.ask(Question(places[known], time.monotonic() + seconds))
            for at, row in zip(known.tolist(), self._rows(told), strict=True):
                found[at] = {"id": ids[at], **row}
        return found

    def by_rows(
        self, records: list[dict[str, Any]], seconds: float, asker: str = ""
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Answers for rows that bring the label party's columns, and notes on what they bring."""
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always", FedmendWarning)
            table = rows_of_records(records, self.party, self.schema)
        ids = table.ids.tolist()
        self._count(asker, ids)
        places = self.answerer.people.places(ids)
        told = self.desk.ask(Question(places, time.monotonic() + seconds, table))
        rows = [{"id": each, **row} for each, row in zip(ids, self._rows(told), strict=True)]
        return rows, [str(each.message) for each in noted]

    def share_quota(self, other: Service) -> None:
        """Answers about a person count together, whichever model gives them."""
        self._quota, self._quota_lock = other._quota, other._quota_lock

    def _count(self, asker: str, ids: list[Any]) -> None:
        keys = self.answerer.people.keys(ids)
        with self._quota_lock:
            over = self._quota.over(asker, keys)
        if over:
            raise OverQuota(
                f"{len(over)} of {len(ids)} people were asked about {self._quota.most} times "
                f"today, {ids[keys.index(over[0])]!r} among them. Mend: ask tomorrow"
            )

    def _rows(self, told: dict[str, list[Any]]) -> list[dict[str, Any]]:
        digits = self.settings.digits
        if digits is not None:
            told = {
                name: [round(each, digits) for each in column]
                if name.startswith("p(") or name == "uncertainty"
                else column
                for name, column in told.items()
            }
        lines = zip(*told.values(), strict=True)
        return [dict(zip(told, line, strict=True)) for line in lines]

    # ------------------------------------------------------------------ what is told of it

    def health(self) -> dict[str, Any]:
        present = self.answerer.present
        partners = {
            name: "there" if name in present else "absent" for name in self.answerer.partners
        }
        for keeper in self.keepers:
            if keeper.partner not in present:
                partners[keeper.partner] = keeper.state
        return {"model": self.answerer.model.title, "partners": partners, "waiting": len(self.desk)}

    def tell(self, into: Families) -> None:
        """For Prometheus. A share that a partner lacks is what to expect while it is there: of the
        people here, those it does not know."""
        present, of = self.answerer.present, self.name
        self.requests.tell(into)
        for name in self.answerer.partners:
            into.add("fedmend_partner_up gauge", int(name in present), model=of, partner=name)
        for name, share in self.answerer.unknown_shares().items():
            lacks = "fedmend_expected_absent_share gauge"
            into.add(lacks, f"{share:.4f}", model=of, partner=name)
        into.add("fedmend_waiting gauge", len(self.desk), model=of)

    def close(self) -> None:
        self.desk.close()
        for keeper in self.keepers:
            keeper.stop()
        self.answerer.engine.close()
        if self.lock is not None:
            self.lock.close()


def fell_short(row: dict[str, Any]) -> bool:
    """Whether a partner is missing that should have been there."""
    return any(why != "not known" for why in row.get("absent", {}).values())


def score_of(row: dict[str, Any]) -> float:
    """Of an answer: the second class's probability, the largest of several, or the value."""
    shares = [value for name, value in row.items() if name.startswith("p(")]
    if not shares:
        return float(row["prediction"])
    return float(shares[1] if len(shares) == 2 else max(shares))


# ---------------------------------------------------------------- ways to open one


def open_kit(
    kit: Path,
    partners: Mapping[str, str],
    *,
    run: str | None = None,
    method: str | None = None,
    log: TextIO | None = None,
) -> Service:
    """The label party's own service: its part and table are in its kit, partners elsewhere."""
    file = load_party(kit)
    require_confirmed(file)
    folder = kept_in_kit(kit, file.name, run, method)
    manifest = read_manifest(folder)
    name = name_of_class(manifest["method"])
    if manifest.get("label_party") != file.name:
        raise ConfigError(
            f"{file.name!r} does not decide in {folder.parent.name}/{folder.name}. Mend: 'fedmend "
            "party serve' here, and 'fedmend serve' at the label party"
        )
    model = KeptModel(name, manifest["method"], folder, manifest, folder.parent.name)
    needed = [each for each in manifest["parties"] if each != file.name]
    addresses = {**file.serve.partners, **partners}
    _require_addresses(needed, addresses)
    schema = schema_of(folder)
    source = source_of(file, schema)
    # This party asks itself; what it tells askers is for its quota to say.
    policy = replace(file.policy.build(), predictions=None)
    people = {PEOPLE: source.table}
    site = site_of(file, kit.resolve(), model.run, people, policy, secret=draw_secret())
    written = kit / LEDGER_FOLDER / f"{SERVE}-{model.run}-{folder.name}.jsonl"
    # A chain is written by one, and partners answer one.
    taken = (
        f"another process answers with this model and writes {written.name}. Mend: end it, or "
        "send it SIGHUP to change its model"
    )
    lock = held(written, taken)
    ledger = Ledger(written)
    ledger.remember = False
    engine = ServingEngine([site], needed, ledger)
    how = {"normalise": file.serve.normalise, "order": "secret"}
    answerer = Answerer(model, site, source, engine, needed, how)
    hello = Hello(
        run=f"{SERVE}-{file.name}-{model.run}-{folder.name}",
        title=f"{model.run}/{folder.name}",
        methods=(name, *_members(manifest), SERVE),
        seed=0,
        test_share=0.25,
    )
    keepers = [Keeper(answerer, each, addresses[each], kit, hello) for each in needed]
    for keeper in keepers:
        keeper.first.wait(WAIT_SECONDS)
    requests = Requests(_name_of(model), log, model.folder)
    service = Service(answerer, file, schema, file.serve, keepers, requests)
    service.lock = lock
    return service


def _name_of(model: KeptModel) -> str:
    return f"{model.run}/{model.folder.name}"


def _members(manifest: Mapping[str, Any]) -> list[str]:
    """The methods of which a model is made, where it is made of several."""
    return [name_of_class(each["method"]) for each in manifest.get("members", {}).values()]


def _require_addresses(needed: list[str], addresses: Mapping[str, str]) -> None:
    missing = [name for name in needed if name not in addresses]
    if missing:
        raise ConfigError(
            f"the model has a part at {missing[0]!r}, and nobody knows where it listens. "
            f"Mend: --partner {missing[0]}=HOST:PORT, or partners under [serve] in party.toml"
        )


class WholeRun:
    """A run whose parts and tables are all in this process."""

    def __init__(self, run: Path, method: str | None, log: TextIO | None = None) -> None:
        self.run = run
        self.config: Config = run_config(run)
        self.model: KeptModel = chosen(run, method)
        require_parts(self.model)
        self.requests = Requests(_name_of(self.model), log)

    def at(self, path: str) -> Path:
        """A table of the run: its file was written beside it, or where its runs/ are."""
        folder = self.run.resolve()
        places = [each / path for each in (folder, *folder.parents[:2])]
        return next((each for each in places if each.is_file()), places[-1])

    @property
    def labellers(self) -> list[str]:
        return self.config.labellers

    @property
    def is_common(self) -> bool:
        """Whether the model is everybody's, and nobody's people can be asked about."""
        return self.model.horizontal or self.model.label_party is None

    def service(self) -> Service:
        """Everybody's tables are read, and aligned as the run says."""
        model, label_party = self.model, self.model.label_party
        if self.is_common or label_party is None:
            raise DataError(
                f"{model.title} has no one label party whose people could be asked about",
                mend="send rows by party",
            )
        known = {party.name: party for party in self.config.party}
        rule = self.config.align.normalise
        sources = {
            name: People(people_of(self, known[name], model.schema(name)), name, rule)
            for name in model.parties
        }
        sites = []
        for name, source in sources.items():
            site = Site(name, {PEOPLE: source.table}, policy=known[name].policy.build())
            site.vault |= {SOURCE: source, QUOTA: Quota(None), PART: model.folder}
            sites.append(site)
        sites.sort(key=lambda site: site.name != label_party)
        partners = [name for name in model.parties if name != label_party]
        engine = ServingEngine(sites, partners, Ledger())
        engine.ledger.remember = False
        how = self.config.align.model_dump(exclude_none=True, include={"mode", "normalise"})
        answerer = Answerer(model, sites[0], sources[label_party], engine, partners, how)
        for partner in partners:
            answerer.join(partner)
        schema = model.schema(label_party)
        return Service(answerer, known[label_party], schema, ServeSettings(), [], self.requests)

    def predict(self, records: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Rows of several parties, which are one person where their ids agree."""
        known = party_settings(self.config, records)
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always", FedmendWarning)
            given = {
                name: rows_of_records(rows, known[name], self.model.schema(name))
                for name, rows in records.items()
            }
            with predict_tables(self.model, given, self.config) as (done, workers):
                answers = {
                    each.party: _by_row(workers[each.party].answers(), given[each.party].ids)
                    for each in done
                    if each.rows
                }
        notes = [str(each.message) for each in noted if issubclass(each.category, FedmendWarning)]
        return answers, notes


def _by_row(columns: dict[str, list[Any]], ids: Any) -> list[dict[str, Any]]:
    rows = columns.pop("row")
    cells = zip(*columns.values(), strict=True)
    return [
        {"id": ids[row], **dict(zip(columns, line, strict=True))}
        for row, line in zip(rows, cells, strict=True)
    ]
