"""Sending bytes as badly as asked, and reading what comes back."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from trioserve_protocol import FrameType, cancel_frame

from ._wire import ANSWERED, REQUESTS, Frame, Splitter

_READ_NBYTES = 1 << 20
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_SLICE_S = 0.05
"""A slow sender writes this often."""


class Outcome(IntEnum):
    """How an exchange ended; the numbers are exit codes."""

    ANSWERED = 0
    ERRORS = 1
    LOST = 4
    TIMED_OUT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How to behave."""

    wait_s: float = 5.0
    """How long to wait for the next sign of the server, in seconds."""

    bytes_per_s: float | None = None
    """How slowly to send; None: at full speed."""

    half_close: bool = False
    """Whether to close the sending half once all is sent, and read until the server closes too."""

    cancel_after_s: float | None = None
    """When to cancel what is in flight, in seconds after all was sent; None: never."""


class Exchange:
    """One conversation over a connected socket."""

    def __init__(
        self, sock: socket.socket, data: bytes, manners: Manners, show: Callable[[str, Frame | bytes], None]
    ) -> None:
        """Prepare it.

        Args:
            sock: Connected; stays the caller's.
            data: What to send, frames or not.
            manners: How.
            show: Called with `<` or `>` and each frame, or bytes that are none.
        """
        self._sock = sock
        self._unsent = memoryview(data)
        self._manners = manners
        self._show = show
        self._splitter = Splitter()
        self._errors = False
        self._heard = False
        self._expected: dict[int, int] = {}
        self._open_ended = self._expect(data)
        self._next_write_s = 0.0
        self._cancel_s: float | None = None
        self._deadline_s = 0.0
        self._half_closed = False

    def run(self) -> Outcome:
        """Hold the conversation to its end."""
        self._sock.setblocking(False)
        self._deadline_s = time.monotonic() + self._manners.wait_s
        while True:
            now_s = time.monotonic()
            self._cancel_if_due(now_s)
            if self._finished():
                return self._result(Outcome.ANSWERED)
            if now_s >= self._deadline_s:
                done = self._open_ended and self._heard and not self._expected
                return self._result(Outcome.ANSWERED if done else Outcome.TIMED_OUT)
            readable, writable = self._wait(now_s)
            if writable:
                self._write()
            if readable and not self._read():
                return self._result(Outcome.LOST if self._expected else Outcome.ANSWERED)

    def _expect(self, data: bytes) -> bool:
        """Note which answers the frames in `data` call for; returns whether that cannot be told of all of it."""
        splitter = Splitter()
        for frame in splitter.feed(data):
            self._show(">", frame)
            if frame.frame_type in REQUESTS or frame.frame_type in ANSWERED:
                self._expected[frame.rid] = self._expected.get(frame.rid, 0) + len(frame.ids)
        if splitter.rest:
            self._show(">", splitter.rest)
        return bool(splitter.rest)

    def _finished(self) -> bool:
        waiting = self._unsent or self._expected or self._open_ended or self._manners.half_close
        return not waiting

    def _result(self, outcome: Outcome) -> Outcome:
        if self._splitter.rest:
            self._show("<", self._splitter.rest)
        if outcome is Outcome.ANSWERED and self._errors:
            return Outcome.ERRORS
        return outcome

    def _wait(self, now_s: float) -> tuple[bool, bool]:
        poller = select.poll()
        wakes = [self._deadline_s]
        if self._cancel_s is not None:
            wakes.append(self._cancel_s)
        if not self._unsent or now_s >= self._next_write_s:
            poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        else:
            wakes.append(self._next_write_s)
            poller.register(self._sock, select.POLLIN)
        ready = dict(poller.poll(max(0.0, min(wakes) - now_s) * 1000 + 1))
        events = ready.get(self._sock.fileno(), 0)
        return bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)

    def _write(self) -> None:
        part = self._unsent
        now_s = time.monotonic()
        if self._manners.bytes_per_s is not None:
            part = part[: max(1, round(self._manners.bytes_per_s * _SLICE_S))]
            self._next_write_s = now_s + len(part) / self._manners.bytes_per_s
        try:
            sent = self._sock.send(part)
        except _NOT_NOW:
            return
        except OSError:
            self._unsent = self._unsent[:0]  # What the server said about it is still to be read.
            return
        self._unsent = self._unsent[sent:]
        self._deadline_s = now_s + self._manners.wait_s
        if not self._unsent:
            self._all_sent(now_s)

    def _all_sent(self, now_s: float) -> None:
        if self._manners.cancel_after_s is not None and not self._half_closed:
            self._cancel_s = now_s + self._manners.cancel_after_s
        elif self._manners.half_close and not self._half_closed:
            self._half_closed = True
            self._sock.shutdown(socket.SHUT_WR)

    def _cancel_if_due(self, now_s: float) -> None:
        if self._cancel_s is None or now_s < self._cancel_s:
            return
        self._cancel_s = None
        cancel = cancel_frame(0)
        self._show(">", Frame.parse(cancel))
        self._unsent = memoryview(bytes(self._unsent) + cancel)
        self._manners = Manners(wait_s=self._manners.wait_s, half_close=self._manners.half_close)

    def _read(self) -> bool:
        """Read once; returns whether the server is still there."""
        try:
            data = self._sock.recv(_READ_NBYTES)
        except _NOT_NOW:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        self._heard = True
        self._deadline_s = time.monotonic() + self._manners.wait_s
        for frame in self._splitter.feed(data):
            self._show("<", frame)
            self._settle(frame)
        if self._splitter.broken:
            self._open_ended = True
        return True

    def _settle(self, frame: Frame) -> None:
        kind = frame.frame_type
        failed = kind == FrameType.ERROR or (kind == FrameType.ADMIN and frame.handle != 0)
        self._errors = self._errors or failed
        if kind == FrameType.ERROR and not frame.rid:
            self._expected.clear()  # It concerns the connection: nothing more is promised.
            self._open_ended = True
            return
        first = next((rid for rid in sorted(self._expected, reverse=True) if rid <= frame.rid), None)
        if first is None or kind in (FrameType.CREDIT, FrameType.GOAWAY, FrameType.PARTIAL):
            return
        self._expected[first] -= len(frame.ids)
        if self._expected[first] <= 0:
            del self._expected[first]
