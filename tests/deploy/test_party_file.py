from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedmend.deploy.party_file import install_workers, load_party, open_site
from fedmend.errors import ConfigError, Refused
from fedmend.federation import Worker
from fedmend.federation.engines.flare.host import Hello
from fedmend.federation.policy import MACHINES_PREDICTIONS
from fedmend.flow.reading import split_by_id

HELLO = Hello("r1", "first", ("vfl",), 4, 0.3)


@pytest.fixture
def party(workshop):
    workshop.write()

    def write(text=""):
        path = workshop.folder / "party.toml"
        path.write_text(
            f'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n{text}'
        )
        return path

    return write


def test_a_site_is_opened_as_a_run_in_one_process_would(party, workshop):
    import fedmend as fm

    site = open_site(load_party(party()), HELLO, workshop.folder)
    table = fm.read(workshop.folder / "bank.csv", id="customer", label="default")
    train, test = split_by_id(table, 0.3, 4)
    assert site.tables["train"].equals(train)
    assert site.tables["test"].equals(test)
    assert (site.name, site.seed) == ("bank", 4)
    assert site.home == workshop.folder / "runs" / "r1"


def test_a_test_table_of_its_own_is_taken(party, workshop):
    workshop.bank.head(10).to_csv(workshop.folder / "later.csv", index=False)
    site = open_site(load_party(party('test = "later.csv"\n')), HELLO, workshop.folder)
    assert (len(site.tables["train"]), len(site.tables["test"])) == (160, 10)
    assert site.tables["test"].label == "default"


def test_the_policy_is_the_partys(party, workshop):
    text = '[policy]\nrefuse = ["gradient"]\nworkers = ["PairWorker"]\nmin_intersection = 50\n'
    file = load_party(party(f'device = "cpu"\nthreads = 2\n{text}'))
    before = torch.get_num_threads()
    try:
        site = open_site(file, HELLO, workshop.folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert site.policy == replace(file.policy.build(), predictions=MACHINES_PREDICTIONS)
    assert "gradient" not in site.policy.may_leave
    assert site.policy.workers == frozenset({"PairWorker"})
    assert site.policy.min_intersection == 50
    with pytest.raises(Refused, match="'bank' refused: the worker RosterWorker"):
        site.start("RosterWorker", "train", {})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("approve = 'perhaps'\n", ["approve", "'always'"]),
        ("threads = 0\n", ["threads"]),
        ("patience = -1\n", ["patience"]),
        ("shape = 1\n", ["shape", "is not known"]),
        ("device = 'tpu'\n", ["device"]),
        ("[policy]\nrefuse = ['labels']\n", ["labels", "Did you mean 'label'"]),
        ("sql = 'x'\n", ["both data and sql"]),
    ],
)
def test_what_is_wrong_is_named(party, text, parts):
    with pytest.raises(ConfigError) as caught:
        load_party(party(text))
    assert all(part in str(caught.value) for part in parts)


def test_no_file_and_no_toml(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_party(tmp_path)
    (tmp_path / "party.toml").write_text("name = ")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_party(tmp_path)


def test_every_worker_of_the_installation_is_known():
    install_workers()
    known = Worker.installed()
    for name in ("PairWorker", "AlignmentKeeper", "RosterWorker", "MergeWorker"):
        assert name in known
    modules = {
        each.__module__.split(".")[1] for each in known.values() if "fedmend." in each.__module__
    }
    assert {"secure", "split", "methods", "flow"} <= modules


def test_a_module_of_the_partys_own_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_workers.py").write_text(
        "from fedmend.federation import Worker\nclass OwnWorker(Worker):\n    '''mine'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    install_workers(["own_workers"])
    assert "OwnWorker" in Worker.installed()


@pytest.mark.parametrize("name", ["no_such_module_of_ours", "json.no_such_part"])
def test_a_module_that_is_not_there_is_named(name):
    with pytest.raises(ConfigError, match=f"modules: '{name}' cannot be imported.*Mend"):
        install_workers([name])
