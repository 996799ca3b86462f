"""RISA on images of which every party has a part: what is shared, learnt and kept."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from fedmend.data.table import Table
from fedmend.errors import ConfigError, FedmendWarning, Refused
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party, Policy
from fedmend.methods.risa.risa import RISA, ImageRISA
from fedmend.methods.vertical.absent_partner import AbsentPartner
from fedmend.split.parts import part_of

QUICK: dict[str, Any] = {
    "conv": "cnn",
    "embedding": 8,
    "top": (8,),
    "batch_size": 32,
    "lr": 0.05,
    "augment": "none",
}


pytestmark = pytest.mark.usefixtures("toy_tables")  # 24 rows are known to both


def picture(rng: np.random.Generator, classes: np.ndarray) -> np.ndarray:
    """Stripes across, down, or none, under noise: [n, 3, 8, 4]."""
    bright = np.zeros((len(classes), 3, 8, 4))
    bright[classes == 1, :, ::2] = 120
    bright[classes == 2, :, :, ::2] = 120
    noisy = bright + rng.normal(60, 25, bright.shape)
    return noisy.clip(0, 255).astype(np.uint8)


def halves(rows=200, overlap=24, test=90, *, mixed=False, names=("left", "right"), **policies):
    """Parties with pictures of the same thing; `mixed`: the right one has columns instead."""
    rng = np.random.default_rng(0)
    parties = []
    late = rng.integers(0, 3, test)
    y = {name: rng.integers(0, 3, rows) for name in names}
    for name in names:
        y[name][:overlap] = y["left"][:overlap]
    for name in names:
        tables = [made(name, y[name], rng, mixed), made(name, late, rng, mixed)]
        parties.append(Party(name, tables[0], test=tables[1], policy=policies.get(name)))
    fed = Federation(*parties, strict=True)
    for scope, known, count in (("train", overlap, rows), ("test", test, test)):
        for name in names:
            numbers = np.arange(count)
            site = fed.engine.site(name)
            site.alignments[scope] = Alignment(numbers[:known], numbers[known:])
        fed.on(scope).note_alignment(AlignmentCounts(known, dict.fromkeys(names, count - known)))
    return fed


def made(name: str, classes: np.ndarray, rng: np.random.Generator, mixed: bool) -> Table:
    columns: dict[str, Any] = {"y": classes} if name == "left" else {}
    blocks = {"image": picture(rng, classes)}
    if mixed and name == "right":
        columns, blocks = {"size": classes + rng.normal(0, 0.5, len(classes))}, {}
    label = "y" if name == "left" else None
    return Table(np.arange(len(classes)), columns, label=label, kinds=_kinds(label), blocks=blocks)


def _kinds(label: str | None) -> dict[str, str] | None:
    return {label: "nominal"} if label else None


@pytest.fixture(scope="module")
def fitted():
    fed = halves()
    return fed, RISA.for_images(**QUICK, epochs=9).fit(fed)


def test_what_the_labelled_side_learns_serves_the_other(fitted):
    """24 rows are known to both; the right side alone is judged by what the left has learnt."""
    fed, model = fitted
    assert model.evaluate(fed.on("test"))["accuracy"] > 0.85
    drawn = np.random.default_rng(0)  # as `halves` draws: of the test, the left and the right
    truth = [drawn.integers(0, 3, count) for count in (90, 200, 200)][2][24:]
    assert (model.predict_proba(fed, rows="right").argmax(1) == truth).mean() > 0.7
    assert model.made_up() == {}
    weights = [each for each in fed.ledger.entries() if each.kind == "weights"]
    assert {each.sender for each in weights} | {each.receiver for each in weights} >= set(fed.names)
    bottoms = [
        part_of(fed.engine.site(name), model.network_.model).bottom.module.state_dict()
        for name in fed.names
    ]
    for key, value in bottoms[0].items():
        np.testing.assert_array_equal(value, bottoms[1][key])


def test_shared_bottoms_have_one_head(fitted, tmp_path):
    fed, model = fitted
    heads = part_of(fed.engine.site("left"), model.network_.model).top
    assert heads is not None
    assert heads.module.heads[0] is heads.module.heads[1]
    # Few rows are held out to judge by: heads alike are all heard, or the label party alone.
    assert set(model.calibration_["aligned"]["losses"]) == {"all", "left"}
    model.save(tmp_path / "model")
    again = RISA.load(tmp_path / "model", fed)
    for rows in ("aligned", "left", "right"):
        np.testing.assert_allclose(
            again.predict_proba(fed, rows=rows), model.predict_proba(fed, rows=rows), atol=1e-6
        )


def test_a_party_may_refuse_to_share():
    fed = halves(60, 20, 20, right=Policy(refuse=frozenset({"weights"})))
    with pytest.raises(Refused, match=r"right.*weights"):
        RISA.for_images(**QUICK, epochs=1).fit(fed)
    fed = halves(60, 20, 20, right=Policy(refuse=frozenset({"weights"})))
    apart = RISA.for_images(**QUICK, epochs=1, share_every=0).fit(fed)
    assert "weights" not in {entry.kind for entry in fed.ledger.entries()}
    assert np.isfinite(apart.predict_proba(fed)).all()


def test_sides_that_are_not_alike_go_on_alone():
    fed = halves(60, 20, 20, mixed=True)
    with pytest.warns(FedmendWarning, match="share_every"):
        model = RISA.for_images(**QUICK, epochs=1).fit(fed)
    heads = part_of(fed.engine.site("left"), model.network_.model).top
    assert heads is not None
    assert heads.module.heads[0] is not heads.module.heads[1]
    assert set(model.calibration_["aligned"]["losses"]) == {"joint", "left"}
    assert np.isfinite(model.predict_proba(fed)).all()


def test_of_three_sides_those_alike_share():
    """Two have pictures and one head, the third has columns and a head of its own."""
    fed = halves(60, 20, 20, mixed=True, names=("left", "middle", "right"))
    model = RISA.for_images(**QUICK, epochs=1).fit(fed)
    heads = part_of(fed.engine.site("left"), model.network_.model).top
    assert heads is not None
    assert heads.names == ["left", "middle", "right"]
    left, middle, right = heads.module.heads
    assert left is middle
    assert left is not right
    for rows in ("aligned", *fed.names):
        assert np.isfinite(model.predict_proba(fed, rows=rows)).all()


@pytest.mark.slow
def test_a_resumed_training_is_the_same(tmp_path):
    steps = QUICK | {"epochs": 3, "threshold": 0.3, "share_every": 2}
    undisturbed = halves(60, 20, 20)
    whole = RISA.for_images(**steps).fit(undisturbed).predict_proba(undisturbed)

    def stopped(stage: str, done: int, *_: Any) -> None:
        if stage == "train" and done == 2:
            raise KeyboardInterrupt

    fed = halves(60, 20, 20)
    with pytest.raises(KeyboardInterrupt):
        RISA.for_images(**steps).fit(fed, checkpoint=tmp_path / "at", progress=stopped)
    fed = halves(60, 20, 20)
    again = RISA.for_images(**steps).fit(fed, checkpoint=tmp_path / "at", resume=True)
    np.testing.assert_allclose(again.predict_proba(fed), whole, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "changes", "size", "lr"),
    [
        (50_000, {}, 1024, 0.4),
        (2_560, {}, 256, 0.2),
        (100, {}, 16, 0.05),
        (100, {"batch_size": 64}, 64, 0.4),
    ],
)
def test_of_few_pictures_batches_are_smaller_and_steps_shorter(rows, changes, size, lr):
    for model in (RISA.for_images(**changes), ImageRISA(**changes), clone(ImageRISA(**changes))):
        settings = model._config(rows).settings
        assert settings.batch_size == size
        assert settings.optimizer.lr == pytest.approx(lr)
    assert RISA()._config(100).settings.batch_size == 256


@pytest.mark.parametrize(
    ("model", "rows", "epochs", "lr"),
    [
        (RISA(), 600, 12, 0.006),
        (RISA(), 1_000, 20, 0.003),
        (RISA(epochs=20), 600, 20, 0.003),
        (RISA.paper(), 600, 20, 0.003),
    ],
)
def test_of_few_rows_an_ensemble_learns_in_fewer_and_longer_steps(model, rows, epochs, lr):
    config = model._config(rows)
    assert (config.epochs, config.settings.schedule_epochs) == (epochs, epochs)
    assert config.settings.optimizer.lr == pytest.approx(lr)


@pytest.mark.parametrize(
    ("model", "classes", "rows", "epochs", "size"),
    [
        (RISA(), 4, 600, 8, 128),
        (RISA(), 20, 600, 8, 200),
        (RISA(batch_size=64), 4, 600, 8, 64),
        (RISA(), 2, 600, 12, 256),
        (RISA(), 4, 1_000, 20, 256),
        (RISA(epochs=20), 4, 600, 20, 256),
    ],
)
def test_of_few_rows_of_several_classes_a_comparison_is_shorter(model, classes, rows, epochs, size):
    params = model.get_params()
    model.shorten(classes, rows)
    config = model._config(rows)
    assert (config.epochs, config.settings.batch_size) == (epochs, size)
    assert model.get_params() == params, "what is kept has the settings that it was given"


@pytest.mark.slow
def test_the_settings_for_tables_take_images_too():
    """Images have no columns that add up; the parties' own heads are heard instead."""
    fed = halves(60, 30, 40)
    model = RISA(bottom=(8,), embedding=8, top=(8,), members=2, epochs=6, batch_size=16, lr=0.02)
    model.fit(fed)
    assert "ridge" not in model.calibration_["aligned"]
    assert not any("columns" in source for source in model.calibration_["aligned"]["trust"])
    assert model.evaluate(fed.on("test"))["accuracy"] > 0.6
    assert "weights" not in {entry.kind for entry in fed.ledger.entries()}


@pytest.mark.slow
def test_absent_partner_shares_too():
    fed = halves()
    settings = QUICK | {"epochs": 8, "validation": 0.0, "optimizer": "sgd"}
    model = AbsentPartner(**settings, share_every=5).fit(fed)
    bottoms = [
        part_of(fed.engine.site(name), model.network_.model).bottom.module.state_dict()
        for name in fed.names
    ]
    for key, value in bottoms[0].items():
        np.testing.assert_array_equal(value, bottoms[1][key])
    assert model.evaluate(fed.on("test"))["accuracy"] > 0.8
    with pytest.raises(ConfigError, match="share_every"):
        AbsentPartner(share_every=-1).fit(fed)
