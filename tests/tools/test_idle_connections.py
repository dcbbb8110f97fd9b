from __future__ import annotations

import resource
import socket
import threading

import pytest

from trioserve_protocol import ErrorCode, FrameType, error_frame, frame, frame_bytes
from trioserve_tools.idle_connections import SPARE_FDS, affordable, idle_connections


def test_as_many_as_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(64, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    assert affordable(500) == 500
    assert limits[-1] == (500 + SPARE_FDS, 1000)
    assert affordable(5000) == 1000 - SPARE_FDS
    assert limits[-1] == (1000, 1000)
    limits.append((64, resource.RLIM_INFINITY))
    assert affordable(5000) == 5000
    count = len(limits)
    assert affordable(10) == 10
    assert len(limits) == count


@pytest.mark.parametrize("refused", [False, True])
def test_each_has_bound_its_model(*, refused: bool) -> None:
    bound = frame_bytes(frame(FrameType.BOUND, rid=1, meta=bytes(16)))
    answers = [bound, error_frame(1, ErrorCode.MODEL_NOT_FOUND) if refused else bound]
    seen: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            peer, _ = listener.accept()
            seen.append(peer.recv(100))
            peer.sendall(answer)
            peers.append(peer)

    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        if refused:
            with (
                pytest.raises(ConnectionError, match="connection 2 of 2 is refused"),
                idle_connections(port, 2, "double"),
            ):
                raise AssertionError
        else:
            with idle_connections(port, 2, "double") as opened:
                assert len(opened) == 2
        thread.join(10)
        assert [peer.recv(1) for peer in peers] == [b"", b""]
        for peer in peers:
            peer.close()
    assert all(b"double" in data for data in seen)
