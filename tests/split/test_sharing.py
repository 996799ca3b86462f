"""Bottoms of like shape, averaged by the rows they train on; and what a party does with images."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import FedmendWarning
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.learn.nets import Batch
from fedmend.methods.risa import network as nets
from fedmend.methods.risa.risa import OBJECTIVES, EvidenceNetwork
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import Features
from fedmend.split.partial import SharingSession, _mean
from fedmend.split.parts import part_of


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
        fed.engine.site(name).alignments["train"] = Alignment(known, others)
    fed.note_alignment(AlignmentCounts(overlap, dict.fromkeys(tables, rows - overlap)))
    return fed


def network(fed: Federation, *, share_every: int = 0, **how: Any) -> EvidenceNetwork:
    config = SplitConfig(
        bottom=(),
        embedding=3,
        top=(),
        conv="whitened",
        settings=Settings(**how),
        options=asdict(OBJECTIVES["heads"]) | {"share_every": share_every},
    )
    return EvidenceNetwork(fed, parties=["left", "right"], label_party="left", config=config)


def bottoms(fed: Federation, model: str) -> list[dict[str, torch.Tensor]]:
    sites = (fed.engine.site(name) for name in ("left", "right"))
    states = (part_of(site, model).bottom.module.state_dict() for site in sites)
    return [{key: value.clone() for key, value in state.items()} for state in states]


def test_a_bottom_counts_by_the_rows_it_trains_on():
    fed = halves(40, 10)
    model = network(fed)
    with model.session([["aligned", 10], ["left", 30], ["right", 30]]) as session:
        session.set_pools([np.arange(10), np.arange(10, 40), np.arange(40, 45)])
        before = bottoms(fed, model.model)
        session._share()
        for after in bottoms(fed, model.model):
            for key, value in after.items():
                left, right = (each[key] for each in before)
                expected = (40 * left + 15 * right) / 55 if value.is_floating_point() else left
                torch.testing.assert_close(value, expected)


@pytest.mark.daily("2-3")
@pytest.mark.parametrize(("every", "times"), [(2, 3), (9, 2)])
def test_bottoms_are_shared_so_often(every, times):
    """Before the first of four steps, after so many, and at the end of the epoch."""
    fed = halves(40, 20)
    model = network(fed, share_every=every, batch_size=10)
    with model.session([["aligned", 20], ["left", 20], ["right", 20]]) as session:
        session.set_pools([np.arange(20), np.arange(20, 40), np.zeros(0, np.int64)])
        session.epoch(1)
    for given in ("left", "right"):
        sent = [e for e in fed.ledger.entries() if e.kind == "weights" and e.sender == given]
        assert len(sent) == times
    one, other = bottoms(fed, model.model)
    for key, value in one.items():
        torch.testing.assert_close(value, other[key])


def test_the_sides_of_a_row_are_flipped_and_shifted_alike(monkeypatch):
    seen: list[torch.Tensor] = []
    plain_batch = Features.batch

    def spied(self: Features, numbers: torch.Tensor, draws: Any = None) -> Batch:
        batch = plain_batch(self, numbers, draws)
        seen.extend([] if draws is None else [batch.blocks[0]])
        return batch

    monkeypatch.setattr(Features, "batch", spied)
    fed = halves(40, 20, same=True)
    model = network(fed, batch_size=20, augment="weak")
    with model.session([["aligned", 20], ["left", 20], ["right", 20]]) as session:
        session.set_pools([np.arange(20), np.arange(20, 40), np.zeros(0, np.int64)])
        session.epoch(1)
    # In turn the right party's rows of a batch and the left's; half of these are known to both.
    bottom, top = seen[0::2], seen[1::2]
    assert len(top) == len(bottom) == 2
    for one, other in zip(top, bottom, strict=True):
        assert torch.equal(one[:10], other)
    # Rows were really changed: no image is one of those that the party has.
    table = fed.engine.site("left").tables["train"]
    plain = Encoder().fit(table).transform(table).blocks["image"]
    moved = [np.abs(plain - image.numpy()).max((1, 2, 3)).min() > 1e-3 for image in top[0][:10]]
    assert any(moved)


def test_only_bottoms_alike_are_joined():
    """Two of four are; numbers that are no floats stay as they are. That none is, is said once."""
    rng = torch.Generator().manual_seed(0)
    alike = {
        name: {"w": torch.randn(3, 2, generator=rng), "n": torch.tensor(k)}
        for name, k in (("a", 5), ("b", 6))
    }
    joined = _mean(alike, {"a": 30, "b": 10})
    torch.testing.assert_close(joined["w"], 0.75 * alike["a"]["w"] + 0.25 * alike["b"]["w"])
    assert joined["n"] == 5

    class Bottom:
        def __init__(self, size: int) -> None:
            self.weights = {"w": torch.ones(size)}

        def bottom_weights(self) -> dict[str, torch.Tensor]:
            return dict(self.weights)

    session: Any = SharingSession.__new__(SharingSession)
    session.bottoms, session.top, session._warned = {"b": Bottom(2)}, Bottom(3), set()
    session.segments, session.train = [["aligned", 4]], np.arange(4)
    session.network = type("Network", (), {"label_party": "a", "parties": ["a", "b"]})
    with pytest.warns(FedmendWarning, match=r"b, a.*differ.*share_every=0") as told:
        for _ in range(3):
            session._share()
    assert len(told) == 1


@pytest.mark.parametrize("rows", [[], [3, 1, 3, 7], list(range(12))])
def test_rows_in_any_order_and_their_mean(rows, monkeypatch):
    images = np.random.default_rng(1).integers(0, 256, (12, 3, 5, 4), dtype=np.uint8)
    table = Table(np.arange(12), {"city": list("abcabcabcabc")}, blocks={"image": images})
    encoded = Encoder().fit(table).transform(table)
    placed = np.full(20, -1)
    at = np.arange(len(rows)) + 4
    placed[at] = rows
    own = Features(encoded, placed, torch.device("cpu"), torch.float32)
    assert own.known(torch.arange(20)).tolist() == at.tolist()
    batch = own.batch(torch.from_numpy(at))
    np.testing.assert_array_equal(batch.blocks[0], encoded.blocks["image"][rows])
    np.testing.assert_array_equal(batch.codes, encoded.codes[rows])
    if rows:
        monkeypatch.setattr(nets, "MIN_MEAN_ROWS", 2)
        mean = nets.mean_row(encoded, np.array(rows))
        expected = encoded.blocks["image"][rows].astype(np.float64).mean(0)
        np.testing.assert_allclose(mean.blocks[0], expected, atol=1e-6)
        shares = np.bincount(encoded.codes[rows, 0], minlength=encoded.cardinalities[0])
        np.testing.assert_allclose(mean.codes[0], shares / len(rows))
