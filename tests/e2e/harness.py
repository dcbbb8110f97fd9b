"""A server in a process of its own, and a client that is nothing but a socket and the protocol's functions."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trioserve_protocol import (
    Admin,
    Bound,
    Connection,
    Error,
    Event,
    Flag,
    FrameType,
    Result,
    ResultBegin,
    ResultMany,
    Role,
    admin_frame,
    bind_frame,
    frame,
    frame_bytes,
)

ROOT = Path(__file__).parents[2]
START_S = 30.0
WAIT_S = 10.0
"""How long anything is waited for; none of it takes a tenth of that."""

END = int(Flag.END)
T = TypeVar("T")
Array = NDArray[np.float32]


def wait_for(what: Callable[[], T], within_s: float = WAIT_S) -> T:
    """The first truthy value of `what`, asked every few milliseconds."""
    end = time.monotonic() + within_s
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"waited {within_s} s in vain; last: {value!r}"
        time.sleep(0.005)


class ServerProcess:
    """A server process and its log."""

    def __init__(self, *models: str, stderr: int = subprocess.PIPE, **config: Any) -> None:
        config = {"port": 0, "log_format": "json", "state_dir": "", "admin": {"unix_path": ""}} | config
        paths = os.pathsep.join(path for path in [str(ROOT), *sys.path] if path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.served", json.dumps(config), *models],
            stderr=stderr,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self.pid = self.process.pid
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        if self.process.stderr is None:
            return
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"event": "not JSON", "line": line.decode(errors="replace")})

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has logged under a name so far."""
        return [entry for entry in list(self.log) if entry.get("event") == name]

    def wait_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Waits until something was logged `count` times; returns the last."""

        def logged() -> list[dict[str, Any]]:
            found = self.events(name)
            assert len(found) >= count or self.process.poll() is None, self.log
            return found if len(found) >= count else []

        return wait_for(logged, START_S)[-1]

    def wait_ready(self) -> Self:
        """Waits until clients can connect."""
        self.addresses: list[str] = self.wait_event("server_ready")["addresses"]
        self.idle_fds = self.fds()
        """Open descriptors without a connection."""
        return self

    @property
    def port(self) -> int:
        """Where it listens on the loopback interface."""
        [address] = [address for address in self.addresses if address.startswith("tcp://127.0.0.1:")]
        return int(address.rpartition(":")[2])

    @property
    def worker_pid(self) -> int:
        """The executor that was ready last."""
        return int(self.events("worker_ready")[-1]["pid"])

    def connect(self) -> Wire:
        """A new connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Wire(sock)

    def connect_unix(self) -> Wire:
        """A new connection over the Unix socket, whose kernel buffers are small and do not grow."""
        [address] = [address for address in self.addresses if address.startswith("unix://")]
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(address.removeprefix("unix://"))
        return Wire(sock)

    def statistics(self) -> dict[str, Any]:
        """By ADMIN, over a connection of its own."""
        with self.connect() as wire:
            answer = wire.admin("statistics")
        assert isinstance(answer, dict)
        return answer

    def assert_at_rest(self) -> None:
        """Everything that requests and connections hold is back."""

        def at_rest() -> bool:
            found = self.statistics()
            return (
                found["queued_nbytes"] == 0
                and found["sessions"] == 1
                and found["connections"]["open"] == 1
                and found["connections"]["unsent_nbytes"] == 0
                and all(
                    model["in_flight"] == model["queued_rows"] == model["announced_rows"] == 0
                    and model["slots"]["leased"] == model["permits"]["rows"] == 0
                    for model in found["models"]
                )
            )

        # First that all connections are gone: a server with as many as it takes would refuse to be asked.
        wait_for(lambda: self.fds() == self.idle_fds)
        wait_for(at_rest)
        wait_for(lambda: self.fds() == self.idle_fds)

    def fds(self) -> int:
        """Open descriptors of the server process."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def rss_nbytes(self) -> int:
        """Resident memory of the server process."""
        return status_of(self.pid, "VmRSS") * 1024

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.close()

    def close(self) -> None:
        """The end, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextmanager
def serving(*models: str, **config: Any) -> Iterator[ServerProcess]:
    """A server for the time of a `with` block, which ends in good order."""
    server = ServerProcess(*models, **config)
    try:
        yield server.wait_ready()
        assert server.stop() == 0
        assert not server.events("connection_failed")
    finally:
        server.close()


def status_of(pid: int, key: str) -> int:
    """A number of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise AssertionError(key)


class Closed(Exception):
    """The server has closed the connection; `reset` if not in good order."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "end of stream")
        self.reset = reset


