"""``fedmend init``: a first federation.toml, commented, from nothing or from the given tables."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmend._files import write_whole
from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError
from fedmend.flow.config.settings import title_of
from fedmend.flow.config.sniffing import Written, csv_lines, looked_at, mostly_alike

__all__ = ["starter_text", "write_starter"]

IDS_LOOKED_AT = 100_000


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
    parties = [
        {
            "name": names[file],
            "data": _relative(file, path) if files else str(file),
            "id": ids[file],
            "label": labels.get(file),
            "form": how.unusual,
        }
        for file, how in tables.items()
    ]
    known = _known_ids(tables, ids) if files else []
    alike = bool(files) and mostly_alike([how.header for how in tables.values()])
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
        horizontal=alike and not _any_shared(known),
        several=len(labels) > 1,
        # Whoever has labels only has nothing to learn from by itself.
        local=any(len(tables[file].header) != 2 for file in labels),
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
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(f"{file}: {reason}. Mend: give a readable .csv, .csv.gz or .parquet")
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


def _first_ids(file: Path, how: Written, id: str) -> set[int | str]:
    if file.name.lower().endswith(".parquet"):
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(file).iter_batches(IDS_LOOKED_AT, columns=[id])
        first = itertools.islice(batches, 1)
        values = [value for batch in first for value in batch.column(0).to_pylist()]
        return {value if isinstance(value, int) else str(value) for value in values}
    texts = {
        str(line[id]).strip() for line in itertools.islice(csv_lines(file, how), IDS_LOOKED_AT)
    }
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
    if len(shared) == 1:
        return shared[0]
    found = f"they share {', '.join(shared)}" if shared else "they share no column name"
    raise ConfigError(
        f"which column is the id? {found}. Mend: name it with --id; where it has another name in "
        "every table, --id once for each"
    )


def _party_names(files: Sequence[Path]) -> dict[Path, str]:
    """A legal, distinct name for each file."""
    names: dict[Path, str] = {}
    for file in files:
        stem = file.name.split(".")[0]
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:60] or "party"
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
