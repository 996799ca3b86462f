"""The torn world of `fedmend bench flow` as users would have it: CSV files, a federation.toml.

The world is that of `world.py`: a bank and a telco with columns, of whose rows a tenth is
common, and three labellers, one of them bad. Every party gets a table and a test table; the bank's
test labels are the true ones. Beside them lie new rows that the bank alone knows, without labels,
and `truth.json`, which no run reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmend._json import write_json
from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.methods.recipes import CORRECT
from fedmend_bench.flow.world import BANK, LABEL, LABELLERS, TELCO, Shape, make_world, votes_only

__all__ = ["Line", "all_lines", "single_lines", "write_config", "write_world"]

ID = "customer"
TRUTH_FILE = "truth.json"
NEW_FILE = "new.csv"
EVERYBODY = (BANK, TELCO, *LABELLERS[1:])
COLUMNS = (BANK, TELCO)
AUTO, ADVISED, ORACLE = "auto", "as advised", "oracle"
GBDT, GBDT_ORACLE = "GBDT left join in the clear", "GBDT oracle in the clear"
COMPLETED = {"complete": {"name": "fedpsg-pum"}}
INC = {key: value for key, value in CORRECT.items() if key != "among"}
# Methods whose length nothing chooses.
CROWD = {"batch_size": 128, "epochs": 20, "lr": 3e-3, "weight_decay": 1e-3}


# ---------------------------------------------------------------- what is run


@dataclass(frozen=True)
class Line:
    """One run: who takes part, and what the federation.toml says beside them.

    recipe: given to `fedmend run`. advised: the file is the one that `fedmend check` writes.
    mended: in the world without tears. clear: no run, but scikit-learn on the joined tables.
    """

    name: str
    parties: tuple[str, ...] = EVERYBODY
    tables: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None
    advised: bool = False
    mended: bool = False
    clear: bool = False

    @property
    def slug(self) -> str:
        return "".join(sign if sign.isalnum() else "-" for sign in self.name.lower())


def single_lines() -> list[Line]:
    """Each method by itself, with the parties it can use."""
    crowds = {
        "InC": INC,
        "majority": {**CROWD, "name": "majority"},
        "Dawid–Skene": {**CROWD, "name": "dawid-skene"},
    }
    names = {"Local": "local", "VFL": "vfl", "LocalVFL": "local-vfl"}
    names |= {"LocalTrees": "local-trees", "SecureBoost": "boosting", AUTO: AUTO}
    found = [_one_method(title, COLUMNS, {"name": name}) for title, name in names.items()]
    found.append(_one_method("RISA", COLUMNS, {"name": "risa"}))
    for title, name in (("FedPSG-PUM → VFL", "vfl"), ("FedPSG-PUM → auto", AUTO)):
        found.append(Line(title, COLUMNS, {**COMPLETED, "method": {"name": name}}))
    for title, settings in crowds.items():
        found.append(_one_method(f"{title} among labellers", LABELLERS, settings))
    return found


def _one_method(title: str, parties: tuple[str, ...], settings: Mapping[str, Any]) -> Line:
    return Line(title, parties, {"method": settings})


def all_lines() -> list[Line]:
    """Recipes and what else was tried after a correction, each method alone, and what there could
    be: the same with true labels and all rows, and scikit-learn's trees of the joined tables."""
    majority = {"name": "majority", "among": "labellers", "epochs": 1}
    last, chosen = {"name": "vfl"}, {"name": AUTO}
    corrected = {"correct": CORRECT}
    return [
        Line("InC → auto", recipe="correct-auto"),
        Line("Dawid–Skene → auto", recipe="infer-auto"),
        Line("InC → FedPSG-PUM → auto", tables={**corrected, **COMPLETED, "method": chosen}),
        Line("majority → auto", tables={"correct": majority, "method": chosen}),
        Line("InC → FedPSG-PUM → VFL", tables={**corrected, **COMPLETED, "method": last}),
        Line("InC → RISA", tables={**corrected, "method": {"name": "risa"}}),
        Line("InC → LocalVFL", tables={**corrected, "method": {"name": "local-vfl"}}),
        *single_lines(),
        Line(ADVISED, tables={"method": {"name": "inc"}}, advised=True),
        Line(ORACLE, COLUMNS, {"method": last}, mended=True),
        Line("oracle by auto", COLUMNS, {"method": chosen}, mended=True),
        Line(GBDT, COLUMNS, clear=True),
        Line(GBDT_ORACLE, COLUMNS, clear=True, mended=True),
    ]


