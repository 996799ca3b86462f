"""Bottoms of like shape, averaged by the rows they train on; and what a party does with images."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import Batch
from fedmend.methods.risa import imputation
from fedmend.methods.risa.imputation import OwnRows, mean_row
from fedmend.methods.risa.parts import part_of
from fedmend.methods.risa.session import EvidenceNetwork, How
from fedmend.methods.risa.training import EvidenceTopHalf, _Trained
from fedmend.split.config import SplitConfig
from fedmend.split.halves import Settings
from fedmend.split.sharing import Sharing


def halves(rows: int, overlap: int, *, same: bool = False) -> Federation:
    """Images at two parties: the first rows are known to both, the rest to each alone.

    same: both have the same images.
    """
    rng = np.random.default_rng(0)
    tables = {}
    for name in ("left", "right"):
        rng = np.random.default_rng(0) if same else rng
        frame = {"y": np.arange(rows) % 3} if name == "left" else {}
        tables[name] = Table(
            np.arange(rows),
            frame,
            label="y" if frame else None,
            kinds={"y": "nominal"} if frame else None,
            blocks={"image": rng.integers(0, 256, (rows, 3, 4, 4), dtype=np.uint8)},
        )
    fed = Federation(*(Party(name, table) for name, table in tables.items()), strict=True)
    known, others = np.arange(overlap), np.arange(overlap, rows)
    for name in tables:
        fed.engine.site(name).alignments["train"] = Alignment(known, others)  # type: ignore[attr-defined]
    fed.note_alignment(AlignmentCounts(overlap, dict.fromkeys(tables, rows - overlap)))
    return fed


def test_a_bottom_counts_by_the_rows_it_trains_on() -> None:
    fed = halves(40, 10)
    config = SplitConfig(bottom=(), embedding=3, top=(), conv="whitened")
    network = EvidenceNetwork(
        fed, parties=["left", "right"], label_party="left", config=config, how=How(joint=True)
    )
    with network.session([["aligned", 10], ["left", 30], ["right", 30]]) as session:
        session.set_pools([np.arange(10), np.arange(10, 40), np.arange(40, 45)])
        before = [
            {
                key: value.clone()
                for key, value in part_of(fed.engine.site(name), network.model)  # type: ignore[attr-defined]
                .bottom.module.state_dict()  # type: ignore[union-attr]
                .items()
            }
            for name in ("left", "right")
        ]
        session.share()
        for name in ("left", "right"):
            bottom = part_of(fed.engine.site(name), network.model).bottom  # type: ignore[attr-defined]
            assert bottom is not None
            for key, value in bottom.module.state_dict().items():
                left, right = (each[key] for each in before)
                expected = (40 * left + 15 * right) / 55 if value.is_floating_point() else left
                torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(("every", "times"), [(1, 5), (2, 3), (3, 3), (9, 2)])
def test_bottoms_are_shared_so_often(every: int, times: int) -> None:
    """Before the first of four steps, after so many, and at the end of the epoch."""
    fed = halves(40, 10)
    settings = Settings(batch_size=10)
    config = SplitConfig(bottom=(), embedding=3, top=(), conv="whitened", settings=settings)
    how = How(joint=True, share_every=every)
    network = EvidenceNetwork(
        fed, parties=["left", "right"], label_party="left", config=config, how=how
    )
    with network.session([["aligned", 10], ["left", 30], ["right", 30]]) as session:
        session.set_pools([np.arange(10), np.arange(10, 40), np.zeros(0, np.int64)])
        session.epoch(1, 1)
        for given in ("left", "right"):
            sent = [
                entry
                for entry in fed.ledger.entries()
                if entry.kind == "weights" and entry.sender == given
            ]
            assert len(sent) == times
    bottoms = [
        part_of(fed.engine.site(name), network.model).bottom.module.state_dict()  # type: ignore[attr-defined, union-attr]
        for name in fed.names
    ]
    for key, value in bottoms[0].items():
        torch.testing.assert_close(value, bottoms[1][key])


def test_the_sides_of_a_row_are_flipped_and_shifted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {"top": [], "bottom": []}
    known = _Trained._known

    def spied(self: _Trained, rows: OwnRows, numbers: torch.Tensor) -> Batch:
        batch = known(self, rows, numbers)
        seen["top" if isinstance(self, EvidenceTopHalf) else "bottom"].append(batch.blocks[0])
        return batch

    monkeypatch.setattr(_Trained, "_known", spied)
    fed = halves(40, 20, same=True)
    settings = Settings(batch_size=20, augment="weak")
    config = SplitConfig(bottom=(), embedding=3, top=(), conv="whitened", settings=settings)
    network = EvidenceNetwork(
        fed, parties=["left", "right"], label_party="left", config=config, how=How(joint=True)
    )
    with network.session([["aligned", 20], ["left", 20], ["right", 20]]) as session:
        session.set_pools([np.arange(20), np.arange(20, 40), np.zeros(0, np.int64)])
        session.epoch(1, 1)
    assert len(seen["top"]) == len(seen["bottom"]) == 2
    shared = [step[:10] for step in seen["top"]]  # half of each batch is known to both
    for one, other in zip(shared, seen["bottom"], strict=True):
        assert torch.equal(one, other)
    # Rows were really changed: no image is one of those that the party has.
    table = fed.engine.site("left").tables["train"]  # type: ignore[attr-defined]
    plain = Encoder().fit(table).transform(table).blocks["image"]
    moved = [np.abs(plain - image.numpy()).max((1, 2, 3)).min() > 1e-3 for image in shared[0]]
    assert any(moved)


class Bottom:
    """A worker that has nothing but a bottom."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def bottom_weights(self) -> dict[str, torch.Tensor]:
        return dict(self.weights)

    def take_bottom(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights


def test_only_bottoms_alike_are_joined() -> None:
    """Two of four are; numbers that are no floats stay as they are."""
    rng = torch.Generator().manual_seed(0)
    alike = [{"w": torch.randn(3, 2, generator=rng), "n": torch.tensor(k)} for k in (5, 6)]
    workers = {"b": Bottom(alike[1]), "c": Bottom({"w": torch.ones(2, 2)}), "d": Bottom({})}
    label = Bottom(alike[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sharing(workers, label, "a").share({"a": 30, "b": 10, "c": 99, "d": 0})  # type: ignore[arg-type]
    expected = 0.75 * alike[0]["w"] + 0.25 * alike[1]["w"]
    for each in (label, workers["b"]):
        torch.testing.assert_close(each.weights["w"], expected)
    assert label.weights["n"] == workers["b"].weights["n"]
    assert torch.equal(workers["c"].weights["w"], torch.ones(2, 2))


def test_that_nothing_is_shared_is_said_once() -> None:
    sharing = Sharing({"b": Bottom({"w": torch.ones(2)})}, Bottom({"w": torch.ones(3)}), "a")  # type: ignore[arg-type]
    with pytest.warns(FedmendWarning, match=r"a.*differ.*share_every=0") as told:
        for _ in range(3):
            sharing.share({"a": 1, "b": 1})
    assert len(told) == 1


@pytest.mark.parametrize("rows", [[], [3, 1, 3, 7], list(range(12))])
def test_rows_in_any_order_and_their_mean(rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 3, 5, 4), dtype=np.uint8)
    table = Table(np.arange(12), {"city": list("abcabcabcabc")}, blocks={"image": images})
    encoded = Encoder().fit(table).transform(table)
    placed = np.full(20, -1)
    at = np.arange(len(rows)) + 4
    placed[at] = rows
    own = OwnRows(encoded, placed, torch.device("cpu"), torch.float32)
    batch = own.batch(torch.from_numpy(at))
    np.testing.assert_array_equal(batch.blocks[0], encoded.blocks["image"][rows])
    np.testing.assert_array_equal(batch.codes, encoded.codes[rows])
    if rows:
        monkeypatch.setattr(imputation, "MIN_MEAN_ROWS", 2)
        mean = mean_row(encoded, np.array(rows))
        expected = encoded.blocks["image"][rows].astype(np.float64).mean(0)
        np.testing.assert_allclose(mean.blocks[0], expected, atol=1e-6)
        shares = np.bincount(encoded.codes[rows, 0], minlength=encoded.cardinalities[0])
        np.testing.assert_allclose(mean.codes[0], shares / len(rows))
