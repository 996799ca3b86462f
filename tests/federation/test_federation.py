"""The call model: parties, workers, groups, policy, concurrency, and a complete ledger."""

from __future__ import annotations

import json
import resource
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmend.data.table import Table
from fedmend.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    PartyFailed,
    Refused,
    WireError,
)
from fedmend.federation import (
    Alignment,
    AlignmentCounts,
    Each,
    Federation,
    Ledger,
    Party,
    Policy,
    Site,
    Worker,
    exposed,
    read_ledger,
    wire,
)
from fedmend.federation.ledger import inspect_ledger
from fedmend.federation.wire import Measure


class TallyWorker(Worker):
    """Every kind of exposed method a test needs."""

    def __init__(self, site: Site, scope: str = "train", *, start: float = 0.0) -> None:
        super().__init__(site, scope)
        self.total = start
        self.made_rows = False

    @exposed(kind="statistic")
    def total_of(self, column: str) -> float:
        return float(self.column(column).sum())

    @exposed(kind="count", takes={"vector": "masked"})
    def add(self, vector: np.ndarray, times: int = 1) -> float:
        self.total += float(vector.sum()) * times
        return self.total

    @exposed(kind="row")
    def rows(self) -> np.ndarray:
        self.made_rows = True
        return self.table.frame["x"].to_numpy()

    @exposed(kind="control")
    def were_rows_made(self) -> bool:
        return self.made_rows

    @exposed(kind="embedding")
    def leaky(self) -> torch.Tensor:
        return torch.ones(2, requires_grad=True)

    @exposed(kind="control")
    def fail(self, how: str) -> None:
        if how == "data":
            raise DataError("too short", column="x", mend="more rows")
        raise ValueError("bad luck")

    @exposed(kind="control")
    def wait(self, barrier_name: str) -> None:
        BARRIERS[barrier_name].wait(timeout=5)

    def hidden(self) -> int:
        return 1


BARRIERS: dict[str, threading.Barrier] = {}


def test_one_party_and_all_parties(fed: Federation) -> None:
    workers = fed.workers(TallyWorker, start=Each({"bank": 1.0, "telco": 2.0}))
    assert workers["bank"].total_of("x") == 15.0
    assert workers.total_of("x") == {"bank": 15.0, "telco": 75.0}
    vectors = Each({"bank": np.ones(2), "telco": np.full(3, 2.0)})
    assert workers.add(vectors, times=10) == {"bank": 21.0, "telco": 62.0}
    assert list(workers) == ["bank", "telco"]
    assert len(workers) == 2


def test_the_ledger_counts_every_crossing(fed: Federation) -> None:
    workers = fed.workers(TallyWorker)  # 2 starts: 4 crossings
    for _ in range(7):
        workers["bank"].total_of("x")  # 2 each: 14
    workers.add(np.ones(3))  # 2 parties: 4
    workers["telco"].add(np.ones(3), times=2)  # a masked and a control message, a reply: 3
    assert len(fed.ledger) == 4 + 14 + 4 + 3
    assert "<td>telco</td><td>coordinator</td><td>count</td><td>2</td>" in fed.ledger._repr_html_()
    sent = [entry for entry in fed.ledger if entry.call == "TallyWorker.add"]
    assert {(e.sender, e.receiver, e.kind) for e in sent} == {
        ("coordinator", "bank", "masked"),
        ("coordinator", "telco", "masked"),
        ("coordinator", "telco", "control"),
        ("bank", "coordinator", "count"),
        ("telco", "coordinator", "count"),
    }
    masked = next(e for e in sent if e.kind == "masked")
    assert (masked.shape, masked.dtype) == ("3", "float64")
    assert masked.bytes == len(wire.encode({"vector": np.ones(3)}))


def test_both_ways_of_passing_values_write_the_same_ledger() -> None:
    def crossings(strict: bool) -> list[tuple[object, ...]]:
        fed = Federation(Party("a", Table([1, 2], {"x": [1.0, 2.0]})), strict=strict)
        with fed.workers(TallyWorker, start=3.0) as workers:
            workers.add(np.ones(4), times=2)
            workers.total_of("x")
        # In no order: a window of the ledger may end in between.
        facts = ((e.sender, e.receiver, e.call, e.kind, e.shape, e.bytes) for e in fed.ledger)
        return sorted(facts)

    assert crossings(strict=False) == crossings(strict=True)


def test_strict_hands_over_copies_and_by_reference_does_not(fed: Federation) -> None:
    workers = fed.workers(TallyWorker, parties=["telco"])
    policy = Policy(allow=frozenset({"row", "control"}))
    fed.engine.site("telco").policy = policy
    rows = workers["telco"].rows()
    own = fed.engine.site("telco").tables["train"].frame["x"].to_numpy()
    assert np.shares_memory(rows, own) is not fed.engine.strict


