"""The report: one HTML file without any outside part, for people who read no code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend.federation.ledger import Entry, read_ledger
from fedmend.report import choosing, correcting, maps, plots, rounds, uncertainty, words, worth
from fedmend.report.amounts import human_bytes, human_seconds, percent, score_text
from fedmend.report.labelling import Labelling
from fedmend.report.mending import ORIGIN_WORDS, Mending
from fedmend.report.one_file import style, templates
from fedmend.report.overlap import overlap
from fedmend.report.overview import Overview
from fedmend.report.record import RunRecord, Summary, better_is_higher
from fedmend.report.stages import Stage, read_stages
from fedmend.report.stages import picture as stage_picture
from fedmend.report.uncertainty import Uncertainty

__all__ = ["CHAPTERS", "chapters", "render", "write_report"]

REPORT_FILE = "report.html"
LEDGER_FILE = "ledger.jsonl"
CHAPTERS = {
    "overview": "What is torn",
    "advice": "What would mend it",
    "mended": "What was mended",
    "corrected": "Labels",
    "choice": "Why this method",
    "comparison": "Comparison",
    "labellers": "Who labels how well",
    "uncertainty": "How sure",
    "rounds": "Round by round",
    "curves": "Training",
    "costs": "What it took",
    "ledger": "Who saw what",
    "audit": "What could be inferred",
    "settings": "Settings",
}
"""The sections in their order, and what they are called in the head of the page."""


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a run folder, into it or to `path`."""
    from fedmend.audit.result import read_audit  # which brings all attacks with it

    folder = Path(folder)
    record, entries = RunRecord.load(folder), read_ledger(folder / LEDGER_FILE)
    text = render(record, entries, read_stages(folder), read_audit(folder))
    return write_whole(Path(path or folder / REPORT_FILE), text)


def render(
    record: RunRecord,
    entries: Sequence[Entry],
    stages: Sequence[Stage] = (),
    audits: Sequence[Any] = (),
) -> str:
    """The page as text. audits: those of the run's methods, where there are any."""
    environment = templates()
    environment.filters |= {
        "bytes": human_bytes,
        "seconds": human_seconds,
        "pretty": plots.pretty,
        "score": _score,
        "series": plots.method_series,
        "percent": percent,
    }
    found = Overview.from_dict(record.overview) if record.overview else None
    context = {
        **_about_tears(record, found),
        **_about_methods(record),
        **_about_costs(record, entries, stages),
        **_about_ledger(entries, found),
    }
    pictures = {name: _marked(svg) for name, svg in _pictures(record, found)}
    return environment.get_template("report.html").render(
        css=style(),
        record=record,
        started=record.started[:16],
        cards=_cards(record, found, entries),
        in_short=_in_short(record),
        chapters=chapters(record, found, audited=bool(audits)),
        audits=audits,
        settings=list(_flat(record.settings)),
        stages_picture=_marked(stage_picture(stages)),
        **context,
        **pictures,
    )


def chapters(
    record: RunRecord, found: Overview | None = None, *, audited: bool = False
) -> list[tuple[str, str]]:
    """The sections this record has something for, and what they are called in the head."""
    able = {
        "advice": bool(found and found.advice),
        "mended": bool(record.mending),
        "corrected": bool(record.correction),
        "choice": bool(record.choice),
        "labellers": any(run.labelling for run in record.methods),
        "uncertainty": any(run.uncertainty for run in record.methods),
        "rounds": bool(rounds.rounds_of(record)),
        "audit": audited,
    }
    return [(name, title) for name, title in CHAPTERS.items() if able.get(name, True)]


# ---------------------------------------------------------------- what the sections show


