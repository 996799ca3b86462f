from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs nvflare")

from fedmend.deploy.consent import give_answer, open_question
from fedmend.deploy.party_job import PartyJob
from fedmend.errors import ConfigError, Refused
from fedmend.federation.engines.flare.events import EVENTS_FILE, read_events
from fedmend.federation.engines.flare.host import Hello

HELLO = Hello("r1", "spring run", ("vfl",), 0, 0.25)


@pytest.fixture
def kit(workshop):
    workshop.write()
    (workshop.folder / "startup").mkdir()
    client = {"client": {"fqsn": "bank"}}
    (workshop.folder / "startup" / "fed_client.json").write_text(json.dumps(client))

    def make(text=""):
        (workshop.folder / "party.toml").write_text(
            f'name = "bank"\ndata = "bank.csv"\nid = "customer"\nlabel = "default"\n{text}'
        )
        return workshop.folder

    return make


def answer_soon(folder, yes):
    def answer():
        while open_question(folder) is None:
            time.sleep(0.05)
        give_answer(folder, yes)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_the_site_is_that_of_the_partys_own_file(kit):
    folder = kit("patience = 7\n")
    site = PartyJob().opener(folder)(HELLO)
    assert site.name == "bank"
    assert set(site.tables) == {"train", "test", "new"}
    assert len(site.tables["new"]) == 0
    assert PartyJob().patience(folder) == 7


def test_a_file_that_was_spoilt_since_is_told_to_its_owner_only(kit):
    folder = kit('[policy]\nrefuse = ["embeddings"]\n')
    assert PartyJob().patience(folder) == 180  # the job starts, to say so
    with pytest.raises(ConfigError, match="'bank': its party.toml cannot be used") as raised:
        PartyJob().opener(folder)(HELLO)
    assert "embeddings" not in str(raised.value) and raised.value.__cause__ is None
    ((event, _),) = read_events(folder / EVENTS_FILE)
    assert event.level == "error" and "unknown kind 'embeddings'" in event.words


def test_a_server_that_is_gone_is_not_a_job_that_ended(kits):
    words = PartyJob().why_ended(kits.party("bank"))  # nothing listens at its port
    assert words.startswith("the server is gone: localhost:") and "cannot be reached" in words


def test_a_party_that_wants_to_be_asked_is_asked(kit):
    folder = kit('approve = "ask"\n')
    thread = answer_soon(folder, True)
    assert PartyJob().opener(folder)(HELLO).name == "bank"
    thread.join()
    thread = answer_soon(folder, False)
    with pytest.raises(Refused, match="said no"):
        PartyJob().opener(folder)(HELLO)
    thread.join()


def test_the_people_of_a_party_are_not_asked_for_a_job_that_has_ended(kit):
    job = PartyJob()
    job._host = SimpleNamespace(over=True)
    with pytest.raises(Refused, match="nobody waits for an answer any more"):
        job.opener(kit('approve = "ask"\n'))(HELLO)


def test_the_file_is_read_anew_for_every_run(kit):
    job = PartyJob()
    opener = job.opener(kit())
    assert "weights" in opener(HELLO).policy.may_leave
    kit('[policy]\nrefuse = ["weights"]\n')
    assert "weights" not in opener(HELLO).policy.may_leave
