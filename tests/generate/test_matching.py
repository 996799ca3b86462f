from __future__ import annotations

import numpy as np
import torch

from fedmend.data.table import Table
from fedmend.generate.adversarial import Matcher
from fedmend.generate.encoder import Encoded, Encoder


def _fitted(mixed: Table) -> tuple[Encoder, Encoded]:
    encoder = Encoder(numeric="mode").fit(mixed)
    return encoder, encoder.encode(encoder.raw(mixed.frame))


def test_distances_are_what_they_say(mixed: Table) -> None:
    encoder, rows = _fitted(mixed)
    matcher = Matcher(torch.from_numpy(rows.values[40:]), encoder)
    observed = np.random.default_rng(0).random((40, len(encoder.columns))) < 0.5
    fast = matcher.distances(Encoded(rows.values[:40], observed)).numpy()
    raw = encoder.decode(rows.values)
    slow = np.zeros((40, 80))
    for place, name in enumerate(encoder.columns):
        wanted, there = raw[name][:40, None], raw[name][None, 40:]
        if mixed.schema[name].is_categorical:
            gap = (wanted != there).astype(float)
        else:
            gap = 0.5 * ((wanted - there) / raw[name][40:].std()) ** 2
        slow += gap * observed[:, place, None]
    # equal up to a constant for each row
    assert np.allclose(fast - fast[:, :1], slow - slow[:, :1], atol=1e-3)


def test_a_candidate_that_agrees_is_taken(mixed: Table) -> None:
    encoder, rows = _fitted(mixed)
    matcher = Matcher(torch.from_numpy(rows.values), encoder, neighbours=1)
    drawn = matcher.draw(rows, torch.Generator().manual_seed(0))
    same = (drawn == torch.from_numpy(rows.values)).all(1)
    assert same.float().mean() > 0.95


def test_of_equally_good_candidates_all_are_taken(mixed: Table) -> None:
    encoder, rows = _fitted(mixed)
    city = encoder.columns.index("city")
    observed = np.zeros((2000, len(encoder.columns)), bool)
    observed[:, city] = True
    known = Encoded(np.repeat(rows.values[:1], 2000, axis=0), observed)
    drawn = Matcher(torch.from_numpy(rows.values), encoder).draw(known, torch.Generator())
    codes = encoder.decode(drawn.numpy())["city"]
    wanted = encoder.decode(rows.values[:1])["city"][0]
    assert (codes == wanted).all()
    holding = (encoder.decode(rows.values)["city"] == wanted).sum()
    assert len(drawn.unique(dim=0)) == holding


def test_nothing_known_takes_any(mixed: Table) -> None:
    encoder, rows = _fitted(mixed)
    known = Encoded(rows.values[:1].repeat(3000, 0), np.zeros((3000, len(encoder.columns)), bool))
    drawn = Matcher(torch.from_numpy(rows.values), encoder).draw(known, torch.Generator())
    assert len(drawn.unique(dim=0)) == len(np.unique(rows.values, axis=0))


def test_categories_that_never_occurred_are_no_matter(mixed: Table) -> None:
    rows = np.flatnonzero(mixed.frame["grade"] != "mid")
    encoder, known = _fitted(mixed.take(rows))
    matcher = Matcher(torch.from_numpy(known.values), encoder, neighbours=1)
    drawn = matcher.draw(known, torch.Generator().manual_seed(0))
    agree = encoder.decode(drawn.numpy())["grade"] == encoder.decode(known.values)["grade"]
    assert agree.mean() > 0.95
    assert set(encoder.categories("grade")) == {"low", "high"}
