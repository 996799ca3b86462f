"""The report: one HTML file without any outside part, for people who read no code.

A section is a function here, which makes what its template (``templates/sections``) shows, or None
where a run has nothing for it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend._files import write_whole
from fedmend.federation.ledger import Entry, read_ledger
from fedmend.report import annotators, mending, plots, rounds, uncertainty, words
from fedmend.report.amounts import (
    METRIC_WORDS,
    UNTOLD,
    counted,
    human_bytes,
    human_seconds,
    percent,
    pretty,
    score_text,
)
from fedmend.report.banner import Banner, banner_of
from fedmend.report.overview import Overview
from fedmend.report.record import (
    AUDIT_FILE,
    RunRecord,
    Stage,
    Summary,
    better_is_higher,
    read_stages,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

REPORT_FILE = "report.html"
LEDGER_FILE = "ledger.jsonl"
_META = '<meta http-equiv="Content-Security-Policy" content="{}">'


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a run folder, into it or to `path`."""
    folder = Path(folder)
    record, entries = RunRecord.load(folder), _crossed(folder)
    text = render(record, entries, read_stages(folder), _audits(folder))
    return write_whole(Path(path or folder / REPORT_FILE), text)


def run_banner(folder: str | Path) -> Banner:
    """What left the parties of a run: the first lines of its report."""
    folder = Path(folder)
    trained = RunRecord.load(folder).trained()
    return banner_of(_crossed(folder), trained, _audits(folder))


def _crossed(folder: Path) -> list[Entry]:
    """The ledger of a run. A terminal shows in a moment what the report says at its top.

    By then the folder has its name: known is the file, wherever it lies.
    """
    path = folder / LEDGER_FILE
    if not path.is_file():
        return read_ledger(path)
    at = path.stat()
    version = at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size
    if version not in _LAST_READ:
        _LAST_READ.clear()
        _LAST_READ[version] = read_ledger(path)
    return _LAST_READ[version]


_LAST_READ: dict[tuple[int, ...], list[Entry]] = {}


def _audits(folder: Path) -> Sequence[Any]:
    """Those of a run; all attacks come with the module, which takes a second."""
    if not (folder / AUDIT_FILE).is_file():
        return ()
    from fedmend.audit.result import read_audit

    return read_audit(folder)


def render(
    record: RunRecord,
    entries: Sequence[Entry],
    stages: Sequence[Stage] = (),
    audits: Sequence[Any] = (),
) -> str:
    """The page as text. audits: those of the run's methods, where there are any."""
    from markupsafe import Markup

    run = _Run(record, entries, stages, audits)
    environment = templates()
    parts, chapters = [], []
    for name, (title, section) in SECTIONS.items():
        shown = section(run)
        if shown is None:
            continue
        template = environment.get_template(f"sections/{name}.html")
        parts.append(Markup(template.render(record=record, many_seeds=run.many_seeds, **shown)))
        if title:
            chapters.append((name, title))
    return environment.get_template("report.html").render(
        css=style(), record=record, started=record.started[:16], chapters=chapters, parts=parts
    )


# ---------------------------------------------------------------- pages that are one file


