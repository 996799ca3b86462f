"""Split training between machines is sealed without being asked for, and learns the same."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.errors import ResumeError
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy, Site
from fedmend.federation.randomness import SECRET_FILE, kept_secret
from fedmend.federation.reconcile import reconcile
from fedmend.methods import RISA, VFL

from .conftest import HELLO, TABLES, Wired, party_ledgers

ROWS = 60
QUICK = {"epochs": 3, "bottom": (6,), "top": (6,), "embedding": 3, "batch_size": 16}
NOBODY = np.zeros(0, np.int64)


def tables() -> dict[str, Table]:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(ROWS, 4))
    y = np.where(values.sum(1) > 0, "yes", "no")
    bank = {"a": values[:, 0], "b": values[:, 1], "y": y}
    telco = {"c": values[:, 2], "d": values[:, 3]}
    return {"bank": Table(np.arange(ROWS), bank, label="y"), "telco": Table(np.arange(ROWS), telco)}


def aligned(fed: Federation) -> Federation:
    fed.note_alignment(AlignmentCounts(ROWS, dict.fromkeys(TABLES, 0)))
    return fed


def site(name: str, folder, hello) -> Site:
    """As a party opens it; its policy lets a run be reproducible."""
    made = Site(
        name,
        {"train": tables()[name]},
        policy=Policy(reproducible=True),
        secret=None if hello.reproducible else kept_secret(folder, name, resumed=hello.resumed),
        home=folder,
    )
    made.alignments["train"] = Alignment(np.arange(ROWS), NOBODY)
    return made


class Trained(Wired):
    """Hosts with rows to learn from, and a home for checkpoints."""

    def __init__(self, folder, **options):
        self.homes = folder / "homes"
        super().__init__(folder, **options)
        aligned(self.fed)

    def opener(self, name, policy):
        return lambda hello: site(name, self.homes / name, hello)


@pytest.fixture
def machines(tmp_path):
    made = []

    def start(folder=tmp_path, **how):
        made.append(Trained(folder, hello=replace(HELLO, **how)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def in_one_process(method, **changes):
    fed = Federation(*(Party(name, table) for name, table in tables().items()), strict=True)
    for name in fed.names:
        fed.engine.site(name).alignments["train"] = Alignment(np.arange(ROWS), NOBODY)
    return method(**QUICK | changes).fit(aligned(fed)).predict_proba(fed)


def exchanged(entries):
    return [e for e in entries if e.kind in ("embedding", "gradient") and e.shape]


@pytest.mark.parametrize(("method", "more"), [(VFL, {}), (RISA, {"members": 2})])
def test_sealed_between_machines_to_the_same_bit(machines, method, more):
    wired = machines(reproducible=True)
    model = method(**QUICK | more).fit(wired.fed)
    np.testing.assert_array_equal(model.predict_proba(wired.fed), in_one_process(method, **more))
    crossed = exchanged(wired.ledger.entries())
    assert {each.sealed_for for each in crossed} == {"bank", "telco"}
    for party, entries in party_ledgers(wired.engine).items():
        assert {each.sealed_for for each in exchanged(entries)} == {"bank", "telco"}
        assert reconcile(wired.ledger.entries(), party, entries) == []


def test_open_between_machines_if_asked_for(machines):
    wired = machines()
    VFL(**QUICK, seal=False).fit(wired.fed)
    assert exchanged(wired.ledger.entries())
    assert not any(each.sealed_for for each in exchanged(wired.ledger.entries()))


def test_a_training_does_not_go_on_with_other_rows(machines, tmp_path, monkeypatch):
    """Which a party tells from what it kept: nothing of it crosses."""
    wired = machines()
    VFL(**QUICK).fit(wired.fed, checkpoint=tmp_path / "run")
    earlier = tables()
    frame = earlier["telco"].frame
    frame.loc[0, "c"] += 1
    monkeypatch.setitem(globals(), "tables", lambda: earlier)
    again = machines(resumed=True)
    with pytest.raises(ResumeError, match=r"party 'telco': .*other rows.*Mend"):
        VFL(**QUICK).fit(again.fed, checkpoint=tmp_path / "run", resume=True)


def test_a_party_that_dies_comes_back_with_new_keys(machines, tmp_path):
    """Messages are numbered for each pair; those of the broken session must not be waited for.

    The run goes on to the same bit as one that was not broken, by the secrets the parties kept.
    """
    wired = machines()

    def die(stage, done, total, metrics):
        if done == 2:
            wired.hang_up("telco")

    with pytest.raises(Exception, match="telco"):
        VFL(**QUICK).fit(wired.fed, checkpoint=tmp_path / "run", progress=die)
    for name in TABLES:
        (tmp_path / "whole" / "homes" / name).mkdir(parents=True)
        shutil.copy(wired.homes / name / SECRET_FILE, tmp_path / "whole" / "homes" / name)
    whole = machines(tmp_path / "whole", resumed=True)
    expected = VFL(**QUICK).fit(whole.fed).predict_proba(whole.fed)
    again = machines(resumed=True)
    model = VFL(**QUICK).fit(again.fed, checkpoint=tmp_path / "run", resume=True)
    assert len(model.history_) == 3
    np.testing.assert_array_equal(model.predict_proba(again.fed), expected)
    assert not np.array_equal(expected, in_one_process(VFL))
    assert all(each.sealed_for for each in exchanged(again.ledger.entries()))
