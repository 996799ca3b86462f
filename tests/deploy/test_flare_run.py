"""What a run over machines does when a party is absent, decided without a machine."""

from __future__ import annotations

import pytest

from fedmend.deploy.flare_run import _after, _run_name, execute_flare
from fedmend.errors import ConfigError, PartyAbsent
from fedmend.flow import Listener
from fedmend.flow.config import load_config

GONE = PartyAbsent("telco", "its job ended", "Step.forward")
NEVER_CAME = PartyAbsent("telco", "not connected to the server within 60 s")


class Told(Listener):
    def __init__(self):
        self.words = []

    def stage(self, words):
        self.words.append(words)


@pytest.fixture
def config(workshop):
    def make(how, more=""):
        workshop.write(f'{more}[flare]\non_absent = "{how}"\n')
        return load_config(workshop.config)

    return make


def third_party(workshop):
    workshop.telco.rename(columns={"calls": "visits", "minutes": "spent"}).to_csv(
        workshop.folder / "shop.csv", index=False
    )
    return '[[party]]\nname = "shop"\ndata = "shop.csv"\nid = "customer"\n\n'


def test_stop_stops(config):
    with pytest.raises(PartyAbsent, match="'telco' is absent during Step.forward"):
        _after(GONE, config("stop"), Listener())


def test_wait_resumes_unless_the_party_was_waited_for_already(config):
    found, told = config("wait"), Told()
    assert _after(GONE, found, told) == (found, True, False)
    assert told.words == ["telco is absent (its job ended); waiting for it"]
    with pytest.raises(PartyAbsent, match="not connected"):
        _after(NEVER_CAME, found, told)


def test_continue_starts_over_with_the_rest(config, workshop):
    found, told = config("continue", third_party(workshop)), Told()
    fewer, resume, force = _after(GONE, found, told)
    assert [party.name for party in fewer.party] == ["bank", "shop"]
    assert (resume, force) == (False, True)
    assert told.words == ["telco is absent (its job ended); starting over without it"]
    assert len(found.party) == 3


def test_continue_needs_two_parties_and_a_label(config, workshop):
    two = config("continue")
    with pytest.raises(PartyAbsent) as caught:
        _after(PartyAbsent("telco", "gone", "x"), two, Listener())
    assert "bank cannot go on without telco" in caught.value.__notes__[0]
    three = config("continue", third_party(workshop))
    with pytest.raises(PartyAbsent) as caught:
        _after(PartyAbsent("bank", "gone", "x"), three, Listener())
    assert "telco, shop cannot go on without bank" in caught.value.__notes__[0]


def test_a_run_has_one_name_however_often_it_is_resumed(tmp_path):
    work = tmp_path / "Spring run (1).part"
    work.mkdir()
    name, resumed = _run_name(work)
    assert name.startswith("Spring-run--1--")
    assert not resumed
    assert _run_name(work) == (name, True)
    (work / "run.name").write_text("")
    again, resumed = _run_name(work)
    assert len(again) == len(name)
    assert not resumed
    other = tmp_path / "other" / work.name
    other.mkdir(parents=True)
    assert _run_name(other)[0] != name


def test_kits_that_were_never_made_are_told_before_anything_starts(config, tmp_path):
    with pytest.raises(ConfigError, match="fedmend provision"):
        execute_flare(config("stop"), tmp_path / "run")