class Wire:
    """A connection, seen frame by frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._poll = select.poll()  # not `select.select`: a crowd takes all the numbers that it knows
        self._poll.register(sock, select.POLLIN)
        self._machine = Connection(Role.CLIENT, vector_from=1 << 30)
        self._data = b""
        self._events: list[Event] = []
        self._rid = 1 << 32  # ids of the calls of this class, apart from those of tests

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, *frames: bytes) -> None:
        """All of it."""
        self.sock.sendall(b"".join(frames))

    def reset(self) -> None:
        """Closes with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def half_close(self) -> None:
        """FIN, and goes on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def receive(self, within_s: float = WAIT_S) -> Event:
        """The next event, its payload copied.

        Raises:
            Closed: there is none any more.
            TimeoutError: nothing came in time.
        """
        end = time.monotonic() + within_s
        while not self._events:
            left_ms = (end - time.monotonic()) * 1000
            if left_ms <= 0 or not self._poll.poll(left_ms):
                raise TimeoutError("nothing came")
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                raise Closed(reset=True) from None
            if not data:
                raise Closed(reset=False)
            self._data += data
            self._parse()
        return self._events.pop(0)

    def _parse(self) -> None:
        while self._data:
            events, consumed = self._machine.receive(memoryview(self._data))
            self._events += [
                event._replace(payload=memoryview(bytes(event.payload)))
                if isinstance(event, Result | ResultMany)
                else event
                for event in events
            ]
            self._data = self._data[consumed:]
            if self._events and isinstance(begin := self._events[-1], ResultBegin):
                self._events[-1] = self._large(begin)
            elif not self._machine.more:
                return

    def _large(self, begin: ResultBegin) -> Event:
        """Receives the whole of a large result."""
        self._machine.accept_body()
        body = bytearray(self._data[: begin.payload_nbytes])
        self._data = self._data[len(body) :]
        while len(body) < begin.payload_nbytes:
            data = self.sock.recv(begin.payload_nbytes - len(body))
            if not data:
                raise Closed(reset=False)
            body += data
        self._machine.body_received(begin.payload_nbytes)
        kind = ResultMany if begin.frame_type == FrameType.RESULT_MANY else Result
        return kind(
            begin.rid, begin.flags, begin.server_us, begin.queue_us, begin.rows, begin.meta, memoryview(body)
        )

    def receive_many(self, count: int) -> list[Event]:
        """The next `count` events."""
        return [self.receive() for _ in range(count)]

    def expect_error(self, code: int, rid: int | None = None) -> Error:
        """The next event, which is an error."""
        event = self.receive()
        assert isinstance(event, Error), event
        assert event.code == code, event
        assert rid is None or event.rid == rid, event
        return event

    def expect_closed(self, within_s: float = WAIT_S) -> bool:
        """Nothing more comes, and the server has closed; returns whether by RST."""
        try:
            event = self.receive(within_s)
        except Closed as closed:
            return closed.reset
        raise AssertionError(f"still open: {event}")

    def expect_silence(self, for_s: float = 0.05) -> None:
        """Nothing comes for a while, and the connection stays open."""
        try:
            event = self.receive(for_s)
        except TimeoutError:
            return
        raise AssertionError(f"not silent: {event}")

    # ---------------------------------------------------------------- calls

    def bind(self, model: str, handle: int = 1) -> Self:
        """BIND, answered."""
        self._rid += 1
        self.send(bind_frame(self._rid, handle, model))
        answer = self.receive()
        assert isinstance(answer, Bound), answer
        return self

    def admin(self, name: str) -> Any:
        """An ADMIN call."""
        self._rid += 1
        self.send(admin_frame(self._rid, json.dumps({"op": name}).encode()))
        answer = self.receive()
        assert isinstance(answer, Admin), answer
        return json.loads(answer.payload)

    def result(self, rid: int) -> Array:
        """The next event, which is the result of `rid`, as f32."""
        event = self.receive()
        assert isinstance(event, Result), event
        assert event.rid == rid, event
        return np.frombuffer(event.payload, np.float32)


def infer(
    rid: int,
    payload: bytes | Array,
    *,
    handle: int = 1,
    rows: int = 1,
    flags: int = 0,
    timeout_us: int = 0,
    meta: bytes = b"",
    many: bool = False,
) -> bytes:
    """An INFER, or an INFER_MANY."""
    data = payload if isinstance(payload, bytes) else payload.tobytes()
    kind = FrameType.INFER_MANY if many else FrameType.INFER
    return frame_bytes(
        frame(
            kind, rid=rid, handle=handle, flags=END | flags, timeout_us=timeout_us, rows=rows, meta=meta,
            payload=data,
        )
    )  # fmt: skip


def floats(event: Event) -> list[float]:
    """The payload of a result, as f32."""
    assert isinstance(event, Result), event
    values: list[float] = np.frombuffer(event.payload, np.float32).tolist()
    return values


def row(*values: float) -> Array:
    """One row of the small models."""
    return np.array([*values, *[0.0] * (4 - len(values))], np.float32)
