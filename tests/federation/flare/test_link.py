from __future__ import annotations

import socket
import threading

import pytest

from fedmend.errors import WireError
from fedmend.federation.engines.flare.link import HEAD, OK, READY, Frame, Link


@pytest.fixture
def ends():
    one, two = socket.socketpair()
    links = Link(one), Link(two)
    yield links
    for link in links:
        link.close()


def test_frames_arrive_as_they_were(ends):
    here, there = ends
    for frame in (
        Frame(7, OK, "bank", b"abc"),
        Frame(0, READY, "", b""),
        Frame(2**63, 1, "é", b"x"),
    ):
        here.send(frame)
        assert there.receive() == frame


def test_a_large_frame_arrives_whole(ends):
    here, there = ends
    frame = Frame(1, OK, "bank", bytes(range(256)) * 20_000)
    sender = threading.Thread(target=here.send, args=(frame,))
    sender.start()
    assert there.receive() == frame
    sender.join()


def test_frames_of_many_threads_do_not_mix(ends):
    here, there = ends

    def send(number):
        for _ in range(20):
            here.send(Frame(number, OK, f"p{number}", bytes([number]) * 70_000))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        frame = there.receive()
        assert frame.payload == bytes([frame.ticket]) * 70_000
        assert frame.name == f"p{frame.ticket}"
    for thread in threads:
        thread.join()


def test_the_end_of_the_other_side_is_none(ends):
    here, there = ends
    here.close()
    assert there.receive() is None


def test_a_frame_cut_off_is_the_end():
    one, two = socket.socketpair()
    one.sendall(HEAD.pack(1, OK, 4, 100) + b"bank" + b"only this")
    one.close()
    link = Link(two)
    assert link.receive() is None
    link.close()


def test_an_impossible_length_is_refused():
    one, two = socket.socketpair()
    one.sendall(HEAD.pack(1, OK, 0, 1 << 60))
    link = Link(two)
    with pytest.raises(WireError, match="over the limit"):
        link.receive()
    link.close()
    one.close()