# ---------------------------------------------------------------- files


def write_world(shape: Shape, folder: Path, *, mended: bool = False) -> None:
    """The tables of all parties, and what the test rows truly are."""
    folder.mkdir(parents=True, exist_ok=True)
    world = make_world(shape, mended=mended)
    truth = world.test[BANK].y.to_numpy(dtype=object)
    for name, table in world.train.items():
        _write(table, folder / f"{name}.csv", "c")
    for name, table in (world.test | _test_votes(shape, truth)).items():
        _write(table, folder / f"{name}-test.csv", "t")
    _write(world.test[BANK].features, folder / NEW_FILE, "t")
    ids = [f"t{number}" for number in world.test[BANK].ids]
    write_json(folder / TRUTH_FILE, dict(zip(ids, map(str, truth), strict=True)))
    kinds = {name: _kinds(table) for name, table in world.train.items()}
    write_json(folder / "kinds.json", kinds)


def _write(table: Table, path: Path, letter: str) -> None:
    ids = np.array([f"{letter}{number}" for number in table.ids])
    Table(ids, table.frame, schema=table.schema).to_csv(path, id=ID)


def _test_votes(shape: Shape, truth: np.ndarray) -> dict[str, Table]:
    """What the labellers without columns say of the test rows; nobody is measured against it."""
    codes, classes = pd.factorize(truth, sort=True)
    rates = dict(zip(LABELLERS, shape.rates, strict=True))
    found = {}
    for name in LABELLERS[1:]:
        said = annotators(codes, rates=[rates[name]], n_classes=len(classes), seed=shape.seed + 1)
        votes = np.asarray(classes, object)[said[:, 0]]
        found[name] = votes_only(np.arange(len(truth)), votes)
    return found


def _kinds(table: Table) -> dict[str, Any]:
    """As [party.kinds] has them: ordinal columns by their values in order."""
    found: dict[str, Any] = {}
    for name in table.names:
        column = table.schema[name]
        found[name] = list(column.categories or ()) if column.kind == "ordinal" else column.kind
    return found


def write_config(line: Line, shape: Shape, folder: Path) -> Path:
    """The federation.toml of a line, beside the tables of `write_world`."""
    kinds = json.loads((folder / "kinds.json").read_text(encoding="utf-8"))
    lines = ["[run]", f"seed = {shape.seed}"]
    for name in line.parties:
        lines += ["", "[[party]]", *_pairs(_party(name)), "[party.kinds]", *_pairs(kinds[name])]
    for key, settings in line.tables.items():
        lines += ["", f"[{key}]", *_pairs(settings)]
    labelled = [name for name in line.parties if name in LABELLERS]
    lines += ["", "[evaluate]", 'metrics = ["auc"]']
    lines += [f'reference = "{BANK}"'] if len(labelled) > 1 else []
    path = folder / f"{line.slug}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _party(name: str) -> dict[str, Any]:
    told = {"name": name, "data": f"{name}.csv", "test": f"{name}-test.csv", "id": ID}
    return {**told, "label": LABEL} if name in LABELLERS else told


def _pairs(content: Mapping[str, Any] | Sequence[Any]) -> list[str]:
    """Plain values as lines of TOML, which are those of JSON but for the key."""
    return [
        f"{json.dumps(str(key))} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in dict(content).items()
    ]
