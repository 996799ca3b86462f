"""The network that corrected the labels answers for rows that the label party alone knows."""

import numpy as np
import pytest
import torch

import fedmend as fm
from fedmend.data.crowds import annotators
from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation
from fedmend.flow.kept import keep_completion, restore_completion
from fedmend.split.config import Settings
from fedmend.split.features import Features
from fedmend.split.parts import own_model
from fedmend.split.workers import own_outputs

LATE = np.array(["no", "yes"])


@pytest.fixture(scope="module")
def corrected():
    """A bank of 300 rows, of which a telco knows 60; a registry labels them too. New rows: 40."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 340)
    x = 2 * truth[:, None] + rng.normal(size=(340, 3))
    said = np.array(["no", "yes", None], object)[
        annotators(truth[:300], rates=[0.3, 0.1], missing=0.1, seed=1)
    ]
    old, new = np.arange(300), np.arange(300, 340)
    bank = Table(old, {"x": x[:300, 0], "y": said[:, 0]}, label="y")
    telco = Table(np.arange(60), {"z": x[:60, 1]})
    unseen = Table(new, {"x": x[300:, 0], "y": LATE[truth[300:]]}, label="y")
    stranger = Table(np.arange(900, 940), {"z": x[300:, 1]})
    fed = fm.Federation(
        fm.Party("bank", bank, new=unseen),
        fm.Party("telco", telco, new=stranger),
        fm.Party("registry", Table(old, {"y": said[:, 1]}, label="y")),
        strict=True,
    )
    labellers, pair = fed.only("bank", "registry"), fed.only("bank", "telco")
    for view in (labellers, pair):
        fm.align(view)
    inc = fm.InC(epochs=4, batch_size=32, lr=0.02, secure="masks").fit(labellers)
    train = fm.correct_labels(labellers, inc, to="bank", into=pair).federation
    return fed, inc, train


@pytest.fixture(scope="module")
def known_to_one(corrected):
    view: Federation = corrected[0].only("bank", "telco").on("new")
    nobody = np.zeros(0, np.int64)
    for name in view.names:
        view.engine.site(name).alignments[view.scope] = Alignment(nobody, np.arange(40))
    view.note_alignment(AlignmentCounts(0, dict.fromkeys(view.names, 40)))
    return view


def test_rows_of_the_label_party_alone_are_its_own_models(corrected, known_to_one, tmp_path):
    _, inc, train = corrected
    model = fm.VFL(epochs=2, batch_size=16).fit(train)
    alone = model.predict_proba(known_to_one, rows="bank")
    np.testing.assert_allclose(alone, inc.predict_proba(known_to_one, rows="bank"), atol=1e-6)
    assert len(model.predict_proba(known_to_one, rows="telco")) == 40
    model.save(tmp_path / "model")
    again = fm.VFL.load(tmp_path / "model", known_to_one)
    np.testing.assert_allclose(again.predict_proba(known_to_one, rows="bank"), alone, atol=1e-6)
    assert model.evaluate(known_to_one, rows="bank")["accuracy"] > 0.7


def test_classes_are_found_by_name_whatever_their_order(corrected):
    """The model that corrected the labels may know others, and number them otherwise."""
    fed = corrected[0]
    part = own_model(fed.engine.site("bank"), corrected[2].dataset)
    table = fed.engine.site("bank").tables["new"]
    encoded = part.bottom.encoder.transform(table)
    features = Features(encoded, np.arange(40), torch.device("cpu"), torch.float32)
    plain = own_outputs(part, features, 40, Settings(), ["no", "yes"])
    torch.testing.assert_close(plain.sum(1), torch.ones(40))
    assert (plain.argmax(1) == 1).float().mean() not in (0.0, 1.0)
    others = own_outputs(part, features, 40, Settings(), ["yes", "perhaps", "no"])
    torch.testing.assert_close(others[:, [2, 0]], plain)
    assert not others[:, 1].any()


def test_it_is_kept_with_a_run(corrected, tmp_path):
    fed, _, train = corrected
    site = fed.engine.site("bank")
    before = own_model(site, train.dataset)
    assert before is not None and before.top is not None
    keep_completion(train, tmp_path)
    site.state["learn.own_model"].clear()
    restore_completion(train, tmp_path)
    after = own_model(site, train.dataset)
    assert after is not None and after.top is not None
    for key, value in before.top.module.state_dict().items():
        np.testing.assert_array_equal(value, after.top.module.state_dict()[key])


def test_a_corrector_that_needs_a_partner_is_not_handed_on(corrected):
    fed, _, _ = corrected
    fm.align(fed)
    inc = fm.InC(epochs=1, secure="masks").fit(fed)
    done = fm.correct_labels(fed, inc, to="bank", name="together").federation
    assert own_model(fed.engine.site("bank"), done.dataset) is None
