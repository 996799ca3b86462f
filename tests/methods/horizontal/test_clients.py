"""Horizontal training over a federation: the simulator's numbers, a common encoding, bad input."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from fedmend.data.encode import Encoder
from fedmend.data.table import Table
from fedmend.errors import ConfigError, DataError, ResumeError
from fedmend.federation import Federation, Party, Policy
from fedmend.learn.optim import OptimizerSpec
from fedmend.methods.horizontal.baselines import FedAvg
from fedmend.methods.horizontal.estimator import FederatedClients
from fedmend.methods.horizontal.local_methods import PseudoMethod, Supervised
from fedmend.methods.horizontal.rounds import RoundSettings

SMALL = RoundSettings(
    epochs=2,
    batch_size=16,
    optimizer=OptimizerSpec("sgd", 0.05, 1e-4, 0.9),
)


def people(n: int, seed: int, labelled: float = 0.3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 3)) * [1, 10, 0.1] + seed, columns=list("abc"))
    frame["city"] = rng.choice(["Ulm", "Bonn", "Kiel"][: 2 + seed % 2], n)
    score = frame["a"] - seed + (frame["city"] == "Ulm")
    label = np.array(["low", "mid", "high"], dtype=object)[np.digitize(score, [0.0, 1.0])]
    label[rng.random(n) > labelled] = None
    frame["y"] = label
    return frame


def table_of(frame: pd.DataFrame) -> Table:
    return Table.from_frame(frame, label="y")


def federation(parties: int = 3, rows: int = 120, **options) -> Federation:
    members = [
        Party(
            f"p{number}",
            table_of(people(rows + 16 * number, number)),
            test=table_of(people(50, number, labelled=1.0)),
            policy=Policy(foreign_predictions=1),
        )
        for number in range(parties)
    ]
    return Federation(*members, strict=True, **options)


def test_the_encoding_is_that_of_all_rows_together():
    fed = federation()
    with FederatedClients(fed, Supervised(), SMALL) as clients:
        frames = [people(120 + 16 * number, number) for number in range(3)]
        whole = table_of(pd.concat(frames, ignore_index=True))
        expected = Encoder(ordinal="codes", binary="codes").fit(whole).to_dict()
        found = clients.common["encoder"]
        assert found["coded"] == expected["coded"] == {"city": ["Bonn", "Kiel", "Ulm"]}
        for ours, theirs in zip(found["scaled"], expected["scaled"], strict=True):
            assert ours[0] == theirs[0]
            assert ours[1:3] == pytest.approx(theirs[1:3], rel=1e-12)
        assert clients.classes == ["high", "low", "mid"]


def test_evaluation_is_that_of_all_predictions_together():
    fed = federation()
    with FederatedClients(fed, PseudoMethod("sage"), SMALL) as clients:
        for _ in range(3):
            clients.run_round()
        scores = clients.evaluate(fed.on("test"))
        found = clients.probabilities(fed.on("test"))
    truth = pd.concat([people(50, number, labelled=1.0)["y"] for number in range(3)])
    numbers = truth.map({"high": 0, "low": 1, "mid": 2}).to_numpy()
    together = np.concatenate([found[name] for name in fed.names])
    assert scores["accuracy"] == accuracy_score(numbers, together.argmax(1))
    assert scores["f1"] == pytest.approx(f1_score(numbers, together.argmax(1), average="macro"))
    expected = log_loss(numbers, together, labels=[0, 1, 2])
    assert scores["log_loss"] == pytest.approx(expected, rel=1e-5)
    area = roc_auc_score(numbers, together, multi_class="ovr")
    assert scores["auc"] == pytest.approx(area, abs=0.01)
    assert scores["accuracy"] > 0.6


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    method = PseudoMethod("flexmatch")
    with FederatedClients(federation(2), method, SMALL) as whole:
        for number in range(4):
            whole.run_round()
            if number == 1:
                whole.save_checkpoint(tmp_path / "run.fmw")
    with FederatedClients(federation(2), method, SMALL) as later:
        later.load_checkpoint(tmp_path / "run.fmw")
        assert later.round == 2
        later.run_round()
        later.run_round()
    assert torch.equal(later.weights, whole.weights)
    with (
        FederatedClients(federation(2), method, SMALL, seed=9) as other,
        pytest.raises(ResumeError, match="another run"),
    ):
        other.load_checkpoint(tmp_path / "run.fmw")


def test_a_run_does_not_go_on_with_other_rows(tmp_path):
    """Labels of two rows change places: everything that the coordinator knows is the same."""
    method = PseudoMethod("flexmatch")
    with FederatedClients(federation(2), method, SMALL) as clients:
        clients.run_round()
        clients.save_checkpoint(tmp_path / "run.fmw")
    other = federation(2)
    table = other.engine.site("p1").tables["train"]
    frame, label = table.frame, table.label
    one, two = (table.y[table.y == each].index[0] for each in ("high", "low"))
    frame.loc[[one, two], label] = frame.loc[[two, one], label].to_numpy()
    with (
        FederatedClients(other, method, SMALL) as later,
        pytest.raises(ResumeError, match=r"party 'p1': .*other rows.*Mend"),
    ):
        later.load_checkpoint(tmp_path / "run.fmw")


def test_a_kill_between_two_parties_savings_mixes_no_rounds(tmp_path):
    """Some parties have kept round 3, the coordinator has not: the run goes on from round 2."""
    path, method = tmp_path / "run.fmw", PseudoMethod("flexmatch")
    with FederatedClients(federation(2), method, SMALL) as whole:
        for number in (1, 2, 3):
            whole.run_round()
            if number < 3:
                whole.save_checkpoint(path)
        whole._groups["train"]["p0"].save_state(f"{path}.parties", 3)
    with FederatedClients(federation(2), method, SMALL) as later:
        later.load_checkpoint(path)
        assert later.round == 2
        later.run_round()
        assert torch.equal(later.weights, whole.weights)
        later.save_checkpoint(path)
        later.run_round()
        later.save_checkpoint(path)
    kept = sorted(each.name for each in tmp_path.rglob("client-*.fmw"))
    assert kept == ["client-000003.fmw"] * 2 + ["client-000004.fmw"] * 2


def test_clients_of_images():
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)[:, None]
    members = []
    for number, rows in enumerate(np.array_split(np.arange(240), 2)):
        label = pd.Series(digits.target[rows]).astype(object)
        label[60:] = None
        table = Table(rows, pd.DataFrame({"y": label}), label="y", blocks={"image": images[rows]})
        members.append(Party(f"p{number}", table))
    fed = Federation(*members, strict=True)
    settings = RoundSettings(epochs=1, batch_size=16)
    with FederatedClients(
        fed, PseudoMethod("sage"), settings, net="cnn", width=4, flip=False
    ) as clients:
        report = clients.run_round()
    mean = clients.common["encoder"]["blocks"]["image"]["mean"][0]
    assert mean == pytest.approx(images[:240].mean() / 255)
    assert np.isfinite(report.loss)


def pictures(size: int, name: str = "image", start: int = 0) -> Table:
    rng = np.random.default_rng(size)
    labels = pd.DataFrame({"y": pd.Series(["cat", "dog"] * 4)})
    images = rng.integers(0, 256, (8, 3, size, size), dtype=np.uint8)
    return Table(np.arange(start, start + 8), labels, label="y", blocks={name: images})


def test_images_of_another_size_are_named(toys):
    fed = Federation(Party("p0", pictures(8)), Party("p1", pictures(6, start=8)))
    with pytest.raises(DataError, match=r"'p1', column 'image': is image of shape \(3, 6, 6\)"):
        FederatedClients(fed, Supervised(), SMALL, net="cnn", width=4)
    other, bare = pictures(6, start=20), pictures(8, "picture", start=20)
    fed = Federation(Party("p0", pictures(8), test=other, bare=bare), strict=True)
    with FederatedClients(fed, Supervised(), SMALL, net="cnn", width=4) as clients:
        with pytest.raises(DataError, match=r"\(3, 8, 8\) were trained on.*seen: \(3, 6, 6\)"):
            clients.evaluate(fed.on("test"))
        with pytest.raises(DataError, match="'p0', column 'image': the images are not there"):
            clients.evaluate(fed.on("bare"))


def test_a_client_without_labels_takes_part():
    bare = people(100, 1).drop(columns="y")
    fed = Federation(
        Party("p0", table_of(people(100, 0))), Party("p1", Table.from_frame(bare)), strict=True
    )
    with FederatedClients(fed, PseudoMethod("sage"), SMALL) as clients:
        assert np.isfinite(clients.run_round().loss)
    with FederatedClients(fed, Supervised(), SMALL) as clients:
        report = clients.run_round()
        assert [each["steps"] for each in report.per_client] == [12, 0]
        assert [each["rows"] for each in report.per_client][1] == 0
        # Nothing is known of who took no step, and nobody else's mean is the less for it.
        assert report.loss == report.per_client[0]["loss_labelled"] > 0
        assert np.isnan(report.per_client[1]["loss_labelled"])


def test_a_party_of_too_few_test_rows_is_left_out_of_the_scores_and_it_is_said():
    tests = [people(rows, number, labelled=1.0) for number, rows in enumerate((6, 40))]
    fed = Federation(
        *(
            Party(f"p{number}", table_of(people(100, number)), test=table_of(test))
            for number, test in enumerate(tests)
        ),
        strict=True,
    )
    model = FedAvg(rounds=2).fit(fed, watch="test")
    assert list(model.history_[-1]["accuracy_by_party"]) == ["p1"]
    assert model.notes_[-1].startswith("the scores are without p0: ")
    scores = model.evaluate(fed.on("test"))
    truth = np.searchsorted(model.classes_, tests[1]["y"].to_numpy().astype(str))
    p = model.predict_proba(table_of(tests[1]))
    assert scores["accuracy"] == accuracy_score(truth, p.argmax(1))
    assert model.uncertainty_report(fed.on("test"))["rows"] == 40


def changed(column: str, value) -> pd.DataFrame:
    frame = people(100, 1)
    frame[column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (people(100, 1).drop(columns="c"), "party 'p1': .*it lacks 'c'"),
        (changed("more", 1.0), "party 'p1': .*it has 'more' besides"),
        (changed("a", "text"), "party 'p1', column 'a': is .* here and continuous at party 'p0'"),
        (people(100, 1).rename(columns={"y": "outcome"}), "different names: outcome, y"),
    ],
)
def test_parties_that_do_not_fit_together_are_named(frame, message):
    label = "outcome" if "outcome" in frame else "y"
    fed = Federation(
        Party("p0", table_of(people(100, 0))),
        Party("p1", Table.from_frame(frame, label=label)),
        strict=True,
    )
    with pytest.raises(DataError, match=message):
        FederatedClients(fed, Supervised(), SMALL)


def test_labels_of_one_class_are_not_enough():
    frame = people(100, 0)
    frame["y"] = np.where(frame["y"].notna(), "low", None)
    fed = Federation(Party("p0", Table.from_frame(frame, label="y", kinds={"y": "nominal"})))
    with pytest.raises(DataError, match="labels of 1 classes in all"):
        FederatedClients(fed, Supervised(), SMALL)


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="net='resnet8' is for images"):
        FederatedClients(federation(2), Supervised(), SMALL, net="resnet8")
    with pytest.raises(ConfigError, match="per_round must lie in 1..2"):
        FederatedClients(federation(2), Supervised(), SMALL, per_round=3)
