"""A server for the client's tests: the protocol machine in the server's role on a real socket, driven by the test."""

from __future__ import annotations

import functools
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from trioserve_protocol import (
    Admin,
    Bind,
    Cancel,
    Connection,
    DType,
    ErrorCode,
    Event,
    FatalError,
    FrameType,
    Hello,
    Infer,
    InferBegin,
    InferMany,
    Ping,
    Role,
    Signature,
    Tag,
    TensorSpec,
    bound_frame,
    check_bytes_tensor,
    check_request,
    encode_bytes,
    error_frame,
    frame,
    frame_bytes,
    infer_flags,
    parse_request_meta,
    pong_frame,
    tlv,
)

SCALE = Signature((TensorSpec("x", DType.F32, (-1, 4)),), (TensorSpec("y", DType.F32, (-1, 4)),), max_rows=64)
WIDE = Signature(
    (TensorSpec("x", DType.F32, (-1, 50_000)),), (TensorSpec("y", DType.F32, (-1, 50_000)),), max_rows=64
)
PAIR = Signature(
    (TensorSpec("a", DType.I32, (-1, 3)), TensorSpec("b", DType.U8, (-1,))),
    (TensorSpec("sum", DType.I64, (-1,)), TensorSpec("flag", DType.BOOL, (-1, 3))),
)
LENGTHS = Signature((TensorSpec("text", DType.BYTES, (-1,)),), (TensorSpec("n", DType.I32, (-1,)),))
UPPER = Signature((TensorSpec("text", DType.BYTES, (-1,)),), (TensorSpec("upper", DType.BYTES, (-1,)),))

Script = Callable[["FakeServer"], Coroutine[Any, Any, None]]
Outputs = list[np.ndarray]
Model = tuple[Signature, Callable[..., Outputs]]

MODELS: dict[str, Model] = {
    "echo": (SCALE, lambda x: [x]),
    "scale": (SCALE, lambda x: [x * 2]),
    "wide": (WIDE, lambda x: [x + 1]),
    "pair": (PAIR, lambda a, b: [a.sum(axis=1, dtype=np.int64) + b, a > 0]),
    "lengths": (LENGTHS, lambda text: [np.array([len(t) for t in text], np.int32)]),
    "upper": (UPPER, lambda text: [np.array([t.upper() for t in text], object)]),
}


def on_both(test: Callable[[], Awaitable[None]]) -> Callable[[str], None]:
    """Run an async test under Trio and under asyncio, with a guard that puts no deadline on the test's own scope."""

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def run(backend: str) -> None:
        async def guarded() -> None:
            async with anyio.create_task_group() as guard:
                guard.start_soon(_watchdog)
                await test()
                guard.cancel_scope.cancel()

        try:
            anyio.run(guarded, backend=backend)
        except BaseExceptionGroup as group:
            raise _only(group) from None

    functools.update_wrapper(
        run, test, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=()
    )
    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take the signature from it
    return run


async def _watchdog() -> None:
    await anyio.sleep(10)
    pytest.fail("the test hangs")


