"""Completed rows in RISA's evidence: believed as far as their cells are, else mean imputation."""

from typing import Any

import numpy as np
import pytest

from fedmend.data.table import Table
from fedmend.federation import Alignment, AlignmentCounts, Federation, Party
from fedmend.federation.engines.local import LocalEngine
from fedmend.methods.annotators.corrected import correct_labels
from fedmend.methods.annotators.inc import InC
from fedmend.methods.risa.risa import RISA
from fedmend.secure.align import align
from fedmend.split.labels import cell_confidence, keep_confidence
from fedmend.split.parts import part_of

KNOWN, COMPLETED = 60, 140
HOW: dict[str, Any] = {"epochs": 3, "batch_size": 32, "members": 2, "bottom": (8,), "embedding": 4}


def mended(confidence: float | None, guesses: float = 0.0) -> Federation:
    """Sixty rows known to both; of 140 more the telco's only column is a guess."""
    rng = np.random.default_rng(0)
    rows = KNOWN + COMPLETED
    y = np.arange(rows) % 2
    z = y + 0.3 * rng.normal(size=rows)
    # Guesses that differ, but leave what the encoder sees of the column (mean, spread) alone.
    z[KNOWN:] = np.where(np.arange(COMPLETED) % 2, guesses, -guesses)
    bank = Table(np.arange(rows), {"x": y + rng.normal(size=rows), "late": y}, label="late")
    telco = Table(np.arange(rows), {"z": z})
    fed = Federation(Party("bank", bank), Party("telco", telco), strict=True)
    everything, nobody = np.arange(rows), np.zeros(0, np.int64)
    assert isinstance(fed.engine, LocalEngine)
    for name in fed.names:
        fed.engine.site(name).alignments[fed.scope] = Alignment(everything, nobody)
    fed.note_alignment(AlignmentCounts(rows, dict.fromkeys(fed.names, 0), COMPLETED))
    if confidence is not None:
        cells = np.where(everything < KNOWN, 1.0, confidence)
        keep_confidence(fed.engine.site("telco"), "train", {"z": cells})
    return fed


def judged(fed: Federation) -> np.ndarray:
    return RISA(**HOW).fit(fed).predict_proba(fed, rows="aligned")


@pytest.mark.slow
def test_full_confidence_changes_nothing_but_rounding():
    np.testing.assert_allclose(judged(mended(None)), judged(mended(1.0)), atol=1e-4)


def test_what_is_not_believed_at_all_does_not_matter(whole_training):
    one, other = judged(mended(0.0, guesses=2.0)), judged(mended(0.0, guesses=-2.0))
    np.testing.assert_allclose(one, other, atol=1e-5)
    believed = [judged(mended(0.9, guesses=2.0)), judged(mended(0.9, guesses=-2.0))]
    assert np.abs(believed[0] - believed[1]).max() > 0.01


def test_completed_rows_are_not_in_the_mean_and_the_party_tells_one_number_a_row():
    fed = mended(0.5)
    model = RISA(**HOW).fit(fed)
    site = fed.engine.site("telco")
    part = part_of(site, model.network_.model)
    assert part.bottom is not None and part.mean is not None
    cells = part.bottom.encoder.transform(site.tables["train"]).numeric
    np.testing.assert_allclose(part.mean.numeric, cells[:KNOWN].mean(0), atol=1e-6)
    assert abs(cells[:KNOWN].mean() - cells.mean()) > 0.1
    # The ledger says what was told of the cells' confidence, and nobody asks where there is none.
    told = [entry for entry in fed.ledger.entries() if entry.call.endswith("confidence")]
    assert told and {entry.kind for entry in told if entry.sender == "telco"} == {"prediction"}
    plain = mended(None)
    plain.note_alignment(AlignmentCounts(KNOWN + COMPLETED, dict.fromkeys(plain.names, 0)))
    RISA(**HOW).fit(plain)
    assert not [entry for entry in plain.ledger.entries() if entry.call.endswith("confidence")]


def test_confidence_goes_along_where_labels_are_corrected():
    fed = mended(0.4)
    rows = np.arange(KNOWN + COMPLETED)
    second = Party("registry", Table(rows, {"late": rows % 2}, label="late"))
    bank, telco = (fed.engine.site(name).tables["train"] for name in fed.names)
    three = Federation(Party("bank", bank), Party("telco", telco), second, strict=True)
    annotators, pair = three.only("bank", "registry"), three.only("bank", "telco")
    align(annotators)
    align(pair)
    site = three.engine.site("telco")
    cells = {"z": np.linspace(0, 1, len(rows))}
    keep_confidence(site, "train", cells)
    model = InC(epochs=2, secure="masks").fit(annotators)
    done = correct_labels(annotators, model, to="bank", into=pair).federation
    kept = cell_confidence(site, done.dataset)
    assert kept is not None
    np.testing.assert_array_equal(kept["z"], cells["z"])
