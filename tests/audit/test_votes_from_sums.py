"""Single votes from sums: opened from the messages, told by name where T is told."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedmend as fm
from fedmend.audit import Audit
from fedmend.audit.context import NotApplicable
from fedmend.audit.recorder import Observations, rehearsal
from fedmend.audit.votes_from_sums import VotesFromSums, _Round
from fedmend.data.table import Table
from fedmend.methods.annotators.estimator import Annotators
from fedmend.methods.annotators.worker import EvidenceForm
from fedmend.secure.sums import SumForm, ring_of

SKILL = {"bank": 0.9, "telco": 0.75, "shop": 0.6}


def crowd(n: int = 300, missing: float = 0.1) -> fm.Federation:
    """Three annotators of differing skill; the first two have columns."""
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


def tables(fed: fm.Federation) -> dict[str, Table]:
    return {name: fed.engine.site(name).tables["train"] for name in fed.names}


METHOD = {"epochs": 4, "initial_epochs": 2, "batch_size": 64, "secure": "he"}


@pytest.fixture(scope="module")
def report():
    return Audit(known_labels=(10,), repeats=2).run(crowd(), fm.InC(**METHOD))


def test_sums_with_told_t_give_every_vote_away(report):
    found = report.table().query("attack == 'votes from sums'").set_index("from")
    votes, evidence = (found.loc[each] for each in found.index)
    assert votes["score"] < 0.95
    assert votes["guess"] < 0.6
    assert evidence["score"] > 0.99
    assert evidence["gain_low"] > 0.3
    (told,) = (fact for fact in report.facts if "where all 3 parties agree" in fact)
    said = pd.DataFrame({name: table.y for name, table in tables(crowd()).items()})
    agreed = said.notna().all(axis=1) & (said.nunique(axis=1) == 1)
    assert f"{3 * agreed.sum() / said.notna().sum().sum():.1%} of the" in told
    assert any("secure='masks' in place of 'he'" in fact for fact in report.facts)


def test_gradients_are_read_beside_what_a_annotator_knows_itself(report):
    found = report.table().query("attack == 'labels from gradients'")
    assert set(found["role"]) == {"bank", "telco"}
    assert (found["guess"] > 0.7).all()  # their own votes


def test_the_sums_are_those_the_coordinator_opens():
    attack = VotesFromSums(Observations("train", 0, 1))
    copy = rehearsal(crowd(80), [attack.hear])
    with Annotators(copy, list(SKILL), secure="masks") as annotators:
        annotators.attach()
        for _ in range(3):
            counts = annotators.votes()
        total = attack._last["votes"].total()
    assert (total.reshape(-1, 2) == counts).all()
    assert len(attack._rounds) == 1  # sums that others came after are not kept


def test_shifted_summands_are_shifted_back():
    form = SumForm(-3, 4)
    summands = {"a": np.array([-3, 4, 0]), "b": np.array([-2, -3, 1])}
    ring = ring_of(form, 2)
    messages = {name: (values + 3).astype(ring) for name, values in summands.items()}
    opened = _Round("some", form, ("a", "b"), messages)
    assert opened.total().tolist() == [-5, 1, 1]
    del messages["b"]
    assert opened.total() is None


@pytest.fixture
def heard(make_context):
    """Two annotators of whose evidence nothing follows, so that the counts must tell."""
    attack, context = VotesFromSums(Observations("train", 0, 1)), make_context(n=30)
    context.model = fm.InC()
    attack.expertise = {name: np.full((2, 2), 0.5) for name in ("bank", "telco")}
    counts = np.array([[2, 0], [0, 2], [1, 1], [0, 0]])
    one = EvidenceForm.of("product", 2).encode(np.log([0.5]))[0].astype(np.int64)
    none = EvidenceForm.of("product", 2).encode(np.zeros(1))[0].astype(np.int64)
    given = counts.sum(1, keepdims=True)
    evidence = np.repeat(given * one + (2 - given) * none, 2, 1)
    attack._last["evidence"] = SimpleNamespace(total=lambda: evidence.ravel())
    return attack, context, counts


def test_only_patterns_of_the_counts_are_thought_of(heard):
    attack, context, counts = heard
    found = attack._patterns(context, ["bank", "telco"], counts)
    assert [sorted(row) for row in found.tolist()] == [[0, 0], [1, 1], [0, 1], [-1, -1]]


def test_one_t_too_few_is_enough_to_know_nobody_by_name(heard):
    attack, context, counts = heard
    del attack.expertise["telco"]
    assert attack._patterns(context, ["bank", "telco"], counts) is None
    assert context.facts[0].startswith("telco told no T")
    with pytest.raises(NotApplicable, match="no votes"):
        VotesFromSums(Observations("train", 0, 1)).run(context)


@pytest.mark.slow
def test_without_t_only_patterns_are_told():
    method = fm.InC(**METHOD, share_expertise=False)
    report = Audit(attacks=["votes"]).run(crowd(), method)
    assert [each.from_ for each in report.findings] == ["sums of votes"]
    assert any("told no T" in fact for fact in report.facts)


@pytest.mark.slow
@pytest.mark.usefixtures("steady_draws")
@pytest.mark.filterwarnings("ignore::fedmend.errors.FedmendWarning")  # of labels near chance
def test_randomised_response_lowers_it(report):
    noisy = Audit(attacks=["votes"]).run(crowd(), fm.InC(**METHOD, label_dp=0.5))
    before = report.table().query("attack == 'votes from sums'")["score"].max()
    after = noisy.table()["score"].max()
    # A vote is told as it is with probability .62; decoding cannot know it better than that.
    assert after < before - 0.2
