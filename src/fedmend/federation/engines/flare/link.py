"""A local socket between the coordinator's process and the job's: frames of bytes, many at once.

    frame = ticket (u64) | status (u8) | length of name (u8) | length (u64) | name | payload

Towards the job the name is a party's. The socket is a file that only this user can open; nothing
of a payload is read on the way.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import NamedTuple

from fedmend.errors import WireError
from fedmend.federation.wire import MAX_BYTES

HEAD = struct.Struct("<QBBQ")
OK, ABSENT, READY = 0, 1, 2


class Frame(NamedTuple):
    """One message over the link; `seconds` of patience ride in front of a request's payload."""

    ticket: int
    status: int
    name: str
    payload: bytes


class Link:
    """One end of the socket. Sending is safe from several threads; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, frame: Frame, *, wait: bool = True) -> bool:
        """Whether it was sent: without `wait`, not while another thread is sending."""
        name = frame.name.encode()
        head = HEAD.pack(frame.ticket, frame.status, len(name), len(frame.payload)) + name
        if not self._sending.acquire(blocking=wait):
            return False
        try:
            if len(frame.payload) < 1 << 16:
                self._end.sendall(head + frame.payload)
            else:
                self._end.sendall(head)
                self._end.sendall(frame.payload)
        finally:
            self._sending.release()
        return True

    def receive(self) -> Frame | None:
        """The next frame; None when the other end is gone."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        ticket, status, width, length = HEAD.unpack(head)
        if length > MAX_BYTES:
            raise WireError(f"a frame of {length:,} bytes is over the limit of {MAX_BYTES:,}")
        name, payload = self._exactly(width), self._exactly(length)
        if name is None or payload is None:
            return None
        return Frame(ticket, status, name.decode(), bytes(payload))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other end may have been quicker
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, count: int) -> bytearray | None:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = self._end.recv_into(view[at:])
            except OSError:
                return None
            if not got:
                return None
            at += got
        return data
