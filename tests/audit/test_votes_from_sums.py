"""Single votes from sums: opened from the messages, told by name where T is told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.audit import Audit
from fedmend.audit.scene import NotApplicable
from fedmend.audit.tap import rehearsal
from fedmend.audit.votes_from_sums import VotesFromSums
from fedmend.data.table import Table
from fedmend.methods.labellers import Labellers

SKILL = {"bank": 0.9, "telco": 0.75, "shop": 0.6}


def crowd(n: int = 300, missing: float = 0.1) -> fm.Federation:
    """Three labellers of differing skill; the first two have columns."""
    rng = np.random.default_rng(0)
    columns = {"bank": ["a", "b"], "telco": ["c"], "shop": []}
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc"))
    truth = (frame["a"] + frame["c"] > 0).to_numpy()
    parties = []
    for name, skill in SKILL.items():
        said = np.where(rng.random(n) < skill, truth, ~truth)
        votes = pd.Series(np.where(said, "yes", "no"), dtype=object)
        votes[rng.random(n) < missing] = None
        own = frame[columns[name]].assign(said=votes)
        parties.append(fm.Party(name, Table(np.arange(n), own, label="said")))
    fed = fm.Federation(*parties, strict=True)
    fm.align(fed)
    return fed


METHOD = {"epochs": 4, "initial_epochs": 2, "batch_size": 64}


@pytest.fixture(scope="module")
def report():
    return Audit(known_labels=(10,), repeats=2).run(crowd(), fm.InC(**METHOD))


def test_sums_with_told_t_give_every_vote_away(report) -> None:
    found = report.table().query("attack == 'votes from sums'").set_index("from")
    votes, evidence = (found.loc[each] for each in found.index)
    assert votes["score"] < 0.95
    assert votes["guess"] < 0.6
    assert evidence["score"] > 0.99
    assert evidence["gain_low"] > 0.3
    assert any("stand on rows where all 3 parties agree" in fact for fact in report.facts)
    assert any("secure='masks' in place of 'he'" in fact for fact in report.facts)


def test_gradients_are_read_beside_what_a_labeller_knows_itself(report) -> None:
    found = report.table().query("attack == 'labels from gradients'")
    assert set(found["role"]) == {"bank", "telco"}
    assert (found["guess"] > 0.7).all()  # their own votes


def test_the_sums_are_those_the_coordinator_opens() -> None:
    attack = VotesFromSums()
    copy = rehearsal(crowd(80), [attack.hear])
    with Labellers(copy, list(SKILL), secure="masks") as labellers:
        labellers.attach()
        counts = labellers.votes()
        total = attack._last["votes"].total()
    assert (total.reshape(-1, 2) == counts).all()


def test_without_t_only_patterns_are_told() -> None:
    method = fm.InC(**METHOD, share_expertise=False)
    report = Audit(attacks=["votes"]).run(crowd(), method)
    assert [each.from_ for each in report.findings] == ["sums of votes"]
    assert any("told no T" in fact for fact in report.facts)


@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")  # of labels near chance
def test_randomised_response_lowers_it(report) -> None:
    noisy = Audit(attacks=["votes"]).run(crowd(), fm.InC(**METHOD, label_dp=0.5))
    before = report.table().query("attack == 'votes from sums'")["score"].max()
    after = noisy.table()["score"].max()
    # A vote is told as it is with probability .62; decoding cannot know it better than that.
    assert after < before - 0.2


def test_where_nobody_sums_there_is_nothing_to_open(make_scene) -> None:
    with pytest.raises(NotApplicable, match="no votes"):
        VotesFromSums().run(make_scene())
