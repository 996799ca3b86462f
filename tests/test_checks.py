from __future__ import annotations

import pytest
import torch

from fedmend.checks import check_data
from fedmend.config import load_config


def findings(workshop):
    return check_data(load_config(workshop.config))


def test_nothing_wrong(workshop):
    workshop.write()
    found = findings(workshop)
    assert (found.problems, found.notes) == ([], [])
    assert [len(table) for table in found.tables.values()] == [160, 160]


def test_one_bad_table_does_not_hide_the_other(workshop):
    workshop.write()
    (workshop.folder / "bank.csv").unlink()
    (workshop.folder / "telco.csv").write_text("")
    found = findings(workshop)
    assert len(found.problems) == 2
    assert "party 'bank'" in found.problems[0] and "party 'telco'" in found.problems[1]


def test_same_order_needs_equally_long_tables(workshop):
    workshop.telco = workshop.telco.iloc[:100]
    workshop.write('[align]\nmode = "same-order"\n')
    (problem,) = findings(workshop).problems
    assert "bank 160, telco 100" in problem and 'Mend: mode = "ecdh"' in problem


def test_ids_are_compared_by_the_rule_of_the_file(workshop):
    workshop.bank["customer"] = [f"C{each}" for each in workshop.bank["customer"]]
    workshop.telco["customer"] = [f"c{each}" for each in workshop.telco["customer"]]
    workshop.write()
    (problem,) = findings(workshop).problems
    assert "share no id (text, with capital letters and text" in problem
    assert 'normalise = "text"' in problem
    workshop.write('[align]\nnormalise = "text"\n')
    assert findings(workshop).problems == []


def test_a_test_table_needs_the_columns_of_training(workshop):
    workshop.write()
    for name in ("bank", "telco"):
        getattr(workshop, name).to_csv(workshop.folder / f"{name}-test.csv", index=False)
    workshop.telco.drop(columns="calls").to_csv(workshop.folder / "telco-test.csv", index=False)
    text = workshop.config.read_text()
    for name in ("bank", "telco"):
        text = text.replace(
            f'data = "{name}.csv"', f'data = "{name}.csv"\ntest = "{name}-test.csv"'
        )
    workshop.config.write_text(text)
    (problem,) = findings(workshop).problems
    assert "party 'telco', column 'calls': the test table lacks this column" in problem


def test_a_party_with_labels_only_is_noted(workshop):
    workshop.bank = workshop.bank[["customer", "default"]]
    workshop.write()
    found = findings(workshop)
    assert found.problems == []
    assert found.notes == ["party 'bank' has no columns besides id and label"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_a_device_that_is_not_there(workshop):
    workshop.write('[run]\ndevice = "cuda"\n')
    (problem,) = findings(workshop).problems
    assert "run.device = 'cuda'" in problem and 'device = "cpu"' in problem
