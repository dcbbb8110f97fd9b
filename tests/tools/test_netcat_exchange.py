"""Conversations with a scripted server over a socket pair."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tests.client.fake_server import encode_outputs
from trioserve_protocol import (
    ErrorCode,
    FrameType,
    admin_frame,
    cancel_frame,
    credit_frame,
    error_frame,
    frame,
    frame_bytes,
    ping_frame,
    pong_frame,
)
from trioserve_tools.netcat._exchange import Exchange, Manners, Outcome
from trioserve_tools.netcat._wire import Frame

INFER = frame_bytes(frame(FrameType.INFER, rid=1, handle=1, rows=1, flags=8, payload=bytes(16)))
RESULT = frame_bytes(
    frame(FrameType.RESULT, rid=1, rows=1, flags=8, payload=encode_outputs([np.ones((1, 4), np.float32)]))
)


@contextmanager
def server(script: Callable[[socket.socket], object]) -> Iterator[socket.socket]:
    near, far = socket.socketpair()
    far.settimeout(5)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            script(far)
        except BaseException as error:  # noqa: ASYNC103, BLE001  shown to the test
            failures.append(error)
        finally:
            far.close()

    thread = threading.Thread(target=run)
    thread.start()
    with near:
        yield near
    thread.join(5)
    if failures:
        raise failures[0]


def hold(sock: socket.socket, data: bytes, **manners: float | bool | None) -> tuple[Outcome, list[str]]:
    shown: list[str] = []

    def show(mark: str, found: Frame | bytes) -> None:
        shown.append(f"{mark} {found.name}" if isinstance(found, Frame) else f"{mark} {len(found)}")

    return Exchange(sock, data, Manners(**manners), show).run(), shown  # type: ignore[arg-type]


def read(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        chunk = sock.recv(nbytes - len(data))
        assert chunk, "the client is gone"
        data += chunk
    return data


def test_ends_when_every_answer_is_there() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, len(INFER) + 32)
        sock.sendall(credit_frame(5, 4096) + pong_frame(2) + RESULT)
        read(sock, 0)

    with server(script) as sock:
        assert hold(sock, INFER + ping_frame(2)) == (
            Outcome.ANSWERED, ["> INFER", "> PING", "< CREDIT", "< PONG", "< RESULT"],
        )  # fmt: skip


def test_an_infer_many_has_several_answers() -> None:
    many = frame_bytes(frame(FrameType.INFER_MANY, rid=1, handle=1, rows=3, flags=8, payload=bytes(16)))

    def script(sock: socket.socket) -> None:
        read(sock, len(many))
        sock.sendall(frame_bytes(frame(FrameType.RESULT_MANY, rid=2, rows=2, flags=8)))
        sock.sendall(error_frame(1, ErrorCode.SHED))

    with server(script) as sock:
        assert hold(sock, many)[0] is Outcome.ERRORS


def test_a_failed_administration_is_an_error() -> None:
    with server(lambda sock: sock.sendall(admin_frame(1, b"no", status=3))) as sock:
        assert hold(sock, admin_frame(1, b"{}"))[0] is Outcome.ERRORS


def test_the_connection_may_be_lost() -> None:
    with server(lambda sock: None) as sock:
        assert hold(sock, INFER)[0] is Outcome.LOST
    with server(lambda sock: sock.sendall(RESULT[:20])) as sock:
        assert hold(sock, INFER) == (Outcome.LOST, ["> INFER", "< 20"])


def test_an_error_of_the_connection_is_followed_to_its_end() -> None:
    with server(lambda sock: sock.sendall(error_frame(0, ErrorCode.INVALID_SIZE))) as sock:
        assert hold(sock, INFER)[0] is Outcome.ERRORS


def test_patience_has_an_end() -> None:
    with server(_read_and_wait) as sock:
        assert hold(sock, INFER, wait_s=0.02)[0] is Outcome.TIMED_OUT


def _read_and_wait(sock: socket.socket) -> None:
    read(sock, len(INFER))
    time.sleep(0.1)


def test_what_is_no_frame_is_waited_for_until_silence() -> None:
    def script(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 400\r\n")
        time.sleep(0.1)

    with server(script) as sock:
        assert hold(sock, b"GET / HTTP/1.1\r\n\r\n", wait_s=0.03) == (Outcome.ANSWERED, ["> 18", "< 14"])


def test_nothing_is_expected_of_a_cancel() -> None:
    with server(lambda sock: read(sock, 32)) as sock:
        assert hold(sock, cancel_frame(5))[0] is Outcome.ANSWERED


def test_cancels_after_a_time() -> None:
    def script(sock: socket.socket) -> None:
        read(sock, len(INFER))
        assert read(sock, 32) == cancel_frame(0)
        sock.sendall(error_frame(1, ErrorCode.CANCELLED_BY_CLIENT))

    with server(script) as sock:
        outcome, shown = hold(sock, INFER, cancel_after_s=0.01, half_close=True)
    assert outcome is Outcome.ERRORS
    assert shown == ["> INFER", "> CANCEL", "< ERROR"]


def test_sends_slowly() -> None:
    arrivals: list[int] = []

    def script(sock: socket.socket) -> None:
        total = 0
        while total < len(INFER):
            arrivals.append(len(sock.recv(100)))
            total += arrivals[-1]
        sock.sendall(RESULT)

    with server(script) as sock:
        assert hold(sock, INFER, bytes_per_s=500)[0] is Outcome.ANSWERED
    assert max(arrivals) <= 25


def test_half_closes_and_reads_on() -> None:
    def script(sock: socket.socket) -> None:
        assert read(sock, len(INFER)) == INFER
        assert sock.recv(1) == b""
        sock.sendall(RESULT)

    with server(script) as sock:
        assert hold(sock, INFER, half_close=True) == (Outcome.ANSWERED, ["> INFER", "< RESULT"])


def test_a_server_that_stops_listening_is_still_heard() -> None:
    def script(sock: socket.socket) -> None:
        sock.shutdown(socket.SHUT_RD)
        sock.sendall(error_frame(0, ErrorCode.TOO_MANY_CONNECTIONS))

    with server(script) as sock:
        time.sleep(0.02)
        assert hold(sock, INFER)[0] is Outcome.ERRORS
