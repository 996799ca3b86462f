"""``fedmend init``: a first federation.toml, commented, from nothing or from the given tables."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmend._suggest import did_you_mean
from fedmend.errors import ConfigError

__all__ = ["starter_text", "write_starter"]

MOST_IDS = 100_000

_HEAD = """\
# A federation for fedmend. Paths are relative to this file.
#   fedmend check {name}     lists every problem, what is torn and what would mend it
#   fedmend run {name}       aligns, mends, trains, evaluates, and writes a report

# recipe = "complete-vfl"    # mending stages and methods by name, below what this file says

[run]
seed = 0
# seeds = [0, 1, 2]          # several seeds: the report shows the spread
# folder = "runs/first"      # where the run goes; by default runs/ and the name of this file
# device = "cuda"            # "cpu" by default
# strict = true              # send every value through the wire format, as a network would

"""

_PARTY = """\
[[party]]
name = {name}
data = {data}{data_note}
id = {id}{id_note}
{label}# test = "later.csv"        # test rows of its own; otherwise a share is set aside (below)
# [party.kinds]              # what a column is, where fedmend guesses wrong
# postcode = "nominal"
# [party.policy]             # what this party lets out
# refuse = ["weights"]
# min_intersection = 10

"""

_TAIL = """\
[align]
mode = "ecdh"                # private set intersection: nobody learns the other's other ids
# normalise = "text"         # 7 is "7", "Ann " is "ann"; by default ids must be written alike
# minimum = 20               # warn when fewer rows are shared

# [complete]                 # give rows that only one party has the others' columns, then train
# also_unmended = true       # train without the completed rows too, to compare
# export = true              # every completing party keeps its table, origins beside

{correct}# One method, or several to compare. Each takes the parameters of its class.
{methods}
[evaluate]
{metrics}
{reference}test_share = 0.25            # the same people at every party, chosen by their id

[report]
title = {title}
"""

_METHODS = """\
[[method]]
name = "local"               # the label party alone

[[method]]
name = "vfl"                 # all parties, on the rows known to all
# epochs = 100

[[method]]
name = "local-vfl"           # all parties, and the label party's other rows too

# [[method]]
# name = "auto"              # whichever does best on held-out rows; the report says why
"""

_CORRECT = """\
# [correct]                  # make one label of all labels, for methods that learn from one
# to = {to}
# also_uncorrected = true    # train on its own labels too, to compare

"""

_CROWD_METHODS = """\
[[method]]
name = "inc"                 # several labellers, whose labels are corrected in training
# epochs = 100

[[method]]
name = "majority"            # the majority of their votes

[[method]]
name = "dawid-skene"         # the truth inferred from their votes alone
"""

_SHAPE = """\
[run]
shape = "horizontal"         # the same columns of different people
"""

_HORIZONTAL_TAIL = """\
# One method, or several to compare. Each takes the parameters of its class.
[[method]]
name = "sage"                # rows without label get pseudo-labels
# rounds = 50
# per_round = 8              # parties in each round; all by default

[[method]]
name = "fedavg"              # the labelled rows only

[evaluate]
{metrics}
test_share = 0.25            # of every party's rows, chosen by their id