def _about_tears(record: RunRecord, found: Overview | None) -> dict[str, Any]:
    mending = Mending.from_dict(record.mending) if record.mending else None
    corrected = record.correction
    skills = correcting.skills_of(corrected) if corrected else None
    titles = {
        "agreement": "How far the labellers agree",
        "skew": "How the classes are shared",
        "curve": "What more shared rows would be worth",
    }
    advice = (found.advice if found else None) or {}
    closing = list(advice.get("words") or [])[len(advice.get("tears") or []) :]
    return {
        "overview": found,
        "overview_rows": found.rows() if found else [],
        "label_words": found.label_in_words() if found else "",
        "has_label": bool(found and any(party.labelled for party in found.parties)),
        "preflight": [
            (title, getattr(found, name)) for name, title in titles.items() if getattr(found, name)
        ]
        if found
        else [],
        "closing": " ".join(closing),
        "mending": mending,
        "mended_pairs": [
            {
                "pair": pair,
                "correlations": _marked(maps.correlations(pair, number)),
                "provenance": _marked(maps.provenance(pair, number)),
                "hidden": max(0, len(pair.of_b) - maps.MOST_COLUMNS),
            }
            for number, pair in enumerate(mending.pairs)
        ]
        if mending
        else [],
        "origin_words": ORIGIN_WORDS,
        "correction_words": correcting.sentences(corrected) if corrected else [],
        "correction_skills": skills,
        "correction_picture": _marked(maps.expertise(skills, 99) if skills else None),
    }


def _about_methods(record: RunRecord) -> dict[str, Any]:
    best = record.best()
    told = _uncertainties(record)
    return {
        "summaries": record.summaries(),
        "abouts": _abouts(record),
        "metric_names": record.metric_names(),
        "metric_words": [
            plots.METRIC_WORDS[name] for name in record.metric_names() if name in plots.METRIC_WORDS
        ],
        "best": best.title if best and len(record.summaries()) > 1 else None,
        "higher": better_is_higher(record.metric),
        "many_seeds": len(record.seeds) > 1,
        "seeds": len(record.seeds),
        "validation": any(
            key.startswith("val_") for run in record.methods for step in run.history for key in step
        ),
        "choice_table": choosing.table(record.choice) if record.choice else [],
        "labellings": _labellings(record),
        "rounds": rounds.rounds_of(record),
        "uncertainties": told,
        "uncertainty_table": uncertainty.overall([(each["title"], each["found"]) for each in told]),
        "shares_told": any(each["found"].carried for each in told),
        "by_votes": any(each["found"].against for each in told),
    }


def _about_costs(
    record: RunRecord, entries: Sequence[Entry], stages: Sequence[Stage]
) -> dict[str, Any]:
    crossings = [entry for entry in entries if entry.is_crossing]
    crossed = human_bytes(sum(entry.total_bytes for entry in crossings))
    messages = sum(entry.count for entry in crossings)
    took = sum(each.seconds for each in stages) or record.seconds
    began = f"{human_seconds(took)} on {record.device}" if took else f"On {record.device}"
    head = ["stage", "time", "messages", "crossed", "what came out"]
    return {
        "cost_words": f"{began}; {messages:,} messages with {crossed} crossed in all.",
        "stages": stages,
        "stage_table": [
            head,
            *(
                [
                    each.words,
                    human_seconds(each.seconds),
                    f"{each.crossings:,}",
                    human_bytes(each.bytes),
                    each.note,
                ]
                for each in stages
            ),
        ],
        "cost_table": [
            ["method", "training", "messages", "crossed"],
            *(
                [
                    each.title,
                    human_seconds(each.seconds),
                    f"{each.crossings:,}",
                    human_bytes(each.bytes),
                ]
                for each in record.summaries()
            ),
        ],
    }


def _about_ledger(entries: Sequence[Entry], found: Overview | None) -> dict[str, Any]:
    flows = words.flows(entries)
    return {
        "verdict": words.verdict(entries),
        "clear": any(flow.exposure == "clear" for flow in flows),
        "seen": words.what_was_seen(entries, _roles(found)),
        "flows": flows,
        "refusals": [
            f"{words.name_of(flow.sender)} refused: {flow.words}." for flow in flows if flow.refused
        ],
        "exposures": words.EXPOSURES,
    }


