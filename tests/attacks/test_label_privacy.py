"""Labels under label_dp, asked for again and again: run after run, by other names and other ways.

The coordinator names runs, seeds and ε, and each of its calls is an honest one. Whatever a run lets
anybody know of labels is made of what the workers of that run see, so the attacker is given just
that, for every run, and guesses each label from all of it. Without any label it would be right half
of the time; one draw with ε makes that e^ε / (e^ε + 1), and more runs must not make it more.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.deploy.party_file import load_party, open_site
from fedmend.errors import PrivacyWarning, Refused
from fedmend.federation import Policy, Site
from fedmend.federation.engines.flare.host import Hello

from .reached import AtHost

ROWS = 2000
LABELS = np.random.default_rng(0).integers(0, 2, ROWS)
METHODS = ("vfl", "risa", "fedavg", "inc")
QUICK: dict[str, Any] = {"epochs": 1, "bottom": (), "embedding": 2, "top": ()}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A party's folder, as over machines; its policy says nothing of labels."""
    frame = pd.DataFrame({"customer": range(ROWS), "x": np.arange(ROWS) * 0.5, "default": LABELS})
    frame.to_csv(tmp_path / "bank.csv", index=False)
    own = 'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n'
    (tmp_path / "party.toml").write_text(own, encoding="utf-8")
    return tmp_path


def opened(kit: Path, run: str, seed: int = 0) -> Site:
    return open_site(load_party(kit), Hello(run, "a study", METHODS, seed, 0.2), kit)


def ask(site: Site, epsilon: float, worker: str = "TopWorker") -> dict[str, float]:
    handle = site.start(worker, "train", {"model": "m"})
    asked = {"epsilon": epsilon, "task": "auto", "folder": None}
    return dict(site.call(handle, "tell_labels", asked))


class Guesses:
    """What is seen of each label, over runs; the majority is the guess."""

    def __init__(self) -> None:
        self.votes = np.zeros(ROWS)
        self.seen = np.zeros(ROWS, int)

    def add(self, site: Site) -> None:
        for dataset in ("train", "test"):
            table = site.table_of(dataset)
            self.votes[table.ids] += np.where(table.y.to_numpy() == 1, 1, -1)
            self.seen[table.ids] += 1

    @property
    def right(self) -> float:
        return float(((self.votes > 0) == (LABELS == 1)).mean())

    @property
    def unanimous(self) -> bool:
        return bool((np.abs(self.votes) == self.seen).all())


def of_one_draw(epsilon: float) -> Any:
    """How often a draw is right, four standard errors to either side."""
    p = math.exp(epsilon) / (math.exp(epsilon) + 1)
    return pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / ROWS))


# ------------------------------------------------------------------ run after run


def test_many_runs_with_one_epsilon_are_one_draw(kit: Path) -> None:
    guesses = Guesses()
    for number in range(8):  # other names and other people set aside each time
        site = opened(kit, f"run{number}", seed=number)
        told = ask(site, 0.5)
        guesses.add(site)
        assert told["spent"] == 0.5
    assert guesses.unanimous and (guesses.seen == 8).all()
    assert guesses.right == of_one_draw(0.5)
    # On the account: all labels once, those set aside in the first run included.
    account = site.labels.records.spendings
    assert sum(each["ids"] for each in account) == ROWS
    assert {each["epsilon"] for each in account} == {0.5}
    assert {each["run"] for each in account} == {"run0"}


def test_another_epsilon_each_time_is_stopped_at_the_ceiling(kit: Path) -> None:
    spent = 0.0
    for number in range(50):
        epsilon = 1.0 + number / 1000
        site = opened(kit, f"run{number}")
        if spent + epsilon > Policy().label_epsilon:
            break
        spent += epsilon
        told = ask(site, epsilon)
        assert told["spent"] == pytest.approx(spent) and told["new"] == pytest.approx(epsilon)
    assert number == 7
    before = (kit / "records" / "labels.json").read_bytes()
    with pytest.raises(Refused, match=rf"ε = {spent:g} so far.*ceiling is 8.*Mend: .*label_eps"):
        ask(site, epsilon)
    assert (kit / "records" / "labels.json").read_bytes() == before
    assert opened(kit, "later").labels.spent("default") == pytest.approx(spent)
    # What has been drawn can still be had, at no cost.
    assert ask(site, 1.0)["new"] == 0.0


def test_a_party_says_the_same_to_whichever_method_asks(kit: Path) -> None:
    guesses = Guesses()
    for number, worker in enumerate(["TopWorker", "EvidenceTopWorker", "BottomWorker"]):
        site = opened(kit, f"run{number}")
        assert ask(site, 1.0, worker)["spent"] == 1.0
        guesses.add(site)
    site = opened(kit, "rounds")
    client = site.start("ClientWorker", "train", {"run": "r"})
    for classes in ([0, 1], [1, 0]):
        asked = {"epsilon": 1.0, "classes": classes, "folder": "elsewhere"}
        assert site.call(client, "tell_labels", asked)["spent"] == 1.0
        guesses.add(site)
    assert guesses.unanimous
    assert guesses.right == of_one_draw(1.0)


