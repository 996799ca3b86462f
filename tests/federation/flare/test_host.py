from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmend._version import __version__
from fedmend.errors import DataError, FedmendError, PartyFailed, Refused, WireError
from fedmend.federation import wire
from fedmend.federation.engines.flare.events import read_events
from fedmend.federation.engines.flare.host import Hello, PartyHost, _Numbers
from fedmend.federation.engines.flare.messages import read_reply, request
from fedmend.federation.wire import VERSION
from tests.conftest import texts

from .conftest import TABLES, Clock, a_site

HELLO = Hello("r1", "first", ("VFL",), 0, 0.25).to_wire()


def say(host, operation, **content):
    return read_reply(host.answer(request(operation, **content)), "bank", operation)


@pytest.fixture
def session(host):
    return say(host, "hello", **HELLO)["session"]


def test_hello_start_call_bye(host, session):
    handle = say(host, "start", session=session, number=1, worker="Probe", scope="train", params={})
    value = say(host, "call", session=session, number=2, handle=handle, method="sums", kwargs={})
    assert value.tolist() == TABLES["bank"].frame[["x", "z"]].sum().tolist()
    assert say(host, "ping") == {"busy": ""}
    say(host, "bye", session=session, number=3, reason="finished")
    with pytest.raises(Refused, match="no session"):
        say(host, "stop", session=session, number=4, handle=handle)
    with pytest.raises(Refused, match="open already"):
        say(host, "hello", **HELLO)
    lines = (host.folder / "ledgers" / "r1.jsonl").read_text().splitlines()
    assert [json.loads(line)["call"] for line in lines].count("Probe.sums") == 2


def test_another_version_is_refused_with_both_named(host):
    with pytest.raises(Refused, match=f"fedmend 0.0.0 .* fedmend {__version__}"):
        say(host, "hello", **HELLO | {"version": "0.0.0"})
    with pytest.raises(Refused, match=rf"wire {VERSION + 1}\).*wire {VERSION}\)"):
        say(host, "hello", **HELLO | {"wire": VERSION + 1})


@pytest.mark.parametrize(
    "run", ["", "..", "../x", "a/b", "/etc", ".hidden", "x" * 200, "a b", "a\0b", "ä/"]
)
def test_a_run_cannot_name_a_place(host, run):
    with pytest.raises(WireError, match="no name for a run"):
        say(host, "hello", **HELLO | {"run": run})


@pytest.mark.parametrize("part", sorted(HELLO))
def test_a_hello_without_a_part_is_refused(host, part):
    with pytest.raises(WireError, match=part):
        say(host, "hello", **{key: value for key, value in HELLO.items() if key != part})


def test_an_oversized_hello_is_refused(host):
    with pytest.raises(WireError, match="a hello of"):
        say(host, "hello", **HELLO | {"title": "x" * (2 << 20)})


def test_a_replayed_message_is_refused_and_logged(host, session):
    message = request("start", session=session, number=1, worker="Probe", scope="train", params={})
    first = read_reply(host.answer(message), "bank", "start")
    with pytest.raises(Refused, match="message 1 came before"):
        read_reply(host.answer(message), "bank", "start")
    assert first == "Probe#1"
    assert "came before" in host.events.path.read_text()


def test_a_message_of_another_session_is_refused(host, session):
    for other in (b"\0" * 16, b"", session[:-1]):
        with pytest.raises(Refused, match="another session"):
            say(host, "stop", session=other, number=1, handle="Probe#1")


def test_only_the_coordinator_may_ask(host):
    with pytest.raises(Refused, match="telco is not the coordinator"):
        read_reply(host.answer(request("ping"), caller="telco"), "bank", "ping")


def test_unknown_workers_handles_and_methods(host, session):
    def ask(number, operation, **content):
        return say(host, operation, session=session, number=number, **content)

    with pytest.raises(Refused, match="no worker 'Subprocess'"):
        ask(1, "start", worker="Subprocess", scope="train", params={})
    handle = ask(2, "start", worker="Probe", scope="train", params={})
    with pytest.raises(Refused, match="not exposed"):
        ask(3, "call", handle=handle, method="__init__", kwargs={})
    with pytest.raises(Refused, match="no worker 'Probe#9'"):
        ask(4, "call", handle="Probe#9", method="sums", kwargs={})
    with pytest.raises(PartyFailed, match="TypeError"):
        ask(5, "call", handle=handle, method="sums", kwargs={"more": 1})
    with pytest.raises(PartyFailed):
        ask(6, "start", worker="Probe", scope="train", params={"what": 1})


def test_a_full_disk_is_an_answer_not_a_crash(host):
    ledger = host.folder / "ledgers" / "r1.jsonl"
    ledger.parent.mkdir()
    ledger.symlink_to("/dev/full")
    with pytest.raises(PartyFailed, match="No space left on device"):
        say(host, "hello", **HELLO)
    assert say(host, "ping") == {"busy": ""}
    assert "No space left" in host.events.path.read_text()
    ledger.unlink()  # there is room again
    session = say(host, "hello", **HELLO)["session"]
    assert say(host, "start", session=session, number=1, worker="Probe", scope="train", params={})


def test_a_coordinator_that_vanished_ends_the_job(tmp_path):
    gone = threading.Event()
    host = PartyHost(
        "bank",
        lambda _: a_site(),
        tmp_path,
        patience=0.3,
        lost=gone.set,
    )
    say(host, "hello", **HELLO)
    assert gone.wait(5)
    assert "has not been heard" in (tmp_path / "events.jsonl").read_text()


