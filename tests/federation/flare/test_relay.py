"""The relay's step from a frame to FLARE's cell and back; the cell answers as it is told."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("nvflare", reason="the relay runs in FLARE's process")

from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply

from fedmend.federation.engines.flare.collab import _hand_on
from fedmend.federation.engines.flare.link import ABSENT, OK, SECONDS, Frame, Link

QUESTION = SECONDS.pack(7.0) + b"question"


class Cell:
    """A core cell whose answer is given, or raised."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def send_request(self, channel, topic, target, request, timeout):
        self.asked.append((target, request.payload, timeout))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def hand_on():
    ours, theirs = (Link(end) for end in socket.socketpair())

    def hand(answer, party="bank", payload=QUESTION):
        cell = Cell(answer)
        _hand_on(theirs, cell, {"bank": "server.bank"}, Frame(5, OK, party, payload))
        return cell, ours.receive()

    yield hand
    ours.close()
    theirs.close()


def test_a_question_goes_to_the_party_s_cell_and_the_answer_back(hand_on):
    cell, frame = hand_on(make_reply(ReturnCode.OK, body=b"answer"))
    assert cell.asked == [("server.bank", b"question", 7.0)]
    assert frame == Frame(5, OK, "bank", b"answer")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (make_reply(ReturnCode.TIMEOUT), "no answer within 7 s"),
        (make_reply(ReturnCode.TARGET_UNREACHABLE), "FLARE cannot reach it"),
        (make_reply(ReturnCode.OK), "the relay could not hand it on"),
        (RuntimeError("the cell is closed"), "the relay could not hand it on (RuntimeError"),
    ],
)
def test_whatever_goes_wrong_is_an_answer(hand_on, answer, words):
    """Without one, the coordinator would wait as long as a call may take: an hour."""
    _, frame = hand_on(answer)
    assert (frame.ticket, frame.status) == (5, ABSENT)
    assert words in frame.payload.decode()


def test_a_party_of_another_job_is_not_asked(hand_on):
    cell, frame = hand_on(None, party="telco")
    assert cell.asked == [] and frame == Frame(5, ABSENT, "telco", b"is not in the job")


def test_a_frame_without_its_seconds_is_answered(hand_on):
    _, frame = hand_on(None, payload=b"x")
    assert frame.status == ABSENT
