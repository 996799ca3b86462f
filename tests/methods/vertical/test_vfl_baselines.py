"""Random match, SimCLR + VFL, SFHTL, FedCVT, few-shot VFL and absent partners as estimators."""

from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, Refused
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy
from fedmend.learn.nets import Batch
from fedmend.methods.network import SplitEstimator
from fedmend.methods.vertical.absent_partner import AbsentPartner
from fedmend.methods.vertical.fedcvt import FedCVT
from fedmend.methods.vertical.few_shot import FewShotVFL, HeadWorker, LocalLearner, LocalWorker
from fedmend.methods.vertical.sfhtl import SFHTL
from fedmend.methods.vertical.ssl_vfl import SSLVFL
from fedmend.methods.vertical.vfl import VFL, LocalVFL, RandomMatch, drawn
from fedmend.split.parts import part_of
from fedmend_bench.risa.data import load_sides, tear

QUICK: dict[str, Any] = {
    "epochs": 8, "batch_size": 32, "lr": 5e-3, "bottom": (16,), "top": (16,), "embedding": 8,
}  # fmt: skip
MORE: dict[type[SplitEstimator], dict[str, Any]] = {
    RandomMatch: {},
    SSLVFL: {"pretrain_epochs": 2, "pretrain_batch": 64},
    SFHTL: {"pretrain_epochs": 2},
    FedCVT: {},
    FewShotVFL: {"local_updates": 60},
    AbsentPartner: {},
}
ALL = list(MORE)
ONE_PARTY = [SFHTL, FedCVT, AbsentPartner]
LABEL_ROWS = [RandomMatch, *ONE_PARTY]
CLASSES_ONLY = [SFHTL, FedCVT, FewShotVFL]
all_methods = pytest.mark.parametrize("method", ALL)