class Asking:
    """The opener of a party whose people are asked, and do not answer while the job goes on."""

    def __init__(self, patience=180.0):
        self.asked, self.gone, self.host = threading.Event(), threading.Event(), None
        self.patience = patience

    def at(self, folder):
        more = {"patience": self.patience, "lost": self.gone.set}
        self.host = PartyHost("bank", self, folder, **more)
        return self.host

    def __call__(self, hello):
        self.asked.set()
        while not self.host.over:
            time.sleep(0.01)
        return a_site()


def test_a_job_that_ends_while_people_are_asked_says_that_the_run_did_not_begin(tmp_path):
    asking = Asking()
    host = asking.at(tmp_path)

    def leave():
        assert asking.asked.wait(10)
        host.close("the coordinator left")

    threading.Thread(target=leave).start()
    with pytest.raises(Refused, match="the job has ended"):
        say(host, "hello", **HELLO)
    said = [event.words for event, _ in read_events(host.events.path)]
    assert said[0].startswith("the coordinator asks for a run 'first'")
    assert said[1:] == ["run 'first' did not begin: the coordinator left"]


def test_a_coordinator_that_vanished_while_people_are_asked_ends_the_job(tmp_path):
    asking = Asking(patience=0.3)
    with pytest.raises(Refused, match="the job has ended"):
        say(asking.at(tmp_path), "hello", **HELLO)
    assert asking.gone.wait(5)
    assert "run 'first' did not begin: the coordinator was lost" in (
        asking.host.events.path.read_text()
    )


def test_a_party_that_slept_blames_nobody(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedmend.federation.engines.flare.host.time", clock)
    gone = threading.Event()
    opener = lambda _: a_site()  # noqa: E731
    host = PartyHost("bank", opener, tmp_path, patience=30.0, lost=gone.set)
    say(host, "hello", **HELLO)
    clock.slept = 3600.0
    assert not gone.wait(2.5)
    say(host, "ping")
    clock.slept += 1.5
    host.close("the test ended")


@given(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda op, extra: wire.encode({"op": op, **extra}),
            st.sampled_from(["hello", "start", "call", "stop", "ledger", "bye", "rm"]),
            st.dictionaries(
                st.sampled_from(["session", "number", "handle", "method", "kwargs", "worker"]),
                st.one_of(st.none(), st.integers(), texts(max_size=5), st.binary(max_size=5)),
            ),
        ),
    )
)
def test_whatever_comes_is_answered(message):
    host = _SHARED.setdefault("host", None) or _shared_host()
    with pytest.raises(FedmendError):
        read_reply(host.answer(message), "bank", "x")


_SHARED: dict = {}


def _shared_host():
    import tempfile
    from pathlib import Path

    _SHARED["host"] = PartyHost("bank", lambda _: a_site(), Path(tempfile.mkdtemp()))
    return _SHARED["host"]


@given(st.permutations(range(1, 30)))
def test_numbers_are_taken_once_in_any_order(order):
    numbers = _Numbers()
    assert all(numbers.take(number) for number in order)
    assert not any(numbers.take(number) for number in order)
    assert not numbers._above
    assert not numbers.take(0)
    assert not numbers.take(10**9)


def test_an_error_about_a_name_that_is_no_text_is_answered(tmp_path):
    def opener(hello):
        raise DataError("cannot be read", column="caf\udce9.csv", mend="rename it")

    host = PartyHost("bank", opener, tmp_path)
    with pytest.raises(DataError, match="caf.*udce9.csv.*cannot be read"):
        say(host, "hello", **HELLO)
    assert say(host, "ping") == {"busy": ""}
    host.close("done")


def test_a_message_of_somebody_else_does_not_make_a_busy_party_idle(host, session):
    handle = say(host, "start", session=session, number=1, worker="Probe", scope="train", params={})
    asked = {"handle": handle, "method": "sleep", "kwargs": {"seconds": 1.0}}
    working = threading.Thread(
        target=say, args=(host, "call"), kwargs={"session": session, "number": 2, **asked}
    )
    working.start()
    while say(host, "ping") == {"busy": ""}:
        pass
    with pytest.raises(Refused):
        read_reply(host.answer(request("ping"), caller="telco"), "bank", "ping")
    assert say(host, "ping") == {"busy": "Probe.sleep"}
    working.join()


def test_words_from_elsewhere_cannot_paint_on_the_party_s_screen(host):
    words = "VFL\x1b[2J\r10:00:00  nothing happened\n10:00:01  nothing\u202e"
    say(host, "hello", **HELLO | {"title": words, "methods": [words]})
    said = [json.loads(line)["words"] for line in host.events.path.read_text().splitlines()]
    for each in said:
        first, *more = each.split("\n")
        assert all(line.startswith("    ") for line in more)
        assert all(line.isprintable() for line in (first, *more))
    assert any("VFL\ufffd[2J" in each for each in said)


def test_words_of_a_party_cannot_paint_on_the_coordinator_s_screen(tmp_path):
    def opener(hello):
        raise DataError("bad\x1b[2J", column="a\rb", mend="x\x07")

    host = PartyHost("bank", opener, tmp_path)
    with pytest.raises(DataError) as caught:
        say(host, "hello", **HELLO)
    assert str(caught.value).isprintable()
    host.close("done")
