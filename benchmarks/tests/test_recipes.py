"""The benchmark of recipes: its worlds are torn as told, and its lines run and are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedmend.errors import ConfigError
from fedmend.methods.recipes import RECIPES
from fedmend_bench.flow import recipes
from fedmend_bench.flow.recipe_runs import all_lines, combined
from fedmend_bench.flow.world import BANK, LABELLERS, TELCO, Shape, World, make_world

TINY = {"data": "credit", "quick": True}


def said(world: World, party: str) -> tuple[np.ndarray, np.ndarray]:
    """A labeller's votes and where it gave one."""
    sites = world.fed.engine
    votes = sites.site(party).tables["train"].y.to_numpy(dtype=object)  # type: ignore[attr-defined]
    return votes, np.array([vote is not None and vote == vote for vote in votes])


@pytest.mark.real
@pytest.mark.parametrize("noisy", LABELLERS)
def test_a_world_is_torn_as_told(noisy: str) -> None:
    world = make_world(Shape("credit", 3, rows=2000, test=300, overlap=0.1, noisy=noisy))
    sites = world.fed.engine
    ids = {name: sites.site(name).tables["train"].ids for name in world.fed.names}  # type: ignore[attr-defined]
    assert len(np.intersect1d(ids[BANK], ids[TELCO])) == 200
    assert set(ids["registry"]) == set(ids["agency"]) == set(ids[BANK])
    right = {}
    for name in LABELLERS:
        votes, given = said(world, name)
        assert 0.65 < given.mean() < 0.75
        right[name] = (votes[given] == world.truth[given]).mean()
    assert min(right, key=lambda name: right[name]) == noisy
    assert right[noisy] < 0.75 < min(value for name, value in right.items() if name != noisy)
    test = world.columns.on("test").alignment
    assert test.aligned == 300 and world.columns.on("alone").alignment.unaligned[BANK] == 300


@pytest.mark.real
def test_the_world_without_tears() -> None:
    world = make_world(Shape("bank", 0, rows=300, test=100), mended=True)
    votes, given = said(world, BANK)
    assert given.all() and (votes == world.truth).all()
    sites = world.fed.engine
    telco = sites.site(TELCO).tables["train"]  # type: ignore[attr-defined]
    assert set(telco.ids) == set(range(300))


def test_a_labeller_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="registry"):
        _ = Shape("credit", 0, noisy="telco").rates


def test_every_named_recipe_is_a_line() -> None:
    assert set(recipes.NAMED) == set(RECIPES)
    assert set(recipes.NAMED.values()) | set(recipes.SINGLE) <= set(all_lines())
    assert combined("InC", True, "VFL") == recipes.NAMED["correct-complete-vfl"]


@pytest.mark.real
def test_lines_run_and_are_taken_up_again(tmp_path: Path) -> None:
    lines = ["Local", "InC → LocalVFL", "InC alone", "oracle"]
    result = recipes.run(**TINY, lines=lines, folder=str(tmp_path))  # type: ignore[arg-type]
    assert [row["line"] for row in result.rows] == lines
    for row in result.rows:
        assert 20 < row["auc"] <= 100 and 20 < row["auc, bank alone"] <= 100
        assert row["seconds"] > 0 and row["seeds"] == 1
    table = {row["line"]: row for row in result.rows}
    assert table["InC → LocalVFL"]["mb"] > table["Local"]["mb"] > 0
    assert table["InC → LocalVFL"]["labels right"] > table["Local"]["labels right"] + 0.05
    assert table["InC → LocalVFL"]["recipe"] == "correct-local-vfl"
    assert len(result.bars) == 2
    kept = sorted(path.read_bytes() for path in tmp_path.iterdir())
    again = recipes.run(**TINY, lines=lines, folder=str(tmp_path))  # type: ignore[arg-type]
    assert again.rows == result.rows
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == kept


def test_unknown_lines_are_named() -> None:
    with pytest.raises(ConfigError, match="no 'RISSA': did you mean 'RISA'"):
        recipes.run(lines="RISSA")
