"""Training on rows that some parties lack: batches, who has what, and plain-torch twins."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedmend.data.encode import Encoder
from fedmend.learn.nets import Batch, Bottom, initialise
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.vertical.absent_partner import MeanTop
from fedmend.split.config import Settings, SplitConfig
from fedmend.split.features import MixedOrder, presence
from fedmend.split.partial import JointSpec, PartialNetwork, Views, make_up
from fedmend.split.parts import part_of
from fedmend.split.training import epoch_seed

CPU = torch.device("cpu")


# ------------------------------------------------------------------ batches


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=4), st.integers(4, 128), st.floats(0.05, 0.9)
)
def test_batches_hold_enough_aligned_rows(sizes, batch, least):
    if sum(sizes) < 2:
        return
    counts, batches = make_up(sizes, batch, least)
    assert batches >= 1
    assert abs(sum(counts) - batch) <= len(sizes)
    if sizes[0] and sum(sizes) > sizes[0]:
        assert counts[0] >= min(round(batch * least), batch - 1)
    assert all(count == 0 for count, size in zip(counts, sizes, strict=True) if not size)


def test_however_small_the_other_groups_are_a_batch_has_room_for_them():
    assert make_up([1000, 1], 4, 0.25) == ([3, 1], 250)
    assert make_up([0, 12], 4, 0.25) == ([0, 4], 3)


def test_small_groups_come_round_and_large_ones_are_not_repeated():
    small, large = np.arange(3), np.arange(10, 40)
    order = MixedOrder([small, large], [2, 3], 10, CPU)
    order.start(1)
    batches = [order.next() for _ in order.sizes]
    assert all(((batch < 10).tolist()) == [True, True, False, False, False] for batch in batches)
    seen = torch.cat([batch[2:] for batch in batches]).tolist()
    assert sorted(seen) == large.tolist()
    often = torch.bincount(torch.cat([batch[:2] for batch in batches]))
    assert often.min() >= 6
    assert often.max() <= 7


def test_an_empty_group_is_left_out():
    order = MixedOrder([np.arange(6), np.zeros(0, np.int64)], [2, 2], 3, CPU)
    order.start(0)
    assert order.sizes == [2, 2, 2]
    assert order.next().shape == (2,)
    assert order.places([True, True]).tolist() == [0, 1]
    assert order.places([False, True]).tolist() == []


def test_anybody_can_tell_who_has_what():
    segments = [["aligned", 2], ["bank", 1], ["telco", 3]]
    assert presence("bank", segments).tolist() == [True, True, True, False, False, False]
    assert presence("telco", segments).tolist() == [True, True, False, True, True, True]


# ------------------------------------------------------------------ the same arithmetic


JOINT = {"joint": {"kind": "mean", "fusion": "concat", "drop": 0.0}}


@pytest.fixture(scope="module")
def trained(make_fed, make_frame):
    how = Settings(40, OptimizerSpec("sgd", 0.1), "float64")
    config = SplitConfig(
        bottom=(6,), embedding=4, top=(5,), epochs=1, validation=0.0, settings=how, options=JOINT
    )
    columns = {"bank": ["a", "b", "y"], "telco": ["c", "d"]}
    fed = make_fed(make_frame(120), aligned=50, columns=columns)
    network = PartialNetwork(fed, parties=["bank", "telco"], label_party="bank", config=config)
    return fed, network.fit([["aligned", 50], ["bank", 70]])


def test_an_epoch_equals_plain_torch(trained):
    """Zeros for absent embeddings, every bottom on its own rows only, in one graph."""
    fed, network = trained
    sites = {name: fed.engine.site(name) for name in ("bank", "telco")}
    bottoms, inputs = {}, {}
    for name, site in sites.items():
        part = part_of(site, network.model).bottom
        assert part is not None
        fresh = initialise(Bottom(part.module.spec), site.torch_generator("bottom 0", "cpu"))
        bottoms[name] = fresh.double()
        table = site.table_of("train").features
        alignment = site.alignments["train"]
        rows = np.concatenate([alignment.aligned, alignment.unaligned])
        encoded = Encoder(missing_indicator=True, dtype="float64").fit(table).transform(table)
        inputs[name] = torch.from_numpy(encoded.numeric)[rows]
    saved = part_of(sites["bank"], network.model).top
    assert saved is not None
    spec = saved.module.spec
    top = initialise(MeanTop(spec), sites["bank"].torch_generator("top 0", "cpu")).double()
    bank = sites["bank"]
    rows = np.concatenate([bank.alignments["train"].aligned, bank.alignments["train"].unaligned])
    y = torch.from_numpy((bank.table_of("train").y.to_numpy()[rows] == "yes").astype(np.int64))
    modules = [bottoms["bank"], bottoms["telco"], top]
    # Split training has an optimizer per party: with SGD that is the same as one for all.
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], 0.1, 0.9)
    counts, batches = make_up([50, 70], 40, 0.25)
    order = MixedOrder([np.arange(50), np.arange(50, 120)], counts, batches, CPU)
    order.start(epoch_seed(fed.seed, 0, 1))
    for _ in order.sizes:
        numbers = order.next()
        embedded = {}
        for name in ("bank", "telco"):
            here = numbers if name == "bank" else numbers[numbers < 50]
            batch = Batch(inputs[name][here], torch.zeros(len(here), 0, dtype=torch.int64))
            embedded[name] = bottoms[name](batch)
        absent = torch.zeros(len(numbers) - len(embedded["telco"]), 4, dtype=torch.float64)
        joined = torch.cat([embedded["bank"], torch.cat([embedded["telco"], absent])], 1)
        optimizer.zero_grad()
        F.cross_entropy(top.body(torch.relu(joined)), y[numbers]).backward()
        optimizer.step()
    for name, fresh in bottoms.items():
        part = part_of(sites[name], network.model).bottom
        assert part is not None
        for ours, theirs in zip(part.module.parameters(), fresh.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    for ours, theirs in zip(saved.module.parameters(), top.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_embeddings_cross_for_rows_a_party_has_and_no_others(trained):
    fed, network = trained
    counts, batches = make_up([50, 70], 40, 0.25)
    sent = [e for e in fed.ledger if e.kind == "embedding" and e.sender == "telco"]
    assert {entry.shape for entry in sent} == {f"{counts[0]}x4"}
    assert sum(entry.count for entry in sent) == batches
    assert not fed.ledger.kinds() & {"label", "row"}
    # Rows that the telco lacks are predicted without it.
    alone = network.predict(fed, [["bank", 70]])
    assert alone.shape == (70, 2)
    np.testing.assert_allclose(alone.sum(1), 1)


# ------------------------------------------------------------------ views


def test_views_are_dense_where_somebody_is_absent():
    values = {"a": torch.ones(2, 3), "b": torch.full((3, 1), 5.0)}
    at = {"a": torch.tensor([0, 2]), "b": torch.tensor([0, 1, 2])}
    views = Views(3, values, at)
    assert views.dense("a").tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert views.dense("b") is values["b"]
    assert views.mask("a").tolist() == [True, False, True]


def test_specs_survive_the_wire():
    spec = JointSpec((4, 4), (8,), 3, 0, (("fusion", "mean"), ("drop", 0.3)))
    assert JointSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(KeyError):
        JointSpec.from_dict({"widths": [1]})