def test_a_refused_kind_is_refused_before_it_exists(fed: Federation) -> None:
    workers = fed.workers(TallyWorker)
    with pytest.raises(Refused, match=r"'bank'.*'row'.*Mend: allow 'row'"):
        workers["bank"].rows()
    assert workers["bank"].were_rows_made() is False
    refusal = next(entry for entry in fed.ledger if entry.note == "refused")
    assert (refusal.sender, refusal.kind, refusal.dtype) == ("bank", "row", "text")
    assert 100 < refusal.bytes < 400  # the words of the refusal


def test_a_policy_names_the_workers_it_admits() -> None:
    table = Table([1], {"x": [1.0]})
    fed = Federation(Party("a", table, policy=Policy(workers=frozenset({"OtherWorker"}))))
    with pytest.raises(Refused, match="TallyWorker is not on its list"):
        fed.workers(TallyWorker)


def test_policy_problems_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(allow=frozenset({"rows"}), refuse=frozenset({"lable"}), min_intersection=0)
    assert len(caught.value.problems) == 3
    assert any("'row'" in problem for problem in caught.value.problems)
    assert Policy(refuse="embedding").may_leave.isdisjoint({"embedding", "row", "label"})
    for least in (0, -3, "5", 2.5, None):
        with pytest.raises(ConfigError, match="min_intersection must be a whole number from 1 on"):
            Policy(min_intersection=least)  # type: ignore[arg-type]


def test_only_exposed_methods_can_be_called(fed: Federation) -> None:
    workers = fed.workers(TallyWorker)
    with pytest.raises(AttributeError, match="exposes no 'hidden'"):
        workers["bank"].hidden()
    site = fed.engine.site("bank")
    for method in ("hidden", "__init__", "nothing"):
        with pytest.raises(Refused, match="not exposed"):
            site.call("TallyWorker#1", method, {})
    with pytest.raises(Refused, match="no worker 'TallyWorker#9' runs here"):
        site.call("TallyWorker#9", "total_of", {"column": "x"})
    with pytest.raises(Refused, match="no worker 'Ghost' is installed"):
        site.start("Ghost", "train", {})


@pytest.mark.parametrize(
    ("args", "kwargs", "word"),
    [
        ((), {}, "TallyWorker.add: missing a required argument: 'vector'.*it takes vector, times"),
        ((np.ones(1), 1, 2), {}, "too many positional arguments"),
        ((np.ones(1),), {"tims": 2}, "unexpected keyword argument 'tims'"),
        ((np.ones(1),), {"vector": np.ones(1)}, "multiple values for argument 'vector'"),
    ],
)
def test_wrong_calls_are_refused_before_anything_crosses(
    fed: Federation, args: tuple[object, ...], kwargs: dict[str, object], word: str
) -> None:
    workers = fed.workers(TallyWorker)
    before = len(fed.ledger)
    with pytest.raises(WireError, match=word):
        workers["bank"].add(*args, **kwargs)
    assert len(fed.ledger) == before


def test_what_goes_by_name_only_does_not_go_by_place() -> None:
    class NamedWorker(Worker):
        @exposed(kind="control")
        def told(self, first: int, *, second: int = 2) -> None:
            """Nothing."""

    exposure = NamedWorker.exposures["told"]
    del Worker._registry["NamedWorker"]
    assert exposure.bind("told", (1,), {"second": 3}) == {"first": 1, "second": 3}
    with pytest.raises(WireError, match="too many positional arguments"):
        exposure.bind("told", (1, 3), {})


def test_a_tensor_with_a_graph_never_leaves(fed: Federation) -> None:
    with pytest.raises(WireError, match="detach"):
        fed.workers(TallyWorker)["bank"].leaky()


def test_errors_name_the_party(fed: Federation) -> None:
    workers = fed.workers(TallyWorker)
    with pytest.raises(
        PartyFailed, match=r"'telco' failed in TallyWorker.fail: ValueError: bad luck"
    ):
        workers["telco"].fail("value")
    with pytest.raises(DataError, match=r"party 'telco', column 'x': too short. Mend: more rows"):
        workers["telco"].fail("data")
    with pytest.raises(DataError, match=r"party 'bank', column 'q'.*name one of x, z, y"):
        workers["bank"].total_of("q")
    with pytest.raises(PartyFailed, match=r"TallyWorker.start: TypeError"):
        fed.workers(TallyWorker, strat=1.0)
    with pytest.raises(PartyFailed, match="'bank'") as caught:
        workers.fail("value")
    assert any("'telco'" in note for note in caught.value.__notes__)


