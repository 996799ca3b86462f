"""The report: one HTML file without any outside part, for people who read no code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedmend.federation.ledger import Entry, read_ledger
from fedmend.report import maps, plots, rounds, uncertainty, words
from fedmend.report.labelling import Labelling
from fedmend.report.mending import ORIGIN_WORDS, Mending
from fedmend.report.overview import Overview, percent
from fedmend.report.record import RunRecord, Summary, better_is_higher
from fedmend.report.uncertainty import Uncertainty

__all__ = ["render", "write_report"]

REPORT_FILE = "report.html"
LEDGER_FILE = "ledger.jsonl"


def write_report(
    source: str | Path | RunRecord,
    path: str | Path | None = None,
    *,
    ledger: Iterable[Entry] | None = None,
) -> Path:
    """Write the report of a run folder, or of a record with the entries of its ledger."""
    if isinstance(source, RunRecord):
        record, entries = source, list(ledger or [])
        if path is None:
            raise ValueError("a report of a record needs a path")
    else:
        folder = Path(source)
        record = RunRecord.load(folder)
        entries = list(ledger) if ledger is not None else read_ledger(folder / LEDGER_FILE)
        path = path or folder / REPORT_FILE
    path = Path(path)
    part = path.with_name(path.name + ".part")
    part.write_text(render(record, entries), encoding="utf-8")
    part.replace(path)
    return path


def render(record: RunRecord, entries: Sequence[Entry]) -> str:
    """The page as text."""
    from jinja2 import Environment, select_autoescape
    from markupsafe import Markup

    environment = Environment(autoescape=select_autoescape(default=True), trim_blocks=True)
    environment.filters |= {
        "bytes": words.human_bytes,
        "pretty": plots.pretty,
        "score": _score,
        "series": plots.method_series,
        "percent": percent,
    }
    templates = resources.files("fedmend.report") / "templates"
    template = environment.from_string((templates / "report.html").read_text(encoding="utf-8"))
    found = Overview.from_dict(record.overview) if record.overview else None
    mending = Mending.from_dict(record.mending) if record.mending else None
    best = record.best()
    in_rounds = rounds.rounds_of(record)
    pictures = {
        "overlap": plots.overlap(found) if found else None,
        "comparison": plots.comparison(record),
        "curves": plots.curves(record),
        "rounds_picture": rounds.picture(in_rounds, record.titles()),
    }
    return template.render(
        css=Markup((templates / "report.css").read_text(encoding="utf-8")),
        record=record,
        started=record.started[:16],
        cards=_cards(record, found, entries),
        overview=found,
        overview_rows=found.rows() if found else [],
        label_words=found.label_in_words() if found else "",
        has_label=bool(found and any(party.labelled for party in found.parties)),
        summaries=record.summaries(),
        metric_names=record.metric_names(),
        best=best.title if best and len(record.summaries()) > 1 else None,
        higher=better_is_higher(record.metric),
        many_seeds=len(record.seeds) > 1,
        seeds=len(record.seeds),
        validation=any(
            key.startswith("val_") for run in record.methods for step in run.history for key in step
        ),
        verdict=words.verdict(entries),
        clear=any(flow.exposure == "clear" for flow in words.flows(entries)),
        seen=words.what_was_seen(entries, _roles(found)),
        flows=words.flows(entries),
        exposures=words.EXPOSURES,
        settings=list(_flat(record.settings)),
        mending=mending,
        mended_pairs=[
            {
                "pair": pair,
                "correlations": Markup(maps.correlations(pair, number)),
                "provenance": Markup(maps.provenance(pair, number)),
                "hidden": max(0, len(pair.of_b) - maps.MOST_COLUMNS),
            }
            for number, pair in enumerate(mending.pairs)
        ]
        if mending
        else [],
        origin_words=ORIGIN_WORDS,
        labellings=[
            {"title": title, "found": found, "picture": Markup(picture) if picture else None}
            for title, found, picture in _labellings(record)
        ],
        rounds=in_rounds,
        uncertainties=[
            {"title": title, "found": found, "picture": Markup(picture) if picture else None}
            for title, found, picture in _uncertainties(record)
        ],
        **{name: Markup(svg) if svg else None for name, svg in pictures.items()},
    )


def _roles(found: Overview | None) -> list[str]:
    return [party.name for party in found.parties] if found else []


def _labellings(record: RunRecord) -> list[tuple[str, Labelling, str | None]]:
    """What each method found out about the labellers."""
    found = [(run.title, Labelling(**run.labelling)) for run in record.methods if run.labelling]
    return [
        (title, each, maps.expertise(each, number)) for number, (title, each) in enumerate(found)
    ]


def _uncertainties(record: RunRecord) -> list[tuple[str, Uncertainty, str | None]]:
    """What the uncertainty of each method that has one is worth."""
    found = [
        (run.title, Uncertainty(**run.uncertainty)) for run in record.methods if run.uncertainty
    ]
    return [
        (title, each, uncertainty.picture(each, number))
        for number, (title, each) in enumerate(found)
    ]


def _score(summary: Summary, metric: str) -> str:
    if metric not in summary.mean:
        return "–"
    text = f"{summary.mean[metric]:.3f}"
    return f"{text} ± {summary.sd[metric]:.3f}" if summary.seeds > 1 else text


def _cards(
    record: RunRecord, found: Overview | None, entries: Sequence[Entry]
) -> list[dict[str, str]]:
    """Three facts that answer the first questions: how torn, how good, who saw what."""
    cards = []
    if found and found.aligned is not None:
        rows = max((party.rows for party in found.parties), default=0)
        share = f"{percent(found.aligned / rows)} of the larger table" if rows else ""
        cards.append({"name": "Rows known to all", "value": f"{found.aligned:,}", "note": share})
    if record.mending:
        mended = Mending.from_dict(record.mending)
        rows = mended.aligned_after - mended.aligned_before
        note = "known to one party, given the other columns"
        cards.append({"name": "Rows completed", "value": f"{rows:,}", "note": note})
    best = record.best()
    if best:
        several = f", mean of {best.seeds} seeds" if best.seeds > 1 else ""
        cards.append(
            {
                "name": f"Best {plots.pretty(record.metric)} on {record.evaluated_on}",
                "value": f"{best.mean[record.metric]:.3f}",
                "note": f"{best.title}{several}",
            }
        )
    clear = any(flow.exposure == "clear" for flow in words.flows(entries))
    total = sum(entry.total_bytes for entry in entries)
    cards.append(
        {
            "name": "Left a party in the clear",
            "value": "see below" if clear else "nothing",
            "note": f"{sum(entry.count for entry in entries):,} messages, "
            f"{words.human_bytes(total)} crossed",
        }
    )
    return cards


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as ``align.mode`` → ``psi`` pairs."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, 1):
                yield from _flat(item, f"{name}[{item.get('name', number)}].")
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield name, text
