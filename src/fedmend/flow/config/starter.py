"""``fedmend init``: a first federation.toml, commented, from nothing or from the given tables."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend._files import write_whole
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError, DataError
from fedmend.flow.config.settings import party_name_of, title_of
from fedmend.flow.config.sniffing import Written, csv_lines, looked_at, mostly_alike
from fedmend.report.amounts import listed

IDS_LOOKED_AT = 100_000
A_COPY, FEWEST_COMPARED = 0.999, 50


def write_starter(
    path: str | Path,
    files: Sequence[str | Path] = (),
    *,
    id: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    force: bool = False,
) -> Path:
    """Write a starting federation.toml; an existing one stays unless forced."""
    path = Path(path)
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists already. Mend: --force to overwrite it, or --out another.toml"
        )
    text = starter_text(path, [Path(file) for file in files], id=id, label=label)
    return write_whole(path, text)


def starter_text(
    path: Path,
    files: Sequence[Path],
    *,
    id: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
) -> str:
    """The text of a first federation.toml for these tables, or for a bank and a telco.

    What it looks like stands in ``starter.toml.j2``. id, label: one name for all tables, or several
    of which each table takes the first it has.
    """
    from jinja2 import Environment, PackageLoader

    asked, wanted = _several(id), _several(label)
    tables = _tables(files)
    if files:
        ids, labels = _roles(tables, asked, wanted)
        guessed = not asked and not all(how.id for how in tables.values())
    else:
        wanted = wanted or ["default"]
        tables = {Path("bank.csv"): Written(wanted), Path("telco.csv"): Written([])}
        ids, guessed = dict.fromkeys(tables, (asked or ["customer"])[0]), False
        labels = {Path("bank.csv"): wanted[0]}
    names = _party_names(list(tables))
    known = _known_ids(tables, ids) if files else []
    alike = bool(files) and mostly_alike([how.header for how in tables.values()])
    horizontal, copies = alike and not _any_shared(known), dict[Path, str]()
    if files and not horizontal:
        labels, copies = _own_labels(tables, ids, labels)
    bare = [set(how.header) <= {ids[file], labels.get(file)} for file, how in tables.items()]
    votes = len(labels) > 1 and all(bare)
    # Methods of several annotators, and of the same columns, know classes only.
    asking = labels if files and len(labels) == 1 and not horizontal else {}
    parties = [
        {
            "name": names[file],
            "data": _relative(file, path) if files else str(file),
            "id": ids[file],
            "label": labels.get(file),
            "copied": copies.get(file),
            "task": _task(file, how, labels[file]) if file in asking else {},
            "form": how.unusual,
        }
        for file, how in tables.items()
    ]
    place = Environment(
        loader=PackageLoader("fedmend.flow.config", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    place.filters["quoted"] = lambda text: json.dumps(text, ensure_ascii=False)
    return place.get_template("starter.toml.j2").render(
        file=path.name,
        example=not files,
        guessed=guessed,
        parties=parties,
        horizontal=horizontal,
        several=len(labels) > 1,
        votes=votes,
        rule=_rule(known),
        title=title_of(list(names.values())),
    )


def _several(asked: str | Sequence[str] | None) -> list[str]:
    return [asked] if isinstance(asked, str) else list(asked or [])


def _tables(files: Sequence[Path]) -> dict[Path, Written]:
    """The column names of every file, and how it is written; all unreadable ones together."""
    tables, problems = {}, []
    for file in files:
        try:
            tables[file] = looked_at(file)
        except DataError as error:
            problems.append(str(error))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(
                f"{file}: {reason}. Mend: give a readable .csv, .csv.gz, .parquet or .xlsx"
            )
    if len(tables) == 1 and not problems:
        problems.append(f"{files[0]} is the only table. Mend: give one table for each party")
    if problems:
        raise ConfigError(problems)
    return tables


def _roles(
    tables: Mapping[Path, Written], asked: list[str], wanted: list[str]
) -> tuple[dict[Path, str], dict[Path, str]]:
    """The id column of every table, and the label column of those that have one."""
    noted = {file: how.id for file, how in tables.items()}
    if not asked and all(noted.values()):
        ids = noted
    else:
        asked = asked or [_shared_column(tables, wanted)]
        ids = {file: _first_of(asked, how.header) for file, how in tables.items()}
    wanted = wanted or [how.label for how in tables.values() if how.label is not None]
    labels = {file: _first_of(wanted, how.header) for file, how in tables.items()}
    problems = []
    for file in (file for file, name in ids.items() if name is None):
        hint = did_you_mean(asked[0], tables[file].header)
        problems.append(
            f"{file} has no id column {' or '.join(map(repr, asked))}: "
            f"{hint}{'' if hint.endswith('?') else '.'} Mend: --id once for each name it has"
        )
    everything = list(dict.fromkeys(name for how in tables.values() for name in how.header))
    if not wanted:
        problems.append("no label was named. Mend: --label with the column to predict")
    for name in wanted:
        if name not in everything:
            problems.append(f"no table has the label {name!r}: {did_you_mean(name, everything)}")
    if problems:
        raise ConfigError(problems)
    return (
        {file: name for file, name in ids.items() if name is not None},
        {file: name for file, name in labels.items() if name is not None},
    )


def _own_labels(
    tables: Mapping[Path, Written], ids: Mapping[Path, str], labels: Mapping[Path, str]
) -> tuple[dict[Path, str], dict[Path, str]]:
    """The labels without copies of the first one, and those copies.

    Two annotators differ now and then; a column that never does was taken over.
    """
    if len(labels) < 2:
        return dict(labels), {}
    first, *others = labels
    said = {file: _labels_by_id(file, tables[file], ids[file], labels[file]) for file in labels}
    copies = {}
    for file in others:
        both = said[first].keys() & said[file].keys()
        same = sum(said[first][each] == said[file][each] for each in both)
        if len(both) >= FEWEST_COMPARED and same >= A_COPY * len(both):
            copies[file] = labels[file]
    return {file: name for file, name in labels.items() if file not in copies}, copies


def _labels_by_id(file: Path, how: Written, id: str, label: str) -> dict[bytes, str]:
    from fedmend.secure.identifiers import RULES

    # What is written 2 here is 2.0 where a label is missing.
    plain = RULES["number"]
    return {
        plain(str(row[id])): re.sub(r"\.0+$", "", str(row[label]).strip())
        for row in _first_rows(file, how, [id, label])
        if row[label] not in (None, "")
    }


def _task(file: Path, how: Written, label: str) -> dict[str, str]:
    """What whole numbers are taken for, and which they are; nothing where there is no doubt."""
    from fedmend.data.encode import MOST_CLASSES, looks_counted
    from fedmend.data.readers import MISSING_MARKS

    texts = [str(row[label]).strip() for row in _first_rows(file, how, [label])]
    texts = [text for text in texts if text not in (*MISSING_MARKS, "None")]
    if not texts or not all(re.fullmatch(r"-?\d{1,15}(\.0*)?", text) for text in texts):
        return {}
    numbers = [float(text) for text in texts]
    distinct = len(set(numbers))
    if distinct < 3 or distinct > min(MOST_CLASSES, len(numbers) // 2):
        return {}
    task = "count" if looks_counted(numbers) else "multiclass"
    return {"name": task, "seen": f"{min(numbers):g} to {max(numbers):g}"}


def _first_of(asked: Sequence[str], header: Sequence[str]) -> str | None:
    return next((name for name in asked if name in header), None)


def _known_ids(tables: Mapping[Path, Written], ids: Mapping[Path, str]) -> list[set[int | str]]:
    """The ids of every table as the reader takes them, as far as its first rows tell."""
    return [_first_ids(file, how, ids[file]) for file, how in tables.items()]


def _any_shared(known: Sequence[set[int | str]]) -> bool:
    from fedmend.secure.identifiers import RULES

    made = [{RULES["exact"](each) for each in own} for own in known]
    return any(one & two for one, two in itertools.combinations(made, 2))


def _rule(known: Sequence[set[int | str]]) -> str:
    """How ids are compared: as they are written, unless another way finds many more people."""
    from fedmend.secure.identifiers import better_rule, shared_by_rule

    return better_rule(shared_by_rule(known), "exact") if len(known) > 1 else "exact"


def _first_rows(file: Path, how: Written, names: list[str]) -> Iterator[Mapping[str, Any]]:
    """These columns of the first rows."""
    if file.name.lower().endswith(".parquet"):
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(file).iter_batches(IDS_LOOKED_AT, columns=names)
        return (row for batch in itertools.islice(batches, 1) for row in batch.to_pylist())
    if file.name.lower().endswith(".xlsx"):
        from fedmend.data.readers import file_bytes, first_sheet

        rows = first_sheet(file, file_bytes(file))[names].head(IDS_LOOKED_AT)
        plain = rows.astype(object).where(rows.notna(), None)
        return (dict(zip(names, row, strict=True)) for row in plain.to_numpy().tolist())
    return itertools.islice(csv_lines(file, how), IDS_LOOKED_AT)


def _first_ids(file: Path, how: Written, id: str) -> set[int | str]:
    values = [row[id] for row in _first_rows(file, how, [id])]
    if file.name.lower().endswith((".parquet", ".xlsx")):
        return {value if isinstance(value, int) else str(value) for value in values}
    texts = {str(value).strip() for value in values}
    # As the reader has it: numbers only where no zero leads.
    whole = all(re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) for text in texts)
    return {int(text) for text in texts} if whole else {*texts}


def _shared_column(tables: Mapping[Path, Written], labels: Sequence[str]) -> str:
    first, *others = (how.header for how in tables.values())
    blocks = {name for how in tables.values() for name in how.blocks}
    shared = [
        name
        for name in first
        if name not in labels and name not in blocks and all(name in other for other in others)
    ]
    # Where parties have the same columns of other people they share all of them.
    called = [name for name in shared if re.fullmatch(r"(.*[^a-z])?id", name.lower())]
    for names in (shared, called):
        if len(names) == 1:
            return names[0]
    found = f"they share {listed(shared, 6)}" if shared else "they share no column name"
    bare = mostly_alike([how.header for how in tables.values()])
    raise ConfigError(
        f"which column is the id? {found}. Mend: name it with --id; where it has another name in "
        "every table, --id once for each"
        + "; tables of different people need none: leave id out of a file that 'fedmend init' "
        "without tables writes" * bare
    )


def _party_names(files: Sequence[Path]) -> dict[Path, str]:
    """A legal, distinct name for each file."""
    names: dict[Path, str] = {}
    for file in files:
        stem = file.name.split(".")[0]
        name = party_name_of(stem)[:60].rstrip("-_") or "party"
        if name in names.values() or name == "coordinator":
            name = f"{name}-{len(names) + 1}"
        names[file] = name
    return names


def _relative(file: Path, config: Path) -> str:
    """The file as the config must name it: relative to the config where they lie together."""
    try:
        return str(file.resolve().relative_to(config.resolve().parent))
    except ValueError:
        return str(file.resolve())