def test_calls_to_several_parties_run_at_the_same_time(fed: Federation) -> None:
    # Neither call returns unless both are in it at once.
    BARRIERS["both"] = threading.Barrier(2)
    fed.workers(TallyWorker).wait("both")


class ThreadWorker(Worker):
    parallel_inside = True

    @exposed(kind="control")
    def thread(self) -> int:
        return threading.get_ident()


def test_workers_that_use_all_cores_take_turns(fed: Federation) -> None:
    assert set(fed.workers(ThreadWorker).thread().values()) == {threading.get_ident()}


def test_views_share_parties_and_ledger_but_not_rows(fed: Federation) -> None:
    test = fed.on("test")
    assert test.ledger is fed.ledger
    assert test.workers(TallyWorker, parties=["telco"])["telco"].total_of("x") == 135.0
    with pytest.raises(DataError, match=r"'bank': there is no table 'test'"):
        test.workers(TallyWorker, parties=["bank"])["bank"].total_of("x")
    alone = fed.only("telco")
    assert alone.names == ("telco",)
    assert alone.workers(TallyWorker).total_of("x") == {"telco": 75.0}
    with pytest.raises(ConfigError, match="no party 'shop'"):
        fed.only("shop")


def test_alignment_is_per_view(fed: Federation) -> None:
    with pytest.raises(AlignmentError, match=r"not aligned yet.*call fm.align\(fed\) first"):
        _ = fed.alignment
    with pytest.raises(AlignmentError, match=r"call fm.align\(fed.on\('test'\)\) first"):
        _ = fed.on("test").alignment
    fed.note_alignment(AlignmentCounts(4, {"bank": 2, "telco": 2}))
    fed.engine.site("bank").alignments["train"] = Alignment(np.arange(4), np.arange(4, 6))
    assert fed.is_aligned
    assert fed.alignment.aligned == 4
    assert not fed.on("test").is_aligned
    assert not fed.only("bank").is_aligned
    site = fed.engine.site("telco")
    with pytest.raises(AlignmentError, match=r"'telco'.*not aligned"):
        _ = TallyWorker(site).alignment


def test_who_labels(fed: Federation) -> None:
    assert fed.label_party == "bank"
    assert fed.roster == {
        "bank": {"rows": 6, "features": 2, "blocks": 0, "labelled": True},
        "telco": {"rows": 6, "features": 2, "blocks": 0, "labelled": False},
    }
    table = Table([1, 2], {"x": [1.0, 2.0], "y": [0, 1]})
    with pytest.raises(DataError, match="no party has a label"):
        _ = Federation(Party("a", table)).label_party
    both = Federation(Party("a", table.with_label("y")), Party("b", table.with_label("y")))
    with pytest.raises(DataError, match="several parties have labels: a, b"):
        _ = both.label_party


def test_bad_federations() -> None:
    table = Table([1], {"x": [1.0]})
    with pytest.raises(ConfigError, match="two parties are named 'a'"):
        Federation(Party("a", table), Party("a", table))
    with pytest.raises(ConfigError, match="needs a party"):
        Federation()
    with pytest.raises(ConfigError, match=r"not of a list. Mend: Federation\(Party") as found:
        Federation([Party("a", table)], seed="1", device="tpu")  # type: ignore[arg-type]
    assert len(found.value.problems) == 3
    assert Federation(Party("a", table), seed=np.int64(3), device="auto").seed == 3
    for seed in (-1, np.int64(-1), 0.5, True, None):
        with pytest.raises(ConfigError, match="seed must be a whole number from 0 on"):
            Federation(Party("a", table), seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nobody is named. Mend: name some of a"):
        Federation(Party("a", table)).only()
    for name in ("coordinator", "", "../up", "a b", "a/b", table):
        with pytest.raises(ConfigError, match="cannot be a party's name"):
            Party(name, table)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"'a': train is a dict, not a Table"):
        Party("a", {"x": 1})
    with pytest.raises(ConfigError, match="no value for party 'b'"):
        Federation(Party("a", table), Party("b", table)).workers(
            TallyWorker, start=Each({"a": 1.0})
        )


def test_wrong_declarations_are_caught_where_they_are_written() -> None:
    with pytest.raises(ConfigError, match=r"unknown kind 'rows'.*Did you mean 'row'"):
        exposed(kind="rows")
    with pytest.raises(ConfigError, match="no parameter 'other'"):

        @exposed(kind="row", takes={"other": "row"})
        def method(self: object, one: int) -> None: ...

    with pytest.raises(ConfigError, match=r"'TallyWorker' is already defined in"):
        type("TallyWorker", (Worker,), {"__module__": "elsewhere"})
    with pytest.raises(ConfigError, match="cannot be exposed"):

        @exposed(kind="control")
        def stop(self: object) -> None: ...


