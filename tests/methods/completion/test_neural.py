"""The split network of many columns: against the same network in one piece, and bad input."""

import numpy as np
import pandas as pd
import pytest
import torch
from tests.methods.completion.federations import numbered, stored
from torch.nn import functional as F

from fedmend.data.encode import Encoder
from fedmend.errors import ConfigError, DataError
from fedmend.federation import Federation
from fedmend.federation.policy import MIN_ROWS
from fedmend.federation.rows import judges as held_out
from fedmend.learn.nets import Batch, Bottom, BottomSpec, Top, TopSpec, initialise
from fedmend.methods.completion.neural import NeuralModels
from fedmend.methods.completion.targets import TargetStore
from fedmend.split.features import BatchOrder
from fedmend.split.training import epoch_seed

N, ALIGNED, EPOCHS, LR = 160, 110, 4, 1e-2
SMALL = {"bottom": (12,), "embedding": 6, "top": (8,), "batch_size": 16, "lr": LR, "epochs": EPOCHS}


def sides(seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    a = pd.DataFrame({"x": rng.normal(size=N), "z": rng.normal(size=N)})
    a["city"] = rng.choice(["Ulm", "Bonn"], N)
    signal = a["x"] + (a["city"] == "Ulm")
    b = pd.DataFrame({"income": 100 + 20 * signal + rng.normal(size=N)})
    b["plan"] = np.array(["l", "m", "s"])[np.digitize(signal, [0.0, 1.0])]
    b["tenure"] = rng.normal(size=N)
    b.loc[rng.choice(ALIGNED, 15, replace=False), "income"] = np.nan
    b.loc[rng.choice(ALIGNED, 15, replace=False), "plan"] = None
    return a, b


def federation(a: pd.DataFrame, b: pd.DataFrame) -> Federation:
    return numbered(a, b, ALIGNED, seed=3)


class OnePiece:
    """Bottom and heads in one graph, with torch's own Adam."""

    def __init__(self, fed: Federation, a: pd.DataFrame, store: TargetStore) -> None:
        bank, telco = fed.engine.site("bank"), fed.engine.site("telco")
        table = bank.tables["train"]
        encoder = Encoder(missing_indicator=True).fit(table)
        encoded = encoder.transform(table)
        self.rows = Batch(torch.from_numpy(encoded.numeric), torch.from_numpy(encoded.codes))
        spec = BottomSpec(len(encoder.numeric_names), encoder.cardinalities, (), (12,), 6)
        self.bottom = initialise(Bottom(spec), bank.torch_generator("bottom 0", "cpu"))
        self.income = torch.from_numpy(store["income"].labels).float()
        self.plan = torch.from_numpy(store["plan"].labels)
        weights = telco.torch_generator("heads 0", "cpu")
        self.heads = {
            name: initialise(Top(TopSpec((6,), (8,), out)), weights)
            for name, out in (("income", 1), ("plan", 3))
        }
        modules = [self.bottom, *self.heads.values()]
        parameters = [each for module in modules for each in module.parameters()]
        self.adam = torch.optim.Adam(parameters, LR, weight_decay=1e-5)

    def outputs(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        embedding = self.bottom(Batch(self.rows.numeric[numbers], self.rows.codes[numbers]))
        return {name: head([embedding]) for name, head in self.heads.items()}

    def loss(self, numbers: torch.Tensor) -> torch.Tensor:
        made, income, plan = self.outputs(numbers), self.income[numbers], self.plan[numbers]
        seen = ~income.isnan()
        off = F.mse_loss(made["income"][seen, 0], income[seen])
        return off + F.cross_entropy(made["plan"][plan >= 0], plan[plan >= 0])

    def epoch(self, order: BatchOrder) -> None:
        for _ in order.sizes:
            self.adam.zero_grad()
            self.loss(order.next()).backward()
            self.adam.step()


def test_split_equals_one_piece():
    a, b = sides()
    fed = federation(a, b)
    models = NeuralModels(fed, "bank", "telco", targets=["income", "plan"], **SMALL)
    with models:
        whole = OnePiece(fed, a, stored(fed, models))
        assert models.fit().fitted == ["income", "plan"]
        models.predict(rows="all")
    drawn = np.random.default_rng([fed.seed, 0]).random(ALIGNED)
    judges = torch.from_numpy(np.flatnonzero(held_out(drawn, 0.1, MIN_ROWS)))
    order = BatchOrder(np.setdiff1d(np.arange(ALIGNED), judges), 16, torch.device("cpu"))
    best, kept, off = np.inf, {}, 0.0
    for epoch in range(1, EPOCHS + 1):
        order.start(epoch_seed(fed.seed, 0, epoch))
        whole.epoch(order)
        with torch.no_grad():
            if (loss := float(whole.loss(judges))) < best:
                best, kept = loss, whole.outputs(torch.arange(N))
                errors = whole.outputs(judges)["income"][:, 0] - whole.income[judges]
                off = float(errors[~errors.isnan()].square().mean().sqrt())
    found = stored(fed, models)
    np.testing.assert_allclose(found["income"].outputs, kept["income"][:, 0], atol=1e-5)
    np.testing.assert_allclose(found["plan"].outputs, kept["plan"].softmax(1), atol=1e-5)
    np.testing.assert_allclose(found["income"].spread, off, rtol=1e-4)


def test_messages_change_no_bit():
    a, b = sides()
    made = []
    for seal in (False, True):
        fed = federation(a, b)
        with NeuralModels(
            fed, "bank", "telco", targets=["income", "plan"], seal=seal, **SMALL | {"epochs": 2}
        ) as models:
            models.fit()
            models.predict(rows="all")
            found = stored(fed, models)
            made.append([found[name].outputs for name in ("income", "plan")])
        told = {e.sealed_for for e in fed.ledger if e.kind in ("embedding", "gradient")}
        assert told == ({"bank", "telco"} if seal else {""})
    for open_, sealed in zip(*made, strict=True):
        np.testing.assert_array_equal(open_, sealed)


def test_rows_with_pseudo_labels_join_the_training():
    a, b = sides()
    fed = federation(a, b)
    with NeuralModels(fed, "bank", "telco", targets=["income"], **SMALL) as models:
        models.fit()
        models.predict()
        first = stored(fed, models)["income"].outputs.copy()
        assert np.isnan(first[:ALIGNED]).all()
        stored(fed, models).adopt("income", np.arange(ALIGNED, N), np.full(N - ALIGNED, 5.0))
        models.fit()
        models.predict()
    joined = stored(fed, models)["income"].outputs[ALIGNED:]
    assert joined.mean() > first[ALIGNED:].mean() + 0.05


def test_wrong_settings_are_told_together():
    fed = federation(*sides())
    with pytest.raises(ConfigError) as found:
        NeuralModels(fed, "bank", "telco", embedding=0, epochs=0, validation=1.0)
    assert len(found.value.problems) == 3
    a, b = sides()
    b["income"] = 1.0
    fed = federation(a, b)
    with (
        NeuralModels(fed, "bank", "telco", targets=["income"]) as models,
        pytest.raises(DataError, match="no target is left to learn"),
    ):
        models.fit()