# ------------------------------------------------------------------ other ways round


def test_a_later_run_that_asks_for_nothing_sees_the_draws(kit: Path) -> None:
    ask(opened(kit, "first"), 1.0)
    guesses = Guesses()
    guesses.add(opened(kit, "second"))
    assert guesses.right == of_one_draw(1.0)


def test_a_worker_that_was_there_before_sees_no_more_than_others(kit: Path) -> None:
    site = opened(kit, "run")
    handle = site.start("TopWorker", "train", {"model": "m"})
    worker = site._workers[handle]
    assert (worker.table.y.to_numpy() == LABELS[worker.table.ids]).all()
    ask(site, 1.0)
    seen = (worker.table.y.to_numpy() == LABELS[worker.table.ids]).mean()
    assert seen == of_one_draw(1.0)


def test_a_party_may_say_that_labels_are_never_seen_otherwise(kit: Path) -> None:
    text = (kit / "party.toml").read_text(encoding="utf-8")
    (kit / "party.toml").write_text(text + "[policy]\nlabel_dp_only = true\n", encoding="utf-8")
    site = opened(kit, "run")
    table = site.table_of("train")
    assert table.frame["default"].isna().all() and table.take([0, 1]).y.isna().all()
    overview = site.start("OverviewWorker", "train", {})
    with pytest.raises(Refused, match="through randomised response only.*Mend: give the method"):
        site.call(overview, "label_counts", {})
    ask(site, 1.0)
    guesses = Guesses()
    guesses.add(site)
    assert guesses.right == of_one_draw(1.0)
    # From the start of the next run on, though nothing was asked for.
    guesses.add(opened(kit, "next"))
    assert guesses.unanimous


def test_proposing_labels_does_not_show_which_are_right(kit: Path) -> None:
    """If changed labels were drawn anew, an answer that changes would give a wrong guess away."""
    site = opened(kit, "run")
    ask(site, 1.0)
    table, before = site.tables["train"], site.table_of("train").y.tolist()
    for number, guess in enumerate((0, 1)):
        values = table.y.where(table.ids % 2 == 1, guess)
        site.tables[f"proposed{number}"] = table.with_columns({"default": values})
        assert site.table_of(f"proposed{number}").y.tolist() == before
    assert site.labels.spent("default") == 1.0


def test_models_trained_in_one_process_share_the_draws() -> None:
    frame = pd.DataFrame({"a": np.arange(100.0), "y": LABELS[:100]})
    own = fm.Table.from_frame(frame, label="y")
    other = fm.Table.from_frame(pd.DataFrame({"b": np.arange(100.0)}))
    fed = fm.Federation(fm.Party("bank", own), fm.Party("telco", other))
    fm.align(fed)
    site = fed.engine.site("bank")  # type: ignore[attr-defined]
    seen = []
    for method in (fm.VFL, fm.LocalVFL, fm.VFL):
        method(**QUICK, label_dp=1.0).fit(fed)
        seen.append(site.table_of("train").y.tolist())
    assert seen[0] == seen[1] == seen[2] != own.y.tolist()
    with pytest.warns(PrivacyWarning, match="this one learns from the same draws"):
        fm.VFL(**QUICK).fit(fed)
    with pytest.raises(Refused, match="ceiling is 8"):
        fm.VFL(**QUICK, label_dp=7.5).fit(fed)
    assert site.labels.spent("y") == 1.0


# ------------------------------------------------------------------ by messages


def test_the_flare_engines_party_says_the_same_in_every_session(kit: Path) -> None:
    guesses = Guesses()
    for number in range(5):
        party = AtHost(kit, methods=("vfl",), run=f"run{number}")
        top = party.worker("TopWorker", model="m")
        asked = {"epsilon": 0.5, "task": "auto", "folder": None}
        told = top.tell_labels(**asked)
        assert told["spent"] == 0.5 and told["new"] == (0.5 if number == 0 else 0.0)
        guesses.add(party.site)
        with pytest.raises(Refused, match="ceiling is 8"):
            top.tell_labels(**asked | {"epsilon": 7.9})
        party.close()
    assert guesses.unanimous
    assert guesses.right == of_one_draw(0.5)


# ------------------------------------------------------------------ classes that leave labels out


@pytest.mark.parametrize("classes", [[1, 2], [1], ["0", "1"]])
def test_classes_that_leave_labels_out_show_which_these_are(kit: Path, classes: list[Any]) -> None:
    """Of a label of no class nothing is drawn, so that it was missing: the other ones, at any ε."""
    site = opened(kit, "run")
    handle = site.start("ClientWorker", "train", {"run": "r"})
    asked = {"epsilon": 0.01, "classes": classes, "folder": None}
    with pytest.raises(Refused, match="leave some of its labels out"):
        site.call(handle, "tell_labels", asked)
    assert not site.labels.protects("default") and not site.labels.records.spendings
    asked["classes"] = [0, 1, 2]  # those of the other parties beside its own
    assert site.call(handle, "tell_labels", asked)["spent"] == 0.01
    assert site.table_of("train").y.notna().all()