def test_randomness_is_split_by_run_party_and_purpose() -> None:
    def draw(seed: int, name: str, purpose: str) -> tuple[float, float]:
        site = Site(name, {}, seed=seed)
        generator = site.torch_generator(purpose)
        return site.rng(purpose).random(), torch.rand(1, generator=generator).item()

    assert draw(0, "a", "p") == draw(0, "a", "p")
    others = {draw(0, "a", "p"), draw(1, "a", "p"), draw(0, "b", "p"), draw(0, "a", "q")}
    assert len({x for x, _ in others}) == len({t for _, t in others}) == 4


def test_a_site_with_a_home_follows_no_foreign_path(tmp_path: Path) -> None:
    site = Site("a", {}, home=tmp_path)
    assert site.folder("/etc/model") == tmp_path / "model"
    assert site.folder("../../model") == tmp_path / "model"
    with pytest.raises(ConfigError, match="no name for a saved model"):
        site.folder("..")
    assert Site("a", {}).folder("model") == Path("model/a")


def test_the_ledger_file_is_complete_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    table = Table([1, 2], {"x": [1.0, 2.0]})
    with Federation(Party("a", table), ledger=path) as fed:
        workers = fed.workers(TallyWorker)
        for _ in range(100):
            workers["a"].were_rows_made()
        workers["a"].total_of("x")
        assert "statistic" in {entry.kind for entry in read_ledger(path)}  # on disk at once
    written = read_ledger(path)
    assert written == fed.ledger.entries()
    assert sum(entry.count for entry in written) == 2 + 200 + 2
    assert len(written) < 20


def test_lines_of_the_ledger_are_what_json_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    odd = 'Zoë "the\\bank"\n\u2028\x00 %s {}'
    with closing(Ledger(path)) as ledger:
        ledger.record(odd, "b", odd, "statistic", wire.Measure("3", "int64", 44, ""), note=odd)
        ledger.record("a", "b", "c", "statistic", wire.Measure("", "", 0, odd), "", 7, "label")
    for number, (line, entry) in enumerate(
        zip(path.read_text().splitlines(), ledger.entries(), strict=True), 1
    ):
        assert line.startswith(json.dumps({"number": number} | asdict(entry))[:-1] + ', "hash": "')
    assert read_ledger(path) == ledger.entries()


def test_a_damaged_ledger_is_named_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.record("a", "b", "W.m", "count", wire.measure(3))
    ledger.close()
    path.write_text(path.read_text() + '{"number": 2, "time": 1')
    with pytest.raises(DataError, match="line 2: was cut off while it was written"):
        read_ledger(path)
    with pytest.raises(DataError, match="no ledger"):
        read_ledger(tmp_path / "none.jsonl")
    # Whoever goes on after a killed process drops what it began, and says so in the chain.
    again = Ledger(path)
    again.record("b", "a", "W.m", "count", wire.measure(4))
    again.close()
    first, cut, last = read_ledger(path)
    assert (cut.note, cut.bytes, cut.is_crossing) == ("cut", len('{"number": 2, "time": 1'), False)
    assert (first.sender, last.sender) == ("a", "b")


@pytest.mark.parametrize("scope", ["train@/../../up", "train@..\\up", "train@a\0b", "/etc/passwd"])
def test_the_name_of_rows_cannot_name_a_place(scope: str) -> None:
    fed = Federation(Party("a", Table([1], {"x": [1.0]})))
    with pytest.raises(Refused, match="is no name for rows"):
        fed.engine.start("a", "TallyWorker", scope, {})
    assert [entry.note for entry in fed.ledger].count("refused") == 1


def test_a_disk_that_was_full_for_a_while_costs_the_ledger_no_line(tmp_path):
    """What a service asks meanwhile fails; what it asks afterwards goes on a whole chain."""
    words = Measure("3", "int64", 44, "")
    ledger, path = Ledger(tmp_path / "ledger.jsonl"), tmp_path / "ledger.jsonl"
    ledger.record("bank", "coordinator", "Rank.sums", "statistic", words)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        for _ in range(60):
            with pytest.raises(OSError, match="File too large"):
                ledger.record("bank", "coordinator", "Rank.sums", "statistic", words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    ledger.record("telco", "coordinator", "Rank.sums", "statistic", words)
    ledger.close()
    chain = inspect_ledger(path)
    assert not chain.flaws and chain.head == ledger.head()
    assert [each.sender for each in chain.entries] == ["bank", "bank", "telco"]