def torn(n=260, aligned=100, test=120, seed=0, task="binary", **options):
    """Two parties that see the same hidden thing; each has rows the other has not."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=n + test)
    a = pd.DataFrame(
        {"a": hidden + 0.5 * rng.normal(size=n + test), "b": rng.normal(size=n + test)}
    )
    b = pd.DataFrame({"c": hidden + 0.5 * rng.normal(size=n + test)})
    b["city"] = np.where(hidden + 0.5 * rng.normal(size=n + test) > 0, "Ulm", "Bonn")
    if task == "regression":
        a["y"] = 5 + 2 * hidden
    elif task == "multiclass":
        a["y"] = np.array(["low", "mid", "high"])[np.digitize(hidden, [-0.4, 0.4])]
    else:
        a["y"] = np.where(hidden > 0, "yes", "no")
    half = (n - aligned) // 2
    rows = {
        "bank": np.arange(aligned + half),
        "telco": np.r_[np.arange(aligned), np.arange(aligned + half, n)],
    }
    late = np.arange(n, n + test)
    frames = {"bank": a, "telco": b}
    policies = {name: options.pop(f"policy_{name}", None) for name in frames}
    parties = []
    for name, frame in frames.items():
        new = {scope: table_of(frame, late) for scope in ("test", "alone")}
        parties.append(Party(name, table_of(frame, rows[name]), **new, policy=policies[name]))
    fed = Federation(*parties, strict=True, seed=seed, **options)
    for scope, known in (("train", aligned), ("test", test), ("alone", 0)):
        unaligned = {}
        for name in frames:
            positions = np.arange(len(rows[name]) if scope == "train" else test)
            split = Alignment(positions[:known], positions[known:])
            fed.engine.site(name).alignments[scope] = split
            unaligned[name] = len(split.unaligned)
        fed.on(scope).note_alignment(AlignmentCounts(known, unaligned))
    return fed


def table_of(frame: pd.DataFrame, rows: np.ndarray) -> Table:
    label = "y" if "y" in frame else None
    return Table(rows, frame.iloc[rows].reset_index(drop=True), label=label)


def make(method: type[SplitEstimator], **changes: Any) -> SplitEstimator:
    return method(**QUICK | MORE[method] | changes)


@pytest.fixture(scope="module")
def fitted():
    found = {}
    for method in ALL:
        fed = torn()
        once = {} if method is FewShotVFL else {"refit": False}
        found[method] = (make(method, epochs=6, patience=6, lr=1.2e-2, **once).fit(fed), fed)
    return found


# ------------------------------------------------------------------ behind one face


@all_methods
def test_they_learn_predict_and_nothing_but_the_usual_crosses(method, fitted):
    model, fed = fitted[method]
    test = fed.on("test")
    probabilities = model.predict_proba(test)
    assert probabilities.shape == (120, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert set(model.predict(test)) <= {"yes", "no"}
    assert model.score(test) > 0.78
    assert model.evaluate(test)["auc"] > 0.85
    told = {"control", "count", "statistic", "embedding"}
    assert fed.ledger.kinds(sender="telco") <= told
    assert fed.ledger.kinds() <= told | {"gradient", "prediction"}


@pytest.mark.parametrize("method", LABEL_ROWS)
def test_the_label_partys_own_rows(method, fitted):
    model, fed = fitted[method]
    alone = fed.on("alone")
    assert model.predict(alone, rows="all").shape == (120,)
    assert model.score(alone, rows="all") > 0.7
    whole = model.predict_proba(fed, rows="all")
    assert whole.shape == (180, 2)


@pytest.mark.parametrize("method", ONE_PARTY)
def test_rows_only_the_partner_has(method, fitted):
    model, fed = fitted[method]
    truth = fed.engine.site("bank").table_of("alone").y.to_numpy()
    guess = model.predict(fed.on("alone"), rows="telco")
    assert (guess == truth).mean() > 0.7
    with pytest.raises(DataError, match=r"'telco'.*no labels.*Mend: predict them"):
        model.evaluate(fed, rows="telco")


@pytest.mark.parametrize("method", [SSLVFL, FewShotVFL])
def test_methods_of_aligned_rows_guess_the_absent_side(method, fitted):
    model, fed = fitted[method]
    whole = model.predict_proba(fed, rows="all")
    assert len(whole) == len(fed.engine.site("bank").tables["train"])
    np.testing.assert_allclose(whole.sum(1), 1, atol=1e-5)
    with pytest.raises(ConfigError, match=r"aligned, all, bank, telco, got rows='some'"):
        model.predict(fed, rows="some")


@all_methods
def test_save_and_load(method, fitted, tmp_path):
    model, fed = fitted[method]
    model.save(tmp_path / "model")
    fresh = torn()
    loaded = method.load(tmp_path / "model", fresh)
    assert loaded.get_params() == model.get_params()
    for rows in ("aligned", *(["telco"] if method in ONE_PARTY else [])):
        np.testing.assert_allclose(
            loaded.predict_proba(fresh, rows=rows), model.predict_proba(fed, rows=rows), atol=1e-6
        )


@pytest.mark.daily("SSLVFL")
@pytest.mark.parametrize("method", [SSLVFL, FewShotVFL])
def test_the_same_seed_gives_the_same_model_and_progress_is_told(method):
    first, second = torn(), torn()
    told: list[tuple[str, int, int]] = []
    one = make(method, epochs=2).fit(
        first, progress=lambda stage, done, total, _: told.append((stage, done, total))
    )
    assert ("train", 2, 2) in told
    assert all(done <= total for _, done, total in told)
    other = make(method, epochs=2).fit(second)
    np.testing.assert_array_equal(one.predict_proba(first), other.predict_proba(second))


def test_several_classes():
    fed = torn(task="multiclass")
    model = make(SFHTL, epochs=12, lr=1e-2, refit=False).fit(fed)
    assert list(model.classes_) == ["high", "low", "mid"]
    assert model.score(fed.on("test")) > 0.5


def test_numbers():
    fed = torn(task="regression")
    model = make(AbsentPartner, epochs=20, lr=1e-2, refit=False).fit(fed)
    assert model.score(fed.on("test")) > 0.6


@pytest.mark.parametrize("method", CLASSES_ONLY)
def test_methods_for_classes_say_so_before_anybody_trains(method):
    fed = torn(task="regression")
    with pytest.raises((ConfigError, DataError), match=r"Mend: "):
        make(method).fit(fed)
    assert not {entry.kind for entry in fed.ledger} & {"embedding", "gradient"}


@pytest.mark.parametrize(
    ("method", "columns", "message"),
    [
        (FedCVT, {}, r"two parties.*bank, telco, shop.*Mend: fed\.only"),
        (SFHTL, {"columns": {"bank": ["a", "b", "y"]}}, r"only party with features.*Mend: Local"),
    ],
)
def test_too_many_or_too_few_parties_are_named(make_fed, method, columns, message):
    with pytest.raises((ConfigError, DataError), match=message):
        make(method).fit(make_fed(**columns))


@pytest.mark.parametrize("method", [FedCVT, FewShotVFL])
def test_a_partner_may_refuse_embeddings(method):
    fed = torn(policy_telco=Policy(refuse=frozenset({"embedding"})))
    with pytest.raises(Refused, match=r"'telco' refused.*'embedding'"):
        make(method).fit(fed)
    assert "embedding" not in {e.kind for e in fed.ledger if e.sender == "telco" and not e.note}


@pytest.mark.daily("SSLVFL")
@pytest.mark.parametrize("method", [SSLVFL, FedCVT])
def test_a_stopped_training_goes_on(method, tmp_path):
    class Killed(Exception):
        pass

    def kill(stage: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if stage == "train" and done == 3:
            raise Killed

    fed = torn()
    undisturbed = make(method, epochs=4).fit(fed).predict_proba(fed)
    other = torn()
    with pytest.raises(Killed):
        make(method, epochs=4).fit(other, checkpoint=tmp_path, progress=kill)
    resumed = make(method, epochs=4).fit(other, checkpoint=tmp_path, resume=True)
    np.testing.assert_allclose(resumed.predict_proba(other), undisturbed, atol=1e-6)


# ------------------------------------------------------------------ each on its own


def test_a_stranger_never_comes_from_the_aligned_rows():
    fed = torn()
    strangers = np.bincount(drawn(np.array([5, 7, 9]), 8, np.random.default_rng(0)))[[5, 7, 9]]
    assert strangers.sum() == 8 and np.ptp(strangers) <= 1  # evenly
    model = make(RandomMatch, epochs=1).fit(fed)
    worker = model.network_.bottom_worker(fed.engine.site("telco"), "train", model="x")
    rows = worker._rows([["aligned", 100], ["bank", 80]])
    unaligned = fed.engine.site("telco").alignments["train"].unaligned
    assert set(rows[100:]) <= set(unaligned)
    assert rows[:100].tolist() == list(range(100))


def test_few_shot_sends_embeddings_up_a_few_times():
    fed = torn()
    make(FewShotVFL, rounds=2, local_updates=20).fit(fed)
    up = [e for e in fed.ledger if e.kind == "embedding" and e.sender == "telco"]
    down = [e for e in fed.ledger if e.kind == "gradient" and e.receiver == "telco"]
    # once a round and at the end; and held-out rows, known to all or not, to calibrate by
    assert sum(entry.count for entry in up) == 3 + 2
    assert sum(entry.count for entry in down) == 2
    vfl = torn()
    VFL(**QUICK).fit(vfl)
    steps = sum(e.count for e in vfl.ledger if e.kind == "embedding" and e.sender == "telco")
    assert steps > 10


def test_clusters_of_gradients_are_the_classes():
    """What one-shot VFL rests on: gradients of a classifier tell the classes apart."""
    fed = torn(task="multiclass")
    model = make(FewShotVFL, rounds=1, local_updates=1, epochs=20).fit(fed)
    network = model.network_
    with network.session([["aligned", 100]]) as session:
        session.top.hold(session.bottoms.embed(session.all_rows))
        gradient = session.top.feature_gradients()["telco"]
    site = fed.engine.site("telco")
    worker = LocalWorker(site, "train", model=network.model)
    rows, clusters = worker._clustered(gradient, np.arange(100), 3, seed=0)
    truth = fed.engine.site("bank").table_of("train").y.to_numpy()[:100]
    assert rows.tolist() == list(range(100))
    assert adjusted_rand_score(truth, clusters) > 0.8


def test_rows_without_a_label_are_no_labelled_rows_of_the_partners(monkeypatch):
    """They were taken for rows of the first class, and their gradients clustered as such."""
    fed = torn()
    bank = fed.engine.site("bank")
    table = bank.tables["train"]
    told = table.frame.assign(y=table.y.astype(object))
    told.loc[20:99, "y"] = None
    bank.tables["train"] = Table(table.ids, told, label="y")
    gradients, learnt = [], []
    hand_out, start = HeadWorker.feature_gradients, LocalLearner.start
    monkeypatch.setattr(
        HeadWorker,
        "feature_gradients",
        wraps(hand_out)(lambda self: gradients.append(hand_out(self)) or gradients[-1]),
    )
    monkeypatch.setattr(
        LocalLearner, "start", lambda self, *given: learnt.append(given) or start(self, *given)
    )
    make(FewShotVFL, rounds=1, local_updates=2, epochs=1).fit(fed)
    assert gradients[0]["telco"][:20].abs().sum(1).min() > 0
    assert not gradients[0]["telco"][20:].any()
    (own, classes, others) = next(given for given in learnt if len(given[2]) == 160)
    assert own.tolist() == list(range(20))
    assert len(classes) == 20
    assert set(others) == set(range(20, 180))


def test_sfhtl_estimates_what_the_partner_would_say(fitted):
    model, fed = fitted[SFHTL]
    site = fed.engine.site("bank")
    top = part_of(site, model.network_.model).top
    assert top is not None
    with model.network_.session_type(
        model.network_, fed.on("test"), [["aligned", 120]], train=False
    ) as session:
        theirs = session.bottoms.embed(session.all_rows)["telco"]
    bank = part_of(site, model.network_.model).bottom
    assert bank is not None
    encoded = bank.encoder.transform(site.table_of("test").features)
    with torch.no_grad():
        batch = Batch(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.codes))
        guess = top.module.maps["0-1"](bank.module.eval()(batch))
    error = (guess - theirs).square().mean()
    assert error < 0.8 * (theirs - theirs.mean(0)).square().mean()


def test_sfhtl_and_absent_partners_are_for_any_number(make_fed, make_frame):
    fed = make_fed(make_frame(), aligned=100, test=make_frame(80, seed=5))
    for method in (SFHTL, AbsentPartner):
        model = make(method, epochs=2).fit(fed)
        assert model.predict_proba(fed, rows="all").shape == (240, 2)


@pytest.mark.parametrize(
    ("method", "wrong", "problems"),
    [
        (
            SSLVFL,
            {"pretrain_epochs": -1, "pretrain_batch": 1, "temperature": 0.0, "corruption": 2.0},
            4,
        ),
        (AbsentPartner, {"fusion": "sum", "drop": 1.0}, 2),
        (FedCVT, {"temperature": 0, "thresholds": (1,), "weights": (1,)}, 3),
        (SFHTL, {"threshold": 0.0, "map_weight": -1.0, "pseudo_weight": -1.0}, 3),
        (FewShotVFL, {"rounds": 0}, 1),
        (FewShotVFL, {"local_updates": 0, "threshold": 2.0}, 2),
        (FedCVT, {"embedding": 7}, 1),
    ],
)
def test_wrong_parameters_are_told_together(method, wrong, problems):
    fed = torn()
    before = len(fed.ledger)
    with pytest.raises(ConfigError) as caught:
        make(method, **wrong).fit(fed)
    assert len(caught.value.problems) == problems
    assert len(fed.ledger) == before


@pytest.mark.parametrize("method", [LocalVFL, RandomMatch, AbsentPartner])
def test_aligned_rows_judge_where_there_are_enough(method):
    settings = QUICK | MORE.get(method, {}) | {"validation": 0.15}
    for aligned, expected in ((1400, True), (20, False)):
        fed = torn(1600, aligned)
        model = method(**settings)
        config = model._config()
        network = model._make_network(fed, ["bank", "telco"], "bank", config)
        with network.session(model._training_rows(fed, "bank")) as session:
            held_out = session.validation
            assert bool((held_out < aligned).all()) is expected
            assert not np.intersect1d(held_out, session.train).size
            rows = len(session.train) + len(held_out)
            assert rows == aligned + (1600 - aligned) // 2


@pytest.mark.parametrize(
    "method",
    [
        SSLVFL,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (SFHTL, FewShotVFL, AbsentPartner)
        ),
    ],
)
def test_images(method, tmp_path):
    """Halves of digits: convolutions, the same flips and shifts on both sides, saved and loaded."""
    sides = load_sides("digits", 0, 160, 40)
    fed = tear(sides, 0.4, seed=0).fed
    options = {
        "augment": "weak",
        "schedule": "one-cycle",
        "epochs": 2,
        "bottom": (),
        "validation": 0.0,
    }
    small = {"pretrain_epochs": 1} if method in (SSLVFL, SFHTL) else {}
    small |= {"local_updates": 4} if method is FewShotVFL else {}
    model = make(method, **options | small).fit(fed)
    test = fed.on("test")
    outputs = model.predict_proba(test)
    assert outputs.shape == (40, 10)
    assert np.isfinite(outputs).all()
    model.save(tmp_path / "model")
    fresh = tear(sides, 0.4, seed=0).fed
    loaded = method.load(tmp_path / "model", fresh)
    np.testing.assert_allclose(loaded.predict_proba(fresh.on("test")), outputs, atol=1e-5)
