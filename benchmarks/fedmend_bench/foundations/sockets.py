"""Bytes that TCP connections have carried, as the kernel counts them (Linux, NETLINK_SOCK_DIAG).

A step over the network costs what TLS, gRPC and FLARE add to it; only the kernel sees all of that.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

__all__ = ["carried_bytes"]

_SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP_REQUEST = 0x301
_ESTABLISHED = 1 << 1
_EXTENSION_INFO = 2
_HEAD = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI48s")
_ANSWER_BYTES = 72
# Within struct tcp_info: bytes acknowledged by the peer, and bytes received.
_ACKED_RECEIVED = struct.Struct("=QQ")
_ACKED_AT = 120


def carried_bytes(port: int) -> int:
    """Bytes sent and received so far by the established connections of a server on `port`."""
    total = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        for local_port, info in _connections(family):
            if local_port == port and len(info) >= _ACKED_AT + _ACKED_RECEIVED.size:
                total += sum(_ACKED_RECEIVED.unpack_from(info, _ACKED_AT))
    return total


def _connections(family: int) -> Iterator[tuple[int, bytes]]:
    """Local port and tcp_info of every established connection."""
    query = _QUERY.pack(family, socket.IPPROTO_TCP, _EXTENSION_INFO, 0, _ESTABLISHED, b"")
    # The extensions are asked for as a bit: 1 << (INET_DIAG_INFO - 1), which is 2 as well.
    message = _HEAD.pack(_HEAD.size + len(query), _BY_FAMILY, _DUMP_REQUEST, 1, 0) + query
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
        link.send(message)
        while True:
            for kind, body in _messages(link.recv(1 << 16)):
                if kind == 3:  # done
                    return
                if kind == 2:  # error
                    (code,) = struct.unpack_from("=i", body)
                    raise OSError(-code, os.strerror(-code))
                yield struct.unpack_from("!H", body, 4)[0], _info(body[_ANSWER_BYTES:])


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(data):
        length, kind, *_ = _HEAD.unpack_from(data, at)
        yield kind, data[at + _HEAD.size : at + length]
        at += (length + 3) & ~3


def _info(attributes: bytes) -> bytes:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == _EXTENSION_INFO:
            return attributes[at + 4 : at + length]
        at += max(4, (length + 3) & ~3)
    return b""
