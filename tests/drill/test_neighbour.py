from __future__ import annotations

import socket

import pytest

from trioserve_protocol import ping_frame
from trioserve_tools.drill.neighbour import main, receive


def test_frames_are_taken_whole_or_not_at_all() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = ping_frame(1, b"12345678")
        theirs.sendall(frame + frame[:-1])
        theirs.shutdown(socket.SHUT_WR)
        assert receive(ours) == frame
        with pytest.raises(ConnectionError):
            receive(ours)


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        main([str(port)])
