"""What a file asks for changes what it costs: as measured, one training each."""

from __future__ import annotations

import pytest

from fedmend.methods.costs import Facts
from fedmend.methods.registry import COMPLETIONS, METHODS, estimate, make

RATED = [name for name, each in (METHODS | COMPLETIONS).items() if each.rate is not None]


def facts(rows, shared, columns, numbers, **more):
    names = [f"p{at}" for at in range(len(columns))]
    features, numeric = (dict(zip(names, each, strict=True)) for each in (columns, numbers))
    labellers = more.pop("labellers", ("p0",))
    return Facts(dict.fromkeys(names, rows), features, labellers, shared, numeric=numeric, **more)


ADULT = facts(2400, 1200, [7, 7], [5, 1])
CREDIT = {share: facts(600, round(600 * share), [12, 11], [11, 9]) for share in (0.3, 1.0)}
CROWD = facts(600, 600, [12, 11, 0, 0, 0], [11, 9, 0, 0, 0], labellers=("p2", "p3", "p4"))
CLINICS = facts(120, None, [23] * 5, [20] * 5, labellers=("p0", "p1", "p2", "p3", "p4"))
PUBLISHED = {"protocol": "published", "correlation_mode": "published", "key_bits": 1024}
FEW_TREES = {"mode": "bfv", "trees": 20, "refit": False}


@pytest.mark.parametrize("name", RATED)
def test_default_settings_written_down_cost_the_same(name):
    """So that a default that changes is changed there, too."""
    sizes = CLINICS if METHODS.get(name) and METHODS[name].horizontal else CROWD
    given = make(name, {}).get_params()
    assert estimate(name, sizes, given) == estimate(name, sizes)


@pytest.mark.parametrize(
    ("name", "sizes", "asked", "seconds", "megabytes"),
    [
        ("boosting", facts(600, 180, [10, 10], [5, 4]), {"mode": "bfv"}, 27.9, 665),
        ("boosting", facts(1200, 360, [7, 7], [5, 1]), {"mode": "bfv"}, 15.8, 402),
        ("boosting", facts(600, 300, [5, 5, 4], [2, 2, 2]), {"mode": "bfv"}, 26.3, 680),
        ("boosting", ADULT, FEW_TREES, 4.5, 98),
        ("boosting", facts(2400, 1200, [12, 11], [11, 9]), FEW_TREES, 25.1, 338),
        ("boosting", CREDIT[0.3], {"learning_rate": 0.02}, 5.4, 4.3),
        ("boosting", CREDIT[0.3], {"depth": 3}, 0.8, 0.73),
        ("boosting", facts(6000, 3000, [10, 10], [5, 4]), {"trees": 30, "depth": 8}, 3.1, 42.8),
        ("risa", CREDIT[0.3], {"members": 1}, 2.7, 12.0),
        ("risa", CREDIT[0.3], {"preset": "paper"}, 4.9, 70.2),
        ("risa", CREDIT[0.3], {"epochs": 60}, 4.0, 47.0),
        ("vfl", CREDIT[1.0], {"epochs": 5}, 1.0, 6.4),
        ("vfl", CREDIT[1.0], {"batch_size": 16}, 2.0, 5.5),
        ("vfl", CREDIT[1.0], {"batch_size": 256}, 1.4, 35.6),
        ("vfl", CREDIT[1.0], {"patience": 50}, 5.1, 40.7),
        ("vfl", CREDIT[1.0], {"patience": None}, 8.2, 72.9),
        ("ssl-vfl", CREDIT[0.3], {"pretrain_epochs": 100}, 50.6, 10.9),
        ("fedpsg-pum", CREDIT[0.3], {"mode": "bfv"}, 22.3, 366),
        ("fedpsg-pum", facts(600, 180, [7, 7], [5, 1]), {"mode": "bfv"}, 90.5, 1628),
        ("fedpsg-pum", CREDIT[0.3], {"model": "linear"}, 3.1, 7.8),
        ("fedpsg-pum", facts(200, 60, [12, 11], [11, 9]), PUBLISHED, 488, 4.0),
        ("dawid-skene", CROWD, {"secure": "he"}, 3.9, 57.4),
        ("inc", CROWD, {"preset": "paper"}, 18.5, 47.8),
        ("fedavg", CLINICS, {"secure": "he"}, 2.8, 16.3),
        ("fedavg", CLINICS, {"preset": "paper", "per_round": 5}, 12.1, 26.3),
    ],
)
def test_what_a_file_asks_for_is_foretold_as_measured(name, sizes, asked, seconds, megabytes):
    found, usual = estimate(name, sizes, asked), estimate(name, sizes)
    assert 0.5 < found.seconds / seconds < 2 and 0.45 < found.bytes / 1e6 / megabytes < 2
    assert found != usual


def test_encryption_of_trees_is_dear():
    plain, encrypted = (estimate("boosting", ADULT, {"mode": mode}) for mode in ("dealer", "bfv"))
    assert encrypted.seconds > 5 * plain.seconds and encrypted.bytes > 50 * plain.bytes