def _only(group: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket, *, hello: bool) -> None:
        self.sock = sock
        self.events: list[Event] = []
        self.seen: list[Event] = []
        self._wire = Connection(Role.SERVER, large_nbytes=1 << 30, vector_from=1 << 30)
        self._data = bytearray()
        self._hello = hello

    async def next(self, kind: type[Any] | None = None) -> Any:
        """Return the next event, HELLO left out (it gets its WELCOME); None at the end of the stream."""
        while True:
            while self.events:
                event = self.events.pop(0)
                self.seen.append(event)
                if isinstance(event, Hello) and self._hello:
                    await self.send(frame(FrameType.WELCOME, rid=event.rid))
                    continue
                if kind is not None:
                    assert isinstance(event, kind), event
                return event
            if not await self._read():
                return None

    async def _read(self) -> bool:
        data: bytes | None = None
        while data is None:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                await anyio.wait_readable(self.sock)
            except ConnectionError:
                return False
        if not data:
            return False
        self._data += data
        copied = memoryview(bytes(self._data))
        events, used = self._wire.receive(copied)
        del self._data[:used]
        self.events += events
        return True

    async def send(self, data: Any) -> None:
        left = memoryview(data if isinstance(data, bytes) else frame_bytes(data))
        while left:
            try:
                left = left[self.sock.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self.sock)
            except ConnectionError:
                return  # The next read says so too.

    async def bound(self, signature: Signature) -> Bind:
        """Take a BIND and answer it."""
        event: Bind = await self.next(Bind)
        await self.send(bound_as(event, signature))
        return event

    async def result(
        self, rid: int, *outputs: np.ndarray, rows: int | None = None, meta: bytes = b"", **fields: int
    ) -> None:
        """Send a RESULT."""
        payload = encode_outputs(outputs)
        rows = len(outputs[0]) if rows is None else rows
        flags = infer_flags()
        await self.send(
            frame(FrameType.RESULT, rid=rid, rows=rows, flags=flags, meta=meta, payload=payload, **fields)
        )

    async def results(self, rid: int, *outputs: np.ndarray) -> None:
        """Send a RESULT_MANY."""
        payload, rows = encode_outputs(outputs), len(outputs[0])
        await self.send(
            frame(FrameType.RESULT_MANY, rid=rid, rows=rows, flags=infer_flags(), payload=payload)
        )

    async def serve(self) -> None:
        """Answer everything, until the client is gone."""
        handles: dict[int, Model] = {}
        while (event := await self.next()) is not None:
            if isinstance(event, Bind):
                await self._serve_bind(event, handles)
            elif isinstance(event, Infer | InferMany):
                await self._serve_infer(event, handles)
            elif isinstance(event, Ping):
                await self.send(pong_frame(event.rid, event.payload))
            elif isinstance(event, Admin):
                await self.send(
                    frame(FrameType.ADMIN, rid=event.rid, payload=b'{"asked":' + event.payload + b"}")
                )
            else:
                assert isinstance(event, Cancel | FatalError), event

    async def _serve_bind(self, event: Bind, handles: dict[int, Model]) -> None:
        if event.model not in MODELS:
            await self.send(error_frame(event.rid, ErrorCode.MODEL_NOT_FOUND, f"no model {event.model!r}"))
            return
        handles[event.handle] = MODELS[event.model]
        await self.send(bound_frame(event.rid, event.handle, MODELS[event.model][0]))

    async def _serve_infer(self, event: Infer | InferMany, handles: dict[int, Model]) -> None:
        many = isinstance(event, InferMany)
        count = event.rows if many else 1
        model = handles.get(event.handle)
        if not event.handle:
            model = MODELS.get(parse_request_meta(event.meta, bound=False).model or "")
        if model is None:
            code = ErrorCode.HANDLE_NOT_BOUND if event.handle else ErrorCode.MODEL_NOT_FOUND
            await self.send(error_frame(event.rid, code, count=count))
            return
        signature, function = model
        bound, nbytes = bool(event.handle), len(event.payload)
        fault = check_request(signature, event.rows, nbytes, event.meta, many=many, bound=bound)
        if fault is not None:
            await self.send(error_frame(event.rid, fault.code, fault.message, count=count))
            return
        outputs = function(*decode_inputs(signature, event.rows, event.payload))
        answer = self.results if many else self.result
        await answer(event.rid, *outputs)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close with an RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class FakeServer:
    """Listens on a free port of the loopback, or on a Unix socket."""

    def __init__(self, sock: socket.socket, url: str) -> None:
        self.sock = sock
        self.url = url
        self.hello = True
        self.peers: list[Peer] = []

    async def accept(self) -> Peer:
        """Return the next connection."""
        sock: socket.socket | None = None
        while sock is None:
            try:
                sock, _ = self.sock.accept()
            except BlockingIOError:
                await anyio.wait_readable(self.sock)
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock, hello=self.hello)
        self.peers.append(peer)
        return peer

    async def serve(self) -> None:
        """Answer everything on all connections, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                tasks.start_soon((await self.accept()).serve)

    def close(self) -> None:
        self.sock.close()
        for peer in self.peers:
            peer.close()


def listen(path: str | None = None) -> FakeServer:
    if path is not None:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("\0" + path[1:] if path.startswith("@") else path)
        url = f"unix://{path}"
    else:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{sock.getsockname()[1]}"
    sock.listen(64)
    sock.setblocking(False)
    return FakeServer(sock, url)


@asynccontextmanager
async def serving() -> AsyncIterator[FakeServer]:
    """A server that answers, in the test's own loop."""
    server = listen()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)  # noqa: ASYNC113  it listens already
            yield server
            tasks.cancel_scope.cancel()
    finally:
        server.close()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[FakeServer]:
    """A server that follows a script, which must have come to its end when the test has."""
    server = listen()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(script, server)  # noqa: ASYNC113  it listens already
            yield server
    finally:
        server.close()


@contextmanager
def in_thread(script: Script = FakeServer.serve, path: str | None = None) -> Iterator[FakeServer]:
    """A server in a thread of its own, for blocking clients."""
    server = listen(path)
    failures: list[BaseException] = []
    stop, stopped = socket.socketpair()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(script, server)
            await anyio.wait_readable(stopped)
            tasks.cancel_scope.cancel()

    def run() -> None:
        try:
            anyio.run(main, backend="trio")
        except BaseException as error:  # noqa: ASYNC103, BLE001  shown to the test
            failures.append(_only(error) if isinstance(error, BaseExceptionGroup) else error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield server
    finally:
        stop.close()
        thread.join(10)
        stopped.close()
        server.close()
    if failures:
        raise failures[0]


def bound_as(event: Bind, signature: Signature) -> bytes:
    return bound_frame(event.rid, event.handle, signature)


def decode_inputs(signature: Signature, rows: int, payload: Any) -> list[np.ndarray]:
    data, position, inputs = memoryview(payload), 0, []
    for spec in signature.inputs:
        if spec.dtype is DType.BYTES:
            starts, sizes, nbytes = check_bytes_tensor(data[position:], rows * spec.row_elements, fast=False)
            elements = [
                bytes(data[position + start : position + start + size])
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
            ]
            inputs.append(np.array(elements, object).reshape((rows, *spec.row_shape)))
        else:
            nbytes = rows * spec.row_nbytes
            flat = np.frombuffer(data[position : position + nbytes], spec.dtype.numpy)
            inputs.append(flat.reshape((rows, *spec.row_shape)))
        position += (nbytes + 7) & ~7
    return inputs


def encode_outputs(outputs: Any) -> bytes:
    parts = [
        encode_bytes(array.ravel().tolist()) if array.dtype == object else array.tobytes()
        for array in outputs
    ]
    return b"".join(part + bytes(-len(part) % 8) for part in parts)


__all__ = [
    "LENGTHS", "MODELS", "PAIR", "SCALE", "UPPER", "WIDE", "FakeServer", "InferBegin", "Peer", "Tag", "in_thread",
    "listen", "on_both", "parse_request_meta", "scripted", "serving", "tlv",
]  # fmt: skip