[report]
title = {title}
"""

_REFERENCE = """\
reference = "majority"       # or the name of the party whose test labels count
"""


def write_starter(
    path: str | Path,
    files: Sequence[str | Path] = (),
    *,
    id: str | None = None,
    label: str | None = None,
    force: bool = False,
) -> Path:
    """Write a starting federation.toml; an existing one stays unless forced."""
    path = Path(path)
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists already. Mend: --force to overwrite it, or --out another.toml"
        )
    text = starter_text(path, [Path(file) for file in files], id=id, label=label)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


def starter_text(
    path: Path, files: Sequence[Path], *, id: str | None = None, label: str | None = None
) -> str:
    """The text of a first federation.toml for these tables, or for a bank and a telco."""
    headers = _headers(files)
    if not files:
        columns = {Path("bank.csv"): [label or "default"], Path("telco.csv"): []}
        id, guessed, label = id or "customer", False, label or "default"
    else:
        columns = headers
        guessed = id is None
        id = id if id is not None else _shared_column(headers, label)
        _require(headers, id, label)
    names = _party_names(list(columns))
    holders = [names[file] for file, header in columns.items() if label in header]
    several = len(holders) > 1
    alike = bool(files) and len({frozenset(header) for header in columns.values()}) == 1
    alike = alike and _strangers(files, id)
    parties = [
        _PARTY.format(
            name=_quoted(names[file]),
            data=_quoted(_relative(file, path) if files else str(file)),
            data_note="" if files else "            # .csv, .csv.gz or .parquet; or sql and uri",
            id=_quoted(id),
            id_note="              # guessed: the only column all have" if guessed else "",
            label=f"label = {_quoted(label)}\n" if label in header else "",
        )
        for file, header in columns.items()
    ]
    head = _HEAD.format(name=path.name)
    if alike:
        head = head.replace("[run]\n", _SHAPE)
    return (
        head
        + "".join(parties)
        + (_HORIZONTAL_TAIL if alike else _TAIL).format(
            methods=_CROWD_METHODS if several else _METHODS,
            correct=_CORRECT.format(to=_quoted(holders[0])) if several else "",
            reference=_REFERENCE if several else "",
            metrics='# metrics = ["auc", "accuracy"]   # the first one decides; all by default',
            title=_quoted(" and ".join(names.values())),
        )
    )


def _headers(files: Sequence[Path]) -> dict[Path, list[str]]:
    """The column names of every file; all unreadable ones are named together."""
    headers, problems = {}, []
    for file in files:
        try:
            headers[file] = _header(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problems.append(f"{file}: {reason}. Mend: give a readable .csv, .csv.gz or .parquet")
    if len(headers) == 1 and not problems:
        problems.append(f"{files[0]} is the only table. Mend: give one table for each party")
    if problems:
        raise ConfigError(problems)
    return headers


def _header(file: Path) -> list[str]:
    name = file.name.lower()
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        return list(pq.read_schema(file).names)
    if not name.endswith((".csv", ".csv.gz")):
        raise ValueError(f"unknown kind of file {file.suffix!r}")
    opener: Any = gzip.open if name.endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream), [])
    if not header:
        raise ValueError("the file is empty")
    return header


def _strangers(files: Sequence[Path], id: str) -> bool:
    """Whether no two tables know the same people, as far as their first rows tell."""
    seen: set[str] = set()
    for file in files:
        own = _first_ids(file, id)
        if seen & own:
            return False
        seen |= own
    return True


def _first_ids(file: Path, id: str) -> set[str]:
    if file.name.lower().endswith(".parquet"):
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(file).iter_batches(MOST_IDS, columns=[id])
        first = itertools.islice(batches, 1)
        return {str(value) for batch in first for value in batch.column(0).to_pylist()}
    opener: Any = gzip.open if file.name.lower().endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig", newline="") as stream:
        lines = csv.DictReader(stream)
        return {str(line[id]) for line in itertools.islice(lines, MOST_IDS)}


def _shared_column(headers: dict[Path, list[str]], label: str | None) -> str:
    first, *others = headers.values()
    shared = [name for name in first if name != label and all(name in other for other in others)]
    if len(shared) == 1:
        return shared[0]
    found = f"they share {', '.join(shared)}" if shared else "they share no column name"
    raise ConfigError(f"which column is the id? {found}. Mend: name it with --id")


def _require(headers: dict[Path, list[str]], id: str, label: str | None) -> None:
    problems = [
        f"{file} has no id column {id!r}: {did_you_mean(id, header)}"
        for file, header in headers.items()
        if id not in header
    ]
    everything = [name for header in headers.values() for name in header]
    holders = [file for file, header in headers.items() if label in header]
    if label is None:
        problems.append("no label was named. Mend: --label with the column to predict")
    elif not holders:
        problems.append(f"no table has the label {label!r}: {did_you_mean(label, everything)}")
    if problems:
        raise ConfigError(problems)


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


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)
