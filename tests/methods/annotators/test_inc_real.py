"""InC over a federation of real annotators."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.methods.annotators.in_the_clear import Known, count_votes

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.methods.annotators import aggregation as crowds
from fedmend.methods.annotators.inc import InC
from fedmend_bench import datasets


@pytest.mark.real
def test_labelme_59_annotators_are_59_parties():
    train, test = datasets.load("labelme"), datasets.load("labelme", split="test")
    votes = datasets.human_labels("labelme")
    rows = {"train": len(train), "test": len(test)}
    parties = []
    for number, columns in enumerate(np.array_split(np.arange(512), 2)):
        tables = {
            name: Table(
                np.arange(len(table)),
                pd.DataFrame(
                    table.blocks["features"][:, columns], columns=[f"f{c}" for c in columns]
                ),
                kinds={f"f{c}": "continuous" for c in columns},
            )
            for name, table in (("train", train), ("test", test))
        }
        parties.append(Party(f"features{number}", tables["train"], test=tables["test"]))
    pool = np.array([*range(8), None], object)
    empty = Table(np.arange(len(test)), pd.DataFrame(index=range(len(test))))
    for number in range(59):
        frame = pd.DataFrame({"y": pool[votes[:, number]]})
        table = Table(np.arange(len(train)), frame, label="y", kinds={"y": "nominal"})
        parties.append(Party(f"annotator{number}", table, test=empty))
    fed: Any = Federation(*parties)
    for name, count in rows.items():
        for site in fed.engine.sites.values():
            site.alignments[name] = Alignment(np.arange(count), np.zeros(0, np.int64))
        fed.on(name).note_alignment(AlignmentCounts(count, dict.fromkeys(fed.names, 0)))
    model = InC(
        bottom=(),
        embedding=16,
        top=(),
        epochs=30,
        batch_size=50,
        weight_decay=0.0,
        crossfit=True,
        secure="masks",
        classes=range(8),
    ).fit(fed)
    truth = train.y.to_numpy(np.int64)
    found = model.posterior_.argmax(1)
    inferred, _, _ = crowds.dawid_skene(count_votes(votes, 8), Known(votes))
    assert (found == truth).mean() > (inferred.argmax(1) == truth).mean() + 0.02
    accuracy = (model.predict(fed.on("test")) == test.y.to_numpy(np.int64)).mean()
    assert accuracy > 0.80
