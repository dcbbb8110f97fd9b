"""A link over a socket pair: nothing waits, so nothing is asynchronous here."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.client.fake_server import SCALE, WIDE
from tests.client.wire import result
from trioserve.client._calls import ControlCall, ModelKey
from trioserve.client._failures import ClientClosed, ConnectionLost
from trioserve.client._infer import InferCall
from trioserve.client._link import Link
from trioserve.client._session import Session
from trioserve.errors import TooManyConnections
from trioserve_protocol import (
    Cancel,
    Connection,
    ErrorCode,
    FrameType,
    Infer,
    Role,
    bound_frame,
    error_frame,
    frame,
    frame_bytes,
)

WIDE_KEY = ModelKey("wide", 0, None)
SCALE_KEY = ModelKey("scale", 0, None)
SMALL = np.arange(4, dtype=np.float32)
ROW = np.arange(50_000, dtype=np.float32)


class Ends:
    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(5)
        self.link = Link(near, Session({WIDE_KEY: WIDE, SCALE_KEY: SCALE}))
        self.server = Connection(Role.SERVER, large_nbytes=1 << 30)

    def infer(self, inputs: Any, key: ModelKey = WIDE_KEY) -> InferCall:
        call = InferCall(key, inputs, deadline_s=math.inf, on_done=lambda: None)
        self.link.session.submit(call)
        return call

    def bound(self) -> None:
        """Bind the wide model."""
        probe = self.infer([1])
        self.link.flush(0.0)
        self.receive()
        self.far.sendall(bound_frame(2, 1, WIDE))
        self.read()
        assert probe.error is not None

    def receive(self, nbytes: int = 1 << 20) -> bytes:
        return self.far.recv(nbytes)

    def read(self) -> None:
        while self.link.fill():
            self.link.feed(0.0)
            if self.link.session.ended is not None:
                break


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = Ends()
    yield pair
    pair.link.close()
    pair.far.close()


def test_what_the_kernel_does_not_take_goes_when_it_does(ends: Ends) -> None:
    ends.bound()
    x = np.arange(500_000, dtype=np.float32).reshape(10, 50_000)
    call = ends.infer(x)
    assert not ends.link.flush(0.0)
    assert ends.link.blocked
    data = b""
    while ends.link.blocked:
        data += ends.receive()
        ends.link.flush(0.0)
    while len(data) < 32 + x.nbytes:
        data += ends.receive()
    (event,), _ = ends.server.receive(memoryview(data))
    assert isinstance(event, Infer)
    assert np.array_equal(np.frombuffer(event.payload, np.float32).reshape(x.shape), x)
    assert not call.done


@pytest.mark.parametrize("chunk", [1, 7, 33, 4096])
def test_replies_are_understood_in_any_pieces(ends: Ends, chunk: int) -> None:
    call = ends.infer(SMALL, SCALE_KEY)
    ends.link.flush(0.0)
    data = bound_frame(2, 1, SCALE) + result(3, np.ones((1, 4), np.float32))
    for start in range(0, len(data), chunk):
        ends.far.sendall(data[start : start + chunk])
        ends.read()
    assert call.inference.output.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("chunk", [50_001, 150_000, 10_000_000])
def test_large_results_follow_each_other(ends: Ends, chunk: int) -> None:
    ends.bound()
    calls = [ends.infer(ROW + index) for index in range(3)]
    ends.far.settimeout(0)
    while not ends.link.flush(0.0):
        ends.receive()
    data = b"".join(result(3 + index, (ROW * index)[None]) for index in range(3))
    data += result(6, (ROW * 3)[None])
    last = ends.infer(ROW)
    while not ends.link.flush(0.0):
        ends.receive()
    position = 0
    while position < len(data):
        position += ends.far.send(data[position : position + chunk])
        ends.read()
    assert [call.inference.output[1] for call in [*calls, last]] == [0, 1, 2, 3]


def test_the_end_of_the_stream_ends_the_calls(ends: Ends) -> None:
    call = ends.infer(SMALL, SCALE_KEY)
    ends.link.flush(0.0)
    ends.far.shutdown(socket.SHUT_WR)
    ends.read()
    assert isinstance(call.error, ConnectionLost)
    assert "closed the connection" in call.error.message


def test_a_reset_ends_the_calls() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.setblocking(False)
    link = Link(near, Session({}))
    call = ControlCall(lambda: None)
    link.session.ping(call)
    link.flush(0.0)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    assert link.fill()
    link.feed(0.0)
    assert isinstance(call.error, ConnectionLost)
    assert "reset" in call.error.message
    link.close()
    listener.close()


def test_the_servers_last_word_is_read_even_when_it_does_not_listen_any_more(ends: Ends) -> None:
    first = ends.infer(SMALL, SCALE_KEY)
    ends.link.flush(0.0)
    ends.receive()
    ends.far.sendall(error_frame(0, ErrorCode.TOO_MANY_CONNECTIONS, "full"))
    ends.far.close()
    second = ends.infer(SMALL, SCALE_KEY)
    assert ends.link.flush(0.0)
    assert not first.done
    ends.read()
    assert isinstance(first.error, TooManyConnections)
    assert isinstance(second.error, TooManyConnections)


def test_parting_cancels_and_half_closes(ends: Ends) -> None:
    call = ends.infer(ROW)
    ends.link.flush(0.0)
    data = ends.receive()
    ends.link.part(ClientClosed(), 0.0)
    while chunk := ends.receive():
        data += chunk
    events, used = ends.server.receive(memoryview(data))
    assert used == len(data)
    assert events[-1] == Cancel(0, 1)
    assert isinstance(call.error, ClientClosed)
    ends.far.sendall(b"late")


def test_an_answer_of_a_megabyte_fits(ends: Ends) -> None:
    call = ControlCall(lambda: None)
    ends.link.session.admin(call, b"{}")
    text = b'"' + b"x" * 1_000_000 + b'"'
    data = frame_bytes(frame(FrameType.ADMIN, rid=2, payload=text))
    ends.far.settimeout(0)
    position = 0
    while position < len(data):
        position += ends.far.send(data[position:])
        ends.read()
    assert call.answer == text
