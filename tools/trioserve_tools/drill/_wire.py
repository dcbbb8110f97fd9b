"""A raw connection: frames out as bytes, frames in one by one, and nothing done for the caller."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import trio

from trioserve_protocol import (
    HEADER,
    HEADER_NBYTES,
    FrameType,
    RequestClass,
    admin_frame,
    bind_frame,
    frame,
    frame_bytes,
    infer_flags,
)

from ._ledger import status_name

HANDLE = 1
MINUTE_US = 60_000_000


class Reply(NamedTuple):
    """A frame as it came."""

    kind: int
    """A `FrameType`."""

    rid: int
    status: int
    flags: int
    rows: int
    meta: bytes
    payload: bytes

    @property
    def code(self) -> str:
        """Name of the status."""
        return status_name(self.status)


class Wire:
    """A connection to a server on this machine."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    async def send(self, data: bytes) -> None:
        """Sends all of it."""
        await self.stream.send_all(data)

    async def receive(self) -> Reply | None:
        """The next frame; None at the end of the stream.

        Raises:
            trio.BrokenResourceError: The connection was reset.
        """
        while (reply := self._take()) is None:
            more = await self.stream.receive_some()
            if not more:
                return None
            self._data += more
        return reply

    async def expect(self) -> Reply:
        """The next frame.

        Raises:
            ConnectionError: The server has closed the connection.
        """
        reply = await self.receive()
        if reply is None:
            raise ConnectionError("the server closed a connection that it should not have")
        return reply

    async def rest(self) -> bytes:
        """Everything up to the end of the stream, not cut into frames; a reset counts as an end."""
        data, self._data = self._data, b""
        try:
            async for more in self.stream:
                data += more
        except trio.BrokenResourceError:
            pass
        return data

    async def bind(self, model: str) -> None:
        """Binds a model to `HANDLE`."""
        await self.send(bind_frame(1, HANDLE, model))
        reply = await self.expect()
        if reply.kind != FrameType.BOUND:
            raise ConnectionError(f"{model} is not bound: {reply.code}")

    async def admin(self, operation: str) -> Any:  # noqa: ANN401  whatever JSON there is
        """Asks the server about itself."""
        await self.send(admin_frame(1, json.dumps({"op": operation}).encode()))
        return json.loads((await self.expect()).payload.rstrip(b"\0"))

    async def order(self, order: dict[str, Any]) -> Reply:
        """Gives the server an order, and waits until it has been obeyed or refused."""
        await self.send(admin_frame(1, json.dumps(order).encode()))
        return await self.expect()

    async def finish_sending(self) -> None:
        """Sends FIN; replies can still be received."""
        await self.stream.send_eof()

    def reset(self) -> None:
        """Closes the connection with RST, whatever is under way."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.stream.socket.close()

    def _take(self) -> Reply | None:
        if len(self._data) < HEADER_NBYTES:
            return None
        w0, body, rid, status, flags, _, meta8, rows, _ = HEADER.unpack_from(self._data)
        whole = HEADER_NBYTES + body
        if len(self._data) < whole:
            return None
        at = HEADER_NBYTES + 8 * meta8
        reply = Reply(w0 >> 24, rid, status, flags, rows, self._data[HEADER_NBYTES:at], self._data[at:whole])
        self._data = self._data[whole:]
        return reply


@asynccontextmanager
async def wire(place: int | Path, model: str = "") -> AsyncIterator[Wire]:
    """A connection to a server on this machine.

    Args:
        place: Port of the server, or its Unix socket.
        model: Bound to `HANDLE`, if there is one.
    """
    if isinstance(place, int):
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", place)
    else:
        stream = await trio.open_unix_socket(place)
    if not isinstance(stream, trio.SocketStream):
        raise AssertionError("a stream of a socket that is no socket stream: this is a bug")  # noqa: TRY004  ours
    async with stream:
        opened = Wire(stream)
        if model:
            await opened.bind(model)
        yield opened


def infer(
    rid: int,
    payload: bytes,
    *,
    rows: int = 1,
    timeout_us: int = MINUTE_US,
    request_class: RequestClass = RequestClass.CRITICAL,
) -> bytes:
    """An INFER of the model that is bound to `HANDLE`."""
    return frame_bytes(
        frame(
            FrameType.INFER,
            rid=rid,
            handle=HANDLE,
            flags=infer_flags(request_class),
            timeout_us=timeout_us,
            rows=rows,
            payload=payload,
        )
    )