def templates() -> Environment:
    """The templates of all pages; what is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, select_autoescape
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedmend.report", "templates"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["policy"] = Markup(_META.format(content_policy()))
    environment.filters |= {
        "bytes": human_bytes,
        "seconds": human_seconds,
        "pretty": pretty,
        "score": Summary.score,
        "series": plots.method_series,
        "percent": percent,
    }
    return environment


def content_policy(scripts: Sequence[str] = ()) -> str:
    """What a page may do, as its Content-Security-Policy: show itself, and nothing else.

    Should a value ever get into a page unescaped, it runs nothing and loads nothing: the style
    sheet, the pictures inside the page and `scripts` (which may ask their own server) are all
    that a browser admits, by their hashes.
    """
    asking = [f"script-src {' '.join(map(_hash, scripts))}", "connect-src 'self'"]
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_hash(style())}",
            "img-src data:",
            *(asking if scripts else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def with_policy(page: str, policy: str) -> str:
    """A page under another policy than the one it was written with."""
    rest = re.sub(_META.format('[^"]*'), "", page, count=1)
    return re.sub("(?<=<head>)", lambda _: _META.format(policy), rest, count=1)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def style() -> Markup:
    """The style sheet, to stand inside a page."""
    from markupsafe import Markup

    sheet = resources.files("fedmend.report") / "templates" / "report.css"
    return Markup(sheet.read_text(encoding="utf-8"))


# ---------------------------------------------------------------- sections


class _Run:
    """What all sections are made from."""

    def __init__(
        self,
        record: RunRecord,
        entries: Sequence[Entry],
        stages: Sequence[Stage],
        audits: Sequence[Any],
    ) -> None:
        self.record, self.entries, self.stages, self.audits = record, entries, stages, audits
        self.found = Overview.from_dict(record.overview) if record.overview else None
        self.mended = mending.Mending.from_dict(record.mending) if record.mending else None
        self.summaries, self.best = record.summaries(), record.best()
        self.many_seeds = len(record.seeds) > 1
        self.flows = words.flows(entries)
        self.banner = banner_of(entries, record.trained(), audits)
        crossings = [entry for entry in entries if entry.is_crossing]
        self.messages = f"{sum(entry.count for entry in crossings):,} messages"
        self.crossed = human_bytes(sum(entry.total_bytes for entry in crossings))


_Shown = dict[str, Any] | None


def _summary(run: _Run) -> _Shown:
    return {"cards": list(_cards(run)), "in_short": _in_short(run), "banner": run.banner}


def _cards(run: _Run) -> Iterator[dict[str, str]]:
    """Three facts that answer the first questions: how torn, how good, how much crossed."""
    found, record, best = run.found, run.record, run.best
    if found and found.aligned is not None:
        rows = max((party.rows for party in found.parties), default=0)
        larger = "largest" if len(found.parties) > 2 else "larger"
        share = f"{percent(found.aligned / rows)} of the {larger} table" if rows else ""
        yield {"name": "Rows known to all", "value": f"{found.aligned:,}", "note": share}
    if run.mended:
        rows = run.mended.aligned_after - run.mended.aligned_before
        note = "known to one party, given the other columns"
        yield {"name": "Rows completed", "value": f"{rows:,}", "note": note}
    if best:
        several = f", mean of {best.seeds} seeds" if best.seeds > 1 else ""
        yield {
            "name": f"Best {pretty(record.metric)} on {record.evaluated_on}",
            "value": score_text(best.mean[record.metric]),
            "note": f"{best.title}{several}",
        }
    yield {"name": "Crossed between the roles", "value": run.crossed, "note": run.messages}


def _in_short(run: _Run) -> str:
    """Whether it was worth the trouble: by held-out rows where a model chose itself, otherwise the
    best method beside the label party by itself."""
    metric, best, choice = run.record.metric, run.best, run.record.choice
    if choice and choice.get("kinds"):
        return str(choice["why"][0])
    names = {each.title for each in run.record.methods if each.name in ("local", "local-trees")}
    # The party with its own labels and rows is what it has without anybody.
    alone = [each for each in run.summaries if each.title in names and metric in each.mean]
    if best is None or not alone or len(run.summaries) < 2:
        return ""
    sign = 1 if better_is_higher(metric) else -1
    reached = [(each.title, each.mean[metric]) for each in alone]
    told = run.record.alone or {"scores": {}}
    if (own := told["scores"].get(metric)) is not None:
        reached.append((told["title"], own))
    title, score = max(reached, key=lambda each: sign * each[1])
    if sign * (best.mean[metric] - score) <= 0:
        return f"No method did better than {title}: the label party by itself."
    return (
        f"{best.title} did best, with {pretty(metric)} {score_text(best.mean[metric])}. The label "
        f"party by itself ({title}) reaches {score_text(score)}."
    )


def _overview(run: _Run) -> _Shown:
    found = run.found
    if found is None:
        return {"overview": None}
    titles = {
        "agreement": "How far the annotators agree",
        "skew": "How the classes are shared",
        "curve": "What more shared rows would be worth",
    }
    return {
        "overview": found,
        "overlap": _drawn(plots.overlap(found)),
        "has_label": any(party.labelled for party in found.parties),
        "preflight": [(titles[of], part) for of in titles if (part := getattr(found, of))],
        "worth": _drawn(plots.worth(found.curve) if found.curve else None),
    }


def _advice(run: _Run) -> _Shown:
    advice = run.found.advice if run.found else None
    if not advice:
        return None
    closing = list(advice.get("words") or [])[len(advice["tears"]) :]
    return {"tears": advice["tears"], "closing": " ".join(closing)}


def _mended(run: _Run) -> _Shown:
    if run.mended is None:
        return None
    pairs = [
        {
            "pair": pair,
            "correlations": _drawn(mending.correlations(pair, number)),
            "provenance": _drawn(mending.provenance(pair, number)),
            "hidden": max(0, len(pair.of_b) - mending.MAX_COLUMNS_DRAWN),
        }
        for number, pair in enumerate(run.mended.pairs)
    ]
    return {
        "mending": run.mended,
        "pairs": pairs,
        "origins": mending.ORIGIN_WORDS,
        "paid": run.record.completing(),
    }


def _corrected(run: _Run) -> _Shown:
    found = run.record.correction
    if not found:
        return None
    skills = annotators.AnnotatorSkills(**found["labelling"]) if found.get("labelling") else None
    return {
        "sentences": annotators.corrected(found),
        "found": skills,
        "picture": _drawn(annotators.expertise(skills, 99) if skills else None),
    }


def _choice(run: _Run) -> _Shown:
    choice = run.record.choice
    if not choice:
        return None
    kinds = list(choice["candidates"][0]["weights"])
    metric = pretty(str(choice["metric"]))
    named = choice.get("words", {})
    heads = [[f"{metric}, {named.get(kind, kind)}", "heard"] for kind in kinds]
    table = [["candidate", *(head for pair in heads for head in pair), "time", "remark"]]
    for each in choice["candidates"]:
        line = [str(each["title"])]
        for kind in kinds:
            told = each["scores"].get(kind)
            total = sum(float(other["weights"][kind]) for other in choice["candidates"])
            line.append(f"{told['score']:.3f}" if told else UNTOLD)
            line.append(f"{100 * each['weights'][kind] / total:.0f} %" if total else UNTOLD)
        table.append([*line, f"{each['seconds']:.1f} s", str(each["skipped"])])
    return {"why": choice["why"], "lines": table, "picture": _drawn(plots.choice(choice))}


def _comparison(run: _Run) -> _Shown:
    metrics = run.record.metric_names()
    return {
        "picture": _drawn(plots.comparison(run.record)),
        "summaries": run.summaries,
        "abouts": _abouts(run.summaries),
        "metric_names": metrics,
        "metric_words": [METRIC_WORDS[name] for name in metrics if name in METRIC_WORDS],
        "best": run.best.title if run.best and len(run.summaries) > 1 else None,
        "higher": better_is_higher(run.record.metric),
        "seeds": len(run.record.seeds),
        "trained_on": _trained_on(run.record),
    }


def _trained_on(record: RunRecord) -> str:
    """Whether the rows that scores were measured on are new to the methods."""
    if not any(run.scores for run in record.methods):
        return ""
    seen = ", some of which are training rows, too (see the notes)"
    return seen if record.seen else ", which no method was trained on"


def _abouts(summaries: Sequence[Summary]) -> dict[str, str]:
    """What each method does; of a variant of a method that stood before only what is different."""
    said: set[str] = set()
    found = {}
    for each in summaries:
        first, *more = each.about.split("; ")
        found[each.title] = "; ".join(more) if first in said and more else each.about
        said.add(first)
    return found


def _annotators(run: _Run) -> _Shown:
    runs = [each for each in run.record.methods if each.labelling]
    found = [(each.title, annotators.AnnotatorSkills(**(each.labelling or {}))) for each in runs]
    shown = [
        {"title": title, "found": each, "picture": _drawn(annotators.expertise(each, number))}
        for number, (title, each) in enumerate(found)
    ]
    return {"methods": shown} if shown else None


MOST_COLUMNS = 15


def _trees(run: _Run) -> _Shown:
    """Of every method with trees how many it has, and what they use."""
    shown = []
    for each in run.record.methods:
        if not each.importance:
            continue
        by_party: dict[str, float] = {}
        for column in each.importance:
            by_party[column["party"]] = by_party.get(column["party"], 0.0) + column["gain"]
        used = [column for column in each.importance if column["gain"] > 0]
        lines = [
            [at["column"], at["party"], f"{100 * at['gain']:.1f} %"] for at in used[:MOST_COLUMNS]
        ]
        shown.append(
            {
                "title": each.title,
                "count": counted(len(each.history), "tree"),
                "parties": [f"{name}: {percent(gain)}" for name, gain in by_party.items()],
                "lines": [["column", "party", "share of the gain"], *lines],
                "rest": [
                    f"{counted(many, noun)} {'is' if many == 1 else 'are'} {what}."
                    for many, noun, what in (
                        (len(used) - len(lines), "more column", "used"),
                        (len(each.importance) - len(used), "column", "not used"),
                    )
                    if many
                ],
            }
        )
    return {"methods": shown} if shown else None


def _uncertainty(run: _Run) -> _Shown:
    """The best method first."""
    runs = [each for each in run.record.methods if each.uncertainty]
    runs.sort(key=lambda each: run.best is None or each.title != run.best.title)
    found = [(each.title, uncertainty.Uncertainty(**(each.uncertainty or {}))) for each in runs]
    methods = [
        {"title": title, "found": each, "picture": _drawn(uncertainty.picture(each, number))}
        for number, (title, each) in enumerate(found)
    ]
    if not found:
        return None
    return {
        "methods": methods,
        "overall": uncertainty.overall(found),
        "shares_known": any(each.carried for _, each in found),
        "by_votes": any(each.against for _, each in found),
    }


def _rounds(run: _Run) -> _Shown:
    found = rounds.rounds_of(run.record)
    if not found:
        return None
    return {
        "rounds": found,
        "picture": _drawn(rounds.picture(found, run.record.titles())),
        "clients": _drawn(rounds.clients_picture(found)),
    }


def _curves(run: _Run) -> _Shown:
    steps = [step for each in run.record.methods for step in each.history]
    return {
        "picture": _drawn(plots.curves(run.record)),
        "validation": any(key.startswith("val_") for step in steps for key in step),
    }


def _costs(run: _Run) -> _Shown:
    record = run.record
    took = sum(each.seconds for each in run.stages) or record.seconds
    began = f"{human_seconds(took)} on {record.device}" if took else f"On {record.device}"
    stages = [["stage", "time", "messages", "crossed", "what came out"]]
    stages += [[each.words, *_cost(each), each.note] for each in run.stages]
    methods = [["method", "training", "messages", "crossed"]]
    methods += [[each.title, *_cost(each)] for each in run.summaries]
    return {
        "words": f"{began}; {run.messages} with {run.crossed} crossed in all.",
        "picture": _drawn(plots.stages(run.stages)),
        "stages": stages if run.stages else None,
        "methods": methods,
    }


def _cost(of: Stage | Summary) -> list[str]:
    return [human_seconds(of.seconds), f"{of.crossings:,}", human_bytes(of.bytes)]


def _ledger(run: _Run) -> _Shown:
    roles = [party.name for party in run.found.parties] if run.found else []
    refused = [flow for flow in run.flows if flow.refused]
    return {
        "banner": run.banner,
        "seen": words.what_was_seen(run.entries, roles),
        "flows": run.flows,
        "refusals": [f"{words.name_of(flow.sender)} refused: {flow.words}." for flow in refused],
        "exposures": words.EXPOSURES,
    }


def _audit(run: _Run) -> _Shown:
    return {"audits": run.audits} if run.audits else None


def _settings(run: _Run) -> _Shown:
    return {"settings": list(_flat(run.record.settings))}


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


def _drawn(svg: str | None) -> Markup | None:
    from markupsafe import Markup

    return Markup(svg) if svg else None


SECTIONS: dict[str, tuple[str, Callable[[_Run], _Shown]]] = {
    "summary": ("", _summary),
    "overview": ("What is torn", _overview),
    "advice": ("What would mend it", _advice),
    "mended": ("What was mended", _mended),
    "corrected": ("Labels", _corrected),
    "choice": ("Why this method", _choice),
    "comparison": ("Comparison", _comparison),
    "annotators": ("Who labels how well", _annotators),
    "trees": ("What trees use", _trees),
    "uncertainty": ("How sure", _uncertainty),
    "rounds": ("Round by round", _rounds),
    "curves": ("Training", _curves),
    "costs": ("What it took", _costs),
    "ledger": ("Who saw what", _ledger),
    "audit": ("What could be inferred", _audit),
    "settings": ("Settings", _settings),
}
"""In their order: what a section is called in the head of the page, and what makes it."""