def _pictures(record: RunRecord, found: Overview | None) -> Iterator[tuple[str, str | None]]:
    yield "overlap", overlap(found) if found else None
    yield "worth", worth.picture(found.curve) if found and found.curve else None
    yield "comparison", plots.comparison(record)
    yield "curves", plots.curves(record)
    yield "rounds_picture", rounds.picture(rounds.rounds_of(record), record.titles())
    yield "clients_picture", rounds.clients_picture(rounds.rounds_of(record))
    yield "choice_picture", choosing.picture(record.choice) if record.choice else None


def _marked(svg: str | None) -> Any:
    from markupsafe import Markup

    return Markup(svg) if svg else None


def _abouts(record: RunRecord) -> dict[str, str]:
    """What each method does; of a variant of a method that stood before only what is different."""
    told: set[str] = set()
    found = {}
    for each in record.summaries():
        first, *more = each.about.split("; ")
        found[each.title] = "; ".join(more) if first in told and more else each.about
        told.add(first)
    return found


def _roles(found: Overview | None) -> list[str]:
    return [party.name for party in found.parties] if found else []


def _labellings(record: RunRecord) -> list[dict[str, Any]]:
    """What each method found out about the labellers."""
    found = [(run.title, Labelling(**run.labelling)) for run in record.methods if run.labelling]
    return [
        {"title": title, "found": each, "picture": _marked(maps.expertise(each, number))}
        for number, (title, each) in enumerate(found)
    ]


def _uncertainties(record: RunRecord) -> list[dict[str, Any]]:
    """What the uncertainty of each method is worth, the best method first."""
    found = [
        (run.title, Uncertainty(**run.uncertainty)) for run in record.methods if run.uncertainty
    ]
    best = record.best()
    found.sort(key=lambda each: best is None or each[0] != best.title)
    return [
        {"title": title, "found": each, "picture": _marked(uncertainty.picture(each, number))}
        for number, (title, each) in enumerate(found)
    ]


def _score(summary: Summary, metric: str) -> str:
    if metric not in summary.mean:
        return "–"
    text = score_text(summary.mean[metric])
    return f"{text} ± {score_text(summary.sd[metric])}" if summary.seeds > 1 else text


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
                "value": score_text(best.mean[record.metric]),
                "note": f"{best.title}{several}",
            }
        )
    clear = any(flow.exposure == "clear" for flow in words.flows(entries))
    crossings = [entry for entry in entries if entry.is_crossing]
    total = sum(entry.total_bytes for entry in crossings)
    cards.append(
        {
            "name": "Left a party in the clear",
            "value": "see below" if clear else "nothing",
            "note": f"{sum(entry.count for entry in crossings):,} messages, "
            f"{human_bytes(total)} crossed",
        }
    )
    return cards


def _in_short(record: RunRecord) -> str:
    """Whether it was worth the trouble: the best method beside the label party alone."""
    best = record.best()
    local = {run.title for run in record.methods if run.name == "local"}
    # The party with its own labels and rows is what it has without anybody.
    alone = next((each for each in record.summaries() if each.title in local), None)
    if best is None or alone is None or len(record.summaries()) < 2:
        return ""
    if record.metric not in alone.mean:
        return ""
    metric = plots.pretty(record.metric)
    if best.mean[record.metric] == alone.mean[record.metric]:
        return f"No method did better than {alone.title}: the label party by itself."
    return (
        f"{best.title} did best, with {metric} {score_text(best.mean[record.metric])}. The label "
        f"party by itself ({alone.title}) reaches {score_text(alone.mean[record.metric])}."
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as ``align.mode`` → ``psi`` pairs."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, 1):
                yield from _flat(item, f"{name}[{item.get('name', number)}].")
        elif value is not None and value != []:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield name, text
